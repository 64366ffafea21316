//! Area under the ROC or the precision-recall curve, from counts at thresholds: evenly spaced from just below 0 to just
//! above 1, or given ones between these two.
//!
//! The state is that of [`threshold_counts`](super::threshold_counts), for each curve.

use super::threshold_counts::{Counts, ThresholdSet, are_even, check_thresholds};
use super::{
    MAX_THRESHOLDS, Metric, check_weights, mismatch, owner, ratio, targets_like_predictions,
};
use crate::config::{self, options};
use crate::error::{Error, Result};
use crate::registry::Config;
use phalanx_graph::ops::{Binary, Unary};
use phalanx_graph::{Graph, NodeId, Op, Type};
use serde::{Deserialize, Serialize};
use serde_json::json;

/// Keras' epsilon, the distance of the first and last threshold from 0 and 1.
const EPSILON: f64 = 1e-7;

/// The curve whose area is measured.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Curve {
    /// True positive rate over false positive rate.
    #[default]
    ROC,
    /// Precision over recall.
    PR,
    /// Precision gain over recall gain, which are 0 for the base rate of the positives and 1 at best.
    PRGAIN,
}

/// How the area between two thresholds is computed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum SummationMethod {
    /// Trapezoids for ROC; for PR the counts are interpolated, not the precision.
    #[default]
    Interpolation,
    /// The smaller height of the two.
    Minoring,
    /// The larger height of the two.
    Majoring,
}

options! {
    /// Area under a curve.
    pub struct AUC {
        name: "auc";
        /// Number of thresholds.
        num_thresholds: usize = 200,
        /// The curve.
        curve: Curve = Curve::ROC,
        /// How the area is computed.
        summation_method: SummationMethod = SummationMethod::Interpolation,
        /// Whether predictions are logits rather than probabilities.
        from_logits: bool = false,
        /// Whether every number of a sample is a label with a curve of its own. The result is the mean of the areas.
        multi_label: bool = false,
        /// The number of labels, if it is to be checked.
        num_labels: Option<usize> = None,
        /// The thresholds between the first and the last; `None`: evenly spaced ones.
        thresholds: Option<Vec<f64>> = None,
        /// The weight of each label: of its positions, or of its area if labels have curves of their own.
        label_weights: Option<Vec<f64>> = None,
    }
}

impl AUC {
    /// All thresholds in ascending order, if they are not evenly spaced. Keras' last and first lie outside 0 to 1 by its
    /// epsilon.
    fn listed(&self) -> Option<Vec<f64>> {
        let mut inner = self.thresholds.clone()?;
        inner.sort_by(f64::total_cmp);
        let around = |[first, last]: [f64; 2]| [&[first], &inner[..], &[last]].concat();
        let even = are_even(around([0.0, 1.0]).into_iter());
        (!even).then(|| around([-EPSILON, 1.0 + EPSILON]))
    }

    /// The number of all thresholds.
    fn count(&self) -> usize {
        self.thresholds.as_ref().map_or(self.num_thresholds, |inner| inner.len() + 2)
    }

    /// The length of the state of a curve.
    fn curve_len(&self) -> usize {
        ThresholdSet::EvenWithMargin(self.count()).state_len()
    }

    /// The state of one curve.
    fn counts(&self, g: &mut Graph, [score, label, weight]: [NodeId; 3]) -> Result<NodeId> {
        match self.listed() {
            Some(list) => ThresholdSet::List(&list).state(g, score, label, weight),
            None => ThresholdSet::EvenWithMargin(self.count()).state(g, score, label, weight),
        }
    }

    /// Sample weights times the weights of the labels on the last axis.
    fn weighted_by_label(&self, g: &mut Graph, score: NodeId, weight: NodeId) -> Result<NodeId> {
        let Some(of_labels) = self.label_weights.as_ref().filter(|_| !self.multi_label) else {
            return Ok(weight);
        };
        self.check_label_weights(g, score)?;
        let of_labels: Vec<NodeId> = of_labels.iter().map(|w| g.fill(*w, &[1])).collect();
        let of_labels = match of_labels[..] {
            [one] => one,
            _ => g.push(Op::Concat { axis: 0 }, &of_labels)?,
        };
        Ok(g.mul(weight, of_labels)?)
    }

    /// Fails unless there is a weight for each label, if any.
    fn check_label_weights(&self, g: &Graph, score: NodeId) -> Result<()> {
        let given = self.label_weights.as_ref().map(Vec::len);
        let labels = g.ty(score).dims.last().copied();
        if given.is_none_or(|given| Some(given) == labels) {
            return Ok(());
        }
        let expected = format!("a weight for each label of {}", g.ty(score).shape_text());
        let received = given.unwrap_or_default();
        Err(Error::argument(owner(self), "label_weights", expected, received))
    }

    /// The number of labels of a sample.
    fn labels(&self, g: &Graph, y_pred: NodeId) -> Result<usize> {
        match g.ty(y_pred).dims[..] {
            [labels] if self.num_labels.is_none_or(|expected| expected == labels) => Ok(labels),
            _ => {
                let labels = self.num_labels.map_or("labels".into(), |n| n.to_string());
                let expected = format!("shape (None, {labels})");
                Err(mismatch(self, "y_pred", expected, g.ty(y_pred)))
            }
        }
    }

    /// The area under one curve.
    fn area(&self, state: &[f64]) -> f64 {
        let counts = Counts::of(state);
        counts.windows(2).map(|pair| self.segment_area(pair[0], pair[1])).sum()
    }

    /// The area between two neighbouring thresholds, from the counts at the lower and at the higher one.
    fn segment_area(&self, lower: Counts, higher: Counts) -> f64 {
        if (self.curve, self.summation_method) == (Curve::PR, SummationMethod::Interpolation) {
            return interpolated_precision(lower, higher);
        }
        let point = |counts: Counts| match self.curve {
            Curve::ROC => (counts.false_positive_rate(), counts.recall()),
            Curve::PR => (counts.recall(), counts.precision()),
            Curve::PRGAIN if counts.true_positives == 0.0 => (0.0, 1.0),
            Curve::PRGAIN => {
                let scale = ratio(counts.positives, counts.negatives);
                let gain = |wrong: f64| 1.0 - scale * ratio(wrong, counts.true_positives);
                (gain(counts.false_negatives()).max(0.0), gain(counts.false_positives))
            }
        };
        let ((x0, y0), (x1, y1)) = (point(lower), point(higher));
        let height = match self.summation_method {
            SummationMethod::Interpolation => (y0 + y1) / 2.0,
            SummationMethod::Minoring => y0.min(y1),
            SummationMethod::Majoring => y0.max(y1),
        };
        (x0 - x1) * height
    }
}

/// The area if true positives are linear in all positives between the thresholds: with `slope = ΔTP / ΔP` and
/// `intercept = TP - slope · P`, `slope · (ΔTP + intercept · ln(P₀ / P₁)) / total`.
fn interpolated_precision(lower: Counts, higher: Counts) -> f64 {
    let above = |counts: Counts| counts.true_positives + counts.false_positives;
    let (p0, p1) = (above(lower), above(higher));
    let gained = lower.true_positives - higher.true_positives;
    let slope = ratio(gained, (p0 - p1).max(0.0));
    let intercept = higher.true_positives - slope * p1;
    let log = if p0 > 0.0 && p1 > 0.0 { (p0 / p1).ln() } else { 0.0 };
    ratio(slope * (gained + intercept * log), higher.positives)
}

impl Metric for AUC {
    fn class_name(&self) -> &'static str {
        "AUC"
    }

    /// As in Keras, the number of thresholds is that of all, and given ones are there only if there are any.
    fn config(&self) -> Config {
        let number = json!({ "dtype": "float32", "num_thresholds": self.count() });
        let mut config = config::write_with(self, &[number]);
        config.retain(|key, value| key != "thresholds" || !value.is_null());
        config
    }

    fn name(&self) -> &str {
        &self.name
    }

    fn set_name(&mut self, name: &str) {
        self.name = name.into();
    }

    fn validate(&self) -> Result<()> {
        if self.num_labels.is_some() && !self.multi_label {
            let expected = "null unless multi_label is true";
            let received = self.num_labels.unwrap_or_default();
            return Err(Error::argument(owner(self), "num_labels", expected, received));
        }
        if let Some(bad) = self.label_weights.iter().flatten().find(|w| !w.is_finite()) {
            return Err(Error::argument(owner(self), "label_weights", "finite numbers", bad));
        }
        if let Some(thresholds) = &self.thresholds {
            return check_thresholds(self, thresholds);
        }
        if (2..=MAX_THRESHOLDS).contains(&self.num_thresholds) {
            return Ok(());
        }
        let expected = format!("2 to {MAX_THRESHOLDS}");
        Err(Error::argument(owner(self), "num_thresholds", expected, self.num_thresholds))
    }

    fn update(
        &self,
        g: &mut Graph,
        y_true: NodeId,
        y_pred: NodeId,
        weight: NodeId,
    ) -> Result<NodeId> {
        let y_true = targets_like_predictions(self, g, y_true, y_pred)?;
        let zero = g.scalar(0.0);
        let one = g.scalar(1.0);
        let no = g.binary(Binary::Eq, y_true, zero)?;
        let label = g.sub(one, no)?;
        let score = if self.from_logits { g.unary(Unary::Sigmoid, y_pred)? } else { y_pred };
        // One weight for each position.
        check_weights(self, g, score, weight)?;
        let ones = g.binary(Binary::Eq, label, label)?;
        let weight = g.mul(ones, weight)?;
        let weight = self.weighted_by_label(g, score, weight)?;
        if !self.multi_label {
            return self.counts(g, [score, label, weight]);
        }
        let mut curves = vec![];
        for start in 0..self.labels(g, y_pred)? {
            let slice = Op::Slice { axis: 0, start, len: 1 };
            let mut operands = [score, label, weight];
            for operand in &mut operands {
                *operand = g.push(slice.clone(), &[*operand])?;
            }
            curves.push(self.counts(g, operands)?);
        }
        self.check_label_weights(g, score)?;
        Ok(g.push(Op::Concat { axis: 0 }, &curves)?)
    }

    fn state_len(&self, prediction: &Type) -> usize {
        let curves = if self.multi_label { prediction.len() } else { 1 };
        curves.saturating_mul(self.curve_len())
    }

    fn result(&self, state: &[f64]) -> f64 {
        let areas: Vec<f64> = state.chunks_exact(self.curve_len()).map(|c| self.area(c)).collect();
        match self.label_weights.as_ref().filter(|_| self.multi_label) {
            None => areas.iter().sum::<f64>() / areas.len().max(1) as f64,
            Some(weights) => {
                let total = areas.iter().zip(weights).map(|(area, weight)| area * weight).sum();
                ratio(total, weights.iter().sum())
            }
        }
    }
}
