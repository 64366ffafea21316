//! The weights on the devices, bound to the layers that own them.

use super::Session;
use crate::error::{Error, Result};
use crate::layer::{LayerHandle, ModelWeight, WeightStore, lock};
use crate::model::Definition;
use crate::model::update_graph::{self, UpdateState};
use crate::strategy::LayoutMap;
use phalanx_distributed::warnings::warning;
use phalanx_exec::{Executor, StateId};
use phalanx_graph::loss_scale::LossScale;
use phalanx_graph::{ParamId, ParamSpec};
use std::collections::HashMap;
use std::sync::{Arc, Mutex};

/// The executor of a compiled model, shared by the parts of its session.
pub(super) type SharedExecutor = Arc<Mutex<Box<dyn Executor>>>;

/// The weights of a compiled model as its layers see them. It lives as long as the session.
struct SessionWeights(SharedExecutor);

impl WeightStore for SessionWeights {
    fn read(&self, param: ParamId) -> Result<Vec<f32>> {
        Ok(lock(&self.0).param(param)?)
    }
}

/// A layer with weights, its parameters, and the version of its host values that the devices have.
struct BoundLayer {
    layer: LayerHandle,
    params: Vec<ParamId>,
    seen: Option<u64>,
}

/// The name of a weight, `layer/weight`.
fn full_name(weight: &ModelWeight) -> String {
    format!("{}/{}", weight.layer_name, weight.layer.weights()[weight.index].spec.name)
}

/// The weights of a model on its devices.
pub(crate) struct DeviceWeights {
    executor: SharedExecutor,
    /// What layers read them from.
    store: Arc<dyn WeightStore>,
    /// In the order of the model.
    pub all: Vec<ModelWeight>,
    /// Positions in `all` by name, `layer/weight`.
    by_name: HashMap<String, usize>,
    layers: Vec<BoundLayer>,
    /// The weights that the optimizer updates, as `trainable` was when the model was compiled.
    trained: Vec<ParamId>,
    /// The parameter table of the programs.
    pub params: Vec<ParamSpec>,
    /// The parameter that holds the loss scale, if the loss is scaled.
    pub loss_scale: Option<LossScale>,
    /// The state of an optimizer that updates whole weights.
    pub update: Option<UpdateState>,
}

impl DeviceWeights {
    pub fn new(
        executor: SharedExecutor,
        weights: Vec<ModelWeight>,
        params: &[ParamSpec],
        optimizer_state: (Option<LossScale>, Option<UpdateState>),
    ) -> DeviceWeights {
        let trained = weights.iter().map(|w| w.param).filter(|p| params[p.index()].trainable);
        let trained = trained.collect();
        let mut layers: Vec<BoundLayer> = vec![];
        for w in &weights {
            match layers.iter_mut().find(|bound| bound.layer.same(&w.layer)) {
                Some(bound) => bound.params.push(w.param),
                None => {
                    let (layer, params) = (w.layer.clone(), vec![w.param]);
                    layers.push(BoundLayer { layer, params, seen: None });
                }
            }
        }
        let store: Arc<dyn WeightStore> = Arc::new(SessionWeights(executor.clone()));
        let (loss_scale, update) = optimizer_state;
        let mut by_name = HashMap::new();
        for (at, weight) in weights.iter().enumerate() {
            by_name.entry(full_name(weight)).or_insert(at);
        }
        DeviceWeights {
            executor,
            store,
            all: weights,
            by_name,
            layers,
            trained,
            params: params.to_vec(),
            loss_scale,
            update,
        }
    }

    /// The parameters of the executor, of which the weights are some.
    pub fn specs(&self) -> &[ParamSpec] {
        &self.params
    }

    /// The weights with their paths in Keras.
    pub fn paths(&self, def: &Definition) -> Vec<(ParamId, String)> {
        paths(def, &self.all)
    }

    /// The axis along which a layout partitions each parameter.
    pub fn partition_axes(
        &self,
        def: &Definition,
        layout: Option<&LayoutMap>,
    ) -> Result<Vec<Option<usize>>> {
        let mut params = self.specs().to_vec();
        params.iter_mut().for_each(|spec| spec.partition_axis = None);
        if let Some(layout) = layout {
            layout.partition(&mut params, &self.paths(def))?;
        }
        Ok(params.iter().map(|spec| spec.partition_axis).collect())
    }

    /// The weights that the optimizer updates.
    pub fn trained(&self) -> &[ParamId] {
        &self.trained
    }

    /// Whether the optimizer updates a weight.
    pub fn is_trained(&self, param: ParamId) -> bool {
        self.trained.contains(&param)
    }

    /// Sends weights to the devices that changed since the devices last saw them: on the host, or on
    /// the devices of another model that shares the layer.
    pub fn sync_to_devices(&mut self) -> Result<()> {
        for bound in &mut self.layers {
            let version = bound.layer.sync_from_other(Some(&self.store))?;
            if version.is_none() || version == bound.seen {
                continue;
            }
            // Copied first: a reader of these devices' weights locks the devices before the layer.
            let values: Vec<_> = bound.layer.weights().iter().map(|w| w.values.clone()).collect();
            for (values, param) in values.iter().zip(&bound.params) {
                if let Some(values) = values {
                    lock(&self.executor).set_param(*param, values)?;
                }
            }
            bound.seen = version;
        }
        Ok(())
    }

    /// Gives trained values back to the layers.
    pub fn release(&self) -> Result<()> {
        self.layers.iter().try_for_each(|bound| bound.layer.release(&self.store))
    }

    /// Declares that the newest weights will be on these devices.
    pub fn take_ownership(&self) {
        for bound in &self.layers {
            bound.layer.set_owner(&self.store, &bound.params);
        }
    }

    /// Sets the states that no batch has left a value in to zero.
    pub fn start_states(&self) -> Result<()> {
        for weight in self.all.iter().filter(|w| w.layer.holds_states()) {
            let started = weight.layer.weights()[weight.index].values.is_some();
            let dims = &self.params[weight.param.index()].dims;
            if !started {
                let zeros = vec![0.0; dims.iter().product()];
                lock(&self.executor).set_param(weight.param, &zeros)?;
            }
        }
        Ok(())
    }

    /// Declares that the newest states, which every step changes, are on these devices.
    pub fn own_states(&self) {
        for bound in self.layers.iter().filter(|bound| bound.layer.holds_states()) {
            bound.layer.set_owner(&self.store, &bound.params);
        }
    }

    /// The name of a layer whose states outlive a batch, if any.
    pub fn stateful_layer(&self) -> Option<String> {
        let of_state = |w: &&ModelWeight| w.layer.holds_states();
        let name = |w: &ModelWeight| w.layer_name.trim_start_matches("@state/").to_string();
        self.all.iter().find(of_state).map(name)
    }

    /// Names as `layer/weight`.
    pub fn names(&self) -> Vec<String> {
        self.all.iter().map(full_name).collect()
    }

    /// Every weight with its name and dimensions, once.
    pub fn named(&self) -> Vec<(String, ParamId, Vec<usize>)> {
        let mut weights: Vec<(String, ParamId, Vec<usize>)> = vec![];
        for (weight, name) in self.all.iter().zip(self.names()) {
            if !weights.iter().any(|known| known.1 == weight.param) {
                let dims = weight.layer.weights()[weight.index].spec.dims.clone();
                weights.push((name, weight.param, dims));
            }
        }
        weights
    }

    /// The index of a weight.
    fn position(&self, name: &str) -> Result<usize> {
        let unknown = || Error::Unknown { kind: "weight", name: name.into(), known: self.names() };
        self.by_name.get(name).copied().ok_or_else(unknown)
    }

    /// A weight by name.
    pub fn read(&self, name: &str) -> Result<Vec<f32>> {
        let at = self.position(name)?;
        Ok(lock(&self.executor).param(self.all[at].param)?)
    }

    /// Sets weights by name.
    pub fn write(&self, weights: &[(String, Vec<f32>)]) -> Result<()> {
        for (name, values) in weights {
            let at = self.position(name)?;
            lock(&self.executor).set_param(self.all[at].param, values)?;
        }
        Ok(())
    }

    /// Whether every number is known to be finite. Weights that cannot be read are not.
    pub fn is_finite(&self) -> bool {
        let executor = lock(&self.executor);
        let finite = |w: &ModelWeight| {
            executor.param(w.param).is_ok_and(|values| values.iter().all(|v| v.is_finite()))
        };
        self.all.iter().all(finite)
    }

    /// Replaces weights by other parameters of the same dimensions.
    pub fn replace(&self, by: impl Iterator<Item = (ParamId, ParamId)>) -> Result<()> {
        let mut executor = lock(&self.executor);
        for (weight, by) in by {
            let values = executor.param(by)?;
            executor.set_param(weight, &values)?;
        }
        Ok(())
    }

    /// Replaces the trained weights by their moving average, the optimizer's last slot.
    pub fn apply_moving_average(&self) -> Result<()> {
        let mut executor = lock(&self.executor);
        let Some(last) = executor.slots().checked_sub(1) else { return Ok(()) };
        for param in &self.trained {
            if let Some(average) = executor.read(StateId::Slot(last, *param))? {
                executor.set_param(*param, &average)?;
            }
        }
        Ok(())
    }
}

/// Weights with their paths in Keras.
pub(super) fn paths(def: &Definition, weights: &[ModelWeight]) -> Vec<(ParamId, String)> {
    let path = |w: &ModelWeight| (w.param, update_graph::path(def, &w.layer_name, w));
    weights.iter().map(path).collect()
}

impl Session {
    /// The moving averages of the trained weights by name; none if the optimizer keeps none.
    pub(crate) fn averages(&self) -> Result<Vec<(String, Vec<f32>)>> {
        let executor = lock(&self.executor);
        let inside: Vec<(ParamId, ParamId)> = self.objective.graph_averages(&self.state).collect();
        let mut averages = vec![];
        for (name, param, _) in self.weights.named() {
            let whole = self.weights.update.as_ref().and_then(|update| update.of(param));
            let average = match (&self.weights.update, whole) {
                (Some(_), weight) => weight.and_then(|w| w.average).map(StateId::Param),
                (None, _) => {
                    let kept = self.objective.executor_averages();
                    let last = executor.slots().checked_sub(1).filter(|_| kept);
                    let trained = self.weights.is_trained(param);
                    last.filter(|_| trained).map(|slot| StateId::Slot(slot, param))
                }
            };
            if let Some((_, average)) = inside.iter().rev().find(|(weight, _)| *weight == param) {
                averages.push((name, executor.param(*average)?));
                continue;
            }
            let Some(average) = average else { continue };
            let held = if self.state.updates > 0 { average } else { StateId::Param(param) };
            averages.extend(executor.read(held)?.map(|values| (name, values)));
        }
        Ok(averages)
    }
}

impl Drop for DeviceWeights {
    /// Trained values stay with the layers.
    fn drop(&mut self) {
        for bound in &self.layers {
            if let Err(error) = bound.layer.release(&self.store) {
                warning!("trained weights were lost with their devices: {error}");
                bound.layer.set_lost(&error);
            }
        }
    }
}
