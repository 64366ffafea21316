//! The programs of a session: built, compiled for its devices or for others, and loaded.

use super::device_weights::SharedExecutor;
use super::resident::ResidentTables;
use super::shapes::{BatchShape, ShapeCache};
use super::step_cache::{BuiltStep, LoadedProgram};
use super::{Objective, Placement, ShapedStep, StepKind, lower};
use crate::error::Result;
use crate::layer::{check_fetched, lock};
use crate::model::definition::Definition;
use crate::model::steps::{self, Lowered};
use crate::strategy::Backend;
use phalanx_exec::{ExecError, ProgramId};
use phalanx_graph::profile::Profile;
use phalanx_graph::program::Split;
use phalanx_graph::{Mesh, Options, Program, Step};
use std::sync::Arc;

/// The steps of a model for every shape of batches, and their programs.
pub(crate) struct Programs {
    pub(super) def: Arc<Definition>,
    pub(crate) placement: Placement,
    pub(super) executor: SharedExecutor,
    pub(super) shapes: ShapeCache,
    /// Projects constrained weights after an update, if any weight is constrained.
    pub(super) constraints: Option<ProgramId>,
    /// Applies gradients from the host, once any were.
    pub(super) apply: Option<ProgramId>,
    /// Whether every instruction is measured.
    pub(super) profiling: bool,
}

impl Programs {
    pub(super) fn new(
        def: Arc<Definition>,
        placement: Placement,
        executor: SharedExecutor,
    ) -> Programs {
        let shapes = ShapeCache::default();
        let (constraints, apply, profiling) = (None, None, false);
        Programs { def, placement, executor, shapes, constraints, apply, profiling }
    }

    /// The devices and workers that programs are compiled for.
    pub(in crate::model) fn mesh(&self) -> Mesh {
        lock(&self.executor).mesh()
    }

    /// Builds a step for batches of up to `max_batch` samples.
    fn build(
        &self,
        objective: &Objective,
        ShapedStep { kind, shape }: ShapedStep,
        max_batch: usize,
    ) -> Result<BuiltStep> {
        let mesh = (self.mesh().fixed, max_batch);
        if let Some(custom) = &objective.custom {
            let built = custom.build(kind, Some(&*objective.optimizer), mesh)?;
            return Ok(BuiltStep { step: built.step, constants: built.fed_constants });
        }
        let training = matches!(kind, StepKind::Train | StepKind::Gradients);
        let BatchShape { inputs, weights, .. } = self.shapes.get(shape);
        let mut lowered = lower(&self.def, inputs, training, mesh, &*objective.optimizer)?;
        lowered.weights.clone_from(weights);
        finish_step(objective, kind, lowered)
    }

    /// Fails if the devices of a replica cannot divide a step.
    pub(super) fn check_division(&self, step: &Step) -> Result<()> {
        let parts = self.mesh().devices_per_replica;
        if parts > 1 {
            let mut step = step.clone();
            step.graph.set_partition_axes(&self.placement.partition_axes);
            phalanx_graph::passes::partition(step, parts)?;
        }
        Ok(())
    }

    /// What programs for the session's own devices are compiled for.
    pub(super) fn options(&self, max_batch: usize) -> Options {
        let Placement { backend, policy, recompute, .. } = &self.placement;
        Options { recompute: recompute.1, ..backend.options(self.mesh(), *policy, max_batch) }
    }

    /// The program of a step as other devices would run it.
    pub(in crate::model) fn program_on(
        &self,
        objective: &Objective,
        step: ShapedStep,
        batch: usize,
        devices: (Mesh, &dyn Backend),
    ) -> Result<Program> {
        let axes = &self.placement.partition_axes;
        self.partitioned_program(objective, step, batch, (devices, axes))
    }

    /// The same with parameters that are partitioned along these axes.
    pub(in crate::model) fn partitioned_program(
        &self,
        objective: &Objective,
        step: ShapedStep,
        batch: usize,
        ((mesh, backend), axes): ((Mesh, &dyn Backend), &[Option<usize>]),
    ) -> Result<Program> {
        let (policy, recompute) = (self.placement.policy, self.placement.recompute.1);
        let options = Options { recompute, ..backend.options(mesh, policy, batch) };
        let build = |max_batch| self.build(objective, step, max_batch);
        self.shapes.get(step.shape).steps.compile(step.kind, (options, axes), build)
    }

    /// The program of a step for a batch of this size, as it would run.
    pub(in crate::model) fn program(
        &self,
        objective: &Objective,
        step: ShapedStep,
        max_batch: usize,
    ) -> Result<Arc<Program>> {
        let (steps, options) = (&self.shapes.get(step.shape).steps, self.options(max_batch));
        let axes = &self.placement.partition_axes;
        let build = |max_batch| self.build(objective, step, max_batch);
        steps.program(step.kind, (options, axes), build)
    }

    /// The loaded program of a step for batches of this size, if any.
    pub(super) fn loaded(
        &self,
        ShapedStep { kind, shape }: ShapedStep,
        batch: usize,
    ) -> Option<ProgramId> {
        self.shapes.get(shape).loaded.get(kind, self.has_few_rows(batch), batch)
    }

    /// Whether a device has so few rows of a batch that it predicts in another way.
    pub(super) fn has_few_rows(&self, batch: usize) -> bool {
        self.options(batch).inference_split() == Split::Spatial
    }

    /// Loads the program of a step for batches of this size, unless one that serves them is loaded.
    /// No step may be in flight. If memory is short, the samples on the devices are evicted.
    pub(super) fn ensure_loaded(
        &mut self,
        objective: &Objective,
        step: ShapedStep,
        batch: usize,
        tables: &mut ResidentTables,
    ) -> Result<ProgramId> {
        if let Some(id) = self.loaded(step, batch) {
            return Ok(id);
        }
        let mut program = self.program(objective, step, batch)?;
        if let Some(limit) = self.placement.backend.memory_limit()
            && let Some(smaller) =
                self.recompute_to_fit(objective, &program, (step, batch), limit.total)?
        {
            program = smaller;
        }
        self.check_memory(objective, &program, step, batch)?;
        let mut loaded = lock(&self.executor).load(program.clone());
        if matches!(loaded, Err(ExecError::Memory { .. })) && tables.evict_all() {
            loaded = lock(&self.executor).load(program.clone());
        }
        if let Err(ExecError::Memory { available: Some(available), .. }) = &loaded
            && let Some(smaller) =
                self.recompute_to_fit(objective, &program, (step, batch), *available)?
        {
            loaded = lock(&self.executor).load(smaller.clone());
            program = smaller;
        }
        let id = loaded.map_err(|e| self.explain_out_of_memory(objective, e, step, batch))?;
        let loaded = LoadedProgram { id, max_batch: batch, fetches: program.fetches().to_vec() };
        let few_rows = self.has_few_rows(batch);
        let programs = &mut self.shapes.get_mut(step.shape).loaded;
        if let Some(replaced) = programs.set(step.kind, few_rows, loaded) {
            lock(&self.executor).unload(replaced.id);
        }
        Ok(id)
    }
    /// Loads the step that projects constrained weights, if any.
    pub(super) fn load_constraints(&mut self, constraints: Option<Step>) -> Result<()> {
        if let Some(mut step) = constraints {
            step.graph.set_partition_axes(&self.placement.partition_axes);
            let program = Program::compile(step, self.options(1))?;
            self.constraints = Some(lock(&self.executor).load(Arc::new(program))?);
        }
        Ok(())
    }

    /// Fails if ops of a step have computed with integers that are not exact as floats.
    pub(super) fn check_integers(&self, step: ShapedStep, fetched: &[Vec<f32>]) -> Result<()> {
        let Some(program) = self.shapes.get(step.shape).loaded.of(step.kind).next() else {
            return Ok(());
        };
        let names = program.fetches.iter().map(|plan| plan.name.as_str());
        check_fetched(names.zip(fetched.iter().map(Vec::as_slice)))
    }

    pub(crate) fn set_profiling(&mut self, on: bool) {
        self.profiling = on;
        if let Some(profiling) = lock(&self.executor).profiling() {
            profiling.set_profiling(on);
        }
    }

    pub(crate) fn profile(&self, kind: StepKind) -> Option<Profile> {
        let mut executor = lock(&self.executor);
        let profiling = executor.profiling()?;
        let shapes = self.shapes.by_use();
        let mut programs = shapes.iter().flat_map(|shape| shape.loaded.of(kind));
        programs.find_map(|program| profiling.profile(program.id))
    }
}

/// The step of a kind from a lowered model.
pub(super) fn finish_step(
    objective: &Objective,
    kind: StepKind,
    mut lowered: Lowered,
) -> Result<BuiltStep> {
    let constants = std::mem::take(&mut lowered.low.fed_constants);
    let step = match kind {
        StepKind::Train => steps::train(lowered, objective)?,
        StepKind::Test => steps::test(lowered, objective)?,
        StepKind::Predict => steps::predict(lowered)?,
        StepKind::Gradients => steps::gradients(lowered, objective)?,
    };
    Ok(BuiltStep { step, constants })
}
