//! Models: building, compiling, training, evaluation and prediction.

mod caller;
mod calls;
mod compile;
mod definition;
mod evaluate;
mod feeds;
mod fit;
mod host_stage;
mod logs;
mod memory;
mod mesh_plan;
mod multi_step;
mod naming;
mod on_batch;
mod pass_events;
mod run_config;
mod run_state;
pub(crate) mod sample_weights;
mod session;
mod shape;
mod source;
mod staged_dataset;
pub(crate) mod steps;
mod structure;
mod summary;
mod symbol;
mod training;
mod type_inference;
pub(crate) mod update_graph;
mod validation_freq;

pub(crate) use caller::Caller;
pub use calls::LayerCall;
pub use compile::{Argument, Compile, LossArgument, MetricArgument, OptimizerArgument};
pub(crate) use definition::ModelCall;
pub use definition::{Definition, ModelKind};
pub use evaluate::Inference;
pub use fit::Fit;
pub use logs::Logs;
pub(crate) use memory::gibibytes;
pub use memory::{MemoryPlan, PlannedDevices};
pub use mesh_plan::{MeshPlan, MeshSpeed, PlannedMesh, StepTime};
pub(crate) use naming::snake_case;
pub use on_batch::BatchWeights;
pub use run_state::RunState;
pub use session::StepKind;
pub use shape::Shape;
pub(crate) use shape::ValueType;
pub use source::{IntoDataset, Source};
pub(crate) use structure::{IoStructure, IoTree};
pub(crate) use summary::thousands;
pub use summary::{Row, Summary};
pub use symbol::{Apply, Input, Symbol, Symbols};
pub use training::{Interrupt, OnNan};
pub use validation_freq::ValidationFreq;

use crate::error::{Error, Result};
use crate::layer::{Layer, LayerHandle, lock};
use crate::saving::Training;
use phalanx_exec::ExecError;
use phalanx_graph::rng::Stream;
use phalanx_graph::{DType, Tensor};
pub(crate) use session::{Session, is_weight};
use std::sync::{Arc, Mutex, PoisonError};
pub(crate) use symbol::{Call, Callee};

/// First random stream of initial weights; the layers' streams start at 1.
const WEIGHT_STREAM: u32 = 1 << 24;

/// A network: its structure, its weights and, once compiled, its training session.
///
/// ```
/// use phalanx::prelude::*;
///
/// let inputs = Input::new([784]).symbol();
/// let x = Dense::new(256).activation("relu").apply(&inputs);
/// let outputs = Dense::new(10).apply(&x);
/// let model = Model::new(&inputs, &outputs)?;
/// assert_eq!(model.count_params(), 784 * 256 + 256 + 256 * 10 + 10);
/// # Ok::<(), phalanx::Error>(())
/// ```
///
/// A model may be shared between threads: [`Model::predict`] takes a shared reference, and calls from
/// several threads take turns, batch by batch.
pub struct Model {
    def: Arc<Definition>,
    session: Mutex<Option<Session>>,
}

impl Model {
    /// Builds a functional model from its input and output symbols.
    ///
    /// # Errors
    /// If shapes do not match; the error names the layer, the expected and the received shape.
    pub fn new(inputs: impl Symbols, outputs: impl Symbols) -> Result<Model> {
        Model::with_name("functional", inputs, outputs)
    }

    /// Builds a functional model with a name.
    pub fn with_name(name: &str, inputs: impl Symbols, outputs: impl Symbols) -> Result<Model> {
        let def =
            Definition::new(name, ModelKind::Functional, inputs.symbols(), outputs.symbols())?;
        Ok(Model::of(def))
    }

    /// Returns the compile config and the optimizer's state, if the model is compiled.
    pub(crate) fn training(&self) -> Result<Option<Training>> {
        let session = lock(&self.session);
        session
            .as_ref()
            .filter(|session| session.objective.compiled)
            .map(Session::training)
            .transpose()
    }

    /// Returns the optimizer's number of steps, as Keras' `optimizer.iterations`; `None` if the model is not compiled.
    pub fn iterations(&self) -> Option<u64> {
        let session = lock(&self.session);
        session
            .as_ref()
            .filter(|session| session.objective.compiled)
            .map(|session| session.state.iterations())
    }

    /// Returns the session, if the model is compiled.
    pub(crate) fn compiled_session_mut(&mut self) -> Option<&mut Session> {
        self.session_slot().as_mut().filter(|session| session.objective.compiled)
    }

    /// Returns the session without locking: `&mut self` is exclusive.
    fn session_slot(&mut self) -> &mut Option<Session> {
        self.session.get_mut().unwrap_or_else(PoisonError::into_inner)
    }

    /// Creates a model with this structure, not compiled.
    pub(crate) fn of(def: Definition) -> Model {
        Model { def: Arc::new(def), session: Mutex::default() }
    }

    /// Creates a model that shares this structure, not compiled.
    pub(crate) fn sharing(def: &Arc<Definition>) -> Model {
        Model { def: def.clone(), session: Mutex::default() }
    }

    /// The model with a session.
    pub(crate) fn compiled(self, session: Session) -> Model {
        Model { session: Mutex::new(Some(session)), ..self }
    }

    /// Returns the model's name.
    pub fn name(&self) -> &str {
        &self.def.name
    }

    /// Adds an entry to the metadata of this model's weights files, such as the preprocessing of its inputs; see
    /// [`read_metadata`](crate::saving::read_metadata).
    pub fn set_metadata(&self, key: &str, value: impl Into<String>) {
        self.def.notes().insert(key.into(), value.into());
    }

    /// Returns the structure, to share it.
    pub(crate) fn shared_definition(&self) -> Arc<Definition> {
        self.def.clone()
    }

    /// Returns the structure.
    pub fn definition(&self) -> &Definition {
        &self.def
    }

    /// Records a call of this model inside another one. The weights are shared.
    pub fn apply(&self, inputs: impl Symbols) -> Symbol {
        Symbol::new(Callee::Model(self.def.clone()), inputs.symbols())
    }

    /// Like [`Model::apply`], with one symbol per output.
    pub fn apply_all(&self, inputs: impl Symbols) -> Vec<Symbol> {
        let first = self.apply(inputs);
        (0..self.def.outputs.len()).map(|output| Symbol { output, ..first.clone() }).collect()
    }

    /// Returns the model's input symbols, to build another model on them.
    pub fn inputs(&self) -> &[Symbol] {
        &self.def.inputs
    }

    /// Returns the model's output symbols, to attach a new head.
    pub fn outputs(&self) -> &[Symbol] {
        &self.def.outputs
    }

    /// Returns the shape of one sample of each input.
    pub fn input_shapes(&self) -> Vec<Shape> {
        (0..self.def.inputs.len()).map(|i| self.def.input(i).known_shape()).collect()
    }

    /// Returns whether sizes of the inputs are open, so that every batch may have others.
    pub fn has_open_sizes(&self) -> bool {
        self.def.is_open()
    }

    /// Returns the same model, not compiled, for inputs of these shapes, without the batch. Only open sizes may differ.
    /// The layers and their weights are shared, and files leave the sizes open. A model with known sizes can be planned
    /// without data: see [`Model::memory_plan`] and [`Model::program`].
    ///
    /// # Errors
    /// If a shape does not fit, or a layer refuses it.
    pub fn with_input_shapes<S: Into<Vec<usize>>>(
        &self,
        shapes: impl IntoIterator<Item = S>,
    ) -> Result<Model> {
        let shapes: Vec<Vec<usize>> = shapes.into_iter().map(Into::into).collect();
        self.def.with_input_shapes(&shapes).map(Model::of)
    }

    /// Returns whether each input takes strings.
    pub fn text_inputs(&self) -> Vec<bool> {
        (0..self.def.inputs.len()).map(|i| self.def.input(i).text).collect()
    }

    /// Returns the element type of each input; strings are numbered by integers.
    pub fn input_dtypes(&self) -> Vec<DType> {
        self.def.input_dtypes()
    }

    /// Returns the shape of one sample of each output.
    pub fn output_shapes(&self) -> Vec<Shape> {
        self.def.output_types.iter().map(ValueType::shape).collect()
    }

    /// Returns every layer with its name. Layers of nested models are named `model/layer`.
    pub fn layers(&self) -> Vec<(String, LayerHandle)> {
        self.def.layers()
    }

    /// Returns a layer by name.
    pub fn layer(&self, name: &str) -> Result<LayerHandle> {
        let layers = self.layers();
        match layers.iter().find(|(n, _)| n == name) {
            Some((_, layer)) => Ok(layer.clone()),
            None => Err(Error::Unknown {
                kind: "layer",
                name: name.into(),
                known: layers.into_iter().map(|(n, _)| n).collect(),
            }),
        }
    }

    /// Freezes or unfreezes every layer; takes effect at the next `compile`.
    pub fn set_trainable(&self, trainable: bool) {
        self.layers().iter().for_each(|(_, l)| l.set_trainable(trainable));
    }

    /// Returns the number of parameters, trainable or not.
    pub fn count_params(&self) -> usize {
        self.summary().total()
    }

    /// Returns a table of layers, shapes, parameter counts and activation memory.
    pub fn summary(&self) -> Summary {
        Summary::new(&self.def)
    }

    /// Initializes every weight that has no value yet. `compile` does this with its seed.
    ///
    /// # Errors
    /// If the weights do not fit into this machine's memory.
    pub fn initialize(&self, seed: u64) -> Result<()> {
        self.check_weights(1)?;
        let mut number = 0;
        for (_, layer) in self.layers() {
            for weight in layer.weights().iter_mut() {
                number += 1;
                let mut rng = Stream::new(seed, 0, WEIGHT_STREAM + number, 0);
                let spec = &weight.spec;
                weight.values.get_or_insert_with(|| spec.sample(&mut rng));
            }
        }
        Ok(())
    }

    /// Fails if `copies` copies of the weights exceed the machine's memory.
    fn check_weights(&self, copies: usize) -> Result<()> {
        let wanted = self.count_params().saturating_mul(copies).saturating_mul(size_of::<f32>());
        if wanted <= phalanx_cpu::physical_memory() {
            return Ok(());
        }
        let purpose = match copies {
            1 => "weights".into(),
            copies => format!("{copies} copies of the weights"),
        };
        Err(ExecError::Memory { wanted, purpose, available: None }.into())
    }

    /// Returns every weight with its name, in the order of the layers.
    pub fn weights(&self) -> Result<Vec<(String, Tensor)>> {
        self.sync_to_host()?;
        self.initialize(0)?;
        let mut out = vec![];
        for (name, layer) in self.layers() {
            for w in layer.weights().iter() {
                let values = w.values.clone().unwrap_or_default();
                let tensor = Tensor::new(w.spec.dims.clone(), values).map_err(|_| {
                    Error::config(format!("layer '{name}'"), "weight values of another size")
                })?;
                out.push((format!("{name}/{}", w.spec.name), tensor));
            }
        }
        Ok(out)
    }

    /// Returns the weights without names, as Keras' `get_weights`.
    pub fn get_weights(&self) -> Result<Vec<Tensor>> {
        Ok(self.weights()?.into_iter().map(|(_, t)| t).collect())
    }

    /// Sets every weight, in the order of [`Model::get_weights`].
    pub fn set_weights(&mut self, weights: &[Tensor]) -> Result<()> {
        let owner = format!("model '{}'", self.name());
        let current: usize = self.layers().iter().map(|(_, l)| l.weights().len()).sum();
        if current != weights.len() {
            let expected = format!("{current} tensors");
            return Err(Error::argument(owner, "set_weights", expected, weights.len()));
        }
        let mut next = weights.iter();
        let mut staged = vec![];
        for (name, layer) in self.layers() {
            for w in layer.weights().iter() {
                let Some(tensor) = next.next() else { break };
                let Some(values) = tensor.f32().filter(|_| tensor.dims() == w.spec.dims) else {
                    let what = format!("{name}/{}", w.spec.name);
                    let expected = format!("f32 {:?}", w.spec.dims);
                    let received = format!("{} {:?}", tensor.dtype(), tensor.dims());
                    return Err(Error::argument(owner, what, expected, received));
                };
                staged.push(values.to_vec());
            }
        }
        // All shapes match: from here on the layers change.
        let mut staged = staged.into_iter();
        for (_, layer) in self.layers() {
            layer.set_values(staged.by_ref());
        }
        Ok(())
    }

    /// Copies trained weights from the devices to the host.
    fn sync_to_host(&self) -> Result<()> {
        self.layers().iter().try_for_each(|(_, layer)| layer.sync_to_host())
    }
}

/// An element of a [`Sequential`] model.
pub enum SequentialItem {
    /// The input shape.
    Input(Input),
    /// A layer.
    Layer(LayerHandle),
    /// A nested model.
    Model(Arc<Definition>),
}

impl From<Input> for SequentialItem {
    fn from(input: Input) -> SequentialItem {
        SequentialItem::Input(input)
    }
}

impl From<LayerHandle> for SequentialItem {
    fn from(layer: LayerHandle) -> SequentialItem {
        SequentialItem::Layer(layer)
    }
}

impl<L: Layer> From<L> for SequentialItem {
    fn from(layer: L) -> SequentialItem {
        SequentialItem::Layer(layer.into())
    }
}

impl From<&Model> for SequentialItem {
    fn from(model: &Model) -> SequentialItem {
        SequentialItem::Model(model.def.clone())
    }
}

/// A builder of a chain of layers.
///
/// ```
/// use phalanx::prelude::*;
///
/// let model = Sequential::new()
///     .add(Input::new([28, 28, 1]))
///     .add(Conv2D::new(32, 3).activation("relu"))
///     .add(MaxPooling2D::new(2))
///     .add(Flatten::new())
///     .add(Dense::new(10).activation("softmax"))
///     .build()?;
/// assert_eq!(model.layers().len(), 4);
/// # Ok::<(), phalanx::Error>(())
/// ```
#[derive(Default)]
pub struct Sequential {
    name: Option<String>,
    items: Vec<SequentialItem>,
}

impl Sequential {
    /// Creates an empty chain.
    pub fn new() -> Sequential {
        Sequential::default()
    }

    /// Names the model.
    pub fn named(mut self, name: &str) -> Sequential {
        self.name = Some(name.into());
        self
    }

    /// Appends an [`Input`] (first), a layer or a model.
    #[allow(clippy::should_implement_trait)]
    pub fn add(mut self, item: impl Into<SequentialItem>) -> Sequential {
        self.items.push(item.into());
        self
    }

    /// Builds the model.
    pub fn build(self) -> Result<Model> {
        let name = self.name.unwrap_or_else(|| "sequential".into());
        let owner = || format!("model '{name}'");
        let mut items = self.items.into_iter();
        let input = match items.next() {
            Some(SequentialItem::Input(input)) => input.symbol(),
            Some(SequentialItem::Model(def)) if def.inputs.len() == 1 => {
                let input = def.input(0).clone().symbol();
                let first = Symbol::new(Callee::Model(def), vec![input.clone()]);
                return Sequential::chain(&name, input, first, items);
            }
            Some(_) => {
                return Err(Error::argument(
                    owner(),
                    "first element",
                    "Input::new(shape)",
                    "a layer",
                ));
            }
            None => return Err(Error::argument(owner(), "layers", "at least one", "none")),
        };
        Sequential::chain(&name, input.clone(), input, items)
    }

    fn chain(
        name: &str,
        input: Symbol,
        mut x: Symbol,
        items: impl Iterator<Item = SequentialItem>,
    ) -> Result<Model> {
        for item in items {
            x = match item {
                SequentialItem::Layer(layer) => layer.apply(&x),
                SequentialItem::Model(def) => Symbol::new(Callee::Model(def), vec![x]),
                SequentialItem::Input(_) => {
                    let owner = format!("model '{name}'");
                    let received = "another one further down";
                    return Err(Error::argument(owner, "Input", "one, at the start", received));
                }
            };
        }
        let def = Definition::new(name, ModelKind::Sequential, vec![input], vec![x])?;
        Ok(Model::of(def))
    }
}
