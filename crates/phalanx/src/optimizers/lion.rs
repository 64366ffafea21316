//! Lion: steps of one size, along the sign of the momentum.
//!
//! `w -= lr · sign(β₁ m + (1 - β₁) g)`, then `m = β₂ m + (1 - β₂) g`.

use super::{Common, Optimizer, check_fraction};
use crate::config;
use crate::error::Result;
use crate::schedules::LearningRate;
use phalanx_graph::ops::Unary;
use phalanx_graph::update::{Reg, RuleBuilder, Slot};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

/// Lion.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Lion {
    /// The options that all optimizers share.
    #[serde(flatten)]
    pub common: Common,
    /// Weight of the momentum in the step's direction.
    pub beta_1: f64,
    /// The decay rate of the momentum.
    pub beta_2: f64,
}

impl Default for Lion {
    fn default() -> Self {
        Lion { common: Common::new("lion", 0.001), beta_1: 0.9, beta_2: 0.99 }
    }
}

impl Lion {
    /// Creates the optimizer with the given learning rate.
    pub fn new(learning_rate: impl Into<LearningRate>) -> Self {
        let mut lion = Lion::default();
        lion.common.learning_rate = learning_rate.into();
        lion
    }

    /// Weight of the momentum in the step's direction.
    pub fn beta_1(mut self, beta_1: f64) -> Self {
        self.beta_1 = beta_1;
        self
    }

    /// The decay rate of the momentum.
    pub fn beta_2(mut self, beta_2: f64) -> Self {
        self.beta_2 = beta_2;
        self
    }
}

impl Optimizer for Lion {
    fn class_name(&self) -> &'static str {
        "Lion"
    }

    fn config(&self) -> Map<String, Value> {
        config::write(self)
    }

    fn common(&self) -> &Common {
        &self.common
    }

    fn common_mut(&mut self) -> &mut Common {
        &mut self.common
    }

    fn slots(&self) -> Vec<Slot> {
        vec![super::zeros("momentum")]
    }

    fn step_scalars(&self, learning_rate: f64, _step: u64) -> Vec<f64> {
        vec![learning_rate]
    }

    fn validate_step(&self) -> Result<()> {
        check_fraction(self.class_name(), "beta_1", self.beta_1)?;
        check_fraction(self.class_name(), "beta_2", self.beta_2)
    }

    fn step(&self, b: &mut RuleBuilder, weight: Reg, gradient: Reg) -> (Reg, Vec<Reg>) {
        let (m, lr) = (b.slot(0), b.scalar(0));
        let direction = b.blend(self.beta_1, m, gradient);
        let direction = b.unary(Unary::Sign, direction);
        let change = b.mul(direction, lr);
        let m = b.blend(self.beta_2, m, gradient);
        (b.sub(weight, change), vec![m])
    }
}
