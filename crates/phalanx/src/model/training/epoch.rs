//! An epoch: batch by batch, or on samples that are resident on the devices.

use super::{DataCursor, OnNan, TrainLoop};
use crate::data::HostBatch;
use crate::error::{Error, Result};
use crate::model::Logs;
use crate::model::multi_step::StepGroup;
use crate::model::run_state::Position;
use crate::model::session::{Accumulation, BatchOrigin, ResidentTable, StepKind};
use crate::model::source::TRAINING;
use phalanx_distributed::warnings::warning;
use std::time::Instant;

/// The batch of the next step.
#[derive(Default)]
struct Ahead {
    batch: HostBatch,
    /// Whether there is one, and where in the data it ends; `None` until it was fetched.
    fetched: Option<(bool, Position)>,
    /// Whether it was handed in.
    staged: bool,
}

impl TrainLoop<'_> {
    /// Trains an epoch batch by batch. The next batch is fetched while a step is in flight.
    pub(super) fn train_epoch(
        &mut self,
        cursor: &mut DataCursor<'_>,
        batch: &mut HostBatch,
    ) -> Result<()> {
        let none = Logs::default();
        let mut ahead = Ahead::default();
        while self.plan.requested_steps.is_none_or(|n| self.at.batch < n) && !self.stop {
            let staged = ahead.fetched.is_some() && ahead.staged;
            let more = match ahead.fetched.take() {
                Some((more, at)) => {
                    std::mem::swap(batch, &mut ahead.batch);
                    (self.at.pass, self.at.taken) = (at.pass, at.taken);
                    more
                }
                None => {
                    let began = Instant::now();
                    let more =
                        cursor.next(batch, &mut self.at, self.plan.requested_steps.is_some())?;
                    self.history.add_input_wait(began.elapsed().as_secs_f64());
                    more
                }
            };
            if !more {
                break;
            }
            self.call(&none, |c, v| c.on_batch_begin(v))?;
            self.session.workers.set_stop_flag(self.interrupt.is_requested());
            let last = self.plan.flush && self.plan.steps.is_some_and(|n| self.at.batch + 1 == n);
            let by_rows = self.plan.flush;
            let accumulation =
                self.plan.accumulate.map(|every| Accumulation { every, last, by_rows });
            self.session.checks.origin = BatchOrigin::Data(TRAINING, self.at.taken);
            let loss = match self.nan.policy {
                OnNan::Skip => self.step_or_undo(batch, accumulation)?,
                OnNan::Raise | OnNan::Stop | OnNan::Warn => {
                    let started =
                        self.session.start(StepKind::Train, batch, accumulation, staged)?;
                    self.fetch_ahead(cursor, &mut ahead)?;
                    self.session.finish(started, &mut self.tally)?
                }
            };
            self.at.batch += 1;
            self.at.rows += batch.rows;
            self.after_steps(&[loss])?;
        }
        if self.at.batch == 0 && !self.stop {
            return Err(Error::argument("fit", "data", "at least one batch", "an empty dataset"));
        }
        Ok(())
    }

    /// Makes the samples resident on the devices, if the devices can and an epoch is one pass over them.
    pub(super) fn make_resident(&mut self) -> Result<Option<ResidentTable>> {
        let steps_alone = self.plan.requested_steps.is_none() && self.plan.accumulate.is_none();
        if !steps_alone || self.nan.policy == OnNan::Skip {
            return Ok(None);
        }
        if let Some(validation) = self.data.validation {
            // Programs get memory first; samples take what is left.
            self.session.preload(StepKind::Test, validation)?;
        }
        self.session.make_resident(StepKind::Train, self.data.training)
    }

    /// Trains an epoch on resident samples. Steps are launched together unless a callback wants every
    /// batch.
    pub(super) fn train_epoch_resident(&mut self, table: &ResidentTable) -> Result<()> {
        let Some(data) = self.data.training.in_memory() else { return Ok(()) };
        let mut picks = data.index_batches(self.session.state.seed, self.at.pass, self.at.taken)?;
        let (mut now, mut next) = (StepGroup::default(), StepGroup::default());
        now.fill(&mut next, &mut *picks, self.steps_per_launch(table))?;
        while !now.batches().is_empty() && !self.stop {
            if self.wants_batch_events() {
                self.call(&Logs::default(), |c, v| c.on_batch_begin(v))?;
            }
            let started = self.session.start_steps(StepKind::Train, table, now.batches())?;
            let began = Instant::now();
            next.fill(&mut now, &mut *picks, self.steps_per_launch(table))?;
            if !self.session.in_flight() {
                self.history.add_input_wait(began.elapsed().as_secs_f64());
            }
            let losses = self.session.finish_steps(started, &mut self.tally)?;
            self.at.batch += losses.len();
            self.at.taken += losses.len();
            self.at.rows += now.rows();
            self.after_steps(&losses)?;
            std::mem::swap(&mut now, &mut next);
        }
        Ok(())
    }

    /// How many steps to launch together.
    fn steps_per_launch(&self, table: &ResidentTable) -> usize {
        if self.wants_batch_events() { 1 } else { self.session.steps_per_launch(table) }
    }

    /// Whether a callback wants every batch.
    fn wants_batch_events(&self) -> bool {
        self.callbacks.iter().any(|c| c.wants_batch_events())
    }

    /// Shows the last of some steps to callbacks and the progress bar, given the loss of each.
    fn after_steps(&mut self, losses: &[f64]) -> Result<()> {
        let logs = self.session.objective.logs(StepKind::Train, &self.tally);
        let requesting = self.call(&logs, |c, v| c.on_batch_end(v))?;
        let broken = losses.iter().position(|loss| !loss.is_finite());
        if let Some(at) = broken.filter(|_| !self.stop) {
            let step = self.session.state.steps - (losses.len() - 1 - at) as u64;
            match self.nan.policy {
                OnNan::Raise => return Err(self.not_finite(losses[at], step)?),
                OnNan::Warn => {
                    if self.nan.warn_now() {
                        warning!("{}", self.not_finite(losses[at], step)?);
                    }
                }
                OnNan::Stop | OnNan::Skip => self.stop = true,
            }
        }
        self.progress.step(self.at.batch, &logs);
        if self.stop_requested() {
            return self.interrupted();
        }
        self.save_run(&requesting)
    }

    /// Fetches the next batch of the epoch while a step is in flight.
    fn fetch_ahead(&mut self, cursor: &mut DataCursor<'_>, ahead: &mut Ahead) -> Result<()> {
        if self.plan.requested_steps.is_some_and(|n| self.at.batch + 1 >= n) {
            return Ok(());
        }
        let (began, mut at) = (Instant::now(), self.at);
        let more = cursor.next(&mut ahead.batch, &mut at, self.plan.requested_steps.is_some())?;
        if !self.session.in_flight() {
            self.history.add_input_wait(began.elapsed().as_secs_f64());
        }
        if more {
            self.session.checks.origin = BatchOrigin::Data(TRAINING, at.taken);
            ahead.staged = self.session.stage(StepKind::Train, &ahead.batch)?;
        }
        ahead.fetched = Some((more, at));
        Ok(())
    }

    fn step(&mut self, batch: &HostBatch, accumulation: Option<Accumulation>) -> Result<f64> {
        self.session.run(StepKind::Train, batch, accumulation, &mut self.tally)
    }

    /// A step that leaves no trace where it would leave numbers that are none.
    fn step_or_undo(
        &mut self,
        batch: &HostBatch,
        accumulation: Option<Accumulation>,
    ) -> Result<f64> {
        let (counters, tensors) = self.session.state()?;
        let tally = self.tally.clone();
        let loss = self.step(batch, accumulation)?;
        if loss.is_finite() && self.session.weights.is_finite() {
            self.nan.step_was_finite();
            return Ok(loss);
        }
        if !self.nan.undo() {
            return Err(self.not_finite(loss, self.session.state.steps)?);
        }
        let step = self.session.state.steps;
        warning!("step {step} was undone: its loss is {loss}, or its weights are not finite");
        self.session.set_state(&counters, &tensors, self.data.training.batch_size())?;
        // The step still counts: the next one draws other random numbers.
        self.session.state.steps = step;
        self.tally = tally;
        Ok(0.0)
    }
}
