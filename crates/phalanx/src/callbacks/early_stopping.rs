//! Stops training when a metric no longer improves.

use super::{Action, Callback, CallbackState, View};
use crate::config::setters;
use crate::error::{Error, Result};
use crate::json_float::JsonFloat;
use phalanx_graph::Tensor;

const OWNER: &str = "EarlyStopping";

/// The direction in which a metric improves.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Mode {
    /// Derived from the name of the metric: losses and errors decrease, accuracies increase.
    #[default]
    Auto,
    /// Lower is better.
    Min,
    /// Higher is better.
    Max,
}

impl Mode {
    /// Whether higher is better for this metric.
    pub(super) fn higher_is_better(self, owner: &str, monitor: &str) -> Result<bool> {
        const HIGHER_IS_BETTER: [&str; 6] =
            ["accuracy", "acc", "auc", "precision", "recall", "f1_score"];
        const LOWER_IS_BETTER: [&str; 10] = [
            "loss",
            "mse",
            "mae",
            "rmse",
            "error",
            "crossentropy",
            "divergence",
            "hinge",
            "huber",
            "cosh",
        ];
        // Metrics of several outputs are named `output_metric`, repeated ones `metric_1`.
        let name = monitor.trim_end_matches(|c: char| c.is_ascii_digit() || c == '_');
        let ends = |known: &str| {
            name.strip_suffix(known).is_some_and(|head| head.is_empty() || head.ends_with('_'))
        };
        match self {
            Mode::Min => Ok(false),
            Mode::Max => Ok(true),
            Mode::Auto if HIGHER_IS_BETTER.iter().any(|k| ends(k)) => Ok(true),
            Mode::Auto if LOWER_IS_BETTER.iter().any(|k| ends(k)) => Ok(false),
            Mode::Auto => {
                let expected = "Min or Max for a metric whose name does not imply a direction";
                let received = format!("Auto for '{monitor}'");
                Err(Error::argument(owner, "mode", expected, received))
            }
        }
    }
}

/// Stops training when a metric has not improved for `patience` epochs.
///
/// ```
/// use phalanx::callbacks::EarlyStopping;
///
/// let callback = EarlyStopping::new("val_loss").patience(3).restore_best_weights(true);
/// ```
#[derive(Clone, Debug)]
pub struct EarlyStopping {
    monitor: String,
    min_delta: f64,
    patience: usize,
    mode: Mode,
    baseline: Option<f64>,
    restore_best_weights: bool,
    start_from_epoch: usize,
    wait: usize,
    best: Option<f64>,
    best_weights: Option<Vec<(String, Vec<f32>)>>,
}

impl Default for EarlyStopping {
    fn default() -> EarlyStopping {
        EarlyStopping::new("val_loss")
    }
}

impl EarlyStopping {
    /// Monitors a metric, with Keras' defaults.
    pub fn new(monitor: &str) -> EarlyStopping {
        EarlyStopping {
            monitor: monitor.into(),
            min_delta: 0.0,
            patience: 0,
            mode: Mode::Auto,
            baseline: None,
            restore_best_weights: false,
            start_from_epoch: 0,
            wait: 0,
            best: None,
            best_weights: None,
        }
    }

    /// The minimum change that counts as an improvement.
    pub fn min_delta(mut self, min_delta: f64) -> EarlyStopping {
        self.min_delta = min_delta.abs();
        self
    }

    setters! {
        /// The number of epochs without improvement after which training stops.
        patience: usize,
        /// The direction in which the metric improves.
        mode: Mode,
        /// A value to reach within the patience.
        baseline: f64,
        /// Whether to restore the weights of the best epoch at the end.
        restore_best_weights: bool,
        /// The number of initial epochs that are not monitored.
        start_from_epoch: usize,
    }

    fn improves(&self, value: f64, reference: f64) -> Result<bool> {
        Ok(match self.mode.higher_is_better(OWNER, &self.monitor)? {
            true => value - self.min_delta > reference,
            false => value + self.min_delta < reference,
        })
    }
}

impl Callback for EarlyStopping {
    fn wants_batch_events(&self) -> bool {
        false
    }

    fn setup(&self) -> Option<String> {
        let fresh = EarlyStopping { wait: 0, best: None, best_weights: None, ..self.clone() };
        Some(format!("{fresh:?}"))
    }

    fn on_train_begin(&mut self, view: &View<'_>) -> Result<Action> {
        view.check_monitor(OWNER, &self.monitor)?;
        self.mode.higher_is_better(OWNER, &self.monitor)?;
        (self.wait, self.best, self.best_weights) = (0, None, None);
        Ok(Action::Continue)
    }

    fn state(&mut self) -> Result<CallbackState> {
        let mut state = CallbackState::of((self.wait, self.best.map(JsonFloat)));
        for (name, values) in self.best_weights.iter().flatten() {
            state.tensors.push((name.clone(), Tensor::new([values.len()], values.clone())?));
        }
        Ok(state)
    }

    fn on_train_resume(&mut self, view: &View<'_>, state: &CallbackState) -> Result<Action> {
        let begun = self.on_train_begin(view)?;
        let (wait, best): (usize, Option<JsonFloat>) = state.read(OWNER)?;
        (self.wait, self.best) = (wait, best.map(|b| b.0));
        let weight =
            |(name, tensor): &(String, Tensor)| Some((name.clone(), tensor.f32()?.to_vec()));
        let weights: Vec<_> = state.tensors.iter().filter_map(weight).collect();
        self.best_weights = Some(weights).filter(|weights| !weights.is_empty());
        Ok(begun)
    }

    fn on_epoch_end(&mut self, view: &View<'_>) -> Result<Action> {
        let Some(current) = view.monitored(OWNER, &self.monitor)? else {
            return Ok(Action::Continue);
        };
        if view.epoch < self.start_from_epoch {
            return Ok(Action::Continue);
        }
        // NaN is never the best value, not even as the first.
        let improved = match self.best {
            None => !current.is_nan(),
            Some(best) => self.improves(current, best)?,
        };
        if self.restore_best_weights && (improved || self.best_weights.is_none()) {
            let weight = |name: String| {
                let values = view.weights.get(&name)?;
                Ok((name, values))
            };
            let weights = view.weights.names().into_iter().map(weight);
            self.best_weights = Some(weights.collect::<Result<_>>()?);
        }
        self.wait += 1;
        if improved {
            self.best = Some(current);
            let reached = self.baseline.map_or(Ok(true), |b| self.improves(current, b))?;
            if reached {
                self.wait = 0;
            }
            return Ok(Action::Continue);
        }
        let stop = self.wait >= self.patience && view.epoch > 0;
        Ok(if stop { Action::Stop } else { Action::Continue })
    }

    fn on_train_end(&mut self, _view: &View<'_>) -> Result<Action> {
        Ok(self.best_weights.take().map_or(Action::Continue, Action::RestoreWeights))
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::with_view;
    use super::*;

    /// Runs the callback. Returns the epoch after which it stopped, and its action at the end of training.
    fn run(mut callback: EarlyStopping, metric: &str, values: &[f64]) -> (Option<usize>, Action) {
        let begin = with_view(0, (metric, 0.0), 0.0, |v| callback.on_train_begin(v));
        assert_eq!(begin.unwrap(), Action::Continue);
        let mut stopped = None;
        for (epoch, value) in values.iter().enumerate() {
            let weight = epoch as f32;
            let action = with_view(epoch, (metric, *value), weight, |v| callback.on_epoch_end(v));
            if action.unwrap() == Action::Stop {
                stopped = Some(epoch);
                break;
            }
        }
        let end = with_view(0, (metric, 0.0), 0.0, |v| callback.on_train_end(v)).unwrap();
        (stopped, end)
    }

    fn stops(callback: EarlyStopping, metric: &str, values: &[f64]) -> Option<usize> {
        run(callback, metric, values).0
    }

    #[test]
    fn patience_counts_epochs_without_improvement() {
        let falling = [5.0, 4.0, 4.5, 3.0, 3.5, 3.5, 3.5];
        let watch = |patience| EarlyStopping::new("val_loss").patience(patience);
        assert_eq!(stops(watch(0), "val_loss", &falling), Some(2));
        assert_eq!(stops(watch(1), "val_loss", &falling), Some(2));
        assert_eq!(stops(watch(2), "val_loss", &falling), Some(5));
        assert_eq!(stops(watch(9), "val_loss", &falling), None);
    }

    #[test]
    fn the_direction_comes_from_the_name_or_the_mode() {
        let rising = [0.1, 0.2, 0.3, 0.2];
        for metric in ["accuracy", "val_sparse_categorical_accuracy", "head_acc", "auc_1"] {
            assert_eq!(stops(EarlyStopping::new(metric), metric, &rising), Some(3), "{metric}");
        }
        for metric in ["loss", "head_loss", "val_mean_squared_error", "kl_divergence"] {
            assert_eq!(stops(EarlyStopping::new(metric), metric, &rising), Some(1), "{metric}");
        }
        let score = EarlyStopping::new("score");
        assert_eq!(stops(score.clone().mode(Mode::Max), "score", &rising), Some(3));
        assert_eq!(stops(score.clone().mode(Mode::Min), "score", &rising), Some(1));
        let mut unclear = score;
        let error = with_view(0, ("score", 1.0), 0.0, |v| unclear.on_train_begin(v)).unwrap_err();
        assert!(error.to_string().contains("received Auto for 'score'"), "{error}");
    }

    #[test]
    fn small_changes_do_not_count_and_the_start_is_not_watched() {
        let values = [1.0, 0.95, 0.93, 0.85, 0.84, 0.83, 0.82];
        let watch = EarlyStopping::new("loss").min_delta(-0.1).patience(3);
        assert_eq!(stops(watch, "loss", &values), Some(6));
        let late = EarlyStopping::new("loss").start_from_epoch(3);
        assert_eq!(stops(late, "loss", &[1.0, 2.0, 3.0, 4.0, 5.0]), Some(4));
    }

    #[test]
    fn a_baseline_must_be_reached_within_the_patience() {
        let watch = EarlyStopping::new("accuracy").baseline(0.5).patience(3);
        assert_eq!(stops(watch.clone(), "accuracy", &[0.1, 0.2, 0.3, 0.1]), Some(3));
        assert_eq!(stops(watch, "accuracy", &[0.1, 0.6, 0.5, 0.5, 0.5]), Some(4));
    }

    #[test]
    fn the_best_weights_come_back() {
        let watch = EarlyStopping::new("loss").patience(2).restore_best_weights(true);
        let best =
            |epoch: f32| Action::RestoreWeights(vec![("dense/kernel".to_string(), vec![epoch])]);
        let nan = f64::NAN;
        assert_eq!(run(watch.clone(), "loss", &[2.0, 1.0, 3.0, 3.0]), (Some(3), best(1.0)));
        assert_eq!(run(watch.clone(), "loss", &[2.0, 1.0]), (None, best(1.0)));
        assert_eq!(run(watch, "loss", &[nan, 1.0, nan, nan]), (Some(3), best(1.0)));
        let plain = EarlyStopping::new("loss");
        assert_eq!(run(plain, "loss", &[1.0, 2.0]), (Some(1), Action::Continue));
    }

    #[test]
    fn an_unknown_metric_is_named_with_those_there_are() {
        let message = |mut watch: EarlyStopping| {
            with_view(0, ("loss", 1.0), 0.0, |view| {
                let begin = watch.on_train_begin(view).unwrap_err().to_string();
                assert_eq!(begin, watch.on_epoch_end(view).unwrap_err().to_string());
                begin
            })
        };
        let unknown = message(EarlyStopping::new("my_loss"));
        assert_eq!(unknown, "EarlyStopping: monitor: expected one of loss, received 'my_loss'");
        let validation = message(EarlyStopping::default());
        assert_eq!(
            validation,
            "EarlyStopping: monitor: expected validation_data or validation_split in fit, or one of \
             loss, received 'val_loss' without either"
        );
    }
}
