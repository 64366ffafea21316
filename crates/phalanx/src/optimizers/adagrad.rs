//! Adagrad: the gradient divided by the root of the sum of all its squares.
//!
//! `a += g²`, `w -= lr · g / √(a + ε)`; `a` starts at `initial_accumulator_value`.

use super::{Common, Optimizer, OptimizerExt};
use crate::config::options;
use crate::error::Result;
use crate::registry::keras_class;
use crate::schedules::{LearningRate, check_non_negative};
use phalanx_graph::ops::Unary;
use phalanx_graph::update::{Reg, RuleBuilder, Slot, SlotInit};

options! {
    /// Adagrad.
    pub struct Adagrad {
        common: Common::new("adagrad", 0.001);
        /// The initial value of the sums of squares.
        initial_accumulator_value: f64 = 0.1,
        /// A small constant that prevents a division by zero.
        epsilon: f64 = 1e-7,
    }
}

impl Adagrad {
    /// Creates the optimizer with the given learning rate.
    pub fn new(learning_rate: impl Into<LearningRate>) -> Self {
        Adagrad::default().learning_rate(learning_rate)
    }
}

impl Optimizer for Adagrad {
    keras_class!("Adagrad", common);

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
