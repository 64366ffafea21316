//! 2-D convolution: `y[i, j, f] = activation(Σ x[i·s + u·d, j·s + v·d, c] · kernel[u, v, c, f] + bias[f])`.
//!
//! Input `(batch, height, width, channels)`, output `(batch, new height, new width, filters)`, where
//! `valid` gives `(size - (kernel - 1) · dilation - 1) / stride + 1` positions, rounded down, and
//! `same` gives `size / stride`, rounded up. Weights: `kernel` `[h, w, channels / groups, filters]` and
//! `bias` `[filters]`.

use super::support::{
    AlwaysNull, DataFormat, Padding, Pair, WeightOptions, Window, check_at_least_one, image,
};
use crate::activations::ActivationFn;
use crate::by_name::{ByName, OptionalByName};
use crate::config::setters;
use crate::constraints::Constraint;
use crate::error::Result;
use crate::initializers::Initializer;
use crate::layer::{Layer, LayerContext, Outputs};
use crate::registry::keras_class;
use crate::regularizers::Regularizer;
use phalanx_graph::ops::Epilogue;
use phalanx_graph::{NodeId, Op};
use serde::{Deserialize, Serialize};

/// 2-D convolution.
///
/// ```
/// use phalanx::layer::Layer;
/// use phalanx::layers::Conv2D;
///
/// let conv = Conv2D::new(32, 3).strides(2).padding("same").activation("relu").use_bias(false);
/// assert_eq!(conv.config()["kernel_size"], serde_json::json!([3, 3]));
/// assert_eq!(conv.config()["padding"], "same");
/// ```
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(default = "defaults", deny_unknown_fields)]
// The fields are Keras' arguments. serde cannot flatten groups of them and also reject unknown keys.
pub struct Conv2D {
    filters: usize,
    kernel_size: Pair,
    strides: Pair,
    padding: ByName<Padding>,
    data_format: DataFormat,
    dilation_rate: Pair,
    groups: usize,
    activation: ByName<ActivationFn>,
    use_bias: bool,
    kernel_initializer: ByName<Initializer>,
    bias_initializer: ByName<Initializer>,
    kernel_regularizer: OptionalByName<Regularizer>,
    bias_regularizer: OptionalByName<Regularizer>,
    activity_regularizer: AlwaysNull,
    kernel_constraint: OptionalByName<Constraint>,
    bias_constraint: OptionalByName<Constraint>,
}

fn defaults() -> Conv2D {
    Conv2D::new(0, 0)
}

impl Conv2D {
    /// `filters` output channels from windows of `kernel_size`.
    pub fn new(filters: usize, kernel_size: impl Into<Pair>) -> Conv2D {
        Conv2D {
            filters,
            kernel_size: kernel_size.into(),
            strides: 1.into(),
            padding: Padding::Valid.into(),
            data_format: DataFormat::ChannelsLast,
            dilation_rate: 1.into(),
            groups: 1,
            activation: ActivationFn::Linear.into(),
            use_bias: true,
            kernel_initializer: Initializer::GlorotUniform { seed: None }.into(),
            bias_initializer: Initializer::Zeros {}.into(),
            kernel_regularizer: OptionalByName::default(),
            bias_regularizer: OptionalByName::default(),
            activity_regularizer: AlwaysNull,
            kernel_constraint: OptionalByName::default(),
            bias_constraint: OptionalByName::default(),
        }
    }

    setters! {
        /// The strides of the windows; defaults to 1.
        strides: impl Into<Pair>,
        /// `valid` (the default) or `same`.
        padding: impl Into<ByName<Padding>>,
        /// The dilation of the windows; defaults to 1.
        dilation_rate: impl Into<Pair>,
        /// The number of groups of channels that are convolved separately; must divide channels and filters.
        groups: usize,
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
    }
}

impl Layer for Conv2D {
    keras_class!("Conv2D");

    fn call(&self, cx: &mut LayerContext<'_>, inputs: &[NodeId]) -> Result<Outputs> {
        let activation = self.activation.get()?;
        check_at_least_one(cx, "filters", self.filters)?;
        check_at_least_one(cx, "groups", self.groups)?;
        let (x, input) = image(cx, inputs)?;
        for (what, n) in [("input's channels", input[2]), ("filters", self.filters)] {
            if !n.is_multiple_of(self.groups) {
                let expected = format!("a divisor of the {what}, {n}");
                return Err(cx.argument("groups", &expected, self.groups));
            }
        }
        // The kernels support both, but Keras rejects it, and saved models must load there too.
        if self.strides != 1.into() && self.dilation_rate != 1.into() {
            let received = format!("{} with dilation_rate {}", self.strides, self.dilation_rate);
            return Err(cx.argument("strides", "1 if dilation_rate is not 1", received));
        }
        let window = Window {
            key: "kernel_size",
            size: self.kernel_size,
            strides: self.strides,
            dilation: self.dilation_rate,
            padding: &self.padding,
            groups: self.groups,
        };
        let geom = window.geometry(cx, input, self.filters)?;
        let kernel = WeightOptions {
            initializer: &self.kernel_initializer,
            regularizer: &self.kernel_regularizer,
            constraint: &self.kernel_constraint,
        };
        let mut operands = vec![x, kernel.weight(cx, "kernel", &geom.kernel_dims())?];
        if self.use_bias {
            let bias = WeightOptions {
                initializer: &self.bias_initializer,
                regularizer: &self.bias_regularizer,
                constraint: &self.bias_constraint,
            };
            operands.push(bias.weight(cx, "bias", &[self.filters])?);
        }
        let epilogue = Epilogue { bias: self.use_bias, relu: false };
        let y = cx.graph().push(Op::Conv(geom, epilogue), &operands)?;
        Ok(activation.apply(cx.graph(), y)?.into())
    }
}
