//! Depthwise convolution: every channel has its own `depth_multiplier` kernels.
//!
//! Input `(batch, spatial axes, channels)`, output `(batch, new spatial axes, channels · depth_multiplier)`; output
//! channel `c · depth_multiplier + m` comes from channel `c`. Weights: `kernel`
//! `[kernel size, channels, depth_multiplier]` and `bias` `[channels · depth_multiplier]`.

use super::spatial::{ImageDataFormat, Padding, Sizes, finish, spatial};
use super::support::{WeightOptions, activity_penalty, check_at_least_one};
use super::window::{Window, convolve};
use crate::activations::ActivationFn;
use crate::by_name::{ByName, OptionalByName};
use crate::config::setters;
use crate::constraints::Constraint;
use crate::error::Result;
use crate::initializers::Initializer;
use crate::layer::{Layer, LayerContext, Outputs};
use crate::registry::keras_class;
use crate::regularizers::Regularizer;
use phalanx_graph::NodeId;
use serde::{Deserialize, Serialize};

/// Depthwise convolution of sequences.
///
/// ```
/// use phalanx::layer::Layer;
/// use phalanx::layers::DepthwiseConv1D;
///
/// let conv = DepthwiseConv1D::new(3).depth_multiplier(2).padding("same");
/// assert_eq!(conv.config()["depth_multiplier"], 2);
/// ```
pub type DepthwiseConv1D = DepthwiseConv<1>;

/// Depthwise convolution of images.
///
/// ```
/// use phalanx::layer::Layer;
/// use phalanx::layers::DepthwiseConv2D;
///
/// let conv = DepthwiseConv2D::new(3).depth_multiplier(2).padding("same");
/// assert_eq!(conv.config()["depth_multiplier"], 2);
/// ```
pub type DepthwiseConv2D = DepthwiseConv<2>;

/// Depthwise convolution over `N` spatial axes.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(default = "defaults", deny_unknown_fields)]
// The fields are Keras' arguments. serde cannot flatten groups of them and also reject unknown keys.
pub struct DepthwiseConv<const N: usize> {
    kernel_size: Sizes<N>,
    strides: Sizes<N>,
    padding: ByName<Padding>,
    depth_multiplier: usize,
    data_format: ByName<ImageDataFormat>,
    dilation_rate: Sizes<N>,
    activation: ByName<ActivationFn>,
    use_bias: bool,
    depthwise_initializer: ByName<Initializer>,
    bias_initializer: ByName<Initializer>,
    depthwise_regularizer: OptionalByName<Regularizer>,
    bias_regularizer: OptionalByName<Regularizer>,
    activity_regularizer: OptionalByName<Regularizer>,
    depthwise_constraint: OptionalByName<Constraint>,
    bias_constraint: OptionalByName<Constraint>,
}

fn defaults<const N: usize>() -> DepthwiseConv<N> {
    DepthwiseConv::new(0)
}

impl<const N: usize> DepthwiseConv<N> {
    const NAME: &'static str = ["DepthwiseConv1D", "DepthwiseConv2D"][N - 1];

    /// Windows of `kernel_size`, one kernel per channel.
    pub fn new(kernel_size: impl Into<Sizes<N>>) -> DepthwiseConv<N> {
        DepthwiseConv {
            kernel_size: kernel_size.into(),
            strides: 1.into(),
            padding: Padding::Valid.into(),
            depth_multiplier: 1,
            data_format: ImageDataFormat::ChannelsLast.into(),
            dilation_rate: 1.into(),
            activation: ActivationFn::Linear.into(),
            use_bias: true,
            depthwise_initializer: Initializer::GlorotUniform { seed: None }.into(),
            bias_initializer: Initializer::Zeros {}.into(),
            depthwise_regularizer: OptionalByName::default(),
            bias_regularizer: OptionalByName::default(),
            activity_regularizer: OptionalByName::default(),
            depthwise_constraint: OptionalByName::default(),
            bias_constraint: OptionalByName::default(),
        }
    }

    setters! {
        /// The strides of the windows; defaults to 1.
        strides: impl Into<Sizes<N>>,
        /// `valid` (the default) or `same`.
        padding: impl Into<ByName<Padding>>,
        /// `channels_last` (the default) or `channels_first`.
        data_format: impl Into<ByName<ImageDataFormat>>,
        /// Kernels per channel; defaults to 1.
        depth_multiplier: usize,
        /// The dilation of the windows; defaults to 1.
        dilation_rate: impl Into<Sizes<N>>,
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
        /// Regularizer of the layer's output.
        activity_regularizer: impl Into<OptionalByName<Regularizer>>,
    }
}

impl<const N: usize> Layer for DepthwiseConv<N> {
    keras_class!(DepthwiseConv::<N>::NAME);
    activity_penalty!();

    fn call(&self, cx: &mut LayerContext<'_>, inputs: &[NodeId]) -> Result<Outputs> {
        let activation = *self.activation.get()?;
        check_at_least_one(cx, "depth_multiplier", self.depth_multiplier)?;
        let x = spatial::<N>(cx, inputs, &self.data_format)?;
        let window = Window {
            key: "kernel_size",
            size: self.kernel_size,
            strides: self.strides,
            dilation: self.dilation_rate,
            padding: &self.padding,
            groups: x.channels,
        };
        window.check_not_causal(cx)?;
        let geom = window.depthwise(cx, &x, self.depth_multiplier)?;
        let kernel = WeightOptions {
            initializer: &self.depthwise_initializer,
            regularizer: &self.depthwise_regularizer,
            constraint: &self.depthwise_constraint,
        };
        let dims = [&self.kernel_size.0[..], &[x.channels, self.depth_multiplier]].concat();
        // A convolution with one group per channel expects the same numbers as `[.., 1, filters]`.
        let kernel = kernel.weight(cx, "kernel", &dims)?;
        let bias = WeightOptions {
            initializer: &self.bias_initializer,
            regularizer: &self.bias_regularizer,
            constraint: &self.bias_constraint,
        };
        let bias = bias.optional(cx, self.use_bias, "bias", &[geom.output[2]])?;
        let y = convolve::<N>(cx, geom, x.x, kernel, bias)?;
        Ok(finish(cx, y, activation, &self.data_format)?.into())
    }
}
