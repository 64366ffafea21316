//! Hinge loss: `mean(max(1 - t · y_pred, 0))` over the last axis, for labels `t` of -1 and 1.
//!
//! Labels of 0 count as -1. Keras converts 0/1 labels only if the whole batch consists of them. The rule here
//! gives the same result for 0/1 labels and for -1/1 labels, and it does not depend on which samples share a
//! batch or a replica.

use super::{Common, Loss, mean_last};
use crate::config::options;
use crate::error::Result;
use crate::registry::keras_class;
use phalanx_graph::ops::Binary;
use phalanx_graph::{Graph, NodeId};

options! {
    /// Hinge loss of -1-or-1 (or 0-or-1) labels.
    pub struct Hinge {
        common: Common::named("hinge");
    }
}

impl Loss for Hinge {
    keras_class!("Hinge", common);

    fn values(&self, g: &mut Graph, y_true: NodeId, y_pred: NodeId) -> Result<NodeId> {
        let (zero, one) = (g.scalar(0.0), g.scalar(1.0));
        let is_zero = g.binary(Binary::Eq, y_true, zero)?;
        // 0 - 1 = -1; other labels stay.
        let label = g.sub(y_true, is_zero)?;
        let product = g.mul(label, y_pred)?;
        let margin = g.sub(one, product)?;
        let values = g.binary(Binary::Max, margin, zero)?;
        mean_last(g, values)
    }
}
