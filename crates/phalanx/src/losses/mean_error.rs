//! Means of differences over the last axis:
//!
//! - mean squared error, `(y_true - y_pred)²`
//! - mean absolute error, `|y_true - y_pred|`
//! - mean absolute percentage error, `100 · |(y_true - y_pred) / max(|y_true|, 1e-7)|`
//! - mean squared logarithmic error, `(ln(1 + max(y_pred, 1e-7)) - ln(1 + max(y_true, 1e-7)))²`

use super::{Common, EPSILON, Loss, mean_last};
use crate::config::options;
use crate::error::Result;
use crate::registry::keras_class;
use phalanx_graph::ops::{Binary, Unary};
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

options! {
    /// Mean of absolute differences, in percent of the target.
    pub struct MeanAbsolutePercentageError {
        common: Common::named("mean_absolute_percentage_error");
    }
}

options! {
    /// Mean of squared differences of logarithms.
    pub struct MeanSquaredLogarithmicError {
        common: Common::named("mean_squared_logarithmic_error");
    }
}

fn mean_of(u: Unary, g: &mut Graph, y_true: NodeId, y_pred: NodeId) -> Result<NodeId> {
    let error = g.sub(y_true, y_pred)?;
    let size = g.unary(u, error)?;
    mean_last(g, size)
}

/// `ln(1 + max(x, 1e-7))`
fn log_of(g: &mut Graph, x: NodeId) -> Result<NodeId> {
    let least = g.scalar(EPSILON);
    let x = g.binary(Binary::Max, x, least)?;
    Ok(g.unary(Unary::Log1p, x)?)
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

impl Loss for MeanAbsolutePercentageError {
    keras_class!("MeanAbsolutePercentageError", common);

    fn values(&self, g: &mut Graph, y_true: NodeId, y_pred: NodeId) -> Result<NodeId> {
        let size = g.unary(Unary::Abs, y_true)?;
        let least = g.scalar(EPSILON);
        let size = g.binary(Binary::Max, size, least)?;
        let error = g.sub(y_true, y_pred)?;
        let relative = g.div(error, size)?;
        let relative = g.unary(Unary::Abs, relative)?;
        let mean = mean_last(g, relative)?;
        Ok(g.scale(mean, 100.0)?)
    }
}

impl Loss for MeanSquaredLogarithmicError {
    keras_class!("MeanSquaredLogarithmicError", common);

    fn values(&self, g: &mut Graph, y_true: NodeId, y_pred: NodeId) -> Result<NodeId> {
        let (target, prediction) = (log_of(g, y_true)?, log_of(g, y_pred)?);
        mean_of(Unary::Square, g, target, prediction)
    }
}
