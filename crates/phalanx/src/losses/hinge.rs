//! Hinge losses.
//!
//! - hinge, `mean(max(1 - t · y_pred, 0))` over the last axis, for labels `t` of -1 and 1
//! - squared hinge, the mean of the squares of the same
//! - categorical hinge, `max(max((1 - t) · y_pred) - Σ t · y_pred + 1, 0)`, for one-hot targets `t`
//!
//! Labels of 0 count as -1 in the first two. Keras converts 0/1 labels only if the whole batch consists of them.
//! The rule here gives the same result for 0/1 labels and for -1/1 labels, and it does not depend on which samples
//! share a batch or a replica.

use super::{Common, Loss, class_targets, mean_last, sum_last};
use crate::config::options;
use crate::error::Result;
use crate::registry::keras_class;
use phalanx_graph::ops::{Binary, ReduceKind, Unary};
use phalanx_graph::{Graph, NodeId, Op, Type};

options! {
    /// Hinge loss of -1-or-1 (or 0-or-1) labels.
    pub struct Hinge {
        common: Common::named("hinge");
    }
}

options! {
    /// Squared hinge loss of -1-or-1 (or 0-or-1) labels.
    pub struct SquaredHinge {
        common: Common::named("squared_hinge");
    }
}

options! {
    /// Hinge loss of one-hot targets.
    pub struct CategoricalHinge {
        common: Common::named("categorical_hinge");
    }
}

/// `max(1 - t · y_pred, 0)`
fn margins(g: &mut Graph, y_true: NodeId, y_pred: NodeId) -> Result<NodeId> {
    let (zero, one) = (g.scalar(0.0), g.scalar(1.0));
    let is_zero = g.binary(Binary::Eq, y_true, zero)?;
    // 0 - 1 = -1; other labels stay.
    let label = g.sub(y_true, is_zero)?;
    let product = g.mul(label, y_pred)?;
    let margin = g.sub(one, product)?;
    Ok(g.binary(Binary::Max, margin, zero)?)
}

impl Loss for Hinge {
    keras_class!("Hinge", common);

    fn values(&self, g: &mut Graph, y_true: NodeId, y_pred: NodeId) -> Result<NodeId> {
        let values = margins(g, y_true, y_pred)?;
        mean_last(g, values)
    }
}

impl Loss for SquaredHinge {
    keras_class!("SquaredHinge", common);

    fn values(&self, g: &mut Graph, y_true: NodeId, y_pred: NodeId) -> Result<NodeId> {
        let margins = margins(g, y_true, y_pred)?;
        let values = g.unary(Unary::Square, margins)?;
        mean_last(g, values)
    }
}

impl Loss for CategoricalHinge {
    keras_class!("CategoricalHinge", common);

    fn target(&self, prediction: &Type) -> Result<Type> {
        class_targets(self.name(), prediction)
    }

    fn values(&self, g: &mut Graph, y_true: NodeId, y_pred: NodeId) -> Result<NodeId> {
        let (zero, one) = (g.scalar(0.0), g.scalar(1.0));
        let hit = g.mul(y_true, y_pred)?;
        let hit = sum_last(g, hit)?;
        let others = g.sub(one, y_true)?;
        let others = g.mul(others, y_pred)?;
        let axis = g.ty(others).dims.len() - 1;
        let best = g.push(Op::Reduce { kind: ReduceKind::Max, axes: vec![axis] }, &[others])?;
        let dims = g.ty(hit).dims.clone();
        let best = g.reshape(best, &dims)?;
        let gap = g.sub(best, hit)?;
        let gap = g.add(gap, one)?;
        Ok(g.binary(Binary::Max, gap, zero)?)
    }
}
