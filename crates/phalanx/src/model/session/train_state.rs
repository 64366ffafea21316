//! The counters of a training run.

use crate::error::{Error, Result};
use crate::json_float::JsonFloat;
use crate::model::update_graph;
use crate::optimizers::Optimizer;
use phalanx_exec::Accumulate;
use serde::{Deserialize, Serialize};

/// The counters of a training run, as files store them.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct TrainState {
    pub seed: u64,
    /// Training steps so far: the counter of random numbers.
    pub steps: u64,
    /// Optimizer updates so far.
    pub updates: u64,
    /// Training steps whose gradients were not finite. They changed nothing.
    #[serde(default)]
    pub skipped: u64,
    /// Batches accumulated towards the next update, and their weight.
    #[serde(rename = "gathered")]
    accumulated: (u64, JsonFloat),
    /// Set by a callback or the user; overrides the optimizer's own.
    learning_rate: Option<JsonFloat>,
    optimizer: String,
    deterministic: bool,
    /// What the loss is multiplied by before it is differentiated. Files store it with its tensor.
    #[serde(skip)]
    pub loss_scale: Option<f32>,
    /// The optimizers of a custom training step.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub optimizers: Vec<OptimizerCounters>,
}

/// The counters of an optimizer that updates inside the graph.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct OptimizerCounters {
    /// Its calls with finite gradients.
    pub iterations: u64,
    /// Its updates.
    pub updates: u64,
    /// Calls accumulated towards the next update.
    accumulated: u64,
    /// Set by the user; overrides the optimizer's own.
    pub learning_rate: Option<JsonFloat>,
}

impl OptimizerCounters {
    /// The part of the next call in an update made of several.
    fn accumulate(&self, optimizer: &dyn Optimizer) -> Option<Accumulate> {
        let every = optimizer.common().gradient_accumulation_steps?;
        let apply = (self.accumulated + 1 >= every).then(|| (1.0 / every as f64) as f32);
        Some(Accumulate { first: self.accumulated == 0, weight: 1.0, apply })
    }

    /// The counters after a call with finite gradients.
    pub fn next(&self, optimizer: &dyn Optimizer) -> OptimizerCounters {
        let applies = self.accumulate(optimizer).is_none_or(|part| part.apply.is_some());
        OptimizerCounters {
            iterations: self.iterations + 1,
            updates: self.updates + u64::from(applies),
            accumulated: if applies { 0 } else { self.accumulated + 1 },
            learning_rate: self.learning_rate,
        }
    }

    /// The learning rate of the next call, unless it is set.
    pub fn scheduled_rate(&self, optimizer: &dyn Optimizer) -> f64 {
        optimizer.common().learning_rate.at(self.iterations)
    }

    /// The numbers that the next call is fed. `set` overrides the learning rate of an optimizer that joins no others.
    pub fn numbers(&self, optimizer: &dyn Optimizer, set: Option<f64>) -> Vec<f32> {
        let set = set.filter(|_| optimizer.optimizers().is_empty());
        let rate = |member: &dyn Optimizer| set.unwrap_or_else(|| self.scheduled_rate(member));
        update_graph::numbers(optimizer, self.accumulate(optimizer), self.updates + 1, rate)
    }
}

/// How gradients of several batches make an update.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Accumulation {
    /// Batches of an update.
    pub every: u64,
    /// Whether this is the last batch of the epoch, which updates with what there is.
    pub last: bool,
    /// Whether batches count by their rows, as for `fit`. Otherwise each counts as one, as for Keras'
    /// optimizers.
    pub by_rows: bool,
}

impl TrainState {
    pub fn new(seed: u64, optimizer: &dyn Optimizer, deterministic: bool) -> TrainState {
        TrainState {
            seed,
            steps: 0,
            updates: 0,
            skipped: 0,
            accumulated: (0, JsonFloat(0.0)),
            learning_rate: None,
            optimizer: optimizer.rule_name(),
            deterministic,
            loss_scale: optimizer.inner().map(|(_, scaling)| scaling.initial_scale as f32),
            optimizers: vec![],
        }
    }

    /// Training steps that counted, as Keras' optimizers count them.
    pub fn iterations(&self) -> u64 {
        self.steps - self.skipped
    }

    /// The learning rate that a callback or the user has set.
    pub fn set_rate(&self) -> Option<f64> {
        self.learning_rate.map(|rate| rate.0)
    }

    /// Overrides the optimizer's learning rate from this step on.
    pub fn set_learning_rate(&mut self, model: &str, rate: f64) -> Result<()> {
        self.learning_rate = Some(checked_rate(&format!("model '{model}'"), rate)?);
        Ok(())
    }

    /// The learning rate after `ahead` more iterations.
    pub fn learning_rate(&self, optimizer: &dyn Optimizer, ahead: u64) -> f64 {
        let scheduled = || optimizer.common().learning_rate.at(self.iterations() + ahead);
        self.set_rate().unwrap_or_else(scheduled)
    }

    /// The optimizer's scalars after `ahead` more updates, if no step before is skipped.
    pub fn scalars(&self, optimizer: &dyn Optimizer, ahead: u64) -> Vec<f32> {
        let rate = self.learning_rate(optimizer, ahead);
        optimizer.scalars(rate, self.updates + 1 + ahead)
    }

    /// The numbers that an update of whole weights is fed, after `ahead` more updates.
    pub fn numbers(
        &self,
        optimizer: &dyn Optimizer,
        accumulate: Option<Accumulate>,
        ahead: u64,
    ) -> Vec<f32> {
        let joined = !optimizer.optimizers().is_empty();
        let rate = |member: &dyn Optimizer| match joined {
            true => member.common().learning_rate.at(self.iterations() + ahead),
            false => self.learning_rate(optimizer, ahead),
        };
        update_graph::numbers(optimizer, accumulate, self.updates + 1 + ahead, rate)
    }

    /// Batches accumulated towards the next update, and their weight.
    pub fn accumulated(&self) -> (u64, f64) {
        (self.accumulated.0, self.accumulated.1.0)
    }

    /// Sets how many batches are accumulated, and their weight.
    pub fn set_accumulated(&mut self, (batches, weight): (u64, f64)) {
        self.accumulated = (batches, JsonFloat(weight));
    }

    /// A batch's part in an update made of several, and what is accumulated once it has run.
    pub fn accumulate(&self, how: Accumulation, rows: usize) -> (Accumulate, (u64, f64)) {
        let (count, sum) = self.accumulated();
        let weight = match (how.by_rows, count) {
            (true, _) => rows as f64,
            (false, 0) => 1.0,
            // As much as each before it: runs of earlier versions counted rows.
            (false, _) => sum / count as f64,
        };
        let (count, sum) = (count + 1, sum + weight);
        let apply = count >= how.every || how.last;
        let part = Accumulate {
            first: count == 1,
            weight: weight as f32,
            apply: apply.then(|| if sum > 0.0 { (1.0 / sum) as f32 } else { 0.0 }),
        };
        (part, if apply { (0, 0.0) } else { (count, sum) })
    }

    /// Counts a training step. `fetched_scale` is the state of the loss scale after it: the scale, the
    /// finite steps, and whether this one was finite. Returns whether the step counts.
    pub fn advance(&mut self, fetched_scale: Option<&[f32]>) -> bool {
        self.steps += 1;
        let (Some(scale), Some(&[new, _, finite])) = (&mut self.loss_scale, fetched_scale) else {
            return true;
        };
        *scale = new;
        if finite != 0.0 {
            return true;
        }
        self.skipped += 1;
        let step = self.steps;
        tracing::debug!("step {step} is skipped: gradients are not finite; loss scale {new}");
        false
    }

    /// Counts the iterations that a file stores.
    pub fn set_iterations(&mut self, iterations: u64, accumulation_steps: Option<u64>) {
        (self.steps, self.skipped) = (iterations, 0);
        self.updates = iterations / accumulation_steps.unwrap_or(1).max(1);
    }

    /// Fails unless `saved` comes from a run set up as this one.
    pub fn check(&self, model: &str, saved: &TrainState) -> Result<()> {
        if saved.optimizer != self.optimizer {
            let expected = format!("optimizer {}", saved.optimizer);
            return Err(mismatch(model, &expected, &self.optimizer));
        }
        if saved.deterministic != self.deterministic {
            let word = |fixed: bool| if fixed { "deterministic mode" } else { "the usual mode" };
            return Err(mismatch(model, word(saved.deterministic), word(self.deterministic)));
        }
        if saved.optimizers.len() != self.optimizers.len() {
            let expected = format!("{} optimizers", saved.optimizers.len());
            return Err(mismatch(model, &expected, &self.optimizers.len().to_string()));
        }
        if saved.seed != self.seed {
            let expected = format!("seed {}", saved.seed);
            return Err(mismatch(model, &expected, &self.seed.to_string()));
        }
        Ok(())
    }
}

/// A learning rate that a user sets.
pub(super) fn checked_rate(owner: &str, rate: f64) -> Result<JsonFloat> {
    match rate.is_finite() && rate >= 0.0 {
        true => Ok(JsonFloat(rate)),
        false => Err(Error::argument(owner, "learning_rate", "a finite rate from 0 up", rate)),
    }
}

/// The error of a saved state that is not of this model.
pub(super) fn mismatch(model: &str, expected: &str, received: &str) -> Error {
    let owner = format!("model '{model}'");
    Error::argument(owner, "state of an earlier run", expected, received)
}
