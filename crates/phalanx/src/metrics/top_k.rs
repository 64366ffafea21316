//! Top-k accuracies: the fraction of samples whose label is among the `k` highest-scoring classes, that is,
//! fewer than `k` classes score higher.

use super::{Metric, check_labels, classes, mean_state, with_dtype};
use crate::config;
use crate::error::{Error, Result};
use phalanx_graph::{Graph, NodeId, Op};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

/// The fraction of samples whose target class is among the `k` highest-scoring classes.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct TopKCategoricalAccuracy {
    /// The name it is reported under.
    pub name: String,
    /// The number of highest-scoring classes that count.
    pub k: usize,
}

/// The fraction of samples whose label is among the `k` highest-scoring classes.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct SparseTopKCategoricalAccuracy {
    /// The name it is reported under.
    pub name: String,
    /// The number of highest-scoring classes that count.
    pub k: usize,
}

impl Default for TopKCategoricalAccuracy {
    fn default() -> Self {
        TopKCategoricalAccuracy { name: "top_k_categorical_accuracy".into(), k: 5 }
    }
}

impl Default for SparseTopKCategoricalAccuracy {
    fn default() -> Self {
        SparseTopKCategoricalAccuracy { name: "sparse_top_k_categorical_accuracy".into(), k: 5 }
    }
}

impl TopKCategoricalAccuracy {
    /// The number of highest-scoring classes that count.
    pub fn k(mut self, k: usize) -> Self {
        self.k = k;
        self
    }
}

impl SparseTopKCategoricalAccuracy {
    /// The number of highest-scoring classes that count.
    pub fn k(mut self, k: usize) -> Self {
        self.k = k;
        self
    }
}

fn check_k(metric: &dyn Metric, k: usize) -> Result<()> {
    if k > 0 {
        return Ok(());
    }
    Err(Error::argument(format!("metric '{}'", metric.name()), "k", "1 or more", k))
}

impl Metric for TopKCategoricalAccuracy {
    fn class_name(&self) -> &'static str {
        "TopKCategoricalAccuracy"
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
    fn class_name(&self) -> &'static str {
        "SparseTopKCategoricalAccuracy"
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
