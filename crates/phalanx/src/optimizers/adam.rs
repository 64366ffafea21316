//! Adam: steps scaled by moving averages of the gradient and of its square.
//!
//! `m = β₁ m + (1 - β₁) g`, `v = β₂ v + (1 - β₂) g²`, `w -= α m / (√v + ε)` with
//! `α = lr √(1 - β₂ᵗ) / (1 - β₁ᵗ)`. With `amsgrad` the largest `v` so far stands for `v`.

use super::{Common, Optimizer, check_beta, zeros};
use crate::config;
use crate::error::Result;
use crate::schedules::{LearningRate, check_non_negative};
use phalanx_graph::ops::{Binary, Unary};
use phalanx_graph::update::{Reg, RuleBuilder, Slot};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

/// Adam.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Adam {
    /// The options that all optimizers share.
    #[serde(flatten)]
    pub common: Common,
    /// The decay rate of the average gradient.
    pub beta_1: f64,
    /// The decay rate of the average squared gradient.
    pub beta_2: f64,
    /// A small constant that prevents a division by zero.
    pub epsilon: f64,
    /// Whether the largest average square so far is used.
    pub amsgrad: bool,
}

impl Default for Adam {
    fn default() -> Self {
        let common = Common::new("adam", 0.001);
        Adam { common, beta_1: 0.9, beta_2: 0.999, epsilon: 1e-7, amsgrad: false }
    }
}

impl Adam {
    /// Creates the optimizer with the given learning rate.
    pub fn new(learning_rate: impl Into<LearningRate>) -> Self {
        let mut adam = Adam::default();
        adam.common.learning_rate = learning_rate.into();
        adam
    }

    /// The decay rate of the average gradient.
    pub fn beta_1(mut self, beta_1: f64) -> Self {
        self.beta_1 = beta_1;
        self
    }

    /// The decay rate of the average squared gradient.
    pub fn beta_2(mut self, beta_2: f64) -> Self {
        self.beta_2 = beta_2;
        self
    }

    /// A small constant that prevents a division by zero.
    pub fn epsilon(mut self, epsilon: f64) -> Self {
        self.epsilon = epsilon;
        self
    }

    /// Whether the largest average square so far is used.
    pub fn amsgrad(mut self, amsgrad: bool) -> Self {
        self.amsgrad = amsgrad;
        self
    }
}

impl Optimizer for Adam {
    fn class_name(&self) -> &'static str {
        "Adam"
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
        let mut slots = vec![zeros("momentum"), zeros("velocity")];
        if self.amsgrad {
            slots.push(zeros("velocity_hat"));
        }
        slots
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
