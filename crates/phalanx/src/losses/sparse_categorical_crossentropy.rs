//! Crossentropy between class indices and predicted probabilities: `loss = -log p[label]`, with
//! `p = softmax(y_pred)` for logits, else `y_pred / Σ y_pred` clipped to `[1e-7, 1 - 1e-7]`.
//!
//! Predictions are `[.., classes]`, targets are integers `[..]`; there is one value per target. Targets of
//! `ignore_class` have the value 0 and do not count in means.

use super::{Common, Loss, clip_probability, counted_labels, input_if, label_targets, sum_last};
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
        /// A class whose labels do not count, which need not be one of the predicted classes.
        ignore_class: Option<i64> = None,
    }
}

impl Loss for SparseCategoricalCrossentropy {
    keras_class!("SparseCategoricalCrossentropy", common);

    fn target(&self, prediction: &Type) -> Result<Type> {
        label_targets(self.name(), prediction)
    }

    fn ignored_class(&self) -> Option<i64> {
        self.ignore_class
    }

    fn values(&self, g: &mut Graph, y_true: NodeId, y_pred: NodeId) -> Result<NodeId> {
        let Some(ignored) = self.ignore_class else { return self.all_values(g, y_true, y_pred) };
        let counted = counted_labels(g, y_true, ignored)?;
        let zero = g.scalar(0.0);
        // Ignored labels may lie outside the classes.
        let labels = g.cast(y_true, DType::F32)?;
        let labels = g.select(counted, labels, zero)?;
        let labels = g.cast(labels, DType::I32)?;
        let values = self.all_values(g, labels, y_pred)?;
        Ok(g.select(counted, values, zero)?)
    }
}

impl SparseCategoricalCrossentropy {
    /// The values if all labels count.
    fn all_values(&self, g: &mut Graph, y_true: NodeId, y_pred: NodeId) -> Result<NodeId> {
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
