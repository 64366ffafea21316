//! A compiled model: the executor, its programs, and the state that training carries along.

mod checks;
mod indices;
mod run;
mod state;
mod tables;
mod tally;
mod variables;
mod weights;
mod workers;

pub(crate) use checks::Origin;
pub(crate) use run::Gather;
pub(crate) use state::{Counters, is_weight};
pub(crate) use tables::Kept;
pub(crate) use tally::Tally;
use weights::{HeldLayer, by_layer};

use super::Model;
use super::compile::{MetricArgument, Resolved};
use super::definition::Definition;
use super::steps::{self, Lowered, Objective, Tracked};
use crate::error::{Error, Result};
use crate::layer::{Lowering, ModelWeight, SharedExecutor, lock};
use crate::losses::Loss;
use crate::metrics;
use crate::optimizers::{Optimizer, Scaling};
use crate::strategy::DeviceKind;
use crate::workers::MultiWorkerMirroredStrategy;
use phalanx_graph::exec::{ExecError, ProgramId, StepTimes};
use phalanx_graph::loss_scale::LossScale;
use phalanx_graph::process_group::{Cluster, LocalShard};
use phalanx_graph::profile::Profile;
use phalanx_graph::program::{FetchPlan, Policy, Split};
use phalanx_graph::{DType, Mesh, Options, ParamId, Program, Step, Type};
use serde_json::{Map, Value};
use std::collections::HashSet;
use std::sync::{Arc, Mutex};

/// Which step of a model.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StepKind {
    /// Forward, backward, update.
    Train,
    /// Losses and metrics.
    Test,
    /// Outputs.
    Predict,
    /// Forward and backward, nothing changed.
    Gradients,
}

/// Where the program for predictions on few rows is kept.
const FEW_ROWS: usize = 4;

/// One loaded program.
struct Slot {
    id: ProgramId,
    max_batch: usize,
    fetches: Vec<FetchPlan>,
}

/// What `compile` builds.
pub(crate) struct Engine {
    pub(crate) def: Arc<Definition>,
    executor: SharedExecutor,
    pub(crate) optimizer: Box<dyn Optimizer>,
    losses: Vec<Box<dyn Loss>>,
    loss_weights: Vec<f64>,
    metrics: Vec<Vec<Tracked>>,
    /// Losses and metrics as the user gave them, under Keras' keys.
    pub(crate) described: Map<String, Value>,
    weights: Vec<ModelWeight>,
    layers: Vec<HeldLayer>,
    /// The weights the optimizer updates, as `trainable` was when compiled.
    trained: Vec<ParamId>,
    constants: Vec<(ParamId, Vec<f32>)>,
    targets: Vec<Type>,
    output_names: Vec<String>,
    /// The layers that look up rows of a table.
    lookups: Vec<indices::Lookup>,
    /// Where the batch in hand comes from.
    pub(crate) origin: Origin,
    /// As asked for; CPU devices store 32-bit floats all the same.
    policy: Policy,
    /// As the strategy names them.
    pub(super) devices: Vec<String>,
    pub(super) device_kind: DeviceKind,
    /// The other workers, where there are any.
    pub(super) cluster: Option<Cluster>,
    /// By kind, and one more for predictions on few rows.
    programs: [Option<Slot>; 5],
    constrain: Option<ProgramId>,
    pub(crate) seed: u64,
    /// Training steps so far: the random counters.
    pub(crate) steps: u64,
    /// Optimizer updates so far.
    pub(crate) updates: u64,
    /// Batches gathered towards the next update, and their weight.
    gathered: (u64, f64),
    /// Set by a callback or the user; overrides the optimizer's own.
    learning_rate: Option<f64>,
    /// How the loss is scaled, and by what now.
    scaling: Option<(LossScale, f32)>,
    /// Training steps whose gradients were not finite, which changed nothing.
    pub(crate) skipped: u64,
    fetched: Vec<Vec<f32>>,
    scales: Vec<f32>,
    /// Samples on the devices.
    held: Vec<tables::Held>,
    profiling: bool,
    /// Whether it was said that memory is short.
    pub(super) warned: bool,
}

fn lower(
    def: &Definition,
    training: bool,
    synchronized: bool,
    scaling: Option<Scaling>,
) -> Result<Lowered> {
    let mut low = Lowering::new(training);
    low.synchronized = synchronized;
    let feeds = def.feeds(&mut low);
    let inputs: Vec<_> = feeds.iter().map(|f| low.graph.feed(*f)).collect();
    let outputs = def.lower(&mut low, &inputs, "")?;
    let scaling = scaling.map(|s| LossScale::declare(&mut low.graph, s.growth_steps));
    Ok(Lowered { low, outputs, scaling })
}

impl Engine {
    pub(crate) fn new(model: &Model, resolved: Resolved) -> Result<Engine> {
        let Resolved { optimizer, losses, loss_weights, metrics, described, strategy, seed } =
            resolved;
        let asked = optimizer.inner().map(|(_, scaling)| scaling);
        let l = lower(&model.def, true, strategy.local().is_deterministic(), asked)?;
        let first = asked.map_or(0.0, |s| s.initial_scale as f32);
        let types: Vec<Type> = l.outputs.iter().map(|o| l.low.graph.ty(*o).clone()).collect();
        let targets: Vec<Type> =
            losses.iter().zip(&types).map(|(loss, ty)| loss.target(ty)).collect::<Result<_>>()?;
        let resolve = |(i, list): (usize, Vec<(MetricArgument, bool)>)| {
            list.into_iter()
                .map(|(m, weighted)| {
                    let metric = match m {
                        MetricArgument::Value(m) => m.validate().map(|()| m),
                        MetricArgument::Name(name) => metrics::get(&name, &targets[i], &types[i]),
                    }?;
                    Ok(Tracked { metric, weighted })
                })
                .collect::<Result<Vec<_>>>()
        };
        let metrics: Vec<Vec<Tracked>> =
            metrics.into_iter().enumerate().map(resolve).collect::<Result<_>>()?;
        let executor = Arc::new(Mutex::new(strategy.executor(l.low.graph.params())?));
        let trained = |w: &&ModelWeight| l.low.graph.params()[w.param.index()].trainable;
        let trained = l.low.weights.iter().filter(trained).map(|w| w.param).collect();
        let mut engine = Engine {
            def: model.def.clone(),
            executor,
            optimizer,
            losses,
            loss_weights,
            metrics,
            described,
            layers: by_layer(&l.low.weights),
            lookups: indices::lookups(&l.low.graph, model.def.inputs.len()),
            origin: Origin::default(),
            weights: l.low.weights,
            trained,
            constants: l.low.constants,
            targets,
            output_names: model.output_names(),
            devices: strategy.local().devices().iter().map(ToString::to_string).collect(),
            policy: strategy.local().requested_policy(),
            device_kind: strategy.local().devices()[0].kind,
            cluster: strategy.cluster().cloned(),
            programs: [const { None }; 5],
            constrain: None,
            seed,
            steps: 0,
            updates: 0,
            gathered: (0, 0.0),
            learning_rate: None,
            scaling: l.scaling.map(|s| (s, first)),
            skipped: 0,
            fetched: vec![],
            scales: vec![],
            held: vec![],
            profiling: false,
            warned: false,
        };
        for (param, values) in &engine.constants {
            lock(&engine.executor).set_param(*param, values)?;
        }
        if let Some((scaling, first)) = engine.scaling {
            lock(&engine.executor).set_param(scaling.state, &[first, 0.0, 1.0])?;
        }
        engine.refresh()?;
        if !engine.compiled() {
            return Ok(engine);
        }
        engine.check_names()?;
        // Shapes that losses or metrics do not fit are found now, not in the first epoch.
        engine.step(StepKind::Train)?;
        if let Some(step) = steps::constrain(engine.lower(true)?)? {
            let program = engine.program_for(step, 1)?;
            engine.constrain = Some(lock(&engine.executor).load(program)?);
        }
        Ok(engine)
    }

    /// An engine that only predicts, for models that were never compiled.
    pub(crate) fn inference(
        model: &Model,
        strategy: MultiWorkerMirroredStrategy,
    ) -> Result<Engine> {
        let optimizer = Box::new(crate::optimizers::SGD::default());
        let (losses, loss_weights, metrics) = (vec![], vec![], vec![]);
        let described = Map::new();
        let resolved =
            Resolved { optimizer, losses, loss_weights, metrics, described, strategy, seed: 0 };
        Engine::new(model, resolved)
    }

    /// Whether there is something to train for.
    pub(crate) fn compiled(&self) -> bool {
        !self.losses.is_empty()
    }

    /// Two losses or metrics of one name would be one series of the history.
    fn check_names(&self) -> Result<()> {
        let mut seen = HashSet::new();
        for (name, _) in self.logs(&self.tally()) {
            if !seen.insert(name.clone()) {
                let expected = "each name once (rename one with named(...))";
                return Err(Error::argument("compile", "losses and metrics", expected, name));
            }
        }
        Ok(())
    }

    /// The learning rate at this step.
    pub(crate) fn learning_rate(&self) -> f64 {
        self.learning_rate_at(self.iterations())
    }

    /// The learning rate at an iteration to come.
    fn learning_rate_at(&self, iteration: u64) -> f64 {
        let scheduled = || self.optimizer.common().learning_rate.at(iteration);
        self.learning_rate.unwrap_or_else(scheduled)
    }

    /// Training steps that counted, as Keras' optimizers have them.
    pub(crate) fn iterations(&self) -> u64 {
        self.steps - self.skipped
    }

    /// What the loss is multiplied by before it is differentiated, where it is.
    pub(crate) fn loss_scale(&self) -> Option<f32> {
        self.scaling.map(|(_, scale)| scale)
    }

    /// Overrides the optimizer's learning rate from this step on.
    pub(crate) fn set_learning_rate(&mut self, rate: f64) -> Result<()> {
        if !rate.is_finite() || rate < 0.0 {
            let owner = format!("model '{}'", self.def.name);
            return Err(Error::argument(owner, "learning_rate", "a finite rate from 0 up", rate));
        }
        self.learning_rate = Some(rate);
        Ok(())
    }

    /// Batches that make an update, where the optimizer asks for several.
    pub(crate) fn gather_steps(&self) -> Option<u64> {
        self.optimizer.common().gradient_accumulation_steps
    }

    /// Gradient accumulation as the optimizer asks for it.
    pub(crate) fn own_gather(&self) -> Option<Gather> {
        self.gather_steps().map(|every| Gather { every, last: false, by_rows: false })
    }

    /// Element types of the targets.
    pub(crate) fn target_dtypes(&self) -> Vec<DType> {
        self.targets.iter().map(|t| t.dtype).collect()
    }

    fn objective(&self) -> Objective<'_> {
        Objective { losses: &self.losses, loss_weights: &self.loss_weights, metrics: &self.metrics }
    }

    fn lower(&self, training: bool) -> Result<Lowered> {
        let scaling = self.optimizer.inner().map(|(_, scaling)| scaling);
        lower(&self.def, training, lock(&self.executor).mesh().fixed, scaling)
    }

    fn step(&self, kind: StepKind) -> Result<Step> {
        let l = self.lower(matches!(kind, StepKind::Train | StepKind::Gradients))?;
        match kind {
            StepKind::Train => steps::train(l, &self.objective(), self.optimizer.rule()),
            StepKind::Test => steps::test(l, &self.objective()),
            StepKind::Predict => Ok(steps::predict(l)),
            StepKind::Gradients => steps::gradients(l, &self.objective(), self.optimizer.rule()),
        }
    }

    fn program_for(&self, step: Step, max_batch: usize) -> Result<Program> {
        let options = self.options(self.mesh(), max_batch, self.device_kind);
        Ok(Program::compile(step, options)?)
    }

    fn options(&self, mesh: Mesh, max_batch: usize, kind: DeviceKind) -> Options {
        let (policy, rest) = match kind {
            DeviceKind::Cpu => (Policy::Float32, 0),
            DeviceKind::Gpu => (self.policy, phalanx_cuda::REUSE_DELAY),
        };
        Options { mesh, max_batch, policy, reuse_delay: rest }
    }

    /// The devices and workers that programs are compiled for.
    pub(super) fn mesh(&self) -> Mesh {
        lock(&self.executor).mesh()
    }

    /// The program of a step as other devices would run it.
    pub(super) fn program_on(
        &self,
        kind: StepKind,
        batch: usize,
        mesh: Mesh,
        devices: DeviceKind,
    ) -> Result<Program> {
        Ok(Program::compile(self.step(kind)?, self.options(mesh, batch, devices))?)
    }

    /// The program of a step for a batch of this size, as it would be run.
    pub(crate) fn program(&self, kind: StepKind, max_batch: usize) -> Result<Program> {
        self.program_for(self.step(kind)?, max_batch)
    }

    fn ensure(&mut self, kind: StepKind, batch: usize) -> Result<ProgramId> {
        let at = self.slot(kind, batch);
        if let Some(slot) = self.programs[at].as_ref().filter(|s| s.max_batch >= batch) {
            return Ok(slot.id);
        }
        let program = self.program(kind, batch)?;
        self.check_memory(&program, kind, batch)?;
        let fetches = program.fetches().to_vec();
        let mut loaded = lock(&self.executor).load(program.clone());
        if matches!(loaded, Err(ExecError::Memory { .. })) && self.let_go() {
            loaded = lock(&self.executor).load(program);
        }
        let id = loaded.map_err(|e| self.explain(e, kind, batch))?;
        self.programs[at] = Some(Slot { id, max_batch: batch, fetches });
        Ok(id)
    }

    /// Which program a batch runs: few rows are predicted in another way than many.
    fn slot(&self, kind: StepKind, batch: usize) -> usize {
        let few = Split::of(lock(&self.executor).mesh(), batch) == Split::Spatial;
        if kind == StepKind::Predict && few { FEW_ROWS } else { kind as usize }
    }

    pub(crate) fn devices(&self) -> Vec<String> {
        self.devices.clone()
    }

    pub(crate) fn times(&self) -> StepTimes {
        lock(&self.executor).times()
    }

    pub(crate) fn set_profiling(&mut self, on: bool) {
        self.profiling = on;
        lock(&self.executor).set_profiling(on);
    }

    pub(crate) fn profile(&self, kind: StepKind) -> Option<Profile> {
        let few = self.programs[FEW_ROWS].as_ref().filter(|_| kind == StepKind::Predict);
        let slots = [self.programs[kind as usize].as_ref(), few];
        slots.into_iter().flatten().find_map(|slot| lock(&self.executor).profile(slot.id))
    }

    pub(crate) fn check_mirrored(&self) -> Result<()> {
        Ok(lock(&self.executor).check_consistency()?)
    }

    /// Element types of the inputs.
    pub(crate) fn input_dtypes(&self) -> Vec<DType> {
        self.def.input_dtypes()
    }

    /// The devices of this worker, and so its rows of every batch.
    fn share(&self) -> LocalShard {
        lock(&self.executor).shard()
    }

    /// The same, where there are several workers.
    pub(crate) fn worker_share(&self) -> Option<LocalShard> {
        self.cluster.is_some().then(|| self.share())
    }
}
