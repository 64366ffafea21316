//! Counts of correct and wrong decisions over all positions, and their ratios: precision, `tp / (tp + fp)`, and
//! recall, `tp / (tp + fn)`. A prediction above the threshold is positive, and so is a target other than 0. Several
//! thresholds give a vector: a number for each.

use super::threshold_counts::{Counts, ThresholdSet, check_thresholds};
use super::{Metric, check_weights, class_slice, owner, targets_like_predictions, top_k_mask};
use crate::config::options;
use crate::error::{Error, Result};
use crate::registry::keras_class;
use phalanx_graph::ops::Binary;
use phalanx_graph::{Graph, NodeId, Type};
use serde::{Deserialize, Serialize};

/// The score of classes that are not among the highest, and the threshold of the others.
const LOWEST: f64 = -1e10;

/// The threshold of a decision, or several.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum Thresholds {
    /// One.
    One(f64),
    /// A list. With several elements the result of the metric is a vector, a number for each.
    List(Vec<f64>),
}

impl From<f64> for Thresholds {
    fn from(threshold: f64) -> Thresholds {
        Thresholds::One(threshold)
    }
}

impl From<Vec<f64>> for Thresholds {
    fn from(thresholds: Vec<f64>) -> Thresholds {
        Thresholds::List(thresholds)
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
        self.thresholds.map_or(Ok(()), |list| check_thresholds(metric, list.as_slice()))
    }

    /// The thresholds. Without any, all of the highest-scoring classes are positive, or else scores above ½.
    fn thresholds(&self) -> ThresholdSet<'_> {
        match (self.thresholds, self.top_k) {
            (Some(thresholds), _) => ThresholdSet::given(thresholds.as_slice()),
            (None, Some(_)) => ThresholdSet::List(&[LOWEST]),
            (None, None) => ThresholdSet::List(&[0.5]),
        }
    }

    /// The weighted counts at each threshold.
    fn counts(
        &self,
        metric: &dyn Metric,
        g: &mut Graph,
        [y_true, y_pred, weight]: [NodeId; 3],
    ) -> Result<NodeId> {
        let y_true = targets_like_predictions(metric, g, y_true, y_pred)?;
        let (zero, one) = (g.scalar(0.0), g.scalar(1.0));
        let no = g.binary(Binary::Eq, y_true, zero)?;
        let (mut label, mut score) = (g.sub(one, no)?, y_pred);
        if let Some(k) = self.top_k {
            let best = top_k_mask(metric, g, y_pred, k)?;
            let lowest = g.scalar(LOWEST);
            score = g.select(best, score, lowest)?;
        }
        if let Some(class) = self.class_id {
            label = class_slice(metric, g, label, class)?;
            score = class_slice(metric, g, score, class)?;
        }
        check_weights(metric, g, label, weight)?;
        self.thresholds().state(g, score, label, weight)
    }
}

/// The mean of a result at each threshold; 0 for none.
fn mean(state: &[f64], of: fn(&Counts) -> f64) -> f64 {
    let counts = Counts::of(state);
    counts.iter().map(of).sum::<f64>() / counts.len().max(1) as f64
}

/// The results at several thresholds.
fn vector(state: &[f64], of: fn(&Counts) -> f64) -> Option<Vec<f64>> {
    let counts = Counts::of(state);
    (counts.len() > 1).then(|| counts.iter().map(of).collect())
}

/// Declares a metric whose result is `$result` of the counts.
macro_rules! decisions {
    (
        $(#[$doc:meta])* $class:ident, $name:literal, $result:expr
        $(, $(#[$option_doc:meta])* $option:ident)*
    ) => {
        options! {
            $(#[$doc])*
            pub struct $class {
                name: $name;
                /// Predictions above it count as positive; `None` means 0.5. Several give a vector.
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
                self.decision().counts(self, g, [y_true, y_pred, weight])
            }

            fn state_len(&self, _: &Type) -> usize {
                self.decision().thresholds().state_len()
            }

            fn result(&self, state: &[f64]) -> f64 {
                mean(state, $result)
            }

            fn vector(&self, state: &[f64]) -> Option<Vec<f64>> {
                vector(state, $result)
            }
        }
    };
}

decisions! {
    /// The number of positive targets that are predicted.
    TruePositives, "true_positives", |counts| counts.true_positives
}
decisions! {
    /// The number of other targets that are predicted as positive.
    FalsePositives, "false_positives", |counts| counts.false_positives
}
decisions! {
    /// The number of other targets that are not predicted as positive.
    TrueNegatives, "true_negatives", Counts::true_negatives
}
decisions! {
    /// The number of positive targets that are not predicted.
    FalseNegatives, "false_negatives", Counts::false_negatives
}
decisions! {
    /// The fraction of positive predictions that are correct.
    Precision, "precision", Counts::precision,
    /// Only the `top_k` highest-scoring classes of a sample count as predicted.
    top_k,
    /// The only class that counts.
    class_id
}
decisions! {
    /// The fraction of positive targets that are predicted.
    Recall, "recall", Counts::recall,
    /// Only the `top_k` highest-scoring classes of a sample count as predicted.
    top_k,
    /// The only class that counts.
    class_id
}
