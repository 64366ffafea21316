//! Area under the ROC or the precision-recall curve, from counts at evenly spaced thresholds.
//!
//! For each of `n` thresholds from just below 0 to just above 1, the state holds the total weight of the
//! positives, and then of the negatives, scored above it. The first threshold counts all of them.

use super::{
    MAX_THRESHOLDS, Metric, check_weights, mismatch, owner, ratio, targets_like_predictions,
};
use crate::config::options;
use crate::error::{Error, Result};
use crate::registry::keras_class;
use phalanx_graph::ops::{Binary, Unary};
use phalanx_graph::{Graph, NodeId, Op, Type};
use serde::{Deserialize, Serialize};

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
    }
}

impl AUC {
    /// The weights of positives and negatives above each threshold, for one label.
    fn counts(&self, g: &mut Graph, operands: [NodeId; 3]) -> Result<NodeId> {
        let counts = g.push(Op::ThresholdCounts { n: self.num_thresholds }, &operands)?;
        Ok(g.reshape(counts, &[2 * self.num_thresholds])?)
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

    /// The area between two neighbouring thresholds, from the true and false positives at each.
    fn segment_area(&self, high: [f64; 2], low: [f64; 2], total: [f64; 2]) -> f64 {
        if (self.curve, self.summation_method) == (Curve::PR, SummationMethod::Interpolation) {
            return interpolated_precision(high, low, total[0]);
        }
        let point = |[tp, fp]: [f64; 2]| match self.curve {
            Curve::ROC => (ratio(fp, total[1]), ratio(tp, total[0])),
            Curve::PR => (ratio(tp, total[0]), ratio(tp, tp + fp)),
            Curve::PRGAIN if tp == 0.0 => (0.0, 1.0),
            Curve::PRGAIN => {
                let scale = ratio(total[0], total[1]);
                let gain = |wrong: f64| 1.0 - scale * ratio(wrong, tp);
                (gain(total[0] - tp).max(0.0), gain(fp))
            }
        };
        let ((x0, y0), (x1, y1)) = (point(high), point(low));
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
fn interpolated_precision(high: [f64; 2], low: [f64; 2], total: f64) -> f64 {
    let (p0, p1) = (high[0] + high[1], low[0] + low[1]);
    let gained = high[0] - low[0];
    let slope = ratio(gained, (p0 - p1).max(0.0));
    let intercept = low[0] - slope * p1;
    let log = if p0 > 0.0 && p1 > 0.0 { (p0 / p1).ln() } else { 0.0 };
    ratio(slope * (gained + intercept * log), total)
}

impl Metric for AUC {
    keras_class!("AUC", name, { "label_weights": null });

    fn validate(&self) -> Result<()> {
        if self.num_labels.is_some() && !self.multi_label {
            let expected = "null unless multi_label is true";
            let received = self.num_labels.unwrap_or_default();
            return Err(Error::argument(owner(self), "num_labels", expected, received));
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
        let score = g.clamp(score, 0.0, 1.0)?;
        // One weight for each position.
        check_weights(self, g, score, weight)?;
        let ones = g.binary(Binary::Eq, label, label)?;
        let weight = g.mul(ones, weight)?;
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
        Ok(g.push(Op::Concat { axis: 0 }, &curves)?)
    }

    fn state_len(&self, prediction: &Type) -> usize {
        let curves = if self.multi_label { prediction.len() } else { 1 };
        curves.saturating_mul(2 * self.num_thresholds)
    }

    fn result(&self, state: &[f64]) -> f64 {
        let n = self.num_thresholds;
        if n == 0 || state.is_empty() {
            return 0.0;
        }
        let area = |curve: &[f64]| -> f64 {
            let at = |i: usize| [curve[i], curve[n + i]];
            (1..n).map(|i| self.segment_area(at(i - 1), at(i), at(0))).sum()
        };
        let curves = state.chunks_exact(2 * n);
        let count = curves.len().max(1) as f64;
        curves.map(area).sum::<f64>() / count
    }
}
