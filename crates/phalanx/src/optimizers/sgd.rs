//! Stochastic gradient descent, optionally with momentum.
//!
//! - plain: `w -= lr · g`
//! - momentum: `m = momentum · m - lr · g`, `w += m`
//! - Nesterov: the same `m`, `w += momentum · m - lr · g`

use super::{Common, Optimizer, check_fraction, zeros};
use crate::config;
use crate::error::Result;
use crate::schedules::LearningRate;
use phalanx_graph::update::{Reg, RuleBuilder, Slot};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

/// Stochastic gradient descent.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct SGD {
    /// The options that all optimizers share.
    #[serde(flatten)]
    pub common: Common,
    /// The fraction of the last update that is kept.
    pub momentum: f64,
    /// Whether to look ahead along the momentum.
    pub nesterov: bool,
}

impl Default for SGD {
    fn default() -> Self {
        SGD { common: Common::new("SGD", 0.01), momentum: 0.0, nesterov: false }
    }
}

impl SGD {
    /// Creates the optimizer with the given learning rate.
    pub fn new(learning_rate: impl Into<LearningRate>) -> Self {
        let mut sgd = SGD::default();
        sgd.common.learning_rate = learning_rate.into();
        sgd
    }

    /// The fraction of the last update that is kept.
    pub fn momentum(mut self, momentum: f64) -> Self {
        self.momentum = momentum;
        self
    }

    /// Whether to look ahead along the momentum.
    pub fn nesterov(mut self, nesterov: bool) -> Self {
        self.nesterov = nesterov;
        self
    }
}

impl Optimizer for SGD {
    fn class_name(&self) -> &'static str {
        "SGD"
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
