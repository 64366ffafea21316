//! Follow the regularized leader, for sparse models.
//!
//! With `p = -learning_rate_power`: `n = a + g²`, `z += g + 2 · shrinkage · w - (nᵖ - aᵖ) / lr · w`,
//! `w = (clip(z, -l1, l1) - z) / ((nᵖ + β) / lr + 2 · l2)`, `a = n`; `a` starts at `initial_accumulator_value`.

use super::{Common, Optimizer, OptimizerExt, zeros};
use crate::config::options;
use crate::error::{Error, Result};
use crate::registry::keras_class;
use crate::schedules::{LearningRate, check_non_negative};
use phalanx_graph::ops::{Binary, Unary};
use phalanx_graph::update::{Reg, RuleBuilder, Slot, SlotInit};

options! {
    /// Follow the regularized leader.
    pub struct Ftrl {
        common: Common::new("ftrl", 0.001);
        /// The exponent of the sums of squares in the step size, 0 or less.
        learning_rate_power: f64 = -0.5,
        /// The initial value of the sums of squares.
        initial_accumulator_value: f64 = 0.1,
        /// Weights whose linear term is smaller become 0.
        l1_regularization_strength: f64 = 0.0,
        /// The factor of the squared weights.
        l2_regularization_strength: f64 = 0.0,
        /// The factor of the squared weights, which counts in gradients only.
        l2_shrinkage_regularization_strength: f64 = 0.0,
        /// Smooths the first steps.
        beta: f64 = 0.0,
    }
}

impl Ftrl {
    /// Creates the optimizer with the given learning rate.
    pub fn new(learning_rate: impl Into<LearningRate>) -> Self {
        Ftrl::default().learning_rate(learning_rate)
    }

    /// `x^-learning_rate_power`
    fn power(&self, b: &mut RuleBuilder, x: Reg) -> Reg {
        if self.learning_rate_power == -0.5 {
            return b.unary(Unary::Sqrt, x);
        }
        let exponent = b.constant(-self.learning_rate_power);
        b.binary(Binary::Pow, x, exponent)
    }
}

impl Optimizer for Ftrl {
    keras_class!("Ftrl", common);

    fn slots(&self) -> Vec<Slot> {
        let init = SlotInit::Value(self.initial_accumulator_value as f32);
        vec![Slot { name: "accumulator".into(), init }, zeros("linear")]
    }

    fn slots_per_weight(&self) -> usize {
        2
    }

    fn step_scalars(&self, learning_rate: f64, _step: u64) -> Vec<f64> {
        vec![learning_rate]
    }

    fn validate_step(&self) -> Result<()> {
        let owner = self.class_name();
        let power = self.learning_rate_power;
        if !(power <= 0.0 && power.is_finite()) {
            return Err(Error::argument(owner, "learning_rate_power", "a number up to 0", power));
        }
        for (argument, value) in [
            ("initial_accumulator_value", self.initial_accumulator_value),
            ("l1_regularization_strength", self.l1_regularization_strength),
            ("l2_regularization_strength", self.l2_regularization_strength),
            ("l2_shrinkage_regularization_strength", self.l2_shrinkage_regularization_strength),
            ("beta", self.beta),
        ] {
            check_non_negative(owner, argument, value)?;
        }
        Ok(())
    }

    fn step(&self, b: &mut RuleBuilder, weight: Reg, gradient: Reg) -> (Reg, Vec<Reg>) {
        let (old, linear, lr) = (b.slot(0), b.slot(1), b.scalar(0));
        let square = b.unary(Unary::Square, gradient);
        let new = b.add(old, square);
        let (old_power, new_power) = (self.power(b, old), self.power(b, new));

        let shrinkage = b.scale(weight, 2.0 * self.l2_shrinkage_regularization_strength);
        let gradient = b.add(gradient, shrinkage);
        let growth = b.sub(new_power, old_power);
        let growth = b.div(growth, lr);
        let pull = b.mul(growth, weight);
        let linear = b.add(linear, gradient);
        let linear = b.sub(linear, pull);

        let beta = b.constant(self.beta);
        let quadratic = b.add(new_power, beta);
        let quadratic = b.div(quadratic, lr);
        let l2 = b.constant(2.0 * self.l2_regularization_strength);
        let quadratic = b.add(quadratic, l2);

        let l1 = self.l1_regularization_strength;
        let (low, high) = (b.constant(-l1), b.constant(l1));
        let clipped = b.binary(Binary::Max, linear, low);
        let clipped = b.binary(Binary::Min, clipped, high);
        let rest = b.sub(clipped, linear);
        (b.div(rest, quadratic), vec![new, linear])
    }
}
