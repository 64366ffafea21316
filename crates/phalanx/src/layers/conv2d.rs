//! 2-D convolution: `y[i, j, f] = activation(Σ x[i·s + u·d, j·s + v·d, c] · kernel[u, v, c, f] + bias[f])`.
//!
//! Input `(batch, height, width, channels)`, output `(batch, new height, new width, filters)`, where
//! `valid` gives `(size - (kernel - 1) · dilation - 1) / stride + 1` positions, rounded down, and
//! `same` gives `size / stride`, rounded up. Weights: `kernel` `[h, w, channels / groups, filters]` and
//! `bias` `[filters]`.

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
#[serde(default = "blank", deny_unknown_fields)]
pub struct Conv2D {
    filters: usize,
    kernel_size: Pair,
    strides: Pair,
    padding: Choice<Padding>,
    data_format: DataFormat,
    dilation_rate: Pair,
    groups: usize,
    activation: Choice<ActivationFn>,
    use_bias: bool,
    kernel_initializer: Choice<Initializer>,
    bias_initializer: Choice<Initializer>,
    kernel_regularizer: Optional<Regularizer>,
    bias_regularizer: Optional<Regularizer>,
    activity_regularizer: Nothing,
    kernel_constraint: Optional<Constraint>,
    bias_constraint: Optional<Constraint>,
}

fn blank() -> Conv2D {
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
            kernel_regularizer: Optional::default(),
            bias_regularizer: Optional::default(),
            activity_regularizer: Nothing,
            kernel_constraint: Optional::default(),
            bias_constraint: Optional::default(),
        }
    }

    setters! {
        /// Steps between windows; 1 unless set.
        strides: impl Into<Pair>,
        /// `valid` (unless set) or `same`.
        padding: impl Into<Choice<Padding>>,
        /// Distance between the taps of a window; 1 unless set.
        dilation_rate: impl Into<Pair>,
        /// Channel groups convolved apart; must divide channels and filters.
        groups: usize,
        /// What is applied to the result; linear unless set.
        activation: impl Into<Choice<ActivationFn>>,
        /// Whether there is a bias.
        use_bias: bool,
        /// First values of the kernel; `glorot_uniform` unless set.
        kernel_initializer: impl Into<Choice<Initializer>>,
        /// First values of the bias; zeros unless set.
        bias_initializer: impl Into<Choice<Initializer>>,
        /// Penalty on the kernel.
        kernel_regularizer: impl Into<Optional<Regularizer>>,
        /// Penalty on the bias.
        bias_regularizer: impl Into<Optional<Regularizer>>,
        /// Projection of the kernel.
        kernel_constraint: impl Into<Optional<Constraint>>,
        /// Projection of the bias.
        bias_constraint: impl Into<Optional<Constraint>>,
    }
}

impl Layer for Conv2D {
    fn class_name(&self) -> &'static str {
        "Conv2D"
    }

    fn config(&self) -> Map<String, Value> {
        config::write(self)
    }

    fn call(&self, cx: &mut LayerContext<'_>, inputs: &[NodeId]) -> Result<NodeId> {
        let activation = self.activation.get()?;
        at_least_one(cx, "filters", self.filters)?;
        at_least_one(cx, "groups", self.groups)?;
        let (x, input) = image(cx, inputs)?;
        for (what, n) in [("input's channels", input[2]), ("filters", self.filters)] {
            if !n.is_multiple_of(self.groups) {
                let expected = format!("a divisor of the {what}, {n}");
                return Err(cx.argument("groups", &expected, self.groups));
            }
        }
        // The kernels could do both; Keras refuses, and files are to load there too.
        if self.strides != 1.into() && self.dilation_rate != 1.into() {
            let received = format!("{} with dilation_rate {}", self.strides, self.dilation_rate);
            return Err(cx.argument("strides", "1 where dilation_rate is not", received));
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
        let kernel = Terms {
            initializer: &self.kernel_initializer,
            regularizer: &self.kernel_regularizer,
            constraint: &self.kernel_constraint,
        };
        let mut operands = vec![x, kernel.weight(cx, "kernel", &geom.kernel_dims())?];
        if self.use_bias {
            let bias = Terms {
                initializer: &self.bias_initializer,
                regularizer: &self.bias_regularizer,
                constraint: &self.bias_constraint,
            };
            operands.push(bias.weight(cx, "bias", &[self.filters])?);
        }
        let epilogue = Epilogue { bias: self.use_bias, relu: false };
        let y = cx.graph().push(Op::Conv(geom, epilogue), &operands)?;
        activation.apply(cx.graph(), y)
    }
}
