//! Adam: steps scaled by moving averages of the gradient and of its square.
//!
//! `m = β₁ m + (1 - β₁) g`, `v = β₂ v + (1 - β₂) g²`, `w -= α m / (√v + ε)` with
//! `α = lr √(1 - β₂ᵗ) / (1 - β₁ᵗ)`. With `amsgrad` the largest `v` so far stands for `v`.

use super::{Common, Optimizer, OptimizerExt, check_beta, zeros};
use crate::config::options;
use crate::error::Result;
use crate::registry::keras_class;
use crate::schedules::{LearningRate, check_non_negative};
use phalanx_graph::ops::{Binary, Unary};
use phalanx_graph::update::{Reg, RuleBuilder, Slot};

options! {
    /// Adam.
    pub struct Adam {
        common: Common::new("adam", 0.001);
        /// The decay rate of the average gradient.
        beta_1: f64 = 0.9,
        /// The decay rate of the average squared gradient.
        beta_2: f64 = 0.999,
        /// A small constant that prevents a division by zero.
        epsilon: f64 = 1e-7,
        /// Whether the largest average square so far is used.
        amsgrad: bool = false,
    }
}

impl Adam {
    /// Creates the optimizer with the given learning rate.
    pub fn new(learning_rate: impl Into<LearningRate>) -> Self {
        Adam::default().learning_rate(learning_rate)
    }
}

impl Optimizer for Adam {
    keras_class!("Adam", common);

    fn slots(&self) -> Vec<Slot> {
        let mut slots = vec![zeros("momentum"), zeros("velocity")];
        if self.amsgrad {
            slots.push(zeros("velocity_hat"));
        }
        slots
    }

    fn slots_per_weight(&self) -> usize {
        2
    }

    fn step_scalars(&self, learning_rate: f64, step: u64) -> Vec<f64> {
        let t = step as f64;
        let correction = (1.0 - self.beta_2.powf(t)).sqrt() / (1.0 - self.beta_1.powf(t));
        vec![learning_rate * correction]
    }

    fn validate_step(&self) -> Result<()> {
        check_beta(self.class_name(), "beta_1", self.beta_1)?;
        check_beta(self.class_name(), "beta_2", self.beta_2)?;
        check_non_negative(self.class_name(), "epsilon", self.epsilon)
    }

    fn step(&self, b: &mut RuleBuilder, weight: Reg, gradient: Reg) -> (Reg, Vec<Reg>) {
        let (m, v, alpha) = (b.slot(0), b.slot(1), b.scalar(0));
        let m = b.blend(self.beta_1, m, gradient);
        let square = b.unary(Unary::Square, gradient);
        let v = b.blend(self.beta_2, v, square);
        let mut slots = vec![m, v];
        let mut scale = v;
        if self.amsgrad {
            let largest = b.slot(2);
            scale = b.binary(Binary::Max, largest, v);
            slots.push(scale);
        }
        let root = b.unary(Unary::Sqrt, scale);
        let epsilon = b.constant(self.epsilon);
        let divisor = b.add(root, epsilon);
        let change = b.mul(m, alpha);
        let change = b.div(change, divisor);
        (b.sub(weight, change), slots)
    }
}
