//! Muon: the momentum of a matrix is made orthogonal before it is applied. All other weights are updated by AdamW.
//!
//! `m = momentum · m + g`, `x = g + momentum · m` (or `m`), made orthogonal by Newton-Schulz iterations:
//! `x / (‖x‖ + 1e-7)`, then `a = x xᵀ`, `x = muon_a · x + (muon_b · a + muon_c · a a) x`, `ns_steps` times.
//! `w -= lr · √max(rows, columns) · rms_rate · x`.

use super::{
    Common, Optimizer, OptimizerExt, TrainedWeight, WeightSlot, WeightUpdate, check_beta,
    check_fraction, patterns,
};
use crate::config::options;
use crate::error::{Error, Result};
use crate::registry::keras_class;
use crate::schedules::{LearningRate, check_non_negative};
use phalanx_graph::NodeId;
use phalanx_graph::ops::{Op, Unary};

/// The largest number of iterations.
const MAX_ITERATIONS: usize = 100;

options! {
    /// Muon.
    pub struct Muon {
        common: Common { weight_decay: Some(0.004), ..Common::new("muon", 0.001) };
        /// AdamW's decay rate of the average gradient.
        adam_beta_1: f64 = 0.9,
        /// AdamW's decay rate of the average squared gradient.
        adam_beta_2: f64 = 0.999,
        /// The weight decay of weights that AdamW updates.
        adam_weight_decay: Option<f64> = Some(0.004),
        /// A small constant that prevents a division by zero in AdamW.
        epsilon: f64 = 1e-7,
        /// Regular expressions. AdamW updates weights whose path contains a match.
        exclude_layers: Vec<String> = vec![],
        /// Whether AdamW updates weights whose path contains `embedding`.
        exclude_embeddings: bool = true,
        /// The first coefficient of the iteration.
        muon_a: f64 = 3.4445,
        /// The second coefficient of the iteration.
        muon_b: f64 = -4.7750,
        /// The third coefficient of the iteration.
        muon_c: f64 = 2.0315,
        /// The learning rate of AdamW over that of Muon.
        adam_lr_ratio: f64 = 1.0,
        /// The momentum.
        momentum: f64 = 0.95,
        /// The number of iterations.
        ns_steps: usize = 5,
        /// Whether Nesterov's momentum is used.
        nesterov: bool = true,
        /// The size of a change; none leaves the orthogonal matrix as it is.
        rms_rate: Option<f64> = Some(0.2),
    }
}

impl Muon {
    /// Creates the optimizer with the given learning rate.
    pub fn new(learning_rate: impl Into<LearningRate>) -> Self {
        Muon::default().learning_rate(learning_rate)
    }

    /// Whether AdamW updates this weight.
    fn uses_adamw(&self, of: &TrainedWeight) -> bool {
        let embedding = self.exclude_embeddings && of.path.to_lowercase().contains("embedding");
        let excluded = |pattern: &String| {
            patterns::compile("Muon", "exclude_layers", pattern)
                .is_ok_and(|pattern| pattern.is_match(&of.path))
        };
        of.dims.len() != 2 || embedding || self.exclude_layers.iter().any(excluded)
    }

    /// A matrix with the same singular vectors and singular values near 1.
    fn orthogonalized(&self, u: &mut WeightUpdate<'_>, x: NodeId) -> Result<NodeId> {
        let dims = u.graph.ty(x).dims.clone();
        let tall = dims[0] > dims[1];
        let norm = u.norm(x)?;
        let g = &mut *u.graph;
        let turn = Op::Transpose { perm: vec![1, 0] };
        let mut x = if tall { g.push(turn.clone(), &[x])? } else { x };
        let norm = g.offset(norm, 1e-7)?;
        x = g.div(x, norm)?;
        for _ in 0..self.ns_steps {
            let turned = g.push(turn.clone(), &[x])?;
            let a = g.matmul(x, turned)?;
            let square = g.matmul(a, a)?;
            let (linear, square) = (g.scale(a, self.muon_b)?, g.scale(square, self.muon_c)?);
            let polynomial = g.add(linear, square)?;
            let product = g.matmul(polynomial, x)?;
            let scaled = g.scale(x, self.muon_a)?;
            x = g.add(scaled, product)?;
        }
        Ok(if tall { g.push(turn, &[x])? } else { x })
    }

    fn adamw(&self, u: &mut WeightUpdate<'_>) -> Result<(NodeId, Vec<NodeId>)> {
        let m = u.blend(self.adam_beta_1, u.slots[0], u.gradient)?;
        let square = u.graph.unary(Unary::Square, u.gradient)?;
        let v = u.blend(self.adam_beta_2, u.slots[1], square)?;
        let g = &mut *u.graph;
        let change = g.mul(m, u.scalars[1])?;
        let root = g.unary(Unary::Sqrt, v)?;
        let divisor = g.offset(root, self.epsilon)?;
        let change = g.div(change, divisor)?;
        Ok((g.sub(u.weight, change)?, vec![m, v]))
    }
}

impl Optimizer for Muon {
    keras_class!("Muon", common);

    fn updates_whole_weights(&self) -> bool {
        true
    }

    fn weight_slots(&self, of: &TrainedWeight) -> Vec<WeightSlot> {
        let mut slots = vec![WeightSlot::zeros("momentum", &of.dims)];
        if self.uses_adamw(of) {
            slots.push(WeightSlot::zeros("velocity", &of.dims));
        }
        slots
    }

    fn decay_of(&self, of: &TrainedWeight) -> Option<f64> {
        if self.uses_adamw(of) { self.adam_weight_decay } else { self.common.weight_decay }
    }

    fn step_scalars(&self, learning_rate: f64, step: u64) -> Vec<f64> {
        let rest = |beta: f64| 1.0 - beta.powf(step as f64);
        let adam = rest(self.adam_beta_2).sqrt() / rest(self.adam_beta_1);
        vec![learning_rate, learning_rate * self.adam_lr_ratio * adam]
    }

    fn validate_step(&self) -> Result<()> {
        let owner = self.class_name();
        check_beta(owner, "adam_beta_1", self.adam_beta_1)?;
        check_beta(owner, "adam_beta_2", self.adam_beta_2)?;
        check_fraction(owner, "momentum", self.momentum)?;
        check_non_negative(owner, "epsilon", self.epsilon)?;
        check_non_negative(owner, "adam_lr_ratio", self.adam_lr_ratio)?;
        check_non_negative(owner, "adam_weight_decay", self.adam_weight_decay.unwrap_or(0.0))?;
        check_non_negative(owner, "rms_rate", self.rms_rate.unwrap_or(0.0))?;
        for (name, value) in
            [("muon_a", self.muon_a), ("muon_b", self.muon_b), ("muon_c", self.muon_c)]
        {
            if !value.is_finite() {
                return Err(Error::argument(owner, name, "a finite number", value));
            }
        }
        if self.ns_steps > MAX_ITERATIONS {
            let expected = format!("at most {MAX_ITERATIONS}");
            return Err(Error::argument(owner, "ns_steps", expected, self.ns_steps));
        }
        let compiles = |p: &String| patterns::compile(owner, "exclude_layers", p).map(|_| ());
        self.exclude_layers.iter().try_for_each(compiles)
    }

    fn update(
        &self,
        of: &TrainedWeight,
        u: &mut WeightUpdate<'_>,
    ) -> Result<(NodeId, Vec<NodeId>)> {
        if self.uses_adamw(of) {
            return self.adamw(u);
        }
        let g = &mut *u.graph;
        let kept = g.scale(u.slots[0], self.momentum)?;
        let m = g.add(kept, u.gradient)?;
        let mut direction = m;
        if self.nesterov {
            let ahead = g.scale(m, self.momentum)?;
            direction = g.add(u.gradient, ahead)?;
        }
        let direction = self.orthogonalized(u, direction)?;
        let g = &mut *u.graph;
        let longest = of.dims.iter().copied().max().unwrap_or(1) as f64;
        let size = self.rms_rate.map_or(1.0, |rate| longest.sqrt() * rate);
        let change = g.mul(direction, u.scalars[0])?;
        let change = g.scale(change, size)?;
        Ok((g.sub(u.weight, change)?, vec![m]))
    }
}
