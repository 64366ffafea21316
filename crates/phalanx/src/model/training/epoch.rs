//! An epoch: batch by batch, or on samples that the devices keep.

use super::{OnNan, Training};
use crate::data::{Dataset, Epoch, HostBatch, LocalShard};
use crate::error::{Error, Result};
use crate::model::Logs;
use crate::model::engine::{Engine, Gather, Kept, Origin, StepKind};
use crate::model::run_state::Position;
use crate::model::source::TRAINING;
use crate::model::turns::Group;
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
    pub fn new(data: &'a dyn Dataset, engine: &Engine, at: &Position) -> Result<Feeder<'a>> {
        let (seed, share) = (engine.seed, engine.worker_share());
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
            self.engine.raise(self.interrupt.raised());
            let last = self.flush && self.outline.steps.is_some_and(|n| self.at.batch + 1 == n);
            let by_rows = self.flush;
            let gather = self.gather.map(|every| Gather { every, last, by_rows });
            self.engine.origin = Origin::Data(TRAINING, self.at.taken);
            let loss = match self.on_nan {
                OnNan::Skip => self.step_or_undo(batch, gather)?,
                OnNan::Raise | OnNan::Stop => {
                    let rate = self.engine.learning_rate();
                    let started =
                        self.engine.start(StepKind::Train, batch, rate, gather, staged)?;
                    self.look_ahead(feeder, &mut ahead)?;
                    self.engine.finish(started, &mut self.tally)?
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
    pub(super) fn keep(&mut self) -> Result<Option<Kept>> {
        let steps_alone = self.asked_steps.is_none() && self.gather.is_none();
        if !steps_alone || self.on_nan == OnNan::Skip {
            return Ok(None);
        }
        if let Some(validation) = self.validation {
            // What programs need comes first: samples take what is left.
            self.engine.prepare(StepKind::Test, validation.batch_size())?;
        }
        self.engine.keep(StepKind::Train, self.data)
    }

    /// An epoch on samples that the devices keep. Steps are started together unless a callback looks
    /// at each of them.
    pub(super) fn train_epoch_kept(&mut self, kept: &Kept) -> Result<()> {
        let Some(data) = self.data.in_memory() else { return Ok(()) };
        let mut picks = data.picks(self.engine.seed, self.at.pass, self.at.taken)?;
        let (mut now, mut next) = (Group::default(), Group::default());
        now.fill(&mut next, &mut *picks, self.together(kept))?;
        while !now.batches().is_empty() && !self.stop {
            if self.watched() {
                self.call(&Logs::default(), |c, v| c.on_batch_begin(v))?;
            }
            let started = self.engine.start_turns(StepKind::Train, kept, now.batches())?;
            let asked = Instant::now();
            next.fill(&mut now, &mut *picks, self.together(kept))?;
            if !self.engine.busy() {
                self.history.waited(asked.elapsed().as_secs_f64());
            }
            let losses = self.engine.finish_turns(started, &mut self.tally)?;
            self.at.batch += losses.len();
            self.at.taken += losses.len();
            self.at.rows += now.rows();
            self.after_steps(&losses)?;
            std::mem::swap(&mut now, &mut next);
        }
        Ok(())
    }

    /// How many steps to start together.
    fn together(&self, kept: &Kept) -> usize {
        if self.watched() { 1 } else { self.engine.together(kept) }
    }

    /// Whether a callback looks at every batch.
    fn watched(&self) -> bool {
        self.callbacks.iter().any(|c| c.wants_batch_events())
    }

    /// Lets everybody see the last of some steps, given the loss of each.
    fn after_steps(&mut self, losses: &[f64]) -> Result<()> {
        let logs = self.engine.logs(&self.tally);
        let asking = match self.watched() {
            true => self.call(&logs, |c, v| c.on_batch_end(v))?,
            false => vec![],
        };
        let broken = losses.iter().position(|loss| !loss.is_finite());
        if let Some(at) = broken.filter(|_| !self.stop) {
            if self.on_nan == OnNan::Raise {
                let step = self.engine.steps - (losses.len() - 1 - at) as u64;
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
        if !self.engine.busy() {
            self.history.waited(asked.elapsed().as_secs_f64());
        }
        if more {
            self.engine.origin = Origin::Data(TRAINING, at.taken);
            self.engine.stage(StepKind::Train, &ahead.batch)?;
        }
        ahead.looked = Some((more, at));
        Ok(())
    }

    fn step(&mut self, batch: &HostBatch, gather: Option<Gather>) -> Result<f64> {
        let rate = self.engine.learning_rate();
        self.engine.run(StepKind::Train, batch, rate, gather, &mut self.tally)
    }

    /// A step that leaves no trace where it would leave numbers that are none.
    fn step_or_undo(&mut self, batch: &HostBatch, gather: Option<Gather>) -> Result<f64> {
        let (counters, tensors) = self.engine.state()?;
        let tally = self.tally.clone();
        let loss = self.step(batch, gather)?;
        if loss.is_finite() && self.engine.is_finite() {
            self.skipped = 0;
            return Ok(loss);
        }
        self.skipped += 1;
        if self.skipped > MOST_SKIPPED {
            return Err(self.not_finite(loss, self.engine.steps)?);
        }
        let step = self.engine.steps;
        warning!("step {step} is undone: its loss is {loss}, or its weights no numbers");
        self.engine.set_state(&counters, &tensors, self.data.batch_size())?;
        // The step was made all the same: the next one draws other random numbers.
        self.engine.steps = step;
        self.tally = tally;
        Ok(0.0)
    }
}
