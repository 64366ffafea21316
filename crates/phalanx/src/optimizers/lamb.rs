//! LAMB: Adam's direction, scaled by the norm of each weight.
//!
//! `m = β₁ m + (1 - β₁) g`, `v = β₂ v + (1 - β₂) g²`, `u = m / (1 - β₁ᵗ) / (√(v / (1 - β₂ᵗ)) + ε)`,
//! `w -= lr · ‖w‖ / ‖u‖ · u`. The ratio of the norms is 1 if one of them is 0.

use super::{Common, Optimizer, OptimizerExt, TrainedWeight, WeightSlot, WeightUpdate, check_beta};
use crate::config::options;
use crate::error::Result;
use crate::registry::keras_class;
use crate::schedules::{LearningRate, check_non_negative};
use phalanx_graph::NodeId;
use phalanx_graph::ops::{Binary, Unary};

options! {
    /// LAMB.
    pub struct Lamb {
        common: Common::new("lamb", 0.001);
        /// The decay rate of the average gradient.
        beta_1: f64 = 0.9,
        /// The decay rate of the average squared gradient.
        beta_2: f64 = 0.999,
        /// A small constant that prevents a division by zero.
        epsilon: f64 = 1e-7,
    }
}

impl Lamb {
    /// Creates the optimizer with the given learning rate.
    pub fn new(learning_rate: impl Into<LearningRate>) -> Self {
        Lamb::default().learning_rate(learning_rate)
    }
}

impl Optimizer for Lamb {
    keras_class!("Lamb", common);

    fn updates_whole_weights(&self) -> bool {
        true
    }

    fn weight_slots(&self, of: &TrainedWeight) -> Vec<WeightSlot> {
        ["momentum", "velocity"].map(|name| WeightSlot::zeros(name, &of.dims)).into()
    }

    fn step_scalars(&self, learning_rate: f64, step: u64) -> Vec<f64> {
        let correction = |beta: f64| 1.0 / (1.0 - beta.powf(step as f64));
        vec![learning_rate, correction(self.beta_1), correction(self.beta_2)]
    }

    fn validate_step(&self) -> Result<()> {
        check_beta(self.class_name(), "beta_1", self.beta_1)?;
        check_beta(self.class_name(), "beta_2", self.beta_2)?;
        check_non_negative(self.class_name(), "epsilon", self.epsilon)
    }

    fn update(&self, _: &TrainedWeight, u: &mut WeightUpdate<'_>) -> Result<(NodeId, Vec<NodeId>)> {
        let (lr, first, second) = (u.scalars[0], u.scalars[1], u.scalars[2]);
        let m = u.blend(self.beta_1, u.slots[0], u.gradient)?;
        let square = u.graph.unary(Unary::Square, u.gradient)?;
        let v = u.blend(self.beta_2, u.slots[1], square)?;
        let average = u.graph.mul(m, first)?;
        let root = u.graph.mul(v, second)?;
        let root = u.graph.unary(Unary::Sqrt, root)?;
        let divisor = u.graph.offset(root, self.epsilon)?;
        let direction = u.graph.div(average, divisor)?;

        let (of_weight, of_direction) = (u.norm(u.weight)?, u.norm(direction)?);
        let g = &mut *u.graph;
        let (zero, one) = (g.scalar(0.0), g.scalar(1.0));
        let positive = g.mul(of_weight, of_direction)?;
        let positive = g.binary(Binary::Gt, positive, zero)?;
        let ratio = g.div(of_weight, of_direction)?;
        let ratio = g.select(positive, ratio, one)?;
        let rate = g.mul(ratio, lr)?;
        let change = g.mul(direction, rate)?;
        Ok((g.sub(u.weight, change)?, vec![m, v]))
    }
}
