//! Evaluation with the moving averages of the weights.

use super::{Action, Callback, CallbackState, View};
use crate::error::{Error, Result};
use phalanx_graph::Tensor;

const OWNER: &str = "SwapEMAWeights";

/// Values of weights by name.
type Weights = Vec<(String, Vec<f32>)>;

/// Replaces the weights by their moving averages (the optimizer's `use_ema`) during evaluations and predictions, and with
/// `swap_on_epoch` between epochs too, so that a checkpoint has the averages. Put it before the callback that saves.
#[derive(Clone, Debug, Default)]
pub struct SwapEMAWeights {
    swap_on_epoch: bool,
    /// The weights, while the averages stand in their place.
    weights: Option<Weights>,
}

impl SwapEMAWeights {
    /// Replaces the weights during evaluations and predictions.
    pub fn new() -> SwapEMAWeights {
        SwapEMAWeights::default()
    }

    /// Whether the averages stay in place from the end of an epoch to the start of the next.
    #[must_use]
    pub fn swap_on_epoch(mut self, swap_on_epoch: bool) -> SwapEMAWeights {
        self.swap_on_epoch = swap_on_epoch;
        self
    }

    fn swap_in(&mut self, view: &View<'_>) -> Result<Action> {
        if self.weights.is_some() {
            return Ok(Action::Continue);
        }
        let averages = view.weights.averages()?;
        if averages.is_empty() {
            let expected = "one with a moving average of the weights (use_ema)";
            return Err(Error::argument(OWNER, "optimizer", expected, "one without"));
        }
        let weight = |(name, _): &(String, Vec<f32>)| Ok((name.clone(), view.weights.get(name)?));
        self.weights = Some(averages.iter().map(weight).collect::<Result<_>>()?);
        Ok(Action::RestoreWeights(averages))
    }

    fn swap_out(&mut self) -> Result<Action> {
        Ok(self.weights.take().map_or(Action::Continue, Action::RestoreWeights))
    }
}

impl Callback for SwapEMAWeights {
    fn wants_batch_events(&self) -> bool {
        false
    }

    fn setup(&self) -> Option<String> {
        Some(format!("{OWNER} swap_on_epoch={}", self.swap_on_epoch))
    }

    fn on_train_begin(&mut self, _view: &View<'_>) -> Result<Action> {
        self.weights = None;
        Ok(Action::Continue)
    }

    fn state(&mut self) -> Result<CallbackState> {
        let mut state = CallbackState::default();
        for (name, values) in self.weights.iter().flatten() {
            state.tensors.push((name.clone(), Tensor::new([values.len()], values.clone())?));
        }
        Ok(state)
    }

    fn on_train_resume(&mut self, view: &View<'_>, state: &CallbackState) -> Result<Action> {
        let begun = self.on_train_begin(view)?;
        let weight =
            |(name, tensor): &(String, Tensor)| Some((name.clone(), tensor.f32()?.to_vec()));
        let weights: Weights = state.tensors.iter().filter_map(weight).collect();
        self.weights = Some(weights).filter(|weights| !weights.is_empty());
        Ok(begun)
    }

    fn on_epoch_begin(&mut self, _view: &View<'_>) -> Result<Action> {
        self.swap_out()
    }

    fn on_epoch_end(&mut self, view: &View<'_>) -> Result<Action> {
        if self.swap_on_epoch { self.swap_in(view) } else { Ok(Action::Continue) }
    }

    fn on_test_begin(&mut self, view: &View<'_>) -> Result<Action> {
        self.swap_in(view)
    }

    fn on_test_end(&mut self, _view: &View<'_>) -> Result<Action> {
        self.swap_out()
    }

    fn on_predict_begin(&mut self, view: &View<'_>) -> Result<Action> {
        self.swap_in(view)
    }

    fn on_predict_end(&mut self, _view: &View<'_>) -> Result<Action> {
        self.swap_out()
    }

    /// The averages are the result of training.
    fn on_train_end(&mut self, _view: &View<'_>) -> Result<Action> {
        self.weights = None;
        Ok(Action::Continue)
    }
}
