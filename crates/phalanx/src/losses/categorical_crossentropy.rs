//! Crossentropy between two distributions: `loss = -Σ t · log p` over the last axis, with
//! `p = softmax(y_pred)` for logits, else `y_pred / Σ y_pred` clipped to `[1e-7, 1 - 1e-7]`, and
//! `t = y_true · (1 - label_smoothing) + label_smoothing / classes`.
//!
//! Predictions and targets `[.., classes]`, one number per distribution.

use super::{Common, Loss, check_fraction, clip_probability, input_if, mismatch, sum_last};
use crate::config::options;
use crate::error::Result;
use crate::registry::keras_class;
use phalanx_graph::ops::Unary;
use phalanx_graph::{DType, Graph, NodeId, Op, Type};

options! {
    /// Crossentropy of one-hot (or soft) targets.
    pub struct CategoricalCrossentropy {
        common: Common::named("categorical_crossentropy");
        /// Whether predictions are logits rather than probabilities.
        from_logits: bool = false,
        /// The fraction of the target that is spread evenly over the classes.
        label_smoothing: f64 = 0.0,
    }
}

impl Loss for CategoricalCrossentropy {
    keras_class!("CategoricalCrossentropy", common, { "axis": -1 });

    fn validate(&self) -> Result<()> {
        check_fraction(self.name(), "label_smoothing", self.label_smoothing)
    }

    fn target(&self, prediction: &Type) -> Result<Type> {
        let float = prediction.is_rows() && prediction.dtype == DType::F32;
        if float && !prediction.dims.is_empty() {
            return Ok(prediction.clone());
        }
        Err(mismatch(self.name(), "y_pred", "a last axis of classes", prediction))
    }

    fn values(&self, g: &mut Graph, y_true: NodeId, y_pred: NodeId) -> Result<NodeId> {
        let mut target = y_true;
        if self.label_smoothing != 0.0 {
            let classes = g.ty(y_true).last().max(1) as f64;
            target = g.scale(target, 1.0 - self.label_smoothing)?;
            target = g.offset(target, self.label_smoothing / classes)?;
        }
        let logits =
            if self.from_logits { Some(y_pred) } else { input_if(g, y_pred, &Op::Softmax) };
        let log = match logits {
            Some(logits) => g.push(Op::LogSoftmax, &[logits])?,
            None => {
                let axis = g.ty(y_pred).dims.len() - 1;
                let total = g.sum_axes(y_pred, &[axis])?;
                let p = g.div(y_pred, total)?;
                let p = clip_probability(g, p)?;
                g.unary(Unary::Log, p)?
            }
        };
        let product = g.mul(target, log)?;
        let sum = sum_last(g, product)?;
        Ok(g.neg(sum)?)
    }
}
