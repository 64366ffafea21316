//! F-scores, `(1 + β²) · precision · recall / (β² · precision + recall)`, for predictions `[classes]`.
//!
//! The state holds for each class the total weights of true positives, false positives, false negatives and
//! targets.

use super::{Metric, check_weights, mismatch, owner, targets_like_predictions};
use crate::config::options;
use crate::error::{Error, Result};
use crate::registry::keras_class;
use phalanx_graph::ops::{Binary, ReduceKind, Unary};
use phalanx_graph::{Graph, NodeId, Op, Type};
use serde::{Deserialize, Serialize};

/// Keras' epsilon, which prevents a division by zero.
const EPSILON: f64 = 1e-7;

/// How the scores of the classes become one number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Average {
    /// The score of all classes together.
    Micro,
    /// The mean of the scores.
    Macro,
    /// The mean of the scores, weighted by the number of targets.
    Weighted,
}

options! {
    /// F-score, which weighs recall `beta` times as much as precision.
    pub struct FBetaScore {
        name: "fbeta_score";
        /// How the scores of the classes become one number; `None`: a score for each class.
        average: Option<Average> = None,
        /// How much more recall counts than precision.
        beta: f64 = 1.0,
        /// Predictions above it count as positive; `None`: only the highest-scoring class.
        threshold: Option<f64> = None,
    }
}

options! {
    /// F-score with `beta` 1: the harmonic mean of precision and recall.
    pub struct F1Score {
        name: "f1_score";
        /// How the scores of the classes become one number; `None`: a score for each class.
        average: Option<Average> = None,
        /// Predictions above it count as positive; `None`: only the highest-scoring class.
        threshold: Option<f64> = None,
    }
}

fn check(metric: &dyn Metric, threshold: Option<f64>) -> Result<()> {
    match threshold {
        Some(t) if !(t > 0.0 && t <= 1.0) => {
            Err(Error::argument(owner(metric), "threshold", "a number above 0, up to 1", t))
        }
        _ => Ok(()),
    }
}

/// Whether each class is predicted: 1 or 0.
fn decide(g: &mut Graph, y_pred: NodeId, threshold: Option<f64>) -> Result<NodeId> {
    if let Some(threshold) = threshold {
        let threshold = g.scalar(f64::from(threshold as f32));
        return Ok(g.binary(Binary::Gt, y_pred, threshold)?);
    }
    let highest = g.push(Op::Reduce { kind: ReduceKind::Max, axes: vec![0] }, &[y_pred])?;
    let best = g.binary(Binary::Ge, y_pred, highest)?;
    let (size, least) = (g.unary(Unary::Abs, y_pred)?, g.scalar(1e-9));
    let nonzero = g.binary(Binary::Gt, size, least)?;
    Ok(g.mul(best, nonzero)?)
}

fn counts(
    metric: &dyn Metric,
    g: &mut Graph,
    [y_true, y_pred, weight]: [NodeId; 3],
    threshold: Option<f64>,
) -> Result<NodeId> {
    let [classes] = g.ty(y_pred).dims[..] else {
        let received = g.ty(y_pred);
        return Err(mismatch(metric, "y_pred", "shape (None, classes)".into(), received));
    };
    let y_true = targets_like_predictions(metric, g, y_true, y_pred)?;
    check_weights(metric, g, y_pred, weight)?;
    let predicted = decide(g, y_pred, threshold)?;
    let hit = g.mul(predicted, y_true)?;
    let (wrong, missed) = (g.sub(predicted, hit)?, g.sub(y_true, hit)?);
    let mut lines = vec![];
    for count in [hit, wrong, missed, y_true] {
        lines.push(g.mul(count, weight)?);
    }
    let joined = g.push(Op::Concat { axis: 0 }, &lines)?;
    let sums = g.push(Op::SumRows, &[joined])?;
    Ok(g.reshape(sums, &[4 * classes])?)
}

/// The score of one set of counts.
fn score([hits, wrong, missed]: [f64; 3], beta: f64) -> f64 {
    let precision = hits / (hits + wrong + EPSILON);
    let recall = hits / (hits + missed + EPSILON);
    let square = beta * beta;
    (1.0 + square) * precision * recall / (square * precision + recall + EPSILON)
}

/// The score of each class.
fn scores(state: &[f64], beta: f64) -> Vec<f64> {
    let classes = state.len() / 4;
    let at = |class: usize| [0, 1, 2].map(|line| state[line * classes + class]);
    (0..classes).map(|class| score(at(class), beta)).collect()
}

fn averaged(state: &[f64], average: Option<Average>, beta: f64) -> f64 {
    let scores = scores(state, beta);
    let classes = scores.len();
    if classes == 0 {
        return 0.0;
    }
    match average {
        Some(Average::Micro) => {
            let total = |line: usize| state[line * classes..(line + 1) * classes].iter().sum();
            score([0, 1, 2].map(total), beta)
        }
        Some(Average::Weighted) => {
            let targets = &state[3 * classes..];
            let total = targets.iter().sum::<f64>() + EPSILON;
            scores.iter().zip(targets).map(|(score, weight)| score * weight / total).sum()
        }
        Some(Average::Macro) | None => scores.iter().sum::<f64>() / classes as f64,
    }
}

impl Metric for FBetaScore {
    keras_class!("FBetaScore", name);

    fn validate(&self) -> Result<()> {
        if !(self.beta > 0.0 && self.beta.is_finite()) {
            return Err(Error::argument(owner(self), "beta", "a number above 0", self.beta));
        }
        check(self, self.threshold)
    }

    fn update(
        &self,
        g: &mut Graph,
        y_true: NodeId,
        y_pred: NodeId,
        weight: NodeId,
    ) -> Result<NodeId> {
        counts(self, g, [y_true, y_pred, weight], self.threshold)
    }

    fn state_len(&self, prediction: &Type) -> usize {
        4 * prediction.len()
    }

    fn result(&self, state: &[f64]) -> f64 {
        averaged(state, self.average, self.beta)
    }

    fn vector(&self, state: &[f64]) -> Option<Vec<f64>> {
        self.average.is_none().then(|| scores(state, self.beta))
    }
}

impl Metric for F1Score {
    keras_class!("F1Score", name);

    fn validate(&self) -> Result<()> {
        check(self, self.threshold)
    }

    fn update(
        &self,
        g: &mut Graph,
        y_true: NodeId,
        y_pred: NodeId,
        weight: NodeId,
    ) -> Result<NodeId> {
        counts(self, g, [y_true, y_pred, weight], self.threshold)
    }

    fn state_len(&self, prediction: &Type) -> usize {
        4 * prediction.len()
    }

    fn result(&self, state: &[f64]) -> f64 {
        averaged(state, self.average, 1.0)
    }

    fn vector(&self, state: &[f64]) -> Option<Vec<f64>> {
        self.average.is_none().then(|| scores(state, 1.0))
    }
}
