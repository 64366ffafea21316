//! Batch normalisation: `y = gamma · (x - mean) / √(variance + epsilon) + beta`, for every channel.
//!
//! In training, mean and variance are those of the batch, over all axes but `axis`, and the moving
//! statistics follow: `moving = moving · momentum + batch · (1 - momentum)`. Otherwise, and where the
//! layer is frozen, the moving statistics are used. A replica has its own batch statistics unless the
//! layer is `synchronized`. Weights: `gamma`, `beta`, `moving_mean`, `moving_variance`, each
//! `[channels]`.

use super::support::{Terms, not_negative, row_axis, setters, single, swap_with_last};
use crate::choice::{Choice, Optional};
use crate::config;
use crate::constraints::Constraint;
use crate::error::Result;
use crate::initializers::Initializer;
use crate::layer::{Layer, LayerContext, WeightSpec};
use crate::regularizers::Regularizer;
use phalanx_graph::ops::{BatchNormAttrs, Unary};
use phalanx_graph::{NodeId, Op, Scope};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

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
pub struct BatchNormalization {
    axis: i64,
    momentum: f64,
    epsilon: f64,
    center: bool,
    scale: bool,
    beta_initializer: Choice<Initializer>,
    gamma_initializer: Choice<Initializer>,
    moving_mean_initializer: Choice<Initializer>,
    moving_variance_initializer: Choice<Initializer>,
    beta_regularizer: Optional<Regularizer>,
    gamma_regularizer: Optional<Regularizer>,
    beta_constraint: Optional<Constraint>,
    gamma_constraint: Optional<Constraint>,
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
            beta_regularizer: Optional::default(),
            gamma_regularizer: Optional::default(),
            beta_constraint: Optional::default(),
            gamma_constraint: Optional::default(),
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
        /// The channel axis; the last unless set.
        axis: i64,
        /// How much of the moving statistics stays at each step.
        momentum: f64,
        /// Added to the variance.
        epsilon: f64,
        /// Whether there is a `beta`.
        center: bool,
        /// Whether there is a `gamma`.
        scale: bool,
        /// First values of `beta`; zeros unless set.
        beta_initializer: impl Into<Choice<Initializer>>,
        /// First values of `gamma`; ones unless set.
        gamma_initializer: impl Into<Choice<Initializer>>,
        /// First values of the moving mean; zeros unless set.
        moving_mean_initializer: impl Into<Choice<Initializer>>,
        /// First values of the moving variance; ones unless set.
        moving_variance_initializer: impl Into<Choice<Initializer>>,
        /// Penalty on `beta`.
        beta_regularizer: impl Into<Optional<Regularizer>>,
        /// Penalty on `gamma`.
        gamma_regularizer: impl Into<Optional<Regularizer>>,
        /// Projection of `beta`.
        beta_constraint: impl Into<Optional<Constraint>>,
        /// Projection of `gamma`.
        gamma_constraint: impl Into<Optional<Constraint>>,
        /// Whether all replicas share their statistics.
        synchronized: bool,
    }
}

/// The layer's weights: as parameters, or as constants where they are switched off.
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
            true => Terms {
                initializer: &self.gamma_initializer,
                regularizer: &self.gamma_regularizer,
                constraint: &self.gamma_constraint,
            }
            .weight(cx, "gamma", &dims)?,
        };
        let beta = match self.center {
            false => cx.graph().fill(0.0, &dims),
            true => Terms {
                initializer: &self.beta_initializer,
                regularizer: &self.beta_regularizer,
                constraint: &self.beta_constraint,
            }
            .weight(cx, "beta", &dims)?,
        };
        let mut moving = |name, initializer: &Choice<Initializer>| -> Result<NodeId> {
            cx.weight(WeightSpec::new(name, &dims, *initializer.get()?).non_trainable())
        };
        let moving_mean = moving("moving_mean", &self.moving_mean_initializer)?;
        let moving_variance = moving("moving_variance", &self.moving_variance_initializer)?;
        let moving = usize::from(self.scale) + usize::from(self.center);
        Ok(Weights { gamma, beta, moving_mean, moving_variance, moving })
    }

    /// Normalises by the batch and lets the moving statistics follow.
    fn by_batch(&self, cx: &mut LayerContext<'_>, x: NodeId, w: &Weights) -> Result<NodeId> {
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
        for (row, old) in [w.moving_mean, w.moving_variance].into_iter().enumerate() {
            let g = cx.graph();
            let stat = g.push(Op::Slice { axis: 0, start: row, len: 1 }, &[common])?;
            let stat = g.reshape(stat, &[channels])?;
            let fresh = g.scale(stat, 1.0 - self.momentum)?;
            let kept = g.scale(old, self.momentum)?;
            let new = g.add(kept, fresh)?;
            cx.assign(w.moving + row, new);
        }
        Ok(y)
    }

    /// Normalises by the moving statistics: `x · scale + shift`.
    fn by_moving(&self, cx: &mut LayerContext<'_>, x: NodeId, w: &Weights) -> Result<NodeId> {
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
    fn class_name(&self) -> &'static str {
        "BatchNormalization"
    }

    fn config(&self) -> Map<String, Value> {
        config::write(self)
    }

    fn call(&self, cx: &mut LayerContext<'_>, inputs: &[NodeId]) -> Result<NodeId> {
        if !(0.0..=1.0).contains(&self.momentum) {
            return Err(cx.argument("momentum", "0 to 1", self.momentum));
        }
        not_negative(cx, "epsilon", self.epsilon)?;
        let x = single(cx, inputs)?;
        let axis = row_axis(cx, x, self.axis)?;
        let channels = cx.dims(x)[axis];
        let w = self.weights(cx, channels)?;
        let x = swap_with_last(cx, x, axis)?;
        let y = match cx.training() && cx.trainable() {
            true => self.by_batch(cx, x, &w)?,
            false => self.by_moving(cx, x, &w)?,
        };
        swap_with_last(cx, y, axis)
    }
}
