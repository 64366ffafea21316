//! The training loop: epochs, callbacks, validation, and the state between two steps.

mod data_cursor;
mod epoch;
mod interrupt;
mod nan_guard;

pub use self::interrupt::Interrupt;
pub use self::nan_guard::OnNan;

use self::data_cursor::DataCursor;
use self::nan_guard::NanGuard;
use super::Logs;
use super::evaluate::{Pass, evaluate};
use super::fit::Fit;
use super::pass_events::{Hook, PassEvents};
use super::run_config::{self, RunConfig};
use super::run_state::{Header, Position, RunState};
use super::session::{Session, StepKind, Tally};
use super::source::VALIDATION;
use super::validation_freq::ValidationFreq;
use crate::callbacks::{Action, Callback, CallbackState, View, WeightSource};
use crate::data::{Dataset, HostBatch, format_digest};
use crate::error::{Error, Result};
use crate::history::History;
use crate::progress::Progress;
use crate::saving;
use phalanx_distributed::warnings::warning;
use std::cell::OnceCell;
use std::time::Instant;

impl WeightSource for Session {
    fn names(&self) -> Vec<String> {
        self.weights.names()
    }

    fn get(&self, name: &str) -> Result<Vec<f32>> {
        self.weights.read(name)
    }

    fn is_finite(&self) -> bool {
        self.weights.is_finite()
    }

    fn averages(&self) -> Result<Vec<(String, Vec<f32>)>> {
        Session::averages(self)
    }

    fn training(&self) -> Result<Option<saving::Training>> {
        let of_model = self.objective.compiled && self.objective.custom.is_none();
        of_model.then(|| Session::training(self)).transpose()
    }
}

/// What is known of a run before its first step.
struct RunPlan {
    epochs: usize,
    /// Batches of an epoch, if known.
    steps: Option<usize>,
    /// Batches of an epoch as the user requested them. The data then continues across epochs.
    requested_steps: Option<usize>,
    /// The names of an epoch's losses and metrics, including those of the validation.
    metrics: Logs,
    /// Batches of an update, if gradients are accumulated.
    accumulate: Option<u64>,
    /// Whether the last batch of an epoch updates with the gradients accumulated so far. `fit` does; an
    /// optimizer that accumulates continues across epochs, as in Keras.
    flush: bool,
    /// After which epochs to validate, and on how many batches.
    validation: (ValidationFreq, Option<usize>),
}

/// How long the current epoch has taken.
struct EpochClock {
    began: Instant,
    /// Seconds of the epoch before the run was interrupted.
    earlier: f64,
}

impl EpochClock {
    fn start(earlier: f64) -> EpochClock {
        EpochClock { began: Instant::now(), earlier }
    }

    /// Seconds since the epoch began or was resumed.
    fn elapsed(&self) -> f64 {
        self.began.elapsed().as_secs_f64()
    }

    /// Seconds of the whole epoch.
    fn total(&self) -> f64 {
        self.earlier + self.elapsed()
    }
}

/// The data of a run.
struct RunData<'a> {
    training: &'a dyn Dataset,
    validation: Option<&'a dyn Dataset>,
    /// Fingerprints of both, computed on first use.
    fingerprints: OnceCell<[Option<String>; 2]>,
}

/// A training run.
pub(super) struct TrainLoop<'a> {
    session: &'a mut Session,
    data: RunData<'a>,
    callbacks: Vec<Box<dyn Callback>>,
    plan: RunPlan,
    interrupt: Interrupt,
    nan: NanGuard,
    progress: Progress,
    at: Position,
    tally: Tally,
    history: History,
    clock: EpochClock,
    stop: bool,
}

impl<'a> TrainLoop<'a> {
    pub(super) fn new(
        session: &'a mut Session,
        data: &'a dyn Dataset,
        validation: Option<&'a dyn Dataset>,
        fit: Fit,
    ) -> Result<TrainLoop<'a>> {
        let steps = fit.steps_per_epoch.or(data.batches());
        if steps == Some(0) || data.is_empty() {
            return Err(Error::argument("fit", "data", "at least one batch", "an empty dataset"));
        }
        if let (Some(batches), Some(custom)) = (fit.accumulate, &session.objective.custom)
            && !custom.updates.is_empty()
        {
            let expected = "none for a step that updates inside the graph (set \
                            gradient_accumulation_steps of its optimizers)";
            return Err(Error::argument("fit", "accumulate", expected, batches));
        }
        if fit.accumulate.is_some() {
            session.state.set_accumulated((0, 0.0));
        }
        let epoch = fit.initial_epoch;
        let logs_of = |kind| session.objective.logs(kind, &session.objective.tally(kind));
        let mut logs = logs_of(StepKind::Train);
        if validation.is_some() {
            logs.extend_prefixed("val_", logs_of(StepKind::Test));
        }
        let plan = RunPlan {
            epochs: fit.epochs,
            steps,
            requested_steps: fit.steps_per_epoch,
            metrics: logs,
            accumulate: fit.accumulate.or(session.objective.accumulation_steps()),
            flush: fit.accumulate.is_some(),
            validation: (fit.validation_freq, fit.validation_steps),
        };
        let (mut callbacks, verbose) = (fit.callbacks, session.workers.verbose(fit.verbose)?);
        callbacks.retain(|c| session.workers.is_chief() || !c.chief_only());
        Ok(TrainLoop {
            tally: session.objective.tally(StepKind::Train),
            session,
            data: RunData { training: data, validation, fingerprints: OnceCell::new() },
            callbacks,
            plan,
            interrupt: fit.interrupt,
            nan: NanGuard::new(fit.on_nan),
            progress: Progress::stdout(verbose),
            at: Position { epoch, pass: epoch as u64, ..Position::default() },
            history: History::default(),
            clock: EpochClock::start(0.0),
            stop: false,
        })
    }

    /// Runs to the end.
    pub(super) fn run(mut self) -> Result<History> {
        let none = Logs::default();
        self.session.weights.take_ownership();
        self.begin()?;
        let before = self.session.state.steps;
        let resident = self.make_resident()?;
        let mut batch = HostBatch::default();
        let mut open = None;
        // An epoch that has begun is finished and validated, even after a callback has stopped the run.
        while self.at.epoch < self.plan.epochs && (self.at.batch > 0 || !self.stop) {
            if self.at.batch == 0 {
                self.call(&none, |c, v| c.on_epoch_begin(v))?;
            }
            self.check_rate()?;
            self.progress.begin_epoch(self.at.epoch, self.plan.epochs, self.plan.steps);
            self.clock.began = Instant::now();
            match &resident {
                Some(table) => self.train_epoch_resident(table)?,
                None => {
                    let mut cursor = match open.take() {
                        Some(cursor) => cursor,
                        None => DataCursor::new(self.data.training, self.session, &self.at)?,
                    };
                    self.train_epoch(&mut cursor, &mut batch)?;
                    // With requested steps the data continues where it is.
                    open = self.plan.requested_steps.is_some().then_some(cursor);
                }
            }
            let logs = self.end_epoch()?;
            let requesting = self.call(&logs, |c, v| c.on_epoch_end(v))?;
            self.advance();
            self.save_run(&requesting)?;
            if self.stop_requested() && self.at.epoch < self.plan.epochs && !self.stop {
                return self.interrupted();
            }
        }
        // The last update may have made the weights non-finite: no later loss would show it.
        if self.session.state.steps > before && !self.session.weights.is_finite() {
            let error = self.not_finite(f64::NAN, self.session.state.steps)?;
            if self.nan.policy == OnNan::Raise && !self.stop {
                return Err(error);
            }
            if self.nan.warn_now() {
                warning!("{error}");
            }
        }
        self.session.finish_training()?;
        self.at.epoch = self.history.epochs.last().copied().unwrap_or(self.at.epoch);
        self.call(&none, |c, v| c.on_train_end(v))?;
        Ok(self.history)
    }

    /// Resumes an earlier run if a callback has one, and lets every callback begin.
    fn begin(&mut self) -> Result<()> {
        let mut found = None;
        for callback in &mut self.callbacks {
            found = callback.load_run()?;
            if found.is_some() {
                break;
            }
        }
        if self.session.workers.shard_if_several().is_some() {
            self.session.workers.check_equal(&self.worker_fingerprint()?)?;
        }
        let found = self.session.workers.broadcast_run(found)?;
        // The optimizer's slots exist once the training program is loaded.
        self.session.prepare_training(self.data.training.batch_size())?;
        let Some(state) = found else {
            let requesting = self.call(&Logs::default(), |c, v| c.on_train_begin(v))?;
            return self.save_run(&requesting);
        };
        let mut states = self.resume(state)?;
        let none = Logs::default();
        for i in 0..self.callbacks.len() {
            let name = self.callbacks[i].name();
            let mine = states.iter().position(|(n, _)| *n == name).map(|at| states.remove(at).1);
            let view = view(self.session, &self.at, &self.plan, &self.history, &none);
            let action = match &mine {
                Some(state) => self.callbacks[i].on_train_resume(&view, state)?,
                None => self.callbacks[i].on_train_begin(&view)?,
            };
            self.act(action)?;
        }
        Ok(())
    }

    /// Continues from the state of an earlier run; returns the states of its callbacks.
    fn resume(&mut self, state: RunState) -> Result<Vec<(String, CallbackState)>> {
        let RunState { header, tensors, callbacks, .. } = state;
        let setup = self.setup();
        setup.check(&header.config)?;
        if !self.tally.alike(&header.tally) {
            let expected = "the losses and metrics of the saved run";
            return Err(Error::argument(run_config::OWNER, "compile", expected, "different ones"));
        }
        self.session.state.check(&self.session.def.name, &header.counters)?;
        for change in setup.changes(&header.config) {
            warning!("{change}");
        }
        self.session.set_state(&header.counters, &tensors, setup.batch_size)?;
        (self.at, self.tally, self.history) = (header.position, header.tally, header.history);
        (self.clock.earlier, self.stop) = (header.seconds, header.stopped);
        Ok(callbacks)
    }

    /// Whether this worker, or any other, was asked to stop before the last step finished.
    fn stop_requested(&self) -> bool {
        self.session.workers.any_worker_stopping(self.interrupt.is_requested())
    }

    /// The error of a step whose loss is not finite. All workers find it at the same step.
    fn not_finite(&mut self, loss: f64, step: u64) -> Result<Error> {
        let finite = self.session.weights.is_finite();
        let saved = self.callbacks.iter_mut().find_map(|callback| callback.newest_saved());
        let saved = self.session.workers.broadcast_path(saved)?;
        let (epoch, suspects) =
            ((self.at.epoch + 1).min(self.plan.epochs), self.session.checks.unchecked_lookups());
        Ok(Error::NotFinite { loss, step, epoch, suspects, finite, saved })
    }

    /// Validates and adds the epoch to the history.
    fn end_epoch(&mut self) -> Result<Logs> {
        let ran = self.clock.elapsed();
        self.history.add_run_time(ran);
        let mut logs = self.session.objective.logs(StepKind::Train, &self.tally);
        let due = self.plan.validation.0.is_due(self.at.epoch);
        if let Some(validation) = self.data.validation.filter(|_| due) {
            let Some(held) = self.validate(validation)? else {
                // The epoch's batches are done. A resumed run validates again.
                return self.interrupted();
            };
            logs.extend_prefixed("val_", held);
        }
        self.progress.end_epoch(&logs);
        let mut entry = logs.clone();
        entry.push("lr", self.session.objective.learning_rate(&self.session.state));
        if let Some(scale) = self.session.state.loss_scale {
            entry.push("loss_scale", f64::from(scale));
        }
        self.history.push(self.at.epoch, &entry, self.clock.earlier + ran, self.at.rows);
        Ok(logs)
    }

    /// Losses and metrics of the validation data; `None` if interrupted.
    fn validate(&mut self, data: &dyn Dataset) -> Result<Option<Logs>> {
        let steps = self.plan.validation.1;
        let pass = Pass { data, name: VALIDATION, steps, interrupt: &self.interrupt };
        let mut events = PassEvents {
            callbacks: &mut self.callbacks,
            epoch: self.at.epoch,
            epochs: self.plan.epochs,
            steps: pass.batches(),
            metrics: &self.plan.metrics,
            history: &self.history,
            stopped: false,
        };
        let logs = evaluate(self.session, &pass, None, &mut events)?;
        self.stop |= events.stopped;
        Ok(logs)
    }

    /// The start of the next epoch.
    fn advance(&mut self) {
        self.at.epoch += 1;
        (self.at.batch, self.at.rows) = (0, 0);
        if self.plan.requested_steps.is_none() {
            (self.at.pass, self.at.taken) = (self.at.epoch as u64, 0);
        }
        self.tally = self.session.objective.tally(StepKind::Train);
        self.clock = EpochClock::start(0.0);
    }

    /// Calls a hook of every callback and applies their actions. Returns the callbacks that want the
    /// run's state.
    fn call(&mut self, logs: &Logs, hook: Hook) -> Result<Vec<usize>> {
        let mut requesting = vec![];
        for i in 0..self.callbacks.len() {
            let view = view(self.session, &self.at, &self.plan, &self.history, logs);
            let action = hook(&mut *self.callbacks[i], &view)?;
            if action.saves_run() {
                requesting.push(i);
            }
            self.act(action)?;
        }
        Ok(requesting)
    }

    fn act(&mut self, action: Action) -> Result<()> {
        self.stop |= self.session.act(action)?;
        Ok(())
    }

    /// Hands the run's state to the callbacks that asked for it.
    fn save_run(&mut self, requesting: &[usize]) -> Result<()> {
        let Some((last, others)) = requesting.split_last() else { return Ok(()) };
        let state = self.state()?;
        for i in others {
            self.callbacks[*i].save_run(state.clone())?;
        }
        self.callbacks[*last].save_run(state)
    }

    /// Fingerprints of the training and the validation data. They take a moment to compute.
    fn fingerprints(&self) -> &[Option<String>; 2] {
        let of = |data: Option<&dyn Dataset>| data.and_then(|data| format_digest(data.digest()));
        self.data
            .fingerprints
            .get_or_init(|| [Some(self.data.training), self.data.validation].map(of))
    }

    fn setup(&self) -> RunConfig {
        let [data, validation] = self.fingerprints().clone();
        RunConfig {
            model: self.session.def.name.clone(),
            batch_size: self.data.training.batch_size(),
            samples: self.data.training.len(),
            steps: self.plan.steps,
            shuffle: self.data.training.shuffles(),
            optimizer: self.session.objective.optimizer_options(),
            accumulate: Some(self.plan.accumulate.filter(|_| self.plan.flush).unwrap_or(1)),
            data,
            augmentation: format_digest(self.data.training.augmentation_digest()),
            validation,
        }
    }

    /// Fails if callbacks have set different learning rates on different workers.
    fn check_rate(&self) -> Result<()> {
        let rate = self.session.objective.learning_rate(&self.session.state).to_string();
        self.session
            .workers
            .check_equal(&[(format!("learning rate of epoch {}", self.at.epoch + 1), rate)])
    }

    /// What must be the same on every worker.
    fn worker_fingerprint(&self) -> Result<Vec<(String, String)>> {
        let setup = self.setup();
        let shown = |n: Option<usize>| n.map_or("unknown".into(), |n| n.to_string());
        let unknown = || "unknown".to_string();
        let validation = match self.data.validation {
            Some(_) => setup.validation.unwrap_or_else(unknown),
            None => "none".into(),
        };
        let mut facts = self.session.fingerprint(&[
            ("samples", shown(setup.samples)),
            ("data", setup.data.unwrap_or_else(unknown)),
            ("augmentation", setup.augmentation.unwrap_or_else(unknown)),
            ("validation data", validation),
        ])?;
        let own = [
            ("epochs", format!("{} to {}", self.at.epoch, self.plan.epochs)),
            ("global batch size", setup.batch_size.to_string()),
            ("steps per epoch", shown(setup.steps)),
            ("shuffle", format!("{:?}", setup.shuffle)),
            ("accumulated batches", format!("{:?}", self.plan.accumulate)),
        ];
        facts.extend(own.map(|(name, value)| (name.into(), value)));
        let callbacks = self.callbacks.iter().filter(|c| !c.chief_only()).filter_map(|c| c.setup());
        facts.push(("callbacks".into(), callbacks.collect::<Vec<_>>().join(", ")));
        Ok(facts)
    }

    fn state(&mut self) -> Result<RunState> {
        let (counters, tensors) = self.session.state()?;
        let header = Header {
            position: self.at,
            counters,
            tally: self.tally.clone(),
            history: self.history.clone(),
            seconds: self.clock.total(),
            stopped: self.stop,
            config: self.setup(),
        };
        let Session { def, objective, state, .. } = &*self.session;
        let config = objective.compile_config(objective.learning_rate(state));
        let notes = saving::notes(def, Some(&config));
        let state = |c: &mut Box<dyn Callback>| Ok((c.name().to_string(), c.state()?));
        let callbacks = self.callbacks.iter_mut().map(state).collect::<Result<_>>()?;
        Ok(RunState { header, notes, tensors, callbacks })
    }

    /// Lets callbacks save the run, and ends it.
    fn interrupted<T>(&mut self) -> Result<T> {
        let state = self.state()?;
        let mut saved = None;
        for callback in &mut self.callbacks {
            saved = callback.on_interrupt(&state)?.or(saved);
        }
        // No worker leaves before the chief has saved.
        let saved = self.session.workers.broadcast_path(saved)?;
        let (step, epoch) = (self.session.state.steps, self.at.epoch + 1);
        Err(Error::Interrupted { step, epoch, saved })
    }
}

/// What a callback sees.
fn view<'a>(
    session: &'a Session,
    at: &Position,
    plan: &'a RunPlan,
    history: &'a History,
    logs: &'a Logs,
) -> View<'a> {
    View {
        epoch: at.epoch,
        epochs: plan.epochs,
        step: session.state.steps,
        iterations: session.state.iterations(),
        batch: at.batch,
        steps_per_epoch: plan.steps,
        logs,
        metrics: &plan.metrics,
        learning_rate: session.objective.learning_rate(&session.state),
        history,
        model: &session.def,
        weights: session,
    }
}
