//! AdamW: [`Adam`] with weight decay on by default (0.004). In Keras, and so here, the decay of
//! every optimizer is decoupled from the gradient, `w -= lr · weight_decay · w`.

use super::{Adam, Common, Optimizer, OptimizerExt};
use crate::error::Result;
use crate::schedules::LearningRate;
use phalanx_graph::update::{Reg, RuleBuilder, Slot};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

/// Adam with decoupled weight decay.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct AdamW {
    adam: Adam,
}

impl Default for AdamW {
    fn default() -> Self {
        let mut adam = Adam::default();
        adam.common.name = "adamw".into();
        adam.common.weight_decay = Some(0.004);
        AdamW { adam }
    }
}

impl AdamW {
    /// Creates the optimizer with the given learning rate.
    pub fn new(learning_rate: impl Into<LearningRate>) -> Self {
        AdamW::default().learning_rate(learning_rate)
    }

    /// The decay rate of the average gradient.
    pub fn beta_1(mut self, beta_1: f64) -> Self {
        self.adam.beta_1 = beta_1;
        self
    }

    /// The decay rate of the average squared gradient.
    pub fn beta_2(mut self, beta_2: f64) -> Self {
        self.adam.beta_2 = beta_2;
        self
    }

    /// A small constant that prevents a division by zero.
    pub fn epsilon(mut self, epsilon: f64) -> Self {
        self.adam.epsilon = epsilon;
        self
    }

    /// Whether the largest average square so far is used.
    pub fn amsgrad(mut self, amsgrad: bool) -> Self {
        self.adam.amsgrad = amsgrad;
        self
    }
}

impl Optimizer for AdamW {
    fn class_name(&self) -> &'static str {
        "AdamW"
    }

    fn config(&self) -> Map<String, Value> {
        self.adam.config()
    }

    fn common(&self) -> &Common {
        self.adam.common()
    }

    fn common_mut(&mut self) -> &mut Common {
        self.adam.common_mut()
    }

    fn slots(&self) -> Vec<Slot> {
        self.adam.slots()
    }

    fn slots_per_weight(&self) -> usize {
        self.adam.slots_per_weight()
    }

    fn step_scalars(&self, learning_rate: f64, step: u64) -> Vec<f64> {
        self.adam.step_scalars(learning_rate, step)
    }

    fn validate_step(&self) -> Result<()> {
        self.adam.validate_step()
    }

    fn step(&self, b: &mut RuleBuilder, weight: Reg, gradient: Reg) -> (Reg, Vec<Reg>) {
        self.adam.step(b, weight, gradient)
    }
}
