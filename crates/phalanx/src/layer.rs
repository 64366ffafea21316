//! Layers: a config and a `call` that appends nodes to the graph.
//!
//! `call` both declares the layer's weights and computes with them, so the code that runs also infers
//! the shapes. A [`LayerHandle`] identifies a layer and its weights: applying the same handle twice
//! shares the weights.

use crate::constraints::Constraint;
use crate::error::{Error, Result};
use crate::initializers::Initializer;
use crate::regularizers::Regularizer;
use phalanx_graph::{Graph, MAX_ELEMENTS, NodeId, ParamId, Scope};
use serde_json::{Map, Value};
use std::fmt::{self, Debug};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, Weak};

/// A layer's config and computation.
pub trait Layer: Debug + Send + Sync + 'static {
    /// Keras' class name, such as `Dense`.
    fn class_name(&self) -> &'static str;

    /// The config with Keras' keys, without `name`, `trainable` and `dtype`.
    fn config(&self) -> Map<String, Value>;

    /// Appends the layer's nodes for `inputs` and returns the output node.
    fn call(&self, cx: &mut LayerContext<'_>, inputs: &[NodeId]) -> Result<NodeId>;
}

/// The declaration of a weight.
#[derive(Clone, Debug)]
pub struct WeightSpec {
    /// Keras' name inside the layer: `kernel`, `bias`, `gamma`, ….
    pub name: &'static str,
    /// Dimensions.
    pub dims: Vec<usize>,
    /// Initializer of the values.
    pub initializer: Initializer,
    /// Penalty on the values, if any.
    pub regularizer: Option<Regularizer>,
    /// Projection applied after every update, if any.
    pub constraint: Option<Constraint>,
    /// Whether the optimizer updates it; false for moving statistics.
    pub trainable: bool,
}

impl WeightSpec {
    /// Creates a trainable weight without regularizer or constraint.
    pub fn new(name: &'static str, dims: &[usize], initializer: Initializer) -> WeightSpec {
        WeightSpec {
            name,
            dims: dims.to_vec(),
            initializer,
            regularizer: None,
            constraint: None,
            trainable: true,
        }
    }

    /// Sets the regularizer.
    pub fn regularizer(mut self, regularizer: Option<Regularizer>) -> WeightSpec {
        self.regularizer = regularizer;
        self
    }

    /// Sets the constraint.
    pub fn constraint(mut self, constraint: Option<Constraint>) -> WeightSpec {
        self.constraint = constraint;
        self
    }

    /// Excludes the weight from the optimizer's updates.
    pub fn non_trainable(mut self) -> WeightSpec {
        self.trainable = false;
        self
    }
}

/// A weight and its host values, once initialized or loaded.
#[derive(Clone, Debug)]
pub struct Weight {
    /// The declaration.
    pub spec: WeightSpec,
    /// The values; `None` until a model is initialized.
    pub values: Option<Vec<f32>>,
}

/// Weight storage outside the layers: the devices of a compiled model. Models that share layers read each other's
/// weights through it.
pub(crate) trait WeightStore: Send + Sync {
    /// Returns the values of a parameter.
    fn read(&self, param: ParamId) -> Result<Vec<f32>>;
}

/// The store that holds the newest values of a layer's weights.
struct Owner {
    store: Weak<dyn WeightStore>,
    params: Vec<ParamId>,
}

impl Owner {
    fn is(&self, store: &Arc<dyn WeightStore>) -> bool {
        std::ptr::addr_eq(self.store.as_ptr(), Arc::as_ptr(store))
    }
}

impl Debug for Owner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Owner").field("params", &self.params).finish_non_exhaustive()
    }
}

/// Locks a mutex and ignores poisoning.
pub(crate) fn lock<T: ?Sized>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
}

/// One layer of a model: its config, name, trainable flag and weights.
///
/// The host holds the newest weights until a compiled model trains them. From then on that model's
/// devices hold the newest values, and other models that use the layer fetch them from there.
#[derive(Debug)]
pub struct LayerInstance {
    layer: Box<dyn Layer>,
    name: Option<String>,
    trainable: AtomicBool,
    weights: Mutex<Vec<Weight>>,
    owner: Mutex<Option<Owner>>,
    /// Incremented whenever the host values change.
    version: AtomicU64,
    /// Why trained values could not be copied to the host before their devices were gone.
    lost: Mutex<Option<String>>,
}

impl LayerInstance {
    /// Returns the config.
    pub fn layer(&self) -> &dyn Layer {
        &*self.layer
    }

    /// Returns the name set by the user, if any. Models name other layers by class and number.
    pub fn given_name(&self) -> Option<&str> {
        self.name.as_deref()
    }

    /// Returns whether the optimizer updates the weights.
    pub fn trainable(&self) -> bool {
        self.trainable.load(Ordering::Relaxed)
    }

    /// Freezes or unfreezes the layer; takes effect at the next `compile`.
    pub fn set_trainable(&self, trainable: bool) {
        self.trainable.store(trainable, Ordering::Relaxed);
    }

    /// Returns the weights in Keras' order. If a compiled model is training the layer, these values may
    /// be stale; [`Model::weights`](crate::model::Model::weights) fetches the newest ones first.
    pub fn weights(&self) -> MutexGuard<'_, Vec<Weight>> {
        lock(&self.weights)
    }

    /// Copies the newest values to the host.
    ///
    /// # Errors
    /// The devices cannot be read. The host keeps its last values.
    pub(crate) fn sync_to_host(&self) -> Result<()> {
        self.sync_from_other(None).map(|_| ())
    }

    /// Like [`sync_to_host`](Self::sync_to_host), but does nothing and returns `None` if `own` has the
    /// newest values. Otherwise returns the version of the host values.
    pub(crate) fn sync_from_other(
        &self,
        own: Option<&Arc<dyn WeightStore>>,
    ) -> Result<Option<u64>> {
        let owner = lock(&self.owner);
        if let Some(reason) = &*lock(&self.lost) {
            let owner = self.name.clone().unwrap_or_else(|| self.layer.class_name().into());
            let message = format!("its trained weights were lost with their devices: {reason}");
            return Err(Error::config(owner, message));
        }
        if let Some(owner) = &*owner {
            if own.is_some_and(|own| owner.is(own)) {
                return Ok(None);
            }
            if let Some(store) = owner.store.upgrade() {
                // Read first: the store is never locked while the weights are locked.
                let values = owner.params.iter().map(|p| store.read(*p));
                let values = values.collect::<Result<Vec<Vec<f32>>>>()?;
                for (weight, values) in self.weights().iter_mut().zip(values) {
                    weight.values = Some(values);
                }
                self.version.fetch_add(1, Ordering::Relaxed);
            }
        }
        Ok(Some(self.version.load(Ordering::Relaxed)))
    }

    /// Copies the newest values to the host if `store` has them, and forgets the store.
    ///
    /// # Errors
    /// As for [`sync_to_host`](Self::sync_to_host). The store still has the newest values.
    pub(crate) fn release(&self, store: &Arc<dyn WeightStore>) -> Result<()> {
        if !lock(&self.owner).as_ref().is_some_and(|owner| owner.is(store)) {
            return Ok(());
        }
        self.sync_to_host()?;
        *lock(&self.owner) = None;
        Ok(())
    }

    /// Records that the newest values went with their store. Reading them is an error until others are set.
    pub(crate) fn set_lost(&self, reason: &Error) {
        *lock(&self.owner) = None;
        *lock(&self.lost) = Some(reason.to_string());
    }

    /// Records that `store` has the newest values, in the parameters `params`.
    pub(crate) fn set_owner(&self, store: &Arc<dyn WeightStore>, params: &[ParamId]) {
        let mut owner = lock(&self.owner);
        if !owner.as_ref().is_some_and(|owner| owner.is(store)) {
            *owner = Some(Owner { store: Arc::downgrade(store), params: params.to_vec() });
        }
    }

    /// Replaces the values of all weights.
    pub(crate) fn set_values(&self, values: impl Iterator<Item = Vec<f32>>) {
        let mut owner = lock(&self.owner);
        for (weight, values) in self.weights().iter_mut().zip(values) {
            weight.values = Some(values);
        }
        *owner = None;
        *lock(&self.lost) = None;
        self.version.fetch_add(1, Ordering::Relaxed);
    }
}

/// A shared reference to a layer. Clones refer to the same layer.
#[derive(Clone, Debug)]
pub struct LayerHandle(Arc<LayerInstance>);

impl LayerHandle {
    /// Creates a layer. If `name` is `None`, the model names it by class and number.
    pub fn new(layer: Box<dyn Layer>, name: Option<String>, trainable: bool) -> LayerHandle {
        let trainable = AtomicBool::new(trainable);
        LayerHandle(Arc::new(LayerInstance {
            layer,
            name,
            trainable,
            weights: Mutex::default(),
            owner: Mutex::default(),
            version: AtomicU64::new(0),
            lost: Mutex::default(),
        }))
    }

    /// Returns whether both handles refer to the same layer.
    pub fn same(&self, other: &LayerHandle) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }

    /// Freezes the layer and returns it, for chaining.
    pub fn frozen(self) -> LayerHandle {
        self.set_trainable(false);
        self
    }
}

impl std::ops::Deref for LayerHandle {
    type Target = LayerInstance;

    fn deref(&self) -> &LayerInstance {
        &self.0
    }
}

impl<L: Layer> From<L> for LayerHandle {
    fn from(layer: L) -> LayerHandle {
        LayerHandle::new(Box::new(layer), None, true)
    }
}

/// Convenience methods of all layers.
pub trait LayerExt: Layer + Sized {
    /// Names the layer; the model finds it by this name.
    fn named(self, name: &str) -> LayerHandle {
        LayerHandle::new(Box::new(self), Some(name.into()), true)
    }
}

impl<L: Layer> LayerExt for L {}

/// A weight of a model: its graph parameter and the layer that holds its values.
#[derive(Clone, Debug)]
pub struct ModelWeight {
    /// The layer that declared the weight.
    pub layer: LayerHandle,
    /// The layer's name in this model.
    pub layer_name: String,
    /// Index in the layer's weights.
    pub index: usize,
    /// The graph parameter.
    pub param: ParamId,
}

/// The state of lowering a model to a graph, which the layers append to.
#[derive(Debug)]
pub struct Lowering {
    /// The graph.
    pub graph: Graph,
    /// Whether this is a training pass: dropout is active, batch norm uses batch statistics.
    pub training: bool,
    /// The weights declared so far, in order.
    pub weights: Vec<ModelWeight>,
    /// Assignments at the end of the step, such as moving statistics.
    pub assigns: Vec<(ParamId, NodeId)>,
    /// Constant parameters from layer configs, with their values.
    pub constants: Vec<(ParamId, Vec<f32>)>,
    /// Whether batch statistics are synchronized across replicas even if a layer does not request it.
    pub synchronized: bool,
    streams: u32,
}

impl Lowering {
    /// Creates a lowering with an empty graph.
    pub fn new(training: bool) -> Lowering {
        Lowering {
            graph: Graph::new(),
            training,
            weights: vec![],
            assigns: vec![],
            constants: vec![],
            synchronized: false,
            streams: 0,
        }
    }

    /// Calls a layer; `name` is its name in this model.
    pub fn call(&mut self, layer: &LayerHandle, name: &str, inputs: &[NodeId]) -> Result<NodeId> {
        let outer = self.graph.enter(name);
        let mut cx = LayerContext { lowering: self, layer, name, declared: 0 };
        let out = layer.layer().call(&mut cx, inputs).map_err(|e| match e {
            Error::Graph(g) => Error::Graph(g.in_layer(name)),
            other => other,
        });
        self.graph.enter(&outer);
        out
    }
}

/// The context of a layer's `call`: the graph, the layer's weights and the mode.
pub struct LayerContext<'a> {
    lowering: &'a mut Lowering,
    layer: &'a LayerHandle,
    name: &'a str,
    declared: usize,
}

impl LayerContext<'_> {
    /// Returns the graph to append to.
    pub fn graph(&mut self) -> &mut Graph {
        &mut self.lowering.graph
    }

    /// Returns the layer's name in this model.
    pub fn name(&self) -> &str {
        self.name
    }

    /// Returns the dimensions of one sample of `x`.
    pub fn dims(&self, x: NodeId) -> Vec<usize> {
        self.lowering.graph.ty(x).dims.clone()
    }

    /// Returns whether this is a training pass.
    pub fn training(&self) -> bool {
        self.lowering.training
    }

    /// Returns whether the layer is trainable. A frozen batch norm runs in inference mode.
    pub fn trainable(&self) -> bool {
        self.layer.trainable()
    }

    /// Creates an error about an argument of this layer.
    pub fn argument(&self, argument: &str, expected: &str, received: impl ToString) -> Error {
        Error::argument(format!("layer '{}'", self.name), argument, expected, received)
    }

    /// Declares the layer's next weight, or finds it if an earlier call declared it, and returns its value.
    pub fn weight(&mut self, spec: WeightSpec) -> Result<NodeId> {
        let index = self.declared;
        self.declared += 1;
        let full_name = format!("{}/{}", self.name, spec.name);
        if spec.dims.contains(&0) {
            let dims = format!("{:?}", spec.dims);
            return Err(self.argument(spec.name, "a shape without zeros", dims));
        }
        let len = spec.dims.iter().try_fold(1usize, |n, d| n.checked_mul(*d));
        if len.is_none_or(|n| n > MAX_ELEMENTS) {
            let dims = format!("{:?}", spec.dims);
            return Err(self.argument(spec.name, "a shape that fits in memory", dims));
        }
        let mut weights = self.layer.weights();
        match weights.get_mut(index) {
            None => weights.push(Weight { spec: spec.clone(), values: None }),
            Some(existing) if existing.spec.dims == spec.dims => existing.spec = spec.clone(),
            Some(existing) => {
                let (expected, received) = (format!("{:?}", existing.spec.dims), &spec.dims);
                return Err(self.argument(
                    spec.name,
                    &format!("the shape it was built with, {expected}"),
                    format!("{received:?}"),
                ));
            }
        }
        drop(weights);
        let declared =
            self.lowering.weights.iter().find(|w| w.layer.same(self.layer) && w.index == index);
        let param = match declared {
            Some(w) => w.param,
            None => {
                let trainable = spec.trainable && self.layer.trainable();
                let param = self.lowering.graph.add_param(&full_name, &spec.dims, trainable);
                self.lowering.weights.push(ModelWeight {
                    layer: self.layer.clone(),
                    layer_name: self.name.into(),
                    index,
                    param,
                });
                param
            }
        };
        // As in Keras, a later call of a shared layer reads what an earlier call assigned.
        let pending = self.lowering.assigns.iter().find(|(p, _)| *p == param).map(|(_, n)| *n);
        Ok(pending.unwrap_or_else(|| self.lowering.graph.param(param)))
    }

    /// Adds a constant from the layer's config. It is not a weight and is never saved.
    ///
    /// # Panics
    /// If the number of values does not match `dims`.
    pub fn constant(&mut self, name: &str, dims: &[usize], values: Vec<f32>) -> NodeId {
        assert_eq!(dims.iter().product::<usize>(), values.len(), "{name} of shape {dims:?}");
        let full_name = format!("{}/{name}", self.name);
        let param = self.lowering.graph.add_param(&full_name, dims, false);
        self.lowering.constants.push((param, values));
        self.lowering.graph.param(param)
    }

    /// Assigns `value` to the layer's weight `index` at the end of the step.
    pub fn assign(&mut self, index: usize, value: NodeId) {
        let declared =
            self.lowering.weights.iter().find(|w| w.layer.same(self.layer) && w.index == index);
        let param = declared.expect("a layer assigns a weight it has declared").param;
        // The last call wins.
        self.lowering.assigns.retain(|(p, _)| *p != param);
        self.lowering.assigns.push((param, value));
    }

    /// Returns a random stream that only this call uses.
    pub fn stream(&mut self) -> u32 {
        self.lowering.streams += 1;
        self.lowering.streams
    }

    /// Returns the scope over which batch statistics are reduced.
    pub fn statistics(&self, synchronized: bool) -> Scope {
        if synchronized || self.lowering.synchronized { Scope::All } else { Scope::Device }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::layers::Flatten;

    /// Devices that can no longer be read.
    struct Broken;

    impl WeightStore for Broken {
        fn read(&self, _: ParamId) -> Result<Vec<f32>> {
            Err(Error::config("gpu:0", "an illegal address"))
        }
    }

    #[test]
    fn weights_lost_with_their_devices_are_an_error_until_new_ones_are_set() {
        let layer = LayerHandle::from(Flatten::new());
        let store: Arc<dyn WeightStore> = Arc::new(Broken);
        layer.set_owner(&store, &[ParamId(0)]);
        let reason = layer.release(&store).unwrap_err();
        layer.set_lost(&reason);
        let error = layer.sync_to_host().unwrap_err().to_string();
        assert!(
            error.contains("were lost with their devices: gpu:0: an illegal address"),
            "{error}"
        );
        assert!(layer.sync_from_other(None).is_err());
        layer.set_values([].into_iter());
        assert!(layer.sync_to_host().is_ok());
    }
}
