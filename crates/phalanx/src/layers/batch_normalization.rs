//! Batch normalisation: `y = gamma · (x - mean) / √(variance + epsilon) + beta`, for every channel.
//!
//! In training, mean and variance are those of the batch, over all axes except `axis`, and the moving
//! statistics are updated: `moving = moving · momentum + batch · (1 - momentum)`. In inference, or if the layer
//! is frozen, the moving statistics are used. Masked positions do not count in the statistics. Each replica has its own batch statistics unless the layer is
//! `synchronized`. Weights: `gamma`, `beta`, `moving_mean`, `moving_variance`, each `[channels]`.

use super::support::{WeightOptions, check_not_negative, row_axis, single, swap_with_last};
use crate::by_name::{ByName, OptionalByName};
use crate::config::setters;
use crate::constraints::Constraint;
use crate::error::Result;
use crate::initializers::Initializer;
use crate::layer::{Layer, LayerContext, MaskRule, Outputs, WeightSpec};
use crate::registry::keras_class;
use crate::regularizers::Regularizer;
use phalanx_graph::ops::{BatchNormAttrs, Unary};
use phalanx_graph::{NodeId, Op, Scope};
use serde::{Deserialize, Serialize};

/// Batch normalisation.
///
/// ```
/// use phalanx::layer::Layer;
/// use phalanx::layers::BatchNormalization;
///
/// let norm = BatchNormalization::new().momentum(0.9).synchronized(true);
/// assert_eq!(norm.config()["momentum"], 0.9);
/// assert_eq!(norm.config()["epsilon"], 1e-3);
/// ```
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
// The fields are Keras' arguments. serde cannot flatten groups of them and also reject unknown keys.
pub struct BatchNormalization {
    axis: i64,
    momentum: f64,
    epsilon: f64,
    center: bool,
    scale: bool,
    beta_initializer: ByName<Initializer>,
    gamma_initializer: ByName<Initializer>,
    moving_mean_initializer: ByName<Initializer>,
    moving_variance_initializer: ByName<Initializer>,
    beta_regularizer: OptionalByName<Regularizer>,
    gamma_regularizer: OptionalByName<Regularizer>,
    beta_constraint: OptionalByName<Constraint>,
    gamma_constraint: OptionalByName<Constraint>,
    synchronized: bool,
}

impl Default for BatchNormalization {
    fn default() -> BatchNormalization {
        BatchNormalization {
            axis: -1,
            momentum: 0.99,
            epsilon: 1e-3,
            center: true,
            scale: true,
            beta_initializer: Initializer::Zeros {}.into(),
            gamma_initializer: Initializer::Ones {}.into(),
            moving_mean_initializer: Initializer::Zeros {}.into(),
            moving_variance_initializer: Initializer::Ones {}.into(),
            beta_regularizer: OptionalByName::default(),
            gamma_regularizer: OptionalByName::default(),
            beta_constraint: OptionalByName::default(),
            gamma_constraint: OptionalByName::default(),
            synchronized: false,
        }
    }
}

impl BatchNormalization {
    /// Momentum 0.99, epsilon 0.001, centred and scaled, statistics per replica.
    pub fn new() -> BatchNormalization {
        BatchNormalization::default()
    }

    setters! {
        /// The channel axis; defaults to the last.
        axis: i64,
        /// The fraction of the moving statistics that is kept at each step.
        momentum: f64,
        /// Added to the variance.
        epsilon: f64,
        /// Whether to use `beta`.
        center: bool,
        /// Whether to use `gamma`.
        scale: bool,
        /// Initializer of `beta`; defaults to zeros.
        beta_initializer: impl Into<ByName<Initializer>>,
        /// Initializer of `gamma`; defaults to ones.
        gamma_initializer: impl Into<ByName<Initializer>>,
        /// Initializer of the moving mean; defaults to zeros.
        moving_mean_initializer: impl Into<ByName<Initializer>>,
        /// Initializer of the moving variance; defaults to ones.
        moving_variance_initializer: impl Into<ByName<Initializer>>,
        /// Regularizer of `beta`.
        beta_regularizer: impl Into<OptionalByName<Regularizer>>,
        /// Regularizer of `gamma`.
        gamma_regularizer: impl Into<OptionalByName<Regularizer>>,
        /// Constraint on `beta`.
        beta_constraint: impl Into<OptionalByName<Constraint>>,
        /// Constraint on `gamma`.
        gamma_constraint: impl Into<OptionalByName<Constraint>>,
        /// Whether batch statistics are computed over all replicas.
        synchronized: bool,
    }
}

/// The layer's weights: as parameters, or as constants if they are disabled.
struct Weights {
    gamma: NodeId,
    beta: NodeId,
    moving_mean: NodeId,
    moving_variance: NodeId,
    /// Index of the moving mean among the layer's weights; the moving variance follows.
    moving: usize,
}

impl BatchNormalization {
    fn weights(&self, cx: &mut LayerContext<'_>, channels: usize) -> Result<Weights> {
        let dims = [channels];
        let gamma = match self.scale {
            false => cx.graph().fill(1.0, &dims),
            true => WeightOptions {
                initializer: &self.gamma_initializer,
                regularizer: &self.gamma_regularizer,
                constraint: &self.gamma_constraint,
            }
            .weight(cx, "gamma", &dims)?,
        };
        let beta = match self.center {
            false => cx.graph().fill(0.0, &dims),
            true => WeightOptions {
                initializer: &self.beta_initializer,
                regularizer: &self.beta_regularizer,
                constraint: &self.beta_constraint,
            }
            .weight(cx, "beta", &dims)?,
        };
        let mut moving = |name, initializer: &ByName<Initializer>| -> Result<NodeId> {
            cx.weight(WeightSpec::new(name, &dims, initializer.get()?.clone()).non_trainable())
        };
        let moving_mean = moving("moving_mean", &self.moving_mean_initializer)?;
        let moving_variance = moving("moving_variance", &self.moving_variance_initializer)?;
        let moving = usize::from(self.scale) + usize::from(self.center);
        Ok(Weights { gamma, beta, moving_mean, moving_variance, moving })
    }

    /// Normalises by the batch statistics and updates the moving statistics.
    fn normalize_by_batch(
        &self,
        cx: &mut LayerContext<'_>,
        x: NodeId,
        w: &Weights,
    ) -> Result<NodeId> {
        let dims = cx.dims(x);
        let (channels, positions) = match &dims[..] {
            [lead @ .., c] => (*c, lead.iter().product()),
            [] => (1, 1),
        };
        let scope = cx.statistics(self.synchronized);
        let g = cx.graph();
        let sums = g.push(Op::Moments, &[x])?;
        let sums = g.push(Op::AllReduce { scope }, &[sums])?;
        let stats = g.push(Op::BatchStats { scope, positions }, &[sums])?;
        let attrs = BatchNormAttrs { epsilon: self.epsilon.into(), relu: false, scope };
        let y = g.push(Op::BatchNorm(attrs), &[x, stats, w.gamma, w.beta])?;

        let common = match scope {
            Scope::Device => g.push(Op::ReplicaMean, &[stats])?,
            Scope::All => stats,
        };
        for row in 0..2 {
            let g = cx.graph();
            let stat = g.push(Op::Slice { axis: 0, start: row, len: 1 }, &[common])?;
            let stat = g.reshape(stat, &[channels])?;
            self.update_moving(cx, w, row, stat)?;
        }
        Ok(y)
    }

    /// Updates the moving mean (`row` 0) or variance (1) with that of a batch.
    fn update_moving(
        &self,
        cx: &mut LayerContext<'_>,
        w: &Weights,
        row: usize,
        stat: NodeId,
    ) -> Result<()> {
        let old = [w.moving_mean, w.moving_variance][row];
        let g = cx.graph();
        let fresh = g.scale(stat, 1.0 - self.momentum)?;
        let kept = g.scale(old, self.momentum)?;
        let new = g.add(kept, fresh)?;
        cx.assign(w.moving + row, new);
        Ok(())
    }

    /// Normalises by the statistics of the positions that the mask leaves, and updates the moving statistics. As in
    /// Keras, masked positions are normalised too. The channels of `x` are last; `axis` was their place.
    fn normalize_by_valid(
        &self,
        cx: &mut LayerContext<'_>,
        x: NodeId,
        mask: NodeId,
        axis: usize,
        w: &Weights,
    ) -> Result<NodeId> {
        let (dims, mut valid_dims) = (cx.dims(x), cx.dims(mask));
        if valid_dims.len() + 1 != dims.len() {
            let received = format!("{valid_dims:?} for {dims:?}");
            return Err(cx.argument("mask", "one axis less than the input", received));
        }
        valid_dims.push(1);
        let scope = cx.statistics(self.synchronized);
        let valid = cx.graph().reshape(mask, &valid_dims)?;
        let valid = swap_with_last(cx, valid, axis)?;
        let valid = cx.graph().push(Op::Broadcast { dims: dims.clone() }, &[valid])?;
        let positions: Vec<usize> = (0..dims.len() - 1).collect();
        let channels = dims[dims.len() - 1];
        let total = |cx: &mut LayerContext<'_>, values: NodeId| -> Result<NodeId> {
            let g = cx.graph();
            let sum = g.sum_axes(values, &positions)?;
            let sum = g.reshape(sum, &[channels])?;
            let sum = g.push(Op::SumRows, &[sum])?;
            Ok(g.push(Op::AllReduce { scope }, &[sum])?)
        };
        let zero = cx.graph().scalar(0.0);
        let kept = cx.graph().select(valid, x, zero)?;
        let (sum, count) = (total(cx, kept)?, total(cx, valid)?);
        // Keras' epsilon.
        let count = cx.graph().offset(count, 1e-7)?;
        let mean = cx.graph().div(sum, count)?;
        let centred = cx.graph().sub(x, mean)?;
        let kept = cx.graph().select(valid, centred, zero)?;
        let squares = cx.graph().unary(Unary::Square, kept)?;
        let squares = total(cx, squares)?;
        let variance = cx.graph().div(squares, count)?;
        for (row, stat) in [mean, variance].into_iter().enumerate() {
            let stat = match scope {
                Scope::Device => cx.graph().push(Op::ReplicaMean, &[stat])?,
                Scope::All => stat,
            };
            self.update_moving(cx, w, row, stat)?;
        }
        let g = cx.graph();
        let spread = g.offset(variance, self.epsilon)?;
        let factor = g.unary(Unary::Rsqrt, spread)?;
        let factor = g.mul(factor, w.gamma)?;
        let y = g.mul(centred, factor)?;
        Ok(g.add(y, w.beta)?)
    }

    /// Normalises by the moving statistics: `x · scale + shift`.
    fn normalize_by_moving(
        &self,
        cx: &mut LayerContext<'_>,
        x: NodeId,
        w: &Weights,
    ) -> Result<NodeId> {
        let g = cx.graph();
        let t = g.offset(w.moving_variance, self.epsilon)?;
        let t = g.unary(Unary::Rsqrt, t)?;
        let scale = g.mul(w.gamma, t)?;
        let t = g.mul(w.moving_mean, scale)?;
        let shift = g.sub(w.beta, t)?;
        let y = g.mul(x, scale)?;
        Ok(g.add(y, shift)?)
    }
}

impl Layer for BatchNormalization {
    keras_class!("BatchNormalization");

    fn mask_rule(&self) -> MaskRule {
        MaskRule::Pass
    }

    fn call(&self, cx: &mut LayerContext<'_>, inputs: &[NodeId]) -> Result<Outputs> {
        if !(0.0..=1.0).contains(&self.momentum) {
            return Err(cx.argument("momentum", "0 to 1", self.momentum));
        }
        check_not_negative(cx, "epsilon", self.epsilon)?;
        let x = single(cx, inputs)?;
        let axis = row_axis(cx, x, self.axis)?;
        let channels = cx.dims(x)[axis];
        let w = self.weights(cx, channels)?;
        let x = swap_with_last(cx, x, axis)?;
        let by_batch = cx.training() && cx.trainable();
        let y = match (by_batch, cx.mask(0)) {
            (true, None) => self.normalize_by_batch(cx, x, &w)?,
            (true, Some(mask)) => self.normalize_by_valid(cx, x, mask, axis, &w)?,
            (false, _) => self.normalize_by_moving(cx, x, &w)?,
        };
        Ok(swap_with_last(cx, y, axis)?.into())
    }
}
