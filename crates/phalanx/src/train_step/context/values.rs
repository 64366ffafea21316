//! Random numbers, losses and derivatives in a training step.

use super::StepContext;
use crate::error::{Error, Result};
use crate::layers::noise::box_muller;
use crate::losses::{Loss, Reduction};
use crate::model::steps;
use phalanx_graph::ops::Binary;
use phalanx_graph::{DType, NodeId, Op, autodiff};

impl StepContext<'_> {
    /// Returns uniform random numbers in `[0, 1)`, of these dimensions for every sample. They are a function of the seed,
    /// the step and the sample's place in the global batch.
    ///
    /// # Errors
    /// If the dimensions exceed the limits of a value.
    pub fn random_uniform(&mut self, dims: &[usize]) -> Result<NodeId> {
        let key = self.low.stream();
        Ok(self.graph().push(Op::Uniform { key, dims: dims.to_vec() }, &[])?)
    }

    /// Returns normal random numbers with mean 0 and standard deviation 1. See [`random_uniform`](Self::random_uniform).
    ///
    /// # Errors
    /// If the dimensions exceed the limits of a value.
    pub fn random_normal(&mut self, dims: &[usize]) -> Result<NodeId> {
        let (u, v) = (self.random_uniform(dims)?, self.random_uniform(dims)?);
        box_muller(self.graph(), u, v, 1.0)
    }

    /// Returns the loss of every sample. A mask of the predictions counts, as in `compile`.
    ///
    /// # Errors
    /// If target or prediction do not match the loss, or if its reduction is not the mean over the samples.
    pub fn loss(&mut self, loss: &dyn Loss, target: NodeId, prediction: NodeId) -> Result<NodeId> {
        loss.validate()?;
        if loss.reduction() != Reduction::SumOverBatchSize {
            let expected = "sum_over_batch_size: minimize divides by the number of samples";
            let received = format!("{:?}", loss.reduction());
            return Err(Error::argument(loss.owner(), "reduction", expected, received));
        }
        self.check_labels(target, prediction, loss.ignored_class());
        let (ones, weight) = (self.values.ones, self.values.sample_weight);
        let g = &mut self.low.graph;
        let values = loss.call(g, target, prediction)?;
        let mask = self.masks.get(&prediction).copied();
        let values = (target, values);
        let (values, share) = steps::counted_values(g, loss, values, mask, [ones, weight])?;
        let mut sample = loss.reduction().per_sample(g, values)?;
        if let Some(share) = share {
            sample = g.mul(sample, share)?;
        }
        Ok(sample)
    }

    /// Notes that the labels of a target are classes of a prediction, so that the host checks them.
    pub(super) fn check_labels(
        &mut self,
        target: NodeId,
        prediction: NodeId,
        ignored: Option<i64>,
    ) {
        let at = self.values.named.iter().position(|(_, node)| *node == target);
        let target = at.and_then(|at| at.checked_sub(self.step.inputs.len()));
        if let Some(target) = target.filter(|i| self.step.targets[*i].1.dtype == DType::I32) {
            let classes = self.ty(prediction).last();
            self.recorded.labels.push((target, classes, ignored));
        }
    }

    /// Returns the derivative of a value by another that it was computed from: for every sample, the gradient of the sum of
    /// its numbers. A loss may contain it, such as the gradient penalty of a Wasserstein GAN.
    ///
    /// # Errors
    /// If one of them has no entry per sample, or the value does not depend on `by`. If a loss with this derivative is
    /// minimized, and a layer between the two has no second derivative: those with products, convolutions and functions of
    /// single numbers have one; batch and layer normalization, pooling and recurrent layers do not.
    pub fn gradient(&mut self, value: NodeId, by: NodeId) -> Result<NodeId> {
        for (what, node) in [("value", value), ("by", by)] {
            let ty = self.ty(node);
            if !ty.is_rows() || ty.dtype != DType::F32 {
                let expected = "floats for every sample, not yet reduced over the batch";
                return Err(Error::argument("gradient", what, expected, ty.to_string()));
            }
        }
        let g = &mut self.low.graph;
        let ones = g.binary(Binary::Eq, value, value)?;
        let gradients = autodiff::gradients(g, &[(value, ones)], &[by])?;
        gradients[0].ok_or_else(|| {
            let expected = "a value that is computed from `by`";
            Error::argument("gradient", "value", expected, "one that does not depend on it")
        })
    }
}
