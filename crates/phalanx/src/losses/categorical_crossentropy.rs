//! Crossentropy between two distributions: `loss = -Σ t · log p` over an axis, with
//! `p = softmax(y_pred)` for logits, else `y_pred / Σ y_pred` clipped to `[1e-7, 1 - 1e-7]`, and
//! `t = y_true · (1 - label_smoothing) + label_smoothing / classes`.
//!
//! Predictions and targets `[.., classes]`, one number per distribution. As in Keras, smoothing counts the classes on the
//! last axis, whichever axis the distributions lie on.

use super::axis::{along, sample_axis, sum_over};
use super::{
    Common, Loss, check_fraction, class_targets, clip_probability, input_if, smooth_classes,
};
use crate::config::options;
use crate::error::Result;
use crate::registry::keras_class;
use phalanx_graph::ops::Unary;
use phalanx_graph::{Graph, NodeId, Op, Type};

options! {
    /// Crossentropy of one-hot (or soft) targets.
    pub struct CategoricalCrossentropy {
        common: Common::named("categorical_crossentropy");
        /// Whether predictions are logits rather than probabilities.
        from_logits: bool = false,
        /// The fraction of the target that is spread evenly over the classes.
        label_smoothing: f64 = 0.0,
        /// The axis of the classes, counted with the batch.
        axis: i64 = -1,
    }
}

impl Loss for CategoricalCrossentropy {
    keras_class!("CategoricalCrossentropy", common);

    fn validate(&self) -> Result<()> {
        check_fraction(self.name(), "label_smoothing", self.label_smoothing)
    }

    fn target(&self, prediction: &Type) -> Result<Type> {
        class_targets(self.name(), prediction)
    }

    fn values(&self, g: &mut Graph, y_true: NodeId, y_pred: NodeId) -> Result<NodeId> {
        let target = smooth_classes(g, y_true, self.label_smoothing)?;
        let axis = sample_axis(&self.owner(), self.axis, g.ty(y_pred))?;
        let last = axis + 1 == g.ty(y_pred).dims.len();
        let of_softmax = if last { input_if(g, y_pred, &Op::Softmax) } else { None };
        let logits = if self.from_logits { Some(y_pred) } else { of_softmax };
        let log = match logits {
            Some(logits) => along(g, Op::LogSoftmax, logits, axis)?,
            None => {
                let p = probabilities(g, y_pred, axis)?;
                g.unary(Unary::Log, p)?
            }
        };
        let product = g.mul(target, log)?;
        let sum = sum_over(g, product, &[axis])?;
        Ok(g.neg(sum)?)
    }
}

/// `y_pred / Σ y_pred` over an axis, clipped.
pub(super) fn probabilities(g: &mut Graph, y_pred: NodeId, axis: usize) -> Result<NodeId> {
    let total = g.sum_axes(y_pred, &[axis])?;
    let p = g.div(y_pred, total)?;
    clip_probability(g, p)
}
