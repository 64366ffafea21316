//! Mean squared error, `mean((y_true - y_pred)²)`, and mean absolute error,
//! `mean(|y_true - y_pred|)`, over the last axis.

use super::{Common, Loss, mean_last};
use crate::config::options;
use crate::error::Result;
use crate::registry::keras_class;
use phalanx_graph::ops::Unary;
use phalanx_graph::{Graph, NodeId};

options! {
    /// Mean of squared differences.
    pub struct MeanSquaredError {
        common: Common::named("mean_squared_error");
    }
}

options! {
    /// Mean of absolute differences.
    pub struct MeanAbsoluteError {
        common: Common::named("mean_absolute_error");
    }
}

fn mean_of(u: Unary, g: &mut Graph, y_true: NodeId, y_pred: NodeId) -> Result<NodeId> {
    let error = g.sub(y_true, y_pred)?;
    let size = g.unary(u, error)?;
    mean_last(g, size)
}

impl Loss for MeanSquaredError {
    keras_class!("MeanSquaredError", common);

    fn values(&self, g: &mut Graph, y_true: NodeId, y_pred: NodeId) -> Result<NodeId> {
        mean_of(Unary::Square, g, y_true, y_pred)
    }
}

impl Loss for MeanAbsoluteError {
    keras_class!("MeanAbsoluteError", common);

    fn values(&self, g: &mut Graph, y_true: NodeId, y_pred: NodeId) -> Result<NodeId> {
        mean_of(Unary::Abs, g, y_true, y_pred)
    }
}
