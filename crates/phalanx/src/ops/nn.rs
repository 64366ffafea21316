//! Functions of neural networks: activations, crossentropies, normalisation and attention.

use super::context::{OpCall, OpContext};
use super::index::triangle_mask;
use super::ops;
use super::reduce::{Axes, mean, variance};
use crate::activations::{
    ActivationFn, celu, elu, glu, hard_shrink, leaky_relu, soft_shrink, sparsemax, squareplus,
};
use crate::by_name::Named;
use crate::error::Result;
use crate::layer::Outputs;
use crate::layers::support::swap_with_last;
use crate::losses::{
    BinaryCrossentropy, CategoricalCrossentropy, Loss, SparseCategoricalCrossentropy,
};
use phalanx_graph::functions::index::max_axes;
use phalanx_graph::functions::math;
use phalanx_graph::ops::{Binary, LayerNormAttrs, Unary};
use phalanx_graph::{DType, Graph, NodeId, Op};
use serde_json::Value;
use std::f64::consts::{LOG10_E, PI};

/// An activation function without arguments.
fn activation(cx: OpCall<'_, '_, '_>, name: &str) -> Result<Outputs> {
    let x = cx.tensor("x")?;
    let Some(function) = ActivationFn::from_name(name) else {
        return Err(crate::by_name::unknown_name::<ActivationFn>(name));
    };
    Ok(function.apply(cx.graph(), x)?.into())
}

/// `x/2 · (1 + tanh(√(2/π) · (x + 0.044715 x³)))`.
fn gelu_tanh(g: &mut Graph, x: NodeId) -> Result<NodeId> {
    let square = g.unary(Unary::Square, x)?;
    let cubic = g.scale(square, 0.044715)?;
    let factor = g.offset(cubic, 1.0)?;
    let inner = g.mul(x, factor)?;
    let inner = g.scale(inner, (2.0 / PI).sqrt())?;
    let inner = g.unary(Unary::Tanh, inner)?;
    let inner = g.offset(inner, 1.0)?;
    let half = g.scale(x, 0.5)?;
    Ok(g.mul(half, inner)?)
}

fn gelu(cx: OpCall<'_, '_, '_>) -> Result<Outputs> {
    match cx.option("approximate") {
        Value::Bool(false) => activation(cx, "gelu"),
        // `keras.ops.gelu` approximates by default, `keras.activations.gelu` does not.
        _ => {
            let x = cx.tensor("x")?;
            Ok(gelu_tanh(cx.graph(), x)?.into())
        }
    }
}

/// `x` above the threshold, else the default value.
fn threshold(cx: OpCall<'_, '_, '_>) -> Result<Outputs> {
    let x = cx.tensor("x")?;
    let (limit, value) = (cx.number_or("threshold", 0.0)?, cx.number_or("default_value", 0.0)?);
    let g = cx.graph();
    let (limit, value) = (g.scalar(limit), g.scalar(value));
    let above = g.binary(Binary::Gt, x, limit)?;
    Ok(g.select(above, x, value)?.into())
}

/// Softmax or its logarithm along an axis.
fn softmax(cx: OpCall<'_, '_, '_>, op: Op) -> Result<Outputs> {
    let x = cx.tensor("x")?;
    let axis = cx.axis(x, -1)?;
    let x = swap_with_last(cx.layer(), x, axis)?;
    let y = cx.graph().push(op, &[x])?;
    Ok(swap_with_last(cx.layer(), y, axis)?.into())
}

/// A function of an axis.
fn along(
    cx: OpCall<'_, '_, '_>,
    function: fn(&mut Graph, NodeId, usize) -> Result<NodeId>,
) -> Result<Outputs> {
    let x = cx.tensor("x")?;
    let axis = cx.axis(x, -1)?;
    Ok(function(cx.graph(), x, axis)?.into())
}

/// A function with a parameter.
fn with_number(
    cx: OpCall<'_, '_, '_>,
    (name, default): (&str, f64),
    function: fn(&mut Graph, NodeId, f64) -> Result<NodeId>,
) -> Result<Outputs> {
    let (x, number) = (cx.tensor("x")?, cx.number_or(name, default)?);
    Ok(function(cx.graph(), x, number)?.into())
}

/// The one-hot encoding of integers along a new axis.
fn encode(cx: OpCall<'_, '_, '_>, name: &str) -> Result<NodeId> {
    let x = cx.any_tensor(name)?;
    let depth = cx.size("num_classes", 1)?;
    let lead = usize::from(cx.is_rows(x));
    let axis = cx.option("axis").as_i64().unwrap_or(-1);
    let at = cx.position(axis, cx.rank(x) + 1)?.checked_sub(lead);
    let Some(at) = at else { return Err(cx.argument("axis", "an axis after the batch", axis)) };
    let g = cx.graph();
    let x = g.cast(x, DType::I32)?;
    let mut y = g.push(Op::OneHot { depth }, &[x])?;
    let rank = g.ty(y).dims.len();
    if at + 1 < rank {
        let mut perm: Vec<usize> = (0..rank - 1).collect();
        perm.insert(at, rank - 1);
        y = g.push(Op::Transpose { perm }, &[y])?;
    }
    Ok(y)
}

/// 1 for each class that occurs among the labels of a sample.
fn multi_hot(cx: OpCall<'_, '_, '_>) -> Result<Outputs> {
    let hot = encode(cx, "inputs")?;
    // Keras reduces the second axis.
    let axis = cx.dim(hot, 1)?;
    let mut dims = cx.dims(hot);
    if dims.len() < 2 {
        return Err(cx.argument("inputs", "several labels per sample", "one"));
    }
    dims.remove(axis);
    let y = max_axes(cx.graph(), hot, &[axis])?;
    Ok(cx.graph().reshape(y, &dims)?.into())
}

/// The crossentropy of every element.
fn binary_crossentropy(cx: OpCall<'_, '_, '_>) -> Result<Outputs> {
    let [target, output] = cx.operands(["target", "output"])?;
    let loss = BinaryCrossentropy::default().from_logits(cx.flag("from_logits"));
    let dims = cx.dims(output);
    // The loss is the mean of the last axis.
    let apart = [&dims[..], &[1]].concat();
    let g = cx.graph();
    let (target, output) = (g.reshape(target, &apart)?, g.reshape(output, &apart)?);
    let y = loss.values(g, target, output)?;
    Ok(g.reshape(y, &dims)?.into())
}

fn categorical_crossentropy(cx: OpCall<'_, '_, '_>) -> Result<Outputs> {
    let [target, output] = cx.operands(["target", "output"])?;
    let loss = CategoricalCrossentropy::default().from_logits(cx.flag("from_logits"));
    let axis = cx.axis(output, -1)?;
    let dims = cx.dims(output);
    let mut perm: Vec<usize> = (0..dims.len()).filter(|i| *i != axis).collect();
    perm.push(axis);
    let g = cx.graph();
    let mut last = |x: NodeId| g.push(Op::Transpose { perm: perm.clone() }, &[x]);
    let (target, output) = (last(target)?, last(output)?);
    Ok(loss.values(g, target, output)?.into())
}

fn sparse_categorical_crossentropy(cx: OpCall<'_, '_, '_>) -> Result<Outputs> {
    let (target, output) = (cx.any_tensor("target")?, cx.tensor("output")?);
    let loss = SparseCategoricalCrossentropy::default().from_logits(cx.flag("from_logits"));
    let mut dims = cx.dims(output);
    if cx.axis(output, -1)? + 1 != dims.len() {
        return Err(cx.argument("axis", "the last axis", cx.option("axis")));
    }
    dims.pop();
    let g = cx.graph();
    let target = g.cast(target, DType::I32)?;
    let target = g.reshape(target, &dims)?;
    Ok(loss.values(g, target, output)?.into())
}

/// `20 log₁₀ max_val - 10 log₁₀ mean((x1 - x2)²)` over all elements and samples.
fn psnr(cx: OpCall<'_, '_, '_>) -> Result<Outputs> {
    let [a, b] = cx.operands(["x1", "x2"])?;
    let peak = cx.number_or("max_val", 1.0)?;
    let apart = cx.graph().sub(a, b)?;
    let square = cx.graph().unary(Unary::Square, apart)?;
    let axes = Axes::read(cx, "axis", square)?;
    let g = cx.graph();
    let error = mean(g, square, &axes)?;
    let error = g.unary(Unary::Log, error)?;
    let error = g.scale(error, -10.0 * LOG10_E)?;
    let y = g.offset(error, 20.0 * peak.log10())?;
    Ok(axes.finish(cx, y, false)?.into())
}

/// A weight per channel, with size one on the other axes.
fn per_channel(
    cx: OpCall<'_, '_, '_>,
    name: &str,
    x: NodeId,
    axes: &[usize],
) -> Result<Option<NodeId>> {
    let Some(weight) = cx.optional(name)? else { return Ok(None) };
    let dims = cx.dims(x);
    let mut aligned = vec![1; dims.len()];
    axes.iter().for_each(|axis| aligned[*axis] = dims[*axis]);
    if cx.is_rows(weight) {
        return Err(cx.argument(name, "a value without batch", "one per sample"));
    }
    Ok(Some(cx.graph().reshape(weight, &aligned)?))
}

/// The axes of a normalisation within a sample; by default the last.
fn norm_axes(cx: &OpContext<'_, '_>, x: NodeId) -> Result<Vec<usize>> {
    let list = cx.integers("axis")?.unwrap_or_else(|| vec![-1]);
    let mut axes = list.iter().map(|axis| cx.dim(x, *axis)).collect::<Result<Vec<_>>>()?;
    axes.sort_unstable();
    axes.dedup();
    Ok(axes)
}

/// `(x - mean) / √(variance + epsilon)`, or `x / √(mean(x²) + epsilon)`.
fn standardize(cx: OpCall<'_, '_, '_>, x: NodeId, axes: &[usize], rms: bool) -> Result<NodeId> {
    let epsilon = cx.number_or("epsilon", 1e-7)?;
    let last = cx.dims(x).len().checked_sub(1);
    let g = cx.graph();
    if axes.first().copied() == last && axes.len() == 1 {
        let attrs = LayerNormAttrs { epsilon: epsilon.into(), rms };
        return Ok(g.push(Op::LayerNorm(attrs), &[x])?);
    }
    let axes = Axes { batch: false, inner: axes.to_vec() };
    let (centred, spread) = match rms {
        true => {
            let squares = g.unary(Unary::Square, x)?;
            (x, mean(g, squares, &axes)?)
        }
        false => {
            let center = mean(g, x, &axes)?;
            (g.sub(x, center)?, variance(g, x, &axes)?)
        }
    };
    let spread = g.offset(spread, epsilon)?;
    let factor = g.unary(Unary::Rsqrt, spread)?;
    Ok(g.mul(centred, factor)?)
}

fn layer_norm(cx: OpCall<'_, '_, '_>) -> Result<Outputs> {
    let x = cx.tensor("x")?;
    if cx.flag("rms_scaling") {
        return Err(cx.argument("rms_scaling", "false; use RMSNorm", true));
    }
    let axes = norm_axes(cx, x)?;
    let mut y = standardize(cx, x, &axes, false)?;
    if let Some(gamma) = per_channel(cx, "gamma", x, &axes)? {
        y = cx.graph().mul(y, gamma)?;
    }
    if let Some(beta) = per_channel(cx, "beta", x, &axes)? {
        y = cx.graph().add(y, beta)?;
    }
    Ok(y.into())
}

fn rms_norm(cx: OpCall<'_, '_, '_>) -> Result<Outputs> {
    let x = cx.tensor("x")?;
    let axes = norm_axes(cx, x)?;
    let y = standardize(cx, x, &axes, true)?;
    match cx.optional("scale")? {
        None => Ok(y.into()),
        Some(scale) => {
            let mut nodes = [y, scale];
            cx.align(&mut nodes)?;
            Ok(cx.graph().mul(nodes[0], nodes[1])?.into())
        }
    }
}

/// `scale · (x - mean) / √(variance + epsilon) + offset` with given statistics.
fn batch_norm(cx: OpCall<'_, '_, '_>) -> Result<Outputs> {
    let x = cx.tensor("x")?;
    let axis = [cx.axis(x, -1)?];
    let epsilon = cx.number_or("epsilon", 1e-3)?;
    let center = per_channel(cx, "mean", x, &axis)?;
    let spread = per_channel(cx, "variance", x, &axis)?;
    let scale = per_channel(cx, "scale", x, &axis)?;
    let offset = per_channel(cx, "offset", x, &axis)?;
    let (Some(center), Some(spread)) = (center, spread) else {
        return Err(cx.argument("mean, variance", "a number per channel", "none"));
    };
    let g = cx.graph();
    let spread = g.offset(spread, epsilon)?;
    let mut factor = g.unary(Unary::Rsqrt, spread)?;
    if let Some(scale) = scale {
        factor = g.mul(factor, scale)?;
    }
    let apart = g.sub(x, center)?;
    let mut y = g.mul(apart, factor)?;
    if let Some(offset) = offset {
        y = g.add(y, offset)?;
    }
    Ok(y.into())
}

/// A bias or mask of attention, with the axes heads, queries and keys.
fn attention_term(cx: OpCall<'_, '_, '_>, name: &str, heads: usize) -> Result<Option<NodeId>> {
    let Some(mut x) = cx.optional(name)? else { return Ok(None) };
    if !cx.is_rows(x) && cx.dims(x).len() == 4 && cx.dims(x)[0] == 1 {
        let dims = cx.dims(x)[1..].to_vec();
        x = cx.graph().reshape(x, &dims)?;
    }
    let mut dims = cx.dims(x);
    while dims.len() < 3 {
        let at = usize::from(dims.len() == 2 && dims[0] == heads && cx.is_rows(x));
        dims.insert(at, 1);
    }
    Ok(Some(cx.graph().reshape(x, &dims)?))
}

/// `softmax(query · key / √size + bias) · value` for every head.
fn attention(cx: OpCall<'_, '_, '_>) -> Result<Outputs> {
    let [query, key, value] = cx.operands(["query", "key", "value"])?;
    let (q, k) = (cx.dims(query), cx.dims(key));
    let ([length, heads, size], [keys, groups, _]) = (&q[..], &k[..]) else {
        return Err(cx.argument("query, key", "4 axes", format!("{q:?}, {k:?}")));
    };
    if *groups == 0
        || !heads.is_multiple_of(*groups)
        || !cx.option("attn_logits_soft_cap").is_null()
    {
        let expected = "heads that divide into those of the keys, without soft cap";
        return Err(cx.argument("query", expected, format!("{q:?}, {k:?}")));
    }
    let scale = cx.number_or("scale", 1.0 / (*size as f64).sqrt())?;
    let (bias, mask) = (attention_term(cx, "bias", *heads)?, attention_term(cx, "mask", *heads)?);
    let causal = match cx.flag("is_causal") {
        true => Some(triangle_mask(cx, *length, *keys, 0.0, true)?),
        false => None,
    };
    let g = cx.graph();
    let shares = heads / groups;
    let grouped = g.reshape(query, &[*length, *groups, shares, *size])?;
    let scores = g.einsum("btkgh,bskh->bkgts", &[grouped, key])?;
    let scores = g.reshape(scores, &[*heads, *length, *keys])?;
    let mut scores = g.scale(scores, scale)?;
    if let Some(bias) = bias {
        scores = g.add(scores, bias)?;
    }
    let low = g.scalar(-0.7 * f64::from(f32::MAX));
    for mask in mask.into_iter().chain(causal) {
        let mask = math::truth(g, mask)?;
        scores = g.select(mask, scores, low)?;
    }
    let weights = g.push(Op::Softmax, &[scores])?;
    let weights = g.reshape(weights, &[*groups, shares, *length, *keys])?;
    let y = g.einsum("bkgts,bskh->btkgh", &[weights, value])?;
    let width = g.ty(y).last();
    Ok(g.reshape(y, &[*length, *heads, width])?.into())
}

ops! {
    NN, "nn";
    BatchNorm(x, mean, variance, offset, scale) => batch_norm,
    BinaryCrossentropy(target, output) => binary_crossentropy,
    CategoricalCrossentropy(target, output) => categorical_crossentropy,
    DotProductAttention(query, key, value, bias, mask, scale) => attention,
    Celu(x) => |cx| with_number(cx, ("alpha", 1.0), celu),
    Elu(x) => |cx| with_number(cx, ("alpha", 1.0), elu),
    Gelu(x) => gelu,
    Glu(x) => |cx| along(cx, glu),
    HardShrink(x) => |cx| with_number(cx, ("threshold", 0.5), hard_shrink),
    HardSigmoid(x) => |cx| activation(cx, "hard_sigmoid"),
    HardSilu(x) => |cx| activation(cx, "hard_silu"),
    HardTanh(x) => |cx| activation(cx, "hard_tanh"),
    LayerNorm(x, gamma, beta) => layer_norm,
    LeakyRelu(x) => |cx| with_number(cx, ("negative_slope", 0.2), leaky_relu),
    LogSigmoid(x) => |cx| activation(cx, "log_sigmoid"),
    LogSoftmax(x) => |cx| softmax(cx, Op::LogSoftmax),
    MultiHot(inputs) => multi_hot,
    OneHot(x) => |cx| Ok(encode(cx, "x")?.into()),
    PSNR(x1, x2) => psnr,
    RMSNorm(x, scale) => rms_norm,
    Relu(x) => |cx| activation(cx, "relu"),
    Relu6(x) => |cx| activation(cx, "relu6"),
    Selu(x) => |cx| activation(cx, "selu"),
    Sigmoid(x) => |cx| activation(cx, "sigmoid"),
    Silu(x) => |cx| activation(cx, "silu"),
    SoftShrink(x) => |cx| with_number(cx, ("threshold", 0.5), soft_shrink),
    Softmax(x) => |cx| softmax(cx, Op::Softmax),
    Softplus(x) => |cx| activation(cx, "softplus"),
    Softsign(x) => |cx| activation(cx, "softsign"),
    SparseCategoricalCrossentropy(target, output) => sparse_categorical_crossentropy,
    SparsePlus(x) => |cx| activation(cx, "sparse_plus"),
    SparseSigmoid(x) => |cx| activation(cx, "sparse_sigmoid"),
    Sparsemax(x) => |cx| along(cx, sparsemax),
    Squareplus(x) => |cx| with_number(cx, ("b", 4.0), squareplus),
    TanhShrink(x) => |cx| activation(cx, "tanh_shrink"),
    Threshold(x) => threshold,
}
