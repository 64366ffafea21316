//! Correlations of targets and predictions along an axis of the samples, averaged over samples.
//!
//! - Pearson: the covariance divided by both standard deviations
//! - concordance: `2 · covariance / (var(t) + var(p) + (mean(t) - mean(p))² + 1e-7)`, which is 1 only for equal values

use super::{Metric, mean_state, owner, targets_like_predictions};
use crate::config::options;
use crate::error::Result;
use crate::losses::{mean_over, sample_axis};
use crate::registry::keras_class;
use phalanx_graph::ops::Unary;
use phalanx_graph::{Graph, NodeId};

/// Keras' epsilon, which prevents a division by zero.
const EPSILON: f64 = 1e-7;

options! {
    /// The mean correlation coefficient.
    pub struct PearsonCorrelation {
        name: "pearson_correlation";
        /// The axis along which values are compared, counted with the batch.
        axis: i64 = -1,
    }
}

options! {
    /// The mean concordance correlation coefficient.
    pub struct ConcordanceCorrelation {
        name: "concordance_correlation";
        /// The axis along which values are compared, counted with the batch.
        axis: i64 = -1,
    }
}

/// Mean, difference from the mean, and variance along an axis, which remains with size one.
fn moments(g: &mut Graph, x: NodeId, axis: usize) -> Result<[NodeId; 3]> {
    let mean = g.mean_axes(x, &[axis])?;
    let difference = g.sub(x, mean)?;
    let square = g.unary(Unary::Square, difference)?;
    let variance = g.mean_axes(square, &[axis])?;
    Ok([mean, difference, variance])
}

/// `x` with mean 0 and variance 1 along an axis.
fn standard(g: &mut Graph, x: NodeId, axis: usize) -> Result<NodeId> {
    let [_, difference, variance] = moments(g, x, axis)?;
    let deviation = g.unary(Unary::Sqrt, variance)?;
    Ok(g.div(difference, deviation)?)
}

impl Metric for PearsonCorrelation {
    keras_class!("PearsonCorrelation", name);

    fn update(
        &self,
        g: &mut Graph,
        y_true: NodeId,
        y_pred: NodeId,
        weight: NodeId,
    ) -> Result<NodeId> {
        let y_true = targets_like_predictions(self, g, y_true, y_pred)?;
        let axis = sample_axis(&owner(self), self.axis, g.ty(y_pred))?;
        let (target, prediction) = (standard(g, y_true, axis)?, standard(g, y_pred, axis)?);
        let product = g.mul(target, prediction)?;
        let values = mean_over(&owner(self), self.axis, g, product)?;
        mean_state(self, g, values, weight)
    }
}

impl Metric for ConcordanceCorrelation {
    keras_class!("ConcordanceCorrelation", name);

    fn update(
        &self,
        g: &mut Graph,
        y_true: NodeId,
        y_pred: NodeId,
        weight: NodeId,
    ) -> Result<NodeId> {
        let y_true = targets_like_predictions(self, g, y_true, y_pred)?;
        let axis = sample_axis(&owner(self), self.axis, g.ty(y_pred))?;
        let [target_mean, target, target_variance] = moments(g, y_true, axis)?;
        let [mean, prediction, variance] = moments(g, y_pred, axis)?;
        let product = g.mul(target, prediction)?;
        let covariance = g.mean_axes(product, &[axis])?;
        let gap = g.sub(target_mean, mean)?;
        let gap = g.unary(Unary::Square, gap)?;
        let norm = g.add(target_variance, variance)?;
        let norm = g.add(norm, gap)?;
        let norm = g.offset(norm, EPSILON)?;
        let twice = g.scale(covariance, 2.0)?;
        let values = g.div(twice, norm)?;
        let values = mean_over(&owner(self), self.axis, g, values)?;
        mean_state(self, g, values, weight)
    }
}
