//! The end of a run whose loss is not finite.

use super::{Action, Callback, View};
use crate::error::Result;

/// Stops training when the loss is NaN or infinite, without an error. Without this callback such a loss is an error that
/// names the step; [`Fit::on_nan`](crate::model::Fit::on_nan) chooses what happens.
#[derive(Clone, Copy, Debug, Default)]
pub struct TerminateOnNaN;

impl Callback for TerminateOnNaN {
    fn on_batch_end(&mut self, view: &View<'_>) -> Result<Action> {
        let not_finite = view.log("loss").is_some_and(|loss| !loss.is_finite());
        Ok(if not_finite { Action::Stop } else { Action::Continue })
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::with_view;
    use super::*;

    #[test]
    fn a_nan_loss_stops_training() {
        for (loss, action) in
            [(1.0, Action::Continue), (f64::NAN, Action::Stop), (f64::INFINITY, Action::Stop)]
        {
            let answer = with_view(0, ("loss", loss), 0.0, |v| TerminateOnNaN.on_batch_end(v));
            assert_eq!(answer.unwrap(), action);
        }
    }
}
