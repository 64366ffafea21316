//! The learning rate as a function of the epoch.

use super::{Action, Callback, View};
use crate::error::{Error, Result};

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

#[cfg(test)]
mod tests {
    use super::super::tests::with_view;
    use super::*;

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
}
