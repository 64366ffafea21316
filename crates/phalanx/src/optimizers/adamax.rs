//! Adamax: Adam with the largest gradient instead of the mean square.
//!
//! `m = β₁ m + (1 - β₁) g`, `u = max(β₂ u, |g|)`, `w -= lr / (1 - β₁ᵗ) · m / (u + ε)`.

use super::{Common, Optimizer, OptimizerExt, check_beta, zeros};
use crate::config::options;
use crate::error::Result;
use crate::registry::keras_class;
use crate::schedules::{LearningRate, check_non_negative};
use phalanx_graph::ops::{Binary, Unary};
use phalanx_graph::update::{Reg, RuleBuilder, Slot};

options! {
    /// Adamax.
    pub struct Adamax {
        common: Common::new("adamax", 0.001);
        /// The decay rate of the average gradient.
        beta_1: f64 = 0.9,
        /// The decay rate of the largest gradient.
        beta_2: f64 = 0.999,
        /// A small constant that prevents a division by zero.
        epsilon: f64 = 1e-7,
    }
}

impl Adamax {
    /// Creates the optimizer with the given learning rate.
    pub fn new(learning_rate: impl Into<LearningRate>) -> Self {
        Adamax::default().learning_rate(learning_rate)
    }
}

impl Optimizer for Adamax {
    keras_class!("Adamax", common);

    fn slots(&self) -> Vec<Slot> {
        vec![zeros("momentum"), zeros("norm")]
    }

    fn slots_per_weight(&self) -> usize {
        2
    }

    fn step_scalars(&self, learning_rate: f64, step: u64) -> Vec<f64> {
        vec![learning_rate / (1.0 - self.beta_1.powf(step as f64))]
    }

    fn validate_step(&self) -> Result<()> {
        check_beta(self.class_name(), "beta_1", self.beta_1)?;
        check_beta(self.class_name(), "beta_2", self.beta_2)?;
        check_non_negative(self.class_name(), "epsilon", self.epsilon)
    }

    fn step(&self, b: &mut RuleBuilder, weight: Reg, gradient: Reg) -> (Reg, Vec<Reg>) {
        let (m, norm, alpha) = (b.slot(0), b.slot(1), b.scalar(0));
        let m = b.blend(self.beta_1, m, gradient);
        let kept = b.scale(norm, self.beta_2);
        let size = b.unary(Unary::Abs, gradient);
        let norm = b.binary(Binary::Max, kept, size);
        let epsilon = b.constant(self.epsilon);
        let divisor = b.add(norm, epsilon);
        let change = b.mul(m, alpha);
        let change = b.div(change, divisor);
        (b.sub(weight, change), vec![m, norm])
    }
}
