//! Learning rates and counters of the optimizers of an objective. The state of the run holds what changes.

use super::train_state::checked_rate;
use super::{Accumulation, Objective, StepKind, TrainState};
use crate::error::{Error, Result};
use crate::model::update_graph::members;
use crate::optimizers::Optimizer;
use crate::schedules::LearningRate;
use phalanx_graph::ParamId;

impl Objective {
    /// The learning rate of the next step.
    pub fn learning_rate(&self, state: &TrainState) -> f64 {
        let optimizer = &*self.optimizer;
        let inside = self.custom.as_ref().filter(|custom| !custom.fused);
        let held = inside.and_then(|c| c.optimizers.iter().position(|o| o.optimizer.is_none()));
        match (state.set_rate(), held) {
            (None, Some(index)) => state.optimizers[index].scheduled_rate(optimizer),
            _ => state.learning_rate(optimizer, 0),
        }
    }

    /// Fails if a schedule of the user gives no usable rate after `ahead` more steps.
    pub fn check_learning_rate(&self, state: &TrainState, ahead: u64) -> Result<()> {
        let step = state.iterations() + ahead;
        let others = self.custom.iter().flat_map(|custom| &custom.optimizers);
        let others = others.filter_map(|other| other.optimizer.as_deref()).flat_map(members);
        for member in members(&*self.optimizer).into_iter().chain(others) {
            let rate = &member.common().learning_rate;
            if let LearningRate::Custom(schedule) = rate {
                let (owner, rate) = (format!("{schedule:?}"), rate.at(step));
                if !rate.is_finite() || rate < 0.0 {
                    let argument = format!("learning rate of step {step}");
                    let expected = "a finite rate from 0 up";
                    return Err(Error::argument(owner, argument, expected, rate));
                }
            }
        }
        Ok(())
    }

    /// Overrides the optimizer's learning rate from the next step on.
    pub fn set_learning_rate(&self, state: &mut TrainState, model: &str, rate: f64) -> Result<()> {
        check_has_one_rate(&format!("model '{model}'"), &*self.optimizer)?;
        state.set_learning_rate(model, rate)
    }

    /// Gradient accumulation as the optimizer requests it.
    pub fn accumulation(&self) -> Option<Accumulation> {
        let every = self.accumulation_steps()?;
        Some(Accumulation { every, last: false, by_rows: false })
    }

    /// Counts the updates inside the graph of the training step that has run.
    pub fn advance_optimizers(&self, state: &mut TrainState, fetched: &[Vec<f32>]) {
        let Some(custom) = &self.custom else { return };
        let metrics: usize = self.metrics.iter().map(Vec::len).sum();
        // Behind losses, penalty and metrics the step fetches whether the gradients of scaled losses are finite.
        let mut fetched = fetched.iter().skip(custom.losses(StepKind::Train).len() + 1 + metrics);
        for update in &custom.updates {
            let finite = match update.scaled {
                true => fetched.next().is_some_and(|values| values.first() == Some(&1.0)),
                false => true,
            };
            if finite {
                let optimizer = self.step_optimizer(custom, update.optimizer);
                let counters = &mut state.optimizers[update.optimizer];
                *counters = counters.next(optimizer);
            }
        }
    }

    /// The moving averages that updates inside the graph keep, by weight. Before the first update they are the weights.
    pub fn graph_averages(&self, state: &TrainState) -> impl Iterator<Item = (ParamId, ParamId)> {
        let updates = self.custom.iter().flat_map(|custom| &custom.updates);
        let weights = updates.flat_map(|update| {
            let begun = state.optimizers[update.optimizer].updates > 0;
            update.weights.iter().map(move |weight| (weight, begun))
        });
        weights.filter_map(|(weight, begun)| {
            let average = weight.average?;
            Some((weight.param, if begun { average } else { weight.param }))
        })
    }

    /// The optimizer of a custom step by its name.
    fn optimizer_index(&self, name: &str) -> Result<usize> {
        let custom = self.custom.as_ref();
        let found = custom.map(|custom| custom.optimizer_index(name));
        found.unwrap_or_else(|| Err(Error::argument("learning_rate", "optimizer", "none", name)))
    }

    /// The learning rate that an optimizer of a custom step has in the next step.
    pub fn learning_rate_of(&self, state: &TrainState, name: &str) -> Result<f64> {
        let index = self.optimizer_index(name)?;
        let Some(custom) = &self.custom else { return Ok(self.learning_rate(state)) };
        Ok(match &custom.optimizers[index].optimizer {
            None => self.learning_rate(state),
            Some(optimizer) => {
                let counters = &state.optimizers[index];
                let set = counters.learning_rate.map(|rate| rate.0);
                set.unwrap_or_else(|| counters.scheduled_rate(&**optimizer))
            }
        })
    }

    /// Overrides the learning rate of an optimizer of a custom step.
    pub fn set_learning_rate_of(
        &self,
        state: &mut TrainState,
        (model, name): (&str, &str),
        rate: f64,
    ) -> Result<()> {
        let index = self.optimizer_index(name)?;
        let custom = self.custom.as_ref();
        let Some(optimizer) = custom.and_then(|c| c.optimizers[index].optimizer.as_ref()) else {
            return self.set_learning_rate(state, model, rate);
        };
        check_has_one_rate(&format!("optimizer '{name}'"), &**optimizer)?;
        let rate = checked_rate(&format!("optimizer '{name}'"), rate)?;
        state.optimizers[index].learning_rate = Some(rate);
        Ok(())
    }
}

/// Fails if an optimizer joins several, each with its own learning rate.
fn check_has_one_rate(owner: &str, optimizer: &dyn Optimizer) -> Result<()> {
    if optimizer.optimizers().is_empty() {
        return Ok(());
    }
    let expected = "an optimizer with one learning rate";
    Err(Error::argument(owner, "learning_rate", expected, optimizer.rule_name()))
}
