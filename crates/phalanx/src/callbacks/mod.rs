//! Callbacks. They observe a training run through a read-only view and return the action to take.

mod backup_and_restore;
mod csv_logger;
mod early_stopping;
mod frequency;
mod json_lines;
mod log_file;
mod model_checkpoint;
mod reduce_lr_on_plateau;
mod template;
mod tensorboard;

pub use backup_and_restore::BackupAndRestore;
pub use csv_logger::CSVLogger;
pub use early_stopping::{EarlyStopping, Mode};
pub use frequency::Frequency;
pub use json_lines::JsonLines;
pub use model_checkpoint::ModelCheckpoint;
pub use reduce_lr_on_plateau::ReduceLROnPlateau;
pub use tensorboard::TensorBoard;

use crate::error::{Error, Result};
use crate::history::History;
use crate::model::{Definition, RunState};
use crate::saving::Training;
use phalanx_graph::Tensor;
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;
use std::path::PathBuf;

/// Read access to the weights of the model.
pub trait WeightSource {
    /// The names of the weights, in the order of the model.
    fn names(&self) -> Vec<String>;

    /// The values of a weight.
    ///
    /// # Errors
    /// There is no such weight, or the devices cannot be read.
    fn get(&self, name: &str) -> Result<Vec<f32>>;

    /// Whether all weights are known to be finite. Weights that cannot be read are not.
    fn is_finite(&self) -> bool {
        let finite = |values: Vec<f32>| values.iter().all(|v| v.is_finite());
        self.names().iter().all(|name| self.get(name).is_ok_and(finite))
    }

    /// The training configuration, for file formats that save it.
    ///
    /// # Errors
    /// The devices cannot be read.
    fn training(&self) -> Result<Option<Training>> {
        Ok(None)
    }
}

/// The state of a run that a callback sees.
#[derive(Clone, Copy)]
pub struct View<'a> {
    /// The epoch, from 0.
    pub epoch: usize,
    /// The epoch before which the run ends.
    pub epochs: usize,
    /// The number of steps since the model was created.
    pub step: u64,
    /// The number of steps per epoch, if known.
    pub steps_per_epoch: Option<usize>,
    /// The current metrics: those of the epoch's batches and, at its end, of the validation.
    pub logs: &'a [(String, f64)],
    /// The names that `logs` has at the end of an epoch, available from the start.
    pub metrics: &'a [String],
    /// The current learning rate.
    pub learning_rate: f64,
    /// The epochs so far, with their times. At the end of an epoch it includes that epoch.
    pub history: &'a History,
    /// The model's structure.
    pub model: &'a Definition,
    /// The current weights.
    pub weights: &'a dyn WeightSource,
}

impl View<'_> {
    /// The value of a metric in `logs`.
    pub fn log(&self, name: &str) -> Option<f64> {
        self.logs.iter().find(|(n, _)| n == name).map(|(_, value)| *value)
    }

    /// The value of a monitored metric.
    fn monitored(&self, owner: &str, name: &str) -> Result<f64> {
        let known = || self.logs.iter().map(|(name, _)| name.as_str()).collect::<Vec<_>>();
        self.log(name).ok_or_else(|| unknown_monitor(owner, name, &known()))
    }

    /// Rejects a monitored metric that no epoch will have.
    fn check_monitor(&self, owner: &str, name: &str) -> Result<()> {
        let known: Vec<&str> = self.metrics.iter().map(String::as_str).collect();
        if known.contains(&name) { Ok(()) } else { Err(unknown_monitor(owner, name, &known)) }
    }

    /// At the end of an epoch, the learning rate it ended with, regardless of changes by callbacks since.
    fn epoch_learning_rate(&self) -> f64 {
        let ended = self.history.epochs.last() == Some(&self.epoch);
        let rates = self.history.get("lr").filter(|_| ended);
        rates.and_then(|r| r.last().copied()).unwrap_or(self.learning_rate)
    }
}

fn unknown_monitor(owner: &str, name: &str, known: &[&str]) -> Error {
    let (validated, names) = (known.iter().any(|name| name.starts_with("val_")), known.join(", "));
    let (expected, received) = match name.starts_with("val_") && !validated {
        true => (
            format!("validation_data or validation_split in fit, or one of {names}"),
            format!("'{name}' without either"),
        ),
        false => (format!("one of {names}"), format!("'{name}'")),
    };
    Error::argument(owner, "monitor", expected, received)
}

/// The action that a callback returns.
#[derive(Clone, Debug, Default, PartialEq)]
#[must_use]
pub enum Action {
    /// Continue.
    #[default]
    Continue,
    /// Stop training after the current step or, at the end of an epoch, after that epoch.
    Stop,
    /// Continue with another learning rate.
    SetLearningRate(f64),
    /// Set weights by name.
    RestoreWeights(Vec<(String, Vec<f32>)>),
    /// Save the run: once all callbacks have been called, [`Callback::save_run`] receives its state. Allowed
    /// before the first epoch, after a batch and after an epoch.
    SaveRun,
}

/// The state that a callback needs to resume.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct CallbackState {
    /// Plain values.
    pub values: Value,
    /// Tensors by name.
    pub tensors: Vec<(String, Tensor)>,
}

impl CallbackState {
    /// A state without tensors.
    fn of(values: impl Serialize) -> CallbackState {
        let values = serde_json::to_value(values).unwrap_or_default();
        CallbackState { values, tensors: vec![] }
    }

    /// Deserialises the plain values.
    fn read<T: DeserializeOwned>(&self, owner: &str) -> Result<T> {
        let wrong = |error| Error::config(owner, format!("state of an earlier run: {error}"));
        serde_json::from_value(self.values.clone()).map_err(wrong)
    }
}

/// An observer of training. An error ends the run. Every worker has its own callbacks, which see the same
/// numbers and must return the same actions. Callbacks that only write files run on the chief only
/// ([`Callback::chief_only`]).
pub trait Callback: Send {
    /// Before the first epoch.
    fn on_train_begin(&mut self, _view: &View<'_>) -> Result<Action> {
        Ok(Action::Continue)
    }

    /// After the last epoch, however the run ended.
    fn on_train_end(&mut self, _view: &View<'_>) -> Result<Action> {
        Ok(Action::Continue)
    }

    /// Before an epoch.
    fn on_epoch_begin(&mut self, _view: &View<'_>) -> Result<Action> {
        Ok(Action::Continue)
    }

    /// After an epoch and its validation.
    fn on_epoch_end(&mut self, _view: &View<'_>) -> Result<Action> {
        Ok(Action::Continue)
    }

    /// Before a training batch.
    fn on_batch_begin(&mut self, _view: &View<'_>) -> Result<Action> {
        Ok(Action::Continue)
    }

    /// After a training batch.
    fn on_batch_end(&mut self, _view: &View<'_>) -> Result<Action> {
        Ok(Action::Continue)
    }

    /// Whether [`Callback::on_batch_begin`] or [`Callback::on_batch_end`] does anything. If no callback does,
    /// devices that can run several steps without the host do so.
    fn wants_batch_events(&self) -> bool {
        true
    }

    /// Identifies the kind of callback when a run is resumed.
    fn name(&self) -> &'static str {
        std::any::type_name::<Self>()
    }

    /// Whether the callback only writes files. The chief is then the only worker that calls it.
    fn chief_only(&self) -> bool {
        false
    }

    /// The configuration of the callback, if it affects training. It must be the same on all workers.
    fn setup(&self) -> Option<String> {
        None
    }

    /// The state that the callback needs to resume, requested when the run is saved.
    fn state(&mut self) -> Result<CallbackState> {
        Ok(CallbackState::default())
    }

    /// Called instead of [`Callback::on_train_begin`] when a run is resumed, with the saved state.
    fn on_train_resume(&mut self, view: &View<'_>, _state: &CallbackState) -> Result<Action> {
        self.on_train_begin(view)
    }

    /// Loads a run to resume instead of starting a new one. Called before all other methods.
    fn load_run(&mut self) -> Result<Option<RunState>> {
        Ok(None)
    }

    /// Saves the run, as requested with [`Action::SaveRun`].
    fn save_run(&mut self, _state: RunState) -> Result<()> {
        Ok(())
    }

    /// The newest saved file from which a run could resume, requested when a run ends in NaN.
    fn newest_saved(&mut self) -> Option<PathBuf> {
        None
    }

    /// The run was interrupted. Returns the file from which it can be resumed, if any.
    fn on_interrupt(&mut self, _state: &RunState) -> Result<Option<PathBuf>> {
        Ok(None)
    }
}

/// Sets the learning rate as a function of the epoch.
///
/// ```
/// use phalanx::callbacks::LearningRateScheduler;
///
/// let poly_decay = |epoch| 5e-3 * (1.0 - epoch as f64 / 70.0);
/// let callback = LearningRateScheduler::new(poly_decay);
/// ```
pub struct LearningRateScheduler {
    schedule: Box<dyn FnMut(usize, f64) -> f64 + Send>,
}

impl LearningRateScheduler {
    /// A function of the epoch, counted from 0.
    pub fn new(mut schedule: impl FnMut(usize) -> f64 + Send + 'static) -> LearningRateScheduler {
        LearningRateScheduler::with_current(move |epoch, _| schedule(epoch))
    }

    /// A function of the epoch and the current learning rate.
    pub fn with_current(
        schedule: impl FnMut(usize, f64) -> f64 + Send + 'static,
    ) -> LearningRateScheduler {
        LearningRateScheduler { schedule: Box::new(schedule) }
    }
}

impl Callback for LearningRateScheduler {
    fn wants_batch_events(&self) -> bool {
        false
    }

    /// Only records that there is a schedule; the rates themselves are compared during training.
    fn setup(&self) -> Option<String> {
        Some("LearningRateScheduler".into())
    }

    fn on_epoch_begin(&mut self, view: &View<'_>) -> Result<Action> {
        let rate = (self.schedule)(view.epoch, view.learning_rate);
        if !rate.is_finite() || rate < 0.0 {
            let owner = "LearningRateScheduler";
            let received = format!("{rate} for epoch {}", view.epoch);
            return Err(Error::argument(owner, "schedule", "a finite rate from 0 up", received));
        }
        Ok(Action::SetLearningRate(rate))
    }
}

/// Stops training when the loss is NaN or infinite.
#[derive(Clone, Copy, Debug, Default)]
pub struct TerminateOnNaN;

impl Callback for TerminateOnNaN {
    fn on_batch_end(&mut self, view: &View<'_>) -> Result<Action> {
        let not_finite = view.log("loss").is_some_and(|loss| !loss.is_finite());
        Ok(if not_finite { Action::Stop } else { Action::Continue })
    }
}

type Hook = Box<dyn FnMut(&View<'_>) -> Result<Action> + Send>;

/// A callback from closures.
///
/// ```
/// use phalanx::callbacks::{Action, LambdaCallback};
///
/// let callback = LambdaCallback::new().epoch_end(|view| {
///     println!("learning rate for epoch {} is {}", view.epoch + 1, view.learning_rate);
///     Ok(Action::Continue)
/// });
/// ```
#[derive(Default)]
pub struct LambdaCallback {
    train_begin: Option<Hook>,
    train_end: Option<Hook>,
    epoch_begin: Option<Hook>,
    epoch_end: Option<Hook>,
    batch_begin: Option<Hook>,
    batch_end: Option<Hook>,
}

impl LambdaCallback {
    /// A callback without closures.
    pub fn new() -> LambdaCallback {
        LambdaCallback::default()
    }

    /// Called before the first epoch.
    pub fn train_begin(
        mut self,
        hook: impl FnMut(&View<'_>) -> Result<Action> + Send + 'static,
    ) -> LambdaCallback {
        self.train_begin = Some(Box::new(hook));
        self
    }

    /// Called after the last epoch.
    pub fn train_end(
        mut self,
        hook: impl FnMut(&View<'_>) -> Result<Action> + Send + 'static,
    ) -> LambdaCallback {
        self.train_end = Some(Box::new(hook));
        self
    }

    /// Called before an epoch.
    pub fn epoch_begin(
        mut self,
        hook: impl FnMut(&View<'_>) -> Result<Action> + Send + 'static,
    ) -> LambdaCallback {
        self.epoch_begin = Some(Box::new(hook));
        self
    }

    /// Called after an epoch and its validation.
    pub fn epoch_end(
        mut self,
        hook: impl FnMut(&View<'_>) -> Result<Action> + Send + 'static,
    ) -> LambdaCallback {
        self.epoch_end = Some(Box::new(hook));
        self
    }

    /// Called before a training batch.
    pub fn batch_begin(
        mut self,
        hook: impl FnMut(&View<'_>) -> Result<Action> + Send + 'static,
    ) -> LambdaCallback {
        self.batch_begin = Some(Box::new(hook));
        self
    }

    /// Called after a training batch.
    pub fn batch_end(
        mut self,
        hook: impl FnMut(&View<'_>) -> Result<Action> + Send + 'static,
    ) -> LambdaCallback {
        self.batch_end = Some(Box::new(hook));
        self
    }
}

fn run(hook: &mut Option<Hook>, view: &View<'_>) -> Result<Action> {
    hook.as_mut().map_or(Ok(Action::Continue), |hook| hook(view))
}

impl Callback for LambdaCallback {
    fn wants_batch_events(&self) -> bool {
        self.batch_begin.is_some() || self.batch_end.is_some()
    }

    fn on_train_begin(&mut self, view: &View<'_>) -> Result<Action> {
        run(&mut self.train_begin, view)
    }

    fn on_train_end(&mut self, view: &View<'_>) -> Result<Action> {
        run(&mut self.train_end, view)
    }

    fn on_epoch_begin(&mut self, view: &View<'_>) -> Result<Action> {
        run(&mut self.epoch_begin, view)
    }

    fn on_epoch_end(&mut self, view: &View<'_>) -> Result<Action> {
        run(&mut self.epoch_end, view)
    }

    fn on_batch_begin(&mut self, view: &View<'_>) -> Result<Action> {
        run(&mut self.batch_begin, view)
    }

    fn on_batch_end(&mut self, view: &View<'_>) -> Result<Action> {
        run(&mut self.batch_end, view)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::layers::Dense;
    use crate::model::{Input, Model, Sequential};

    /// A single weight whose value a test sets.
    struct OneWeight(f32);

    impl WeightSource for OneWeight {
        fn names(&self) -> Vec<String> {
            vec!["dense/kernel".into()]
        }

        fn get(&self, name: &str) -> Result<Vec<f32>> {
            assert_eq!(name, "dense/kernel");
            Ok(vec![self.0])
        }
    }

    /// A run of a model with one weight, for tests.
    pub(super) struct TestRun {
        pub learning_rate: f64,
        pub weight: f32,
        pub step: u64,
        history: History,
        model: Model,
    }

    impl Default for TestRun {
        fn default() -> TestRun {
            let dense = Dense::new(1).use_bias(false);
            let model = Sequential::new().add(Input::new([1])).add(dense).build().unwrap();
            let history = History::default();
            TestRun { learning_rate: 0.1, weight: 1.0, step: 0, history, model }
        }
    }

    impl TestRun {
        /// Calls `f` with a view of an epoch with these metrics.
        pub(super) fn view<T>(
            &mut self,
            epoch: usize,
            metrics: &[(&str, f64)],
            look: impl FnOnce(&View<'_>) -> T,
        ) -> T {
            let logs: Vec<_> = metrics.iter().map(|(n, v)| (n.to_string(), *v)).collect();
            let names: Vec<String> = logs.iter().map(|(name, _)| name.clone()).collect();
            look(&View {
                epoch,
                epochs: 10,
                step: self.step,
                steps_per_epoch: None,
                logs: &logs,
                metrics: &names,
                learning_rate: self.learning_rate,
                history: &self.history,
                model: self.model.definition(),
                weights: &OneWeight(self.weight),
            })
        }

        /// Calls `f` at the end of an epoch: 100 samples in 2 seconds.
        pub(super) fn end_epoch<T>(
            &mut self,
            epoch: usize,
            metrics: &[(&str, f64)],
            look: impl FnOnce(&View<'_>) -> T,
        ) -> T {
            self.history.push(epoch, &[("lr".into(), self.learning_rate)], 2.0, 100);
            self.view(epoch, metrics, look)
        }
    }

    /// Calls `f` with a view of an epoch with one metric.
    pub(super) fn with_view<T>(
        epoch: usize,
        metric: (&str, f64),
        weight: f32,
        look: impl FnOnce(&View<'_>) -> T,
    ) -> T {
        TestRun { weight, ..TestRun::default() }.view(epoch, &[metric], look)
    }

    #[test]
    fn the_schedule_sets_the_rate_of_each_epoch() {
        let mut by_epoch = LearningRateScheduler::new(|epoch| 1.0 / (1.0 + epoch as f64));
        let mut by_rate = LearningRateScheduler::with_current(|_, rate| rate / 2.0);
        with_view(3, ("loss", 1.0), 0.0, |view| {
            let action = by_epoch.on_epoch_begin(view).unwrap();
            assert_eq!(action, Action::SetLearningRate(0.25));
            let action = by_rate.on_epoch_begin(view).unwrap();
            assert_eq!(action, Action::SetLearningRate(0.05));
            assert_eq!(by_rate.on_epoch_end(view).unwrap(), Action::Continue);
            for bad in [-1.0, f64::NAN] {
                let error = LearningRateScheduler::new(move |_| bad).on_epoch_begin(view);
                assert!(error.unwrap_err().to_string().contains("for epoch 3"));
            }
        });
    }

    #[test]
    fn a_nan_loss_stops_training() {
        for (loss, action) in
            [(1.0, Action::Continue), (f64::NAN, Action::Stop), (f64::INFINITY, Action::Stop)]
        {
            let answer = with_view(0, ("loss", loss), 0.0, |v| TerminateOnNaN.on_batch_end(v));
            assert_eq!(answer.unwrap(), action);
        }
    }

    #[test]
    fn closures_are_called_at_their_time() {
        let mut seen = 0;
        let mut callback = LambdaCallback::new()
            .epoch_end(move |view| {
                seen += 1;
                let late = view.log("loss") == Some(0.5) && seen == 2;
                Ok(if late { Action::Stop } else { Action::Continue })
            })
            .train_begin(|_| Err(Error::config("mine", "no")));
        with_view(0, ("loss", 0.5), 0.0, |view| {
            assert_eq!(callback.on_epoch_end(view).unwrap(), Action::Continue);
            assert_eq!(callback.on_epoch_end(view).unwrap(), Action::Stop);
            assert_eq!(callback.on_batch_end(view).unwrap(), Action::Continue);
            assert!(callback.on_train_begin(view).is_err());
        });
    }
}
