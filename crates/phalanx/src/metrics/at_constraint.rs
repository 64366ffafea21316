//! The best value of one rate among the thresholds at which another rate reaches a given value.
//!
//! With the counts at evenly spaced thresholds from 0 to 1: precision is `tp / (tp + fp)`, recall (also called
//! sensitivity) `tp / (tp + fn)` and specificity `tn / (tn + fp)`.
//!
//! The state holds, for each threshold, the total weight of the positives scored above it, then the same of the
//! negatives, then the total weights of both. A single threshold is ½.

use super::{
    MAX_THRESHOLDS, Metric, check_threshold, check_weights, class_slice, owner, position_sums,
    ratio, targets_like_predictions,
};
use crate::config::options;
use crate::error::{Error, Result};
use crate::registry::keras_class;
use phalanx_graph::ops::Binary;
use phalanx_graph::{Graph, NodeId, Op, Type};

/// Counts at a threshold.
struct Counts {
    true_positives: f64,
    false_positives: f64,
    positives: f64,
    negatives: f64,
}

impl Counts {
    fn precision(&self) -> f64 {
        ratio(self.true_positives, self.true_positives + self.false_positives)
    }

    fn recall(&self) -> f64 {
        ratio(self.true_positives, self.positives)
    }

    fn specificity(&self) -> f64 {
        ratio(self.negatives - self.false_positives, self.negatives)
    }
}

/// The largest value of `rate` at the thresholds where `constrained` is at least `limit`; 0 if there are none.
fn best(
    state: &[f64],
    limit: f64,
    constrained: fn(&Counts) -> f64,
    rate: fn(&Counts) -> f64,
) -> f64 {
    let [above @ .., positives, negatives] = state else { return 0.0 };
    let (true_positives, false_positives) = above.split_at(above.len() / 2);
    let at = |(tp, fp): (&f64, &f64)| Counts {
        true_positives: *tp,
        false_positives: *fp,
        positives: *positives,
        negatives: *negatives,
    };
    let feasible = true_positives.iter().zip(false_positives).map(at);
    let feasible = feasible.filter(|counts| constrained(counts) >= limit);
    feasible.map(|counts| rate(&counts)).fold(0.0, f64::max)
}

/// The state of the metrics.
fn counts(
    metric: &dyn Metric,
    g: &mut Graph,
    [y_true, y_pred, weight]: [NodeId; 3],
    thresholds: usize,
    class_id: Option<usize>,
) -> Result<NodeId> {
    let y_true = targets_like_predictions(metric, g, y_true, y_pred)?;
    let (zero, one, half) = (g.scalar(0.0), g.scalar(1.0), g.scalar(0.5));
    let no = g.binary(Binary::Eq, y_true, zero)?;
    let (mut label, mut score) = (g.sub(one, no)?, y_pred);
    if let Some(class) = class_id {
        label = class_slice(metric, g, label, class)?;
        score = class_slice(metric, g, score, class)?;
    }
    check_weights(metric, g, score, weight)?;
    let other = g.sub(one, label)?;
    let classes = [g.mul(label, weight)?, g.mul(other, weight)?];
    if thresholds == 1 {
        let above = g.binary(Binary::Gt, score, half)?;
        let [positive, negative] = classes;
        let hits = [g.mul(positive, above)?, g.mul(negative, above)?];
        return position_sums(g, &[hits, classes].concat());
    }
    // The first threshold of the op lies below 0. Here it is 0.
    let above = g.binary(Binary::Gt, score, zero)?;
    let weight = g.mul(weight, above)?;
    let score = g.clamp(score, 0.0, 1.0)?;
    let above = g.push(Op::ThresholdCounts { n: thresholds }, &[score, label, weight])?;
    let above = g.reshape(above, &[2 * thresholds])?;
    let totals = position_sums(g, &classes)?;
    Ok(g.push(Op::Concat { axis: 0 }, &[above, totals])?)
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
                counts(self, g, operands, self.num_thresholds, self.class_id)
            }

            fn state_len(&self, _: &Type) -> usize {
                2 * self.num_thresholds + 2
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
