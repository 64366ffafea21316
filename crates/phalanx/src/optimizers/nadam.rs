//! Nadam: Adam with Nesterov momentum.
//!
//! `m` and `v` as in Adam; `uₜ = β₁ (1 - 0.96ᵗ / 2)`, `Pₜ = u₁ · … · uₜ`,
//! `m̂ = uₜ₊₁ m / (1 - Pₜ₊₁) + (1 - uₜ) g / (1 - Pₜ)`, `v̂ = v / (1 - β₂ᵗ)`,
//! `w -= lr · m̂ / (√v̂ + ε)`.

use super::{Common, Optimizer, OptimizerExt, check_beta, zeros};
use crate::config::options;
use crate::error::Result;
use crate::registry::keras_class;
use crate::schedules::{LearningRate, check_non_negative};
use phalanx_graph::ops::Unary;
use phalanx_graph::update::{Reg, RuleBuilder, Slot};

/// From this step on, `1 - 0.96ᵗ / 2` is 1 in f64.
const CONVERGED_STEP: u64 = 1000;

options! {
    /// Adam with Nesterov momentum.
    pub struct Nadam {
        common: Common::new("nadam", 0.001);
        /// The decay rate of the average gradient.
        beta_1: f64 = 0.9,
        /// The decay rate of the average squared gradient.
        beta_2: f64 = 0.999,
        /// A small constant that prevents a division by zero.
        epsilon: f64 = 1e-7,
    }
}

impl Nadam {
    /// Creates the optimizer with the given learning rate.
    pub fn new(learning_rate: impl Into<LearningRate>) -> Self {
        Nadam::default().learning_rate(learning_rate)
    }

    /// `uₜ` and `Pₜ`, computed from the step alone, so that training can resume at any step. It takes a
    /// microsecond per update, so there is no cache.
    fn momentum(&self, step: u64) -> (f64, f64) {
        let (mut decay, mut u, mut product) = (1.0, self.beta_1, 1.0);
        for _ in 0..step.min(CONVERGED_STEP) {
            decay *= 0.96;
            u = self.beta_1 * (1.0 - 0.5 * decay);
            product *= u;
        }
        (u, product * self.beta_1.powf(step.saturating_sub(CONVERGED_STEP) as f64))
    }
}

impl Optimizer for Nadam {
    keras_class!("Nadam", common);

    fn slots(&self) -> Vec<Slot> {
        vec![zeros("momentum"), zeros("velocity")]
    }

    fn slots_per_weight(&self) -> usize {
        2
    }

    fn step_scalars(&self, learning_rate: f64, step: u64) -> Vec<f64> {
        let (u, product) = self.momentum(step);
        let (u_next, product_next) = self.momentum(step + 1);
        vec![
            learning_rate * u_next / (1.0 - product_next),
            learning_rate * (1.0 - u) / (1.0 - product),
            1.0 / (1.0 - self.beta_2.powf(step as f64)),
        ]
    }

    fn state_scalars(&self, updates: u64) -> Vec<f64> {
        vec![self.momentum(updates).1]
    }

    fn validate_step(&self) -> Result<()> {
        check_beta(self.class_name(), "beta_1", self.beta_1)?;
        check_beta(self.class_name(), "beta_2", self.beta_2)?;
        check_non_negative(self.class_name(), "epsilon", self.epsilon)
    }

    fn step(&self, b: &mut RuleBuilder, weight: Reg, gradient: Reg) -> (Reg, Vec<Reg>) {
        let (m, v) = (b.slot(0), b.slot(1));
        let m = b.blend(self.beta_1, m, gradient);
        let square = b.unary(Unary::Square, gradient);
        let v = b.blend(self.beta_2, v, square);
        let (of_m, of_g, of_v) = (b.scalar(0), b.scalar(1), b.scalar(2));
        let (part_m, part_g) = (b.mul(m, of_m), b.mul(gradient, of_g));
        let change = b.add(part_m, part_g);
        let v_hat = b.mul(v, of_v);
        let root = b.unary(Unary::Sqrt, v_hat);
        let epsilon = b.constant(self.epsilon);
        let divisor = b.add(root, epsilon);
        let change = b.div(change, divisor);
        (b.sub(weight, change), vec![m, v])
    }
}
