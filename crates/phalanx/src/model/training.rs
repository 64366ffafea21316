//! The training loop: epochs, callbacks, validation, and the state between two steps.

mod epoch;

use self::epoch::Feeder;
use super::Logs;
use super::evaluate::evaluate;
use super::fit::Fit;
use super::run_config::{self, RunConfig};
use super::run_state::{Header, Position, RunState};
use super::session::{Session, StepKind, Tally};
use super::source::VALIDATION;
use crate::callbacks::{Action, Callback, CallbackState, View, WeightSource};
use crate::data::{Dataset, HostBatch, shown_digest};
use crate::error::{Error, Result};
use crate::history::History;
use crate::progress::Progress;
use crate::saving;
use crate::warnings::warning;
use std::cell::OnceCell;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

/// Asks a run to end after the step it is at: raise it from a signal handler or another thread.
///
/// What runs with it ends with [`Error::Interrupted`], after `BackupAndRestore` has saved the run.
#[derive(Clone, Debug, Default)]
pub struct Interrupt(Arc<AtomicBool>);

impl Interrupt {
    /// One that is not raised.
    pub fn new() -> Interrupt {
        Interrupt::default()
    }

    /// The flag itself, for signal handlers.
    pub fn flag(&self) -> Arc<AtomicBool> {
        self.0.clone()
    }

    /// Asks for the end.
    pub fn raise(&self) {
        self.0.store(true, Ordering::Relaxed);
    }

    /// Whether it was raised.
    pub fn raised(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }
}

/// What `fit` does about a loss or weights that are no finite numbers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum OnNan {
    /// End the run with an error that names the step.
    #[default]
    Raise,
    /// End the run as a callback would.
    Stop,
    /// Undo the step, warn, and go on with the next batch. Every step then keeps a copy of the
    /// weights, and many such steps in a row end the run all the same.
    Skip,
}

impl WeightSource for Session {
    fn names(&self) -> Vec<String> {
        self.weights.names()
    }

    fn get(&self, name: &str) -> Option<Vec<f32>> {
        self.weights.read(name)
    }

    fn is_finite(&self) -> bool {
        self.weights.is_finite()
    }

    fn training(&self) -> Option<saving::Training> {
        self.objective.is_compiled().then(|| Session::training(self))
    }
}

type Hook = fn(&mut dyn Callback, &View<'_>) -> Result<Action>;

/// What is known of a run before its first step.
struct Outline {
    epochs: usize,
    /// Batches of an epoch, as far as they are known.
    steps: Option<usize>,
    /// The names of an epoch's losses and metrics, those of the validation too.
    metrics: Vec<String>,
}

/// A run under way.
pub(super) struct Training<'a> {
    session: &'a mut Session,
    data: &'a dyn Dataset,
    validation: Option<&'a dyn Dataset>,
    /// Fingerprints of both, once they were needed.
    fingerprints: OnceCell<[Option<String>; 2]>,
    callbacks: Vec<Box<dyn Callback>>,
    /// Batches of an epoch as the user wants them.
    asked_steps: Option<usize>,
    outline: Outline,
    /// Gradient accumulation: batches of an update, and whether the epoch's last makes one anyway.
    accumulate: Option<u64>,
    flush: bool,
    interrupt: Interrupt,
    on_nan: OnNan,
    /// Steps undone in a row.
    skipped: u32,
    progress: Progress,
    at: Position,
    tally: Tally,
    history: History,
    /// When the epoch began, less what it took before the run was interrupted.
    began: Instant,
    earlier: f64,
    stop: bool,
}

impl<'a> Training<'a> {
    pub(super) fn new(
        session: &'a mut Session,
        data: &'a dyn Dataset,
        validation: Option<&'a dyn Dataset>,
        fit: Fit,
    ) -> Result<Training<'a>> {
        let steps = fit.steps_per_epoch.or(data.batches());
        if steps == Some(0) || data.is_empty() {
            return Err(Error::argument("fit", "data", "at least one batch", "an empty dataset"));
        }
        if fit.accumulate.is_some() {
            session.state.set_accumulated((0, 0.0));
        }
        let epoch = fit.initial_epoch;
        let mut logs = session.objective.logs(&session.objective.tally());
        if validation.is_some() {
            logs.extend(logs.clone().prefixed("val_"));
        }
        let metrics = logs.into_iter().map(|(name, _)| name).collect();
        let (mut callbacks, verbose) = (fit.callbacks, session.workers.verbose(fit.verbose)?);
        callbacks.retain(|c| session.workers.is_chief() || !c.writes());
        Ok(Training {
            accumulate: fit.accumulate.or(session.objective.accumulation_steps()),
            // As in Keras, an optimizer that gathers goes on across epochs; `fit` itself does not.
            flush: fit.accumulate.is_some(),
            tally: session.objective.tally(),
            session,
            data,
            validation,
            fingerprints: OnceCell::new(),
            callbacks,
            outline: Outline { epochs: fit.epochs, steps, metrics },
            asked_steps: fit.steps_per_epoch,
            interrupt: fit.interrupt,
            on_nan: fit.on_nan,
            skipped: 0,
            progress: Progress::stdout(verbose),
            at: Position { epoch, pass: epoch as u64, ..Position::default() },
            history: History::default(),
            began: Instant::now(),
            earlier: 0.0,
            stop: false,
        })
    }

    /// Runs to the end.
    pub(super) fn run(mut self) -> Result<History> {
        let none = Logs::default();
        self.session.weights.take_ownership();
        self.begin()?;
        let before = self.session.state.steps;
        let kept = self.keep()?;
        let mut batch = HostBatch::default();
        let mut open = None;
        // An epoch that was begun is brought to its end, validation and all, even when stopped.
        while self.at.epoch < self.outline.epochs && (self.at.batch > 0 || !self.stop) {
            if self.at.batch == 0 {
                self.call(&none, |c, v| c.on_epoch_begin(v))?;
            }
            self.check_rate()?;
            self.progress.begin_epoch(self.at.epoch, self.outline.epochs, self.outline.steps);
            self.began = Instant::now();
            match &kept {
                Some(kept) => self.train_epoch_kept(kept)?,
                None => {
                    let mut feeder = match open.take() {
                        Some(feeder) => feeder,
                        None => Feeder::new(self.data, self.session, &self.at)?,
                    };
                    self.train_epoch(&mut feeder, &mut batch)?;
                    // With steps asked for, the data goes on where it is.
                    open = self.asked_steps.is_some().then_some(feeder);
                }
            }
            let logs = self.end_epoch()?;
            let asking = self.call(&logs, |c, v| c.on_epoch_end(v))?;
            self.advance();
            self.back_up(&asking)?;
            if self.asked_to_end() && self.at.epoch < self.outline.epochs && !self.stop {
                return self.interrupted();
            }
        }
        // The last update may have broken the weights: no later loss could show it.
        if self.session.state.steps > before && !self.session.weights.is_finite() {
            let error = self.not_finite(f64::NAN, self.session.state.steps)?;
            if self.on_nan == OnNan::Raise && !self.stop {
                return Err(error);
            }
            warning!("{error}");
        }
        self.session.finish_training()?;
        self.at.epoch = self.history.epochs.last().copied().unwrap_or(self.at.epoch);
        self.call(&none, |c, v| c.on_train_end(v))?;
        Ok(self.history)
    }

    /// Takes up an earlier run where a callback has one, and lets every callback begin.
    fn begin(&mut self) -> Result<()> {
        let mut found = None;
        for callback in &mut self.callbacks {
            found = callback.earlier_run()?;
            if found.is_some() {
                break;
            }
        }
        if self.session.worker_shard().is_some() {
            self.session.workers.check_equal(&self.facts())?;
        }
        let found = self.session.workers.broadcast_run(found)?;
        // What the optimizer keeps is there once the step is.
        self.session.ensure_loaded(StepKind::Train, self.data.batch_size())?;
        let Some(state) = found else {
            let asking = self.call(&Logs::default(), |c, v| c.on_train_begin(v))?;
            return self.back_up(&asking);
        };
        let mut states = self.resume(state)?;
        let none = Logs::default();
        for i in 0..self.callbacks.len() {
            let name = self.callbacks[i].name();
            let mine = states.iter().position(|(n, _)| *n == name).map(|at| states.remove(at).1);
            let view = view(self.session, &self.at, &self.outline, &self.history, &none);
            let action = match &mine {
                Some(state) => self.callbacks[i].on_train_resume(&view, state)?,
                None => self.callbacks[i].on_train_begin(&view)?,
            };
            self.act(action)?;
        }
        Ok(())
    }

    /// Goes to where an earlier run was; returns what its callbacks remember.
    fn resume(&mut self, state: RunState) -> Result<Vec<(String, CallbackState)>> {
        let RunState { header, tensors, callbacks, .. } = state;
        let setup = self.setup();
        setup.check(&header.config)?;
        if !self.tally.alike(&header.tally) {
            let expected = "as many losses and metrics as it had";
            return Err(Error::argument(run_config::OWNER, "compile", expected, "others"));
        }
        self.session.state.check(&self.session.def.name, &header.counters)?;
        for change in setup.changes(&header.config) {
            warning!("{change}");
        }
        self.session.set_state(&header.counters, &tensors, setup.batch_size)?;
        (self.at, self.tally, self.history) = (header.position, header.tally, header.history);
        (self.earlier, self.stop) = (header.seconds, header.stopped);
        Ok(callbacks)
    }

    /// Whether this worker, or any of several, was asked to end before the last step was over.
    fn asked_to_end(&self) -> bool {
        self.session.any_worker_stopping(self.interrupt.raised())
    }

    /// The error of a step whose loss is no number, which all workers find at the same step.
    fn not_finite(&mut self, loss: f64, step: u64) -> Result<Error> {
        let finite = self.session.weights.is_finite();
        let saved = self.callbacks.iter_mut().find_map(|callback| callback.newest_saved());
        let saved = self.session.workers.broadcast_path(saved)?;
        let (epoch, suspects) =
            ((self.at.epoch + 1).min(self.outline.epochs), self.session.checks.unchecked_lookups());
        Ok(Error::NotFinite { loss, step, epoch, suspects, finite, saved })
    }

    /// Validates and adds the epoch to the history.
    fn end_epoch(&mut self) -> Result<Logs> {
        let ran = self.began.elapsed().as_secs_f64();
        self.history.ran(ran);
        let mut logs = self.session.objective.logs(&self.tally);
        if let Some(validation) = self.validation {
            let data = (validation, VALIDATION);
            let Some(held) = evaluate(self.session, data, None, &self.interrupt)? else {
                // The epoch's batches are done and stay so; a run continued validates anew.
                return self.interrupted();
            };
            logs.extend(held.prefixed("val_"));
        }
        self.progress.end_epoch(&logs);
        let mut entry = logs.clone();
        entry.push("lr", self.session.learning_rate());
        if let Some(scale) = self.session.state.loss_scale {
            entry.push("loss_scale", f64::from(scale));
        }
        self.history.push(self.at.epoch, &entry, self.earlier + ran, self.at.rows);
        Ok(logs)
    }

    /// The start of the next epoch.
    fn advance(&mut self) {
        self.at.epoch += 1;
        (self.at.batch, self.at.rows, self.earlier) = (0, 0, 0.0);
        if self.asked_steps.is_none() {
            (self.at.pass, self.at.taken) = (self.at.epoch as u64, 0);
        }
        self.tally = self.session.objective.tally();
        self.began = Instant::now();
    }

    fn seconds(&self) -> f64 {
        self.earlier + self.began.elapsed().as_secs_f64()
    }

    /// Lets every callback look, and does what they answer; returns those that want the run's
    /// state.
    fn call(&mut self, logs: &Logs, hook: Hook) -> Result<Vec<usize>> {
        let mut asking = vec![];
        for i in 0..self.callbacks.len() {
            let view = view(self.session, &self.at, &self.outline, &self.history, logs);
            let action = hook(&mut *self.callbacks[i], &view)?;
            if action == Action::BackUp {
                asking.push(i);
            }
            self.act(action)?;
        }
        Ok(asking)
    }

    fn act(&mut self, action: Action) -> Result<()> {
        match action {
            Action::Continue | Action::BackUp => Ok(()),
            Action::Stop => {
                self.stop = true;
                Ok(())
            }
            Action::SetLearningRate(rate) => {
                self.session.state.set_learning_rate(&self.session.def.name, rate)
            }
            Action::RestoreWeights(weights) => self.session.weights.write(&weights),
        }
    }

    /// Hands the run's state to the callbacks that asked for it.
    fn back_up(&mut self, asking: &[usize]) -> Result<()> {
        let Some((last, others)) = asking.split_last() else { return Ok(()) };
        let state = self.state()?;
        for i in others {
            self.callbacks[*i].back_up(state.clone())?;
        }
        self.callbacks[*last].back_up(state)
    }

    /// Fingerprints of the samples and of those to validate on, which take a moment to make.
    fn fingerprints(&self) -> &[Option<String>; 2] {
        let of = |data: Option<&dyn Dataset>| data.and_then(|data| shown_digest(data.digest()));
        self.fingerprints.get_or_init(|| [Some(self.data), self.validation].map(of))
    }

    fn setup(&self) -> RunConfig {
        let [data, validation] = self.fingerprints().clone();
        RunConfig {
            model: self.session.def.name.clone(),
            batch_size: self.data.batch_size(),
            samples: self.data.len(),
            steps: self.outline.steps,
            shuffle: self.data.shuffles(),
            optimizer: self.session.objective.optimizer_options(),
            accumulate: Some(self.accumulate.filter(|_| self.flush).unwrap_or(1)),
            data,
            augmentation: shown_digest(self.data.augmentation_digest()),
            validation,
        }
    }

    /// Fails where callbacks have set other learning rates on other workers.
    fn check_rate(&self) -> Result<()> {
        let rate = self.session.learning_rate().to_string();
        self.session
            .workers
            .check_equal(&[(format!("learning rate of epoch {}", self.at.epoch + 1), rate)])
    }

    /// What must be the same on every worker.
    fn facts(&self) -> Vec<(String, String)> {
        let setup = self.setup();
        let shown = |n: Option<usize>| n.map_or("unknown".into(), |n| n.to_string());
        let unknown = || "unknown".to_string();
        let validation = match self.validation {
            Some(_) => setup.validation.unwrap_or_else(unknown),
            None => "none".into(),
        };
        let mut facts = self.session.fingerprint(&[
            ("samples", shown(setup.samples)),
            ("data", setup.data.unwrap_or_else(unknown)),
            ("augmentation", setup.augmentation.unwrap_or_else(unknown)),
            ("validation data", validation),
        ]);
        let own = [
            ("epochs", format!("{} to {}", self.at.epoch, self.outline.epochs)),
            ("global batch size", setup.batch_size.to_string()),
            ("steps per epoch", shown(setup.steps)),
            ("shuffle", format!("{:?}", setup.shuffle)),
            ("accumulated batches", format!("{:?}", self.accumulate)),
        ];
        facts.extend(own.map(|(name, value)| (name.into(), value)));
        let callbacks = self.callbacks.iter().filter(|c| !c.writes()).filter_map(|c| c.setup());
        facts.push(("callbacks".into(), callbacks.collect::<Vec<_>>().join(", ")));
        facts
    }

    fn state(&mut self) -> Result<RunState> {
        let (counters, tensors) = self.session.state()?;
        let header = Header {
            position: self.at,
            counters,
            tally: self.tally.clone(),
            history: self.history.clone(),
            seconds: self.seconds(),
            stopped: self.stop,
            config: self.setup(),
        };
        let notes = saving::notes(&self.session.def, Some(&self.session.compile_config()));
        let state = |c: &mut Box<dyn Callback>| Ok((c.name().to_string(), c.state()?));
        let callbacks = self.callbacks.iter_mut().map(state).collect::<Result<_>>()?;
        Ok(RunState { header, notes, tensors, callbacks })
    }

    /// Lets callbacks keep what there is, and ends the run.
    fn interrupted<T>(&mut self) -> Result<T> {
        let state = self.state()?;
        let mut saved = None;
        for callback in &mut self.callbacks {
            saved = callback.on_interrupt(&state)?.or(saved);
        }
        // Nobody leaves before the chief has saved.
        let saved = self.session.workers.broadcast_path(saved)?;
        let (step, epoch) = (self.session.state.steps, self.at.epoch + 1);
        Err(Error::Interrupted { step, epoch, saved })
    }
}

/// What callbacks see.
fn view<'a>(
    session: &'a Session,
    at: &Position,
    outline: &'a Outline,
    history: &'a History,
    logs: &'a Logs,
) -> View<'a> {
    View {
        epoch: at.epoch,
        epochs: outline.epochs,
        step: session.state.steps,
        steps_per_epoch: outline.steps,
        logs,
        metrics: &outline.metrics,
        learning_rate: session.learning_rate(),
        history,
        model: &session.def,
        weights: session,
    }
}
