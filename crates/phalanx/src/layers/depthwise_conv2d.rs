//! Depthwise 2-D convolution: every channel has its own `depth_multiplier` kernels.
//!
//! Input `(batch, height, width, channels)`, output
//! `(batch, new height, new width, channels · depth_multiplier)`; output channel `c · depth_multiplier + m`
//! comes from channel `c`. Weights: `kernel` `[h, w, channels, depth_multiplier]` and
//! `bias` `[channels · depth_multiplier]`.

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

/// Depthwise 2-D convolution.
///
/// ```
/// use phalanx::layer::Layer;
/// use phalanx::layers::DepthwiseConv2D;
///
/// let conv = DepthwiseConv2D::new(3).depth_multiplier(2).padding("same");
/// assert_eq!(conv.config()["depth_multiplier"], 2);
/// ```
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(default = "defaults", deny_unknown_fields)]
// The fields are Keras' arguments. serde cannot flatten groups of them and also reject unknown keys.
pub struct DepthwiseConv2D {
    kernel_size: Pair,
    strides: Pair,
    padding: ByName<Padding>,
    depth_multiplier: usize,
    data_format: DataFormat,
    dilation_rate: Pair,
    activation: ByName<ActivationFn>,
    use_bias: bool,
    depthwise_initializer: ByName<Initializer>,
    bias_initializer: ByName<Initializer>,
    depthwise_regularizer: OptionalByName<Regularizer>,
    bias_regularizer: OptionalByName<Regularizer>,
    activity_regularizer: AlwaysNull,
    depthwise_constraint: OptionalByName<Constraint>,
    bias_constraint: OptionalByName<Constraint>,
}

fn defaults() -> DepthwiseConv2D {
    DepthwiseConv2D::new(0)
}

impl DepthwiseConv2D {
    /// Windows of `kernel_size`, one kernel per channel.
    pub fn new(kernel_size: impl Into<Pair>) -> DepthwiseConv2D {
        DepthwiseConv2D {
            kernel_size: kernel_size.into(),
            strides: 1.into(),
            padding: Padding::Valid.into(),
            depth_multiplier: 1,
            data_format: DataFormat::ChannelsLast,
            dilation_rate: 1.into(),
            activation: ActivationFn::Linear.into(),
            use_bias: true,
            depthwise_initializer: Initializer::GlorotUniform { seed: None }.into(),
            bias_initializer: Initializer::Zeros {}.into(),
            depthwise_regularizer: OptionalByName::default(),
            bias_regularizer: OptionalByName::default(),
            activity_regularizer: AlwaysNull,
            depthwise_constraint: OptionalByName::default(),
            bias_constraint: OptionalByName::default(),
        }
    }

    setters! {
        /// The strides of the windows; defaults to 1.
        strides: impl Into<Pair>,
        /// `valid` (the default) or `same`.
        padding: impl Into<ByName<Padding>>,
        /// Kernels per channel; defaults to 1.
        depth_multiplier: usize,
        /// The dilation of the windows; defaults to 1.
        dilation_rate: impl Into<Pair>,
        /// The activation function; defaults to linear.
        activation: impl Into<ByName<ActivationFn>>,
        /// Whether to add a bias.
        use_bias: bool,
        /// Initializer of the kernel; defaults to `glorot_uniform`.
        depthwise_initializer: impl Into<ByName<Initializer>>,
        /// Initializer of the bias; defaults to zeros.
        bias_initializer: impl Into<ByName<Initializer>>,
        /// Regularizer of the kernel.
        depthwise_regularizer: impl Into<OptionalByName<Regularizer>>,
        /// Regularizer of the bias.
        bias_regularizer: impl Into<OptionalByName<Regularizer>>,
        /// Constraint on the kernel.
        depthwise_constraint: impl Into<OptionalByName<Constraint>>,
        /// Constraint on the bias.
        bias_constraint: impl Into<OptionalByName<Constraint>>,
    }
}

impl Layer for DepthwiseConv2D {
    keras_class!("DepthwiseConv2D");

    fn call(&self, cx: &mut LayerContext<'_>, inputs: &[NodeId]) -> Result<Outputs> {
        let activation = self.activation.get()?;
        check_at_least_one(cx, "depth_multiplier", self.depth_multiplier)?;
        let (x, input) = image(cx, inputs)?;
        let channels = input[2];
        let Some(filters) = channels.checked_mul(self.depth_multiplier) else {
            let received = self.depth_multiplier;
            return Err(cx.argument("depth_multiplier", "a size that fits in memory", received));
        };
        let window = Window {
            key: "kernel_size",
            size: self.kernel_size,
            strides: self.strides,
            dilation: self.dilation_rate,
            padding: &self.padding,
            groups: channels,
        };
        let geom = window.geometry(cx, input, filters)?;
        let kernel = WeightOptions {
            initializer: &self.depthwise_initializer,
            regularizer: &self.depthwise_regularizer,
            constraint: &self.depthwise_constraint,
        };
        let [h, w, ..] = geom.kernel_dims();
        let kernel = kernel.weight(cx, "kernel", &[h, w, channels, self.depth_multiplier])?;
        // A convolution with one group per channel expects the same numbers as [h, w, 1, filters].
        let mut operands = vec![x, cx.graph().reshape(kernel, &geom.kernel_dims())?];
        if self.use_bias {
            let bias = WeightOptions {
                initializer: &self.bias_initializer,
                regularizer: &self.bias_regularizer,
                constraint: &self.bias_constraint,
            };
            operands.push(bias.weight(cx, "bias", &[filters])?);
        }
        let epilogue = Epilogue { bias: self.use_bias, relu: false };
        let y = cx.graph().push(Op::Conv(geom, epilogue), &operands)?;
        Ok(activation.apply(cx.graph(), y)?.into())
    }
}
