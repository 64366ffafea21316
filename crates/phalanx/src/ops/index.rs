//! Ops that select elements: slices, lookups, diagonals, differences, rotations.

use super::context::{OpCall, OpContext};
use super::layout::{counted_axis, permute, slice};
use super::ops;
use crate::error::Result;
use crate::layer::{Argument, Outputs};
use phalanx_graph::functions::index::{take, take_along};
use phalanx_graph::functions::layout::{PadMode, concat, flip, offsets, pad, slice_steps};
use phalanx_graph::functions::math;
use phalanx_graph::{DType, NodeId};
use serde_json::Value;

/// The largest number of pieces that an op takes from an axis.
const MAX_PIECES: usize = 4096;

/// The class of a serialized object.
fn class(item: &Value) -> Option<&str> {
    item.get("class_name").and_then(Value::as_str)
}

/// `x[:, 1:3, 0]`: slices, whole numbers, new axes and one ellipsis.
fn get_item(cx: OpCall<'_, '_, '_>) -> Result<Outputs> {
    let mut x = cx.any_tensor("x")?;
    let mut key = match cx.passed("key") {
        Some(Argument::Plain(Value::Array(items))) => items.clone(),
        Some(Argument::Plain(item)) => vec![item.clone()],
        Some(Argument::List(items)) if items.is_empty() => vec![],
        _ => return Err(cx.argument("key", "slices and whole numbers", "tensors")),
    };
    if cx.layer().is_batch_second(x) {
        let dims = cx.dims(x);
        let index = key.first().and_then(Value::as_i64).unwrap_or(-1);
        let start = usize::try_from(index).ok().filter(|start| *start < dims[0]);
        let Some(start) = start else {
            let expected = format!("a number below {} for the first axis", dims[0]);
            return Err(cx.argument("key", &expected, Value::Array(key)));
        };
        key.remove(0);
        let g = cx.graph();
        x = slice_steps(g, x, 0, (start, 1, 1))?;
        x = g.reshape(x, &dims[1..])?;
    }
    let is_ellipsis = |item: &Value| class(item) == Some("__ellipsis__");
    let indexed = key.iter().filter(|item| !item.is_null() && !is_ellipsis(item)).count();
    let rank = cx.rank(x);
    if indexed > rank {
        return Err(cx.argument("key", &format!("at most {rank} axes"), indexed));
    }
    // The dimension that the next item means, plus one if the value has a batch.
    let lead = usize::from(cx.is_rows(x));
    let mut at = 0usize;
    let mut dims_after: Vec<usize> = vec![];
    for item in &key {
        if is_ellipsis(item) {
            for _ in indexed..rank {
                dims_after.extend(at.checked_sub(lead).map(|dim| cx.dims(x)[dim]));
                at += 1;
            }
            continue;
        }
        if at < lead {
            check_whole_batch(cx, item)?;
            at += 1;
            continue;
        }
        if item.is_null() {
            dims_after.push(1);
            continue;
        }
        let dim = at - lead;
        let (range, keep) = range(cx, item, cx.dims(x)[dim])?;
        x = slice_steps(cx.graph(), x, dim, range)?;
        if keep {
            dims_after.push(range.1);
        }
        at += 1;
    }
    let dims = cx.dims(x);
    dims_after.extend(&dims[at.saturating_sub(lead)..]);
    Ok(cx.graph().reshape(x, &dims_after)?.into())
}

/// The part of a serialized slice.
fn part(item: &Value, name: &str) -> Value {
    item.pointer(&format!("/config/{name}")).cloned().unwrap_or_default()
}

/// The first item of a key must keep the batch as it is.
fn check_whole_batch(cx: &OpContext<'_, '_>, item: &Value) -> Result<()> {
    let whole = ["start", "stop", "step"].iter().all(|name| part(item, name).is_null());
    if class(item) == Some("__slice__") && whole {
        return Ok(());
    }
    Err(cx.argument("key", "`:` for the batch", item))
}

/// The elements that an item of a key selects: start, count and step, and whether the axis remains.
fn range(
    cx: &OpContext<'_, '_>,
    item: &Value,
    size: usize,
) -> Result<((usize, usize, isize), bool)> {
    let wrong = || cx.argument("key", &format!("an index or a slice of {size}"), item);
    let n = i64::try_from(size).map_err(|_| wrong())?;
    let from_end = |at: i64| if at < 0 { at.saturating_add(n) } else { at };
    if let Some(index) = item.as_i64() {
        let index = usize::try_from(from_end(index)).ok().filter(|i| *i < size);
        return Ok(((index.ok_or_else(wrong)?, 1, 1), false));
    }
    if class(item) != Some("__slice__") {
        return Err(wrong());
    }
    let number = |name: &str| match part(item, name) {
        Value::Null => Ok(None),
        value => value.as_i64().map(Some).ok_or_else(wrong),
    };
    let step = number("step")?.unwrap_or(1);
    // As Python: positions before the first or after the last are clipped.
    let (low, high) = if step < 0 { (-1, n - 1) } else { (0, n) };
    let end = |name: &str, default: i64| -> Result<i64> {
        Ok(number(name)?.map_or(default, |at| from_end(at).clamp(low, high)))
    };
    let (start, stop) = match step {
        0 => return Err(wrong()),
        1.. => (end("start", 0)?, end("stop", n)?),
        _ => (end("start", n - 1)?, end("stop", -1)?),
    };
    let span = if step < 0 { start - stop } else { stop - start };
    let count = usize::try_from(span).unwrap_or(0).div_ceil(step.unsigned_abs() as usize);
    match (usize::try_from(start), isize::try_from(step)) {
        (Ok(start), Ok(step)) if count > 0 => Ok(((start, count, step), true)),
        _ => Err(wrong()),
    }
}

/// The whole numbers of a call's argument.
fn plain_integers(cx: &OpContext<'_, '_>, name: &str) -> Result<Vec<i64>> {
    let wrong = || cx.argument(name, "whole numbers", "something else");
    match cx.passed(name) {
        Some(Argument::Plain(Value::Array(items))) => {
            items.iter().map(|item| item.as_i64().ok_or_else(wrong)).collect()
        }
        _ => Err(wrong()),
    }
}

/// The starts of a box within one sample.
fn starts(cx: &OpContext<'_, '_>, x: NodeId) -> Result<Vec<usize>> {
    let list = plain_integers(cx, "start_indices")?;
    let lead = usize::from(cx.is_rows(x));
    let whole = list.len() == cx.rank(x) && list[..lead].iter().all(|n| *n == 0);
    let inner: Option<Vec<usize>> =
        list.iter().skip(lead).map(|n| usize::try_from(*n).ok()).collect();
    inner.filter(|_| whole).ok_or_else(|| {
        let expected = format!("{} positions, 0 for the batch", cx.rank(x));
        cx.argument("start_indices", &expected, format!("{list:?}"))
    })
}

/// A box of elements.
fn slice_box(cx: OpCall<'_, '_, '_>) -> Result<Outputs> {
    let mut x = cx.any_tensor("inputs")?;
    let starts = starts(cx, x)?;
    let shape = cx.integers("shape")?.unwrap_or_default();
    let lead = usize::from(cx.is_rows(x));
    if shape.len() != starts.len() + lead || shape[..lead].iter().any(|n| *n != -1) {
        let expected = format!("{} sizes, -1 for the batch", starts.len() + lead);
        return Err(cx.argument("shape", &expected, format!("{shape:?}")));
    }
    for (dim, (start, size)) in starts.into_iter().zip(&shape[lead..]).enumerate() {
        let all = cx.dims(x)[dim];
        let wrong = || cx.argument("shape", &format!("a part of {all}"), size);
        let len = match size {
            -1 => all.checked_sub(start),
            size => usize::try_from(*size).ok(),
        };
        let len = len.filter(|len| *len > 0 && len.saturating_add(start) <= all);
        let len = len.ok_or_else(wrong)?;
        x = slice(cx, x, dim, (start, len))?;
    }
    Ok(x.into())
}

/// Replaces a box of elements.
fn slice_update(cx: OpCall<'_, '_, '_>) -> Result<Outputs> {
    let x = cx.tensor("inputs")?;
    let updates = cx.tensor("updates")?;
    let before = starts(cx, x)?;
    let (dims, part) = (cx.dims(x), cx.dims(updates));
    let after: Option<Vec<usize>> = (part.len() == dims.len() && before.len() == dims.len())
        .then(|| (0..dims.len()).map(|i| dims[i].checked_sub(before[i])?.checked_sub(part[i])))
        .and_then(|sizes| sizes.collect());
    let Some(after) = after.filter(|_| cx.is_rows(updates) == cx.is_rows(x)) else {
        let expected = format!("a part of {dims:?} from {before:?} on");
        return Err(cx.argument("updates", &expected, format!("{part:?}")));
    };
    let g = cx.graph();
    let new = pad(g, updates, &before, &after, PadMode::Constant(0.0))?;
    let ones = g.fill(1.0, &part);
    let inside = pad(g, ones, &before, &after, PadMode::Constant(0.0))?;
    Ok(g.select(inside, new, x)?.into())
}

/// Reverses axes.
fn flip_axes(cx: OpCall<'_, '_, '_>, axes: Option<Vec<i64>>) -> Result<Outputs> {
    let mut x = cx.tensor("x")?;
    let axes = axes.unwrap_or_else(|| (0..cx.rank(x) as i64).collect());
    for axis in axes {
        let axis = cx.dim(x, axis)?;
        x = flip(cx.graph(), x, axis)?;
    }
    Ok(x.into())
}

/// Moves elements along axes; those that leave at one end enter at the other.
fn roll(cx: OpCall<'_, '_, '_>) -> Result<Outputs> {
    let mut x = cx.tensor("x")?;
    let shifts = cx.integers("shift")?.unwrap_or_default();
    let axes = match cx.integers("axis")? {
        Some(axes) => axes.iter().map(|axis| cx.dim(x, *axis)).collect::<Result<Vec<_>>>()?,
        None => {
            let dims = cx.dims(x);
            x = cx.flat(x)?;
            let by = shifts.iter().fold(0i64, |sum, by| sum.saturating_add(*by));
            let moved = shift(cx, x, 0, by)?;
            return Ok(cx.graph().reshape(moved, &dims)?.into());
        }
    };
    let count = axes.len().max(shifts.len());
    let fits = |n: usize| n == count || n == 1;
    if !fits(axes.len()) || !fits(shifts.len()) {
        return Err(cx.argument("shift", &format!("{} numbers", axes.len()), shifts.len()));
    }
    for i in 0..count {
        let (axis, by) = (axes[i.min(axes.len() - 1)], shifts[i.min(shifts.len() - 1)]);
        x = shift(cx, x, axis, by)?;
    }
    Ok(x.into())
}

fn shift(cx: OpCall<'_, '_, '_>, x: NodeId, axis: usize, by: i64) -> Result<NodeId> {
    let size = cx.dims(x)[axis];
    let by = by.rem_euclid(size.max(1) as i64) as usize;
    if by == 0 {
        return Ok(x);
    }
    let end = slice(cx, x, axis, (size - by, by))?;
    let start = slice(cx, x, axis, (0, size - by))?;
    Ok(concat(cx.graph(), &[end, start], axis)?)
}

/// Rotates the plane of two axes by quarter turns.
fn rot90(cx: OpCall<'_, '_, '_>) -> Result<Outputs> {
    let x = cx.tensor("array")?;
    let axes = cx.integers("axes")?.unwrap_or_else(|| vec![0, 1]);
    let [first, second] = axes[..] else {
        return Err(cx.argument("axes", "two axes", format!("{axes:?}")));
    };
    let (a, b) = (cx.dim(x, first)?, cx.dim(x, second)?);
    if a == b {
        return Err(cx.argument("axes", "two different axes", format!("{axes:?}")));
    }
    let turns = cx.number_or("k", 1.0)?.rem_euclid(4.0) as usize;
    let rank = cx.dims(x).len();
    let mut perm: Vec<usize> = (0..rank).collect();
    perm.swap(a, b);
    let g = cx.graph();
    let y = match turns {
        0 => x,
        2 => {
            let y = flip(g, x, a)?;
            flip(g, y, b)?
        }
        odd => {
            let (before, after) = if odd == 1 { (Some(b), None) } else { (None, Some(b)) };
            let mut y = before.map_or(Ok(x), |axis| flip(g, x, axis))?;
            y = g.push(phalanx_graph::Op::Transpose { perm }, &[y])?;
            after.map_or(Ok(y), |axis| flip(g, y, axis))?
        }
    };
    Ok(y.into())
}

/// Differences of neighbours.
fn diff(cx: OpCall<'_, '_, '_>) -> Result<Outputs> {
    let mut x = cx.tensor("a")?;
    let axis = cx.axis(x, -1)?;
    let times = cx.number_or("n", 1.0)?;
    let size = cx.dims(x)[axis];
    if !(0.0..size as f64).contains(&times) || times > MAX_PIECES as f64 {
        return Err(cx.argument("n", &format!("fewer than {size}, the size of the axis"), times));
    }
    for _ in 0..times as usize {
        let size = cx.dims(x)[axis];
        let (next, last) = (slice(cx, x, axis, (1, size - 1))?, slice(cx, x, axis, (0, size - 1))?);
        x = cx.graph().sub(next, last)?;
    }
    Ok(x.into())
}

/// The area below points that are `dx` apart, or at the positions `x`.
fn trapezoid(cx: OpCall<'_, '_, '_>) -> Result<Outputs> {
    let y = cx.tensor("y")?;
    let axis = cx.axis(y, -1)?;
    let size = cx.dims(y)[axis];
    if size < 2 {
        return Err(cx.argument("y", "2 or more points", size));
    }
    let (next, last) = (slice(cx, y, axis, (1, size - 1))?, slice(cx, y, axis, (0, size - 1))?);
    let sum = cx.graph().add(next, last)?;
    let sum = cx.graph().scale(sum, 0.5)?;
    if !cx.option("x").is_null() {
        return Err(cx.argument("x", "null: points with equal distances", "positions"));
    }
    let dx = cx.number_or("dx", 1.0)?;
    let g = cx.graph();
    let areas = g.scale(sum, dx)?;
    let total = g.sum_axes(areas, &[axis])?;
    let mut dims = cx.dims(y);
    dims.remove(axis);
    Ok(cx.graph().reshape(total, &dims)?.into())
}

/// The elements on one side of a diagonal of the last two axes; zeros elsewhere.
fn triangle(cx: OpCall<'_, '_, '_>, lower: bool) -> Result<Outputs> {
    let x = cx.tensor("x")?;
    let k = cx.number_or("k", 0.0)?;
    let dims = cx.dims(x);
    let [.., rows, columns] = dims[..] else {
        return Err(cx.argument("x", "a matrix per sample", format!("{dims:?}")));
    };
    let kept = triangle_mask(cx, rows, columns, k, lower)?;
    let g = cx.graph();
    let zero = g.scalar(0.0);
    Ok(g.select(kept, x, zero)?.into())
}

/// 1 where `column - row` is at most (`lower`) or at least `k`.
pub(super) fn triangle_mask(
    cx: OpCall<'_, '_, '_>,
    rows: usize,
    columns: usize,
    k: f64,
    lower: bool,
) -> Result<NodeId> {
    let g = cx.graph();
    let apart = offsets(g, rows, columns)?;
    let k = g.scalar(k);
    Ok(if lower { math::less_equal(g, apart, k)? } else { math::less_equal(g, k, apart)? })
}

/// A diagonal of two axes, as the last axis.
fn diagonal(cx: OpCall<'_, '_, '_>) -> Result<NodeId> {
    let x = cx.tensor("x")?;
    let (rank, lead) = (cx.rank(x), usize::from(cx.is_rows(x)));
    let a = counted_axis(cx, "axis1", Some(0), rank)?;
    let b = counted_axis(cx, "axis2", Some(1), rank)?;
    if a == b || a < lead || b < lead {
        let received = format!("{a} and {b}");
        return Err(cx.argument("axis1, axis2", "two axes other than the batch", received));
    }
    let mut order: Vec<usize> = (0..rank).filter(|axis| *axis != a && *axis != b).collect();
    order.extend([a, b]);
    let x = permute(cx, x, &order)?;
    let dims = cx.dims(x);
    let [outer @ .., rows, columns] = &dims[..] else {
        return Err(cx.argument("x", "a matrix per sample", format!("{dims:?}")));
    };
    let offset = cx.option("offset").as_i64().unwrap_or(0);
    let shift = usize::try_from(offset.unsigned_abs()).unwrap_or(usize::MAX);
    let (row, column) = if offset < 0 { (shift, 0) } else { (0, shift) };
    let count = rows.saturating_sub(row).min(columns.saturating_sub(column));
    if count == 0 {
        let expected = format!("a diagonal of {rows} by {columns}");
        return Err(cx.argument("offset", &expected, offset));
    }
    let (start, step) = (row * columns + column, *columns as isize + 1);
    let flat = [outer, &[rows * columns]].concat();
    let g = cx.graph();
    let x = g.reshape(x, &flat)?;
    Ok(slice_steps(g, x, outer.len(), (start, count, step))?)
}

fn trace(cx: OpCall<'_, '_, '_>) -> Result<Outputs> {
    let x = diagonal(cx)?;
    let mut dims = cx.dims(x);
    let axis = dims.len() - 1;
    let sum = cx.graph().sum_axes(x, &[axis])?;
    dims.pop();
    Ok(cx.graph().reshape(sum, &dims)?.into())
}

/// Positions as integers.
fn positions(cx: OpCall<'_, '_, '_>, name: &str) -> Result<NodeId> {
    let index = cx.any_tensor(name)?;
    Ok(cx.graph().cast(index, DType::I32)?)
}

fn take_axis(cx: OpCall<'_, '_, '_>) -> Result<Outputs> {
    let x = cx.tensor("x")?;
    let index = positions(cx, "indices")?;
    let (x, axis) = cx.axis_or_flat(x)?;
    if cx.is_rows(index) && (cx.is_rows(x) || axis > 0) {
        let expected = "positions that are equal for all samples, or a table without batch";
        return Err(cx.argument("indices", expected, "positions of each sample"));
    }
    Ok(take(cx.graph(), x, index, axis)?.into())
}

fn take_along_axis(cx: OpCall<'_, '_, '_>) -> Result<Outputs> {
    let x = cx.tensor("x")?;
    let index = positions(cx, "indices")?;
    let (x, axis) = cx.axis_or_flat(x)?;
    let mut nodes = [x, index];
    cx.align(&mut nodes)?;
    if cx.dims(nodes[0]).len() != cx.dims(nodes[1]).len() {
        let expected = format!("{} axes", cx.rank(nodes[0]));
        return Err(cx.argument("indices", &expected, cx.rank(nodes[1])));
    }
    Ok(take_along(cx.graph(), nodes[0], nodes[1], axis)?.into())
}

/// Pieces of the last axis, which may overlap.
fn extract_sequences(cx: OpCall<'_, '_, '_>) -> Result<Outputs> {
    let x = cx.tensor("x")?;
    let (len, stride) = (cx.size("sequence_length", 1)?, cx.size("sequence_stride", 1)?);
    let axis = cx.dim(x, -1)?;
    let dims = cx.dims(x);
    let Some(last) = dims[axis].checked_sub(len) else {
        let expected = format!("at most {}", dims[axis]);
        return Err(cx.argument("sequence_length", &expected, len));
    };
    let count = last / stride + 1;
    if count > MAX_PIECES {
        return Err(cx.argument("sequence_stride", &format!("at most {MAX_PIECES} pieces"), count));
    }
    let shape = [&dims[..axis], &[1, len]].concat();
    let mut parts = vec![];
    for i in 0..count {
        let part = slice(cx, x, axis, (i * stride, len))?;
        parts.push(cx.graph().reshape(part, &shape)?);
    }
    Ok(concat(cx.graph(), &parts, axis)?.into())
}

ops! {
    NUMPY, "numpy";
    Diagonal(x) => |cx| Ok(diagonal(cx)?.into()),
    Diff(a) => diff,
    Flip(x) => |cx| {
        let axes = cx.integers("axis")?;
        flip_axes(cx, axes)
    },
    Fliplr(x) => |cx| flip_axes(cx, Some(vec![1])),
    Flipud(x) => |cx| flip_axes(cx, Some(vec![0])),
    GetItem(x, key) => get_item,
    Roll(x) => roll,
    Rot90(array) => rot90,
    Take(x, indices) => take_axis,
    TakeAlongAxis(x, indices) => take_along_axis,
    Trace(x) => trace,
    Trapezoid(y) => trapezoid,
    Tril(x) => |cx| triangle(cx, true),
    Triu(x) => |cx| triangle(cx, false),
}

ops! {
    CORE, "core";
    Slice(inputs, start_indices) => slice_box,
    SliceUpdate(inputs, start_indices, updates) => slice_update,
}

ops! {
    MATH, "math";
    ExtractSequences(x) => extract_sequences,
}
