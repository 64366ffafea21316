//! Stochastic gradient descent, optionally with momentum.
//!
//! - plain: `w -= lr · g`
//! - momentum: `m = momentum · m - lr · g`, `w += m`
//! - Nesterov: the same `m`, `w += momentum · m - lr · g`

use super::{Common, Optimizer, OptimizerExt, check_fraction, zeros};
use crate::config::options;
use crate::error::Result;
use crate::registry::keras_class;
use crate::schedules::LearningRate;
use phalanx_graph::update::{Reg, RuleBuilder, Slot};

options! {
    /// Stochastic gradient descent.
    pub struct SGD {
        common: Common::new("SGD", 0.01);
        /// The fraction of the last update that is kept.
        momentum: f64 = 0.0,
        /// Whether to look ahead along the momentum.
        nesterov: bool = false,
    }
}

impl SGD {
    /// Creates the optimizer with the given learning rate.
    pub fn new(learning_rate: impl Into<LearningRate>) -> Self {
        SGD::default().learning_rate(learning_rate)
    }
}

impl Optimizer for SGD {
    keras_class!("SGD", common);

    fn slots(&self) -> Vec<Slot> {
        if self.momentum == 0.0 { vec![] } else { vec![zeros("momentum")] }
    }

    fn step_scalars(&self, learning_rate: f64, _step: u64) -> Vec<f64> {
        vec![learning_rate]
    }

    fn validate_step(&self) -> Result<()> {
        check_fraction(self.class_name(), "momentum", self.momentum)
    }

    fn step(&self, b: &mut RuleBuilder, weight: Reg, gradient: Reg) -> (Reg, Vec<Reg>) {
        let lr = b.scalar(0);
        let move_down = b.mul(gradient, lr);
        if self.momentum == 0.0 {
            return (b.sub(weight, move_down), vec![]);
        }
        let kept = b.slot(0);
        let kept = b.scale(kept, self.momentum);
        let m = b.sub(kept, move_down);
        let change = if self.nesterov {
            let ahead = b.scale(m, self.momentum);
            b.sub(ahead, move_down)
        } else {
            m
        };
        (b.add(weight, change), vec![m])
    }
}
