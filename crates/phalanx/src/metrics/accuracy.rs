//! Accuracies: the fraction of correct predictions.
//!
//! - plain: `y_pred == y_true`
//! - sparse categorical: `argmax(y_pred) == y_true`, for class indices
//! - categorical: `argmax(y_pred) == argmax(y_true)`, for one-hot targets
//! - binary: `(y_pred > threshold) == y_true`

use super::support::mean_of_values;
use super::{Metric, check_labels, check_threshold, classes, targets_like_predictions};
use crate::config::options;
use crate::error::Result;
use crate::registry::keras_class;
use phalanx_graph::ops::Binary;
use phalanx_graph::{DType, Graph, NodeId, Op};

options! {
    /// The fraction of predictions that equal their target.
    pub struct Accuracy {
        name: "accuracy";
    }
}

options! {
    /// The fraction of samples whose highest-scoring class is the label.
    pub struct SparseCategoricalAccuracy {
        name: "sparse_categorical_accuracy";
    }
}

options! {
    /// The fraction of samples whose highest-scoring class is that of the target.
    pub struct CategoricalAccuracy {
        name: "categorical_accuracy";
    }
}

options! {
    /// The fraction of predictions on the correct side of a threshold.
    pub struct BinaryAccuracy {
        name: "binary_accuracy";
        /// Predictions above it count as positive.
        threshold: f64 = 0.5,
    }
}

/// 1 if the highest-scoring class is the label, else 0.
fn matches(g: &mut Graph, labels: NodeId, y_pred: NodeId) -> Result<NodeId> {
    let best = g.push(Op::ArgMax, &[y_pred])?;
    let best = g.cast(best, DType::F32)?;
    let labels = g.cast(labels, DType::F32)?;
    Ok(g.binary(Binary::Eq, labels, best)?)
}

impl Metric for Accuracy {
    keras_class!("Accuracy", name);
    mean_of_values!();
}

impl Accuracy {
    /// The value at each position.
    fn values(&self, g: &mut Graph, y_true: NodeId, y_pred: NodeId) -> Result<NodeId> {
        let y_true = targets_like_predictions(self, g, y_true, y_pred)?;
        Ok(g.binary(Binary::Eq, y_true, y_pred)?)
    }
}

impl Metric for SparseCategoricalAccuracy {
    keras_class!("SparseCategoricalAccuracy", name);
    mean_of_values!();
}

impl SparseCategoricalAccuracy {
    /// The value at each position.
    fn values(&self, g: &mut Graph, y_true: NodeId, y_pred: NodeId) -> Result<NodeId> {
        check_labels(self, g, y_true, y_pred)?;
        matches(g, y_true, y_pred)
    }
}

impl Metric for CategoricalAccuracy {
    keras_class!("CategoricalAccuracy", name);
    mean_of_values!();
}

impl CategoricalAccuracy {
    /// The value at each position.
    fn values(&self, g: &mut Graph, y_true: NodeId, y_pred: NodeId) -> Result<NodeId> {
        let labels = classes(self, g, y_true, y_pred)?;
        matches(g, labels, y_pred)
    }
}

impl Metric for BinaryAccuracy {
    keras_class!("BinaryAccuracy", name);
    mean_of_values!();

    fn validate(&self) -> Result<()> {
        check_threshold(self, "threshold", self.threshold)
    }
}

impl BinaryAccuracy {
    /// The value at each position.
    fn values(&self, g: &mut Graph, y_true: NodeId, y_pred: NodeId) -> Result<NodeId> {
        let y_true = targets_like_predictions(self, g, y_true, y_pred)?;
        let threshold = g.scalar(f64::from(self.threshold as f32));
        let yes = g.binary(Binary::Gt, y_pred, threshold)?;
        Ok(g.binary(Binary::Eq, y_true, yes)?)
    }
}
