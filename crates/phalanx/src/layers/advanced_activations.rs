//! Activations with arguments. The output has the shape of the input.

use super::support::{check_finite, check_not_negative, row_axis, single, swap_with_last};
use crate::activations::{leaky_relu, relu};
use crate::config::setters;
use crate::error::Result;
use crate::layer::{Layer, LayerContext};
use crate::registry::keras_class;
use phalanx_graph::{NodeId, Op};
use serde::{Deserialize, Serialize};

/// `max_value` from `max_value` up, `x` above `threshold`, `negative_slope · (x - threshold)` below.
///
/// ```
/// use phalanx::layer::Layer;
/// use phalanx::layers::ReLU;
///
/// let relu6 = ReLU::new().max_value(6.0);
/// assert_eq!(relu6.config()["max_value"], 6.0);
/// ```
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct ReLU {
    max_value: Option<f64>,
    negative_slope: f64,
    threshold: f64,
}

impl ReLU {
    /// `max(x, 0)`.
    pub fn new() -> ReLU {
        ReLU::default()
    }

    setters! {
        /// The maximum result; no limit by default.
        max_value: f64,
        /// Slope below the threshold; defaults to 0.
        negative_slope: f64,
        /// The threshold above which `x` passes; defaults to 0.
        threshold: f64,
    }
}

impl Layer for ReLU {
    keras_class!("ReLU");

    fn call(&self, cx: &mut LayerContext<'_>, inputs: &[NodeId]) -> Result<NodeId> {
        if let Some(max_value) = self.max_value {
            check_not_negative(cx, "max_value", max_value)?;
        }
        check_not_negative(cx, "negative_slope", self.negative_slope)?;
        check_not_negative(cx, "threshold", self.threshold)?;
        let x = single(cx, inputs)?;
        relu(cx.graph(), x, self.max_value, self.negative_slope, self.threshold)
    }
}

/// `x` above zero, `negative_slope · x` below.
///
/// ```
/// use phalanx::layer::Layer;
/// use phalanx::layers::LeakyReLU;
///
/// assert_eq!(LeakyReLU::new().config()["negative_slope"], 0.3);
/// ```
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct LeakyReLU {
    #[serde(alias = "alpha")]
    negative_slope: f64,
}

impl Default for LeakyReLU {
    fn default() -> LeakyReLU {
        LeakyReLU { negative_slope: 0.3 }
    }
}

impl LeakyReLU {
    /// Slope 0.3.
    pub fn new() -> LeakyReLU {
        LeakyReLU::default()
    }

    setters! {
        /// Slope below zero; defaults to 0.3.
        negative_slope: f64,
    }
}

impl Layer for LeakyReLU {
    keras_class!("LeakyReLU");

    fn call(&self, cx: &mut LayerContext<'_>, inputs: &[NodeId]) -> Result<NodeId> {
        check_finite(cx, "negative_slope", self.negative_slope)?;
        let x = single(cx, inputs)?;
        leaky_relu(cx.graph(), x, self.negative_slope)
    }
}

/// `eˣ / Σ eˣ` over `axis`.
///
/// ```
/// use phalanx::layer::Layer;
/// use phalanx::layers::Softmax;
///
/// assert_eq!(Softmax::new().config()["axis"], -1);
/// ```
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Softmax {
    axis: i64,
}

impl Default for Softmax {
    fn default() -> Softmax {
        Softmax { axis: -1 }
    }
}

impl Softmax {
    /// Over the last axis.
    pub fn new() -> Softmax {
        Softmax::default()
    }

    setters! {
        /// The axis that sums to one; defaults to the last.
        axis: i64,
    }
}

impl Layer for Softmax {
    keras_class!("Softmax");

    fn call(&self, cx: &mut LayerContext<'_>, inputs: &[NodeId]) -> Result<NodeId> {
        let x = single(cx, inputs)?;
        let axis = row_axis(cx, x, self.axis)?;
        let x = swap_with_last(cx, x, axis)?;
        let y = cx.graph().push(Op::Softmax, &[x])?;
        swap_with_last(cx, y, axis)
    }
}
