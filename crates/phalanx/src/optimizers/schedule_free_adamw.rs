//! AdamW that averages its weights instead of lowering the learning rate.
//!
//! `v = β₂ v + (1 - β₂) g²`, `m' = m - lr · g / (√(v / (1 - β₂ᵗ)) + ε)`, `x = (w - (1 - β₁) m) / β₁`,
//! `x' = (1 - 1/t) x + m' / t`, `w = (1 - β₁) m' + β₁ x'`, where `m` starts as the weight. During the first
//! `warmup_steps` updates the learning rate grows linearly.

use super::{Common, Optimizer, OptimizerExt, check_beta, zeros};
use crate::config::options;
use crate::error::{Error, Result};
use crate::registry::keras_class;
use crate::schedules::{LearningRate, check_non_negative};
use phalanx_graph::ops::Unary;
use phalanx_graph::update::{Reg, RuleBuilder, Slot, SlotInit};

options! {
    /// AdamW without a schedule of the learning rate.
    pub struct ScheduleFreeAdamW {
        common: Common::new("schedule_free_adam_w", 0.0025);
        /// The share of the averaged weights in the weights that gradients are computed at.
        beta_1: f64 = 0.9,
        /// The decay rate of the average squared gradient.
        beta_2: f64 = 0.999,
        /// A small constant that prevents a division by zero.
        epsilon: f64 = 1e-8,
        /// The number of updates in which the learning rate grows to its value.
        warmup_steps: u64 = 0,
    }
}

impl ScheduleFreeAdamW {
    /// Creates the optimizer with the given learning rate.
    pub fn new(learning_rate: impl Into<LearningRate>) -> Self {
        ScheduleFreeAdamW::default().learning_rate(learning_rate)
    }
}

impl Optimizer for ScheduleFreeAdamW {
    keras_class!("ScheduleFreeAdamW", common);

    fn slots(&self) -> Vec<Slot> {
        vec![Slot { name: "momentum".into(), init: SlotInit::Weight }, zeros("velocity")]
    }

    fn slots_per_weight(&self) -> usize {
        2
    }

    fn step_scalars(&self, learning_rate: f64, step: u64) -> Vec<f64> {
        let t = step as f64;
        let warmup = if step < self.warmup_steps { t / self.warmup_steps as f64 } else { 1.0 };
        vec![learning_rate * warmup, 1.0 / (1.0 - self.beta_2.powf(t)), 1.0 / t]
    }

    fn validate_step(&self) -> Result<()> {
        check_beta(self.class_name(), "beta_1", self.beta_1)?;
        if self.beta_1 == 0.0 {
            return Err(Error::argument(self.class_name(), "beta_1", "a number above 0", 0));
        }
        check_beta(self.class_name(), "beta_2", self.beta_2)?;
        check_non_negative(self.class_name(), "epsilon", self.epsilon)
    }

    fn step(&self, b: &mut RuleBuilder, weight: Reg, gradient: Reg) -> (Reg, Vec<Reg>) {
        let (m, v) = (b.slot(0), b.slot(1));
        let (lr, correction, share) = (b.scalar(0), b.scalar(1), b.scalar(2));
        let square = b.unary(Unary::Square, gradient);
        let v = b.blend(self.beta_2, v, square);
        let root = b.mul(v, correction);
        let root = b.unary(Unary::Sqrt, root);
        let epsilon = b.constant(self.epsilon);
        let divisor = b.add(root, epsilon);
        let change = b.mul(gradient, lr);
        let change = b.div(change, divisor);
        let next = b.sub(m, change);

        let part = b.scale(m, 1.0 - self.beta_1);
        let average = b.sub(weight, part);
        let average = b.scale(average, 1.0 / self.beta_1);
        let one = b.constant(1.0);
        let kept = b.sub(one, share);
        let (old, new) = (b.mul(average, kept), b.mul(next, share));
        let average = b.add(old, new);
        (b.blend(self.beta_1, average, next), vec![next, v])
    }
}
