//! Sorted elements: order, best elements, quantiles, and positions among sorted numbers.

use super::context::{GraphResult, OpCall, OpContext};
use super::ops;
use super::reduce::{Axes, count_present};
use crate::error::Result;
use crate::layer::Outputs;
use phalanx_graph::functions::index::{arg_sort, sort, take_along, top_k};
use phalanx_graph::functions::math;
use phalanx_graph::ops::{Binary, Unary};
use phalanx_graph::{DType, Graph, NodeId, Op};
use serde_json::Value;

/// A function of one axis. Without an axis, a value that is not rows is flattened.
fn along(
    cx: OpCall<'_, '_, '_>,
    function: fn(&mut Graph, NodeId, usize) -> GraphResult,
) -> Result<Outputs> {
    let x = cx.tensor("x")?;
    let (x, axis) = cx.axis_or_flat(x)?;
    Ok(function(cx.graph(), x, axis)?.into())
}

fn best(cx: OpCall<'_, '_, '_>) -> Result<Outputs> {
    let x = cx.tensor("x")?;
    let k = cx.size("k", 1)?;
    let last = cx.dims(x).last().copied().unwrap_or(0);
    if k > last {
        return Err(cx.argument("k", &format!("at most {last}"), k));
    }
    let (values, positions) = top_k(cx.graph(), x, k)?;
    Ok(vec![values, positions].into())
}

fn in_top_k(cx: OpCall<'_, '_, '_>) -> Result<Outputs> {
    let targets = cx.any_tensor("targets")?;
    let scores = cx.tensor("predictions")?;
    let k = cx.size("k", 1)?;
    let g = cx.graph();
    let targets = g.cast(targets, DType::I32)?;
    Ok(g.push(Op::InTopK { k }, &[scores, targets])?.into())
}

/// The positions of the `kth + 1` smallest elements in ascending order, then those of the others in their order.
fn arg_partition(cx: OpCall<'_, '_, '_>) -> Result<Outputs> {
    let x = cx.tensor("x")?;
    let (x, axis) = match cx.option("axis").is_null() && cx.config_has("axis") {
        true => (cx.flat(x)?, 0),
        false => (x, cx.axis(x, -1)?),
    };
    let n = cx.dims(x)[axis] as i64;
    let given = cx.option("kth");
    let kth = given.as_i64().map(|k| if k < 0 { k.saturating_add(n) } else { k });
    let Some(kth) = kth.filter(|k| (0..n).contains(k)) else {
        return Err(cx.argument("kth", &format!("a position among {n}"), given));
    };
    let (kth, n) = (kth as usize, n as usize);
    let g = cx.graph();
    let order = arg_sort(g, x, axis)?;
    let smallest = g.push(Op::Slice { axis, start: 0, len: kth + 1 }, &[order])?;
    if kth + 1 == n {
        return Ok(smallest.into());
    }
    // The rank of every element; those that are not among the smallest come first in this order.
    let order = g.cast(order, DType::F32)?;
    let rank = arg_sort(g, order, axis)?;
    let rank = g.cast(rank, DType::F32)?;
    let limit = g.scalar(kth as f64);
    let is_small = math::less_equal(g, rank, limit)?;
    let rest = arg_sort(g, is_small, axis)?;
    let rest = g.push(Op::Slice { axis, start: 0, len: n - kth - 1 }, &[rest])?;
    Ok(g.push(Op::Concat { axis }, &[smallest, rest])?.into())
}

/// How a quantile between two elements is computed.
#[derive(Clone, Copy)]
enum Method {
    Linear,
    Lower,
    Higher,
    Midpoint,
    Nearest,
}

fn method(cx: &OpContext<'_, '_>) -> Result<Method> {
    let value = cx.option("method");
    Ok(match value.as_str() {
        None if value.is_null() => Method::Linear,
        Some("linear") => Method::Linear,
        Some("lower") => Method::Lower,
        Some("higher") => Method::Higher,
        Some("midpoint") => Method::Midpoint,
        Some("nearest") => Method::Nearest,
        _ => {
            return Err(cx.argument("method", "linear, lower, higher, midpoint or nearest", value));
        }
    })
}

/// The argument `q`, a number between 0 and `largest`, as a fraction.
fn fraction(cx: &OpContext<'_, '_>, largest: f64) -> Result<f64> {
    let value = cx.option("q");
    let number = match value.get("class_name") {
        Some(_) => value.pointer("/config/value").and_then(Value::as_f64),
        None => value.as_f64(),
    };
    let valid = number.filter(|q| (0.0..=largest).contains(q));
    let expected = format!("one number from 0 to {largest}");
    valid.map(|q| q / largest).ok_or_else(|| cx.argument("q", &expected, value))
}

/// A quantile over axes. NaN is an element that is larger than all others, or is left out.
fn quantile(cx: OpCall<'_, '_, '_>, q: f64, skip_nan: bool) -> Result<Outputs> {
    let x = cx.tensor("x")?;
    let axes = Axes::read(cx, "axis", x)?;
    let method = method(cx)?;
    let dims = cx.dims(x);
    if axes.batch || axes.inner.is_empty() {
        return Err(cx.argument("axis", "axes other than the batch", "the batch"));
    }
    // The axes become one, the last.
    let mut perm: Vec<usize> = (0..dims.len()).filter(|i| !axes.inner.contains(i)).collect();
    let outer: Vec<usize> = perm.iter().map(|i| dims[*i]).collect();
    perm.extend(&axes.inner);
    let merged: usize = axes.inner.iter().map(|i| dims[*i]).product();
    let g = cx.graph();
    let moved = g.push(Op::Transpose { perm }, &[x])?;
    let x = g.reshape(moved, &[&outer[..], &[merged]].concat())?;
    let last = Axes { batch: false, inner: vec![outer.len()] };
    let present = count_present(g, x, &last)?;
    let sorted = sort(g, x, outer.len())?;
    let count = if skip_nan { present } else { g.scalar(merged as f64) };
    let top = g.offset(count, -1.0)?;
    let at = g.scale(top, q)?;
    let y = between(g, sorted, at, outer.len(), method)?;
    let nan = g.scalar(f64::NAN);
    let all = g.scalar(merged as f64);
    let valid = if skip_nan { present } else { g.binary(Binary::Eq, present, all)? };
    let y = g.select(valid, y, nan)?;
    let mut shape = outer;
    if cx.flag("keepdims") {
        axes.inner.iter().for_each(|axis| shape.insert(*axis, 1));
    }
    Ok(cx.graph().reshape(y, &shape)?.into())
}

/// The element at a position of a sorted axis that may lie between two elements.
fn between(g: &mut Graph, sorted: NodeId, at: NodeId, axis: usize, method: Method) -> GraphResult {
    let (low, high) = (g.unary(Unary::Floor, at)?, math::ceil(g, at)?);
    let weight = g.sub(at, low)?;
    let mut dims = g.ty(sorted).dims.clone();
    dims[axis] = 1;
    let mut element = |position: NodeId| {
        let zero = g.scalar(0.0);
        let position = g.binary(Binary::Max, position, zero)?;
        let index = g.cast(position, DType::I32)?;
        let index = match g.ty(index).dims == dims {
            true => index,
            false => g.push(Op::Broadcast { dims: dims.clone() }, &[index])?,
        };
        take_along(g, sorted, index, axis)
    };
    let (below, above) = (element(low)?, element(high)?);
    let weight = match method {
        Method::Linear => weight,
        Method::Lower => g.scalar(0.0),
        Method::Higher => g.scalar(1.0),
        Method::Midpoint => g.scalar(0.5),
        Method::Nearest => {
            let half = g.scalar(0.5);
            g.binary(Binary::Gt, weight, half)?
        }
    };
    let apart = g.sub(above, below)?;
    let part = g.mul(apart, weight)?;
    g.add(below, part)
}

/// How many sorted numbers are below each value, or not above it.
fn positions(
    cx: OpCall<'_, '_, '_>,
    numbers: NodeId,
    values: NodeId,
    or_equal: bool,
) -> Result<Outputs> {
    if cx.is_rows(numbers) || cx.dims(numbers).len() != 1 {
        let received = format!("{} axes", cx.rank(numbers));
        return Err(cx.argument("sorted_sequence", "one axis, without batch", received));
    }
    let mut dims = cx.dims(values);
    let axis = dims.len();
    dims.push(1);
    let g = cx.graph();
    let apart = g.reshape(values, &dims)?;
    let hits = match or_equal {
        true => math::less_equal(g, numbers, apart)?,
        false => math::less(g, numbers, apart)?,
    };
    let count = g.sum_axes(hits, &[axis])?;
    let count = g.reshape(count, &dims[..axis])?;
    Ok(g.cast(count, DType::I32)?.into())
}

fn search_sorted(cx: OpCall<'_, '_, '_>) -> Result<Outputs> {
    let (numbers, values) = (cx.tensor("sorted_sequence")?, cx.tensor("values")?);
    let right = cx.option("side") == "right";
    positions(cx, numbers, values, right)
}

fn digitize(cx: OpCall<'_, '_, '_>) -> Result<Outputs> {
    let (values, bins) = (cx.tensor("x")?, cx.tensor("bins")?);
    positions(cx, bins, values, true)
}

/// 1 where an element of `x1` occurs in `x2`.
fn is_in(cx: OpCall<'_, '_, '_>) -> Result<Outputs> {
    let (x, numbers) = (cx.tensor("x1")?, cx.tensor("x2")?);
    let numbers = cx.flat(numbers)?;
    let invert = cx.flag("invert");
    let mut dims = cx.dims(x);
    let axis = dims.len();
    dims.push(1);
    let g = cx.graph();
    let apart = g.reshape(x, &dims)?;
    let hits = g.binary(Binary::Eq, apart, numbers)?;
    let count = g.sum_axes(hits, &[axis])?;
    let count = g.reshape(count, &dims[..axis])?;
    let found = if invert { math::logical_not(g, count)? } else { math::truth(g, count)? };
    Ok(found.into())
}

ops! {
    NUMPY, "numpy";
    Argpartition(x) => arg_partition,
    Argsort(x) => |cx| along(cx, arg_sort),
    Digitize(x, bins) => digitize,
    IsIn(x1, x2) => is_in,
    Median(x) => |cx| quantile(cx, 0.5, false),
    Nanmedian(x) => |cx| quantile(cx, 0.5, true),
    Nanpercentile(x, q) => |cx| {
        let q = fraction(cx, 100.0)?;
        quantile(cx, q, true)
    },
    Nanquantile(x, q) => |cx| {
        let q = fraction(cx, 1.0)?;
        quantile(cx, q, true)
    },
    Percentile(x, q) => |cx| {
        let q = fraction(cx, 100.0)?;
        quantile(cx, q, false)
    },
    Quantile(x, q) => |cx| {
        // Keras ignores the method of this class.
        if !matches!(method(cx)?, Method::Linear) {
            return Err(cx.argument("method", "linear; Percentile has others", cx.option("method")));
        }
        let q = fraction(cx, 1.0)?;
        quantile(cx, q, false)
    },
    SearchSorted(sorted_sequence, values) => search_sorted,
    Sort(x) => |cx| along(cx, sort),
}

ops! {
    MATH, "math";
    InTopK(targets, predictions) => in_top_k,
    TopK(x) => best,
}
