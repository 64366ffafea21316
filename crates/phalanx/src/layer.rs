//! What a layer is: a config and a `call` that appends nodes to the graph.
//!
//! `call` both declares the layer's weights and computes with them, so shapes are inferred by the
//! same lines that run. A layer's identity (and with it its weights) is its [`LayerHandle`]:
//! applying one handle twice shares the weights.

use crate::constraints::Constraint;
use crate::error::{Error, Result};
use crate::initializers::Initializer;
use crate::regularizers::Regularizer;
use phalanx_graph::exec::Executor;
use phalanx_graph::{Graph, MAX_ELEMENTS, NodeId, ParamId, Scope};
use serde_json::{Map, Value};
use std::fmt::{self, Debug};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, Weak};

/// A layer's config and computation.
pub trait Layer: Debug + Send + Sync + 'static {
    /// Keras' class name, such as `Dense`.
    fn class_name(&self) -> &'static str;

    /// The config under Keras' keys, without `name`, `trainable` and `dtype`.
    fn config(&self) -> Map<String, Value>;

    /// Appends the layer's nodes for these inputs and returns its output.
    fn call(&self, cx: &mut Cx<'_>, inputs: &[NodeId]) -> Result<NodeId>;
}

/// A weight as its layer declares it.
#[derive(Clone, Debug)]
pub struct WeightSpec {
    /// Keras' name inside the layer: `kernel`, `bias`, `gamma`, ….
    pub name: &'static str,
    /// Dimensions.
    pub dims: Vec<usize>,
    /// First values.
    pub initializer: Initializer,
    /// Penalty on its size.
    pub regularizer: Option<Regularizer>,
    /// Projection after every update.
    pub constraint: Option<Constraint>,
    /// False for moving statistics, which no optimizer touches.
    pub trainable: bool,
}

impl WeightSpec {
    /// A trainable weight without penalty or constraint.
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

    /// Adds a penalty.
    pub fn regularizer(mut self, regularizer: Option<Regularizer>) -> WeightSpec {
        self.regularizer = regularizer;
        self
    }

    /// Adds a projection.
    pub fn constraint(mut self, constraint: Option<Constraint>) -> WeightSpec {
        self.constraint = constraint;
        self
    }

    /// Marks a weight that no optimizer touches.
    pub fn non_trainable(mut self) -> WeightSpec {
        self.trainable = false;
        self
    }
}

/// A weight and, once initialised or loaded, its values on the host.
#[derive(Clone, Debug)]
pub struct Weight {
    /// Its declaration.
    pub spec: WeightSpec,
    /// Its values; `None` until a model is initialised.
    pub values: Option<Vec<f32>>,
}

/// Storage of weights outside the layers: the devices of a compiled model.
pub(crate) trait WeightStore: Send + Sync {
    /// The values of a parameter.
    fn read(&self, param: ParamId) -> Vec<f32>;
}

/// The executor of a compiled model. Models that share layers read each other's weights from it.
pub(crate) type SharedExecutor = Arc<Mutex<Box<dyn Executor>>>;

impl WeightStore for Mutex<Box<dyn Executor>> {
    fn read(&self, param: ParamId) -> Vec<f32> {
        lock(self).param(param)
    }
}

/// Where the newest values of a layer's weights are.
struct Owner {
    store: Weak<dyn WeightStore>,
    params: Vec<ParamId>,
}

impl Owner {
    fn is(&self, executor: &SharedExecutor) -> bool {
        std::ptr::addr_eq(self.store.as_ptr(), Arc::as_ptr(executor))
    }
}

impl Debug for Owner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Owner").field("params", &self.params).finish_non_exhaustive()
    }
}

/// Locks a mutex, also after a thread panicked while it held it.
pub(crate) fn lock<T: ?Sized>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
}

/// One layer of a model: config, name, whether it trains, and its weights.
///
/// The weights are on the host, unless a compiled model has trained them since. Then that model's
/// devices hold the newest values, and other users of the layer fetch them from there.
#[derive(Debug)]
pub struct LayerInstance {
    layer: Box<dyn Layer>,
    name: Option<String>,
    trainable: AtomicBool,
    weights: Mutex<Vec<Weight>>,
    owner: Mutex<Option<Owner>>,
    /// Number of changes of the values on the host.
    version: AtomicU64,
}

impl LayerInstance {
    /// The config.
    pub fn layer(&self) -> &dyn Layer {
        &*self.layer
    }

    /// The name the user gave; models number the others by class.
    pub fn given_name(&self) -> Option<&str> {
        self.name.as_deref()
    }

    /// Whether the optimizer updates its weights.
    pub fn trainable(&self) -> bool {
        self.trainable.load(Ordering::Relaxed)
    }

    /// Freezes or thaws the layer; takes effect at the next `compile`.
    pub fn set_trainable(&self, trainable: bool) {
        self.trainable.store(trainable, Ordering::Relaxed);
    }

    /// The weights, in the order Keras has them. Their values may be older than those a compiled
    /// model trains; [`Model::weights`](crate::model::Model::weights) fetches the newest first.
    pub fn weights(&self) -> MutexGuard<'_, Vec<Weight>> {
        lock(&self.weights)
    }

    /// Copies the newest values to the host.
    pub(crate) fn sync_to_host(&self) {
        self.sync_from_other(None);
    }

    /// As [`sync_to_host`](Self::sync_to_host), unless `own` has the newest values: then `None`.
    /// Otherwise the version of the values on the host.
    pub(crate) fn sync_from_other(&self, own: Option<&SharedExecutor>) -> Option<u64> {
        let owner = lock(&self.owner);
        if let Some(owner) = &*owner {
            if own.is_some_and(|own| owner.is(own)) {
                return None;
            }
            if let Some(store) = owner.store.upgrade() {
                // Read first: a store is never locked while the weights are.
                let values: Vec<Vec<f32>> = owner.params.iter().map(|p| store.read(*p)).collect();
                for (weight, values) in self.weights().iter_mut().zip(values) {
                    weight.values = Some(values);
                }
                self.version.fetch_add(1, Ordering::Relaxed);
            }
        }
        Some(self.version.load(Ordering::Relaxed))
    }

    /// Copies the values to the host before `executor`, which has the newest ones, goes away.
    pub(crate) fn release(&self, executor: &SharedExecutor) {
        if lock(&self.owner).as_ref().is_some_and(|owner| owner.is(executor)) {
            self.sync_to_host();
            *lock(&self.owner) = None;
        }
    }

    /// From now on `executor` has the newest values, as these parameters.
    pub(crate) fn set_owner(&self, executor: &SharedExecutor, params: &[ParamId]) {
        let mut owner = lock(&self.owner);
        if !owner.as_ref().is_some_and(|owner| owner.is(executor)) {
            let store: Weak<Mutex<Box<dyn Executor>>> = Arc::downgrade(executor);
            *owner = Some(Owner { store, params: params.to_vec() });
        }
    }

    /// Replaces the values of all weights.
    pub(crate) fn set_values(&self, values: impl Iterator<Item = Vec<f32>>) {
        let mut owner = lock(&self.owner);
        for (weight, values) in self.weights().iter_mut().zip(values) {
            weight.values = Some(values);
        }
        *owner = None;
        self.version.fetch_add(1, Ordering::Relaxed);
    }
}

/// A shared reference to a layer; clones are the same layer.
#[derive(Clone, Debug)]
pub struct LayerHandle(Arc<LayerInstance>);

impl LayerHandle {
    /// A layer with a given name or, with `None`, one numbered by its model.
    pub fn new(layer: Box<dyn Layer>, name: Option<String>, trainable: bool) -> LayerHandle {
        let trainable = AtomicBool::new(trainable);
        LayerHandle(Arc::new(LayerInstance {
            layer,
            name,
            trainable,
            weights: Mutex::default(),
            owner: Mutex::default(),
            version: AtomicU64::new(0),
        }))
    }

    /// Whether two handles are the same layer.
    pub fn same(&self, other: &LayerHandle) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }

    /// The layer frozen, for chaining.
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

/// Naming and freezing, for every layer.
pub trait LayerExt: Layer + Sized {
    /// Gives the layer a name, by which the model finds it.
    fn named(self, name: &str) -> LayerHandle {
        LayerHandle::new(Box::new(self), Some(name.into()), true)
    }
}

impl<L: Layer> LayerExt for L {}

/// A weight of the model under construction: its graph parameter and where its values live.
#[derive(Clone, Debug)]
pub struct ModelWeight {
    /// The owner.
    pub layer: LayerHandle,
    /// The owner's name in this model.
    pub layer_name: String,
    /// Index in the owner's weights.
    pub index: usize,
    /// The graph's parameter.
    pub param: ParamId,
}

/// What layers gather while a model is lowered to a graph.
#[derive(Debug)]
pub struct Lowering {
    /// The graph.
    pub graph: Graph,
    /// Whether dropout drops and batch norm uses the batch.
    pub training: bool,
    /// The weights met so far, in order.
    pub weights: Vec<ModelWeight>,
    /// Assignments at the end of the step: moving statistics.
    pub assigns: Vec<(ParamId, NodeId)>,
    /// Parameters that never change, with their values: vectors in a layer's config.
    pub constants: Vec<(ParamId, Vec<f32>)>,
    /// Whether all replicas share their batch statistics, whatever layers say.
    pub synchronized: bool,
    streams: u32,
}

impl Lowering {
    /// An empty graph.
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

    /// Calls a layer under its name in this model.
    pub fn call(&mut self, layer: &LayerHandle, name: &str, inputs: &[NodeId]) -> Result<NodeId> {
        let before = self.graph.enter(name);
        let mut cx = Cx { lowering: self, layer, name, declared: 0 };
        let out = layer.layer().call(&mut cx, inputs).map_err(|e| match e {
            Error::Graph(g) => Error::Graph(g.in_layer(name)),
            other => other,
        });
        self.graph.enter(&before);
        out
    }
}

/// What a layer sees while it is called.
pub struct Cx<'a> {
    lowering: &'a mut Lowering,
    layer: &'a LayerHandle,
    name: &'a str,
    declared: usize,
}

impl Cx<'_> {
    /// The graph to append to.
    pub fn graph(&mut self) -> &mut Graph {
        &mut self.lowering.graph
    }

    /// The layer's name in this model.
    pub fn name(&self) -> &str {
        self.name
    }

    /// Dimensions of one sample of a value.
    pub fn dims(&self, x: NodeId) -> Vec<usize> {
        self.lowering.graph.ty(x).dims.clone()
    }

    /// Whether this is a training pass.
    pub fn training(&self) -> bool {
        self.lowering.training
    }

    /// Whether the layer's weights are being trained; a frozen batch norm runs in inference mode.
    pub fn trainable(&self) -> bool {
        self.layer.trainable()
    }

    /// An error about an argument of this layer.
    pub fn argument(&self, argument: &str, expected: &str, received: impl ToString) -> Error {
        Error::argument(format!("layer '{}'", self.name), argument, expected, received)
    }

    /// Declares the layer's next weight, or meets it again, and reads it.
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
            Some(known) if known.spec.dims == spec.dims => known.spec = spec.clone(),
            Some(known) => {
                let (expected, received) = (format!("{:?}", known.spec.dims), &spec.dims);
                return Err(self.argument(
                    spec.name,
                    &format!("the shape it was built with, {expected}"),
                    format!("{received:?}"),
                ));
            }
        }
        drop(weights);
        let met =
            self.lowering.weights.iter().find(|w| w.layer.same(self.layer) && w.index == index);
        let param = match met {
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
        // A later call of a shared layer goes on from what an earlier one assigned, as in Keras.
        let pending = self.lowering.assigns.iter().find(|(p, _)| *p == param).map(|(_, n)| *n);
        Ok(pending.unwrap_or_else(|| self.lowering.graph.param(param)))
    }

    /// Reads a constant of the layer's config; it is no weight, and nothing saves it.
    ///
    /// # Panics
    /// When the values do not fill the dimensions.
    pub fn constant(&mut self, name: &str, dims: &[usize], values: Vec<f32>) -> NodeId {
        assert_eq!(dims.iter().product::<usize>(), values.len(), "{name} of shape {dims:?}");
        let full_name = format!("{}/{name}", self.name);
        let param = self.lowering.graph.add_param(&full_name, dims, false);
        self.lowering.constants.push((param, values));
        self.lowering.graph.param(param)
    }

    /// Sets the layer's weight `index` to `value` at the end of the step.
    pub fn assign(&mut self, index: usize, value: NodeId) {
        let met =
            self.lowering.weights.iter().find(|w| w.layer.same(self.layer) && w.index == index);
        let param = met.expect("a layer assigns a weight it has declared").param;
        // The last call's value is what remains.
        self.lowering.assigns.retain(|(p, _)| *p != param);
        self.lowering.assigns.push((param, value));
    }

    /// A random stream of this call's own.
    pub fn stream(&mut self) -> u32 {
        self.lowering.streams += 1;
        self.lowering.streams
    }

    /// The scope of batch statistics.
    pub fn statistics(&self, synchronized: bool) -> Scope {
        if synchronized || self.lowering.synchronized { Scope::All } else { Scope::Device }
    }
}
