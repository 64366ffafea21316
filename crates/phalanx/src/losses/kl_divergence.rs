//! Kullback-Leibler divergence, `Σ t · log(t / p)` over the last axis, with both distributions
//! clipped to `[1e-7, 1]`.

use super::{Common, EPSILON, Loss, sum_last};
use crate::config::options;
use crate::error::Result;
use crate::registry::keras_class;
use phalanx_graph::ops::Unary;
use phalanx_graph::{Graph, NodeId};

options! {
    /// Kullback-Leibler divergence of predicted from true distributions.
    pub struct KLDivergence {
        common: Common::named("kl_divergence");
    }
}

impl Loss for KLDivergence {
    keras_class!("KLDivergence", common);

    fn values(&self, g: &mut Graph, y_true: NodeId, y_pred: NodeId) -> Result<NodeId> {
        let target = g.clamp(y_true, EPSILON, 1.0)?;
        let p = g.clamp(y_pred, EPSILON, 1.0)?;
        let ratio = g.div(target, p)?;
        let log = g.unary(Unary::Log, ratio)?;
        let product = g.mul(target, log)?;
        sum_last(g, product)
    }
}
