//! RMSprop: the gradient divided by the root of its average square.
//!
//! `v = ρ v + (1 - ρ) g²`, `d = lr · g / √(v + ε)`, `w -= d`; with `centered` the square of the
//! average gradient `a = ρ a + (1 - ρ) g` is taken from `v` in the root; with momentum
//! `m = momentum · m + d`, `w -= m`.

use super::{Common, Optimizer, OptimizerExt, check_fraction, zeros};
use crate::config::options;
use crate::error::Result;
use crate::registry::keras_class;
use crate::schedules::{LearningRate, check_non_negative};
use phalanx_graph::ops::Unary;
use phalanx_graph::update::{Reg, RuleBuilder, Slot};

options! {
    /// RMSprop.
    pub struct RMSprop {
        common: Common::new("rmsprop", 0.001);
        /// The decay rate of the averages.
        rho: f64 = 0.9,
        /// The fraction of the last update that is kept.
        momentum: f64 = 0.0,
        /// A small constant that prevents a division by zero.
        epsilon: f64 = 1e-7,
        /// Whether to divide by the standard deviation instead of the root mean square.
        centered: bool = false,
    }
}

impl RMSprop {
    /// Creates the optimizer with the given learning rate.
    pub fn new(learning_rate: impl Into<LearningRate>) -> Self {
        RMSprop::default().learning_rate(learning_rate)
    }

    fn has_momentum(&self) -> bool {
        self.momentum > 0.0
    }
}

impl Optimizer for RMSprop {
    keras_class!("RMSprop", common);

    fn slots(&self) -> Vec<Slot> {
        let mut slots = vec![zeros("velocity")];
        if self.has_momentum() {
            slots.push(zeros("momentum"));
        }
        if self.centered {
            slots.push(zeros("average_gradient"));
        }
        slots
    }

    fn step_scalars(&self, learning_rate: f64, _step: u64) -> Vec<f64> {
        vec![learning_rate]
    }

    fn validate_step(&self) -> Result<()> {
        check_fraction(self.class_name(), "rho", self.rho)?;
        check_fraction(self.class_name(), "momentum", self.momentum)?;
        check_non_negative(self.class_name(), "epsilon", self.epsilon)
    }

    fn step(&self, b: &mut RuleBuilder, weight: Reg, gradient: Reg) -> (Reg, Vec<Reg>) {
        let lr = b.scalar(0);
        let square = b.unary(Unary::Square, gradient);
        let velocity = b.slot(0);
        let velocity = b.blend(self.rho, velocity, square);
        let mut variance = velocity;
        let mut average = None;
        if self.centered {
            let old = b.slot(1 + usize::from(self.has_momentum()));
            let new = b.blend(self.rho, old, gradient);
            let square = b.unary(Unary::Square, new);
            variance = b.sub(velocity, square);
            average = Some(new);
        }
        let epsilon = b.constant(self.epsilon);
        let variance = b.add(variance, epsilon);
        let divisor = b.unary(Unary::Sqrt, variance);
        let mut change = b.mul(gradient, lr);
        change = b.div(change, divisor);
        let mut slots = vec![velocity];
        if self.has_momentum() {
            let kept = b.slot(1);
            let kept = b.scale(kept, self.momentum);
            change = b.add(kept, change);
            slots.push(change);
        }
        slots.extend(average);
        (b.sub(weight, change), slots)
    }
}
