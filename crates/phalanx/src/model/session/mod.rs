//! A compiled model on its devices. [`Session`] joins the parts that `compile` builds: the objective, the
//! steps and their programs, the weights on the devices, the counters of training, the other workers.

mod batch_checks;
mod custom;
mod device_weights;
mod indices;
mod learning_rates;
mod objective;
mod programs;
mod resident;
mod run_step;
mod saved_state;
mod shapes;
mod step_cache;
mod tally;
mod targets;
mod train_state;
mod variables;
mod whole_weight_variables;
mod workers;

pub(crate) use batch_checks::{BatchChecks, BatchOrigin, check_count};
pub(crate) use objective::{Objective, Tracked};
pub(crate) use programs::Programs;
pub(crate) use resident::ResidentTable;
pub(crate) use saved_state::is_weight;
pub(crate) use shapes::ShapedStep;
pub use step_cache::StepKind;
pub(crate) use tally::Tally;
pub(crate) use train_state::{Accumulation, TrainState};
pub(crate) use workers::Workers;

use super::Model;
use super::compile::ResolvedCompile;
use super::definition::Definition;
use super::steps::{self, Lowered};
use super::update_graph::UpdateState;
use crate::data::Dataset;
use crate::error::{Error, Result};
use crate::layer::{InputSizes, Lowering, ModelWeight, lock};
use crate::optimizers::Optimizer;
use crate::strategy::{Backend, MirroredStrategy, Recompute, Shard};
use crate::workers::MultiWorkerMirroredStrategy;
use device_weights::{DeviceWeights, SharedExecutor};
use phalanx_distributed::launch::is_first_worker;
use phalanx_exec::{ExecError, ProgramId, StepTimes};
use phalanx_graph::loss_scale::LossScale;
use phalanx_graph::program::Policy;
use phalanx_graph::{ParamId, ParamSpec, Type};
use programs::finish_step;
use resident::ResidentTables;
use serde_json::Map;
use shapes::BatchShape;
use std::sync::{Arc, Mutex};

/// The devices of this process.
pub(crate) struct Placement {
    /// As the strategy names them.
    pub names: Vec<String>,
    pub backend: Arc<dyn Backend>,
    /// As requested; the backend may store wider numbers.
    pub policy: Policy,
    /// The axis of each parameter that the devices of a replica divide, if any.
    pub partition_axes: Vec<Option<usize>>,
    /// Whether the backward pass computes activations again, and in how many segments.
    pub recompute: (Recompute, usize),
    /// Whether a warning said that memory is short.
    pub memory_warned: bool,
}

impl Placement {
    fn new(strategy: &MirroredStrategy, of_layers: Policy, params: &[ParamSpec]) -> Placement {
        let requested = strategy.requested_policy();
        if requested.is_none() && is_first_worker() {
            let backend = strategy.backend();
            let stored = backend.options(backend.mesh(1, 1), of_layers, 1).policy;
            if stored != of_layers {
                let (name, kind) = (of_layers.name(), backend.kind().to_uppercase());
                tracing::warn!(
                    "the layers have the policy {name}: {kind} devices store 32-bit floats"
                );
            }
        }
        Placement {
            names: strategy.devices().iter().map(ToString::to_string).collect(),
            backend: strategy.backend().clone(),
            policy: requested.unwrap_or(of_layers),
            partition_axes: params.iter().map(|spec| spec.partition_axis).collect(),
            recompute: match strategy.requested_recompute() {
                Recompute::Segments(segments) => (Recompute::Segments(segments), segments),
                other => (other, 0),
            },
            memory_warned: false,
        }
    }
}

/// What the graph of a session's first step declares.
struct Declared {
    params: Vec<ParamSpec>,
    weights: Vec<ModelWeight>,
    constants: Vec<(ParamId, Vec<f32>)>,
    scaling: Option<LossScale>,
    /// The state of an optimizer that updates whole weights.
    update: Option<UpdateState>,
}

/// A compiled model on its devices.
pub(crate) struct Session {
    pub(crate) def: Arc<Definition>,
    pub(crate) objective: Objective,
    pub(crate) checks: BatchChecks,
    pub(crate) programs: Programs,
    pub(crate) workers: Workers,
    pub(crate) state: TrainState,
    pub(crate) weights: DeviceWeights,
    executor: SharedExecutor,
    tables: ResidentTables,
    pub(crate) results: StepResults,
}

/// Results of steps.
pub(crate) struct StepResults {
    /// What the last step fetched.
    fetched: Vec<Vec<f32>>,
    /// Losses and metrics of the batches that were run one by one.
    pub running: Tally,
}

fn lower(
    def: &Definition,
    shapes: &[Vec<usize>],
    training: bool,
    (synchronized, max_batch): (bool, usize),
    optimizer: &dyn Optimizer,
) -> Result<Lowered> {
    let mut low = Lowering::new(training);
    low.graph.set_max_batch(max_batch);
    low.synchronized = synchronized;
    low.mixed = def.dtype_policy() != Policy::Float32;
    low.sizes = InputSizes { open: def.is_open(), batch: def.batch_size() };
    let outputs = def.lower_on_feeds(&mut low, shapes)?;
    let scaling = optimizer.inner().map(|(_, scaling)| scaling);
    let scaling = scaling.map(|s| LossScale::declare(&mut low.graph, s.growth_steps));
    let state = UpdateState::declare(&mut low.graph, def, &low.weights, optimizer)?;
    Ok(Lowered { low, outputs, weights: vec![], scaling, state })
}

/// Fails if the state that `shard` divides is not updated element by element.
fn check_shard(objective: &Objective, shard: Shard) -> Result<()> {
    let of_phases = objective.custom.as_ref().is_some_and(|custom| !custom.updates.is_empty());
    let received = match (shard, of_phases) {
        (Shard::None, _) => return Ok(()),
        (_, true) => "a step of several phases".to_string(),
        (_, false) if objective.optimizer.updates_whole_weights() => {
            objective.optimizer.class_name().to_string()
        }
        (_, false) => return Ok(()),
    };
    let expected = "an optimizer that updates weights element by element, to divide its state";
    Err(Error::argument("compile", "shard", expected, received))
}

impl Session {
    /// Lowers the model once. That lowering declares the parameters and becomes the training step or,
    /// for a model without losses, the prediction step. If sizes are open, it has examples of them, and steps are built
    /// when batches come.
    pub(crate) fn new(model: &Model, resolved: ResolvedCompile) -> Result<Session> {
        let ResolvedCompile { optimizer, losses, loss_weights, metrics, .. } = resolved;
        let ResolvedCompile { described, strategy, seed, compiled, .. } = resolved;
        let (inputs, synchronized) =
            (model.def.example_shapes(), strategy.local().is_deterministic());
        let mut lowered = lower(&model.def, &inputs, compiled, (synchronized, 1), &*optimizer)?;
        let compares = losses.iter().any(Option::is_some) || metrics.iter().any(|m| !m.is_empty());
        if compiled && !compares && !steps::has_penalties(&lowered.low) {
            let expected = "a loss for one output or more, metrics, or layers with penalties";
            return Err(Error::argument("compile", "loss", expected, "none of them"));
        }
        let graph = &lowered.low.graph;
        let types: Vec<Type> = lowered.outputs.iter().map(|o| graph.ty(o.node).clone()).collect();
        let output_names = model.log_names();
        let outputs: Vec<(String, Type)> =
            output_names.iter().cloned().zip(types.iter().cloned()).collect();
        let metrics = objective::resolve_metrics(metrics, &losses, &outputs)?;
        let (mut trained, mut of_trained, mut of_batch) = (vec![], vec![], vec![]);
        for (output, (loss, weight)) in losses.into_iter().zip(loss_weights).enumerate() {
            trained.extend(loss.map(|loss| {
                of_trained.push(output);
                of_batch.push(loss.is_of_batch(&types[output]));
                (loss, weight)
            }));
        }
        let (losses, loss_weights) = trained.into_iter().unzip();
        let objective = Objective {
            optimizer,
            of_batch,
            losses,
            trained: of_trained,
            loss_weights,
            metrics,
            described,
            output_names,
            loss_names: model.loss_names(),
            custom: None,
            compiled,
            test: None,
        };
        let names = model.output_names();
        let checks = BatchChecks::new(&model.def, (&objective, names), &types, graph)?;
        let declared = Declared {
            params: graph.params().to_vec(),
            weights: lowered.low.weights.clone(),
            constants: std::mem::take(&mut lowered.low.constants),
            scaling: lowered.scaling,
            update: lowered.state.clone(),
        };
        let mut session = Session::with(objective, checks, declared, strategy, seed)?;
        let shape = BatchShape::new(&session.objective, inputs, vec![], types)?;
        session.build_first_step(lowered, shape)?;
        Ok(session)
    }

    /// Whether the layers of a model have penalties, on which it can train without losses.
    pub(crate) fn has_penalties(def: &Definition) -> Result<bool> {
        let optimizer = crate::optimizers::SGD::default();
        let lowered = lower(def, &def.example_shapes(), true, (false, 1), &optimizer)?;
        Ok(steps::has_penalties(&lowered.low))
    }

    /// Joins the parts of a session and copies the weights to the devices.
    fn with(
        objective: Objective,
        checks: BatchChecks,
        declared: Declared,
        strategy: MultiWorkerMirroredStrategy,
        seed: u64,
    ) -> Result<Session> {
        let Declared { mut params, weights, constants, scaling, update } = declared;
        if let Some(layout) = strategy.local().layout() {
            layout.partition(&mut params, &device_weights::paths(&checks.def, &weights))?;
        }
        check_shard(&objective, strategy.local().requested_shard())?;
        let executor: SharedExecutor = Arc::new(Mutex::new(strategy.executor(&params)?));
        let deterministic = lock(&executor).mesh().fixed;
        let mut state = TrainState::new(seed, &*objective.optimizer, deterministic);
        state.loss_scale = state.loss_scale.filter(|_| scaling.is_some());
        let running = objective.tally(StepKind::Train);
        let weights = DeviceWeights::new(executor.clone(), weights, &params, (scaling, update));
        for (param, values) in weights.update.iter().flat_map(UpdateState::initial_values) {
            lock(&executor).set_param(param, &values)?;
        }
        for (param, values) in constants {
            lock(&executor).set_param(param, &values)?;
        }
        if let Some((scaling, scale)) = scaling.zip(state.loss_scale) {
            lock(&executor).set_param(scaling.state, &[scale, 0.0, 1.0])?;
        }
        let policy = checks.def.dtype_policy();
        let (def, placement) =
            (checks.def.clone(), Placement::new(strategy.local(), policy, &params));
        let mut session = Session {
            def: def.clone(),
            objective,
            checks,
            programs: Programs::new(def, placement, executor.clone()),
            workers: Workers::new(strategy.cluster().cloned(), executor.clone()),
            state,
            weights,
            tables: ResidentTables::new(executor.clone()),
            executor,
            results: StepResults { fetched: vec![], running },
        };
        session.weights.sync_to_devices()?;
        session.weights.start_states()?;
        session.checks.stateful_layer = session.weights.stateful_layer();
        Ok(session)
    }

    /// Builds the steps that follow from the first lowering: training with its constraints, or
    /// prediction for a model without losses. Finds losses and metrics that do not fit.
    fn build_first_step(&mut self, lowered: Lowered, shape: BatchShape) -> Result<()> {
        let open = self.def.is_open();
        if self.objective.compiled {
            self.objective.check_names()?;
            let constraints = steps::constraints(lowered.low.graph.params(), &lowered.low.weights)?;
            self.programs.load_constraints(constraints)?;
        }
        let kind = match self.objective.compiled {
            true if open => StepKind::Test,
            true => StepKind::Train,
            false => StepKind::Predict,
        };
        let step = finish_step(&self.objective, kind, lowered)?;
        self.programs.check_division(&step.step)?;
        if !open {
            shape.steps.set(kind, step);
            self.programs.add_only_shape(shape);
        }
        Ok(())
    }

    /// A session that only predicts, for models that were never compiled.
    pub(crate) fn inference(
        model: &Model,
        strategy: MultiWorkerMirroredStrategy,
    ) -> Result<Session> {
        let optimizer = Box::new(crate::optimizers::SGD::default());
        let (losses, loss_weights, metrics) = (vec![], vec![], vec![]);
        let described = Map::new();
        let resolved = ResolvedCompile {
            optimizer,
            losses,
            loss_weights,
            metrics,
            described,
            strategy,
            seed: 0,
            compiled: false,
        };
        Session::new(model, resolved)
    }

    /// Loads the program of a step on a dataset's batches, if their shape is known.
    pub(crate) fn preload(&mut self, kind: StepKind, data: &dyn Dataset) -> Result<()> {
        let shape = match data.in_memory() {
            Some(samples) => {
                let table = samples.table();
                let weights = self.checks.weight_sizes(&table.output_weights);
                self.programs.shape_of_samples(&self.objective, &table.inputs, &weights)?
            }
            None if self.def.is_open() => return Ok(()),
            None => 0,
        };
        self.ensure_loaded(ShapedStep { kind, shape }, data.batch_size()).map(|_| ())
    }

    /// Creates the slots of the optimizer and loads the training program, unless sizes are open.
    pub(crate) fn prepare_training(&mut self, batch: usize) -> Result<()> {
        if self.def.is_open() {
            let rule = self.objective.optimizer.rule();
            return Ok(lock(&self.executor).create_slots(&rule)?);
        }
        self.ensure_loaded(ShapedStep { kind: StepKind::Train, shape: 0 }, batch).map(|_| ())
    }

    /// Loads the program of a step for batches of this size, unless one that serves them is loaded.
    fn ensure_loaded(&mut self, step: ShapedStep, batch: usize) -> Result<ProgramId> {
        self.programs.ensure_loaded(&self.objective, step, batch, &mut self.tables)
    }

    /// Adds the planned memory and the largest batch that fits to an out-of-memory error.
    fn explain<T>(
        &self,
        result: std::result::Result<T, ExecError>,
        step: ShapedStep,
        batch: usize,
    ) -> Result<T> {
        result.map_err(|e| self.programs.explain_out_of_memory(&self.objective, e, step, batch))
    }

    pub(crate) fn times(&self) -> StepTimes {
        lock(&self.executor).times()
    }

    pub(crate) fn check_consistency(&self) -> Result<()> {
        Ok(lock(&self.executor).check_consistency()?)
    }

    /// Ends training: an optimizer with a moving average leaves it in the weights.
    pub(crate) fn finish_training(&mut self) -> Result<()> {
        self.weights.replace(self.objective.graph_averages(&self.state))?;
        if self.state.updates == 0 {
            return Ok(());
        }
        match &self.weights.update {
            Some(update) => {
                let averages = update.weights.iter().filter_map(|w| Some((w.param, w.average?)));
                self.weights.replace(averages)
            }
            None if self.objective.executor_averages() => self.weights.apply_moving_average(),
            None => Ok(()),
        }
    }
}
