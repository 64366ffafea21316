//! A fully connected layer: `y = activation(x · kernel + bias)`.
//!
//! Input `(batch, .., k)`, output `(batch, .., units)`; the layer acts on the last axis.
//! Weights: `kernel` `[k, units]` and `bias` `[units]`.

use super::support::{WeightOptions, activity_penalty, check_at_least_one, shape_text, single};
use crate::activations::ActivationFn;
use crate::by_name::{ByName, OptionalByName};
use crate::config::setters;
use crate::constraints::Constraint;
use crate::error::Result;
use crate::initializers::Initializer;
use crate::layer::{Layer, LayerContext, MaskRule, Outputs};
use crate::registry::keras_class;
use crate::regularizers::Regularizer;
use phalanx_graph::ops::Epilogue;
use phalanx_graph::{NodeId, Op};
use serde::{Deserialize, Serialize};

/// A fully connected layer.
///
/// ```
/// use phalanx::layer::Layer;
/// use phalanx::layers::Dense;
///
/// let dense = Dense::new(256).activation("relu").kernel_initializer("he_normal");
/// assert_eq!(dense.config()["units"], 256);
/// assert_eq!(dense.config()["activation"], "relu");
/// ```
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(default = "defaults", deny_unknown_fields)]
pub struct Dense {
    units: usize,
    activation: ByName<ActivationFn>,
    use_bias: bool,
    kernel_initializer: ByName<Initializer>,
    bias_initializer: ByName<Initializer>,
    kernel_regularizer: OptionalByName<Regularizer>,
    bias_regularizer: OptionalByName<Regularizer>,
    #[serde(skip_serializing_if = "OptionalByName::is_none")]
    activity_regularizer: OptionalByName<Regularizer>,
    kernel_constraint: OptionalByName<Constraint>,
    bias_constraint: OptionalByName<Constraint>,
}

fn defaults() -> Dense {
    Dense::new(0)
}

impl Dense {
    /// A layer of `units` outputs, linear, with a bias.
    pub fn new(units: usize) -> Dense {
        Dense {
            units,
            activation: ActivationFn::Linear.into(),
            use_bias: true,
            kernel_initializer: Initializer::GlorotUniform { seed: None }.into(),
            bias_initializer: Initializer::Zeros {}.into(),
            kernel_regularizer: OptionalByName::default(),
            bias_regularizer: OptionalByName::default(),
            activity_regularizer: OptionalByName::default(),
            kernel_constraint: OptionalByName::default(),
            bias_constraint: OptionalByName::default(),
        }
    }

    setters! {
        /// The activation function; defaults to linear.
        activation: impl Into<ByName<ActivationFn>>,
        /// Whether to add a bias.
        use_bias: bool,
        /// Initializer of the kernel; defaults to `glorot_uniform`.
        kernel_initializer: impl Into<ByName<Initializer>>,
        /// Initializer of the bias; defaults to zeros.
        bias_initializer: impl Into<ByName<Initializer>>,
        /// Regularizer of the kernel.
        kernel_regularizer: impl Into<OptionalByName<Regularizer>>,
        /// Regularizer of the bias.
        bias_regularizer: impl Into<OptionalByName<Regularizer>>,
        /// Constraint on the kernel.
        kernel_constraint: impl Into<OptionalByName<Constraint>>,
        /// Constraint on the bias.
        bias_constraint: impl Into<OptionalByName<Constraint>>,
        /// Regularizer of the layer's output.
        activity_regularizer: impl Into<OptionalByName<Regularizer>>,
    }
}

impl Layer for Dense {
    keras_class!("Dense");
    activity_penalty!();

    fn mask_rule(&self) -> MaskRule {
        MaskRule::Pass
    }

    fn call(&self, cx: &mut LayerContext<'_>, inputs: &[NodeId]) -> Result<Outputs> {
        let activation = self.activation.get()?;
        check_at_least_one(cx, "units", self.units)?;
        let x = single(cx, inputs)?;
        let Some(k) = cx.dims(x).last().copied() else {
            let received = shape_text(cx, x);
            return Err(cx.argument("input", "shape (batch, .., features)", received));
        };
        let kernel = WeightOptions {
            initializer: &self.kernel_initializer,
            regularizer: &self.kernel_regularizer,
            constraint: &self.kernel_constraint,
        };
        let mut operands = vec![x, kernel.weight(cx, "kernel", &[k, self.units])?];
        if self.use_bias {
            let bias = WeightOptions {
                initializer: &self.bias_initializer,
                regularizer: &self.bias_regularizer,
                constraint: &self.bias_constraint,
            };
            operands.push(bias.weight(cx, "bias", &[self.units])?);
        }
        let epilogue = Epilogue { bias: self.use_bias, relu: false };
        let y = cx.graph().push(Op::Dot(epilogue), &operands)?;
        Ok(activation.apply(cx.graph(), y)?.into())
    }
}
