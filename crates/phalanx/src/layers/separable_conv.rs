//! Separable convolution: a depthwise convolution, then a convolution with windows of one pixel.
//!
//! Input `(batch, spatial axes, channels)`, output `(batch, new spatial axes, filters)`. Weights: `depthwise_kernel`
//! `[kernel size, channels, depth_multiplier]`, `pointwise_kernel` `[1, .., channels · depth_multiplier, filters]` and
//! `bias` `[filters]`.

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

/// Separable convolution of sequences.
///
/// ```
/// use phalanx::layer::Layer;
/// use phalanx::layers::SeparableConv1D;
///
/// let conv = SeparableConv1D::new(8, 3).depth_multiplier(2).padding("same");
/// assert_eq!(conv.config()["kernel_size"], serde_json::json!([3]));
/// ```
pub type SeparableConv1D = SeparableConv<1>;

/// Separable convolution of images.
///
/// ```
/// use phalanx::layer::Layer;
/// use phalanx::layers::SeparableConv2D;
///
/// let conv = SeparableConv2D::new(8, 3).depth_multiplier(2).padding("same");
/// assert_eq!(conv.config()["kernel_size"], serde_json::json!([3, 3]));
/// ```
pub type SeparableConv2D = SeparableConv<2>;

/// Separable convolution over `N` spatial axes.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(default = "defaults", deny_unknown_fields)]
// The fields are Keras' arguments. serde cannot flatten groups of them and also reject unknown keys.
pub struct SeparableConv<const N: usize> {
    filters: usize,
    kernel_size: Sizes<N>,
    strides: Sizes<N>,
    padding: ByName<Padding>,
    data_format: ByName<ImageDataFormat>,
    dilation_rate: Sizes<N>,
    depth_multiplier: usize,
    activation: ByName<ActivationFn>,
    use_bias: bool,
    depthwise_initializer: ByName<Initializer>,
    pointwise_initializer: ByName<Initializer>,
    bias_initializer: ByName<Initializer>,
    depthwise_regularizer: OptionalByName<Regularizer>,
    pointwise_regularizer: OptionalByName<Regularizer>,
    bias_regularizer: OptionalByName<Regularizer>,
    activity_regularizer: OptionalByName<Regularizer>,
    depthwise_constraint: OptionalByName<Constraint>,
    pointwise_constraint: OptionalByName<Constraint>,
    bias_constraint: OptionalByName<Constraint>,
}

fn defaults<const N: usize>() -> SeparableConv<N> {
    SeparableConv::new(0, 0)
}

impl<const N: usize> SeparableConv<N> {
    const NAME: &'static str = ["SeparableConv1D", "SeparableConv2D"][N - 1];

    /// `filters` output channels from windows of `kernel_size`.
    pub fn new(filters: usize, kernel_size: impl Into<Sizes<N>>) -> SeparableConv<N> {
        let glorot_uniform = Initializer::GlorotUniform { seed: None };
        SeparableConv {
            filters,
            kernel_size: kernel_size.into(),
            strides: 1.into(),
            padding: Padding::Valid.into(),
            data_format: ImageDataFormat::ChannelsLast.into(),
            dilation_rate: 1.into(),
            depth_multiplier: 1,
            activation: ActivationFn::Linear.into(),
            use_bias: true,
            depthwise_initializer: glorot_uniform.clone().into(),
            pointwise_initializer: glorot_uniform.into(),
            bias_initializer: Initializer::Zeros {}.into(),
            depthwise_regularizer: OptionalByName::default(),
            pointwise_regularizer: OptionalByName::default(),
            bias_regularizer: OptionalByName::default(),
            activity_regularizer: OptionalByName::default(),
            depthwise_constraint: OptionalByName::default(),
            pointwise_constraint: OptionalByName::default(),
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
        /// The dilation of the windows; defaults to 1.
        dilation_rate: impl Into<Sizes<N>>,
        /// Depthwise kernels per channel; defaults to 1.
        depth_multiplier: usize,
        /// The activation function; defaults to linear.
        activation: impl Into<ByName<ActivationFn>>,
        /// Whether to add a bias.
        use_bias: bool,
        /// Initializer of the depthwise kernel; defaults to `glorot_uniform`.
        depthwise_initializer: impl Into<ByName<Initializer>>,
        /// Initializer of the pointwise kernel; defaults to `glorot_uniform`.
        pointwise_initializer: impl Into<ByName<Initializer>>,
        /// Initializer of the bias; defaults to zeros.
        bias_initializer: impl Into<ByName<Initializer>>,
        /// Regularizer of the depthwise kernel.
        depthwise_regularizer: impl Into<OptionalByName<Regularizer>>,
        /// Regularizer of the pointwise kernel.
        pointwise_regularizer: impl Into<OptionalByName<Regularizer>>,
        /// Regularizer of the bias.
        bias_regularizer: impl Into<OptionalByName<Regularizer>>,
        /// Constraint on the depthwise kernel.
        depthwise_constraint: impl Into<OptionalByName<Constraint>>,
        /// Constraint on the pointwise kernel.
        pointwise_constraint: impl Into<OptionalByName<Constraint>>,
        /// Constraint on the bias.
        bias_constraint: impl Into<OptionalByName<Constraint>>,
        /// Regularizer of the layer's output.
        activity_regularizer: impl Into<OptionalByName<Regularizer>>,
    }
}

impl<const N: usize> Layer for SeparableConv<N> {
    keras_class!(SeparableConv::<N>::NAME);
    activity_penalty!();

    fn call(&self, cx: &mut LayerContext<'_>, inputs: &[NodeId]) -> Result<Outputs> {
        let activation = *self.activation.get()?;
        check_at_least_one(cx, "filters", self.filters)?;
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
        let depthwise = WeightOptions {
            initializer: &self.depthwise_initializer,
            regularizer: &self.depthwise_regularizer,
            constraint: &self.depthwise_constraint,
        };
        let dims = [&self.kernel_size.0[..], &[x.channels, self.depth_multiplier]].concat();
        let depthwise = depthwise.weight(cx, "depthwise_kernel", &dims)?;
        let pointwise = WeightOptions {
            initializer: &self.pointwise_initializer,
            regularizer: &self.pointwise_regularizer,
            constraint: &self.pointwise_constraint,
        };
        let dims = [&[1; N][..], &[geom.output[2], self.filters]].concat();
        let pointwise = pointwise.weight(cx, "pointwise_kernel", &dims)?;
        let bias = WeightOptions {
            initializer: &self.bias_initializer,
            regularizer: &self.bias_regularizer,
            constraint: &self.bias_constraint,
        };
        let bias = bias.optional(cx, self.use_bias, "bias", &[self.filters])?;
        let y = convolve::<N>(cx, geom, x.x, depthwise, None)?;
        let pixels =
            Window { size: 1.into(), strides: 1.into(), dilation: 1.into(), groups: 1, ..window };
        let geom = pixels.geometry(cx, &y, self.filters)?;
        let y = convolve::<N>(cx, geom, y.x, pointwise, bias)?;
        Ok(finish(cx, y, activation, &self.data_format)?.into())
    }
}
