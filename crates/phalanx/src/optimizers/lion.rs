//! Lion: steps of one size, along the sign of the momentum.
//!
//! `w -= lr · sign(β₁ m + (1 - β₁) g)`, then `m = β₂ m + (1 - β₂) g`.

use super::{Common, Optimizer, OptimizerExt, check_fraction};
use crate::config::options;
use crate::error::Result;
use crate::registry::keras_class;
use crate::schedules::LearningRate;
use phalanx_graph::ops::Unary;
use phalanx_graph::update::{Reg, RuleBuilder, Slot};

options! {
    /// Lion.
    pub struct Lion {
        common: Common::new("lion", 0.001);
        /// Weight of the momentum in the step's direction.
        beta_1: f64 = 0.9,
        /// The decay rate of the momentum.
        beta_2: f64 = 0.99,
    }
}

impl Lion {
    /// Creates the optimizer with the given learning rate.
    pub fn new(learning_rate: impl Into<LearningRate>) -> Self {
        Lion::default().learning_rate(learning_rate)
    }
}

impl Optimizer for Lion {
    keras_class!("Lion", common);

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
