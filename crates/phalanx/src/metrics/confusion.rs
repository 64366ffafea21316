//! Precision, `tp / (tp + fp)`, and recall, `tp / (tp + fn)`, counted over all positions. A prediction above
//! the threshold is positive, and so is a target other than 0.

use super::{Metric, check_same_type, check_threshold, ratio, sum_rows, targets_like_predictions};
use crate::error::Result;
use crate::registry::keras_class;
use phalanx_graph::ops::Binary;
use phalanx_graph::{Graph, NodeId};
use serde::{Deserialize, Serialize};

/// The positives that a metric divides by.
enum Denominator {
    Predictions,
    Targets,
}

/// Weighted sums of the true positives and of the remaining positive predictions (or positive targets).
fn counts(
    metric: &dyn Metric,
    g: &mut Graph,
    operands: [NodeId; 3],
    threshold: Option<f64>,
    denominator: Denominator,
) -> Result<NodeId> {
    let [y_true, y_pred, weight] = operands;
    let y_true = targets_like_predictions(metric, g, y_true, y_pred)?;
    let (zero, one) = (g.scalar(0.0), g.scalar(1.0));
    let threshold = g.scalar(f64::from(threshold.unwrap_or(0.5) as f32));
    let no = g.binary(Binary::Eq, y_true, zero)?;
    let target = g.sub(one, no)?;
    let predicted = g.binary(Binary::Gt, y_pred, threshold)?;
    let true_positive = g.mul(target, predicted)?;
    let all = match denominator {
        Denominator::Predictions => predicted,
        Denominator::Targets => target,
    };
    let remaining = g.sub(all, true_positive)?;
    let positions = g.ty(y_pred).len() as f64;
    let per_row = g.ty(weight).dims.is_empty();
    if !per_row {
        check_same_type(metric, g, "sample_weight", y_pred, weight)?;
    }
    let mut sums = vec![];
    for count in [true_positive, remaining] {
        let sum = if per_row {
            let mean = g.mean_row(count)?;
            g.mul(mean, weight)?
        } else {
            let weighted = g.mul(count, weight)?;
            g.mean_row(weighted)?
        };
        sums.push(g.scale(sum, positions)?);
    }
    sum_rows(g, &sums)
}

fn hit_ratio(state: &[f64]) -> f64 {
    match state {
        [hits, misses] => ratio(*hits, hits + misses),
        _ => 0.0,
    }
}

/// Both metrics have the same config and differ only in what they divide by.
macro_rules! ratio_of_counts {
    ($(#[$doc:meta])* $class:ident, $name:literal, $denominator:expr) => {
        $(#[$doc])*
        #[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
        pub struct $class {
            /// The name it is reported under.
            pub name: String,
            /// Predictions above it count as positive; `None` means 0.5.
            pub thresholds: Option<f64>,
        }

        impl Default for $class {
            fn default() -> $class {
                $class { name: $name.into(), thresholds: None }
            }
        }

        impl $class {
            /// Predictions above it count as positive.
            pub fn threshold(mut self, threshold: f64) -> $class {
                self.thresholds = Some(threshold);
                self
            }
        }

        impl Metric for $class {
            keras_class!(stringify!($class), name, { "top_k": null, "class_id": null });

            fn validate(&self) -> Result<()> {
                check_threshold(self, "thresholds", self.thresholds.unwrap_or(0.5))
            }

            fn update(
                &self,
                g: &mut Graph,
                y_true: NodeId,
                y_pred: NodeId,
                weight: NodeId,
            ) -> Result<NodeId> {
                counts(self, g, [y_true, y_pred, weight], self.thresholds, $denominator)
            }

            fn result(&self, state: &[f64]) -> f64 {
                hit_ratio(state)
            }
        }
    };
}

ratio_of_counts! {
    /// The fraction of positive predictions that are correct.
    Precision, "precision", Denominator::Predictions
}
ratio_of_counts! {
    /// The fraction of positive targets that are predicted.
    Recall, "recall", Denominator::Targets
}
