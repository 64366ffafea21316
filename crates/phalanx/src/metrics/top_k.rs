//! Top-k accuracies: the fraction of samples whose label is among the `k` highest-scoring classes, that is,
//! fewer than `k` classes score higher.

use super::support::mean_of_values;
use super::{Metric, check_labels, classes, owner};
use crate::config::options;
use crate::error::{Error, Result};
use crate::registry::keras_class;
use phalanx_graph::{Graph, NodeId, Op};

options! {
    /// The fraction of samples whose target class is among the `k` highest-scoring classes.
    pub struct TopKCategoricalAccuracy {
        name: "top_k_categorical_accuracy";
        /// The number of highest-scoring classes that count.
        k: usize = 5,
    }
}

options! {
    /// The fraction of samples whose label is among the `k` highest-scoring classes.
    pub struct SparseTopKCategoricalAccuracy {
        name: "sparse_top_k_categorical_accuracy";
        /// The number of highest-scoring classes that count.
        k: usize = 5,
    }
}

fn check_k(metric: &dyn Metric, k: usize) -> Result<()> {
    if k > 0 {
        return Ok(());
    }
    Err(Error::argument(owner(metric), "k", "1 or more", k))
}

impl Metric for TopKCategoricalAccuracy {
    keras_class!("TopKCategoricalAccuracy", name);
    mean_of_values!();

    fn validate(&self) -> Result<()> {
        check_k(self, self.k)
    }
}

impl TopKCategoricalAccuracy {
    /// The value at each position.
    fn values(&self, g: &mut Graph, y_true: NodeId, y_pred: NodeId) -> Result<NodeId> {
        let labels = classes(self, g, y_true, y_pred)?;
        Ok(g.push(Op::InTopK { k: self.k }, &[y_pred, labels])?)
    }
}

impl Metric for SparseTopKCategoricalAccuracy {
    keras_class!("SparseTopKCategoricalAccuracy", name);
    mean_of_values!();

    fn validate(&self) -> Result<()> {
        check_k(self, self.k)
    }
}

impl SparseTopKCategoricalAccuracy {
    /// The value at each position.
    fn values(&self, g: &mut Graph, y_true: NodeId, y_pred: NodeId) -> Result<NodeId> {
        check_labels(self, g, y_true, y_pred)?;
        Ok(g.push(Op::InTopK { k: self.k }, &[y_pred, y_true])?)
    }
}
