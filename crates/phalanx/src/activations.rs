//! Activation functions with Keras' names.

use crate::by_name::{Named, variant_by_serde_name};
use crate::error::Result;
use phalanx_graph::ops::{Binary, Unary};
use phalanx_graph::{Graph, NodeId, Op};
use serde::{Deserialize, Serialize};

/// Slope of [`ActivationFn::LeakyRelu`]; the layer `LeakyReLU` has another default.
const LEAKY_SLOPE: f64 = 0.2;
const SELU_SCALE: f64 = 1.0507009873554805;
const SELU_ALPHA: f64 = 1.6732632423543772;

/// A function of one tensor that keeps its shape.
///
/// ```
/// use phalanx::activations::ActivationFn;
/// use phalanx::by_name::ByName;
///
/// let relu: ByName<ActivationFn> = "relu".into();
/// assert_eq!(relu.get().unwrap(), &ActivationFn::Relu);
///
/// let typo: ByName<ActivationFn> = "relo".into();
/// assert!(typo.get().unwrap_err().to_string().starts_with("unknown activation 'relo'"));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ActivationFn {
    /// `x`
    Linear,
    /// `max(x, 0)`
    Relu,
    /// `min(max(x, 0), 6)`
    Relu6,
    /// `x` above zero, `0.2 x` below
    LeakyRelu,
    /// `x` above zero, `eˣ - 1` below
    Elu,
    /// `1.0507 x` above zero, `1.0507 · 1.6733 (eˣ - 1)` below
    Selu,
    /// `x Φ(x)` with the normal distribution's `Φ`, exactly
    Gelu,
    /// `1 / (1 + e⁻ˣ)`
    Sigmoid,
    /// `relu6(x + 3) / 6`
    HardSigmoid,
    /// `tanh x`
    Tanh,
    /// `ln(1 + eˣ)`
    Softplus,
    /// `x / (1 + |x|)`
    Softsign,
    /// `x sigmoid(x)`, also called `swish`
    #[serde(alias = "swish")]
    Silu,
    /// `eˣ`
    Exponential,
    /// `eˣ / Σ eˣ` over the last axis
    Softmax,
    /// `ln softmax(x)` over the last axis
    LogSoftmax,
}

impl Named for ActivationFn {
    const KIND: &'static str = "activation";
    const NAMES: &'static [&'static str] = &[
        "linear",
        "relu",
        "relu6",
        "leaky_relu",
        "elu",
        "selu",
        "gelu",
        "sigmoid",
        "hard_sigmoid",
        "tanh",
        "softplus",
        "softsign",
        "silu",
        "swish",
        "exponential",
        "softmax",
        "log_softmax",
    ];

    fn from_name(name: &str) -> Option<ActivationFn> {
        variant_by_serde_name(name)
    }
}

impl ActivationFn {
    /// Whether every element of the result depends on one element of the input.
    pub(crate) fn is_elementwise(self) -> bool {
        !matches!(self, ActivationFn::Softmax | ActivationFn::LogSoftmax)
    }

    /// Appends the function to the graph; `linear` appends nothing.
    pub fn apply(self, g: &mut Graph, x: NodeId) -> Result<NodeId> {
        Ok(match self {
            ActivationFn::Linear => x,
            ActivationFn::Relu => g.relu(x)?,
            ActivationFn::Relu6 => relu6(g, x)?,
            ActivationFn::LeakyRelu => leaky_relu(g, x, LEAKY_SLOPE)?,
            ActivationFn::Elu => elu(g, x, 1.0)?,
            ActivationFn::Selu => {
                let y = elu(g, x, SELU_ALPHA)?;
                g.scale(y, SELU_SCALE)?
            }
            ActivationFn::Gelu => {
                let t = g.scale(x, std::f64::consts::FRAC_1_SQRT_2)?;
                let t = g.unary(Unary::Erf, t)?;
                let t = g.offset(t, 1.0)?;
                let half = g.scale(x, 0.5)?;
                g.mul(half, t)?
            }
            ActivationFn::Sigmoid => g.unary(Unary::Sigmoid, x)?,
            ActivationFn::HardSigmoid => {
                let t = g.offset(x, 3.0)?;
                let t = relu6(g, t)?;
                g.scale(t, 1.0 / 6.0)?
            }
            ActivationFn::Tanh => g.unary(Unary::Tanh, x)?,
            ActivationFn::Softplus => softplus(g, x)?,
            ActivationFn::Softsign => {
                let a = g.unary(Unary::Abs, x)?;
                let d = g.offset(a, 1.0)?;
                g.div(x, d)?
            }
            ActivationFn::Silu => {
                let s = g.unary(Unary::Sigmoid, x)?;
                g.mul(x, s)?
            }
            ActivationFn::Exponential => g.unary(Unary::Exp, x)?,
            ActivationFn::Softmax => g.push(Op::Softmax, &[x])?,
            ActivationFn::LogSoftmax => g.push(Op::LogSoftmax, &[x])?,
        })
    }
}

fn relu6(g: &mut Graph, x: NodeId) -> Result<NodeId> {
    let y = g.relu(x)?;
    let six = g.scalar(6.0);
    Ok(g.binary(Binary::Min, y, six)?)
}

/// `x` from zero up, `slope · x` below.
pub(crate) fn leaky_relu(g: &mut Graph, x: NodeId, slope: f64) -> Result<NodeId> {
    let zero = g.scalar(0.0);
    let positive = g.binary(Binary::Ge, x, zero)?;
    let sloped = g.scale(x, slope)?;
    Ok(g.select(positive, x, sloped)?)
}

/// `x` above zero, `alpha · (eˣ - 1)` below. The input of the exponential is never positive, so an overflow in
/// the unused branch cannot spoil the derivative.
pub(crate) fn elu(g: &mut Graph, x: NodeId, alpha: f64) -> Result<NodeId> {
    let zero = g.scalar(0.0);
    let positive = g.binary(Binary::Gt, x, zero)?;
    let safe = g.select(positive, zero, x)?;
    let e = g.unary(Unary::Expm1, safe)?;
    let e = if alpha == 1.0 { e } else { g.scale(e, alpha)? };
    Ok(g.select(positive, x, e)?)
}

/// `max(x, 0) + ln(1 + e^-|x|)`: no overflow, and at zero the tie of `max` makes the derivative ½.
fn softplus(g: &mut Graph, x: NodeId) -> Result<NodeId> {
    let zero = g.scalar(0.0);
    let m = g.binary(Binary::Max, x, zero)?;
    let a = g.unary(Unary::Abs, x)?;
    let n = g.neg(a)?;
    let e = g.unary(Unary::Exp, n)?;
    let l = g.unary(Unary::Log1p, e)?;
    Ok(g.add(m, l)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_name_is_known_and_printed_alike() {
        for name in ActivationFn::NAMES {
            let f = ActivationFn::from_name(name).unwrap_or_else(|| panic!("{name} is unknown"));
            let printed = serde_json::to_value(f).unwrap();
            assert_eq!(printed, if *name == "swish" { "silu" } else { name });
        }
    }
}
