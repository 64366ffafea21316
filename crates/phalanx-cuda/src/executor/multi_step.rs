//! Steps on resident datasets, several per launch.

use super::{GpuExecutor, LoadedProgram, StepKey};
use crate::bytes::floats;
use crate::collectives::{DeviceReplicas, run_all};
use crate::device::{ArgLists, GpuDevice};
use crate::inputs::Inputs;
use crate::launch::Block;
use crate::lower::FromTable;
use crate::resident_dataset::{HEAD_BYTES, MAX_STEPS_PER_LAUNCH, StepLayout, Table};
use phalanx_exec::{
    Column, ExecError, ProgramId, ResidentData, StepInput, TableId, check_columns, check_step_input,
};
use phalanx_graph::program::{FetchPlan, split_range};
use std::time::Instant;

/// A dataset may take this fraction of a GPU's free memory.
const FREE_MEMORY_DIVISOR: usize = 4;

/// Blocks per column: the data, and the offset that is subtracted from it.
const BLOCKS_PER_COLUMN: usize = 2;

/// Maximum columns per table, so that blocks of different tables have different numbers.
const MAX_COLUMNS: usize = 64;

impl<M: GpuDevice> GpuExecutor<M> {
    fn table(&self, id: TableId) -> Result<&Table, ExecError> {
        let found = self.tables.get(id.0).and_then(Option::as_ref);
        found.ok_or_else(|| ExecError::Program {
            name: format!("table {}", id.0),
            reason: "its samples are not resident here".into(),
        })
    }

    /// The layout of a program's steps in the list.
    fn step_layout(&self, loaded: &LoadedProgram, table: &Table) -> StepLayout {
        let program = &loaded.program;
        let numbers = program.feeds().iter().filter(|f| !f.ty.is_rows()).count();
        let rows = self.mesh.max_rows(program.options().max_batch);
        StepLayout::new(numbers, rows, table.is_augmented())
    }

    /// The table as lowering needs it.
    pub(super) fn source(
        &self,
        loaded: &LoadedProgram,
        id: Option<TableId>,
    ) -> Option<FromTable<'_>> {
        let table = self.table(id?).ok()?;
        let (inputs, fetch_bytes) = (loaded.inputs, loaded.fetch_bytes);
        Some(FromTable { table, step: self.step_layout(loaded, table), inputs, fetch_bytes })
    }

    /// Prepares a step on rows of a table. Returns its key.
    fn prepare_table_step(
        &mut self,
        id: ProgramId,
        table: TableId,
        rows: usize,
    ) -> Result<StepKey, ExecError> {
        let loaded = self.loaded(id)?;
        let layout = self.step_layout(loaded, self.table(table)?);
        let results = loaded.fetch_bytes * MAX_STEPS_PER_LAUNCH;
        self.reserve(Block::StepList, layout.list_bytes(MAX_STEPS_PER_LAUNCH), "inputs")?;
        self.reserve(Block::Results, results, "results")?;
        let key = StepKey { rows, accumulate: None, table: Some(table) };
        self.prepare_step(id, key)?;
        Ok(key)
    }

    /// Fails if the steps do not fit the program and the table, or differ in their rows.
    fn check_step_inputs(
        &self,
        id: ProgramId,
        table: TableId,
        steps: &[StepInput<'_>],
    ) -> Result<(), ExecError> {
        let (program, table) = (&self.loaded(id)?.program, self.table(table)?);
        let fail = |expected: String, received: String| {
            Err(ExecError::Feed { name: program.name().into(), expected, received })
        };
        let types = table.types();
        let rows = steps.first().map_or(0, |t| t.rows.len());
        for step in steps {
            check_step_input(program, &types, step)?;
            if step.rows.len() != rows {
                return fail(
                    format!("{rows} rows as the step before"),
                    step.rows.len().to_string(),
                );
            }
            if let Some(row) = step.rows.iter().find(|row| **row as usize >= table.rows) {
                return fail(format!("rows below {}", table.rows), row.to_string());
            }
        }
        if steps.len() > MAX_STEPS_PER_LAUNCH {
            return fail(format!("at most {MAX_STEPS_PER_LAUNCH} steps"), steps.len().to_string());
        }
        if program.fetches().iter().any(|f| f.ty.is_rows()) {
            return fail("fetches that are sums".into(), "rows".into());
        }
        Ok(())
    }
}

impl<M: GpuDevice> ResidentData for GpuExecutor<M> {
    fn upload(&mut self, columns: &[Column<'_>]) -> Result<Option<TableId>, ExecError> {
        check_columns(columns)?;
        let bytes: usize = columns.iter().map(|c| c.data.bytes()).sum();
        let fits = |s: &DeviceReplicas<M>| {
            s.gpu.free_memory().is_some_and(|free| bytes <= free / FREE_MEMORY_DIVISOR)
        };
        if columns.len() > MAX_COLUMNS || !self.devices.iter().all(fits) {
            return Ok(None);
        }
        let id = TableId(self.tables.len());
        let table = Table::new(columns, id.0 * MAX_COLUMNS * BLOCKS_PER_COLUMN);
        let parts = || table.columns.iter().zip(columns).flat_map(|(saved, c)| saved.parts(c));
        for DeviceReplicas { gpu, .. } in &mut self.devices {
            for (at, bytes) in parts() {
                gpu.reserve(at.replica, at.block, bytes.len().max(1), "samples")?;
                gpu.write(at, bytes)?;
            }
        }
        self.tables.push(Some(table));
        Ok(Some(id))
    }

    fn evict(&mut self, id: TableId) {
        let Some(table) = self.tables.get_mut(id.0).and_then(Option::take) else { return };
        for program in self.programs.iter_mut() {
            let of_it: Vec<StepKey> =
                program.steps.keys().copied().filter(|k| k.table == Some(id)).collect();
            for prepared in of_it.iter().filter_map(|key| program.steps.remove(key)) {
                for (device, step) in self.devices.iter_mut().zip(prepared.ids) {
                    device.gpu.forget(step);
                }
            }
        }
        for device in &mut self.devices {
            table.blocks().for_each(|block| device.gpu.free(0, block));
        }
    }

    fn steps_per_launch(
        &mut self,
        id: ProgramId,
        table: TableId,
        rows: usize,
    ) -> Result<usize, ExecError> {
        let key = self.prepare_table_step(id, table, rows)?;
        let steps = &self.programs[id].steps[&key].ids;
        let each = self.devices.iter().zip(steps).map(|(s, step)| s.gpu.steps_per_launch(*step));
        Ok(each.min().unwrap_or(1))
    }

    fn start_steps(
        &mut self,
        id: ProgramId,
        table: TableId,
        steps: &[StepInput<'_>],
    ) -> Result<(), ExecError> {
        self.check_step_inputs(id, table, steps)?;
        let Some(first) = steps.first() else { return Ok(()) };
        let key = self.prepare_table_step(id, table, first.rows.len())?;
        self.in_flight.since = Instant::now();
        let loaded = &self.programs[id];
        let layout = self.step_layout(loaded, self.table(table)?);
        let (ids, mesh) = (&loaded.steps[&key].ids, self.mesh);
        run_all(&self.threads, &mut self.devices, |i, DeviceReplicas { gpu, replicas, .. }| {
            let mut fill = |local: usize, bytes: &mut [u8]| {
                bytes[..HEAD_BYTES].fill(0);
                let each = bytes[HEAD_BYTES..].chunks_exact_mut(layout.bytes);
                for (to, step) in each.zip(steps) {
                    let head = Inputs::new(step.seed, step.step, step.scalars);
                    let rows =
                        split_range(0..step.rows.len(), mesh.replicas, replicas.start + local);
                    layout.write(to, &head, step, rows);
                }
            };
            let lists =
                ArgLists { replicas: replicas.len(), bytes: layout.list_bytes(steps.len()) };
            gpu.start_steps(ids[i], steps.len(), lists, &mut fill)
        })?;
        self.in_flight.table_steps = Some((id, steps.len()));
        Ok(())
    }

    fn finish_steps(&mut self, fetched: &mut Vec<Vec<Vec<f32>>>) -> Result<(), ExecError> {
        fetched.clear();
        let Some((id, steps)) = self.in_flight.table_steps.take() else { return Ok(()) };
        let bytes = self.programs[id].fetch_bytes;
        self.read_block(Block::Results, bytes * steps)?;
        let loaded = &self.programs[id];
        for step in self.devices[0].fetched[0].chunks_exact(bytes.max(1)) {
            let each = loaded.program.fetches().iter().zip(&loaded.fetches);
            let values = |(plan, at): (&FetchPlan, &usize)| {
                floats(&step[*at..at + plan.ty.len() * 4]).collect()
            };
            fetched.push(each.map(values).collect());
        }
        if loaded.program.update().is_some() {
            self.timing.steps.compute += self.in_flight.since.elapsed().as_secs_f64();
        }
        Ok(())
    }
}
