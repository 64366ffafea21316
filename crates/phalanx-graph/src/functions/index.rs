//! Composed functions with positions: lookups, sorting, extremes and cumulative products.

use super::math::less;
use crate::error::{GraphError, Result};
use crate::graph::{Graph, NodeId};
use crate::ops::{Op, ReduceKind, TakeAxis};
use crate::types::{DType, Space};

/// Integers below this are exact as 32-bit floats.
const MAX_EXACT: usize = 1 << 24;

fn check_axis(g: &Graph, x: NodeId, axis: usize) -> Result<()> {
    if axis < g.ty(x).dims.len() {
        return Ok(());
    }
    let received = format!("axis {axis} of {}", g.ty(x).shape_text());
    Err(GraphError::mismatch("axis", "an axis of the value", received))
}

/// The value with an axis exchanged with the last one.
fn swap_last(g: &mut Graph, x: NodeId, axis: usize) -> Result<NodeId> {
    let rank = g.ty(x).dims.len();
    if axis + 1 == rank {
        return Ok(x);
    }
    let mut perm: Vec<usize> = (0..rank).collect();
    perm.swap(axis, rank - 1);
    g.push(Op::Transpose { perm }, &[x])
}

/// Elements of `x` at integer positions along an axis, which the axes of `index` replace. Positions below
/// zero count from the end, and positions outside give NaN.
pub fn take(g: &mut Graph, x: NodeId, index: NodeId, axis: usize) -> Result<NodeId> {
    check_axis(g, x, axis)?;
    let (table, positions) = (g.ty(x).clone(), g.ty(index).clone());
    let n = table.dims[axis];
    let mirrored = table.space == Space::Mirrored && table.dtype == DType::F32;
    if !mirrored || axis != 0 || !positions.is_rows() || n > MAX_EXACT {
        return g.push(Op::Take(TakeAxis { axis, along: false }), &[x, index]);
    }
    // A lookup of rows of a table, whose derivative sums over the samples.
    let width = table.dims[1..].iter().product();
    let rows = g.reshape(x, &[n, width])?;
    let at = g.cast(index, DType::F32)?;
    let zero = g.scalar(0.0);
    let below = less(g, at, zero)?;
    let from_end = g.offset(at, n as f64)?;
    let at = g.select(below, from_end, at)?;
    let at = g.cast(at, DType::I32)?;
    let found = g.push(Op::Gather, &[rows, at])?;
    g.reshape(found, &[&positions.dims[..], &table.dims[1..]].concat())
}

/// Elements of `x` along an axis, each at its own position. The other axes of `x` and `index` broadcast.
pub fn take_along(g: &mut Graph, x: NodeId, index: NodeId, axis: usize) -> Result<NodeId> {
    check_axis(g, x, axis)?;
    let (mut from, mut at) = (g.ty(x).dims.clone(), g.ty(index).dims.clone());
    if from.len() == at.len() {
        for i in (0..from.len()).filter(|i| *i != axis) {
            if from[i] == 1 {
                from[i] = at[i];
            } else if at[i] == 1 {
                at[i] = from[i];
            }
        }
    }
    let mut spread = |node: NodeId, dims: Vec<usize>| match g.ty(node).dims == dims {
        true => Ok(node),
        false => g.push(Op::Broadcast { dims }, &[node]),
    };
    let (x, index) = (spread(x, from)?, spread(index, at)?);
    g.push(Op::Take(TakeAxis { axis, along: true }), &[x, index])
}

/// The positions that sort an axis: stable, NaN last.
pub fn arg_sort(g: &mut Graph, x: NodeId, axis: usize) -> Result<NodeId> {
    check_axis(g, x, axis)?;
    let swapped = swap_last(g, x, axis)?;
    let order = g.push(Op::ArgSort, &[swapped])?;
    swap_last(g, order, axis)
}

/// The elements of an axis in ascending order, NaN last.
pub fn sort(g: &mut Graph, x: NodeId, axis: usize) -> Result<NodeId> {
    let order = arg_sort(g, x, axis)?;
    take_along(g, x, order, axis)
}

/// The `k` largest elements of the last axis in descending order, and their positions. Of equal elements
/// the first comes first.
pub fn top_k(g: &mut Graph, x: NodeId, k: usize) -> Result<(NodeId, NodeId)> {
    let Some(axis) = g.ty(x).dims.len().checked_sub(1) else {
        let received = g.ty(x).shape_text();
        return Err(GraphError::mismatch("input of top_k", "a last axis", received));
    };
    let below = g.neg(x)?;
    let order = arg_sort(g, below, axis)?;
    let best = g.push(Op::Slice { axis, start: 0, len: k }, &[order])?;
    Ok((take_along(g, x, best, axis)?, best))
}

/// The position of the first maximum along an axis, which is removed.
pub fn arg_max(g: &mut Graph, x: NodeId, axis: usize) -> Result<NodeId> {
    check_axis(g, x, axis)?;
    let rank = g.ty(x).dims.len();
    let mut perm: Vec<usize> = (0..rank).filter(|i| *i != axis).collect();
    perm.push(axis);
    let moved = if axis + 1 == rank { x } else { g.push(Op::Transpose { perm }, &[x])? };
    g.push(Op::ArgMax, &[moved])
}

/// The position of the first minimum along an axis, which is removed.
pub fn arg_min(g: &mut Graph, x: NodeId, axis: usize) -> Result<NodeId> {
    let below = g.neg(x)?;
    arg_max(g, below, axis)
}

/// Largest element along axes, which remain with size one.
pub fn max_axes(g: &mut Graph, x: NodeId, axes: &[usize]) -> Result<NodeId> {
    g.push(Op::Reduce { kind: ReduceKind::Max, axes: axes.to_vec() }, &[x])
}

/// Smallest element along axes, which remain with size one.
pub fn min_axes(g: &mut Graph, x: NodeId, axes: &[usize]) -> Result<NodeId> {
    let below = g.neg(x)?;
    let largest = max_axes(g, below, axes)?;
    g.neg(largest)
}

/// Product of the elements along axes, which remain with size one: the last of the cumulative products.
pub fn prod_axes(g: &mut Graph, x: NodeId, axes: &[usize]) -> Result<NodeId> {
    let mut y = x;
    for axis in axes.iter().copied() {
        check_axis(g, y, axis)?;
        let n = g.ty(y).dims[axis];
        if n == 0 {
            // The product of nothing is one.
            let sum = g.sum_axes(y, &[axis])?;
            y = g.offset(sum, 1.0)?;
            continue;
        }
        let products = cumulative(g, y, axis, true)?;
        y = g.push(Op::Slice { axis, start: n - 1, len: 1 }, &[products])?;
    }
    Ok(y)
}

/// Sums, or products, of the elements up to each one along an axis.
pub fn cumulative(g: &mut Graph, x: NodeId, axis: usize, product: bool) -> Result<NodeId> {
    g.push(Op::Cumulative { axis, product, reverse: false }, &[x])
}
