//! Means over samples: the mean of any loss, the root mean squared error and the cosine similarity.

use super::support::mean_of_values;
use super::{Metric, mean_state, owner, ratio, targets_like_predictions};
use crate::config::options;
use crate::error::Result;
use crate::losses::{self, Loss};
use crate::registry::{Config, keras_class};
use phalanx_graph::ops::Unary;
use phalanx_graph::{Graph, NodeId};
use serde::{Deserialize, Serialize};

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
/// Mean of absolute differences, in percent of the target.
pub type MeanAbsolutePercentageError = LossMetric<losses::MeanAbsolutePercentageError>;
/// Mean of squared differences of logarithms.
pub type MeanSquaredLogarithmicError = LossMetric<losses::MeanSquaredLogarithmicError>;
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
/// Mean squared hinge loss.
pub type SquaredHinge = LossMetric<losses::SquaredHinge>;
/// Mean hinge loss of one-hot targets.
pub type CategoricalHinge = LossMetric<losses::CategoricalHinge>;
/// Mean Poisson loss.
pub type Poisson = LossMetric<losses::Poisson>;

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

    fn config(&self) -> Config {
        let mut config = self.loss.config();
        config.insert("dtype".into(), "float32".into());
        // Keras' metrics do not accept the first key, and this one not the second.
        config.remove("reduction");
        if self.class_name() == "BinaryCrossentropy" {
            config.remove("axis");
        }
        config
    }

    fn name(&self) -> &str {
        self.loss.name()
    }

    fn set_name(&mut self, name: &str) {
        self.loss.common_mut().name = name.into();
    }

    mean_of_values!();

    fn validate(&self) -> Result<()> {
        self.loss.validate()
    }
}

impl<L: Loss> LossMetric<L> {
    /// The value at each position.
    fn values(&self, g: &mut Graph, y_true: NodeId, y_pred: NodeId) -> Result<NodeId> {
        self.loss.call(g, y_true, y_pred)
    }
}

options! {
    /// `√(mean((y_true - y_pred)²))`.
    pub struct RootMeanSquaredError {
        name: "root_mean_squared_error";
    }
}

impl Metric for RootMeanSquaredError {
    keras_class!("RootMeanSquaredError", name);

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

options! {
    /// Mean of `ln(cosh(y_pred - y_true))`.
    pub struct LogCoshError {
        name: "logcosh";
    }
}

impl Metric for LogCoshError {
    keras_class!("LogCoshError", name);
    mean_of_values!();
}

impl LogCoshError {
    /// The value at each position.
    fn values(&self, g: &mut Graph, y_true: NodeId, y_pred: NodeId) -> Result<NodeId> {
        let y_true = targets_like_predictions(self, g, y_true, y_pred)?;
        losses::LogCosh::default().call(g, y_true, y_pred)
    }
}

options! {
    /// Mean cosine of the angle between targets and predictions.
    pub struct CosineSimilarity {
        name: "cosine_similarity";
        /// The axis of the vectors, counted with the batch.
        axis: i64 = -1,
    }
}

impl Metric for CosineSimilarity {
    keras_class!("CosineSimilarity", name);
    mean_of_values!();
}

impl CosineSimilarity {
    /// The value at each position.
    fn values(&self, g: &mut Graph, y_true: NodeId, y_pred: NodeId) -> Result<NodeId> {
        let y_true = targets_like_predictions(self, g, y_true, y_pred)?;
        losses::cosine(&owner(self), self.axis, g, y_true, y_pred)
    }
}
