//! Models: described once, compiled once, then trained, evaluated and asked.

mod calls;
mod compile;
mod definition;
mod evaluate;
mod fit;
mod logs;
mod memory;
mod run_setup;
mod run_state;
mod session;
mod source;
mod steps;
mod summary;
mod symbol;
mod training;
mod turns;

pub use calls::LayerCall;
pub use compile::{Compile, LossArgument, MetricArgument, OptimizerArgument};
pub use definition::{Definition, Kind};
pub(crate) use definition::{Form, Placed, snake};
pub use evaluate::Inference;
pub use fit::Fit;
pub use logs::Logs;
pub(crate) use memory::gibibytes;
pub use memory::{MemoryPlan, PlannedDevices};
pub use run_state::RunState;
pub use session::StepKind;
pub use source::{IntoDataset, Source};
pub(crate) use summary::thousands;
pub use summary::{Row, Summary};
pub use symbol::{Apply, Input, Symbol, Symbols};
pub use training::{Interrupt, OnNan};

use crate::error::{Error, Result};
use crate::layer::{Layer, LayerHandle, lock};
use crate::saving::Training;
use phalanx_graph::exec::ExecError;
use phalanx_graph::rng::Stream;
use phalanx_graph::{DType, Tensor};
pub(crate) use session::{Session, is_weight};
use std::collections::HashSet;
use std::sync::{Arc, Mutex, PoisonError};
pub(crate) use symbol::{Call, Callee};

/// First stream of initial weights; layers' own streams start at 1.
const WEIGHT_STREAM: u32 = 1 << 24;

/// A network: its structure, its weights and, once compiled, what trains it.
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
    /// A functional model from its input and output symbols.
    ///
    /// # Errors
    /// Shapes that do not fit, naming the layer, what it expected and what it received.
    pub fn new(inputs: impl Symbols, outputs: impl Symbols) -> Result<Model> {
        Model::with_name("functional", inputs, outputs)
    }

    /// A functional model with a name.
    pub fn with_name(name: &str, inputs: impl Symbols, outputs: impl Symbols) -> Result<Model> {
        let def = Definition::new(name, Kind::Functional, inputs.symbols(), outputs.symbols())?;
        Ok(Model::of(def))
    }

    /// What the model is trained with, once it is compiled with something to train for.
    pub(crate) fn training(&self) -> Option<Training> {
        let session = lock(&self.session);
        session.as_ref().filter(|session| session.objective.is_compiled()).map(Session::training)
    }

    /// Training steps that counted, once it is compiled with something to train for.
    pub(crate) fn iterations(&self) -> Option<u64> {
        let session = lock(&self.session);
        session
            .as_ref()
            .filter(|session| session.objective.is_compiled())
            .map(|session| session.state.iterations())
    }

    /// What trains the model, once it is compiled with something to train for.
    pub(crate) fn trainer_mut(&mut self) -> Option<&mut Session> {
        self.session_slot().as_mut().filter(|session| session.objective.is_compiled())
    }

    /// The compiled model, which nobody else uses meanwhile.
    fn session_slot(&mut self) -> &mut Option<Session> {
        self.session.get_mut().unwrap_or_else(PoisonError::into_inner)
    }

    /// A model of this structure, not compiled.
    pub(crate) fn of(def: Definition) -> Model {
        Model { def: Arc::new(def), session: Mutex::default() }
    }

    /// The model's name.
    pub fn name(&self) -> &str {
        &self.def.name
    }

    /// Adds a note to every weights file of this model, such as how its inputs were prepared; see
    /// [`read_metadata`](crate::saving::read_metadata).
    pub fn set_metadata(&self, key: &str, value: impl Into<String>) {
        self.def.notes().insert(key.into(), value.into());
    }

    /// Its structure.
    pub fn definition(&self) -> &Definition {
        &self.def
    }

    /// Records a call of this model inside another one; the weights are shared.
    pub fn apply(&self, inputs: impl Symbols) -> Symbol {
        Symbol::new(Callee::Model(self.def.clone()), inputs.symbols())
    }

    /// As [`Model::apply`], with a symbol for each output.
    pub fn apply_all(&self, inputs: impl Symbols) -> Vec<Symbol> {
        let first = self.apply(inputs);
        (0..self.def.outputs.len()).map(|output| Symbol { output, ..first.clone() }).collect()
    }

    /// The model's own input symbols, to build another model on.
    pub fn inputs(&self) -> &[Symbol] {
        &self.def.inputs
    }

    /// The model's own output symbols, to build a new head on.
    pub fn outputs(&self) -> &[Symbol] {
        &self.def.outputs
    }

    /// The dimensions of a sample of each input.
    pub fn input_shapes(&self) -> Vec<Vec<usize>> {
        (0..self.def.inputs.len()).map(|i| self.def.input(i).dims.clone()).collect()
    }

    /// The element type of each input.
    pub fn input_dtypes(&self) -> Vec<DType> {
        self.def.input_dtypes()
    }

    /// The dimensions of a sample of each output.
    pub fn output_shapes(&self) -> Vec<Vec<usize>> {
        self.def.output_types.iter().map(|ty| ty.dims.clone()).collect()
    }

    /// Every layer with its name, those of nested models as `model/layer`.
    pub fn layers(&self) -> Vec<(String, LayerHandle)> {
        self.def.layers()
    }

    /// A layer by name.
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

    /// Freezes or thaws every layer; takes effect at the next `compile`.
    pub fn set_trainable(&self, trainable: bool) {
        self.layers().iter().for_each(|(_, l)| l.set_trainable(trainable));
    }

    /// Number of weights, trainable or not.
    pub fn count_params(&self) -> usize {
        self.summary().total()
    }

    /// Layers, shapes, parameter counts and activation memory as a table.
    pub fn summary(&self) -> Summary {
        Summary::new(&self.def)
    }

    /// Gives every weight that has no value yet its first one. `compile` does this with its seed.
    ///
    /// # Errors
    /// More weights than this machine has memory.
    pub fn initialize(&self, seed: u64) -> Result<()> {
        self.check_weights(1)?;
        let mut number = 0;
        for (_, layer) in self.layers() {
            for weight in layer.weights().iter_mut() {
                number += 1;
                let mut rng = Stream::new(seed, 0, WEIGHT_STREAM + number, 0);
                let spec = &weight.spec;
                weight.values.get_or_insert_with(|| spec.initializer.sample(&spec.dims, &mut rng));
            }
        }
        Ok(())
    }

    /// Fails where so many copies of the weights take more than the machine has.
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

    /// Every weight with its name, in the order of the layers.
    pub fn weights(&self) -> Result<Vec<(String, Tensor)>> {
        self.sync_to_host();
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

    /// Only the tensors, as Keras' `get_weights`.
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
        // Everything fits: only now is anything changed.
        let mut staged = staged.into_iter();
        for (_, layer) in self.layers() {
            layer.set_values(staged.by_ref());
        }
        Ok(())
    }

    /// Brings trained weights back from the devices.
    fn sync_to_host(&self) {
        self.layers().iter().for_each(|(_, layer)| layer.sync_to_host());
    }

    /// The names of the inputs.
    pub fn input_names(&self) -> Vec<String> {
        (0..self.def.inputs.len()).map(|i| self.def.input_name(i)).collect()
    }

    /// The names of the outputs: the layers that make them.
    pub fn output_names(&self) -> Vec<String> {
        let mut taken = HashSet::new();
        let names = self.def.outputs.iter().map(|s| {
            let placed = self.def.calls.iter().find(|p| Arc::as_ptr(&p.call) == s.id());
            let base = placed.map_or("output", |p| &self.def.members[p.member].name).to_string();
            let mut name = base.clone();
            let mut n = 0;
            while !taken.insert(name.clone()) {
                n += 1;
                name = format!("{base}_{n}");
            }
            name
        });
        names.collect()
    }
}

/// What a chain is made of.
pub enum Link {
    /// The shape of a sample.
    Input(Input),
    /// A layer.
    Layer(LayerHandle),
    /// A model as a layer.
    Model(Arc<Definition>),
}

impl From<Input> for Link {
    fn from(input: Input) -> Link {
        Link::Input(input)
    }
}

impl From<LayerHandle> for Link {
    fn from(layer: LayerHandle) -> Link {
        Link::Layer(layer)
    }
}

impl<L: Layer> From<L> for Link {
    fn from(layer: L) -> Link {
        Link::Layer(layer.into())
    }
}

impl From<&Model> for Link {
    fn from(model: &Model) -> Link {
        Link::Model(model.def.clone())
    }
}

/// A chain of layers under construction.
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
    links: Vec<Link>,
}

impl Sequential {
    /// An empty chain.
    pub fn new() -> Sequential {
        Sequential::default()
    }

    /// Gives the model a name.
    pub fn named(mut self, name: &str) -> Sequential {
        self.name = Some(name.into());
        self
    }

    /// Appends an [`Input`] (first), a layer or a model.
    #[allow(clippy::should_implement_trait)]
    pub fn add(mut self, link: impl Into<Link>) -> Sequential {
        self.links.push(link.into());
        self
    }

    /// The finished model.
    pub fn build(self) -> Result<Model> {
        let name = self.name.unwrap_or_else(|| "sequential".into());
        let owner = || format!("model '{name}'");
        let mut links = self.links.into_iter();
        let input = match links.next() {
            Some(Link::Input(input)) => input.symbol(),
            Some(Link::Model(def)) if def.inputs.len() == 1 => {
                let input = def.input(0).clone().symbol();
                let first = Symbol::new(Callee::Model(def), vec![input.clone()]);
                return Sequential::chain(&name, input, first, links);
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
        Sequential::chain(&name, input.clone(), input, links)
    }

    fn chain(
        name: &str,
        input: Symbol,
        mut x: Symbol,
        links: impl Iterator<Item = Link>,
    ) -> Result<Model> {
        for link in links {
            x = match link {
                Link::Layer(layer) => layer.apply(&x),
                Link::Model(def) => Symbol::new(Callee::Model(def), vec![x]),
                Link::Input(_) => {
                    let owner = format!("model '{name}'");
                    let received = "another one further down";
                    return Err(Error::argument(owner, "Input", "one, at the start", received));
                }
            };
        }
        let def = Definition::new(name, Kind::Sequential, vec![input], vec![x])?;
        Ok(Model::of(def))
    }
}
