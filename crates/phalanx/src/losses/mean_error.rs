//! Mean squared error, `mean((y_true - y_pred)²)`, and mean absolute error,
//! `mean(|y_true - y_pred|)`, over the last axis.

use super::{Common, Loss, mean_last};
use crate::config;
use crate::error::Result;
use phalanx_graph::ops::Unary;
use phalanx_graph::{Graph, NodeId};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

/// Mean of squared differences.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct MeanSquaredError {
    /// Name and reduction.
    #[serde(flatten)]
    pub common: Common,
}

/// Mean of absolute differences.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct MeanAbsoluteError {
    /// Name and reduction.
    #[serde(flatten)]
    pub common: Common,
}

impl Default for MeanSquaredError {
    fn default() -> Self {
        MeanSquaredError { common: Common::named("mean_squared_error") }
    }
}

impl Default for MeanAbsoluteError {
    fn default() -> Self {
        MeanAbsoluteError { common: Common::named("mean_absolute_error") }
    }
}

fn mean_of(u: Unary, g: &mut Graph, y_true: NodeId, y_pred: NodeId) -> Result<NodeId> {
    let error = g.sub(y_true, y_pred)?;
    let size = g.unary(u, error)?;
    mean_last(g, size)
}

impl Loss for MeanSquaredError {
    fn class_name(&self) -> &'static str {
        "MeanSquaredError"
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
        mean_of(Unary::Square, g, y_true, y_pred)
    }
}

impl Loss for MeanAbsoluteError {
    fn class_name(&self) -> &'static str {
        "MeanAbsoluteError"
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
        mean_of(Unary::Abs, g, y_true, y_pred)
    }
}
