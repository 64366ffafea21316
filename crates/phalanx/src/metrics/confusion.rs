//! Precision, `tp / (tp + fp)`, and recall, `tp / (tp + fn)`, counted over all positions: a
//! prediction above the threshold is a yes, a target other than 0 is one too.

use super::{Metric, alike, need_same, need_threshold, ratio, sum_rows, with_dtype};
use crate::config;
use crate::error::Result;
use phalanx_graph::ops::Binary;
use phalanx_graph::{Graph, NodeId};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

/// Share of the yes answers that are right.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Precision {
    /// The name it is reported under.
    pub name: String,
    /// Predictions above it mean yes; 0.5 without.
    pub thresholds: Option<f64>,
}

/// Share of the yes targets that are found.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Recall {
    /// The name it is reported under.
    pub name: String,
    /// Predictions above it mean yes; 0.5 without.
    pub thresholds: Option<f64>,
}

impl Default for Precision {
    fn default() -> Self {
        Precision { name: "precision".into(), thresholds: None }
    }
}

impl Default for Recall {
    fn default() -> Self {
        Recall { name: "recall".into(), thresholds: None }
    }
}

impl Precision {
    /// Predictions above it mean yes.
    pub fn threshold(mut self, threshold: f64) -> Self {
        self.thresholds = Some(threshold);
        self
    }
}

impl Recall {
    /// Predictions above it mean yes.
    pub fn threshold(mut self, threshold: f64) -> Self {
        self.thresholds = Some(threshold);
        self
    }
}

/// Which errors stand beside the hits.
enum Beside {
    Answers,
    Targets,
}

/// Weighted sums of the hits and of the yes answers (or yes targets) that are not hits.
fn counts(
    metric: &dyn Metric,
    g: &mut Graph,
    operands: [NodeId; 3],
    threshold: Option<f64>,
    beside: Beside,
) -> Result<NodeId> {
    let [y_true, y_pred, weight] = operands;
    let y_true = alike(metric, g, y_true, y_pred)?;
    let (zero, one) = (g.scalar(0.0), g.scalar(1.0));
    let threshold = g.scalar(f64::from(threshold.unwrap_or(0.5) as f32));
    let no = g.binary(Binary::Eq, y_true, zero)?;
    let target = g.sub(one, no)?;
    let answer = g.binary(Binary::Gt, y_pred, threshold)?;
    let hit = g.mul(target, answer)?;
    let all = match beside {
        Beside::Answers => answer,
        Beside::Targets => target,
    };
    let miss = g.sub(all, hit)?;
    let positions = g.ty(y_pred).len() as f64;
    let per_row = g.ty(weight).dims.is_empty();
    if !per_row {
        need_same(metric, g, "sample_weight", y_pred, weight)?;
    }
    let mut sums = vec![];
    for count in [hit, miss] {
        let sum = if per_row {
            let mean = g.mean_row(count)?;
            g.mul(mean, weight)?
        } else {
            let weighted = g.mul(count, weight)?;
            g.mean_row(weighted)?
        };
        sums.push(g.scale(sum, positions)?);
    }
    sum_rows(g, &sums)
}

impl Metric for Precision {
    fn class_name(&self) -> &'static str {
        "Precision"
    }

    fn config(&self) -> Map<String, Value> {
        with_fixed(config::write(self))
    }

    fn name(&self) -> &str {
        &self.name
    }

    fn set_name(&mut self, name: &str) {
        self.name = name.into();
    }

    fn validate(&self) -> Result<()> {
        need_threshold(self, "thresholds", self.thresholds.unwrap_or(0.5))
    }

    fn update(
        &self,
        g: &mut Graph,
        y_true: NodeId,
        y_pred: NodeId,
        weight: NodeId,
    ) -> Result<NodeId> {
        counts(self, g, [y_true, y_pred, weight], self.thresholds, Beside::Answers)
    }

    fn result(&self, state: &[f64]) -> f64 {
        share_of_hits(state)
    }
}

impl Metric for Recall {
    fn class_name(&self) -> &'static str {
        "Recall"
    }

    fn config(&self) -> Map<String, Value> {
        with_fixed(config::write(self))
    }

    fn name(&self) -> &str {
        &self.name
    }

    fn set_name(&mut self, name: &str) {
        self.name = name.into();
    }

    fn validate(&self) -> Result<()> {
        need_threshold(self, "thresholds", self.thresholds.unwrap_or(0.5))
    }

    fn update(
        &self,
        g: &mut Graph,
        y_true: NodeId,
        y_pred: NodeId,
        weight: NodeId,
    ) -> Result<NodeId> {
        counts(self, g, [y_true, y_pred, weight], self.thresholds, Beside::Targets)
    }

    fn result(&self, state: &[f64]) -> f64 {
        share_of_hits(state)
    }
}

fn share_of_hits(state: &[f64]) -> f64 {
    match state {
        [hits, misses] => ratio(*hits, hits + misses),
        _ => 0.0,
    }
}

/// The options of Keras that have one value here.
fn with_fixed(mut config: Map<String, Value>) -> Map<String, Value> {
    config.insert("top_k".into(), Value::Null);
    config.insert("class_id".into(), Value::Null);
    with_dtype(config)
}
