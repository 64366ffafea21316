//! Depthwise 2-D convolution: every channel has its own `depth_multiplier` kernels.
//!
//! Input `(batch, height, width, channels)`, output `(batch, new height, new width, channels ·
//! depth_multiplier)`; output channel `c · depth_multiplier + m` comes from channel `c`. Weights:
//! `kernel` `[h, w, channels, depth_multiplier]` and `bias` `[channels · depth_multiplier]`.

use super::support::{
    DataFormat, Nothing, Padding, Pair, Terms, Window, at_least_one, image, setters,
};
use crate::activations::ActivationFn;
use crate::choice::{Choice, Optional};
use crate::config;
use crate::constraints::Constraint;
use crate::error::Result;
use crate::initializers::Initializer;
use crate::layer::{Layer, LayerContext};
use crate::regularizers::Regularizer;
use phalanx_graph::ops::Epilogue;
use phalanx_graph::{NodeId, Op};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

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
#[serde(default = "blank", deny_unknown_fields)]
pub struct DepthwiseConv2D {
    kernel_size: Pair,
    strides: Pair,
    padding: Choice<Padding>,
    depth_multiplier: usize,
    data_format: DataFormat,
    dilation_rate: Pair,
    activation: Choice<ActivationFn>,
    use_bias: bool,
    depthwise_initializer: Choice<Initializer>,
    bias_initializer: Choice<Initializer>,
    depthwise_regularizer: Optional<Regularizer>,
    bias_regularizer: Optional<Regularizer>,
    activity_regularizer: Nothing,
    depthwise_constraint: Optional<Constraint>,
    bias_constraint: Optional<Constraint>,
}

fn blank() -> DepthwiseConv2D {
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
            depthwise_regularizer: Optional::default(),
            bias_regularizer: Optional::default(),
            activity_regularizer: Nothing,
            depthwise_constraint: Optional::default(),
            bias_constraint: Optional::default(),
        }
    }

    setters! {
        /// Steps between windows; 1 unless set.
        strides: impl Into<Pair>,
        /// `valid` (unless set) or `same`.
        padding: impl Into<Choice<Padding>>,
        /// Kernels per channel; 1 unless set.
        depth_multiplier: usize,
        /// Distance between the taps of a window; 1 unless set.
        dilation_rate: impl Into<Pair>,
        /// What is applied to the result; linear unless set.
        activation: impl Into<Choice<ActivationFn>>,
        /// Whether there is a bias.
        use_bias: bool,
        /// First values of the kernel; `glorot_uniform` unless set.
        depthwise_initializer: impl Into<Choice<Initializer>>,
        /// First values of the bias; zeros unless set.
        bias_initializer: impl Into<Choice<Initializer>>,
        /// Penalty on the kernel.
        depthwise_regularizer: impl Into<Optional<Regularizer>>,
        /// Penalty on the bias.
        bias_regularizer: impl Into<Optional<Regularizer>>,
        /// Projection of the kernel.
        depthwise_constraint: impl Into<Optional<Constraint>>,
        /// Projection of the bias.
        bias_constraint: impl Into<Optional<Constraint>>,
    }
}

impl Layer for DepthwiseConv2D {
    fn class_name(&self) -> &'static str {
        "DepthwiseConv2D"
    }

    fn config(&self) -> Map<String, Value> {
        config::write(self)
    }

    fn call(&self, cx: &mut LayerContext<'_>, inputs: &[NodeId]) -> Result<NodeId> {
        let activation = self.activation.get()?;
        at_least_one(cx, "depth_multiplier", self.depth_multiplier)?;
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
        let kernel = Terms {
            initializer: &self.depthwise_initializer,
            regularizer: &self.depthwise_regularizer,
            constraint: &self.depthwise_constraint,
        };
        let [h, w, ..] = geom.kernel_dims();
        let kernel = kernel.weight(cx, "kernel", &[h, w, channels, self.depth_multiplier])?;
        // A convolution with one group per channel wants the same numbers as [h, w, 1, filters].
        let mut operands = vec![x, cx.graph().reshape(kernel, &geom.kernel_dims())?];
        if self.use_bias {
            let bias = Terms {
                initializer: &self.bias_initializer,
                regularizer: &self.bias_regularizer,
                constraint: &self.bias_constraint,
            };
            operands.push(bias.weight(cx, "bias", &[filters])?);
        }
        let epilogue = Epilogue { bias: self.use_bias, relu: false };
        let y = cx.graph().push(Op::Conv(geom, epilogue), &operands)?;
        activation.apply(cx.graph(), y)
    }
}
