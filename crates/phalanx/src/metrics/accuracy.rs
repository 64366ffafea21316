//! Accuracies: the fraction of correct predictions.
//!
//! - sparse categorical: `argmax(y_pred) == y_true`, for class indices
//! - categorical: `argmax(y_pred) == argmax(y_true)`, for one-hot targets
//! - binary: `(y_pred > threshold) == y_true`

use super::{
    Metric, check_labels, check_threshold, classes, mean_state, targets_like_predictions,
    with_dtype,
};
use crate::config;
use crate::error::Result;
use phalanx_graph::ops::Binary;
use phalanx_graph::{DType, Graph, NodeId, Op};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

/// The fraction of samples whose highest-scoring class is the label.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct SparseCategoricalAccuracy {
    /// The name it is reported under.
    pub name: String,
}

/// The fraction of samples whose highest-scoring class is that of the target.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct CategoricalAccuracy {
    /// The name it is reported under.
    pub name: String,
}

/// The fraction of predictions on the correct side of a threshold.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct BinaryAccuracy {
    /// The name it is reported under.
    pub name: String,
    /// Predictions above it count as positive.
    pub threshold: f64,
}

impl Default for SparseCategoricalAccuracy {
    fn default() -> Self {
        SparseCategoricalAccuracy { name: "sparse_categorical_accuracy".into() }
    }
}

impl Default for CategoricalAccuracy {
    fn default() -> Self {
        CategoricalAccuracy { name: "categorical_accuracy".into() }
    }
}

impl Default for BinaryAccuracy {
    fn default() -> Self {
        BinaryAccuracy { name: "binary_accuracy".into(), threshold: 0.5 }
    }
}

impl BinaryAccuracy {
    /// Predictions above it count as positive.
    pub fn threshold(mut self, threshold: f64) -> Self {
        self.threshold = threshold;
        self
    }
}

/// 1 if the highest-scoring class is the label, else 0.
fn matches(g: &mut Graph, labels: NodeId, y_pred: NodeId) -> Result<NodeId> {
    let best = g.push(Op::ArgMax, &[y_pred])?;
    let best = g.cast(best, DType::F32)?;
    let labels = g.cast(labels, DType::F32)?;
    Ok(g.binary(Binary::Eq, labels, best)?)
}

impl Metric for SparseCategoricalAccuracy {
    fn class_name(&self) -> &'static str {
        "SparseCategoricalAccuracy"
    }

    fn config(&self) -> Map<String, Value> {
        with_dtype(config::write(self))
    }

    fn name(&self) -> &str {
        &self.name
    }

    fn set_name(&mut self, name: &str) {
        self.name = name.into();
    }

    fn update(
        &self,
        g: &mut Graph,
        y_true: NodeId,
        y_pred: NodeId,
        weight: NodeId,
    ) -> Result<NodeId> {
        check_labels(self, g, y_true, y_pred)?;
        let hits = matches(g, y_true, y_pred)?;
        mean_state(self, g, hits, weight)
    }
}

impl Metric for CategoricalAccuracy {
    fn class_name(&self) -> &'static str {
        "CategoricalAccuracy"
    }

    fn config(&self) -> Map<String, Value> {
        with_dtype(config::write(self))
    }

    fn name(&self) -> &str {
        &self.name
    }

    fn set_name(&mut self, name: &str) {
        self.name = name.into();
    }

    fn update(
        &self,
        g: &mut Graph,
        y_true: NodeId,
        y_pred: NodeId,
        weight: NodeId,
    ) -> Result<NodeId> {
        let labels = classes(self, g, y_true, y_pred)?;
        let hits = matches(g, labels, y_pred)?;
        mean_state(self, g, hits, weight)
    }
}

impl Metric for BinaryAccuracy {
    fn class_name(&self) -> &'static str {
        "BinaryAccuracy"
    }

    fn config(&self) -> Map<String, Value> {
        with_dtype(config::write(self))
    }

    fn name(&self) -> &str {
        &self.name
    }

    fn set_name(&mut self, name: &str) {
        self.name = name.into();
    }

    fn validate(&self) -> Result<()> {
        check_threshold(self, "threshold", self.threshold)
    }

    fn update(
        &self,
        g: &mut Graph,
        y_true: NodeId,
        y_pred: NodeId,
        weight: NodeId,
    ) -> Result<NodeId> {
        let y_true = targets_like_predictions(self, g, y_true, y_pred)?;
        let threshold = g.scalar(f64::from(self.threshold as f32));
        let yes = g.binary(Binary::Gt, y_pred, threshold)?;
        let hits = g.binary(Binary::Eq, y_true, yes)?;
        mean_state(self, g, hits, weight)
    }
}
