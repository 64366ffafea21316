//! Losses of overlapping regions:
//!
//! - Dice, `1 - 2 · Σ t·p / (Σ t + Σ p + 1e-7)`
//! - Tversky, `1 - Σ t·p / (Σ t·p + alpha · Σ t·(1 - p) + beta · Σ (1 - t)·p + 1e-7)`
//!
//! By default the sums are over the whole batch: they are reduced over all workers, and every sample has the same
//! loss. With `axis` they are over the given axes only.

use super::axis::{sample_axis, sum_over};
use super::{Common, EPSILON, Loss};
use crate::config::options;
use crate::constraints::Axes;
use crate::error::Result;
use crate::registry::keras_class;
use phalanx_graph::ops::Binary;
use phalanx_graph::{Graph, NodeId, Op, Scope, Type};

options! {
    /// Dice loss of predicted regions.
    pub struct Dice {
        common: Common::named("dice");
        /// The axes of the sums, counted with the batch; `None` for all.
        axis: Option<Axes> = None,
    }
}

options! {
    /// Tversky loss of predicted regions.
    pub struct Tversky {
        common: Common::named("tversky");
        /// The weight of missed targets.
        alpha: f64 = 0.5,
        /// The weight of predictions outside the target.
        beta: f64 = 0.5,
        /// The axes of the sums, counted with the batch; `None` for all.
        axis: Option<Axes> = None,
    }
}

/// The axes of sums.
struct SumAxes {
    batch: bool,
    /// Axes of a sample, ascending.
    sample: Vec<usize>,
}

impl SumAxes {
    /// The axes that a loss names.
    fn new(loss: &dyn Loss, axis: Option<&Axes>, ty: &Type) -> Result<SumAxes> {
        let rank = ty.dims.len() as i64 + 1;
        let all: Vec<i64> = (0..rank).collect();
        let (batch, others): (Vec<i64>, Vec<i64>) = axis
            .map_or(&all[..], Axes::as_slice)
            .iter()
            .partition(|axis| **axis == 0 || **axis == -rank);
        let owner = loss.owner();
        let mut sample = others
            .into_iter()
            .map(|axis| sample_axis(&owner, axis, ty))
            .collect::<Result<Vec<usize>>>()?;
        sample.sort_unstable();
        sample.dedup();
        Ok(SumAxes { batch: !batch.is_empty(), sample })
    }

    /// The sums of three values. Sums over the batch are repeated for every sample.
    fn sums(&self, g: &mut Graph, terms: [NodeId; 3]) -> Result<[NodeId; 3]> {
        let mut sums = terms;
        for sum in &mut sums {
            *sum = sum_over(g, *sum, &self.sample)?;
        }
        if !self.batch {
            return Ok(sums);
        }
        let dims = g.ty(sums[0]).dims.clone();
        let line = [&[1], &dims[..]].concat();
        let lines = sums.iter().map(|sum| g.reshape(*sum, &line));
        let lines: Vec<NodeId> = lines.collect::<Result<_, _>>()?;
        let joined = g.push(Op::Concat { axis: 0 }, &lines)?;
        let partial = g.push(Op::SumRows, &[joined])?;
        let total = g.push(Op::AllReduce { scope: Scope::All }, &[partial])?;
        let ones = g.binary(Binary::Eq, joined, joined)?;
        let repeated = g.mul(ones, total)?;
        for (i, sum) in sums.iter_mut().enumerate() {
            let line = g.push(Op::Slice { axis: 0, start: i, len: 1 }, &[repeated])?;
            *sum = g.reshape(line, &dims)?;
        }
        Ok(sums)
    }
}

/// `1 - a / (b + 1e-7)`
fn complement(g: &mut Graph, a: NodeId, b: NodeId) -> Result<NodeId> {
    let b = g.offset(b, EPSILON)?;
    let ratio = g.div(a, b)?;
    let one = g.scalar(1.0);
    Ok(g.sub(one, ratio)?)
}

impl Loss for Dice {
    keras_class!("Dice", common);

    fn is_of_batch(&self, prediction: &Type) -> bool {
        SumAxes::new(self, self.axis.as_ref(), prediction).is_ok_and(|axes| axes.batch)
    }

    fn values(&self, g: &mut Graph, y_true: NodeId, y_pred: NodeId) -> Result<NodeId> {
        let axes = SumAxes::new(self, self.axis.as_ref(), g.ty(y_pred))?;
        let product = g.mul(y_true, y_pred)?;
        let [overlap, target, prediction] = axes.sums(g, [product, y_true, y_pred])?;
        let twice = g.scale(overlap, 2.0)?;
        let both = g.add(target, prediction)?;
        complement(g, twice, both)
    }
}

impl Loss for Tversky {
    keras_class!("Tversky", common);

    fn is_of_batch(&self, prediction: &Type) -> bool {
        SumAxes::new(self, self.axis.as_ref(), prediction).is_ok_and(|axes| axes.batch)
    }

    fn values(&self, g: &mut Graph, y_true: NodeId, y_pred: NodeId) -> Result<NodeId> {
        let axes = SumAxes::new(self, self.axis.as_ref(), g.ty(y_pred))?;
        let product = g.mul(y_true, y_pred)?;
        let missed = g.sub(y_true, product)?;
        let outside = g.sub(y_pred, product)?;
        let [overlap, missed, outside] = axes.sums(g, [product, missed, outside])?;
        let missed = g.scale(missed, self.alpha)?;
        let outside = g.scale(outside, self.beta)?;
        let wrong = g.add(missed, outside)?;
        let all = g.add(overlap, wrong)?;
        complement(g, overlap, all)
    }
}
