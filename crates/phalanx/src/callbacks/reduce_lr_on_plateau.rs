//! Reduces the learning rate when a metric no longer improves.

use super::{Action, Callback, CallbackState, Mode, View};
use crate::config::setters;
use crate::error::{Error, Result};
use crate::json_float::JsonFloat;

const OWNER: &str = "ReduceLROnPlateau";

/// Reduces the learning rate when a metric has not improved for `patience` epochs.
///
/// ```
/// use phalanx::callbacks::ReduceLROnPlateau;
///
/// let callback = ReduceLROnPlateau::new("val_loss").factor(0.2).patience(5).min_lr(1e-3);
/// ```
#[derive(Clone, Debug)]
pub struct ReduceLROnPlateau {
    monitor: String,
    factor: f64,
    patience: usize,
    mode: Mode,
    min_delta: f64,
    cooldown: usize,
    min_lr: f64,
    best: Option<f64>,
    wait: usize,
    cooling: usize,
}

impl Default for ReduceLROnPlateau {
    fn default() -> ReduceLROnPlateau {
        ReduceLROnPlateau::new("val_loss")
    }
}

impl ReduceLROnPlateau {
    /// Monitors a metric, with Keras' defaults: a tenth of the rate after 10 epochs without an improvement of
    /// more than 1e-4.
    pub fn new(monitor: &str) -> ReduceLROnPlateau {
        ReduceLROnPlateau {
            monitor: monitor.into(),
            factor: 0.1,
            patience: 10,
            mode: Mode::Auto,
            min_delta: 1e-4,
            cooldown: 0,
            min_lr: 0.0,
            best: None,
            wait: 0,
            cooling: 0,
        }
    }

    setters! {
        /// The factor of a reduction, below 1.
        factor: f64,
        /// The number of epochs without improvement after which the rate is reduced.
        patience: usize,
        /// The direction in which the metric improves.
        mode: Mode,
    }

    /// The minimum change that counts as an improvement.
    pub fn min_delta(mut self, min_delta: f64) -> ReduceLROnPlateau {
        self.min_delta = min_delta.abs();
        self
    }

    setters! {
        /// The number of epochs after a reduction that do not count as epochs without improvement.
        cooldown: usize,
        /// The minimum learning rate.
        min_lr: f64,
    }

    fn improves(&self, value: f64) -> Result<bool> {
        let higher_is_better = self.mode.higher_is_better(OWNER, &self.monitor)?;
        Ok(match self.best {
            // NaN is never the best value, not even as the first.
            None => !value.is_nan(),
            Some(best) if higher_is_better => value - self.min_delta > best,
            Some(best) => value + self.min_delta < best,
        })
    }
}

impl Callback for ReduceLROnPlateau {
    fn wants_batch_events(&self) -> bool {
        false
    }

    fn setup(&self) -> Option<String> {
        let fresh = ReduceLROnPlateau { best: None, wait: 0, cooling: 0, ..self.clone() };
        Some(format!("{fresh:?}"))
    }

    fn on_train_begin(&mut self, view: &View<'_>) -> Result<Action> {
        view.check_monitor(OWNER, &self.monitor)?;
        self.mode.higher_is_better(OWNER, &self.monitor)?;
        if !(0.0..1.0).contains(&self.factor) {
            return Err(Error::argument(OWNER, "factor", "from 0 up, below 1", self.factor));
        }
        if !(self.min_lr >= 0.0 && self.min_lr.is_finite()) {
            return Err(Error::argument(OWNER, "min_lr", "a finite rate from 0 up", self.min_lr));
        }
        (self.best, self.wait, self.cooling) = (None, 0, 0);
        Ok(Action::Continue)
    }

    fn state(&mut self) -> Result<CallbackState> {
        Ok(CallbackState::of((self.best.map(JsonFloat), self.wait, self.cooling)))
    }

    fn on_train_resume(&mut self, view: &View<'_>, state: &CallbackState) -> Result<Action> {
        let begun = self.on_train_begin(view)?;
        let (best, wait, cooling): (Option<JsonFloat>, usize, usize) = state.read(OWNER)?;
        (self.best, self.wait, self.cooling) = (best.map(|b| b.0), wait, cooling);
        Ok(begun)
    }

    fn on_epoch_end(&mut self, view: &View<'_>) -> Result<Action> {
        let Some(current) = view.monitored(OWNER, &self.monitor)? else {
            return Ok(Action::Continue);
        };
        if self.cooling > 0 {
            self.cooling -= 1;
            self.wait = 0;
        }
        if self.improves(current)? {
            self.best = Some(current);
            self.wait = 0;
            return Ok(Action::Continue);
        }
        if self.cooling > 0 {
            return Ok(Action::Continue);
        }
        self.wait += 1;
        if self.wait < self.patience || view.learning_rate <= self.min_lr {
            return Ok(Action::Continue);
        }
        (self.cooling, self.wait) = (self.cooldown, 0);
        Ok(Action::SetLearningRate((view.learning_rate * self.factor).max(self.min_lr)))
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::TestRun;
    use super::*;

    /// The learning rate after each epoch.
    fn rates(mut callback: ReduceLROnPlateau, metric: &str, values: &[f64]) -> Vec<f64> {
        let mut run = TestRun::default();
        let begin = run.view(0, &[(metric, 0.0)], |view| callback.on_train_begin(view));
        assert_eq!(begin.unwrap(), Action::Continue);
        let epoch = |(epoch, value): (usize, &f64)| {
            let action = run.view(epoch, &[(metric, *value)], |view| callback.on_epoch_end(view));
            match action.unwrap() {
                Action::SetLearningRate(rate) => run.learning_rate = rate,
                action => assert_eq!(action, Action::Continue),
            }
            run.learning_rate
        };
        values.iter().enumerate().map(epoch).collect()
    }

    fn watch(monitor: &str) -> ReduceLROnPlateau {
        ReduceLROnPlateau::new(monitor).factor(0.5).patience(2)
    }

    #[test]
    fn the_rate_falls_after_the_patience_and_not_below_its_floor() {
        let flat = [1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0];
        assert_eq!(
            rates(watch("loss"), "loss", &flat),
            [0.1, 0.1, 0.05, 0.05, 0.025, 0.025, 0.0125]
        );
        let floor = watch("loss").min_lr(0.03);
        assert_eq!(rates(floor, "loss", &flat), [0.1, 0.1, 0.05, 0.05, 0.03, 0.03, 0.03]);
    }

    #[test]
    fn improvements_start_the_wait_again() {
        let values = [1.0, 1.0, 0.9, 0.9, 0.9, 0.8];
        assert_eq!(rates(watch("loss"), "loss", &values), [0.1, 0.1, 0.1, 0.1, 0.05, 0.05]);
        // A change of less than min_delta is no improvement.
        let slow = [1.0, 0.99995, 0.9999, 0.99985];
        assert_eq!(rates(watch("loss"), "loss", &slow), [0.1, 0.1, 0.05, 0.05]);
        assert_eq!(rates(watch("loss").min_delta(0.0), "loss", &slow), [0.1; 4]);
        let rising = [0.1, 0.2, 0.3, 0.3, 0.3];
        assert_eq!(
            rates(watch("val_accuracy"), "val_accuracy", &rising),
            [0.1, 0.1, 0.1, 0.1, 0.05]
        );
    }

    #[test]
    fn the_cooldown_holds_the_wait() {
        let flat = [1.0; 8];
        let slow = watch("loss").cooldown(2);
        assert_eq!(rates(slow, "loss", &flat), [0.1, 0.1, 0.05, 0.05, 0.05, 0.025, 0.025, 0.025]);
    }

    #[test]
    fn nan_is_never_the_best() {
        let values = [f64::NAN, 1.0, f64::NAN, f64::NAN];
        assert_eq!(rates(watch("loss"), "loss", &values), [0.1, 0.1, 0.1, 0.05]);
    }

    #[test]
    fn arguments_and_metrics_are_checked() {
        let mut run = TestRun::default();
        for (mut bad, what) in [
            (watch("loss").factor(1.0), "factor: expected from 0 up, below 1, received 1"),
            (watch("loss").factor(f64::NAN), "received NaN"),
            (watch("loss").min_lr(-1.0), "min_lr"),
            (watch("score"), "ReduceLROnPlateau: mode"),
        ] {
            let metrics = [("loss", 0.0), ("score", 0.0)];
            let error = run.view(0, &metrics, |view| bad.on_train_begin(view)).unwrap_err();
            assert!(error.to_string().contains(what), "{error}");
        }
        let mut watch = ReduceLROnPlateau::default();
        let error = run.view(0, &[("loss", 1.0)], |view| watch.on_train_begin(view)).unwrap_err();
        assert!(error.to_string().contains("'val_loss' without either"), "{error}");
    }
}
