//! Callbacks. They observe a training run through a read-only view and return the action to take.

mod backup_and_restore;
mod csv_logger;
mod early_stopping;
mod frequency;
mod json_lines;
mod lambda_callback;
mod learning_rate_scheduler;
mod list;
mod log_file;
mod model_checkpoint;
mod reduce_lr_on_plateau;
#[cfg(feature = "datasets")]
mod remote_monitor;
mod swap_ema_weights;
mod template;
mod tensorboard;
mod terminate_on_nan;

pub use backup_and_restore::BackupAndRestore;
pub use csv_logger::CSVLogger;
pub use early_stopping::{EarlyStopping, Mode};
pub use frequency::Frequency;
pub use json_lines::JsonLines;
pub use lambda_callback::LambdaCallback;
pub use learning_rate_scheduler::LearningRateScheduler;
pub use list::CallbackList;
pub use model_checkpoint::ModelCheckpoint;
pub use reduce_lr_on_plateau::ReduceLROnPlateau;
#[cfg(feature = "datasets")]
pub use remote_monitor::RemoteMonitor;
pub use swap_ema_weights::SwapEMAWeights;
pub use tensorboard::TensorBoard;
pub use terminate_on_nan::TerminateOnNaN;

use crate::error::{Error, Result};
use crate::history::History;
use crate::model::{Definition, Logs, RunState};
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

    /// The moving averages of the trained weights, by name; none if the optimizer keeps none. Before the first update
    /// they are the weights.
    ///
    /// # Errors
    /// The devices cannot be read.
    fn averages(&self) -> Result<Vec<(String, Vec<f32>)>> {
        Ok(vec![])
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
    /// The steps that counted, as Keras' `optimizer.iterations`: without those that a loss scale skipped.
    pub iterations: u64,
    /// The number of batches that are done of the epoch, or of the evaluation or prediction.
    pub batch: usize,
    /// The number of steps per epoch, if known.
    pub steps_per_epoch: Option<usize>,
    /// The current metrics: those of the epoch's batches and, at its end, of the validation.
    pub logs: &'a Logs,
    /// The metrics that `logs` has at the end of an epoch, available from the start. Their values are those of no samples.
    pub metrics: &'a Logs,
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
        self.logs.get(name)
    }

    /// The value of a monitored metric; `None` in an epoch without the validation that computes it.
    fn monitored(&self, owner: &str, name: &str) -> Result<Option<f64>> {
        let value = self.log(name);
        if value.is_none() {
            self.check_monitor(owner, name)?;
        }
        Ok(value)
    }

    /// Rejects a monitored metric that no epoch will have, or whose result is a vector.
    fn check_monitor(&self, owner: &str, name: &str) -> Result<()> {
        if let Some(vector) = self.metrics.vector(name) {
            let received = format!("'{name}', which is a vector of {} numbers", vector.len());
            return Err(Error::argument(owner, "monitor", "a metric of one number", received));
        }
        let known: Vec<&str> = self.metrics.iter().map(|(name, _)| name.as_str()).collect();
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
    /// Stop training after the current step or, at the end of an epoch, after that epoch. From a hook of `evaluate` or
    /// `predict`: end it after the current batch. From a hook of a validation: stop training after the epoch.
    Stop,
    /// Continue with another learning rate.
    SetLearningRate(f64),
    /// Set weights by name.
    RestoreWeights(Vec<(String, Vec<f32>)>),
    /// Set the optimizer's variables, in the order of [`Training::variables`].
    SetOptimizer {
        /// The number of steps.
        iteration: u64,
        /// The variables after it.
        variables: Vec<Tensor>,
    },
    /// Several actions, in order.
    Several(Vec<Action>),
    /// Save the run: once all callbacks have been called, [`Callback::save_run`] receives its state. Allowed
    /// before the first epoch, after a batch and after an epoch.
    SaveRun,
}

impl Action {
    /// Whether the callback asks for the run's state.
    pub(crate) fn saves_run(&self) -> bool {
        match self {
            Action::SaveRun => true,
            Action::Several(actions) => actions.iter().any(Action::saves_run),
            _ => false,
        }
    }
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

    /// Before an evaluation: `evaluate`, or the validation of an epoch.
    fn on_test_begin(&mut self, _view: &View<'_>) -> Result<Action> {
        Ok(Action::Continue)
    }

    /// After an evaluation, also an interrupted one.
    fn on_test_end(&mut self, _view: &View<'_>) -> Result<Action> {
        Ok(Action::Continue)
    }

    /// Before a batch of an evaluation.
    fn on_test_batch_begin(&mut self, _view: &View<'_>) -> Result<Action> {
        Ok(Action::Continue)
    }

    /// After a batch of an evaluation.
    fn on_test_batch_end(&mut self, _view: &View<'_>) -> Result<Action> {
        Ok(Action::Continue)
    }

    /// Before a prediction.
    fn on_predict_begin(&mut self, _view: &View<'_>) -> Result<Action> {
        Ok(Action::Continue)
    }

    /// After a prediction.
    fn on_predict_end(&mut self, _view: &View<'_>) -> Result<Action> {
        Ok(Action::Continue)
    }

    /// Before a batch of a prediction.
    fn on_predict_batch_begin(&mut self, _view: &View<'_>) -> Result<Action> {
        Ok(Action::Continue)
    }

    /// After a batch of a prediction.
    fn on_predict_batch_end(&mut self, _view: &View<'_>) -> Result<Action> {
        Ok(Action::Continue)
    }

    /// Whether the hooks of batches must see every batch. If no callback must, devices that can run several steps without
    /// the host do so, and [`Callback::on_batch_end`] or [`Callback::on_test_batch_end`] is called after the last of them.
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
            let logs = metrics.iter().map(|(n, v)| (n.to_string(), *v)).collect();
            self.view_of(epoch, &logs, look)
        }

        /// Calls `f` with a view of an epoch with these logs.
        pub(super) fn view_of<T>(
            &mut self,
            epoch: usize,
            logs: &Logs,
            look: impl FnOnce(&View<'_>) -> T,
        ) -> T {
            look(&View {
                epoch,
                epochs: 10,
                step: self.step,
                iterations: self.step,
                batch: 0,
                steps_per_epoch: None,
                logs,
                metrics: logs,
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
            let rate = [("lr".to_string(), self.learning_rate)].into_iter().collect();
            self.history.push(epoch, &rate, 2.0, 100);
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
}
