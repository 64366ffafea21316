//! Reductions within a sample.

use super::context::OpContext;
use super::ops;
use crate::error::Result;
use crate::layer::Outputs;
use phalanx_graph::ops::{Binary, ReduceKind, Unary};
use phalanx_graph::{DType, Graph, NodeId, Op};

/// Appends a reduction over axes, which remain with size one.
type Reduction = fn(&mut Graph, NodeId, &[usize]) -> Result<NodeId>;

fn reduce(cx: &mut OpContext<'_, '_>, reduction: Reduction) -> Result<Outputs> {
    let x = cx.tensor("x")?;
    let dims = cx.dims(x);
    let rank = dims.len() + 1;
    let Some(list) = cx.integers("axis")? else {
        return Err(cx.argument("axis", "axes other than the batch", "all axes"));
    };
    let mut axes = list.iter().map(|a| cx.sample_axis(*a, rank)).collect::<Result<Vec<_>>>()?;
    axes.sort_unstable();
    axes.dedup();
    let y = reduction(cx.graph(), x, &axes)?;
    if cx.flag("keepdims") {
        return Ok(y.into());
    }
    let kept: Vec<usize> = (0..dims.len()).filter(|i| !axes.contains(i)).map(|i| dims[i]).collect();
    Ok(cx.graph().reshape(y, &kept)?.into())
}

fn max(g: &mut Graph, x: NodeId, axes: &[usize]) -> Result<NodeId> {
    Ok(g.push(Op::Reduce { kind: ReduceKind::Max, axes: axes.to_vec() }, &[x])?)
}

fn min(g: &mut Graph, x: NodeId, axes: &[usize]) -> Result<NodeId> {
    let x = g.neg(x)?;
    let y = max(g, x, axes)?;
    Ok(g.neg(y)?)
}

fn truth(g: &mut Graph, x: NodeId) -> Result<NodeId> {
    let zero = g.scalar(0.0);
    Ok(g.not_equal(x, zero)?)
}

fn variance(g: &mut Graph, x: NodeId, axes: &[usize]) -> Result<NodeId> {
    let mean = g.mean_axes(x, axes)?;
    let apart = g.sub(x, mean)?;
    let square = g.unary(Unary::Square, apart)?;
    Ok(g.mean_axes(square, axes)?)
}

fn log_sum_exp(g: &mut Graph, x: NodeId, axes: &[usize]) -> Result<NodeId> {
    let largest = max(g, x, axes)?;
    let apart = g.sub(x, largest)?;
    let apart = g.unary(Unary::Exp, apart)?;
    let sum = g.sum_axes(apart, axes)?;
    let sum = g.unary(Unary::Log, sum)?;
    Ok(g.add(sum, largest)?)
}

/// The index of the largest element along one axis.
fn arg_max(cx: &mut OpContext<'_, '_>, sign: f64) -> Result<Outputs> {
    let x = cx.tensor("x")?;
    let dims = cx.dims(x);
    let Some([axis]) =
        cx.integers("axis")?.as_deref().map(|a| <[i64; 1]>::try_from(a).unwrap_or([0]))
    else {
        return Err(cx.argument("axis", "an axis other than the batch", "all axes"));
    };
    let axis = cx.sample_axis(axis, dims.len() + 1)?;
    let mut perm: Vec<usize> = (0..dims.len()).filter(|i| *i != axis).collect();
    perm.push(axis);
    let g = cx.graph();
    let x = g.scale(x, sign)?;
    let x = g.push(Op::Transpose { perm }, &[x])?;
    let y = g.push(Op::ArgMax, &[x])?;
    let mut kept = dims;
    if cx.flag("keepdims") {
        kept[axis] = 1;
    } else {
        kept.remove(axis);
    }
    Ok(cx.graph().reshape(y, &kept)?.into())
}

/// How many elements are not zero.
fn count_nonzero(g: &mut Graph, x: NodeId, axes: &[usize]) -> Result<NodeId> {
    let x = truth(g, x)?;
    let count = g.sum_axes(x, axes)?;
    Ok(g.cast(count, DType::I32)?)
}

ops! {
    NUMPY, "numpy";
    All(x) => |cx| reduce(cx, |g, x, axes| {
        let x = truth(g, x)?;
        min(g, x, axes)
    }),
    Amax(x) => |cx| reduce(cx, max),
    Amin(x) => |cx| reduce(cx, min),
    Any(x) => |cx| reduce(cx, |g, x, axes| {
        let x = truth(g, x)?;
        max(g, x, axes)
    }),
    Argmax(x) => |cx| arg_max(cx, 1.0),
    Argmin(x) => |cx| arg_max(cx, -1.0),
    CountNonzero(x) => |cx| reduce(cx, count_nonzero),
    Max(x) => |cx| reduce(cx, max),
    Mean(x) => |cx| reduce(cx, |g, x, axes| Ok(g.mean_axes(x, axes)?)),
    Min(x) => |cx| reduce(cx, min),
    Ptp(x) => |cx| reduce(cx, |g, x, axes| {
        let (high, low) = (max(g, x, axes)?, min(g, x, axes)?);
        Ok(g.binary(Binary::Sub, high, low)?)
    }),
    Std(x) => |cx| reduce(cx, |g, x, axes| {
        let variance = variance(g, x, axes)?;
        Ok(g.unary(Unary::Sqrt, variance)?)
    }),
    Sum(x) => |cx| reduce(cx, |g, x, axes| Ok(g.sum_axes(x, axes)?)),
    Var(x) => |cx| reduce(cx, variance),
}

ops! {
    MATH, "math";
    Logsumexp(x) => |cx| reduce(cx, log_sum_exp),
}
