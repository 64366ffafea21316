//! Parts that several metrics share: checks of operands, and sums over rows.

use super::Metric;
use crate::error::{Error, Result};
use crate::losses::describe;
use phalanx_graph::{DType, Graph, NodeId, Op, Space, Type};

/// The largest number of thresholds. Every threshold is a sum on every worker; a larger number is a typo.
pub(super) const MAX_THRESHOLDS: usize = 1 << 20;

/// The largest number of thresholds in a list. Each is a node of the graph.
pub(super) const MAX_LISTED_THRESHOLDS: usize = 1024;

/// The largest `top_k`. Each of the highest-scoring classes is a node of the graph.
const MAX_TOP_K: usize = 1024;

/// The metric in error messages.
pub(super) fn owner(metric: &dyn Metric) -> String {
    format!("metric '{}'", metric.name())
}

/// `a / b`, or 0 if `b` is 0.
pub(super) fn ratio(a: f64, b: f64) -> f64 {
    if b == 0.0 { 0.0 } else { a / b }
}

/// The methods of a metric that is the mean of its `values` over all positions but those that are masked.
macro_rules! mean_of_values {
    () => {
        fn uses_mask(&self) -> bool {
            true
        }

        fn update(
            &self,
            g: &mut Graph,
            y_true: NodeId,
            y_pred: NodeId,
            weight: NodeId,
        ) -> Result<NodeId> {
            let values = self.values(g, y_true, y_pred)?;
            crate::metrics::weighted_mean(self, g, values, weight)
        }
    };
}

pub(crate) use mean_of_values;

/// The sums of a weighted mean over samples: the sum of each sample's weighted mean over its positions, and the
/// sum of the weights.
pub fn mean_state(
    metric: &dyn Metric,
    g: &mut Graph,
    values: NodeId,
    weight: NodeId,
) -> Result<NodeId> {
    let (total, count) = if g.ty(weight).dims.is_empty() {
        let mean = g.mean_row(values)?;
        (g.mul(mean, weight)?, weight)
    } else {
        let values = mean_over_further_axes(g, values, weight)?;
        check_weights(metric, g, values, weight)?;
        let weighted = g.mul(values, weight)?;
        (g.mean_row(weighted)?, g.mean_row(weight)?)
    };
    sum_rows(g, &[total, count])
}

/// The mean of values over the axes that their weights lack, such as that of a single class.
fn mean_over_further_axes(g: &mut Graph, values: NodeId, weight: NodeId) -> Result<NodeId> {
    let (rank, dims) = (g.ty(weight).dims.len(), g.ty(values).dims.clone());
    if dims.len() <= rank {
        return Ok(values);
    }
    let axes: Vec<usize> = (rank..dims.len()).collect();
    let mean = g.mean_axes(values, &axes)?;
    Ok(g.reshape(mean, &dims[..rank])?)
}

/// Sums each of `numbers`, which have one value per row, over the rows and returns one partial vector.
fn sum_rows(g: &mut Graph, numbers: &[NodeId]) -> Result<NodeId> {
    let columns: Vec<NodeId> =
        numbers.iter().map(|n| g.reshape(*n, &[1])).collect::<Result<_, _>>()?;
    let joined = g.push(Op::Concat { axis: 0 }, &columns)?;
    Ok(g.push(Op::SumRows, &[joined])?)
}

pub(super) fn mismatch(
    metric: &dyn Metric,
    argument: &str,
    expected: String,
    received: &Type,
) -> Error {
    Error::argument(owner(metric), argument, expected, describe(received))
}

/// Fails unless there is one weight per row, or one for each element of `values`.
pub(super) fn check_weights(
    metric: &dyn Metric,
    g: &Graph,
    values: NodeId,
    weight: NodeId,
) -> Result<()> {
    if g.ty(weight).dims.is_empty() {
        return Ok(());
    }
    check_same_type(metric, g, "sample_weight", values, weight)
}

/// Sums each of `values` over positions and rows and returns one partial vector.
pub(super) fn position_sums(g: &mut Graph, values: &[NodeId]) -> Result<NodeId> {
    let mut sums = vec![];
    for value in values {
        let positions = g.ty(*value).len() as f64;
        let mean = g.mean_row(*value)?;
        sums.push(g.scale(mean, positions)?);
    }
    sum_rows(g, &sums)
}

/// One class of the last axis, which remains with size one.
pub(super) fn class_slice(
    metric: &dyn Metric,
    g: &mut Graph,
    x: NodeId,
    class: usize,
) -> Result<NodeId> {
    match g.ty(x).dims.split_last() {
        Some((classes, lead)) if class < *classes => {
            let axis = lead.len();
            Ok(g.push(Op::Slice { axis, start: class, len: 1 }, &[x])?)
        }
        _ => {
            let expected = format!("a class of {}", g.ty(x).shape_text());
            Err(Error::argument(owner(metric), "class_id", expected, class))
        }
    }
}

/// 1 for the `k` highest scores on the last axis, 0 for the others. Of equal scores the first come first.
pub(super) fn top_k_mask(
    metric: &dyn Metric,
    g: &mut Graph,
    scores: NodeId,
    k: usize,
) -> Result<NodeId> {
    let depth = g.ty(scores).last();
    if g.ty(scores).dims.is_empty() || k > depth.min(MAX_TOP_K) {
        let shape = g.ty(scores).shape_text();
        let expected = format!("at most {MAX_TOP_K} of the classes of {shape}");
        return Err(Error::argument(owner(metric), "top_k", expected, k));
    }
    let least = g.scalar(f64::from(f32::MIN));
    let (mut rest, mut mask) = (scores, None);
    for _ in 0..k {
        let best = g.push(Op::ArgMax, &[rest])?;
        let best = g.push(Op::OneHot { depth }, &[best])?;
        rest = g.select(best, least, rest)?;
        mask = Some(mask.map_or(Ok(best), |mask| g.add(mask, best))?);
    }
    // `k` is 1 or more.
    Ok(mask.unwrap_or(scores))
}

/// Fails unless an operand has the type of `model`.
fn check_same_type(
    metric: &dyn Metric,
    g: &Graph,
    argument: &str,
    model: NodeId,
    x: NodeId,
) -> Result<()> {
    if g.ty(x) == g.ty(model) {
        return Ok(());
    }
    Err(mismatch(metric, argument, describe(g.ty(model)), g.ty(x)))
}

/// Targets as floats in the shape of the predictions, for metrics that compare them element by element.
pub(super) fn targets_like_predictions(
    metric: &dyn Metric,
    g: &mut Graph,
    y_true: NodeId,
    y_pred: NodeId,
) -> Result<NodeId> {
    let (target, prediction) = (g.ty(y_true).clone(), g.ty(y_pred).clone());
    // `[]` and `[1]` are both one number per row.
    let fits = target.dims == prediction.dims || target.len() == 1 && prediction.len() == 1;
    if !fits || !target.is_rows() {
        return Err(mismatch(metric, "y_true", describe(&prediction), &target));
    }
    let y_true = g.cast(y_true, DType::F32)?;
    Ok(g.reshape(y_true, &prediction.dims)?)
}

/// Fails unless targets are class indices and predictions have a last axis of classes.
pub(super) fn check_labels(
    metric: &dyn Metric,
    g: &Graph,
    y_true: NodeId,
    y_pred: NodeId,
) -> Result<()> {
    let (target, prediction) = (g.ty(y_true), g.ty(y_pred));
    let Some((_, lead)) = prediction.dims.split_last() else {
        return Err(mismatch(metric, "y_pred", "a last axis of classes".into(), prediction));
    };
    let labels = Type::new(DType::I32, Space::Rows, lead);
    if *target == labels {
        return Ok(());
    }
    Err(mismatch(metric, "y_true", describe(&labels), target))
}

/// The class indices of one-hot (or soft) targets shaped like the predictions.
pub(super) fn classes(
    metric: &dyn Metric,
    g: &mut Graph,
    y_true: NodeId,
    y_pred: NodeId,
) -> Result<NodeId> {
    if g.ty(y_pred).dims.is_empty() {
        let received = g.ty(y_pred);
        return Err(mismatch(metric, "y_pred", "a last axis of classes".into(), received));
    }
    check_same_type(metric, g, "y_true", y_pred, y_true)?;
    Ok(g.push(Op::ArgMax, &[y_true])?)
}

/// Fails unless a threshold lies in `0..=1`.
pub(super) fn check_threshold(metric: &dyn Metric, argument: &str, threshold: f64) -> Result<()> {
    if (0.0..=1.0).contains(&threshold) {
        return Ok(());
    }
    Err(Error::argument(owner(metric), argument, "a number from 0 to 1", threshold))
}
