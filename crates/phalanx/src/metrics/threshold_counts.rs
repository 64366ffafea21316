//! Weighted counts of the positives and negatives that are scored above thresholds.
//!
//! The state holds, for each threshold, the total weight of the positives scored above it, then the same of the
//! negatives, then the total weights of both.

use super::{MAX_LISTED_THRESHOLDS, Metric, check_threshold, owner, position_sums, ratio};
use crate::error::{Error, Result};
use phalanx_graph::ops::Binary;
use phalanx_graph::{Graph, NodeId, Op};

/// Keras' tolerances for thresholds that count as evenly spaced.
const TOLERANCES: [f64; 2] = [1e-7, 1e-5];

/// The thresholds of a metric.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum ThresholdSet<'a> {
    /// This many, evenly spaced from 0 to 1.
    Even(usize),
    /// The same, but the first lies below every score, and the last above.
    EvenWithMargin(usize),
    /// These.
    List(&'a [f64]),
}

impl<'a> ThresholdSet<'a> {
    /// Given thresholds, of which Keras sorts evenly spaced ones into bins. Rounding then decides differently.
    pub fn given(list: &'a [f64]) -> ThresholdSet<'a> {
        match are_even(list.iter().copied()) {
            true => ThresholdSet::Even(list.len()),
            false => ThresholdSet::List(list),
        }
    }

    /// The number of thresholds.
    pub fn len(self) -> usize {
        match self {
            ThresholdSet::Even(n) | ThresholdSet::EvenWithMargin(n) => n,
            ThresholdSet::List(list) => list.len(),
        }
    }

    /// The length of the state.
    pub fn state_len(self) -> usize {
        self.len().saturating_mul(2).saturating_add(2)
    }

    /// The state of scores, each with a label, 0 or 1, and a weight.
    pub fn state(
        self,
        g: &mut Graph,
        score: NodeId,
        label: NodeId,
        weight: NodeId,
    ) -> Result<NodeId> {
        let one = g.scalar(1.0);
        let other = g.sub(one, label)?;
        let classes = [g.mul(label, weight)?, g.mul(other, weight)?];
        let above = match self {
            ThresholdSet::List(list) => above_each(g, score, classes, list)?,
            ThresholdSet::EvenWithMargin(n) => above_even(g, [score, label, weight], n)?,
            ThresholdSet::Even(n) => {
                // The first threshold of the op lies below 0. Here it is 0.
                let zero = g.scalar(0.0);
                let positive = g.binary(Binary::Gt, score, zero)?;
                let weight = g.mul(weight, positive)?;
                above_even(g, [score, label, weight], n)?
            }
        };
        let totals = position_sums(g, &classes)?;
        Ok(g.push(Op::Concat { axis: 0 }, &[above, totals])?)
    }
}

/// Whether thresholds are evenly spaced from 0 to 1, as Keras decides it.
pub(super) fn are_even(list: impl ExactSizeIterator<Item = f64>) -> bool {
    let [absolute, relative] = TOLERANCES;
    let n = list.len();
    let expected = |i: usize| f64::from(i as f32 / (n - 1) as f32);
    let close = |(i, threshold): (usize, f64)| {
        (threshold - expected(i)).abs() <= absolute + relative * expected(i)
    };
    n > 2 && list.enumerate().all(close)
}

/// Fails unless every threshold of a list lies in `0..=1` and the graph can have a node for each.
pub(super) fn check_thresholds(metric: &dyn Metric, list: &[f64]) -> Result<()> {
    if !(1..=MAX_LISTED_THRESHOLDS).contains(&list.len()) {
        let expected = format!("1 to {MAX_LISTED_THRESHOLDS} thresholds");
        return Err(Error::argument(owner(metric), "thresholds", expected, list.len()));
    }
    list.iter().try_for_each(|threshold| check_threshold(metric, "thresholds", *threshold))
}

/// The weights of positives and negatives above evenly spaced thresholds.
fn above_even(g: &mut Graph, [score, label, weight]: [NodeId; 3], n: usize) -> Result<NodeId> {
    let score = g.clamp(score, 0.0, 1.0)?;
    let ones = g.binary(Binary::Eq, label, label)?;
    let weight = g.mul(ones, weight)?;
    let above = g.push(Op::ThresholdCounts { n }, &[score, label, weight])?;
    Ok(g.reshape(above, &[2 * n])?)
}

/// The weights of positives and negatives above each threshold of a list.
fn above_each(g: &mut Graph, score: NodeId, classes: [NodeId; 2], list: &[f64]) -> Result<NodeId> {
    let (positions, n) = (g.ty(score).len(), list.len());
    let limits: Vec<NodeId> = list.iter().map(|t| g.fill(f64::from(*t as f32), &[1])).collect();
    let limits = match limits[..] {
        [limit] => limit,
        _ => g.push(Op::Concat { axis: 0 }, &limits)?,
    };
    let score = g.reshape(score, &[positions, 1])?;
    let above = g.binary(Binary::Gt, score, limits)?;
    let mut lines = vec![];
    for class in classes {
        let class = g.reshape(class, &[positions, 1])?;
        let weights = g.mul(above, class)?;
        lines.push(g.sum_axes(weights, &[0])?);
    }
    let joined = g.push(Op::Concat { axis: 0 }, &lines)?;
    let sums = g.push(Op::SumRows, &[joined])?;
    Ok(g.reshape(sums, &[2 * n])?)
}

/// Counts at a threshold.
#[derive(Clone, Copy, Debug)]
pub(super) struct Counts {
    pub true_positives: f64,
    pub false_positives: f64,
    pub positives: f64,
    pub negatives: f64,
}

impl Counts {
    /// The counts of a state, one for each threshold.
    pub fn of(state: &[f64]) -> Vec<Counts> {
        let [above @ .., positives, negatives] = state else { return vec![] };
        let (true_positives, false_positives) = above.split_at(above.len() / 2);
        let counts = |(tp, fp): (&f64, &f64)| Counts {
            true_positives: *tp,
            false_positives: *fp,
            positives: *positives,
            negatives: *negatives,
        };
        true_positives.iter().zip(false_positives).map(counts).collect()
    }

    pub fn true_negatives(&self) -> f64 {
        self.negatives - self.false_positives
    }

    pub fn false_negatives(&self) -> f64 {
        self.positives - self.true_positives
    }

    pub fn precision(&self) -> f64 {
        ratio(self.true_positives, self.true_positives + self.false_positives)
    }

    pub fn recall(&self) -> f64 {
        ratio(self.true_positives, self.positives)
    }

    pub fn specificity(&self) -> f64 {
        ratio(self.true_negatives(), self.negatives)
    }

    pub fn false_positive_rate(&self) -> f64 {
        ratio(self.false_positives, self.negatives)
    }
}
