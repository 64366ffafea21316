//! Transposed convolution: the derivative of a convolution with respect to its input, used forward.
//!
//! Input `(batch, spatial axes, channels)`, output `(batch, new spatial axes, filters)`. With `k` the size of a dilated
//! window, `valid` gives `(n - 1) · stride + max(k, stride)` positions and `same` gives `n · stride`. With
//! `output_padding` it is `(n - 1) · stride + k + output_padding` or `(n - 1) · stride + k mod 2 + output_padding`.
//! Weights: `kernel` `[kernel size, filters, channels]` and `bias` `[filters]`.

use super::spatial::{ImageDataFormat, Padding, Sizes, Spatial, finish, spatial};
use super::support::{WeightOptions, activity_penalty, check_at_least_one, check_countable};
use super::window::{Window, depth, last_two};
use crate::activations::ActivationFn;
use crate::by_name::{ByName, OptionalByName};
use crate::config::setters;
use crate::constraints::Constraint;
use crate::error::Result;
use crate::initializers::Initializer;
use crate::layer::{Layer, LayerContext, Outputs};
use crate::registry::keras_class;
use crate::regularizers::Regularizer;
use phalanx_graph::{ConvGeom, Depth, NodeId, Op};
use serde::{Deserialize, Serialize};

/// Transposed convolution of sequences.
///
/// ```
/// use phalanx::layer::Layer;
/// use phalanx::layers::Conv1DTranspose;
///
/// let conv = Conv1DTranspose::new(8, 3).strides(2).padding("same");
/// assert_eq!(conv.config()["strides"], serde_json::json!([2]));
/// ```
pub type Conv1DTranspose = ConvTranspose<1>;

/// Transposed convolution of images.
///
/// ```
/// use phalanx::layer::Layer;
/// use phalanx::layers::Conv2DTranspose;
///
/// let conv = Conv2DTranspose::new(8, 3).strides(2).output_padding(1);
/// assert_eq!(conv.config()["output_padding"], serde_json::json!([1, 1]));
/// ```
pub type Conv2DTranspose = ConvTranspose<2>;

/// Transposed convolution of volumes.
///
/// ```
/// use phalanx::layer::Layer;
/// use phalanx::layers::Conv3DTranspose;
///
/// let conv = Conv3DTranspose::new(8, 3).strides(2).padding("same");
/// assert_eq!(conv.config()["strides"], serde_json::json!([2, 2, 2]));
/// ```
pub type Conv3DTranspose = ConvTranspose<3>;

/// Transposed convolution over `N` spatial axes.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(default = "defaults", deny_unknown_fields)]
// The fields are Keras' arguments. serde cannot flatten groups of them and also reject unknown keys.
pub struct ConvTranspose<const N: usize> {
    filters: usize,
    kernel_size: Sizes<N>,
    strides: Sizes<N>,
    padding: ByName<Padding>,
    output_padding: Option<Sizes<N>>,
    data_format: ByName<ImageDataFormat>,
    dilation_rate: Sizes<N>,
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

fn defaults<const N: usize>() -> ConvTranspose<N> {
    ConvTranspose::new(0, 0)
}

impl<const N: usize> ConvTranspose<N> {
    const NAME: &'static str = ["Conv1DTranspose", "Conv2DTranspose", "Conv3DTranspose"][N - 1];

    /// `filters` output channels from windows of `kernel_size`.
    pub fn new(filters: usize, kernel_size: impl Into<Sizes<N>>) -> ConvTranspose<N> {
        ConvTranspose {
            filters,
            kernel_size: kernel_size.into(),
            strides: 1.into(),
            padding: Padding::Valid.into(),
            output_padding: None,
            data_format: ImageDataFormat::ChannelsLast.into(),
            dilation_rate: 1.into(),
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

    /// Positions that are added at the end of each axis; less than the strides. By default they follow from the padding.
    #[must_use]
    pub fn output_padding(mut self, output_padding: impl Into<Sizes<N>>) -> ConvTranspose<N> {
        self.output_padding = Some(output_padding.into());
        self
    }

    setters! {
        /// The distance of adjacent input positions in the output; defaults to 1.
        strides: impl Into<Sizes<N>>,
        /// `valid` (the default) or `same`.
        padding: impl Into<ByName<Padding>>,
        /// `channels_last` (the default) or `channels_first`.
        data_format: impl Into<ByName<ImageDataFormat>>,
        /// The dilation of the windows; defaults to 1.
        dilation_rate: impl Into<Sizes<N>>,
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

    /// The size of the output along an axis, and the zeros before it in the convolution that this one transposes.
    fn axis(&self, axis: usize, size: usize) -> Result<(Option<usize>, usize)> {
        let stride = self.strides.0[axis];
        let k = (self.kernel_size.0[axis] - 1) * self.dilation_rate.0[axis] + 1;
        let first = (size - 1).checked_mul(stride);
        let extra = self.output_padding.map(|sizes| sizes.0[axis]);
        let (end, pad) = match (*self.padding.get()?, extra) {
            (Padding::Same, None) => (stride, stride + k - 2),
            (Padding::Same, Some(extra)) => (k % 2 + extra, k + k % 2 + extra - 2),
            (_, extra) => (k + extra.unwrap_or(stride.saturating_sub(k)), 2 * (k - 1)),
        };
        let output = first.and_then(|n| n.checked_add(end));
        Ok((output, (k - 1).saturating_sub(pad.div_ceil(2))))
    }

    /// The geometry of the convolution that this one transposes, and the sizes of the output.
    fn geometry(&self, cx: &LayerContext<'_>, x: &Spatial<N>) -> Result<(ConvGeom, [usize; N])> {
        let (mut sizes, mut pad) = ([None; N], [0; N]);
        for axis in 0..N {
            (sizes[axis], pad[axis]) = self.axis(axis, x.sizes[axis])?;
        }
        let dims: Vec<Option<usize>> = sizes.into_iter().chain([Some(self.filters)]).collect();
        check_countable(cx, "strides", &dims)?;
        let sizes = sizes.map(Option::unwrap_or_default);
        if sizes.contains(&0) {
            let received = Sizes(sizes);
            return Err(cx.argument(
                "output_padding",
                "an output of 1 or more positions",
                received,
            ));
        }
        let [output, input] = [Sizes(sizes), Sizes(x.sizes)];
        let ([height, width], [in_height, in_width]) = (last_two(output), last_two(input));
        let deep = Depth {
            input: depth(output),
            output: depth(input),
            kernel: depth(self.kernel_size),
            stride: depth(self.strides),
            dilation: depth(self.dilation_rate),
            pad: if N == 3 { pad[0] } else { 0 },
        };
        let geom = ConvGeom {
            input: [height, width, self.filters],
            output: [in_height, in_width, x.channels],
            kernel: last_two(self.kernel_size),
            stride: last_two(self.strides),
            dilation: last_two(self.dilation_rate),
            pad: if N == 1 { [0, pad[0]] } else { [pad[N - 2], pad[N - 1]] },
            groups: 1,
            depth: deep,
        };
        Ok((geom, sizes))
    }
}

impl<const N: usize> Layer for ConvTranspose<N> {
    keras_class!(ConvTranspose::<N>::NAME);
    activity_penalty!();

    fn call(&self, cx: &mut LayerContext<'_>, inputs: &[NodeId]) -> Result<Outputs> {
        let activation = *self.activation.get()?;
        check_at_least_one(cx, "filters", self.filters)?;
        let x = spatial::<N>(cx, inputs, &self.data_format)?;
        let window = Window {
            key: "kernel_size",
            size: self.kernel_size,
            strides: self.strides,
            dilation: self.dilation_rate,
            padding: &self.padding,
            groups: 1,
        };
        window.check(cx)?;
        window.check_strides(cx)?;
        window.check_not_causal(cx)?;
        if let Some(extra) = self.output_padding
            && extra.0.iter().zip(self.strides.0).any(|(extra, stride)| *extra >= stride)
        {
            let expected = format!("less than the strides, {}", self.strides);
            return Err(cx.argument("output_padding", &expected, extra));
        }
        let (geom, sizes) = self.geometry(cx, &x)?;
        let kernel = WeightOptions {
            initializer: &self.kernel_initializer,
            regularizer: &self.kernel_regularizer,
            constraint: &self.kernel_constraint,
        };
        let dims = [&self.kernel_size.0[..], &[self.filters, x.channels]].concat();
        let kernel = kernel.weight(cx, "kernel", &dims)?;
        let bias = WeightOptions {
            initializer: &self.bias_initializer,
            regularizer: &self.bias_regularizer,
            constraint: &self.bias_constraint,
        };
        let bias = bias.optional(cx, self.use_bias, "bias", &[self.filters])?;
        let g = cx.graph();
        let x = g.reshape(x.x, &geom.output_dims())?;
        let kernel = g.reshape(kernel, &geom.kernel_dims())?;
        let mut y = g.push(Op::ConvGradInput(geom), &[x, kernel])?;
        if let Some(bias) = bias {
            y = g.add(y, bias)?;
        }
        Ok(finish(
            cx,
            Spatial { x: y, sizes, channels: self.filters },
            activation,
            &self.data_format,
        )?
        .into())
    }
}
