//! Coefficient of determination, `1 - Σ (t - p)² / Σ (t - mean(t))²`, for predictions `[outputs]`.
//!
//! The state holds for each output the sum of the weighted targets, of their squares, of the squared errors and of the
//! weights, then the number of targets.

use super::{Metric, check_weights, mismatch, owner, targets_like_predictions};
use crate::config::options;
use crate::error::{Error, Result};
use crate::registry::keras_class;
use phalanx_graph::ops::{Binary, Unary};
use phalanx_graph::{Graph, NodeId, Op, Type};
use serde::{Deserialize, Serialize};

/// How the scores of the outputs become one number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ClassAggregation {
    /// The mean.
    UniformAverage,
    /// The mean, weighted by the variance of the targets.
    VarianceWeightedAverage,
}

options! {
    /// The fraction of the variance of the targets that is predicted.
    pub struct R2Score {
        name: "r2_score";
        /// How the scores of the outputs become one number. A score for each output is not supported.
        class_aggregation: Option<ClassAggregation> = Some(ClassAggregation::UniformAverage),
        /// The number of independent variables, for the adjusted score; 0 for the plain one.
        num_regressors: u64 = 0,
    }
}

impl Metric for R2Score {
    keras_class!("R2Score", name);

    fn validate(&self) -> Result<()> {
        if self.class_aggregation.is_some() {
            return Ok(());
        }
        let expected =
            "'uniform_average' or 'variance_weighted_average', because a metric is one number";
        Err(Error::argument(owner(self), "class_aggregation", expected, "null"))
    }

    fn update(
        &self,
        g: &mut Graph,
        y_true: NodeId,
        y_pred: NodeId,
        weight: NodeId,
    ) -> Result<NodeId> {
        let [outputs] = g.ty(y_pred).dims[..] else {
            let received = g.ty(y_pred);
            return Err(mismatch(self, "y_pred", "shape (None, outputs)".into(), received));
        };
        let y_true = targets_like_predictions(self, g, y_true, y_pred)?;
        check_weights(self, g, y_pred, weight)?;
        let ones = g.binary(Binary::Eq, y_true, y_true)?;
        let square = g.unary(Unary::Square, y_true)?;
        let error = g.sub(y_true, y_pred)?;
        let error = g.unary(Unary::Square, error)?;
        let mut lines = vec![];
        for value in [y_true, square, error, ones] {
            lines.push(g.mul(value, weight)?);
        }
        lines.push(g.sum_axes(ones, &[0])?);
        let joined = g.push(Op::Concat { axis: 0 }, &lines)?;
        let sums = g.push(Op::SumRows, &[joined])?;
        Ok(g.reshape(sums, &[4 * outputs + 1])?)
    }

    fn state_len(&self, prediction: &Type) -> usize {
        4 * prediction.len() + 1
    }

    fn result(&self, state: &[f64]) -> f64 {
        let [sums @ .., samples] = state else { return 0.0 };
        let n = sums.len() / 4;
        if n == 0 || *samples == 0.0 {
            return 0.0;
        }
        let (mut scores, mut variance) = (0.0, 0.0);
        for output in 0..n {
            let [sum, squares, errors, count] = [0, 1, 2, 3].map(|line| sums[line * n + output]);
            let total = squares - sum * sum / count;
            let score = 1.0 - errors / total;
            let score = if score.is_infinite() { 0.0 } else { score };
            let weight = match self.class_aggregation {
                Some(ClassAggregation::VarianceWeightedAverage) => total,
                _ => 1.0,
            };
            scores += weight * score;
            variance += weight;
        }
        let score = scores / variance;
        let freedom = samples - self.num_regressors as f64 - 1.0;
        // As in Keras, too few samples give the plain score.
        if self.num_regressors == 0 || freedom <= 0.0 {
            return score;
        }
        1.0 - (1.0 - score) * (samples - 1.0) / freedom
    }
}
