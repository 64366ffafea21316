//! The sample weights of a step: one for each sample, for all outputs, or the weights of each output.

use crate::error::{Error, Result};
use crate::losses::{Loss, Reduction, counted_labels};
use crate::metrics::Metric;
use phalanx_graph::ops::Binary;
use phalanx_graph::{Graph, NodeId, Op, Type};
use std::collections::HashMap;

/// The sample weights in the graph of a step.
pub(super) struct SampleWeights {
    /// Those of each output; empty if all outputs have the first.
    by_output: HashMap<usize, NodeId>,
    first: NodeId,
    /// One for each sample.
    pub ones: NodeId,
}

impl SampleWeights {
    /// Declares the feeds. `dims` are the dimensions of the weights of each of `outputs`, without the samples; none if all
    /// outputs have one weight for each sample.
    pub fn declare(g: &mut Graph, outputs: &[usize], dims: &[Vec<usize>]) -> Result<SampleWeights> {
        let mut feed = |name: &str, dims: &[usize]| {
            let feed = g.add_feed(name, Type::rows(dims));
            g.feed(feed)
        };
        let mut by_output = HashMap::new();
        for (output, dims) in outputs.iter().zip(dims) {
            by_output.insert(*output, feed(&format!("sample_weight_{output}"), dims));
        }
        let first = match outputs.first().and_then(|output| by_output.get(output)) {
            Some(first) => *first,
            None => feed("sample_weight", &[]),
        };
        let elements = g.ty(first).len();
        let one_each = g.reshape(first, &[elements])?;
        let one_each = g.push(Op::Slice { axis: 0, start: 0, len: 1 }, &[one_each])?;
        let one_each = g.reshape(one_each, &[])?;
        let ones = g.binary(Binary::Eq, one_each, one_each)?;
        Ok(SampleWeights { by_output, first, ones })
    }

    /// The weights of an output.
    pub fn of(&self, output: usize) -> NodeId {
        self.by_output.get(&output).copied().unwrap_or(self.first)
    }
}

/// The weights of an output in the form of its loss values, with as many axes. One weight for each sample stays as it is.
pub(super) fn at_positions(
    g: &mut Graph,
    (output, weight): (&str, NodeId),
    values: NodeId,
) -> Result<NodeId> {
    let (given, positions) = (g.ty(weight).dims.clone(), g.ty(values).dims.clone());
    let mut dims = given.clone();
    if dims.len() == positions.len() + 1 && dims.last() == Some(&1) {
        dims.pop();
    }
    let fits = dims.iter().zip(&positions).all(|(weight, value)| [1, *value].contains(weight));
    if !dims.is_empty() && (dims.len() != positions.len() || !fits) {
        let expected = format!(
            "one for each sample, or the shape of its loss values, {}",
            g.ty(values).shape_text()
        );
        let received = g.ty(weight).shape_text();
        return Err(Error::argument(
            format!("output '{output}'"),
            "sample weights",
            expected,
            received,
        ));
    }
    Ok(g.reshape(weight, &dims)?)
}

/// The loss of each sample, and the coefficient that remains to be applied to it. Weights of positions are applied to their
/// loss values, and those of samples are the coefficient.
pub(super) fn weighted_sample(
    g: &mut Graph,
    loss: &dyn Loss,
    values: NodeId,
    weights: &SampleWeights,
    weight: NodeId,
) -> Result<(NodeId, NodeId)> {
    if g.ty(weight).dims.is_empty() {
        return Ok((loss.reduction().per_sample(g, values)?, weight));
    }
    let positions = g.ty(values).len();
    let weighted = g.mul(values, weight)?;
    let sample = match loss.reduction() {
        // The sum is divided by that of the weights.
        Reduction::MeanWithSampleWeight => {
            let mean = g.mean_row(weighted)?;
            g.scale(mean, positions as f64)?
        }
        other => other.per_sample(g, weighted)?,
    };
    Ok((sample, weights.ones))
}

/// The weights of an output for a metric, with its mask if the metric uses it.
pub(super) fn of_metric(
    g: &mut Graph,
    metric: &dyn Metric,
    mut weight: NodeId,
    (mask, prediction): (Option<NodeId>, NodeId),
) -> Result<NodeId> {
    let mut dims = g.ty(weight).dims.clone();
    while dims.last() == Some(&1) {
        dims.pop();
    }
    let (last, lead) = match g.ty(prediction).dims.split_last() {
        Some((last, lead)) => (*last, lead),
        None => (0, &[][..]),
    };
    if !metric.uses_mask() && !dims.is_empty() && last == 1 && dims == lead {
        // These metrics compare whole predictions.
        dims.push(1);
    }
    weight = g.reshape(weight, &dims)?;
    let Some(mut mask) = mask.filter(|_| metric.uses_mask()) else { return Ok(weight) };
    let mut mask_dims = g.ty(mask).dims.clone();
    let rank = dims.len().max(mask_dims.len());
    dims.resize(rank, 1);
    mask_dims.resize(rank, 1);
    weight = g.reshape(weight, &dims)?;
    mask = g.reshape(mask, &mask_dims)?;
    Ok(g.mul(weight, mask)?)
}

/// The weight of each position of a metric with a mask, without the labels of the class that it ignores.
pub(crate) fn without_ignored(
    g: &mut Graph,
    metric: &dyn Metric,
    weight: NodeId,
    labels: NodeId,
) -> Result<NodeId> {
    let Some(ignored) = metric.ignored_class() else { return Ok(weight) };
    let counted = counted_labels(g, labels, ignored)?;
    let dims = g.ty(counted).dims.clone();
    let weight = g.reshape(weight, &dims)?;
    Ok(g.mul(weight, counted)?)
}

/// Fails for a metric whose mean depends on whether the data have weights.
pub(super) fn check_ignored(metric: &dyn Metric, weighted: bool) -> Result<()> {
    match metric.ignored_class() {
        Some(ignored) if weighted => {
            let owner = format!("metric '{}'", metric.name());
            let expected = "null among weighted_metrics of an output without a mask: in Keras, its \
                            labels count only if the data have no weights";
            Err(Error::argument(owner, "ignore_class", expected, ignored))
        }
        _ => Ok(()),
    }
}
