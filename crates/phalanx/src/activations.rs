//! Activation functions with Keras' names.

mod layers;

pub use layers::ActivationLayer;

use crate::by_name::{Named, variant_by_serde_name};
use crate::custom::{self, CustomActivation};
use crate::error::{Error, Result};
use phalanx_graph::functions::index::{cumulative, sort};
use phalanx_graph::functions::layout::{flip, iota};
use phalanx_graph::ops::{Binary, Unary};
use phalanx_graph::{Graph, NodeId, Op};
use serde::{Deserialize, Deserializer, Serialize, Serializer, de, ser};
use serde_json::{Map, Value};

/// Slope of [`ActivationFn::LeakyRelu`]; the layer `LeakyReLU` has another default.
const LEAKY_SLOPE: f64 = 0.2;
const SELU_SCALE: f64 = 1.0507009873554805;
const SELU_ALPHA: f64 = 1.6732632423543772;
/// Half of the interval around zero that `hard_shrink` and `soft_shrink` map to zero.
const SHRINK_THRESHOLD: f64 = 0.5;

/// A function of one tensor. All but `glu` keep its shape.
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
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(remote = "Self", rename_all = "snake_case")]
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
    /// `max(x, 0) + e^min(x, 0) - 1`
    Celu,
    /// `1.0507 x` above zero, `1.0507 · 1.6733 (eˣ - 1)` below
    Selu,
    /// `x Φ(x)` with the normal distribution's `Φ`, exactly
    Gelu,
    /// `a sigmoid(b)` for the halves `a` and `b` of the last axis, which becomes half as long
    Glu,
    /// `1 / (1 + e⁻ˣ)`
    Sigmoid,
    /// `ln sigmoid(x)`
    LogSigmoid,
    /// `min(max(x + 1, 0), 2) / 2`
    SparseSigmoid,
    /// `relu6(x + 3) / 6`
    HardSigmoid,
    /// `tanh x`
    Tanh,
    /// `min(max(x, -1), 1)`
    HardTanh,
    /// `x - tanh x`
    TanhShrink,
    /// `x` where `|x| > 0.5`, else 0
    HardShrink,
    /// `x - 0.5` above 0.5, `x + 0.5` below -0.5, else 0
    SoftShrink,
    /// `ln(1 + eˣ)`
    Softplus,
    /// `(x + √(x² + 4)) / 2`
    Squareplus,
    /// 0 up to -1, `(x + 1)² / 4` up to 1, `x` above
    SparsePlus,
    /// `x / (1 + |x|)`
    Softsign,
    /// `x sigmoid(x)`, also called `swish`
    #[serde(alias = "swish")]
    Silu,
    /// `x relu6(x + 3) / 6`, also called `hard_swish`
    #[serde(alias = "hard_swish")]
    HardSilu,
    /// `x tanh(softplus(x))`
    Mish,
    /// `eˣ`
    Exponential,
    /// `eˣ / Σ eˣ` over the last axis
    Softmax,
    /// `ln softmax(x)` over the last axis
    LogSoftmax,
    /// `max(x - t, 0)` over the last axis, with the limit `t` that Keras computes
    Sparsemax,
    /// A layer that is used as a function
    #[serde(skip)]
    Layer(ActivationLayer),
    /// A function that [`register_activation`](crate::custom::register_activation) has registered
    #[serde(skip)]
    Custom(CustomActivation),
}

impl Serialize for ActivationFn {
    fn serialize<S: Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
        if let ActivationFn::Custom(function) = self {
            return custom::function_object(function.name()).serialize(s);
        }
        let ActivationFn::Layer(layer) = self else { return ActivationFn::serialize(self, s) };
        let mut object = serde_json::to_value(layer).map_err(ser::Error::custom)?;
        if let Value::Object(map) = &mut object {
            map.insert("module".into(), "keras.layers".into());
            map.insert("registered_name".into(), Value::Null);
        }
        object.serialize(s)
    }
}

/// Reads a name, a layer, or a function object, `{"class_name": "function", "config": name}`.
impl<'de> Deserialize<'de> for ActivationFn {
    fn deserialize<D: Deserializer<'de>>(d: D) -> Result<ActivationFn, D::Error> {
        let value = Value::deserialize(d)?;
        let Value::Object(mut object) = value else { return read_name(value) };
        let config = object.remove("config").unwrap_or_default();
        let class = object.remove("class_name").unwrap_or_default();
        if class == "function" {
            return read_name(config);
        }
        if class == "Activation" {
            let function = config.get("activation").cloned().unwrap_or_default();
            return <ActivationFn as Deserialize>::deserialize(function).map_err(de::Error::custom);
        }
        let mut config = if let Value::Object(config) = config { config } else { Map::new() };
        for key in ["name", "trainable", "dtype"] {
            config.remove(key);
        }
        let layer = serde_json::json!({ "class_name": class, "config": config });
        ActivationLayer::deserialize(layer).map(ActivationFn::Layer).map_err(de::Error::custom)
    }
}

/// Reads the name of a function.
fn read_name<E: de::Error>(name: Value) -> Result<ActivationFn, E> {
    if let Some(function) = name.as_str().and_then(custom::activation) {
        return Ok(ActivationFn::Custom(function));
    }
    if let Some(name) = name.as_str().filter(|name| name.contains('>')) {
        let short = custom::short_class(name);
        return Err(E::custom(format!(
            "the function '{name}' is not registered: write it in Rust as `{short}` and call \
             phalanx::custom::register_activation(\"{name}\", {short}) before loading"
        )));
    }
    ActivationFn::deserialize(name).map_err(E::custom)
}

impl Named for ActivationFn {
    const KIND: &'static str = "activation";
    const NAMES: &'static [&'static str] = &[
        "linear",
        "relu",
        "relu6",
        "leaky_relu",
        "elu",
        "celu",
        "selu",
        "gelu",
        "glu",
        "sigmoid",
        "log_sigmoid",
        "sparse_sigmoid",
        "hard_sigmoid",
        "tanh",
        "hard_tanh",
        "tanh_shrink",
        "hard_shrink",
        "soft_shrink",
        "softplus",
        "squareplus",
        "sparse_plus",
        "softsign",
        "silu",
        "swish",
        "hard_silu",
        "hard_swish",
        "mish",
        "exponential",
        "softmax",
        "log_softmax",
        "sparsemax",
    ];

    fn from_name(name: &str) -> Option<ActivationFn> {
        let function = custom::activation(name).map(ActivationFn::Custom);
        function.or_else(|| variant_by_serde_name(name))
    }
}

impl ActivationFn {
    /// Whether every element of the result depends on one element of the input.
    pub(crate) fn is_elementwise(self) -> bool {
        use ActivationFn::{Custom, Layer, LogSoftmax, Softmax, Sparsemax};
        let over_an_axis = matches!(self, Layer(ActivationLayer::Softmax { .. }));
        !over_an_axis && !matches!(self, Softmax | LogSoftmax | Sparsemax | Custom(_))
    }

    /// Appends the function to the graph; `linear` appends nothing.
    pub fn apply(self, g: &mut Graph, x: NodeId) -> Result<NodeId> {
        Ok(match self {
            ActivationFn::Linear => x,
            ActivationFn::Relu => g.relu(x)?,
            ActivationFn::Relu6 => relu6(g, x)?,
            ActivationFn::LeakyRelu => leaky_relu(g, x, LEAKY_SLOPE)?,
            ActivationFn::Elu => elu(g, x, 1.0)?,
            ActivationFn::Celu => celu(g, x, 1.0)?,
            ActivationFn::Selu => {
                let y = elu(g, x, SELU_ALPHA)?;
                g.scale(y, SELU_SCALE)?
            }
            ActivationFn::Gelu => gelu(g, x)?,
            ActivationFn::Glu => glu(g, x, last_axis(g, x, "glu")?)?,
            ActivationFn::Sigmoid => g.unary(Unary::Sigmoid, x)?,
            ActivationFn::LogSigmoid => {
                let n = g.neg(x)?;
                let y = softplus(g, n)?;
                g.neg(y)?
            }
            ActivationFn::SparseSigmoid => {
                let t = g.offset(x, 1.0)?;
                let t = g.clamp(t, 0.0, 2.0)?;
                g.scale(t, 0.5)?
            }
            ActivationFn::HardSigmoid => hard_sigmoid(g, x)?,
            ActivationFn::Tanh => g.unary(Unary::Tanh, x)?,
            ActivationFn::HardTanh => hard_tanh(g, x)?,
            ActivationFn::TanhShrink => {
                let t = g.unary(Unary::Tanh, x)?;
                g.sub(x, t)?
            }
            ActivationFn::HardShrink => hard_shrink(g, x, SHRINK_THRESHOLD)?,
            ActivationFn::SoftShrink => soft_shrink(g, x, SHRINK_THRESHOLD)?,
            ActivationFn::Softplus => softplus(g, x)?,
            ActivationFn::Squareplus => squareplus(g, x, 4.0)?,
            ActivationFn::SparsePlus => sparse_plus(g, x)?,
            ActivationFn::Softsign => {
                let a = g.unary(Unary::Abs, x)?;
                let d = g.offset(a, 1.0)?;
                g.div(x, d)?
            }
            ActivationFn::Silu => {
                let s = g.unary(Unary::Sigmoid, x)?;
                g.mul(x, s)?
            }
            ActivationFn::HardSilu => {
                let s = hard_sigmoid(g, x)?;
                g.mul(x, s)?
            }
            ActivationFn::Mish => {
                let t = softplus(g, x)?;
                let t = g.unary(Unary::Tanh, t)?;
                g.mul(x, t)?
            }
            ActivationFn::Exponential => g.unary(Unary::Exp, x)?,
            ActivationFn::Softmax => g.push(Op::Softmax, &[x])?,
            ActivationFn::LogSoftmax => g.push(Op::LogSoftmax, &[x])?,
            ActivationFn::Sparsemax => sparsemax(g, x, last_axis(g, x, "sparsemax")?)?,
            ActivationFn::Layer(layer) => layer.apply(g, x)?,
            ActivationFn::Custom(function) => function.apply(g, x)?,
        })
    }
}

fn gelu(g: &mut Graph, x: NodeId) -> Result<NodeId> {
    let t = g.scale(x, std::f64::consts::FRAC_1_SQRT_2)?;
    let t = g.unary(Unary::Erf, t)?;
    let t = g.offset(t, 1.0)?;
    let half = g.scale(x, 0.5)?;
    Ok(g.mul(half, t)?)
}

/// The last axis of a function's input.
fn last_axis(g: &Graph, x: NodeId, function: &str) -> Result<usize> {
    g.ty(x).dims.len().checked_sub(1).ok_or_else(|| {
        let owner = format!("activation '{function}'");
        Error::argument(owner, "input", "at least one axis", g.ty(x).shape_text())
    })
}

/// `a sigmoid(b)` for the halves `a` and `b` of an axis.
pub(crate) fn glu(g: &mut Graph, x: NodeId, axis: usize) -> Result<NodeId> {
    let len = match g.ty(x).dims.get(axis) {
        Some(len) if len.is_multiple_of(2) => len / 2,
        _ => {
            let (expected, received) = ("an axis of even length", g.ty(x).shape_text());
            return Err(Error::argument("activation 'glu'", "input", expected, received));
        }
    };
    let a = g.push(Op::Slice { axis, start: 0, len }, &[x])?;
    let b = g.push(Op::Slice { axis, start: len, len }, &[x])?;
    let gate = g.unary(Unary::Sigmoid, b)?;
    Ok(g.mul(a, gate)?)
}

fn hard_sigmoid(g: &mut Graph, x: NodeId) -> Result<NodeId> {
    let t = g.offset(x, 3.0)?;
    let t = relu6(g, t)?;
    Ok(g.scale(t, 1.0 / 6.0)?)
}

fn hard_tanh(g: &mut Graph, x: NodeId) -> Result<NodeId> {
    let (low, high) = (g.scalar(-1.0), g.scalar(1.0));
    let below = g.binary(Binary::Gt, low, x)?;
    let y = g.select(below, low, x)?;
    let above = g.binary(Binary::Gt, x, high)?;
    Ok(g.select(above, high, y)?)
}

/// `x` farther than the threshold from zero, else 0.
pub(crate) fn hard_shrink(g: &mut Graph, x: NodeId, threshold: f64) -> Result<NodeId> {
    let (zero, threshold) = (g.scalar(0.0), g.scalar(threshold));
    let size = g.unary(Unary::Abs, x)?;
    let far = g.binary(Binary::Gt, size, threshold)?;
    Ok(g.select(far, x, zero)?)
}

/// `x` moved towards zero by the threshold, and not beyond.
pub(crate) fn soft_shrink(g: &mut Graph, x: NodeId, threshold: f64) -> Result<NodeId> {
    let (low, zero, high) = (g.scalar(-threshold), g.scalar(0.0), g.scalar(threshold));
    let (below, above) = (g.binary(Binary::Gt, low, x)?, g.binary(Binary::Gt, x, high)?);
    let (down, up) = (g.sub(x, high)?, g.sub(x, low)?);
    let y = g.select(below, up, zero)?;
    Ok(g.select(above, down, y)?)
}

/// `(x + √(x² + b)) / 2`
pub(crate) fn squareplus(g: &mut Graph, x: NodeId, b: f64) -> Result<NodeId> {
    let t = g.unary(Unary::Square, x)?;
    let t = g.offset(t, b)?;
    let root = g.unary(Unary::Sqrt, t)?;
    let sum = g.add(x, root)?;
    Ok(g.scale(sum, 0.5)?)
}

fn sparse_plus(g: &mut Graph, x: NodeId) -> Result<NodeId> {
    let (low, zero, high) = (g.scalar(-1.0), g.scalar(0.0), g.scalar(1.0));
    let t = g.offset(x, 1.0)?;
    let t = g.unary(Unary::Square, t)?;
    let curve = g.scale(t, 0.25)?;
    let above = g.binary(Binary::Ge, x, high)?;
    let y = g.select(above, x, curve)?;
    let below = g.binary(Binary::Ge, low, x)?;
    Ok(g.select(below, zero, y)?)
}

fn relu6(g: &mut Graph, x: NodeId) -> Result<NodeId> {
    let y = g.relu(x)?;
    let six = g.scalar(6.0);
    Ok(g.binary(Binary::Min, y, six)?)
}

/// `max_value` from `max_value` up, `x` above `threshold`, `negative_slope · (x - threshold)` below.
pub(crate) fn relu(
    g: &mut Graph,
    x: NodeId,
    max_value: Option<f64>,
    negative_slope: f64,
    threshold: f64,
) -> Result<NodeId> {
    let mut y = if threshold == 0.0 {
        g.relu(x)?
    } else {
        let threshold = g.scalar(threshold);
        let passes = g.binary(Binary::Gt, x, threshold)?;
        g.mul(x, passes)?
    };
    if let Some(max_value) = max_value {
        let max_value = g.scalar(max_value);
        y = g.binary(Binary::Min, y, max_value)?;
    }
    if negative_slope != 0.0 {
        let threshold = g.scalar(threshold);
        let below = g.sub(threshold, x)?;
        let below = g.relu(below)?;
        let below = g.scale(below, negative_slope)?;
        y = g.sub(y, below)?;
    }
    Ok(y)
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

/// `max(x, 0) + alpha · (e^(min(x, 0) / alpha) - 1)`.
pub(crate) fn celu(g: &mut Graph, x: NodeId, alpha: f64) -> Result<NodeId> {
    let zero = g.scalar(0.0);
    let positive = g.binary(Binary::Gt, x, zero)?;
    let safe = g.select(positive, zero, x)?;
    let e = g.scale(safe, 1.0 / alpha)?;
    let e = g.unary(Unary::Expm1, e)?;
    let e = g.scale(e, alpha)?;
    Ok(g.select(positive, x, e)?)
}

/// Sparsemax along an axis as Keras computes it: the limit adds the cumulative sums of the whole support instead of
/// taking the last one.
pub(crate) fn sparsemax(g: &mut Graph, x: NodeId, axis: usize) -> Result<NodeId> {
    let n = g.ty(x).dims[axis];
    let mut aligned = vec![1; g.ty(x).dims.len()];
    aligned[axis] = n;
    let ascending = sort(g, x, axis)?;
    let sorted = flip(g, ascending, axis)?;
    let sums = cumulative(g, sorted, axis, false)?;
    let ranks = iota(g, n)?;
    let ranks = g.offset(ranks, 1.0)?;
    let ranks = g.reshape(ranks, &aligned)?;
    let excess = g.offset(sums, -1.0)?;
    let mean = g.div(excess, ranks)?;
    let support = g.binary(Binary::Gt, sorted, mean)?;
    let count = g.sum_axes(support, &[axis])?;
    let zero = g.scalar(0.0);
    let kept = g.select(support, sums, zero)?;
    let total = g.sum_axes(kept, &[axis])?;
    let total = g.offset(total, -1.0)?;
    let limit = g.div(total, count)?;
    let above = g.sub(x, limit)?;
    Ok(g.binary(Binary::Max, above, zero)?)
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
    use serde_json::json;

    #[test]
    fn every_name_is_known_and_printed_alike() {
        for name in ActivationFn::NAMES {
            let f = ActivationFn::from_name(name).unwrap_or_else(|| panic!("{name} is unknown"));
            let printed = serde_json::to_value(f).unwrap();
            assert_eq!(printed, name.replace("swish", "silu"));
        }
    }

    #[test]
    fn functions_and_layers_are_read_as_keras_writes_them() {
        let read = |v: Value| serde_json::from_value::<ActivationFn>(v);
        let function = json!({ "module": "builtins", "class_name": "function", "config": "gelu",
            "registered_name": "function" });
        assert_eq!(read(function).unwrap(), ActivationFn::Gelu);
        let layer = json!({ "module": "keras.layers", "class_name": "LeakyReLU",
            "config": { "name": "leaky", "trainable": true, "dtype": null, "negative_slope": 0.1 },
            "registered_name": null });
        let leaky = ActivationFn::Layer(ActivationLayer::LeakyReLU { negative_slope: 0.1 });
        assert_eq!(read(layer).unwrap(), leaky);
        let written = serde_json::to_value(leaky).unwrap();
        assert_eq!(written["config"], json!({ "negative_slope": 0.1 }));
        assert_eq!(read(written).unwrap(), leaky);
        let text = read(json!({ "class_name": "PReLU" })).unwrap_err().to_string();
        assert!(text.starts_with("unknown variant `PReLU`, expected one of"), "{text}");
        let text = read(json!(3)).unwrap_err().to_string();
        assert!(text.starts_with("invalid type"), "{text}");
    }
}
