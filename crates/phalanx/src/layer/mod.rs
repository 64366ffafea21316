//! Layers: a config and a `call` that appends nodes to the graph.
//!
//! `call` both declares the layer's weights and computes with them, so the code that runs also infers
//! the shapes. A [`LayerHandle`] identifies a layer and its weights: applying the same handle twice
//! shares the weights.

mod arguments;
mod call;
mod host;
mod integers;
mod lowering;
mod states;
mod sublayers;
mod weights;

pub use arguments::{Argument, Arguments};
pub use host::{Elements, HostLayer, RowType, VocabularyLayer};
pub(crate) use host::{host_only, one_input};
pub(crate) use integers::{EXACT_INTEGERS, check_fetched, is_integer_check, too_large};
pub use lowering::{InputSizes, LayerContext, Lowering, ModelWeight, Operand};
pub(crate) use weights::WeightStore;
pub use weights::{Weight, WeightSpec};

use crate::data::{Columns, Samples};
use crate::error::{Error, Result};
use crate::regularizers::Regularizer;
use phalanx_graph::program::Policy;
use phalanx_graph::{NodeId, ParamId};
use serde_json::{Map, Value};
use std::fmt::Debug;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock};
use weights::Owner;

/// A layer's config and computation.
pub trait Layer: Debug + Send + Sync + 'static {
    /// Keras' class name, such as `Dense`.
    fn class_name(&self) -> &'static str;

    /// The config with Keras' keys, without `name`, `trainable` and `dtype`.
    fn config(&self) -> Map<String, Value>;

    /// The Python module that exports the class.
    fn module(&self) -> &str {
        "keras.layers"
    }

    /// Appends the layer's nodes and returns its outputs. `inputs` are the tensors among the positional arguments.
    /// Masks, named and plain arguments are in the context.
    fn call(&self, cx: &mut LayerContext<'_>, inputs: &[NodeId]) -> Result<Outputs>;

    /// What becomes of the input's mask if [`call`](Layer::call) does not say so.
    fn mask_rule(&self) -> MaskRule {
        MaskRule::Stop
    }

    /// The penalty on the layer's outputs, which is added to the loss, divided by the size of the batch.
    ///
    /// # Errors
    /// If the regularizer has an unknown name.
    fn activity_penalty(&self) -> Result<Option<Regularizer>> {
        Ok(None)
    }

    /// How several inputs are passed.
    fn inputs_form(&self) -> InputsForm {
        InputsForm::Single
    }

    /// The names of the arguments that `call` takes in Python, in order, without `training` and `mask`. `args` stands for
    /// any number of positional arguments.
    fn signature(&self) -> &'static [&'static str] {
        &["inputs"]
    }

    /// The layer's computation on the host, if it has one. Layers of strings run nowhere else.
    fn host(&self) -> Option<&dyn HostLayer> {
        None
    }

    /// The layer's vocabulary, if it has one.
    fn vocabulary(&self) -> Option<&dyn VocabularyLayer> {
        None
    }

    /// Keras' name of the layer's element type.
    fn dtype(&self) -> &'static str {
        "float32"
    }
}

/// What becomes of the mask of a layer's input.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MaskRule {
    /// The output has no mask.
    Stop,
    /// The output has the mask of the first input.
    Pass,
}

/// How a layer takes its inputs in Python.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum InputsForm {
    /// One tensor, or a list if there are several.
    Single,
    /// Always a list, as merging layers do.
    List,
    /// One argument per tensor, as `MultiHeadAttention` does.
    Separate,
}

impl InputsForm {
    /// Passes tensors in this form.
    pub(crate) fn positional<T>(self, tensors: Vec<T>) -> Vec<Argument<T>> {
        let single = tensors.len() <= 1;
        let tensors = tensors.into_iter().map(Argument::Tensor).collect();
        match self {
            InputsForm::Separate => tensors,
            InputsForm::Single if single => tensors,
            InputsForm::Single | InputsForm::List => vec![Argument::List(tensors)],
        }
    }
}

/// The outputs of a call.
#[derive(Clone, Debug, PartialEq)]
pub struct Outputs {
    nodes: Vec<NodeId>,
    /// One mask per output; `None` if the layer's [`MaskRule`] decides.
    masks: Option<Vec<Option<NodeId>>>,
}

impl Outputs {
    /// Sets the mask of the first output. The others have none.
    pub fn masked(self, mask: Option<NodeId>) -> Outputs {
        self.with_masks(vec![mask])
    }

    /// Sets the masks of the first outputs. The others have none.
    pub fn with_masks(mut self, mut masks: Vec<Option<NodeId>>) -> Outputs {
        masks.resize(self.nodes.len(), None);
        self.masks = Some(masks);
        self
    }
}

impl Outputs {
    /// The values, in order.
    pub(crate) fn nodes(&self) -> &[NodeId] {
        &self.nodes
    }

    /// Replaces the values by as many others.
    pub(crate) fn with_nodes(self, nodes: Vec<NodeId>) -> Outputs {
        Outputs { nodes, ..self }
    }
}

impl From<NodeId> for Outputs {
    fn from(node: NodeId) -> Outputs {
        Outputs { nodes: vec![node], masks: None }
    }
}

impl From<Vec<NodeId>> for Outputs {
    fn from(nodes: Vec<NodeId>) -> Outputs {
        Outputs { nodes, masks: None }
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
    policy: Mutex<Option<Policy>>,
    weights: Mutex<Vec<Weight>>,
    owner: Mutex<Option<Owner>>,
    /// Incremented whenever the host values change.
    version: AtomicU64,
    /// The layer that holds the states which outlive a batch, if any.
    states: OnceLock<LayerHandle>,
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

    /// Returns the dtype policy of the layer, if it has one of its own.
    pub fn dtype_policy(&self) -> Option<Policy> {
        *lock(&self.policy)
    }

    /// Gives the layer a dtype policy of its own, which takes effect at the next `compile`. A model with a layer of mixed
    /// precision is compiled for mixed precision, unless its strategy says otherwise; its layers with
    /// [`Policy::Float32`] then keep 32-bit results.
    pub fn set_dtype_policy(&self, policy: Policy) {
        *lock(&self.policy) = Some(policy);
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
            policy: Mutex::default(),
            weights: Mutex::default(),
            owner: Mutex::default(),
            version: AtomicU64::new(0),
            states: OnceLock::new(),
            lost: Mutex::default(),
        }))
    }

    /// Returns whether both handles refer to the same layer.
    pub fn same(&self, other: &LayerHandle) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }

    /// Gives the layer a dtype policy of its own and returns it, for chaining.
    pub fn with_dtype_policy(self, policy: Policy) -> LayerHandle {
        self.set_dtype_policy(policy);
        self
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

    /// Applies a preprocessing layer to samples on the host, outside of a model.
    ///
    /// ```
    /// use phalanx::prelude::*;
    ///
    /// let lookup = StringLookup::new().vocabulary(["red", "blue"]);
    /// let indices = lookup.preprocess(Text::from(["blue", "green"]))?;
    /// assert_eq!(indices.to_tensor().i32().unwrap(), [2, 0]);
    /// # Ok::<(), phalanx::Error>(())
    /// ```
    ///
    /// # Errors
    /// A layer that does not run on the host, or samples that it refuses.
    fn preprocess(&self, samples: impl Into<Columns>) -> Result<Samples> {
        let class = self.class_name();
        let layer = self.host().ok_or_else(|| {
            Error::argument(class, "preprocess", "a layer that runs on the host", class)
        })?;
        let samples = samples.into().into_samples();
        if let Some(bad) = samples.iter().find(|s| s.dims().is_empty() || s.rows() == 0) {
            let received = format!("{:?}", bad.dims());
            return Err(Error::argument(class, "samples", "at least one row", received));
        }
        layer.run(class, &samples)
    }
}

impl<L: Layer> LayerExt for L {}

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
