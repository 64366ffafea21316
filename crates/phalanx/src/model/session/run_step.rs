//! One step: a batch goes in, runs, and its losses and metrics come out.

use super::objective::inverted;
use super::shapes::BatchShape;
use super::{Accumulation, Session, ShapedStep, StepKind, Tally};
use crate::data::HostBatch;
use crate::error::{Error, Result};
use crate::layer::{is_integer_check, lock};
use crate::model::{Logs, steps};
use phalanx_exec::{Batch, ExecError, Executor, FeedData};
use phalanx_graph::program::FetchPlan;
use phalanx_graph::{Data, ParamId, Program, Tensor, Type};
use std::ops::Range;
use std::sync::Arc;

/// A step in flight.
#[derive(Debug, Default)]
pub(crate) struct StepInFlight {
    rows: usize,
    /// The step, unless the batch has no rows.
    step: Option<ShapedStep>,
    training: bool,
    /// Whether it updates the weights.
    updates: bool,
    /// The batches accumulated after it, and their weight, if gradients are accumulated.
    accumulated: Option<(u64, f64)>,
    /// What each loss sum is divided by.
    divisors: Vec<f64>,
}

impl Session {
    /// Runs one batch and adds its losses and metrics to the tally. Returns the batch's loss.
    pub(crate) fn run(
        &mut self,
        kind: StepKind,
        batch: &HostBatch,
        accumulation: Option<Accumulation>,
        tally: &mut Tally,
    ) -> Result<f64> {
        let started = self.start(kind, batch, accumulation, false)?;
        self.finish(started, tally)
    }

    /// Runs one batch; returns its losses and metrics and adds them to the running ones.
    pub(crate) fn run_alone(
        &mut self,
        kind: StepKind,
        batch: &HostBatch,
        accumulation: Option<Accumulation>,
    ) -> Result<Logs> {
        let mut tally = self.objective.tally(kind);
        self.run(kind, batch, accumulation, &mut tally)?;
        self.results.running.merge(&tally);
        Ok(self.objective.logs(kind, &tally))
    }

    /// Hands in the batch of the next step while another step may be in flight. Returns false if its program is not loaded
    /// yet, which has to wait for the end of that step.
    pub(crate) fn stage(&mut self, kind: StepKind, batch: &HostBatch) -> Result<bool> {
        if batch.rows == 0 {
            return Ok(true);
        }
        // The numbers of a custom step's updates are fed, and known only when the step before has ended.
        if self.objective.custom.is_some() {
            return Ok(false);
        }
        let weights = self.checks.weight_sizes(&batch.output_weights);
        let Some(shape) = self.programs.known_shape_of(batch, &weights)? else { return Ok(false) };
        let step = ShapedStep { kind, shape };
        let Some(id) = self.programs.loaded(step, batch.rows) else { return Ok(false) };
        self.checks.check(batch, self.programs.shapes.get(shape), true)?;
        if self.weights.update.is_some() {
            // The numbers of its update depend on the step in flight.
            return Ok(false);
        }
        self.with_feeds(step, batch, &[], |executor, feeds| {
            let batch = Batch { rows: batch.rows, feeds, ..Batch::default() };
            executor.staging().map_or(Ok(()), |staging| staging.stage(id, &batch))
        })?;
        Ok(true)
    }

    /// The shape of a batch. A new one is added, for which no step may be in flight.
    fn shape_of(&mut self, batch: &HostBatch) -> Result<usize> {
        let weights = self.checks.weight_sizes(&batch.output_weights);
        self.programs.shape_of(&self.objective, batch, &weights)
    }

    /// Whether the step that was started is still in flight.
    pub(crate) fn in_flight(&self) -> bool {
        lock(&self.executor).in_flight()
    }

    /// Starts a step. `staged` says that [`stage`](Self::stage) was called with this batch.
    pub(crate) fn start(
        &mut self,
        kind: StepKind,
        batch: &HostBatch,
        accumulation: Option<Accumulation>,
        staged: bool,
    ) -> Result<StepInFlight> {
        if batch.rows == 0 {
            // Nothing to learn from and nothing to count.
            return Ok(StepInFlight::default());
        }
        let training = kind == StepKind::Train;
        let accumulation = accumulation.filter(|_| training);
        let (accumulate, accumulated) =
            accumulation.map(|how| self.state.accumulate(how, batch.rows)).unzip();
        if training {
            self.objective.check_learning_rate(&self.state, 0)?;
        }
        let optimizer = &*self.objective.optimizer;
        let (mut scalars, mut numbers) = (vec![], vec![]);
        match training {
            true if self.weights.update.is_some() => {
                numbers = self.state.numbers(optimizer, accumulate, 0);
            }
            true => scalars = self.state.scalars(optimizer, 0),
            false => {}
        }
        let (seed, step) = (self.state.seed, self.state.steps);
        let shaped = ShapedStep { kind, shape: self.shape_of(batch)? };
        if !staged {
            self.checks.check(batch, self.programs.shapes.get(shaped.shape), true)?;
        }
        let id = self.ensure_loaded(shaped, batch.rows)?;
        self.weights.own_states();
        let of_executor = self.weights.update.is_none();
        let divisors = self.with_feeds(shaped, batch, &numbers, |executor, feeds| {
            let (rows, scalars) = (batch.rows, &scalars[..]);
            let (accumulate, staged) = (accumulate.filter(|_| of_executor), staged && of_executor);
            let step = Batch { rows, feeds, seed, step, scalars, accumulate, staged };
            executor.start(id, &step)
        })?;
        let updates = training && accumulate.is_none_or(|a| a.apply.is_some());
        let (rows, step) = (batch.rows, Some(shaped));
        Ok(StepInFlight { rows, step, training, updates, accumulated, divisors })
    }

    /// Waits for the step that was started and adds its losses and metrics to the tally. Returns the
    /// batch's loss.
    pub(crate) fn finish(&mut self, started: StepInFlight, tally: &mut Tally) -> Result<f64> {
        if started.rows == 0 {
            return Ok(0.0);
        }
        lock(&self.executor).finish(&mut self.results.fetched)?;
        if let Some(step) = started.step {
            self.programs.check_integers(step, &self.results.fetched)?;
        }
        let scale = self.results.fetched.last().map(Vec::as_slice);
        let counts = !started.training || self.state.advance(scale);
        if started.training {
            let fetched = &self.results.fetched;
            self.objective.advance_optimizers(&mut self.state, fetched);
        }
        if let Some(accumulated) = started.accumulated.filter(|_| counts) {
            self.state.set_accumulated(accumulated);
        }
        let kind = started.step.map_or(StepKind::Train, |step| step.kind);
        let weights = self.objective.loss_weights(kind);
        let loss = tally.add(&self.results.fetched, weights, started.rows, &started.divisors);
        if started.updates && counts {
            self.state.updates += 1;
            if let Some(id) = self.programs.constraints {
                lock(&self.executor).run(id, &Batch::default(), &mut vec![])?;
            }
        }
        Ok(loss)
    }

    /// Calls `call` with a program and the feeds of a batch that was checked, followed by `numbers`. Returns what each
    /// loss sum is divided by.
    fn with_feeds(
        &self,
        step: ShapedStep,
        batch: &HostBatch,
        numbers: &[f32],
        call: impl FnOnce(&mut dyn Executor, &[FeedData<'_>]) -> Result<(), ExecError>,
    ) -> Result<Vec<f64>> {
        let constants = self.programs.shapes.get(step.shape).steps.constants(step.kind);
        let divisors = self.divisors(step.kind, batch)?;
        let rows = self.local_rows(batch)?;
        let mut scales = inverted(&divisors);
        let mut scalars = vec![];
        let is_custom = self.objective.custom.is_some();
        if is_custom {
            scales = inverted(&[batch.rows as f64]);
            if step.kind != StepKind::Test {
                scalars = self.objective.update_numbers(&self.state);
            }
        }
        let mut feeds: Vec<FeedData<'_>> =
            Vec::with_capacity(batch.inputs.len() + constants.len() + 4);
        feeds.extend(batch.inputs.iter().map(|t| feed(t, &rows)));
        let constants = constants.iter().map(|values| FeedData::F32(values));
        if !is_custom {
            feeds.extend(constants.clone());
        }
        feeds.extend(self.checks.fed(&batch.targets).into_iter().map(|t| feed(t, &rows)));
        match &batch.output_weights[..] {
            [] => feeds.push(FeedData::F32(&batch.sample_weight[rows])),
            weights => feeds.extend(self.checks.fed(weights).into_iter().map(|t| feed(t, &rows))),
        }
        feeds.extend(scales.chunks(1).chain(numbers.chunks(1)).map(FeedData::F32));
        feeds.extend(scalars.iter().map(|values| FeedData::F32(values)));
        if is_custom {
            feeds.extend(constants);
        }
        let done = call(&mut **lock(&self.executor), &feeds);
        self.explain(done, step, batch.rows)?;
        Ok(divisors)
    }

    /// The gradient of the loss on a batch by every trained weight, with the weights' names.
    pub(crate) fn gradients(&mut self, batch: &HostBatch) -> Result<Vec<(String, Tensor)>> {
        let (seed, step) = (self.state.seed, self.state.steps);
        let shape = self.shape_of(batch)?;
        self.checks.check(batch, self.programs.shapes.get(shape), true)?;
        let shaped = ShapedStep { kind: StepKind::Gradients, shape };
        let id = self.ensure_loaded(shaped, batch.rows)?;
        self.with_feeds(shaped, batch, &[], |executor, feeds| {
            executor.start(id, &Batch { rows: batch.rows, feeds, seed, step, ..Batch::default() })
        })?;
        lock(&self.executor).finish(&mut self.results.fetched)?;
        self.programs.check_integers(shaped, &self.results.fetched)?;
        let loaded = &self.programs.shapes.get(shape).loaded;
        let fetches = loaded.of(StepKind::Gradients).flat_map(|p| &p.fetches);
        let tensor = |(plan, values): (&FetchPlan, &Vec<f32>)| {
            Ok((plan.name.clone(), Tensor::new(plan.ty.dims.clone(), values.clone())?))
        };
        let all = fetches.zip(&self.results.fetched);
        all.filter(|(plan, _)| !is_integer_check(&plan.name)).map(tensor).collect()
    }

    /// Updates the trained weights with gradients by their names, which must be all of them.
    pub(crate) fn apply_gradients(&mut self, gradients: &[(String, Tensor)]) -> Result<()> {
        let owner = "apply_gradients";
        let optimizer = &self.objective.optimizer;
        let accumulates = optimizer.common().gradient_accumulation_steps.is_some();
        if optimizer.inner().is_some() || accumulates || optimizer.updates_whole_weights() {
            let expected =
                "one that updates each number by itself, without loss scaling and accumulation";
            return Err(Error::argument(owner, "optimizer", expected, optimizer.class_name()));
        }
        let trained = self.weights.trained().to_vec();
        let specs = self.weights.params.clone();
        let name = |param: &ParamId| specs[param.index()].name.as_str();
        if gradients.len() != trained.len() {
            let expected = format!("{}, one for each trainable weight", trained.len());
            return Err(Error::argument(owner, "gradients", expected, gradients.len()));
        }
        let mut values = vec![];
        for param in &trained {
            let found = gradients.iter().find(|(known, _)| known == name(param));
            let dims = &specs[param.index()].dims;
            let found = found.and_then(|(_, t)| t.f32().filter(|_| t.dims() == dims));
            let expected = || format!("'{}' of shape {dims:?}", name(param));
            let missing = || Error::argument(owner, "gradients", expected(), "none such");
            values.push(found.ok_or_else(missing)?);
        }
        let id = match self.programs.apply {
            Some(id) => id,
            None => {
                let step = steps::apply(&specs, &trained, self.objective.optimizer.rule())?;
                let program = Program::compile(step, self.programs.options(1))?;
                let id = lock(&self.executor).load(Arc::new(program))?;
                *self.programs.apply.insert(id)
            }
        };
        let here = !self.workers.shard().rows(1).is_empty();
        let feeds: Vec<FeedData<'_>> =
            values.iter().map(|row| FeedData::F32(if here { row } else { &[] })).collect();
        let scalars = self.state.scalars(&*self.objective.optimizer, 0);
        let (seed, step) = (self.state.seed, self.state.steps);
        let batch =
            Batch { rows: 1, feeds: &feeds, seed, step, scalars: &scalars, ..Batch::default() };
        lock(&self.executor).run(id, &batch, &mut vec![])?;
        self.state.advance(None);
        self.state.updates += 1;
        if let Some(id) = self.programs.constraints {
            lock(&self.executor).run(id, &Batch::default(), &mut vec![])?;
        }
        Ok(())
    }

    /// Runs the model on a batch; returns the type and the values of each output.
    pub(crate) fn predict(&mut self, batch: &HostBatch) -> Result<(&[Type], &[Vec<f32>])> {
        let shape = self.shape_of(batch)?;
        self.checks.check(batch, self.programs.shapes.get(shape), false)?;
        let shaped = ShapedStep { kind: StepKind::Predict, shape };
        let id = self.ensure_loaded(shaped, batch.rows)?;
        self.weights.own_states();
        let local = self.local_rows(batch)?;
        let BatchShape { steps, outputs, .. } = self.programs.shapes.get(shape);
        let inputs = batch.inputs.iter().map(|t| feed(t, &local));
        let constants = steps.constants(StepKind::Predict).iter();
        let feeds: Vec<FeedData<'_>> =
            inputs.chain(constants.map(|values| FeedData::F32(values))).collect();
        let (rows, feeds, seed) = (batch.rows, &feeds[..], self.state.seed);
        let step = Batch { rows, feeds, seed, ..Batch::default() };
        let done = lock(&self.executor).run(id, &step, &mut self.results.fetched);
        self.explain(done, shaped, rows)?;
        self.programs.check_integers(shaped, &self.results.fetched)?;
        Ok((outputs, &self.results.fetched[..outputs.len()]))
    }

    /// What each weighted loss sum is divided by in a step of a kind.
    fn divisors(&self, kind: StepKind, batch: &HostBatch) -> Result<Vec<f64>> {
        let mut totals = vec![];
        if self.objective.divides_by_weight() {
            let rows = batch.local_len();
            let weights = match &batch.output_weights[..] {
                [] => vec![&batch.sample_weight[..rows]],
                weights => self.checks.fed(weights).into_iter().map(|t| of_rows(t, rows)).collect(),
            };
            for weights in weights {
                totals.push(self.total_weight(batch, weights)?);
            }
        }
        Ok(self.objective.divisors(kind, batch.rows, (&totals, batch.weighted)))
    }

    /// The weights of a batch, of which this worker has `local`, added up in their order.
    fn total_weight(&self, batch: &HostBatch, local: &[f32]) -> Result<f64> {
        let sum = |weights: &mut dyn Iterator<Item = f32>| weights.map(f64::from).sum();
        if !self.workers.is_distributed() || batch.local.is_none() {
            return Ok(sum(&mut local.iter().copied()));
        }
        let mine: Vec<u8> = local.iter().flat_map(|w| w.to_le_bytes()).collect();
        let all = self.workers.all_gather(mine)?.concat();
        let (weights, _) = all.as_chunks::<4>();
        Ok(sum(&mut weights.iter().map(|w| f32::from_le_bytes(*w))))
    }

    /// Where this worker's rows are in the tensors of a batch.
    fn local_rows(&self, batch: &HostBatch) -> Result<Range<usize>> {
        let own = self.workers.shard().rows(batch.rows);
        match &batch.local {
            None => Ok(own),
            Some(held) if *held == own => Ok(0..own.len()),
            Some(held) => {
                let owner = format!("model '{}'", self.def.name);
                let (expected, received) = (format!("{own:?}"), format!("{held:?}"));
                Err(Error::argument(owner, "rows of this worker", expected, received))
            }
        }
    }
}

/// The numbers of the first rows of weights.
fn of_rows(weights: &Tensor, rows: usize) -> &[f32] {
    &weights.f32().unwrap_or_default()[..rows * weights.row_len()]
}

/// Some rows of a tensor.
pub(super) fn feed<'a>(t: &'a Tensor, rows: &Range<usize>) -> FeedData<'a> {
    let part = rows.start * t.row_len()..rows.end * t.row_len();
    match t.data() {
        Data::F32(v) => FeedData::F32(&v[part]),
        Data::I32(v) => FeedData::I32(&v[part]),
    }
}
