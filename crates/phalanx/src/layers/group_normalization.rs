//! Group normalisation: `y = gamma · (x - mean) / √(variance + epsilon) + beta`, with the mean and variance of each
//! sample and each group of channels.
//!
//! The output has the shape of the input. Weights: `gamma` and `beta`, `[channels]`.

use super::support::{WeightOptions, check_not_negative, row_axis, single};
use crate::by_name::{ByName, OptionalByName};
use crate::config::setters;
use crate::constraints::Constraint;
use crate::error::Result;
use crate::initializers::Initializer;
use crate::layer::{Layer, LayerContext, MaskRule, Outputs};
use crate::registry::keras_class;
use crate::regularizers::Regularizer;
use phalanx_graph::NodeId;
use phalanx_graph::ops::Unary;
use serde::{Deserialize, Serialize};

/// Group normalisation.
///
/// ```
/// use phalanx::layer::Layer;
/// use phalanx::layers::GroupNormalization;
///
/// let norm = GroupNormalization::new().groups(8);
/// assert_eq!(norm.config()["groups"], 8);
/// ```
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct GroupNormalization {
    groups: i64,
    axis: i64,
    epsilon: f64,
    center: bool,
    scale: bool,
    beta_initializer: ByName<Initializer>,
    gamma_initializer: ByName<Initializer>,
    beta_regularizer: OptionalByName<Regularizer>,
    gamma_regularizer: OptionalByName<Regularizer>,
    beta_constraint: OptionalByName<Constraint>,
    gamma_constraint: OptionalByName<Constraint>,
}

impl Default for GroupNormalization {
    fn default() -> GroupNormalization {
        GroupNormalization {
            groups: 32,
            axis: -1,
            epsilon: 1e-3,
            center: true,
            scale: true,
            beta_initializer: Initializer::Zeros {}.into(),
            gamma_initializer: Initializer::Ones {}.into(),
            beta_regularizer: OptionalByName::default(),
            gamma_regularizer: OptionalByName::default(),
            beta_constraint: OptionalByName::default(),
            gamma_constraint: OptionalByName::default(),
        }
    }
}

impl GroupNormalization {
    /// 32 groups of the last axis, epsilon 0.001, centred and scaled.
    pub fn new() -> GroupNormalization {
        GroupNormalization::default()
    }

    setters! {
        /// The number of groups, a divisor of the channels, or -1 for a group per channel; defaults to 32.
        groups: i64,
        /// The axis of the channels; defaults to the last.
        axis: i64,
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
        /// Regularizer of `beta`.
        beta_regularizer: impl Into<OptionalByName<Regularizer>>,
        /// Regularizer of `gamma`.
        gamma_regularizer: impl Into<OptionalByName<Regularizer>>,
        /// Constraint on `beta`.
        beta_constraint: impl Into<OptionalByName<Constraint>>,
        /// Constraint on `gamma`.
        gamma_constraint: impl Into<OptionalByName<Constraint>>,
    }

    /// The number of groups of `channels` channels.
    fn groups_of(&self, cx: &LayerContext<'_>, channels: usize) -> Result<usize> {
        let groups = if self.groups == -1 { Ok(channels) } else { usize::try_from(self.groups) };
        match groups {
            Ok(groups) if groups > 0 && channels.is_multiple_of(groups) && channels > 0 => {
                Ok(groups)
            }
            _ => {
                let expected = format!("-1 or a divisor of the input's channels, {channels}");
                Err(cx.argument("groups", &expected, self.groups))
            }
        }
    }
}

impl Layer for GroupNormalization {
    keras_class!("GroupNormalization");

    fn mask_rule(&self) -> MaskRule {
        MaskRule::Pass
    }

    fn call(&self, cx: &mut LayerContext<'_>, inputs: &[NodeId]) -> Result<Outputs> {
        check_not_negative(cx, "epsilon", self.epsilon)?;
        let x = single(cx, inputs)?;
        let axis = row_axis(cx, x, self.axis)?;
        let dims = cx.dims(x);
        let channels = dims[axis];
        let groups = self.groups_of(cx, channels)?;
        let grouped = [&dims[..axis], &[groups, channels / groups], &dims[axis + 1..]].concat();
        let axes: Vec<usize> = (0..grouped.len()).filter(|a| *a != axis).collect();
        let mut aligned = vec![1; dims.len()];
        aligned[axis] = channels;

        let g = cx.graph();
        let x = g.reshape(x, &grouped)?;
        let mean = g.mean_axes(x, &axes)?;
        let centred = g.sub(x, mean)?;
        let squares = g.unary(Unary::Square, centred)?;
        let variance = g.mean_axes(squares, &axes)?;
        let t = g.offset(variance, self.epsilon)?;
        let t = g.unary(Unary::Rsqrt, t)?;
        let y = g.mul(centred, t)?;
        let mut y = g.reshape(y, &dims)?;
        let gamma = WeightOptions {
            initializer: &self.gamma_initializer,
            regularizer: &self.gamma_regularizer,
            constraint: &self.gamma_constraint,
        };
        if let Some(gamma) = gamma.optional(cx, self.scale, "gamma", &[channels])? {
            let gamma = cx.graph().reshape(gamma, &aligned)?;
            y = cx.graph().mul(y, gamma)?;
        }
        let beta = WeightOptions {
            initializer: &self.beta_initializer,
            regularizer: &self.beta_regularizer,
            constraint: &self.beta_constraint,
        };
        if let Some(beta) = beta.optional(cx, self.center, "beta", &[channels])? {
            let beta = cx.graph().reshape(beta, &aligned)?;
            y = cx.graph().add(y, beta)?;
        }
        Ok(y.into())
    }
}
