//! Crossentropy between class indices and predicted probabilities: `loss = -log p[label]`, with
//! `p = softmax(y_pred)` for logits, else `y_pred / Σ y_pred` clipped to `[1e-7, 1 - 1e-7]`.
//!
//! Predictions are `[.., classes]`, targets are integers `[..]`; there is one value per target.

use super::{Common, Loss, clip_probability, input_if, mismatch, sum_last};
use crate::config;
use crate::error::Result;
use phalanx_graph::ops::Unary;
use phalanx_graph::{DType, Graph, NodeId, Op, Type};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

/// Crossentropy of integer labels.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct SparseCategoricalCrossentropy {
    /// Name and reduction.
    #[serde(flatten)]
    pub common: Common,
    /// Whether predictions are logits rather than probabilities.
    pub from_logits: bool,
}

impl Default for SparseCategoricalCrossentropy {
    fn default() -> Self {
        let common = Common::named("sparse_categorical_crossentropy");
        SparseCategoricalCrossentropy { common, from_logits: false }
    }
}

impl SparseCategoricalCrossentropy {
    /// Whether predictions are logits rather than probabilities.
    pub fn from_logits(mut self, from_logits: bool) -> Self {
        self.from_logits = from_logits;
        self
    }
}

impl Loss for SparseCategoricalCrossentropy {
    fn class_name(&self) -> &'static str {
        "SparseCategoricalCrossentropy"
    }

    fn config(&self) -> Map<String, Value> {
        let mut config = config::write(self);
        config.insert("ignore_class".into(), Value::Null);
        config
    }

    fn common(&self) -> &Common {
        &self.common
    }

    fn common_mut(&mut self) -> &mut Common {
        &mut self.common
    }

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
