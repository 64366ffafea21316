//! Steps on samples that the GPUs keep, several started together.

use super::{GpuExecutor, Key, Loaded, floats};
use crate::inputs::Inputs;
use crate::kept::{HEAD, MOST_TURNS, Table, TurnLayout};
use crate::launch::Block;
use crate::lower::FromTable;
use crate::machine::{Lists, Machine};
use crate::stations::{Station, together};
use phalanx_graph::exec::{ExecError, ProgramId};
use phalanx_graph::program::{FetchPlan, split_range};
use phalanx_graph::resident::{Column, StepInput, TableId, check_columns};
use std::time::Instant;

/// The part of a GPU's free memory that samples may take.
const SHARE: usize = 4;

/// Blocks of a column: its cells, and what is taken from them.
const BLOCKS: usize = 2;

/// Most columns of a table, so that blocks of different tables have different numbers.
const MOST_COLUMNS: usize = 64;

impl<M: Machine> GpuExecutor<M> {
    pub(super) fn keep_columns(
        &mut self,
        columns: &[Column<'_>],
    ) -> Result<Option<TableId>, ExecError> {
        check_columns(columns)?;
        let bytes: usize = columns.iter().map(|c| c.data.bytes()).sum();
        let fits = |s: &Station<M>| s.machine.room().is_some_and(|room| bytes <= room / SHARE);
        // Processes would have to agree on it, and on how many steps are started together.
        let alone = self.among.is_none();
        if !alone || columns.len() > MOST_COLUMNS || !self.stations.iter().all(fits) {
            return Ok(None);
        }
        let id = TableId(self.tables.len());
        let table = Table::new(columns, id.0 * MOST_COLUMNS * BLOCKS);
        let parts = || table.columns.iter().zip(columns).flat_map(|(kept, c)| kept.parts(c));
        for Station { machine, .. } in &mut self.stations {
            for (at, bytes) in parts() {
                machine.reserve(at.replica, at.block, bytes.len().max(1), "samples")?;
                machine.write(at, bytes)?;
            }
        }
        self.tables.push(Some(table));
        Ok(Some(id))
    }

    pub(super) fn release_table(&mut self, id: TableId) {
        let Some(table) = self.tables.get_mut(id.0).and_then(Option::take) else { return };
        for program in &mut self.programs {
            let of_it: Vec<Key> =
                program.steps.keys().copied().filter(|k| k.table == Some(id)).collect();
            for ready in of_it.iter().filter_map(|key| program.steps.remove(key)) {
                for (station, step) in self.stations.iter_mut().zip(ready.ids) {
                    station.machine.forget(step);
                }
            }
        }
        for station in &mut self.stations {
            table.blocks().for_each(|block| station.machine.free(0, block));
        }
    }

    fn table(&self, id: TableId) -> Result<&Table, ExecError> {
        let found = self.tables.get(id.0).and_then(Option::as_ref);
        found.ok_or_else(|| ExecError::Program {
            name: format!("table {}", id.0),
            reason: "its samples are not kept here".into(),
        })
    }

    /// Where the parts of a program's turns lie.
    fn turn_layout(&self, loaded: &Loaded, table: &Table) -> TurnLayout {
        let program = &loaded.program;
        let numbers = program.feeds().iter().filter(|f| !f.ty.is_rows()).count();
        let rows = self.mesh.max_rows(program.options().max_batch);
        TurnLayout::new(numbers, rows, table.moves())
    }

    /// What lowering needs to know of a table.
    pub(super) fn source(&self, loaded: &Loaded, id: Option<TableId>) -> Option<FromTable<'_>> {
        let table = self.table(id?).ok()?;
        let (inputs, fetch_bytes) = (loaded.inputs, loaded.fetch_bytes);
        Some(FromTable { table, turn: self.turn_layout(loaded, table), inputs, fetch_bytes })
    }

    /// Makes a step on rows of a table ready; its key.
    fn ready_on_table(
        &mut self,
        id: ProgramId,
        table: TableId,
        rows: usize,
    ) -> Result<Key, ExecError> {
        let loaded = self.loaded(id)?;
        let layout = self.turn_layout(loaded, self.table(table)?);
        let results = loaded.fetch_bytes * MOST_TURNS;
        self.reserve(Block::List, layout.list(MOST_TURNS), "inputs")?;
        self.reserve(Block::Results, results, "results")?;
        let key = Key { rows, accumulate: None, table: Some(table) };
        self.ready(id, key)?;
        Ok(key)
    }

    pub(super) fn turns_together(
        &mut self,
        id: ProgramId,
        table: TableId,
        rows: usize,
    ) -> Result<usize, ExecError> {
        let key = self.ready_on_table(id, table, rows)?;
        let steps = &self.programs[id.0].steps[&key].ids;
        let each = self.stations.iter().zip(steps).map(|(s, step)| s.machine.together(*step));
        Ok(each.min().unwrap_or(1))
    }

    /// Fails where turns do not fit a program and a table, or one another.
    fn check_turns(
        &self,
        id: ProgramId,
        table: TableId,
        turns: &[StepInput<'_>],
    ) -> Result<(), ExecError> {
        let (program, table) = (&self.loaded(id)?.program, self.table(table)?);
        let fail = |expected: String, received: String| {
            Err(ExecError::Feed { name: program.name().into(), expected, received })
        };
        let types = table.types();
        let rows = turns.first().map_or(0, |t| t.rows.len());
        for turn in turns {
            program.check_step_input(&types, turn)?;
            if turn.rows.len() != rows {
                return fail(
                    format!("{rows} rows as the step before"),
                    turn.rows.len().to_string(),
                );
            }
            if let Some(row) = turn.rows.iter().find(|row| **row as usize >= table.rows) {
                return fail(format!("rows below {}", table.rows), row.to_string());
            }
        }
        if turns.len() > MOST_TURNS {
            return fail(format!("at most {MOST_TURNS} steps"), turns.len().to_string());
        }
        if program.fetches().iter().any(|f| f.ty.is_rows()) {
            return fail("fetches that are sums".into(), "rows".into());
        }
        Ok(())
    }

    pub(super) fn start_on_table(
        &mut self,
        id: ProgramId,
        table: TableId,
        turns: &[StepInput<'_>],
    ) -> Result<(), ExecError> {
        self.check_turns(id, table, turns)?;
        let Some(first) = turns.first() else { return Ok(()) };
        let key = self.ready_on_table(id, table, first.rows.len())?;
        self.began = Instant::now();
        let loaded = &self.programs[id.0];
        let layout = self.turn_layout(loaded, self.table(table)?);
        let (ids, mesh) = (&loaded.steps[&key].ids, self.mesh);
        together(&self.crew, &mut self.stations, |i, Station { machine, replicas, .. }| {
            let mut fill = |local: usize, bytes: &mut [u8]| {
                bytes[..HEAD].fill(0);
                let each = bytes[HEAD..].chunks_exact_mut(layout.bytes);
                for (to, turn) in each.zip(turns) {
                    let head = Inputs::new(turn.seed, turn.step, turn.scalars);
                    let rows =
                        split_range(0..turn.rows.len(), mesh.devices, replicas.start + local);
                    layout.write(to, &head, turn, rows);
                }
            };
            let lists = Lists { replicas: replicas.len(), bytes: layout.list(turns.len()) };
            machine.start_turns(ids[i], turns.len(), lists, &mut fill)
        })?;
        self.turns = Some((id, turns.len()));
        Ok(())
    }

    pub(super) fn finish_on_table(
        &mut self,
        fetched: &mut Vec<Vec<Vec<f32>>>,
    ) -> Result<(), ExecError> {
        fetched.clear();
        let Some((id, turns)) = self.turns.take() else { return Ok(()) };
        let bytes = self.programs[id.0].fetch_bytes;
        self.collect(Block::Results, bytes * turns)?;
        let loaded = &self.programs[id.0];
        for turn in self.stations[0].fetched[0].chunks_exact(bytes.max(1)) {
            let each = loaded.program.fetches().iter().zip(&loaded.fetches);
            let values = |(plan, at): (&FetchPlan, &usize)| {
                floats(&turn[*at..at + plan.ty.len() * 4]).collect()
            };
            fetched.push(each.map(values).collect());
        }
        if loaded.program.update().is_some() {
            self.times.compute += self.began.elapsed().as_secs_f64();
        }
        Ok(())
    }
}
