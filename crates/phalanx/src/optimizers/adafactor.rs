//! Adafactor: the average squared gradient of a matrix is kept as its means over rows and columns.
//!
//! `β = 1 - t^decay`, `r = β r + (1 - β) mean(g² + ε₁)` over the last axis, `c` over the one before it,
//! `v = r / mean(r) · c`, `u = g / √v`, `w -= max(ε₂, rms(w)) · min(lr, 1/√t) · u / max(1, rms(u) / threshold)`.
//! A weight with fewer than two axes has the average itself as `v`.

use super::{Common, Optimizer, OptimizerExt, TrainedWeight, WeightSlot, WeightUpdate};
use crate::config::options;
use crate::error::{Error, Result};
use crate::registry::keras_class;
use crate::schedules::{LearningRate, check_non_negative};
use phalanx_graph::ops::{Binary, Unary};
use phalanx_graph::{Graph, NodeId};

options! {
    /// Adafactor.
    pub struct Adafactor {
        common: Common::new("adafactor", 0.001);
        /// The exponent of the step in the decay rate of the averages.
        beta_2_decay: f64 = -0.8,
        /// A small number that is added to squared gradients.
        epsilon_1: f64 = 1e-30,
        /// The smallest size of a weight that scales its change.
        epsilon_2: f64 = 1e-3,
        /// The root mean square of a change above which it is scaled down.
        clip_threshold: f64 = 1.0,
        /// Whether a constant learning rate is limited by `1/√t`. Keras limits every learning rate so.
        relative_step: bool = true,
    }
}

impl Adafactor {
    /// Creates the optimizer with the given learning rate.
    pub fn new(learning_rate: impl Into<LearningRate>) -> Self {
        Adafactor::default().learning_rate(learning_rate)
    }
}

impl Optimizer for Adafactor {
    keras_class!("Adafactor", common);

    fn updates_whole_weights(&self) -> bool {
        true
    }

    /// As in Keras, a weight with fewer than two axes has two numbers that are not used.
    fn weight_slots(&self, of: &TrainedWeight) -> Vec<WeightSlot> {
        let (mut rows, mut columns, unused) = (vec![], vec![], of.dims.len() < 2);
        if let [lead @ .., height, width] = &of.dims[..] {
            rows = [lead, &[*height]].concat();
            columns = [lead, &[*width]].concat();
        }
        vec![
            WeightSlot { unused, ..WeightSlot::zeros("r", &rows) },
            WeightSlot { unused, ..WeightSlot::zeros("c", &columns) },
            WeightSlot::zeros("velocity", &of.dims),
        ]
    }

    fn step_scalars(&self, learning_rate: f64, step: u64) -> Vec<f64> {
        let t = step as f64;
        vec![learning_rate.min(1.0 / t.sqrt()), 1.0 - t.powf(self.beta_2_decay)]
    }

    fn validate_step(&self) -> Result<()> {
        let owner = self.class_name();
        check_non_negative(owner, "epsilon_1", self.epsilon_1)?;
        check_non_negative(owner, "epsilon_2", self.epsilon_2)?;
        if !(self.beta_2_decay.is_finite() && self.beta_2_decay <= 0.0) {
            let received = self.beta_2_decay;
            return Err(Error::argument(owner, "beta_2_decay", "a number up to 0", received));
        }
        if self.clip_threshold.is_finite() && self.clip_threshold > 0.0 {
            return Ok(());
        }
        let received = self.clip_threshold;
        Err(Error::argument(owner, "clip_threshold", "a number above 0", received))
    }

    fn update(
        &self,
        of: &TrainedWeight,
        u: &mut WeightUpdate<'_>,
    ) -> Result<(NodeId, Vec<NodeId>)> {
        let (rate, keep) = (u.scalars[0], u.scalars[1]);
        let (mut r, mut c, mut v) = (u.slots[0], u.slots[1], u.slots[2]);
        let one = u.graph.scalar(1.0);
        let square = u.graph.unary(Unary::Square, u.gradient)?;
        let square = u.graph.offset(square, self.epsilon_1)?;
        if let Some(row_axis) = of.dims.len().checked_sub(2) {
            let column_axis = row_axis + 1;
            r = average(u, keep, r, |g| g.mean_axes(square, &[column_axis]))?;
            c = average(u, keep, c, |g| g.mean_axes(square, &[row_axis]))?;
            let g = &mut *u.graph;
            let mean = g.mean_axes(r, &[row_axis])?;
            let relative = g.div(r, mean)?;
            let [mut tall, mut wide] = [of.dims.clone(), of.dims.clone()];
            (tall[column_axis], wide[row_axis]) = (1, 1);
            let (tall, wide) = (g.reshape(relative, &tall)?, g.reshape(c, &wide)?);
            v = g.mul(tall, wide)?;
        } else {
            v = average(u, keep, v, |_| Ok(square))?;
        }
        let root = u.graph.unary(Unary::Sqrt, v)?;
        let change = u.graph.div(u.gradient, root)?;
        let (size, of_change) = (u.root_mean_square(u.weight)?, u.root_mean_square(change)?);
        let g = &mut *u.graph;
        let least = g.scalar(self.epsilon_2);
        let size = g.binary(Binary::Max, size, least)?;
        let excess = g.scale(of_change, 1.0 / self.clip_threshold)?;
        let excess = g.binary(Binary::Max, excess, one)?;
        let rate = g.mul(rate, size)?;
        let rate = g.div(rate, excess)?;
        let change = g.mul(change, rate)?;
        Ok((g.sub(u.weight, change)?, vec![r, c, v]))
    }
}

/// `keep · old + (1 - keep) · new`, where `new` is given the dimensions of `old`.
fn average(
    u: &mut WeightUpdate<'_>,
    keep: NodeId,
    old: NodeId,
    new: impl FnOnce(&mut Graph) -> phalanx_graph::Result<NodeId>,
) -> Result<NodeId> {
    let g = &mut *u.graph;
    let new = new(g)?;
    let dims = g.ty(old).dims.clone();
    let new = g.reshape(new, &dims)?;
    let one = g.scalar(1.0);
    let share = g.sub(one, keep)?;
    let (old, new) = (g.mul(old, keep)?, g.mul(new, share)?);
    Ok(g.add(old, new)?)
}
