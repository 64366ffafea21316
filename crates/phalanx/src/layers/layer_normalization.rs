//! Layer normalisation: `y = gamma · (x - mean) / √(variance + epsilon) + beta`, with the mean and variance of
//! each sample over `axis`.
//!
//! The output has the shape of the input. Weights: `gamma` and `beta`, with the shape of the normalised axes.

use super::support::{WeightOptions, check_not_negative, row_axes, single};
use crate::by_name::{ByName, OptionalByName};
use crate::config::{self, setters};
use crate::constraints::{Axes, Constraint};
use crate::error::Result;
use crate::initializers::Initializer;
use crate::layer::{Layer, LayerContext, MaskRule, Outputs};
use crate::regularizers::Regularizer;
use phalanx_graph::ops::{LayerNormAttrs, Unary};
use phalanx_graph::{Graph, NodeId, Op};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

/// Layer normalisation.
///
/// ```
/// use phalanx::layer::Layer;
/// use phalanx::layers::LayerNormalization;
///
/// let norm = LayerNormalization::new().epsilon(1e-6);
/// assert_eq!(norm.config()["axis"], serde_json::json!([-1]));
/// ```
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct LayerNormalization {
    axis: Axes,
    epsilon: f64,
    center: bool,
    scale: bool,
    rms_scaling: bool,
    beta_initializer: ByName<Initializer>,
    gamma_initializer: ByName<Initializer>,
    beta_regularizer: OptionalByName<Regularizer>,
    gamma_regularizer: OptionalByName<Regularizer>,
    beta_constraint: OptionalByName<Constraint>,
    gamma_constraint: OptionalByName<Constraint>,
}

impl Default for LayerNormalization {
    fn default() -> LayerNormalization {
        LayerNormalization {
            axis: Axes::One(-1),
            epsilon: 1e-3,
            center: true,
            scale: true,
            rms_scaling: false,
            beta_initializer: Initializer::Zeros {}.into(),
            gamma_initializer: Initializer::Ones {}.into(),
            beta_regularizer: OptionalByName::default(),
            gamma_regularizer: OptionalByName::default(),
            beta_constraint: OptionalByName::default(),
            gamma_constraint: OptionalByName::default(),
        }
    }
}

impl LayerNormalization {
    /// Over the last axis, epsilon 0.001, centred and scaled.
    pub fn new() -> LayerNormalization {
        LayerNormalization::default()
    }

    setters! {
        /// The axes to normalise; defaults to the last.
        axis: impl Into<Axes>,
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
}

/// `(x - mean) / √(variance + epsilon)` over `axes`.
fn standardized(g: &mut Graph, x: NodeId, axes: &[usize], epsilon: f64) -> Result<NodeId> {
    let dims = g.ty(x).dims.clone();
    let lead = dims.len() - axes.len();
    let mut sorted = axes.to_vec();
    sorted.sort_unstable();
    let n = phalanx_graph::count(&dims[lead..]);
    if sorted.into_iter().eq(lead..dims.len()) && n > 0 {
        let vectors = g.reshape(x, &[&dims[..lead], &[n]].concat())?;
        let attrs = LayerNormAttrs { epsilon: epsilon.into(), rms: false };
        let y = g.push(Op::LayerNorm(attrs), &[vectors])?;
        return Ok(g.reshape(y, &dims)?);
    }
    let mean = g.mean_axes(x, axes)?;
    let centred = g.sub(x, mean)?;
    let squares = g.unary(Unary::Square, centred)?;
    let variance = g.mean_axes(squares, axes)?;
    let t = g.offset(variance, epsilon)?;
    let t = g.unary(Unary::Rsqrt, t)?;
    Ok(g.mul(centred, t)?)
}

impl Layer for LayerNormalization {
    fn class_name(&self) -> &'static str {
        "LayerNormalization"
    }

    fn config(&self) -> Map<String, Value> {
        // Keras writes a list even for a single axis.
        let axis = self.axis.as_slice().into();
        config::write(&LayerNormalization { axis, ..self.clone() })
    }

    fn mask_rule(&self) -> MaskRule {
        MaskRule::Pass
    }

    fn call(&self, cx: &mut LayerContext<'_>, inputs: &[NodeId]) -> Result<Outputs> {
        check_not_negative(cx, "epsilon", self.epsilon)?;
        if self.rms_scaling {
            return Err(cx.argument("rms_scaling", "false", true));
        }
        let x = single(cx, inputs)?;
        let axes = row_axes(cx, x, &self.axis)?;
        let dims = cx.dims(x);
        let weight_dims: Vec<usize> = axes.iter().map(|a| dims[*a]).collect();
        let mut aligned = vec![1; dims.len()];
        axes.iter().for_each(|a| aligned[*a] = dims[*a]);

        let mut y = standardized(cx.graph(), x, &axes, self.epsilon)?;
        if self.scale {
            let gamma = WeightOptions {
                initializer: &self.gamma_initializer,
                regularizer: &self.gamma_regularizer,
                constraint: &self.gamma_constraint,
            };
            let gamma = gamma.weight(cx, "gamma", &weight_dims)?;
            let gamma = cx.graph().reshape(gamma, &aligned)?;
            y = cx.graph().mul(y, gamma)?;
        }
        if self.center {
            let beta = WeightOptions {
                initializer: &self.beta_initializer,
                regularizer: &self.beta_regularizer,
                constraint: &self.beta_constraint,
            };
            let beta = beta.weight(cx, "beta", &weight_dims)?;
            let beta = cx.graph().reshape(beta, &aligned)?;
            y = cx.graph().add(y, beta)?;
        }
        Ok(y.into())
    }
}
