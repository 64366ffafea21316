//! Means over samples: the mean of any loss, and the root mean squared error.

use super::{Metric, mean_state, ratio, targets_like_predictions, with_dtype};
use crate::config;
use crate::error::Result;
use crate::losses::{self, Loss};
use phalanx_graph::ops::Unary;
use phalanx_graph::{Graph, NodeId};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

/// The weighted mean of a loss, reported under the name of the loss: `LossMetric::new(Huber::default())`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct LossMetric<L> {
    loss: L,
}

/// Mean of squared differences.
pub type MeanSquaredError = LossMetric<losses::MeanSquaredError>;
/// Mean of absolute differences.
pub type MeanAbsoluteError = LossMetric<losses::MeanAbsoluteError>;
/// Mean crossentropy of 0-or-1 targets.
pub type BinaryCrossentropy = LossMetric<losses::BinaryCrossentropy>;
/// Mean crossentropy of one-hot targets.
pub type CategoricalCrossentropy = LossMetric<losses::CategoricalCrossentropy>;
/// Mean crossentropy of class indices.
pub type SparseCategoricalCrossentropy = LossMetric<losses::SparseCategoricalCrossentropy>;
/// Mean Huber loss.
pub type Huber = LossMetric<losses::Huber>;
/// Mean Kullback-Leibler divergence.
pub type KLDivergence = LossMetric<losses::KLDivergence>;
/// Mean hinge loss.
pub type Hinge = LossMetric<losses::Hinge>;

impl<L: Loss> LossMetric<L> {
    /// The mean of a loss.
    pub fn new(loss: L) -> Self {
        LossMetric { loss }
    }
}

impl<L: Loss> Metric for LossMetric<L> {
    fn class_name(&self) -> &'static str {
        self.loss.class_name()
    }

    fn config(&self) -> Map<String, Value> {
        let mut config = with_dtype(self.loss.config());
        // Keras' metrics do not accept the first key, and not all accept the second.
        config.remove("reduction");
        config.remove("axis");
        config
    }

    fn name(&self) -> &str {
        self.loss.name()
    }

    fn set_name(&mut self, name: &str) {
        self.loss.common_mut().name = name.into();
    }

    fn validate(&self) -> Result<()> {
        self.loss.validate()
    }

    fn update(
        &self,
        g: &mut Graph,
        y_true: NodeId,
        y_pred: NodeId,
        weight: NodeId,
    ) -> Result<NodeId> {
        let values = self.loss.call(g, y_true, y_pred)?;
        mean_state(self, g, values, weight)
    }
}

/// `√(mean((y_true - y_pred)²))`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct RootMeanSquaredError {
    /// The name it is reported under.
    pub name: String,
}

impl Default for RootMeanSquaredError {
    fn default() -> Self {
        RootMeanSquaredError { name: "root_mean_squared_error".into() }
    }
}

impl Metric for RootMeanSquaredError {
    fn class_name(&self) -> &'static str {
        "RootMeanSquaredError"
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

    fn update(
        &self,
        g: &mut Graph,
        y_true: NodeId,
        y_pred: NodeId,
        weight: NodeId,
    ) -> Result<NodeId> {
        let y_true = targets_like_predictions(self, g, y_true, y_pred)?;
        let error = g.sub(y_pred, y_true)?;
        let square = g.unary(Unary::Square, error)?;
        mean_state(self, g, square, weight)
    }

    fn result(&self, state: &[f64]) -> f64 {
        match state {
            [total, count] => ratio(*total, *count).sqrt(),
            _ => 0.0,
        }
    }
}
