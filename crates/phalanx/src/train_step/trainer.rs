//! The builder of a training step, and the compiled step.

use super::context::StepContext;
use super::step::{Body, CustomStep, Reports, StepOptimizer, TestStep};
use super::update::LOSS_SCALE;
use crate::data::HostBatch;
use crate::error::{Error, Result};
use crate::history::History;
use crate::model::{
    Callee, Definition, Fit, Inference, Input, IntoDataset, Logs, Model, OptimizerArgument,
    Session, Shape, StepKind,
};
use crate::optimizers::{self, LossScaleOptimizer};
use crate::strategy::{MirroredStrategy, Policy};
use crate::workers::MultiWorkerMirroredStrategy;
use phalanx_exec::StepTimes;
use phalanx_graph::Tensor;
use phalanx_graph::profile::Profile;
use phalanx_graph::program::Program;
use std::sync::Arc;

/// The description of a training step. See [`train_step`](crate::train_step).
pub struct TrainStep {
    name: String,
    inputs: Vec<(String, Input)>,
    targets: Vec<(String, Input)>,
    models: Vec<(String, Arc<Definition>)>,
    optimizers: Vec<(String, OptimizerArgument)>,
    test: Option<Body>,
    strategy: MultiWorkerMirroredStrategy,
    seed: u64,
}

impl TrainStep {
    /// Creates a step without inputs and models. A saved run resumes in a step of the same name.
    pub fn new(name: &str) -> TrainStep {
        TrainStep {
            name: name.into(),
            inputs: vec![],
            targets: vec![],
            models: vec![],
            optimizers: vec![],
            test: None,
            strategy: MirroredStrategy::new().into(),
            seed: 0,
        }
    }

    /// Adds an input: the next of the data's inputs (`x`).
    pub fn input(mut self, name: &str, input: Input) -> TrainStep {
        self.inputs.push((name.into(), input.named(name)));
        self
    }

    /// Adds a target: the next of the data's targets (`y`).
    pub fn target(mut self, name: &str, target: Input) -> TrainStep {
        self.targets.push((name.into(), target.named(name)));
        self
    }

    /// Adds a target of class indices, one per sample.
    pub fn labels(self, name: &str) -> TrainStep {
        self.target(name, Input::new(Shape::default()).integers())
    }

    /// Adds a model under a name. The step shares its weights.
    pub fn model(mut self, name: &str, model: &Model) -> TrainStep {
        self.models.push((name.into(), model.shared_definition()));
        self
    }

    /// Adds an optimizer under a name, by value or by Keras' name.
    pub fn optimizer(mut self, name: &str, optimizer: impl Into<OptimizerArgument>) -> TrainStep {
        self.optimizers.push((name.into(), optimizer.into()));
        self
    }

    /// Sets the devices that train, as [`Compile::strategy`](crate::model::Compile::strategy).
    pub fn strategy(mut self, strategy: impl Into<MultiWorkerMirroredStrategy>) -> TrainStep {
        self.strategy = strategy.into();
        self
    }

    /// Sets the seed of initial weights, shuffling and random numbers. The default is 0.
    pub fn seed(mut self, seed: u64) -> TrainStep {
        self.seed = seed;
        self
    }

    /// Sets the function that describes what `evaluate` and validation data report, as `test_step` of a Keras model does.
    /// Its losses and metrics may be others than those of the training step. It updates nothing: `minimize` only reports a
    /// loss. Without this function, that of the training step runs, with [`training`](StepContext::training) false.
    ///
    /// ```
    /// use phalanx::prelude::*;
    /// use phalanx::train_step::TrainStep;
    ///
    /// let teacher = Sequential::new().add(Input::new([4])).add(Dense::new(3)).build()?;
    /// let student = Sequential::new().add(Input::new([4])).add(Dense::new(3)).build()?;
    /// let mut trainer = TrainStep::new("distillation")
    ///     .input("x", Input::new([4]))
    ///     .labels("y")
    ///     .model("teacher", &teacher)
    ///     .model("student", &student)
    ///     .optimizer("adam", Adam::default())
    ///     .test_step(|cx| {
    ///         let (x, y) = (cx.input("x")?, cx.input("y")?);
    ///         let found = cx.call("student", &[x])?;
    ///         cx.track(SparseCategoricalAccuracy::default(), y, found)
    ///     })
    ///     .compile(|cx| {
    ///         let x = cx.input("x")?;
    ///         let wanted = cx.call_inference("teacher", &[x])?;
    ///         let found = cx.call("student", &[x])?;
    ///         let loss = cx.loss(&MeanSquaredError::default(), wanted, found)?;
    ///         cx.minimize("loss", loss, &["student"], "adam")
    ///     })?;
    /// let data = phalanx::data::Arrays::new(Tensor::zeros([8, 4]), Tensor::new([8], vec![0; 8])?)?;
    /// let logs = trainer.evaluate(&data, Inference::new())?;
    /// assert!(logs.get("sparse_categorical_accuracy").is_some() && logs.get("loss").is_none());
    /// # Ok::<(), phalanx::Error>(())
    /// ```
    pub fn test_step(
        mut self,
        test: impl Fn(&mut StepContext<'_>) -> Result<()> + Send + Sync + 'static,
    ) -> TrainStep {
        self.test = Some(Box::new(test));
        self
    }

    /// Fails unless all names are plain and each occurs once.
    fn check_names(&self) -> Result<()> {
        let inputs = self.inputs.iter().chain(&self.targets).map(|(name, _)| name.as_str());
        let models = self.models.iter().map(|(name, _)| name.as_str());
        let optimizers = self.optimizers.iter().map(|(name, _)| name.as_str());
        let kinds: [(&str, Vec<&str>); 3] = [
            ("inputs and targets", inputs.collect()),
            ("models", models.collect()),
            ("optimizers", optimizers.collect()),
        ];
        for (kind, names) in kinds {
            for (at, name) in names.iter().enumerate() {
                let plain = !name.is_empty() && !name.contains(['/', '@']);
                if !plain || names[..at].contains(name) {
                    let expected = "each name once, without '/' and '@'";
                    let owner = format!("training step '{}'", self.name);
                    return Err(Error::argument(owner, kind, expected, name));
                }
            }
        }
        let all = self.inputs.iter().chain(&self.targets);
        if let Some((name, input)) = all.clone().find(|(_, input)| input.known_shape().is_open()) {
            let owner = format!("training step '{}'", self.name);
            let received = input.known_shape().to_string();
            return Err(Error::argument(owner, format!("input '{name}'"), "known sizes", received));
        }
        if self.inputs.is_empty() {
            let owner = format!("training step '{}'", self.name);
            return Err(Error::argument(owner, "inputs", "at least one", "none"));
        }
        Ok(())
    }

    /// Compiles the step that `step` describes. The function runs once for each program that is built, and must describe
    /// the same step each time.
    ///
    /// # Errors
    /// If a name is unknown or used twice, shapes do not match, a loss does not depend on the weights that should minimize
    /// it, or `step` fails.
    pub fn compile(
        self,
        step: impl Fn(&mut StepContext<'_>) -> Result<()> + Send + Sync + 'static,
    ) -> Result<Trainer> {
        self.check_names()?;
        let def = Definition::of_step(&self.name, vec![], models_of(&self.models));
        def.check_policies()?;
        let requested = self.strategy.local().requested_policy();
        let half = requested.unwrap_or(def.dtype_policy()) == Policy::MixedFloat16;
        let mut chosen = vec![];
        for (name, optimizer) in self.optimizers {
            let mut optimizer = match optimizer {
                OptimizerArgument::Value(optimizer) => optimizer,
                OptimizerArgument::Name(name) => optimizers::get(&name)?,
            };
            if half && optimizer.inner().is_none() {
                optimizer = Box::new(LossScaleOptimizer::wrap(optimizer));
            }
            optimizer.validate()?;
            chosen.push(StepOptimizer::new(&name, optimizer));
        }
        let types = |inputs: &[(String, Input)]| -> Vec<_> {
            let sizes = |input: &Input| input.known_shape().with_open(1);
            inputs.iter().map(|(name, input)| (name.clone(), input.ty(&sizes(input)))).collect()
        };
        let mut custom = CustomStep {
            name: self.name.clone(),
            inputs: types(&self.inputs),
            targets: types(&self.targets),
            models: self.models,
            optimizers: chosen,
            body: Box::new(step),
            test: self.test.map(|body| TestStep { body, reports: None }),
            params: vec![],
            weights: vec![],
            updates: vec![],
            fused: false,
            reports: None,
        };
        let synchronized = self.strategy.local().is_deterministic();
        let built = custom.build(StepKind::Train, None, (synchronized, 1))?;
        custom.updates.clone_from(&built.recorded.updates);
        custom.fused = built.recorded.main.is_some();
        custom.reports = Some(Reports::of(&built.recorded));
        custom.params = built.step.graph.params().to_vec();
        custom.weights.clone_from(&built.weights);
        let tested = match custom.test {
            Some(_) => Some(custom.build(StepKind::Test, None, (synchronized, 1))?),
            None => None,
        };
        if let (Some(test), Some(built)) = (&mut custom.test, &tested) {
            test.reports = Some(Reports::of(&built.recorded));
        }
        let members = models_of(&custom.models).into_iter();
        let slots = custom.optimizers.iter().map(|o| (o.member(), Callee::Layer(o.slots.clone())));
        let members = members.chain(slots).collect();
        let inputs = self.inputs.into_iter().map(|(_, input)| input).collect();
        let def = Arc::new(Definition::of_step(&self.name, inputs, members));
        let model = Model::sharing(&def);
        model.initialize(self.seed)?;
        initialize_scales(&custom);
        let session = Session::custom(def, custom, (built, tested), self.strategy, self.seed)?;
        Ok(Trainer { model: model.compiled(session) })
    }
}

/// The models as members of a structure.
fn models_of(models: &[(String, Arc<Definition>)]) -> Vec<(String, Callee)> {
    models.iter().map(|(name, def)| (name.clone(), Callee::Model(def.clone()))).collect()
}

/// The loss scales of the optimizers that have one.
fn initialize_scales(custom: &CustomStep) {
    for (index, state) in custom.optimizers.iter().enumerate() {
        let Some((_, scaling)) = custom.optimizer(index, None).inner() else { continue };
        let mut slots = state.slots.weights();
        if let Some(slot) = slots.iter_mut().find(|slot| slot.spec.name == LOSS_SCALE) {
            slot.values = Some(vec![scaling.initial_scale as f32, 0.0, 1.0]);
        }
    }
}

/// A compiled training step. Its models share their weights with it.
pub struct Trainer {
    model: Model,
}

impl Trainer {
    /// Returns the name of the step.
    pub fn name(&self) -> &str {
        self.model.name()
    }

    /// Trains with the step and returns its losses and metrics of every epoch.
    ///
    /// # Errors
    /// As for [`Model::fit`]; and if [`Fit::accumulate`] is set although a phase updates inside the graph. There the
    /// optimizers accumulate: `gradient_accumulation_steps`.
    pub fn fit(&mut self, data: impl IntoDataset, fit: Fit) -> Result<History> {
        self.model.fit(data, fit)
    }

    /// Performs the step once on a batch, which is all of the data, and returns its losses and metrics.
    ///
    /// # Errors
    /// If the data does not match the step.
    pub fn train_on_batch(&mut self, data: impl IntoDataset) -> Result<Logs> {
        let batch = self.batch(data)?;
        self.model.train_on(&batch)
    }

    /// Returns losses and metrics over a dataset. Models are in inference mode, and nothing changes.
    ///
    /// # Errors
    /// If the data does not match the step.
    pub fn evaluate(&mut self, data: impl IntoDataset, arguments: Inference) -> Result<Logs> {
        self.model.evaluate_with(data, arguments)
    }

    /// Returns the gradients of every phase on a batch, which is all of the data, under the names `loss/model/layer/weight`.
    /// Later phases see the updates of earlier ones, as when the step runs, but no weight changes.
    ///
    /// # Errors
    /// If the data does not match the step.
    pub fn gradients(&mut self, data: impl IntoDataset) -> Result<Vec<(String, Tensor)>> {
        let batch = self.batch(data)?;
        self.model.gradients_on(&batch)
    }

    /// All samples as one batch.
    fn batch(&mut self, data: impl IntoDataset) -> Result<HostBatch> {
        self.model.whole_batch(data)
    }

    /// Returns the learning rate that the optimizer of the last phase has in the next step.
    ///
    /// # Errors
    /// None in a compiled step.
    pub fn learning_rate(&self) -> Result<f64> {
        self.model.learning_rate()
    }

    /// Returns the learning rate that an optimizer has in the next step, by the optimizer's name in the step.
    ///
    /// # Errors
    /// If there is no such optimizer.
    pub fn learning_rate_of(&self, optimizer: &str) -> Result<f64> {
        self.model.with_session("learning_rate_of", |session| {
            session.objective.learning_rate_of(&session.state, optimizer)
        })
    }

    /// Overrides the learning rate or schedule of an optimizer from the next step on.
    ///
    /// # Errors
    /// If there is no such optimizer, or the rate is negative or not finite.
    pub fn set_learning_rate_of(&mut self, optimizer: &str, rate: f64) -> Result<()> {
        self.model.with_session("set_learning_rate_of", |session| {
            let Session { def, objective, state, .. } = session;
            objective.set_learning_rate_of(state, (&def.name, optimizer), rate)
        })
    }

    /// Overrides the learning rate or schedule of the optimizer of the last phase from the next step on.
    ///
    /// # Errors
    /// If the rate is negative or not finite.
    pub fn set_learning_rate(&mut self, rate: f64) -> Result<()> {
        self.model.set_learning_rate(rate)
    }

    /// Returns the program of the step for a global batch of `batch_size`, as it would run; it can be printed.
    ///
    /// # Errors
    /// If the batch size is 0, or `kind` is [`StepKind::Predict`].
    pub fn program(&self, kind: StepKind, batch_size: usize) -> Result<Program> {
        self.model.program(kind, batch_size)
    }

    /// Checks that all replicas hold the same weights and slots, bit for bit.
    ///
    /// # Errors
    /// If they do not.
    pub fn check_consistency(&self) -> Result<()> {
        self.model.check_consistency()
    }

    /// Returns the time spent in each phase of all steps since `compile`.
    ///
    /// # Errors
    /// None in a compiled step.
    pub fn times(&self) -> Result<StepTimes> {
        self.model.times()
    }

    /// Starts or stops measuring every instruction. [`Trainer::profile`] returns the measurements.
    ///
    /// # Errors
    /// None in a compiled step.
    pub fn set_profiling(&mut self, on: bool) -> Result<()> {
        self.model.set_profiling(on)
    }

    /// Returns time, arithmetic and bytes of every instruction of a step, or `None` if no such step has run.
    ///
    /// # Errors
    /// None in a compiled step.
    pub fn profile(&self, kind: StepKind) -> Result<Option<Profile>> {
        self.model.profile(kind)
    }

    /// Returns the names of the devices.
    ///
    /// # Errors
    /// None in a compiled step.
    pub fn devices(&self) -> Result<Vec<String>> {
        self.model.devices()
    }
}
