//! One step: a batch handed in, run, and what it gave.

use super::{Engine, StepKind, Tally};
use crate::data::HostBatch;
use crate::error::Result;
use crate::layer::lock;
use crate::losses::{Loss, Reduction};
use crate::workers::peer_lost;
use phalanx_graph::exec::{Accumulate, Batch, ExecError, Executor, FeedData, ProgramId};
use phalanx_graph::process_group::all_gather;
use phalanx_graph::program::FetchPlan;
use phalanx_graph::{Data, Tensor};
use std::ops::Range;

impl Engine {
    /// Runs one batch and adds its losses and metrics to the tally; returns the batch's loss.
    pub(crate) fn run(
        &mut self,
        kind: StepKind,
        batch: &HostBatch,
        learning_rate: f64,
        accumulate: Option<Gather>,
        tally: &mut Tally,
    ) -> Result<f64> {
        let started = self.start(kind, batch, learning_rate, accumulate, false)?;
        self.finish(started, tally)
    }

    /// Hands in the batch of the step to come while another may be under way.
    pub(crate) fn stage(&mut self, kind: StepKind, batch: &HostBatch) -> Result<()> {
        if batch.rows == 0 {
            return Ok(());
        }
        self.check(batch, true)?;
        self.with_feeds(kind, batch, |executor, id, feeds| {
            let (rows, feeds) = (batch.rows, feeds);
            let (scalars, accumulate) = (&[][..], None);
            let step = Batch { rows, feeds, seed: 0, step: 0, scalars, accumulate, staged: false };
            executor.stage(id, &step)
        })?;
        Ok(())
    }

    /// Whether the step that was started is still under way.
    pub(crate) fn busy(&self) -> bool {
        lock(&self.executor).in_flight()
    }

    /// Starts a step; `staged` says that [`stage`](Self::stage) has had this very batch.
    pub(crate) fn start(
        &mut self,
        kind: StepKind,
        batch: &HostBatch,
        learning_rate: f64,
        accumulate: Option<Gather>,
        staged: bool,
    ) -> Result<Started> {
        if batch.rows == 0 {
            // Nothing to learn from and nothing to count.
            return Ok(Started::default());
        }
        let training = kind == StepKind::Train;
        let gather = accumulate.filter(|_| training);
        let (accumulate, gathered) = gather.map(|g| self.gather(g, batch.rows)).unzip();
        let scalars = match training {
            true => self.optimizer.scalars(learning_rate, self.updates + 1),
            false => vec![],
        };
        let (seed, step) = (self.seed, self.steps);
        if !staged {
            self.check(batch, true)?;
        }
        let denominators = self.with_feeds(kind, batch, |executor, id, feeds| {
            let (rows, feeds, scalars) = (batch.rows, feeds, &scalars[..]);
            let step = Batch { rows, feeds, seed, step, scalars, accumulate, staged };
            executor.start(id, &step)
        })?;
        let updates = training && accumulate.is_none_or(|a| a.apply.is_some());
        Ok(Started { rows: batch.rows, training, updates, gathered, denominators })
    }

    /// Waits for the step that was started and adds its losses and metrics to the tally; returns the
    /// batch's loss.
    pub(crate) fn finish(&mut self, started: Started, tally: &mut Tally) -> Result<f64> {
        if started.rows == 0 {
            return Ok(0.0);
        }
        lock(&self.executor).finish(&mut self.fetched)?;
        self.steps += u64::from(started.training);
        let counts = !started.training || self.take_scale();
        if counts {
            self.gathered = started.gathered.unwrap_or(self.gathered);
        }
        let loss = tally.add(self, started.rows, &started.denominators);
        if started.updates && counts {
            self.updates += 1;
            if let Some(id) = self.constrain {
                lock(&self.executor).run(id, &Batch::default(), &mut vec![])?;
            }
        }
        Ok(loss)
    }

    /// Takes note of the loss scale behind a training step, which is fetched last; whether the step
    /// counts.
    pub(super) fn take_scale(&mut self) -> bool {
        let Some((_, scale)) = &mut self.scaling else { return true };
        let Some(&[new, _, finite]) = self.fetched.last().map(Vec::as_slice) else { return true };
        *scale = new;
        if finite != 0.0 {
            return true;
        }
        self.skipped += 1;
        let step = self.steps;
        tracing::debug!("step {step} is skipped: gradients are not finite; loss scale {new}");
        false
    }

    /// Calls with a program and the feeds of a batch that was checked; returns what each loss sum is divided
    /// by.
    fn with_feeds(
        &mut self,
        kind: StepKind,
        batch: &HostBatch,
        call: impl FnOnce(&mut dyn Executor, ProgramId, &[FeedData<'_>]) -> Result<(), ExecError>,
    ) -> Result<Vec<f64>> {
        let id = self.ensure(kind, batch.rows)?;
        let denominators = self.denominators(batch)?;
        let rows = self.held_rows(batch)?;
        self.scales.clear();
        let invert = |d: &f64| if *d == 0.0 { 0.0 } else { (1.0 / d) as f32 };
        self.scales.extend(denominators.iter().map(invert));
        let mut feeds: Vec<FeedData<'_>> = Vec::with_capacity(batch.inputs.len() + 4);
        feeds.extend(batch.inputs.iter().chain(&batch.targets).map(|t| feed(t, &rows)));
        feeds.push(FeedData::F32(&batch.sample_weight[rows]));
        feeds.extend(self.scales.chunks(1).map(FeedData::F32));
        let done = call(&mut **lock(&self.executor), id, &feeds);
        done.map_err(|e| self.explain(e, kind, batch.rows))?;
        Ok(denominators)
    }

    /// The gradient of the loss on a batch by every weight trained, with the weights' names.
    pub(crate) fn gradients(&mut self, batch: &HostBatch) -> Result<Vec<(String, Tensor)>> {
        let (seed, step) = (self.seed, self.steps);
        self.check(batch, true)?;
        self.with_feeds(StepKind::Gradients, batch, |executor, id, feeds| {
            executor.start(id, &Batch { rows: batch.rows, feeds, seed, step, ..Batch::default() })
        })?;
        lock(&self.executor).finish(&mut self.fetched)?;
        let fetches = self.programs[StepKind::Gradients as usize].iter().flat_map(|s| &s.fetches);
        let tensor = |(plan, values): (&FetchPlan, &Vec<f32>)| {
            Ok((plan.name.clone(), Tensor::new(plan.ty.dims.clone(), values.clone())?))
        };
        fetches.zip(&self.fetched).map(tensor).collect()
    }

    /// This batch's part in an update made of several, and what is gathered once it has run.
    fn gather(&self, gather: Gather, rows: usize) -> (Accumulate, (u64, f64)) {
        let (count, sum) = self.gathered;
        let weight = match (gather.by_rows, count) {
            (true, _) => rows as f64,
            (false, 0) => 1.0,
            // As much as each before it: runs of earlier versions counted rows.
            (false, _) => sum / count as f64,
        };
        let (count, sum) = (count + 1, sum + weight);
        let apply = count >= gather.every || gather.last;
        let part = Accumulate {
            first: count == 1,
            weight: weight as f32,
            apply: apply.then(|| if sum > 0.0 { (1.0 / sum) as f32 } else { 0.0 }),
        };
        (part, if apply { (0, 0.0) } else { (count, sum) })
    }

    /// Forgets gradients gathered towards an update that will not come.
    pub(crate) fn forget_gathered(&mut self) {
        self.gathered = (0, 0.0);
    }

    /// Runs the model on a batch; one vector per output.
    pub(crate) fn predict(&mut self, batch: &HostBatch) -> Result<&[Vec<f32>]> {
        self.check(batch, false)?;
        let id = self.ensure(StepKind::Predict, batch.rows)?;
        let held = self.held_rows(batch)?;
        let feeds: Vec<FeedData<'_>> = batch.inputs.iter().map(|t| feed(t, &held)).collect();
        let (rows, feeds, seed) = (batch.rows, &feeds[..], self.seed);
        let step = Batch { rows, feeds, seed, ..Batch::default() };
        let done = lock(&self.executor).run(id, &step, &mut self.fetched);
        done.map_err(|e| self.explain(e, StepKind::Predict, rows))?;
        Ok(&self.fetched)
    }

    /// What each output's weighted loss sum is divided by.
    fn denominators(&self, batch: &HostBatch) -> Result<Vec<f64>> {
        let weighted = Reduction::MeanWithSampleWeight;
        let total = match self.losses.iter().any(|loss| loss.reduction() == weighted) {
            true => self.total_weight(batch)?,
            false => 0.0,
        };
        Ok(self.losses.iter().map(|loss| denominator(&**loss, batch.rows, || total)).collect())
    }

    /// The weights of all samples of a batch, added up in their order.
    fn total_weight(&self, batch: &HostBatch) -> Result<f64> {
        let sum = |weights: &mut dyn Iterator<Item = f32>| weights.map(f64::from).sum();
        let held = &batch.sample_weight[..batch.held()];
        let Some(cluster) = self.cluster.as_ref().filter(|_| batch.own.is_some()) else {
            return Ok(sum(&mut held.iter().copied()));
        };
        let mine: Vec<u8> = held.iter().flat_map(|w| w.to_le_bytes()).collect();
        let all = all_gather(&*cluster.peers, &mine).map_err(peer_lost)?.concat();
        let (weights, _) = all.as_chunks::<4>();
        Ok(sum(&mut weights.iter().map(|w| f32::from_le_bytes(*w))))
    }
}

/// A step under way.
#[derive(Debug, Default)]
pub(crate) struct Started {
    rows: usize,
    training: bool,
    /// Whether it updates the weights.
    updates: bool,
    gathered: Option<(u64, f64)>,
    denominators: Vec<f64>,
}

/// Gradient accumulation as `fit` asks for it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Gather {
    /// Batches that make an update.
    pub every: u64,
    /// Whether this is the last batch of the epoch, which updates with what there is.
    pub last: bool,
    /// Whether batches count by their rows, as `fit` has them; else each counts as one, as Keras'
    /// optimizers have them.
    pub by_rows: bool,
}

/// What a loss' weighted sum over so many samples is divided by, given the sum of their weights.
pub(super) fn denominator(loss: &dyn Loss, rows: usize, total: impl Fn() -> f64) -> f64 {
    match loss.reduction() {
        Reduction::SumOverBatchSize => rows as f64,
        Reduction::Sum => 1.0,
        Reduction::MeanWithSampleWeight => total(),
    }
}

/// Some rows of a tensor.
pub(super) fn feed<'a>(t: &'a Tensor, rows: &Range<usize>) -> FeedData<'a> {
    let part = rows.start * t.row_len()..rows.end * t.row_len();
    match t.data() {
        Data::F32(v) => FeedData::F32(&v[part]),
        Data::I32(v) => FeedData::I32(&v[part]),
    }
}
