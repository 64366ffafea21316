//! Crossentropy between class indices and predicted probabilities: `loss = -log p[label]`, with
//! `p = softmax(y_pred)` for logits, else `y_pred / Σ y_pred` clipped to `[1e-7, 1 - 1e-7]`.
//!
//! Predictions are `[.., classes]`, targets are integers `[..]`; there is one value per target.

use super::{Common, Loss, clip_probability, input_if, mismatch, sum_last};
use crate::config::options;
use crate::error::Result;
use crate::registry::keras_class;
use phalanx_graph::ops::Unary;
use phalanx_graph::{DType, Graph, NodeId, Op, Type};

options! {
    /// Crossentropy of integer labels.
    pub struct SparseCategoricalCrossentropy {
        common: Common::named("sparse_categorical_crossentropy");
        /// Whether predictions are logits rather than probabilities.
        from_logits: bool = false,
    }
}

impl Loss for SparseCategoricalCrossentropy {
    keras_class!("SparseCategoricalCrossentropy", common, { "ignore_class": null });

    fn target(&self, prediction: &Type) -> Result<Type> {
        match prediction.dims.split_last() {
            Some((classes, lead)) if *classes > 0 && prediction.is_rows() => {
                Ok(Type { dtype: DType::I32, dims: lead.to_vec(), ..prediction.clone() })
            }
            _ => Err(mismatch(self.name(), "y_pred", "a last axis of classes", prediction)),
        }
    }

    fn values(&self, g: &mut Graph, y_true: NodeId, y_pred: NodeId) -> Result<NodeId> {
        let logits =
            if self.from_logits { Some(y_pred) } else { input_if(g, y_pred, &Op::Softmax) };
        if let Some(logits) = logits {
            return Ok(g.push(Op::SparseXent, &[logits, y_true])?);
        }
        let depth = g.ty(y_pred).last();
        let hot = g.push(Op::OneHot { depth }, &[y_true])?;
        let hit = g.mul(hot, y_pred)?;
        let hit = sum_last(g, hit)?;
        let total = sum_last(g, y_pred)?;
        let p = g.div(hit, total)?;
        let p = clip_probability(g, p)?;
        let log = g.unary(Unary::Log, p)?;
        Ok(g.neg(log)?)
    }
}
