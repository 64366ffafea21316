//! The best value of one rate among the thresholds at which another rate reaches a given value.
//!
//! With the counts at evenly spaced thresholds from 0 to 1: precision is `tp / (tp + fp)`, recall (also called
//! sensitivity) `tp / (tp + fn)` and specificity `tn / (tn + fp)`.

use super::threshold_counts::{Counts, ThresholdSet};
use super::{
    MAX_THRESHOLDS, Metric, check_threshold, check_weights, class_slice, owner,
    targets_like_predictions,
};
use crate::config::options;
use crate::error::{Error, Result};
use crate::registry::keras_class;
use phalanx_graph::ops::Binary;
use phalanx_graph::{Graph, NodeId, Type};

/// The largest value of `rate` at the thresholds where `constrained` is at least `limit`; 0 if there are none.
fn best(
    state: &[f64],
    limit: f64,
    constrained: fn(&Counts) -> f64,
    rate: fn(&Counts) -> f64,
) -> f64 {
    let feasible = Counts::of(state).into_iter().filter(|counts| constrained(counts) >= limit);
    feasible.map(|counts| rate(&counts)).fold(0.0, f64::max)
}

/// The state of the metrics.
fn counts(
    metric: &dyn Metric,
    g: &mut Graph,
    [y_true, y_pred, weight]: [NodeId; 3],
    thresholds: ThresholdSet<'_>,
    class_id: Option<usize>,
) -> Result<NodeId> {
    let y_true = targets_like_predictions(metric, g, y_true, y_pred)?;
    let (zero, one) = (g.scalar(0.0), g.scalar(1.0));
    let no = g.binary(Binary::Eq, y_true, zero)?;
    let (mut label, mut score) = (g.sub(one, no)?, y_pred);
    if let Some(class) = class_id {
        label = class_slice(metric, g, label, class)?;
        score = class_slice(metric, g, score, class)?;
    }
    check_weights(metric, g, score, weight)?;
    thresholds.state(g, score, label, weight)
}

/// Evenly spaced thresholds. A single one is ½.
fn evenly_spaced(n: usize) -> ThresholdSet<'static> {
    if n == 1 { ThresholdSet::List(&[0.5]) } else { ThresholdSet::Even(n) }
}

fn check(metric: &dyn Metric, argument: &str, limit: f64, thresholds: usize) -> Result<()> {
    check_threshold(metric, argument, limit)?;
    if (1..=MAX_THRESHOLDS).contains(&thresholds) {
        return Ok(());
    }
    let expected = format!("1 to {MAX_THRESHOLDS}");
    Err(Error::argument(owner(metric), "num_thresholds", expected, thresholds))
}

/// Declares the metric of `$rate` where `$limit` has the given value.
macro_rules! best_rate {
    ($(#[$doc:meta])* $class:ident, $name:literal, $limit:ident = $constrained:ident, $rate:ident) => {
        options! {
            $(#[$doc])*
            pub struct $class {
                name: $name;
                /// The value that must be reached.
                $limit: f64 = 0.5,
                /// The number of thresholds.
                num_thresholds: usize = 200,
                /// The only class that counts.
                class_id: Option<usize> = None,
            }
        }

        impl $class {
            /// The metric where this value is reached.
            pub fn new($limit: f64) -> $class {
                $class::default().$limit($limit)
            }
        }

        impl Metric for $class {
            keras_class!(stringify!($class), name);

            fn validate(&self) -> Result<()> {
                check(self, stringify!($limit), self.$limit, self.num_thresholds)
            }

            fn update(
                &self,
                g: &mut Graph,
                y_true: NodeId,
                y_pred: NodeId,
                weight: NodeId,
            ) -> Result<NodeId> {
                let operands = [y_true, y_pred, weight];
                counts(self, g, operands, evenly_spaced(self.num_thresholds), self.class_id)
            }

            fn state_len(&self, _: &Type) -> usize {
                evenly_spaced(self.num_thresholds).state_len()
            }

            fn result(&self, state: &[f64]) -> f64 {
                best(state, self.$limit, Counts::$constrained, Counts::$rate)
            }
        }
    };
}

best_rate! {
    /// The best sensitivity where the specificity has at least the given value.
    SensitivityAtSpecificity, "sensitivity_at_specificity", specificity = specificity, recall
}
best_rate! {
    /// The best specificity where the sensitivity has at least the given value.
    SpecificityAtSensitivity, "specificity_at_sensitivity", sensitivity = recall, specificity
}
best_rate! {
    /// The best precision where the recall has at least the given value.
    PrecisionAtRecall, "precision_at_recall", recall = recall, precision
}
best_rate! {
    /// The best recall where the precision has at least the given value.
    RecallAtPrecision, "recall_at_precision", precision = precision, recall
}
