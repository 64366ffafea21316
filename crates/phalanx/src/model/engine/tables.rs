//! Steps on samples that the devices keep.

use super::run::denominator;
use super::{Engine, StepKind};
use crate::data::{Dataset, HostBatch, Identity, InMemory, IndexBatch, Table};
use crate::error::Result;
use crate::layer::lock;
use crate::strategy::DeviceKind;
use phalanx_graph::exec::ExecError;
use phalanx_graph::resident::{StepInput, TableId};
use std::sync::Arc;

/// Samples that the devices keep, and whose they are.
pub(super) struct Held {
    identity: Identity,
    id: TableId,
}

/// A dataset whose samples the devices keep.
#[derive(Clone, Debug)]
pub(crate) struct Kept {
    id: TableId,
    weights: Option<Arc<Vec<f32>>>,
    /// How many steps are best started together.
    pub together: usize,
}

/// Steps under way.
pub(crate) struct StartedTurns {
    training: bool,
    /// Rows of each, and what its loss sums are divided by.
    steps: Vec<(usize, Vec<f64>)>,
}

impl Engine {
    /// Keeps a dataset's samples on the devices, where they can and nothing has to be done between
    /// steps.
    pub(crate) fn keep(&mut self, kind: StepKind, data: &dyn Dataset) -> Result<Option<Kept>> {
        let between = self.constrain.is_some() || self.gather_steps().is_some();
        let alone_on_gpus = self.device_kind == DeviceKind::Gpu && self.cluster.is_none();
        // Instructions are measured one by one, on a batch that stays where it is.
        if !alone_on_gpus || self.profiling || (kind == StepKind::Train && between) {
            return Ok(None);
        }
        let Some(data) = data.in_memory() else { return Ok(None) };
        let table = data.table();
        let rows = data.batch_size();
        let program = self.ensure(kind, rows)?;
        let Some(id) = self.hold(data, &table)? else { return Ok(None) };
        let together = lock(&self.executor).steps_per_launch(program, id, rows);
        if matches!(together, Err(ExecError::Memory { .. })) {
            // Batches from the host need less.
            self.let_go();
            return Ok(None);
        }
        let together = together.map_err(|e| self.explain(e, kind, rows))?;
        Ok(Some(Kept { id, weights: table.weights, together }))
    }

    /// The samples on the devices: those that are there, or new ones.
    fn hold(&mut self, data: &dyn InMemory, table: &Table) -> Result<Option<TableId>> {
        let identity = table.identity();
        if let Some(held) = self.held.iter().find(|h| h.identity.same(&identity)) {
            return Ok(Some(held.id));
        }
        self.check_table(data, table)?;
        let held = std::mem::take(&mut self.held).into_iter();
        let (gone, there): (Vec<Held>, Vec<Held>) = held.partition(|h| h.identity.is_dropped());
        self.held = there;
        gone.iter().for_each(|h| lock(&self.executor).evict(h.id));
        let ones = vec![1.0; if table.weights.is_some() { 0 } else { table.rows() }];
        let kept = lock(&self.executor).upload(&table.columns(&ones))?;
        self.held.extend(kept.map(|id| Held { identity, id }));
        Ok(kept)
    }

    /// Lets go of all samples that the devices keep; whether there were any.
    pub(super) fn let_go(&mut self) -> bool {
        let held = std::mem::take(&mut self.held);
        held.iter().for_each(|h| lock(&self.executor).evict(h.id));
        !held.is_empty()
    }

    /// What a batch of them would be checked for, for all of them.
    fn check_table(&self, data: &dyn InMemory, table: &Table) -> Result<()> {
        let mut batch = HostBatch::default();
        data.epoch(0, 0, 0)?.next(&mut batch)?;
        self.check(&batch, true)?;
        for (i, samples) in table.inputs.iter().enumerate() {
            self.check_rows_of(i, samples, 0..samples.rows(), "")?;
        }
        for (i, target) in table.targets.iter().enumerate() {
            self.check_labels(i, target, 0..target.rows(), 0, &"")?;
        }
        Ok(())
    }

    /// What each output's weighted loss sum over these samples is divided by.
    fn picked_denominators(&self, kept: &Kept, rows: &[u32]) -> Vec<f64> {
        let weight = |row: &u32| kept.weights.as_ref().map_or(1.0, |w| f64::from(w[*row as usize]));
        let total = || rows.iter().map(weight).sum();
        self.losses.iter().map(|loss| denominator(&**loss, rows.len(), total)).collect()
    }

    /// The optimizer's scalars of an update to come, where none before is skipped.
    fn scalars_ahead(&self, updates: usize) -> Vec<f32> {
        let rate = self.learning_rate_at(self.iterations() + updates as u64);
        self.optimizer.scalars(rate, self.updates + 1 + updates as u64)
    }

    /// How many training steps to start together, now and while others are under way. Where the loss
    /// is scaled a step may turn out not to count: those behind it have the right scalars if all have
    /// the same.
    pub(crate) fn together(&self, kept: &Kept) -> usize {
        let first = self.scalars_ahead(0);
        let alike = |i: usize| self.scalars_ahead(i) == first;
        let any = self.scaling.is_none() || (1..2 * kept.together).all(alike);
        if any { kept.together } else { 1 }
    }

    /// Starts a step on each of these batches, one behind the other; all have as many rows.
    pub(crate) fn start_turns(
        &mut self,
        kind: StepKind,
        kept: &Kept,
        batches: &[IndexBatch],
    ) -> Result<StartedTurns> {
        let training = kind == StepKind::Train;
        let rows = batches.first().map_or(0, |b| b.rows.len());
        let program = self.ensure(kind, rows)?;
        let divide = |b: &IndexBatch| (b.rows.len(), self.picked_denominators(kept, &b.rows));
        let steps: Vec<(usize, Vec<f64>)> = batches.iter().map(divide).collect();
        let invert = |d: &f64| if *d == 0.0 { 0.0 } else { (1.0 / d) as f32 };
        let mirrored: Vec<Vec<f32>> =
            steps.iter().map(|s| s.1.iter().map(invert).collect()).collect();
        let scalars = |i: usize| if training { self.scalars_ahead(i) } else { vec![] };
        let scalars: Vec<Vec<f32>> = (0..batches.len()).map(scalars).collect();
        let turn = |i: usize| {
            let step = if training { self.steps + i as u64 } else { self.steps };
            let (rows, motions) = (&batches[i].rows[..], &batches[i].augments[..]);
            let (mirrored, scalars) = (&mirrored[i][..], &scalars[i][..]);
            StepInput { rows, augments: motions, mirrored, seed: self.seed, step, scalars }
        };
        let turns: Vec<StepInput<'_>> = (0..batches.len()).map(turn).collect();
        let started = lock(&self.executor).start_steps(program, kept.id, &turns);
        started.map_err(|e| self.explain(e, kind, rows))?;
        Ok(StartedTurns { training, steps })
    }

    /// Waits for steps and adds their losses and metrics to the tally; each one's loss.
    pub(crate) fn finish_turns(
        &mut self,
        started: StartedTurns,
        tally: &mut super::Tally,
    ) -> Result<Vec<f64>> {
        let mut fetched = vec![];
        lock(&self.executor).finish_steps(&mut fetched)?;
        let mut losses = Vec::with_capacity(fetched.len());
        for (values, (rows, denominators)) in fetched.into_iter().zip(&started.steps) {
            self.fetched = values;
            self.steps += u64::from(started.training);
            let counts = !started.training || self.take_scale();
            self.updates += u64::from(started.training && counts);
            losses.push(tally.add(self, *rows, denominators));
        }
        Ok(losses)
    }
}
