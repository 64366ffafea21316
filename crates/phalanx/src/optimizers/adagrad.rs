//! Adagrad: the gradient divided by the root of the sum of all its squares.
//!
//! `a += g²`, `w -= lr · g / √(a + ε)`; `a` starts at `initial_accumulator_value`.

use super::{Common, Optimizer};
use crate::config;
use crate::error::Result;
use crate::schedules::{LearningRate, check_non_negative};
use phalanx_graph::ops::Unary;
use phalanx_graph::update::{Reg, RuleBuilder, Slot, SlotInit};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

/// Adagrad.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Adagrad {
    /// The options that all optimizers share.
    #[serde(flatten)]
    pub common: Common,
    /// The initial value of the sums of squares.
    pub initial_accumulator_value: f64,
    /// A small constant that prevents a division by zero.
    pub epsilon: f64,
}

impl Default for Adagrad {
    fn default() -> Self {
        let common = Common::new("adagrad", 0.001);
        Adagrad { common, initial_accumulator_value: 0.1, epsilon: 1e-7 }
    }
}

impl Adagrad {
    /// Creates the optimizer with the given learning rate.
    pub fn new(learning_rate: impl Into<LearningRate>) -> Self {
        let mut adagrad = Adagrad::default();
        adagrad.common.learning_rate = learning_rate.into();
        adagrad
    }

    /// The initial value of the sums of squares.
    pub fn initial_accumulator_value(mut self, value: f64) -> Self {
        self.initial_accumulator_value = value;
        self
    }

    /// A small constant that prevents a division by zero.
    pub fn epsilon(mut self, epsilon: f64) -> Self {
        self.epsilon = epsilon;
        self
    }
}

impl Optimizer for Adagrad {
    fn class_name(&self) -> &'static str {
        "Adagrad"
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
        let init = SlotInit::Value(self.initial_accumulator_value as f32);
        vec![Slot { name: "accumulator".into(), init }]
    }

    fn step_scalars(&self, learning_rate: f64, _step: u64) -> Vec<f64> {
        vec![learning_rate]
    }

    fn validate_step(&self) -> Result<()> {
        let value = self.initial_accumulator_value;
        check_non_negative(self.class_name(), "initial_accumulator_value", value)?;
        check_non_negative(self.class_name(), "epsilon", self.epsilon)
    }

    fn step(&self, b: &mut RuleBuilder, weight: Reg, gradient: Reg) -> (Reg, Vec<Reg>) {
        let (sum, lr) = (b.slot(0), b.scalar(0));
        let square = b.unary(Unary::Square, gradient);
        let sum = b.add(sum, square);
        let epsilon = b.constant(self.epsilon);
        let divisor = b.add(sum, epsilon);
        let divisor = b.unary(Unary::Sqrt, divisor);
        let change = b.mul(gradient, lr);
        let change = b.div(change, divisor);
        (b.sub(weight, change), vec![sum])
    }
}
