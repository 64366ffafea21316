//! Convolution: `y[i, f] = activation(Σ x[i·s + u·d, c] · kernel[u, c, f] + bias[f])`, where `i` and `u` have one index
//! for each spatial axis.
//!
//! Input `(batch, spatial axes, channels)`, output `(batch, new spatial axes, filters)`, where `valid` gives
//! `(size - (kernel - 1) · dilation - 1) / stride + 1` positions, rounded down, and `same` gives `size / stride`,
//! rounded up. `causal` (of `Conv1D`) gives as many and reads no later steps. Weights: `kernel`
//! `[kernel size, channels / groups, filters]` and `bias` `[filters]`.

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

/// Convolution of sequences.
///
/// ```
/// use phalanx::layer::Layer;
/// use phalanx::layers::Conv1D;
///
/// let conv = Conv1D::new(32, 3).padding("causal").dilation_rate(2);
/// assert_eq!(conv.config()["kernel_size"], serde_json::json!([3]));
/// assert_eq!(conv.config()["padding"], "causal");
/// ```
pub type Conv1D = Conv<1>;

/// Convolution of images.
///
/// ```
/// use phalanx::layer::Layer;
/// use phalanx::layers::Conv2D;
///
/// let conv = Conv2D::new(32, 3).strides(2).padding("same").activation("relu").use_bias(false);
/// assert_eq!(conv.config()["kernel_size"], serde_json::json!([3, 3]));
/// assert_eq!(conv.config()["padding"], "same");
/// ```
pub type Conv2D = Conv<2>;

/// Convolution of volumes.
///
/// ```
/// use phalanx::layer::Layer;
/// use phalanx::layers::Conv3D;
///
/// let conv = Conv3D::new(8, (3, 3, 1)).padding("same");
/// assert_eq!(conv.config()["kernel_size"], serde_json::json!([3, 3, 1]));
/// ```
pub type Conv3D = Conv<3>;

/// Convolution over `N` spatial axes.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(default = "defaults", deny_unknown_fields)]
// The fields are Keras' arguments. serde cannot flatten groups of them and also reject unknown keys.
pub struct Conv<const N: usize> {
    filters: usize,
    kernel_size: Sizes<N>,
    strides: Sizes<N>,
    padding: ByName<Padding>,
    data_format: ByName<ImageDataFormat>,
    dilation_rate: Sizes<N>,
    groups: usize,
    activation: ByName<ActivationFn>,
    use_bias: bool,
    kernel_initializer: ByName<Initializer>,
    bias_initializer: ByName<Initializer>,
    kernel_regularizer: OptionalByName<Regularizer>,
    bias_regularizer: OptionalByName<Regularizer>,
    activity_regularizer: OptionalByName<Regularizer>,
    kernel_constraint: OptionalByName<Constraint>,
    bias_constraint: OptionalByName<Constraint>,
}

fn defaults<const N: usize>() -> Conv<N> {
    Conv::new(0, 0)
}

impl<const N: usize> Conv<N> {
    const NAME: &'static str = ["Conv1D", "Conv2D", "Conv3D"][N - 1];

    /// `filters` output channels from windows of `kernel_size`.
    pub fn new(filters: usize, kernel_size: impl Into<Sizes<N>>) -> Conv<N> {
        Conv {
            filters,
            kernel_size: kernel_size.into(),
            strides: 1.into(),
            padding: Padding::Valid.into(),
            data_format: ImageDataFormat::ChannelsLast.into(),
            dilation_rate: 1.into(),
            groups: 1,
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
        /// The strides of the windows; defaults to 1.
        strides: impl Into<Sizes<N>>,
        /// `valid` (the default) or `same`; `Conv1D` has `causal` too.
        padding: impl Into<ByName<Padding>>,
        /// `channels_last` (the default) or `channels_first`.
        data_format: impl Into<ByName<ImageDataFormat>>,
        /// The dilation of the windows; defaults to 1.
        dilation_rate: impl Into<Sizes<N>>,
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
        /// Regularizer of the layer's output.
        activity_regularizer: impl Into<OptionalByName<Regularizer>>,
    }
}

impl<const N: usize> Layer for Conv<N> {
    keras_class!(Conv::<N>::NAME);
    activity_penalty!();

    fn call(&self, cx: &mut LayerContext<'_>, inputs: &[NodeId]) -> Result<Outputs> {
        let activation = *self.activation.get()?;
        check_at_least_one(cx, "filters", self.filters)?;
        check_at_least_one(cx, "groups", self.groups)?;
        let x = spatial::<N>(cx, inputs, &self.data_format)?;
        for (what, n) in [("input's channels", x.channels), ("filters", self.filters)] {
            if !n.is_multiple_of(self.groups) {
                let expected = format!("a divisor of the {what}, {n}");
                return Err(cx.argument("groups", &expected, self.groups));
            }
        }
        let window = Window {
            key: "kernel_size",
            size: self.kernel_size,
            strides: self.strides,
            dilation: self.dilation_rate,
            padding: &self.padding,
            groups: self.groups,
        };
        window.check_strides(cx)?;
        if N > 1 {
            window.check_not_causal(cx)?;
        }
        let geom = window.geometry(cx, &x, self.filters)?;
        let kernel = WeightOptions {
            initializer: &self.kernel_initializer,
            regularizer: &self.kernel_regularizer,
            constraint: &self.kernel_constraint,
        };
        let dims = [&self.kernel_size.0[..], &[x.channels / self.groups, self.filters]].concat();
        let kernel = kernel.weight(cx, "kernel", &dims)?;
        let bias = WeightOptions {
            initializer: &self.bias_initializer,
            regularizer: &self.bias_regularizer,
            constraint: &self.bias_constraint,
        };
        let bias = bias.optional(cx, self.use_bias, "bias", &[self.filters])?;
        let y = convolve::<N>(cx, geom, x.x, kernel, bias)?;
        Ok(finish(cx, y, activation, &self.data_format)?.into())
    }
}
