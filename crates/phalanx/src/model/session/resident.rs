//! Steps on samples that are resident on the devices.

use super::device_weights::SharedExecutor;
use super::objective::inverted;
use super::{Session, ShapedStep, StepKind, Tally};
use crate::data::{Dataset, HostBatch, InMemory, IndexBatch, Table, TableIdentity};
use crate::error::Result;
use crate::layer::lock;
use phalanx_exec::{ExecError, ResidentData, StepInput, TableId};
use phalanx_graph::Tensor;
use std::sync::Arc;

/// Samples on the devices, and the arrays they were uploaded from.
struct Uploaded {
    identity: TableIdentity,
    id: TableId,
}

/// The samples on the devices of a session.
pub(super) struct ResidentTables {
    executor: SharedExecutor,
    uploaded: Vec<Uploaded>,
}

impl ResidentTables {
    pub fn new(executor: SharedExecutor) -> ResidentTables {
        ResidentTables { executor, uploaded: vec![] }
    }

    /// Evicts all samples from the devices; returns whether there were any.
    pub fn evict_all(&mut self) -> bool {
        self.evict(|_| true)
    }

    /// Evicts the samples of these tables; returns whether there were any.
    fn evict(&mut self, which: impl Fn(&Uploaded) -> bool) -> bool {
        let tables = std::mem::take(&mut self.uploaded).into_iter();
        let (evicted, kept): (Vec<Uploaded>, Vec<Uploaded>) = tables.partition(which);
        self.uploaded = kept;
        if let Some(data) = lock(&self.executor).resident_data() {
            evicted.iter().for_each(|table| data.evict(table.id));
        }
        !evicted.is_empty()
    }

    /// The table of these samples, if they are on the devices.
    fn find(&self, identity: &TableIdentity) -> Option<TableId> {
        self.uploaded.iter().find(|t| t.identity.same(identity)).map(|t| t.id)
    }

    /// Uploads samples, in place of those whose arrays no longer exist. `None` if the devices cannot hold them.
    fn upload(&mut self, table: &Table) -> Result<Option<TableId>> {
        self.evict(|t| t.identity.is_dropped());
        let ones = vec![1.0; if table.weights.is_some() { 0 } else { table.rows() }];
        let id = self.with_data(|on| on.upload(&table.columns(&ones)))?;
        self.uploaded.extend(id.map(|id| Uploaded { identity: table.identity(), id }));
        Ok(id)
    }

    /// Calls `f` with the samples on the devices.
    fn with_data<T>(
        &self,
        f: impl FnOnce(&mut dyn ResidentData) -> Result<T, ExecError>,
    ) -> Result<T, ExecError> {
        match lock(&self.executor).resident_data() {
            Some(data) => f(data),
            None => Err(ExecError::Program {
                name: "resident samples".into(),
                reason: "this executor has none".into(),
            }),
        }
    }
}

/// A dataset whose samples are resident on the devices.
#[derive(Clone, Debug)]
pub(crate) struct ResidentTable {
    id: TableId,
    /// Dimensions of one sample of each input.
    inputs: Vec<Vec<usize>>,
    weights: Option<Arc<Vec<f32>>>,
    output_weights: Vec<Arc<Tensor>>,
    /// How many steps are best launched together.
    pub steps_per_launch: usize,
}

/// Steps in flight.
pub(crate) struct StepsInFlight {
    step: ShapedStep,
    training: bool,
    /// The rows of each, and what its loss sums are divided by.
    steps: Vec<(usize, Vec<f64>)>,
}

impl Session {
    /// Makes a dataset's samples resident on the devices, if the devices can and nothing has to be done
    /// between steps.
    pub(crate) fn make_resident(
        &mut self,
        kind: StepKind,
        data: &dyn Dataset,
    ) -> Result<Option<ResidentTable>> {
        // The feeds of a custom step change from step to step.
        if self.objective.custom.is_some() {
            return Ok(None);
        }
        let between = self.programs.constraints.is_some() || self.objective.accumulates();
        let can_keep = lock(&self.executor).resident_data().is_some();
        // A profile measures every instruction by itself, on a batch from the host.
        if !can_keep || self.programs.profiling || (kind == StepKind::Train && between) {
            return Ok(None);
        }
        let Some(data) = data.in_memory() else { return Ok(None) };
        let mut table = data.table();
        table.targets = self.checks.fed(&table.targets).into_iter().cloned().collect();
        table.output_weights =
            self.checks.fed(&table.output_weights).into_iter().cloned().collect();
        let rows = data.batch_size();
        let weights = self.checks.weight_sizes(&table.output_weights);
        let shape = self.programs.shape_of_samples(&self.objective, &table.inputs, &weights)?;
        let step = ShapedStep { kind, shape };
        let program = self.ensure_loaded(step, rows)?;
        // Launches of several steps take numbers besides the samples, but no arrays.
        if !self.programs.shapes.get(step.shape).steps.constants(kind).is_empty() {
            return Ok(None);
        }
        let known = self.tables.find(&table.identity());
        if known.is_none() {
            self.check_table(data, &table, shape)?;
        }
        let id = known.map_or_else(|| self.tables.upload(&table), |id| Ok(Some(id)))?;
        let Some(id) = id else { return Ok(None) };
        let steps_per_launch = self.tables.with_data(|on| on.steps_per_launch(program, id, rows));
        if matches!(steps_per_launch, Err(ExecError::Memory { .. })) {
            // Batches from the host need less.
            self.tables.evict_all();
            return Ok(None);
        }
        let steps_per_launch = self.explain(steps_per_launch, step, rows)?;
        let inputs = self.programs.shapes.get(step.shape).inputs.clone();
        let Table { weights, output_weights, .. } = table;
        Ok(Some(ResidentTable { id, inputs, weights, output_weights, steps_per_launch }))
    }

    /// Checks all samples at once instead of batch by batch.
    fn check_table(&self, data: &dyn InMemory, table: &Table, shape: usize) -> Result<()> {
        let mut batch = HostBatch::default();
        data.epoch(0, 0, 0)?.next(&mut batch)?;
        let shape = self.programs.shapes.get(shape);
        self.checks.check(&batch, shape, true)?;
        for (i, samples) in table.inputs.iter().enumerate() {
            self.checks.check_sample_rows(i, samples, 0..samples.rows(), "")?;
        }
        for (i, target) in table.targets.iter().enumerate() {
            let classes = Some(shape.outputs[self.checks.compared[i]].last());
            self.checks.check_labels((i, classes), target, 0..target.rows(), 0, &"")?;
        }
        Ok(())
    }

    /// What each output's weighted loss sum over these samples is divided by.
    fn resident_divisors(&self, table: &ResidentTable, rows: &[u32]) -> Vec<f64> {
        let shared =
            |row: &u32| table.weights.as_ref().map_or(1.0, |w| f64::from(w[*row as usize]));
        let of_output = |t: &Arc<Tensor>| -> f64 {
            let (all, width) = (t.f32().unwrap_or_default(), t.row_len());
            let row = |row: &u32| &all[*row as usize * width..][..width];
            rows.iter().flat_map(row).map(|w| f64::from(*w)).sum()
        };
        let totals: Vec<f64> = match &table.output_weights[..] {
            _ if !self.objective.divides_by_weight() => vec![],
            [] => vec![rows.iter().map(shared).sum()],
            weights => weights.iter().map(of_output).collect(),
        };
        let weighted = table.weights.is_some() || !table.output_weights.is_empty();
        self.objective.divisors(StepKind::Train, rows.len(), (&totals, weighted))
    }

    /// The optimizer's scalars after `updates` more updates, or the numbers of an update of whole weights.
    fn scalars_ahead(&self, updates: usize) -> Vec<f32> {
        let optimizer = &*self.objective.optimizer;
        match self.weights.update {
            Some(_) => self.state.numbers(optimizer, None, updates as u64),
            None => self.state.scalars(optimizer, updates as u64),
        }
    }

    /// How many training steps to launch together, now and while others are in flight. If the loss is
    /// scaled, a step may turn out not to count: the steps after it have the right scalars only if all
    /// have the same.
    pub(crate) fn steps_per_launch(&self, table: &ResidentTable) -> usize {
        let first = self.scalars_ahead(0);
        let same = |i: usize| self.scalars_ahead(i) == first;
        let most = table.steps_per_launch;
        let any = self.state.loss_scale.is_none() || (1..2 * most).all(same);
        if any { most } else { 1 }
    }

    /// Starts a step on each of these batches, one after the other. All have the same number of rows.
    pub(crate) fn start_steps(
        &mut self,
        kind: StepKind,
        table: &ResidentTable,
        batches: &[IndexBatch],
    ) -> Result<StepsInFlight> {
        let training = kind == StepKind::Train;
        let rows = batches.first().map_or(0, |b| b.rows.len());
        self.checks.check_batch_size(rows)?;
        self.weights.own_states();
        let weights = self.checks.weight_sizes(&table.output_weights);
        let shape = self.programs.shape_for(&self.objective, &table.inputs, &weights)?;
        let step = ShapedStep { kind, shape };
        let program = self.ensure_loaded(step, rows)?;
        if training {
            let check = |i| self.objective.check_learning_rate(&self.state, i as u64);
            (0..batches.len()).try_for_each(check)?;
        }
        let divide = |b: &IndexBatch| (b.rows.len(), self.resident_divisors(table, &b.rows));
        let steps: Vec<(usize, Vec<f64>)> = batches.iter().map(divide).collect();
        let mut mirrored: Vec<Vec<f32>> = steps.iter().map(|s| inverted(&s.1)).collect();
        let scalars = |i: usize| if training { self.scalars_ahead(i) } else { vec![] };
        let mut scalars: Vec<Vec<f32>> = (0..batches.len()).map(scalars).collect();
        if self.weights.update.is_some() {
            mirrored.iter_mut().zip(&mut scalars).for_each(|(feeds, s)| feeds.append(s));
        }
        let input = |i: usize| {
            let step = if training { self.state.steps + i as u64 } else { self.state.steps };
            let (rows, augments) = (&batches[i].rows[..], &batches[i].augments[..]);
            let (mirrored, scalars) = (&mirrored[i][..], &scalars[i][..]);
            StepInput { rows, augments, mirrored, seed: self.state.seed, step, scalars }
        };
        let inputs: Vec<StepInput<'_>> = (0..batches.len()).map(input).collect();
        let started = self.tables.with_data(|on| on.start_steps(program, table.id, &inputs));
        self.explain(started, step, rows)?;
        Ok(StepsInFlight { step, training, steps })
    }

    /// Waits for steps and adds their losses and metrics to the tally. Returns the loss of each.
    pub(crate) fn finish_steps(
        &mut self,
        started: StepsInFlight,
        tally: &mut Tally,
    ) -> Result<Vec<f64>> {
        let mut fetched = vec![];
        self.tables.with_data(|on| on.finish_steps(&mut fetched))?;
        let mut losses = Vec::with_capacity(fetched.len());
        let weights = self.objective.loss_weights(started.step.kind).to_vec();
        for (values, (rows, divisors)) in fetched.into_iter().zip(&started.steps) {
            self.programs.check_integers(started.step, &values)?;
            if started.training && self.state.advance(values.last().map(Vec::as_slice)) {
                self.state.updates += 1;
            }
            losses.push(tally.add(&values, &weights, *rows, divisors));
        }
        Ok(losses)
    }
}
