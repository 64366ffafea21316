//! An epoch: batch by batch, or on samples that the devices keep.

use super::{OnNan, Training};
use crate::data::{Dataset, Epoch, HostBatch, LocalShard};
use crate::error::{Error, Result};
use crate::model::Logs;
use crate::model::multi_step::StepGroup;
use crate::model::run_state::Position;
use crate::model::session::{Accumulation, BatchOrigin, ResidentTable, Session, StepKind};
use crate::model::source::TRAINING;
use crate::warnings::warning;
use std::time::Instant;

/// Steps undone in a row before the run is given up.
const MOST_SKIPPED: u32 = 100;

/// Hands out batches across the ends of the data.
pub(super) struct Feeder<'a> {
    data: &'a dyn Dataset,
    seed: u64,
    /// A worker's rows of every batch, where there are several.
    share: Option<LocalShard>,
    epoch: Box<dyn Epoch + 'a>,
}

impl<'a> Feeder<'a> {
    pub fn new(data: &'a dyn Dataset, session: &Session, at: &Position) -> Result<Feeder<'a>> {
        let (seed, share) = (session.state.seed, session.worker_shard());
        let epoch = data.epoch_of(seed, at.pass, at.taken, share.as_ref())?;
        Ok(Feeder { data, seed, share, epoch })
    }

    /// The next batch; with `endless`, the data starts again where it ends.
    fn next(&mut self, batch: &mut HostBatch, at: &mut Position, endless: bool) -> Result<bool> {
        let mut there = self.epoch.next(batch)?;
        if !there && endless {
            (at.pass, at.taken) = (at.pass + 1, 0);
            self.epoch = self.data.epoch_of(self.seed, at.pass, 0, self.share.as_ref())?;
            there = self.epoch.next(batch)?;
        }
        at.taken += usize::from(there);
        Ok(there)
    }
}

/// The batch of the step to come.
#[derive(Default)]
struct Ahead {
    batch: HostBatch,
    /// Whether there is one, and where in the data it ends; nothing while nobody has looked.
    looked: Option<(bool, Position)>,
}

impl Training<'_> {
    /// An epoch batch by batch; the next one is fetched while a step is under way.
    pub(super) fn train_epoch(
        &mut self,
        feeder: &mut Feeder<'_>,
        batch: &mut HostBatch,
    ) -> Result<()> {
        let none = Logs::default();
        let mut ahead = Ahead::default();
        while self.asked_steps.is_none_or(|n| self.at.batch < n) && !self.stop {
            let staged = ahead.looked.is_some();
            let more = match ahead.looked.take() {
                Some((more, at)) => {
                    std::mem::swap(batch, &mut ahead.batch);
                    (self.at.pass, self.at.taken) = (at.pass, at.taken);
                    more
                }
                None => {
                    let asked = Instant::now();
                    let more = feeder.next(batch, &mut self.at, self.asked_steps.is_some())?;
                    self.history.waited(asked.elapsed().as_secs_f64());
                    more
                }
            };
            if !more {
                break;
            }
            self.call(&none, |c, v| c.on_batch_begin(v))?;
            self.session.set_stop_flag(self.interrupt.raised());
            let last = self.flush && self.outline.steps.is_some_and(|n| self.at.batch + 1 == n);
            let by_rows = self.flush;
            let accumulation = self.accumulate.map(|every| Accumulation { every, last, by_rows });
            self.session.checks.origin = BatchOrigin::Data(TRAINING, self.at.taken);
            let loss = match self.on_nan {
                OnNan::Skip => self.step_or_undo(batch, accumulation)?,
                OnNan::Raise | OnNan::Stop => {
                    let started =
                        self.session.start(StepKind::Train, batch, accumulation, staged)?;
                    self.look_ahead(feeder, &mut ahead)?;
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

    /// The samples on the devices, where they can be kept there and epochs are whole passes.
    pub(super) fn keep(&mut self) -> Result<Option<ResidentTable>> {
        let steps_alone = self.asked_steps.is_none() && self.accumulate.is_none();
        if !steps_alone || self.on_nan == OnNan::Skip {
            return Ok(None);
        }
        if let Some(validation) = self.validation {
            // What programs need comes first: samples take what is left.
            self.session.ensure_loaded(StepKind::Test, validation.batch_size())?;
        }
        self.session.make_resident(StepKind::Train, self.data)
    }

    /// An epoch on samples that the devices keep. Steps are started together unless a callback looks
    /// at each of them.
    pub(super) fn train_epoch_kept(&mut self, kept: &ResidentTable) -> Result<()> {
        let Some(data) = self.data.in_memory() else { return Ok(()) };
        let mut picks = data.picks(self.session.state.seed, self.at.pass, self.at.taken)?;
        let (mut now, mut next) = (StepGroup::default(), StepGroup::default());
        now.fill(&mut next, &mut *picks, self.together(kept))?;
        while !now.batches().is_empty() && !self.stop {
            if self.watched() {
                self.call(&Logs::default(), |c, v| c.on_batch_begin(v))?;
            }
            let started = self.session.start_steps(StepKind::Train, kept, now.batches())?;
            let asked = Instant::now();
            next.fill(&mut now, &mut *picks, self.together(kept))?;
            if !self.session.in_flight() {
                self.history.waited(asked.elapsed().as_secs_f64());
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

    /// How many steps to start together.
    fn together(&self, kept: &ResidentTable) -> usize {
        if self.watched() { 1 } else { self.session.steps_per_launch(kept) }
    }

    /// Whether a callback looks at every batch.
    fn watched(&self) -> bool {
        self.callbacks.iter().any(|c| c.sees_batches())
    }

    /// Lets everybody see the last of some steps, given the loss of each.
    fn after_steps(&mut self, losses: &[f64]) -> Result<()> {
        let logs = self.session.objective.logs(&self.tally);
        let asking = match self.watched() {
            true => self.call(&logs, |c, v| c.on_batch_end(v))?,
            false => vec![],
        };
        let broken = losses.iter().position(|loss| !loss.is_finite());
        if let Some(at) = broken.filter(|_| !self.stop) {
            if self.on_nan == OnNan::Raise {
                let step = self.session.state.steps - (losses.len() - 1 - at) as u64;
                return Err(self.not_finite(losses[at], step)?);
            }
            self.stop = true;
        }
        self.progress.step(self.at.batch, &logs);
        if self.asked_to_end() {
            return self.interrupted();
        }
        self.back_up(&asking)
    }

    /// Gets the next batch of the epoch while a step is under way.
    fn look_ahead(&mut self, feeder: &mut Feeder<'_>, ahead: &mut Ahead) -> Result<()> {
        if self.asked_steps.is_some_and(|n| self.at.batch + 1 >= n) {
            return Ok(());
        }
        let (asked, mut at) = (Instant::now(), self.at);
        let more = feeder.next(&mut ahead.batch, &mut at, self.asked_steps.is_some())?;
        if !self.session.in_flight() {
            self.history.waited(asked.elapsed().as_secs_f64());
        }
        if more {
            self.session.checks.origin = BatchOrigin::Data(TRAINING, at.taken);
            self.session.stage(StepKind::Train, &ahead.batch)?;
        }
        ahead.looked = Some((more, at));
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
            self.skipped = 0;
            return Ok(loss);
        }
        self.skipped += 1;
        if self.skipped > MOST_SKIPPED {
            return Err(self.not_finite(loss, self.session.state.steps)?);
        }
        let step = self.session.state.steps;
        warning!("step {step} is undone: its loss is {loss}, or its weights no numbers");
        self.session.set_state(&counters, &tensors, self.data.batch_size())?;
        // The step was made all the same: the next one draws other random numbers.
        self.session.state.steps = step;
        self.tally = tally;
        Ok(0.0)
    }
}
