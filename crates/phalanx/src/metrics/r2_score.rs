//! Coefficient of determination, `1 - Σ (t - p)² / Σ (t - mean(t))²`, for predictions `[outputs]`.
//!
//! The state holds for each output the sum of the weighted targets, of their squares, of the squared errors and of the
//! weights, then the number of targets.

use super::{Metric, check_weights, mismatch, targets_like_predictions};
use crate::config::options;
use crate::error::Result;
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
        /// How the scores of the outputs become one number; `None`: a score for each output.
        class_aggregation: Option<ClassAggregation> = Some(ClassAggregation::UniformAverage),
        /// The number of independent variables, for the adjusted score; 0 for the plain one.
        num_regressors: u64 = 0,
    }
}

impl R2Score {
    /// The score of each output, and the variance of its targets. Without samples the scores are 0.
    fn scores(state: &[f64]) -> Vec<(f64, f64)> {
        let [sums @ .., samples] = state else { return vec![] };
        let n = sums.len() / 4;
        let score = |output: usize| {
            if *samples == 0.0 {
                return (0.0, 1.0);
            }
            let [sum, squares, errors, count] = [0, 1, 2, 3].map(|line| sums[line * n + output]);
            let total = squares - sum * sum / count;
            let score = 1.0 - errors / total;
            (if score.is_infinite() { 0.0 } else { score }, total)
        };
        (0..n).map(score).collect()
    }

    /// A score adjusted for the number of independent variables. As in Keras, too few samples give the plain score.
    fn adjusted(&self, score: f64, state: &[f64]) -> f64 {
        let samples = state.last().copied().unwrap_or_default();
        let freedom = samples - self.num_regressors as f64 - 1.0;
        if self.num_regressors == 0 || freedom <= 0.0 {
            return score;
        }
        1.0 - (1.0 - score) * (samples - 1.0) / freedom
    }
}

impl Metric for R2Score {
    keras_class!("R2Score", name);

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
        let scores = R2Score::scores(state);
        let Some(aggregation) = self.class_aggregation else {
            return mean_by(scores.iter().map(|(score, _)| (self.adjusted(*score, state), 1.0)));
        };
        let weight = |variance: f64| match aggregation {
            ClassAggregation::UniformAverage => 1.0,
            ClassAggregation::VarianceWeightedAverage => variance,
        };
        let score = mean_by(scores.iter().map(|(score, variance)| (*score, weight(*variance))));
        self.adjusted(score, state)
    }

    fn vector(&self, state: &[f64]) -> Option<Vec<f64>> {
        let scores = || R2Score::scores(state).into_iter();
        let adjusted = || scores().map(|(score, _)| self.adjusted(score, state)).collect();
        self.class_aggregation.is_none().then(adjusted)
    }
}

/// The mean of numbers, each with its weight; 0 for none.
fn mean_by(numbers: impl ExactSizeIterator<Item = (f64, f64)>) -> f64 {
    if numbers.len() == 0 {
        return 0.0;
    }
    let (mut total, mut weights) = (0.0, 0.0);
    for (number, weight) in numbers {
        total += weight * number;
        weights += weight;
    }
    total / weights
}
