//! Activations and other functions of neural networks.

use super::context::OpContext;
use super::ops;
use crate::activations::ActivationFn;
use crate::by_name::Named;
use crate::error::Result;
use crate::layer::Outputs;
use phalanx_graph::ops::Unary;
use phalanx_graph::{DType, Graph, NodeId, Op};
use serde_json::Value;

/// An activation function without arguments.
fn activation(cx: &mut OpContext<'_, '_>, name: &str) -> Result<Outputs> {
    let x = cx.tensor("x")?;
    let Some(function) = ActivationFn::from_name(name) else {
        return Err(crate::by_name::unknown_name::<ActivationFn>(name));
    };
    Ok(function.apply(cx.graph(), x)?.into())
}

/// Fails unless an option has its default.
fn default_only(cx: &OpContext<'_, '_>, name: &str, default: f64) -> Result<()> {
    let value = cx.number_or(name, default)?;
    if (value - default).abs() < 1e-12 {
        return Ok(());
    }
    Err(cx.argument(name, &default.to_string(), value))
}

/// `x/2 · (1 + tanh(√(2/π) · (x + 0.044715 x³)))`.
fn gelu_tanh(g: &mut Graph, x: NodeId) -> Result<NodeId> {
    let square = g.unary(Unary::Square, x)?;
    let cubic = g.scale(square, 0.044715)?;
    let factor = g.offset(cubic, 1.0)?;
    let inner = g.mul(x, factor)?;
    let inner = g.scale(inner, (2.0 / std::f64::consts::PI).sqrt())?;
    let inner = g.unary(Unary::Tanh, inner)?;
    let inner = g.offset(inner, 1.0)?;
    let half = g.scale(x, 0.5)?;
    Ok(g.mul(half, inner)?)
}

fn gelu(cx: &mut OpContext<'_, '_>) -> Result<Outputs> {
    match cx.option("approximate") {
        Value::Bool(false) => activation(cx, "gelu"),
        // `keras.ops.gelu` approximates by default, `keras.activations.gelu` does not.
        _ => {
            let x = cx.tensor("x")?;
            Ok(gelu_tanh(cx.graph(), x)?.into())
        }
    }
}

/// Softmax or its logarithm along an axis.
fn softmax(cx: &mut OpContext<'_, '_>, op: Op) -> Result<Outputs> {
    let x = cx.tensor("x")?;
    let rank = cx.dims(x).len();
    let axis = match cx.integers("axis")?.as_deref() {
        None => -1,
        Some([axis]) => *axis,
        Some(axes) => return Err(cx.argument("axis", "one axis", format!("{axes:?}"))),
    };
    let axis = cx.sample_axis(axis, rank + 1)?;
    let swap = |cx: &mut OpContext<'_, '_>, x: NodeId| {
        if axis + 1 == rank {
            return Ok(x);
        }
        let mut perm: Vec<usize> = (0..rank).collect();
        perm.swap(axis, rank - 1);
        cx.graph().push(Op::Transpose { perm }, &[x])
    };
    let x = swap(cx, x)?;
    let y = cx.graph().push(op, &[x])?;
    Ok(swap(cx, y)?.into())
}

fn one_hot(cx: &mut OpContext<'_, '_>) -> Result<Outputs> {
    let x = cx.any_tensor("x")?;
    let depth = cx.option("num_classes").as_u64().and_then(|n| usize::try_from(n).ok());
    let Some(depth) = depth.filter(|n| *n > 0) else {
        return Err(cx.argument("num_classes", "a number above 0", cx.option("num_classes")));
    };
    if !matches!(cx.integers("axis")?.as_deref(), None | Some([-1])) {
        return Err(cx.argument("axis", "-1", cx.option("axis")));
    }
    let g = cx.graph();
    let x = g.cast(x, DType::I32)?;
    Ok(g.push(Op::OneHot { depth }, &[x])?.into())
}

ops! {
    NN, "nn";
    Elu(x) => |cx| {
        default_only(cx, "alpha", 1.0)?;
        activation(cx, "elu")
    },
    Gelu(x) => gelu,
    HardSigmoid(x) => |cx| activation(cx, "hard_sigmoid"),
    LeakyRelu(x) => |cx| {
        default_only(cx, "negative_slope", 0.2)?;
        activation(cx, "leaky_relu")
    },
    LogSoftmax(x) => |cx| softmax(cx, Op::LogSoftmax),
    OneHot(x) => one_hot,
    Relu(x) => |cx| activation(cx, "relu"),
    Relu6(x) => |cx| activation(cx, "relu6"),
    Selu(x) => |cx| activation(cx, "selu"),
    Sigmoid(x) => |cx| activation(cx, "sigmoid"),
    Silu(x) => |cx| activation(cx, "silu"),
    Softmax(x) => |cx| softmax(cx, Op::Softmax),
    Softplus(x) => |cx| activation(cx, "softplus"),
    Softsign(x) => |cx| activation(cx, "softsign"),
}
