//! Programs of a session: compiled for its devices or for others, and loaded.

use super::programs::LoadedProgram;
use super::{Placement, Session, ShapedStep};
use crate::error::Result;
use crate::layer::lock;
use crate::strategy::{Backend, LayoutMap};
use phalanx_exec::{ExecError, ProgramId};
use phalanx_graph::program::Split;
use phalanx_graph::{Mesh, Options, Program, Step};
use std::sync::Arc;

impl Session {
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
        step: ShapedStep,
        batch: usize,
        mesh: Mesh,
        backend: &dyn Backend,
    ) -> Result<Program> {
        self.partitioned_program(step, batch, (mesh, backend), &self.placement.partition_axes)
    }

    /// The same with parameters that are divided otherwise.
    pub(in crate::model) fn partitioned_program(
        &self,
        step: ShapedStep,
        batch: usize,
        (mesh, backend): (Mesh, &dyn Backend),
        axes: &[Option<usize>],
    ) -> Result<Program> {
        let (policy, recompute) = (self.placement.policy, self.placement.recompute.1);
        let options = Options { recompute, ..backend.options(mesh, policy, batch) };
        let build = |max_batch| self.build(step, max_batch);
        self.shapes.get(step.shape).steps.compile(step.kind, (options, axes), build)
    }

    /// The axis of each parameter that a layout divides.
    pub(in crate::model) fn partition_axes_of(
        &self,
        layout: Option<&LayoutMap>,
    ) -> Result<Vec<Option<usize>>> {
        let mut params = self.weights.specs().to_vec();
        params.iter_mut().for_each(|spec| spec.partition_axis = None);
        if let Some(layout) = layout {
            layout.partition(&mut params, &self.weights.paths(&self.def))?;
        }
        Ok(params.iter().map(|spec| spec.partition_axis).collect())
    }

    /// The program of a step for a batch of this size, as it would run.
    pub(crate) fn program(&self, step: ShapedStep, max_batch: usize) -> Result<Arc<Program>> {
        let (steps, options) = (&self.shapes.get(step.shape).steps, self.options(max_batch));
        let axes = &self.placement.partition_axes;
        steps.program(step.kind, (options, axes), |max_batch| self.build(step, max_batch))
    }

    /// The loaded program of a step for batches of this size, if there is one.
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
    /// No step may be in flight.
    pub(crate) fn ensure_loaded(&mut self, step: ShapedStep, batch: usize) -> Result<ProgramId> {
        if let Some(id) = self.loaded(step, batch) {
            return Ok(id);
        }
        let mut program = self.program(step, batch)?;
        if let Some(limit) = self.placement.backend.memory_limit()
            && let Some(smaller) = self.recompute_to_fit(&program, step, batch, limit.total)?
        {
            program = smaller;
        }
        self.check_memory(&program, step, batch)?;
        let mut loaded = lock(&self.executor).load(program.clone());
        if matches!(loaded, Err(ExecError::Memory { .. })) && self.evict_all() {
            loaded = lock(&self.executor).load(program.clone());
        }
        if let Err(ExecError::Memory { available: Some(available), .. }) = &loaded
            && let Some(smaller) = self.recompute_to_fit(&program, step, batch, *available)?
        {
            loaded = lock(&self.executor).load(smaller.clone());
            program = smaller;
        }
        let id = loaded.map_err(|e| self.explain_out_of_memory(e, step, batch))?;
        let loaded = LoadedProgram { id, max_batch: batch, fetches: program.fetches().to_vec() };
        let few_rows = self.has_few_rows(batch);
        let programs = &mut self.shapes.get_mut(step.shape).loaded;
        if let Some(replaced) = programs.set(step.kind, few_rows, loaded) {
            lock(&self.executor).unload(replaced.id);
        }
        Ok(id)
    }
}
