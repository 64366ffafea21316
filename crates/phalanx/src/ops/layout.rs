//! Shapes: reshaping, transposing, joining, splitting, repeating and padding.

use super::context::OpContext;
use super::ops;
use crate::error::Result;
use crate::layer::{Argument, Outputs};
use phalanx_graph::functions::layout::{self, PadMode, concat, slice_steps};
use phalanx_graph::{NodeId, Op};
use serde_json::Value;

/// The largest number of tensors that an op returns.
const MAX_PARTS: usize = 4096;

/// The dimension before which a new axis is inserted. `rank` is the number of axes of the result.
fn new_axis(cx: &OpContext<'_, '_>, x: NodeId, axis: i64, rank: usize) -> Result<usize> {
    let at = cx.position(axis, rank)?.checked_sub(usize::from(cx.is_rows(x)));
    at.ok_or_else(|| cx.argument("axis", "an axis after the batch", axis))
}

fn expand_dims(cx: &mut OpContext<'_, '_>) -> Result<Outputs> {
    let x = cx.any_tensor("x")?;
    let list = cx.integers("axis")?.unwrap_or_default();
    let rank = cx.rank(x) + list.len();
    let mut axes = list.iter().map(|a| new_axis(cx, x, *a, rank)).collect::<Result<Vec<_>>>()?;
    axes.sort_unstable();
    let mut dims = cx.dims(x);
    for axis in axes {
        dims.insert(axis.min(dims.len()), 1);
    }
    Ok(cx.graph().reshape(x, &dims)?.into())
}

fn squeeze(cx: &mut OpContext<'_, '_>) -> Result<Outputs> {
    let x = cx.any_tensor("x")?;
    let dims = cx.dims(x);
    if cx.layer().is_batch_second(x) {
        let axes = cx.integers("axis")?;
        if axes.as_deref() != Some(&[0]) || dims[0] != 1 {
            return Err(cx.argument("axis", "the axis before the batch, 0", format!("{axes:?}")));
        }
        return Ok(cx.graph().reshape(x, &dims[1..])?.into());
    }
    let kept: Vec<usize> = match cx.integers("axis")? {
        None => dims.iter().copied().filter(|d| *d != 1).collect(),
        Some(list) => {
            let axes = list.iter().map(|a| cx.dim(x, *a)).collect::<Result<Vec<_>>>()?;
            if let Some(axis) = axes.iter().find(|a| dims[**a] != 1) {
                return Err(cx.argument("axis", "axes of size 1", dims[*axis]));
            }
            (0..dims.len()).filter(|i| !axes.contains(i)).map(|i| dims[i]).collect()
        }
    };
    Ok(cx.graph().reshape(x, &kept)?.into())
}

fn reshape(cx: &mut OpContext<'_, '_>) -> Result<Outputs> {
    let x = cx.any_tensor("x")?;
    let len: usize = cx.dims(x).iter().product();
    let shape = cx.option("newshape");
    let wrong = |cx: &OpContext<'_, '_>| {
        cx.argument("newshape", "a shape that keeps the samples apart", &shape)
    };
    let sizes: Vec<Option<i64>> = match &shape {
        Value::Array(sizes) => sizes.iter().map(Value::as_i64).collect(),
        one => vec![one.as_i64()],
    };
    // The batch is the first axis, open (-1 or null).
    let rest = match (cx.is_rows(x), sizes.split_first()) {
        (false, _) => &sizes[..],
        (true, Some((None | Some(-1), rest))) => rest,
        _ => return Err(wrong(cx)),
    };
    let mut known = 1usize;
    let mut open = 0;
    for size in rest {
        match size.map(usize::try_from) {
            Some(Ok(n)) => known = known.checked_mul(n).ok_or_else(|| wrong(cx))?,
            _ => open += 1,
        }
    }
    if open > 1 || known == 0 || !len.is_multiple_of(known) || (open == 0 && known != len) {
        return Err(wrong(cx));
    }
    let fill = len / known;
    let dims: Vec<usize> =
        rest.iter().map(|s| s.and_then(|n| usize::try_from(n).ok()).unwrap_or(fill)).collect();
    Ok(cx.graph().reshape(x, &dims)?.into())
}

/// Permutes axes, which count the batch.
pub(super) fn permute(cx: &mut OpContext<'_, '_>, x: NodeId, axes: &[usize]) -> Result<NodeId> {
    let mut perm = axes.to_vec();
    if cx.is_rows(x) {
        if perm.first() != Some(&0) {
            return Err(cx.argument("axes", "the batch first", format!("{axes:?}")));
        }
        perm = perm[1..].iter().map(|a| a - 1).collect();
    }
    if perm.iter().copied().eq(0..perm.len()) {
        return Ok(x);
    }
    Ok(cx.graph().push(Op::Transpose { perm }, &[x])?)
}

fn transpose(cx: &mut OpContext<'_, '_>) -> Result<Outputs> {
    let x = cx.any_tensor("x")?;
    let rank = cx.rank(x);
    let list = cx.integers("axes")?.unwrap_or_else(|| (0..rank as i64).rev().collect());
    let axes = list.iter().map(|a| cx.position(*a, rank)).collect::<Result<Vec<_>>>()?;
    let mut sorted = axes.clone();
    sorted.sort_unstable();
    if !sorted.iter().copied().eq(0..rank) {
        return Err(cx.argument("axes", &format!("each of {rank} axes once"), format!("{list:?}")));
    }
    Ok(permute(cx, x, &axes)?.into())
}

/// An axis of the option `name`, which counts the batch.
pub(super) fn counted_axis(
    cx: &OpContext<'_, '_>,
    name: &str,
    default: Option<i64>,
    rank: usize,
) -> Result<usize> {
    let axis = cx.option(name).as_i64().or(default);
    let axis = axis.ok_or_else(|| cx.argument(name, "an axis", cx.option(name)))?;
    cx.position(axis, rank)
}

fn swap_axes(cx: &mut OpContext<'_, '_>) -> Result<Outputs> {
    let x = cx.any_tensor("x")?;
    let rank = cx.rank(x);
    let (a, b) = (counted_axis(cx, "axis1", None, rank)?, counted_axis(cx, "axis2", None, rank)?);
    let mut axes: Vec<usize> = (0..rank).collect();
    axes.swap(a, b);
    Ok(permute(cx, x, &axes)?.into())
}

fn move_axis(cx: &mut OpContext<'_, '_>) -> Result<Outputs> {
    let x = cx.any_tensor("x")?;
    let rank = cx.rank(x);
    let axes = |cx: &OpContext<'_, '_>, name: &str| {
        let list = cx.integers(name)?.unwrap_or_default();
        list.iter().map(|a| cx.position(*a, rank)).collect::<Result<Vec<usize>>>()
    };
    let (source, destination) = (axes(cx, "source")?, axes(cx, "destination")?);
    if source.len() != destination.len() {
        return Err(cx.argument("destination", "as many axes as source", destination.len()));
    }
    let mut order: Vec<usize> = (0..rank).filter(|a| !source.contains(a)).collect();
    let mut pairs: Vec<(usize, usize)> = destination.into_iter().zip(source).collect();
    pairs.sort_unstable();
    for (to, from) in pairs {
        order.insert(to.min(order.len()), from);
    }
    if order.len() != rank {
        return Err(cx.argument("source", "different axes", "one twice"));
    }
    Ok(permute(cx, x, &order)?.into())
}

/// Concatenates values along an axis that counts the batch.
fn concatenate(cx: &mut OpContext<'_, '_>, mut parts: Vec<NodeId>, axis: i64) -> Result<Outputs> {
    cx.align(&mut parts)?;
    let rows = parts.iter().copied().find(|x| cx.is_rows(*x)).unwrap_or(parts[0]);
    let axis = cx.dim(rows, axis)?;
    Ok(concat(cx.graph(), &parts, axis)?.into())
}

fn concat_axis(cx: &mut OpContext<'_, '_>) -> Result<Outputs> {
    let parts = cx.tensors("xs")?;
    let axis = cx.integers("axis")?.and_then(|a| a.first().copied()).unwrap_or(0);
    concatenate(cx, parts, axis)
}

fn append(cx: &mut OpContext<'_, '_>) -> Result<Outputs> {
    let mut parts = vec![cx.tensor("x1")?, cx.tensor("x2")?];
    match cx.integers("axis")?.as_deref() {
        Some([axis, ..]) => concatenate(cx, parts, *axis),
        _ => {
            for x in &mut parts {
                *x = cx.flat(*x)?;
            }
            concatenate(cx, parts, 0)
        }
    }
}

/// Concatenates along an axis after giving every value at least `rank` axes.
fn stack_along(cx: &mut OpContext<'_, '_>, rank: usize, axis: i64) -> Result<Outputs> {
    let mut parts = cx.tensors("xs")?;
    for x in &mut parts {
        let (mut dims, missing) = (cx.dims(*x), rank.saturating_sub(cx.rank(*x)));
        // A vector becomes a row of a matrix; a matrix gets a last axis.
        match (dims.len(), cx.is_rows(*x), missing) {
            (_, _, 0) => continue,
            (_, true, 1) | (2.., ..) => dims.push(1),
            (1, false, n) => {
                dims.insert(0, 1);
                dims.extend(vec![1; n - 1]);
            }
            _ => return Err(cx.argument("xs", "values that keep the batch", "vectors")),
        }
        *x = cx.graph().reshape(*x, &dims)?;
    }
    concatenate(cx, parts, axis)
}

/// `hstack`: along the second axis, the first of vectors.
fn hstack(cx: &mut OpContext<'_, '_>) -> Result<Outputs> {
    let parts = cx.tensors("xs")?;
    let axis = i64::from(cx.rank(parts[0]) > 1);
    concatenate(cx, parts, axis)
}

fn stack(cx: &mut OpContext<'_, '_>) -> Result<Outputs> {
    let mut parts = cx.tensors("x")?;
    cx.align(&mut parts)?;
    let rows = parts.iter().copied().find(|x| cx.is_rows(*x)).unwrap_or(parts[0]);
    let mut dims = cx.dims(rows);
    let axis = cx.integers("axis")?.and_then(|a| a.first().copied()).unwrap_or(0);
    let axis = new_axis(cx, rows, axis, cx.rank(rows) + 1)?;
    dims.insert(axis, 1);
    for x in &mut parts {
        *x = cx.graph().reshape(*x, &dims)?;
    }
    Ok(concat(cx.graph(), &parts, axis)?.into())
}

/// A part of an axis.
pub(super) fn slice(
    cx: &mut OpContext<'_, '_>,
    x: NodeId,
    axis: usize,
    (start, len): (usize, usize),
) -> Result<NodeId> {
    Ok(slice_steps(cx.graph(), x, axis, (start, len, 1))?)
}

/// Splits an axis, into equal parts unless `uneven`.
fn split(cx: &mut OpContext<'_, '_>, axis: Option<i64>, uneven: bool) -> Result<Outputs> {
    let x = cx.any_tensor("x")?;
    let axis = match axis {
        Some(axis) => cx.dim(x, axis)?,
        None => cx.axis(x, 0)?,
    };
    let size = cx.dims(x)[axis];
    let wrong = |cx: &OpContext<'_, '_>| {
        let expected = format!("a divisor of {size}, or ascending positions up to it");
        cx.argument("indices_or_sections", &expected, cx.option("indices_or_sections"))
    };
    let ends: Vec<usize> = match cx.option("indices_or_sections") {
        Value::Number(n) => {
            let parts = n.as_u64().and_then(|n| usize::try_from(n).ok()).filter(|n| *n > 0);
            let fits = |n: &usize| size.is_multiple_of(*n) || (uneven && *n <= size);
            let parts = parts.filter(fits).ok_or_else(|| wrong(cx))?;
            // The first parts have one element more.
            (1..=parts).map(|i| i * (size / parts) + i.min(size % parts)).collect()
        }
        Value::Array(list) => {
            let list: Option<Vec<usize>> =
                list.iter().map(|v| usize::try_from(v.as_u64()?).ok()).collect();
            let mut ends = list.ok_or_else(|| wrong(cx))?;
            ends.push(size);
            ends
        }
        _ => return Err(wrong(cx)),
    };
    if ends.len() > MAX_PARTS {
        return Err(cx.argument("axis", &format!("at most {MAX_PARTS} parts"), ends.len()));
    }
    let mut start = 0;
    let mut parts = vec![];
    for end in ends {
        if end <= start || end > size {
            return Err(wrong(cx));
        }
        parts.push(slice(cx, x, axis, (start, end - start))?);
        start = end;
    }
    Ok(parts.into())
}

fn unstack(cx: &mut OpContext<'_, '_>) -> Result<Outputs> {
    let x = cx.any_tensor("x")?;
    let axis = cx.axis(x, 0)?;
    let mut kept = cx.dims(x);
    let size = kept.remove(axis);
    if size > MAX_PARTS {
        return Err(cx.argument("axis", &format!("at most {MAX_PARTS} parts"), size));
    }
    let mut parts = vec![];
    for i in 0..size {
        let part = slice(cx, x, axis, (i, 1))?;
        parts.push(cx.graph().reshape(part, &kept)?);
    }
    Ok(parts.into())
}

fn broadcast(cx: &mut OpContext<'_, '_>) -> Result<Outputs> {
    let x = cx.tensor("x")?;
    let shape = cx.option("shape");
    let sizes = shape.as_array().map(|s| s.iter().map(Value::as_u64).collect::<Vec<_>>());
    let wrong =
        |cx: &OpContext<'_, '_>| cx.argument("shape", "(None, ..) with known sizes", &shape);
    let sizes = sizes.ok_or_else(|| wrong(cx))?;
    let rest = &sizes[usize::from(cx.is_rows(x)).min(sizes.len())..];
    let dims: Option<Vec<usize>> =
        rest.iter().map(|s| s.and_then(|n| usize::try_from(n).ok())).collect();
    let dims = dims.ok_or_else(|| wrong(cx))?;
    if cx.is_rows(x) && dims.len() != cx.dims(x).len() {
        return Err(wrong(cx));
    }
    Ok(cx.graph().push(Op::Broadcast { dims }, &[x])?.into())
}

/// Repeats every element along an axis.
fn repeat(cx: &mut OpContext<'_, '_>) -> Result<Outputs> {
    let x = cx.tensor("x")?;
    let times = match cx.integers("repeats")?.as_deref() {
        Some([times]) => usize::try_from(*times).ok().filter(|n| *n > 0),
        _ => None,
    };
    let Some(times) = times else {
        return Err(cx.argument("repeats", "one number above 0", cx.option("repeats")));
    };
    let (x, axis) = cx.axis_or_flat(x)?;
    let dims = cx.dims(x);
    let (mut apart, mut spread, mut merged) = (dims.clone(), dims.clone(), dims);
    apart.insert(axis + 1, 1);
    spread.insert(axis + 1, times);
    merged[axis] = merged[axis].saturating_mul(times);
    let g = cx.graph();
    let x = g.reshape(x, &apart)?;
    let x = g.push(Op::Broadcast { dims: spread }, &[x])?;
    Ok(g.reshape(x, &merged)?.into())
}

/// Repeats the whole value along axes.
fn tile(cx: &mut OpContext<'_, '_>) -> Result<Outputs> {
    let x = cx.tensor("x")?;
    let rank = cx.rank(x);
    let mut repeats = cx.integers("repeats")?.unwrap_or_default();
    while repeats.len() < rank {
        repeats.insert(0, 1);
    }
    let lead = usize::from(cx.is_rows(x));
    let times: Option<Vec<usize>> =
        repeats[lead..].iter().map(|n| usize::try_from(*n).ok().filter(|n| *n > 0)).collect();
    let kept = repeats.len() == rank && repeats[..lead].iter().all(|n| *n == 1);
    let Some(times) = times.filter(|_| kept) else {
        let expected = format!("{rank} numbers above 0, 1 for the batch");
        return Err(cx.argument("repeats", &expected, format!("{repeats:?}")));
    };
    let dims = cx.dims(x);
    let pairs = |first: &dyn Fn(usize) -> usize| -> Vec<usize> {
        (0..dims.len()).flat_map(|i| [first(i), dims[i]]).collect()
    };
    let (apart, spread) = (pairs(&|_| 1), pairs(&|i| times[i]));
    let merged: Vec<usize> = dims.iter().zip(&times).map(|(d, n)| d.saturating_mul(*n)).collect();
    let g = cx.graph();
    let x = g.reshape(x, &apart)?;
    let x = g.push(Op::Broadcast { dims: spread }, &[x])?;
    Ok(g.reshape(x, &merged)?.into())
}

/// A mode of padding by its name in NumPy.
fn pad_mode(cx: &mut OpContext<'_, '_>) -> Result<PadMode> {
    let mode = cx.option("mode");
    let constant = match cx.passed("constant_values") {
        Some(Argument::Plain(value)) => value.as_f64(),
        Some(_) => None,
        None => Some(0.0),
    };
    match (mode.as_str().unwrap_or("constant"), constant) {
        ("constant", Some(value)) => Ok(PadMode::Constant(value)),
        ("constant", None) => Err(cx.argument("constant_values", "a number", "something else")),
        ("edge", _) => Ok(PadMode::Edge),
        ("reflect", _) => Ok(PadMode::Reflect),
        ("symmetric", _) => Ok(PadMode::Symmetric),
        ("wrap", _) => Ok(PadMode::Wrap),
        _ => Err(cx.argument("mode", "constant, edge, reflect, symmetric or wrap", mode)),
    }
}

fn pad(cx: &mut OpContext<'_, '_>) -> Result<Outputs> {
    let x = cx.tensor("x")?;
    let (rank, lead) = (cx.rank(x), usize::from(cx.is_rows(x)));
    let mode = pad_mode(cx)?;
    let width = cx.option("pad_width");
    let pair = |value: &Value| serde_json::from_value::<[usize; 2]>(value.clone()).ok();
    let pairs: Option<Vec<[usize; 2]>> = match &width {
        // One number, or one pair, for all axes.
        Value::Number(n) => {
            n.as_u64().and_then(|n| usize::try_from(n).ok()).map(|n| vec![[n; 2]; rank])
        }
        one if pair(one).is_some() => pair(one).map(|pair| vec![pair; rank]),
        Value::Array(list) if list.len() == 1 => pair(&list[0]).map(|pair| vec![pair; rank]),
        Value::Array(list) => list.iter().map(pair).collect(),
        _ => None,
    };
    let kept = |pairs: &Vec<[usize; 2]>| {
        pairs.len() == rank && pairs[..lead].iter().all(|pair| *pair == [0, 0])
    };
    let Some(pairs) = pairs.filter(kept) else {
        let expected = format!("{rank} pairs, (0, 0) for the batch");
        return Err(cx.argument("pad_width", &expected, width));
    };
    let side = |i: usize| pairs[lead..].iter().map(|pair| pair[i]).collect::<Vec<usize>>();
    Ok(layout::pad(cx.graph(), x, &side(0), &side(1), mode)?.into())
}

ops! {
    NUMPY, "numpy";
    Append(x1, x2) => append,
    ArraySplit(x) => |cx| split(cx, None, true),
    BroadcastTo(x) => broadcast,
    Concatenate(xs) => concat_axis,
    Dsplit(x) => |cx| split(cx, Some(2), false),
    Dstack(xs) => |cx| stack_along(cx, 3, 2),
    ExpandDims(x) => expand_dims,
    Hsplit(x) => |cx| split(cx, Some(1), false),
    Hstack(xs) => hstack,
    Moveaxis(x) => move_axis,
    Pad(x, constant_values) => pad,
    Ravel(x) => |cx| {
        let x = cx.tensor("x")?;
        Ok(cx.flat(x)?.into())
    },
    Repeat(x) => repeat,
    Reshape(x) => reshape,
    Split(x) => |cx| split(cx, None, false),
    Squeeze(x) => squeeze,
    Stack(x) => stack,
    Swapaxes(x) => swap_axes,
    Tile(x) => tile,
    Transpose(x) => transpose,
    Vsplit(x) => |cx| split(cx, Some(0), false),
    Vstack(xs) => |cx| stack_along(cx, 2, 0),
}

ops! {
    CORE, "core";
    Unstack(x) => unstack,
}
