//! Top-k accuracies: the fraction of samples whose label is among the `k` highest-scoring classes, that is,
//! fewer than `k` classes score higher.

use super::{Metric, check_labels, classes, mean_state, owner};
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

    fn uses_mask(&self) -> bool {
        true
    }

    fn validate(&self) -> Result<()> {
        check_k(self, self.k)
    }

    fn update(
        &self,
        g: &mut Graph,
        y_true: NodeId,
        y_pred: NodeId,
        weight: NodeId,
    ) -> Result<NodeId> {
        let labels = classes(self, g, y_true, y_pred)?;
        let hits = g.push(Op::InTopK { k: self.k }, &[y_pred, labels])?;
        mean_state(self, g, hits, weight)
    }
}

impl Metric for SparseTopKCategoricalAccuracy {
    keras_class!("SparseTopKCategoricalAccuracy", name);

    fn uses_mask(&self) -> bool {
        true
    }

    fn validate(&self) -> Result<()> {
        check_k(self, self.k)
    }

    fn update(
        &self,
        g: &mut Graph,
        y_true: NodeId,
        y_pred: NodeId,
        weight: NodeId,
    ) -> Result<NodeId> {
        check_labels(self, g, y_true, y_pred)?;
        let hits = g.push(Op::InTopK { k: self.k }, &[y_pred, y_true])?;
        mean_state(self, g, hits, weight)
    }
}
