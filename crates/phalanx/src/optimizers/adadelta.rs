//! Adadelta: steps of the size of earlier steps.
//!
//! `a = ρ a + (1 - ρ) g²`, `d = g · √(u + ε) / √(a + ε)`, `u = ρ u + (1 - ρ) d²`, `w -= lr · d`.

use super::{Common, Optimizer, OptimizerExt, check_fraction, zeros};
use crate::config::options;
use crate::error::Result;
use crate::registry::keras_class;
use crate::schedules::{LearningRate, check_non_negative};
use phalanx_graph::ops::Unary;
use phalanx_graph::update::{Reg, RuleBuilder, Slot};

options! {
    /// Adadelta.
    pub struct Adadelta {
        common: Common::new("adadelta", 0.001);
        /// The decay rate of the averages.
        rho: f64 = 0.95,
        /// A small constant that prevents a division by zero.
        epsilon: f64 = 1e-7,
    }
}

impl Adadelta {
    /// Creates the optimizer with the given learning rate.
    pub fn new(learning_rate: impl Into<LearningRate>) -> Self {
        Adadelta::default().learning_rate(learning_rate)
    }

    /// `√(x + ε)`
    fn root(&self, b: &mut RuleBuilder, x: Reg) -> Reg {
        let epsilon = b.constant(self.epsilon);
        let sum = b.add(x, epsilon);
        b.unary(Unary::Sqrt, sum)
    }
}

impl Optimizer for Adadelta {
    keras_class!("Adadelta", common);

    fn slots(&self) -> Vec<Slot> {
        vec![zeros("accumulated_grad"), zeros("accumulated_delta_var")]
    }

    fn slots_per_weight(&self) -> usize {
        2
    }

    fn step_scalars(&self, learning_rate: f64, _step: u64) -> Vec<f64> {
        vec![learning_rate]
    }

    fn validate_step(&self) -> Result<()> {
        check_fraction(self.class_name(), "rho", self.rho)?;
        check_non_negative(self.class_name(), "epsilon", self.epsilon)
    }

    fn step(&self, b: &mut RuleBuilder, weight: Reg, gradient: Reg) -> (Reg, Vec<Reg>) {
        let (squares, changes, lr) = (b.slot(0), b.slot(1), b.scalar(0));
        let square = b.unary(Unary::Square, gradient);
        let squares = b.blend(self.rho, squares, square);
        let (usual, divisor) = (self.root(b, changes), self.root(b, squares));
        let change = b.mul(usual, gradient);
        let change = b.div(change, divisor);
        let square = b.unary(Unary::Square, change);
        let changes = b.blend(self.rho, changes, square);
        let change = b.mul(change, lr);
        (b.sub(weight, change), vec![squares, changes])
    }
}
