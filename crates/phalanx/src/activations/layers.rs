//! Layers in place of activation functions.

use super::{elu, leaky_relu, relu};
use crate::error::{Error, Result};
use phalanx_graph::{Graph, NodeId, Op};
use serde::{Deserialize, Serialize};

/// A layer that Keras accepts in place of a function, for its arguments: `Dense(3, activation=LeakyReLU(0.1))`.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "class_name", content = "config", deny_unknown_fields)]
pub enum ActivationLayer {
    /// `x` above zero, `negative_slope · x` below
    LeakyReLU {
        /// Slope below zero.
        #[serde(default = "layer_slope", alias = "alpha")]
        negative_slope: f64,
    },
    /// `max_value` from `max_value` up, `x` above `threshold`, `negative_slope · (x - threshold)` below
    ReLU {
        /// The maximum result.
        #[serde(default)]
        max_value: Option<f64>,
        /// Slope below the threshold.
        #[serde(default)]
        negative_slope: f64,
        /// The threshold above which `x` passes.
        #[serde(default)]
        threshold: f64,
    },
    /// `x` above zero, `alpha · (eˣ - 1)` below
    ELU {
        /// The distance of the lower limit from zero.
        #[serde(default = "layer_alpha")]
        alpha: f64,
    },
    /// `eˣ / Σ eˣ` over an axis
    Softmax {
        /// The axis, which counts the batch as 0.
        #[serde(default = "layer_axis")]
        axis: i64,
    },
}

fn layer_slope() -> f64 {
    0.3
}

fn layer_alpha() -> f64 {
    1.0
}

fn layer_axis() -> i64 {
    -1
}

impl ActivationLayer {
    pub(super) fn apply(self, g: &mut Graph, x: NodeId) -> Result<NodeId> {
        match self {
            ActivationLayer::LeakyReLU { negative_slope } => leaky_relu(g, x, negative_slope),
            ActivationLayer::ReLU { max_value, negative_slope, threshold } => {
                relu(g, x, max_value, negative_slope, threshold)
            }
            ActivationLayer::ELU { alpha } => elu(g, x, alpha),
            ActivationLayer::Softmax { axis } => softmax_over(g, x, axis),
        }
    }
}

/// The softmax over an axis of the batch.
fn softmax_over(g: &mut Graph, x: NodeId, axis: i64) -> Result<NodeId> {
    let rank = g.ty(x).dims.len();
    let from_start = if axis < 0 { axis + rank as i64 + 1 } else { axis };
    let axis =
        usize::try_from(from_start - 1).ok().filter(|axis| *axis < rank).ok_or_else(|| {
            let expected = format!("1 to {rank}, or -1 to -{rank}");
            Error::argument("activation 'Softmax'", "axis", expected, axis)
        })?;
    if axis + 1 == rank {
        return Ok(g.push(Op::Softmax, &[x])?);
    }
    // The same permutation moves the axis to the end and back.
    let mut perm: Vec<usize> = (0..rank).collect();
    perm.swap(axis, rank - 1);
    let last = g.push(Op::Transpose { perm: perm.clone() }, &[x])?;
    let last = g.push(Op::Softmax, &[last])?;
    Ok(g.push(Op::Transpose { perm }, &[last])?)
}
