//! Poisson loss, `mean(y_pred - y_true · ln(y_pred + 1e-7))` over the last axis.

use super::{Common, EPSILON, Loss, mean_last};
use crate::config::options;
use crate::error::Result;
use crate::registry::keras_class;
use phalanx_graph::ops::Unary;
use phalanx_graph::{Graph, NodeId};

options! {
    /// Poisson loss of predicted rates.
    pub struct Poisson {
        common: Common::named("poisson");
    }
}

impl Loss for Poisson {
    keras_class!("Poisson", common);

    fn values(&self, g: &mut Graph, y_true: NodeId, y_pred: NodeId) -> Result<NodeId> {
        let rate = g.offset(y_pred, EPSILON)?;
        let log = g.unary(Unary::Log, rate)?;
        let product = g.mul(y_true, log)?;
        let values = g.sub(y_pred, product)?;
        mean_last(g, values)
    }
}
