//! Binary crossentropy, averaged over an axis: `loss = mean(-t · log p - (1 - t) · log(1 - p))` with `p`
//! clipped to `[1e-7, 1 - 1e-7]` and `t = y_true · (1 - label_smoothing) + label_smoothing / 2`.
//!
//! For logits `x` the same is `max(x, 0) - x · t + log(1 + e^-|x|)`, which never overflows.

use super::axis::mean_over;
use super::{Common, Loss, check_fraction, clip_probability, input_if, smooth};
use crate::config::options;
use crate::error::Result;
use crate::registry::keras_class;
use phalanx_graph::ops::{Binary, Unary};
use phalanx_graph::{Graph, NodeId, Op};

options! {
    /// Crossentropy of 0-or-1 targets.
    pub struct BinaryCrossentropy {
        common: Common::named("binary_crossentropy");
        /// Whether predictions are logits rather than probabilities.
        from_logits: bool = false,
        /// How far targets are moved towards 0.5.
        label_smoothing: f64 = 0.0,
        /// The axis over which the mean is taken, counted with the batch.
        axis: i64 = -1,
    }
}

impl Loss for BinaryCrossentropy {
    keras_class!("BinaryCrossentropy", common);

    fn validate(&self) -> Result<()> {
        check_fraction(self.name(), "label_smoothing", self.label_smoothing)
    }

    fn values(&self, g: &mut Graph, y_true: NodeId, y_pred: NodeId) -> Result<NodeId> {
        let target = smooth(g, y_true, self.label_smoothing, 0.5)?;
        let sigmoid = Op::Unary(Unary::Sigmoid);
        let logits = if self.from_logits { Some(y_pred) } else { input_if(g, y_pred, &sigmoid) };
        let values = match logits {
            Some(logits) => from_logits(g, target, logits)?,
            None => from_probabilities(g, target, y_pred)?,
        };
        mean_over(&self.owner(), self.axis, g, values)
    }
}

fn from_logits(g: &mut Graph, target: NodeId, x: NodeId) -> Result<NodeId> {
    let zero = g.scalar(0.0);
    // `Max` instead of `relu`: its derivative at 0 is ½, so the total derivative is sigmoid(0) - t.
    let positive = g.binary(Binary::Max, x, zero)?;
    let product = g.mul(x, target)?;
    let linear = g.sub(positive, product)?;
    let size = g.unary(Unary::Abs, x)?;
    let size = g.neg(size)?;
    let rest = g.unary(Unary::Exp, size)?;
    let rest = g.unary(Unary::Log1p, rest)?;
    Ok(g.add(linear, rest)?)
}

pub(super) fn from_probabilities(g: &mut Graph, target: NodeId, p: NodeId) -> Result<NodeId> {
    let one = g.scalar(1.0);
    let p = clip_probability(g, p)?;
    let q = g.sub(one, p)?;
    let log_p = g.unary(Unary::Log, p)?;
    let log_q = g.unary(Unary::Log, q)?;
    let not_target = g.sub(one, target)?;
    let yes = g.mul(target, log_p)?;
    let no = g.mul(not_target, log_q)?;
    let sum = g.add(yes, no)?;
    Ok(g.neg(sum)?)
}
