//! Kullback-Leibler divergence, `Σ t · log(t / p)` over the last axis, with both distributions
//! clipped to `[1e-7, 1]`.

use super::{Common, EPSILON, Loss, sum_last};
use crate::config;
use crate::error::Result;
use phalanx_graph::ops::Unary;
use phalanx_graph::{Graph, NodeId};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

/// Kullback-Leibler divergence of predicted from true distributions.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct KLDivergence {
    /// Name and reduction.
    #[serde(flatten)]
    pub common: Common,
}

impl Default for KLDivergence {
    fn default() -> Self {
        KLDivergence { common: Common::named("kl_divergence") }
    }
}

impl Loss for KLDivergence {
    fn class_name(&self) -> &'static str {
        "KLDivergence"
    }

    fn config(&self) -> Map<String, Value> {
        config::write(self)
    }

    fn common(&self) -> &Common {
        &self.common
    }

    fn common_mut(&mut self) -> &mut Common {
        &mut self.common
    }

    fn values(&self, g: &mut Graph, y_true: NodeId, y_pred: NodeId) -> Result<NodeId> {
        let target = g.clamp(y_true, EPSILON, 1.0)?;
        let p = g.clamp(y_pred, EPSILON, 1.0)?;
        let ratio = g.div(target, p)?;
        let log = g.unary(Unary::Log, ratio)?;
        let product = g.mul(target, log)?;
        sum_last(g, product)
    }
}
