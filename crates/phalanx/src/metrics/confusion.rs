//! Counts of correct and wrong decisions over all positions, and their ratios: precision, `tp / (tp + fp)`, and
//! recall, `tp / (tp + fn)`. A prediction above the threshold is positive, and so is a target other than 0.

use super::{
    Metric, check_threshold, check_weights, class_slice, owner, position_sums, ratio,
    targets_like_predictions, top_k_mask,
};
use crate::config::options;
use crate::error::{Error, Result};
use crate::registry::keras_class;
use phalanx_graph::ops::Binary;
use phalanx_graph::{Graph, NodeId, Type};
use serde::{Deserialize, Serialize};

/// The threshold of a decision. Keras also writes it as a list.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum Thresholds {
    /// One.
    One(f64),
    /// A list, which must have one element: a metric is one number.
    List(Vec<f64>),
}

impl From<f64> for Thresholds {
    fn from(threshold: f64) -> Thresholds {
        Thresholds::One(threshold)
    }
}

impl Thresholds {
    fn as_slice(&self) -> &[f64] {
        match self {
            Thresholds::One(threshold) => std::slice::from_ref(threshold),
            Thresholds::List(list) => list,
        }
    }
}

/// The options of a decision.
#[derive(Default)]
struct Decision<'a> {
    thresholds: Option<&'a Thresholds>,
    top_k: Option<usize>,
    class_id: Option<usize>,
}

impl Decision<'_> {
    fn validate(&self, metric: &dyn Metric) -> Result<()> {
        if self.top_k == Some(0) {
            return Err(Error::argument(owner(metric), "top_k", "1 or more", 0));
        }
        match self.thresholds.map_or(&[0.5][..], Thresholds::as_slice) {
            [threshold] => check_threshold(metric, "thresholds", *threshold),
            several => {
                let received = format!("{several:?}");
                Err(Error::argument(owner(metric), "thresholds", "one threshold", received))
            }
        }
    }

    /// Whether each target, and each prediction, is positive: 1 or 0.
    fn decide(
        &self,
        metric: &dyn Metric,
        g: &mut Graph,
        y_true: NodeId,
        y_pred: NodeId,
    ) -> Result<(NodeId, NodeId)> {
        let y_true = targets_like_predictions(metric, g, y_true, y_pred)?;
        let (zero, one) = (g.scalar(0.0), g.scalar(1.0));
        let no = g.binary(Binary::Eq, y_true, zero)?;
        let mut target = g.sub(one, no)?;
        let best = self.top_k.map(|k| top_k_mask(metric, g, y_pred, k)).transpose()?;
        let threshold = self.thresholds.and_then(|t| t.as_slice().first().copied());
        let mut predicted = match (best, threshold) {
            (Some(best), None) => best,
            (best, threshold) => {
                let threshold = g.scalar(f64::from(threshold.unwrap_or(0.5) as f32));
                let above = g.binary(Binary::Gt, y_pred, threshold)?;
                best.map_or(Ok(above), |best| g.mul(above, best))?
            }
        };
        if let Some(class) = self.class_id {
            target = class_slice(metric, g, target, class)?;
            predicted = class_slice(metric, g, predicted, class)?;
        }
        Ok((target, predicted))
    }
}

/// A cell of the confusion matrix.
#[derive(Clone, Copy)]
enum Cell {
    TruePositive,
    FalsePositive,
    TrueNegative,
    FalseNegative,
}

impl Cell {
    /// 1 where a decision falls into the cell, else 0.
    fn of(self, g: &mut Graph, target: NodeId, predicted: NodeId) -> Result<NodeId> {
        let one = g.scalar(1.0);
        let not = |g: &mut Graph, x: NodeId| g.sub(one, x);
        let (target, predicted) = match self {
            Cell::TruePositive => (target, predicted),
            Cell::FalsePositive => (not(g, target)?, predicted),
            Cell::TrueNegative => (not(g, target)?, not(g, predicted)?),
            Cell::FalseNegative => (target, not(g, predicted)?),
        };
        Ok(g.mul(target, predicted)?)
    }
}

/// Weighted sums of cells.
fn counts(
    metric: &dyn Metric,
    g: &mut Graph,
    operands: [NodeId; 3],
    decision: &Decision<'_>,
    cells: &[Cell],
) -> Result<NodeId> {
    let [y_true, y_pred, weight] = operands;
    let (target, predicted) = decision.decide(metric, g, y_true, y_pred)?;
    check_weights(metric, g, target, weight)?;
    let mut counted = vec![];
    for cell in cells {
        let count = cell.of(g, target, predicted)?;
        counted.push(g.mul(count, weight)?);
    }
    position_sums(g, &counted)
}

/// Declares a metric of one or two cells. Two cells are the hits and the misses of a ratio.
macro_rules! cells {
    (
        $(#[$doc:meta])* $class:ident, $name:literal, [$($cell:ident),+]
        $(, $(#[$option_doc:meta])* $option:ident)*
    ) => {
        options! {
            $(#[$doc])*
            pub struct $class {
                name: $name;
                /// Predictions above it count as positive; `None` means 0.5.
                thresholds: Option<Thresholds> = None,
                $($(#[$option_doc])* $option: Option<usize> = None,)*
            }
        }

        impl $class {
            /// Predictions above it count as positive.
            pub fn threshold(self, threshold: f64) -> $class {
                self.thresholds(Some(threshold.into()))
            }

            // Some classes have all options.
            #[allow(clippy::needless_update)]
            fn decision(&self) -> Decision<'_> {
                Decision {
                    thresholds: self.thresholds.as_ref(),
                    $($option: self.$option,)*
                    ..Decision::default()
                }
            }
        }

        impl Metric for $class {
            keras_class!(stringify!($class), name);

            fn validate(&self) -> Result<()> {
                self.decision().validate(self)
            }

            fn update(
                &self,
                g: &mut Graph,
                y_true: NodeId,
                y_pred: NodeId,
                weight: NodeId,
            ) -> Result<NodeId> {
                counts(self, g, [y_true, y_pred, weight], &self.decision(), &[$(Cell::$cell),+])
            }

            fn state_len(&self, _: &Type) -> usize {
                [$(Cell::$cell),+].len()
            }

            fn result(&self, state: &[f64]) -> f64 {
                match state {
                    [count] => *count,
                    [hits, misses] => ratio(*hits, hits + misses),
                    _ => 0.0,
                }
            }
        }
    };
}

cells! {
    /// The number of positive targets that are predicted.
    TruePositives, "true_positives", [TruePositive]
}
cells! {
    /// The number of other targets that are predicted as positive.
    FalsePositives, "false_positives", [FalsePositive]
}
cells! {
    /// The number of other targets that are not predicted as positive.
    TrueNegatives, "true_negatives", [TrueNegative]
}
cells! {
    /// The number of positive targets that are not predicted.
    FalseNegatives, "false_negatives", [FalseNegative]
}
cells! {
    /// The fraction of positive predictions that are correct.
    Precision, "precision", [TruePositive, FalsePositive],
    /// Only the `top_k` highest-scoring classes of a sample count as predicted.
    top_k,
    /// The only class that counts.
    class_id
}
cells! {
    /// The fraction of positive targets that are predicted.
    Recall, "recall", [TruePositive, FalseNegative],
    /// Only the `top_k` highest-scoring classes of a sample count as predicted.
    top_k,
    /// The only class that counts.
    class_id
}
