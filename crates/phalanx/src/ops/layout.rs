//! Ops that move elements.

use super::context::OpContext;
use super::{elementwise, ops};
use crate::error::Result;
use crate::layer::{Argument, Outputs};
use phalanx_graph::{NodeId, Op};
use serde_json::Value;

fn rank(cx: &OpContext<'_, '_>, x: NodeId) -> usize {
    cx.dims(x).len() + 1
}

fn expand_dims(cx: &mut OpContext<'_, '_>) -> Result<Outputs> {
    let x = cx.any_tensor("x")?;
    let list = cx.integers("axis")?.unwrap_or_default();
    let rank = rank(cx, x) + list.len();
    let mut axes = list.iter().map(|a| cx.sample_axis(*a, rank)).collect::<Result<Vec<_>>>()?;
    axes.sort_unstable();
    let mut dims = cx.dims(x);
    for axis in axes {
        dims.insert(axis.min(dims.len()), 1);
    }
    Ok(cx.graph().reshape(x, &dims)?.into())
}

fn squeeze(cx: &mut OpContext<'_, '_>) -> Result<Outputs> {
    let x = cx.any_tensor("x")?;
    let (dims, rank) = (cx.dims(x), rank(cx, x));
    let kept: Vec<usize> = match cx.integers("axis")? {
        None => dims.iter().copied().filter(|d| *d != 1).collect(),
        Some(list) => {
            let axes = list.iter().map(|a| cx.sample_axis(*a, rank)).collect::<Result<Vec<_>>>()?;
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
    let dims = cx.dims(x);
    let len: usize = dims.iter().product();
    let shape = cx.option("newshape");
    let wrong = |cx: &OpContext<'_, '_>| {
        cx.argument("newshape", "a shape that keeps the samples apart", &shape)
    };
    let sizes = shape.as_array().ok_or_else(|| wrong(cx))?;
    let sizes: Vec<Option<i64>> = sizes.iter().map(Value::as_i64).collect();
    // The batch is the first axis, open (-1 or null).
    let Some((None | Some(-1), rest)) = sizes.split_first().map(|(f, r)| (*f, r)) else {
        return Err(wrong(cx));
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
fn permute(cx: &mut OpContext<'_, '_>, x: NodeId, axes: &[usize]) -> Result<Outputs> {
    if axes.first() != Some(&0) {
        return Err(cx.argument("axes", "the batch first", format!("{axes:?}")));
    }
    let perm: Vec<usize> = axes[1..].iter().map(|a| a - 1).collect();
    Ok(cx.graph().push(Op::Transpose { perm }, &[x])?.into())
}

fn positive(cx: &OpContext<'_, '_>, axis: i64, rank: usize) -> Result<usize> {
    Ok(cx.axis(axis, rank)?.map_or(0, |a| a + 1))
}

fn transpose(cx: &mut OpContext<'_, '_>) -> Result<Outputs> {
    let x = cx.any_tensor("x")?;
    let rank = rank(cx, x);
    let Some(list) = cx.integers("axes")? else {
        return Err(cx.argument("axes", "the batch first", "all axes reversed"));
    };
    let axes = list.iter().map(|a| positive(cx, *a, rank)).collect::<Result<Vec<_>>>()?;
    let mut sorted = axes.clone();
    sorted.sort_unstable();
    if !sorted.iter().copied().eq(0..rank) {
        return Err(cx.argument("axes", &format!("each of {rank} axes once"), format!("{list:?}")));
    }
    permute(cx, x, &axes)
}

fn swap_axes(cx: &mut OpContext<'_, '_>) -> Result<Outputs> {
    let x = cx.any_tensor("x")?;
    let rank = rank(cx, x);
    let one = |cx: &OpContext<'_, '_>, name: &str| {
        let axis = cx.option(name).as_i64();
        let axis = axis.ok_or_else(|| cx.argument(name, "an axis", cx.option(name)))?;
        positive(cx, axis, rank)
    };
    let (a, b) = (one(cx, "axis1")?, one(cx, "axis2")?);
    let mut axes: Vec<usize> = (0..rank).collect();
    axes.swap(a, b);
    permute(cx, x, &axes)
}

fn move_axis(cx: &mut OpContext<'_, '_>) -> Result<Outputs> {
    let x = cx.any_tensor("x")?;
    let rank = rank(cx, x);
    let axes = |cx: &OpContext<'_, '_>, name: &str| {
        let list = cx.integers(name)?.unwrap_or_default();
        list.iter().map(|a| positive(cx, *a, rank)).collect::<Result<Vec<usize>>>()
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
    permute(cx, x, &order)
}

/// Gives every operand rows if one has them, so that they can be concatenated.
fn concatenate(cx: &mut OpContext<'_, '_>, parts: &[NodeId], axis: usize) -> Result<NodeId> {
    Ok(cx.graph().push(Op::Concat { axis }, parts)?)
}

fn concat(cx: &mut OpContext<'_, '_>) -> Result<Outputs> {
    let parts = cx.tensors("xs")?;
    let Some(first) = parts.first() else { return Err(cx.argument("xs", "1 or more", 0)) };
    let axis = cx.integers("axis")?.and_then(|a| a.first().copied()).unwrap_or(0);
    let axis = cx.sample_axis(axis, rank(cx, *first))?;
    Ok(concatenate(cx, &parts, axis)?.into())
}

fn stack(cx: &mut OpContext<'_, '_>) -> Result<Outputs> {
    let parts = cx.tensors("x")?;
    let Some(first) = parts.first() else { return Err(cx.argument("x", "1 or more", 0)) };
    let mut dims = cx.dims(*first);
    let axis = cx.integers("axis")?.and_then(|a| a.first().copied()).unwrap_or(0);
    let axis = cx.sample_axis(axis, dims.len() + 2)?;
    dims.insert(axis, 1);
    let parts = parts.iter().map(|x| cx.graph().reshape(*x, &dims));
    let parts = parts.collect::<std::result::Result<Vec<_>, _>>()?;
    Ok(concatenate(cx, &parts, axis)?.into())
}

fn slice(
    cx: &mut OpContext<'_, '_>,
    x: NodeId,
    axis: usize,
    start: usize,
    len: usize,
) -> Result<NodeId> {
    if start == 0 && cx.dims(x)[axis] == len {
        return Ok(x);
    }
    Ok(cx.graph().push(Op::Slice { axis, start, len }, &[x])?)
}

fn split(cx: &mut OpContext<'_, '_>) -> Result<Outputs> {
    let x = cx.any_tensor("x")?;
    let dims = cx.dims(x);
    let axis = cx.integers("axis")?.and_then(|a| a.first().copied()).unwrap_or(0);
    let axis = cx.sample_axis(axis, dims.len() + 1)?;
    let size = dims[axis];
    let wrong = |cx: &OpContext<'_, '_>| {
        let expected = format!("a divisor of {size}, or ascending positions up to it");
        cx.argument("indices_or_sections", &expected, cx.option("indices_or_sections"))
    };
    let ends: Vec<usize> = match cx.option("indices_or_sections") {
        Value::Number(n) => {
            let parts = n.as_u64().and_then(|n| usize::try_from(n).ok()).filter(|n| *n > 0);
            let parts = parts.filter(|n| size.is_multiple_of(*n)).ok_or_else(|| wrong(cx))?;
            (1..=parts).map(|i| i * (size / parts)).collect()
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
    let mut start = 0;
    let mut parts = vec![];
    for end in ends {
        if end <= start || end > size {
            return Err(wrong(cx));
        }
        parts.push(slice(cx, x, axis, start, end - start)?);
        start = end;
    }
    Ok(parts.into())
}

fn unstack(cx: &mut OpContext<'_, '_>) -> Result<Outputs> {
    let x = cx.any_tensor("x")?;
    let dims = cx.dims(x);
    let axis = cx.integers("axis")?.and_then(|a| a.first().copied()).unwrap_or(0);
    let axis = cx.sample_axis(axis, dims.len() + 1)?;
    let mut kept = dims.clone();
    kept.remove(axis);
    let mut parts = vec![];
    for i in 0..dims[axis] {
        let part = slice(cx, x, axis, i, 1)?;
        parts.push(cx.graph().reshape(part, &kept)?);
    }
    Ok(parts.into())
}

fn broadcast(cx: &mut OpContext<'_, '_>) -> Result<Outputs> {
    let x = cx.any_tensor("x")?;
    let shape = cx.option("shape");
    let sizes = shape.as_array().map(|s| s.iter().map(Value::as_u64).collect::<Vec<_>>());
    let wrong =
        |cx: &OpContext<'_, '_>| cx.argument("shape", "(None, ..) with known sizes", &shape);
    let Some([_, rest @ ..]) = sizes.as_deref() else { return Err(wrong(cx)) };
    let dims: Option<Vec<usize>> =
        rest.iter().map(|s| s.and_then(|n| usize::try_from(n).ok())).collect();
    let dims = dims.ok_or_else(|| wrong(cx))?;
    Ok(cx.graph().push(Op::Broadcast { dims }, &[x])?.into())
}

/// Repeats every element along an axis.
fn repeat(cx: &mut OpContext<'_, '_>) -> Result<Outputs> {
    let x = cx.tensor("x")?;
    let dims = cx.dims(x);
    let times = cx.option("repeats").as_u64().and_then(|n| usize::try_from(n).ok());
    let axis = cx.integers("axis")?.and_then(|a| a.first().copied());
    let (Some(times), Some(axis)) = (times.filter(|n| *n > 0), axis) else {
        return Err(cx.argument("repeats, axis", "a number and an axis", cx.option("repeats")));
    };
    let axis = cx.sample_axis(axis, dims.len() + 1)?;
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
    let mut x = cx.tensor("x")?;
    let rank = rank(cx, x);
    let repeats = cx.integers("repeats")?.unwrap_or_default();
    if repeats.len() != rank || repeats[0] != 1 || repeats.iter().any(|n| *n < 1) {
        let expected = format!("{rank} numbers, the first 1");
        return Err(cx.argument("repeats", &expected, format!("{repeats:?}")));
    }
    for (axis, times) in repeats[1..].iter().enumerate() {
        if *times > 1 {
            let parts = vec![x; usize::try_from(*times).unwrap_or(1).min(1 << 16)];
            x = concatenate(cx, &parts, axis)?;
        }
    }
    Ok(x.into())
}

/// `x[:, 1:3, 0]`: slices with step 1, whole numbers, new axes and one ellipsis.
fn get_item(cx: &mut OpContext<'_, '_>) -> Result<Outputs> {
    let mut x = cx.any_tensor("x")?;
    let key = match cx.passed("key") {
        Some(Argument::Plain(Value::Array(items))) => items.clone(),
        Some(Argument::Plain(item)) => vec![item.clone()],
        Some(Argument::List(items)) if items.is_empty() => vec![],
        _ => return Err(cx.argument("key", "slices and whole numbers", "tensors")),
    };
    let class = |item: &Value| item.get("class_name").and_then(Value::as_str).map(str::to_string);
    let is_ellipsis = |item: &Value| class(item).as_deref() == Some("__ellipsis__");
    let indexed = key.iter().filter(|item| !item.is_null() && !is_ellipsis(item)).count();
    let rank = rank(cx, x);
    if indexed > rank {
        return Err(cx.argument("key", &format!("at most {rank} axes"), indexed));
    }
    // The axis of the sample that the next item means; the batch is axis -1 here.
    let mut axis: i64 = -1;
    let mut dims_after: Vec<usize> = vec![];
    for item in &key {
        if is_ellipsis(item) {
            for _ in indexed..rank {
                if axis >= 0 {
                    dims_after.push(cx.dims(x)[axis as usize]);
                }
                axis += 1;
            }
            continue;
        }
        if axis < 0 {
            check_whole_batch(cx, item)?;
            axis += 1;
            continue;
        }
        if item.is_null() {
            dims_after.push(1);
            continue;
        }
        let size = cx.dims(x)[axis as usize];
        let (start, len, keep) = range(cx, item, size)?;
        x = slice(cx, x, axis as usize, start, len)?;
        if keep {
            dims_after.push(len);
        }
        axis += 1;
    }
    let dims = cx.dims(x);
    let rest = usize::try_from(axis).unwrap_or(0);
    dims_after.extend(&dims[rest.min(dims.len())..]);
    Ok(cx.graph().reshape(x, &dims_after)?.into())
}

/// The first item of a key must keep the batch as it is.
fn check_whole_batch(cx: &OpContext<'_, '_>, item: &Value) -> Result<()> {
    let part = |name: &str| item.pointer(&format!("/config/{name}")).cloned().unwrap_or_default();
    let whole = ["start", "stop", "step"].iter().all(|name| part(name).is_null());
    let is_slice = item.get("class_name").and_then(Value::as_str) == Some("__slice__");
    if is_slice && whole {
        return Ok(());
    }
    Err(cx.argument("key", "`:` for the batch", item))
}

/// The range of an item of a key: start, length, and whether the axis remains.
fn range(cx: &OpContext<'_, '_>, item: &Value, size: usize) -> Result<(usize, usize, bool)> {
    let wrong = || cx.argument("key", &format!("an index or a slice with step 1 of {size}"), item);
    let position = |n: i64| if n < 0 { n.saturating_add(size as i64) } else { n };
    if let Some(index) = item.as_i64() {
        let index = usize::try_from(position(index)).ok().filter(|i| *i < size);
        return Ok((index.ok_or_else(wrong)?, 1, false));
    }
    if item.get("class_name").and_then(Value::as_str) != Some("__slice__") {
        return Err(wrong());
    }
    let part = |name: &str| item.pointer(&format!("/config/{name}")).cloned().unwrap_or_default();
    if !matches!(part("step"), Value::Null) && part("step").as_i64() != Some(1) {
        return Err(wrong());
    }
    let end = |name: &str, default: usize| -> Result<usize> {
        match part(name) {
            Value::Null => Ok(default),
            value => {
                let n = value.as_i64().ok_or_else(wrong)?;
                Ok(usize::try_from(position(n).max(0)).unwrap_or(0).min(size))
            }
        }
    };
    let (start, stop) = (end("start", 0)?, end("stop", size)?);
    match stop.checked_sub(start) {
        Some(len) if len > 0 => Ok((start, len, true)),
        _ => Err(wrong()),
    }
}

fn flip(cx: &mut OpContext<'_, '_>) -> Result<Outputs> {
    let mut x = cx.tensor("x")?;
    let rank = rank(cx, x);
    let Some(axes) = cx.integers("axis")? else {
        return Err(cx.argument("axis", "axes other than the batch", "all axes"));
    };
    for axis in axes {
        let axis = cx.sample_axis(axis, rank)?;
        let size = cx.dims(x)[axis];
        let parts =
            (0..size).rev().map(|i| slice(cx, x, axis, i, 1)).collect::<Result<Vec<_>>>()?;
        x = concatenate(cx, &parts, axis)?;
    }
    Ok(x.into())
}

fn pad(cx: &mut OpContext<'_, '_>) -> Result<Outputs> {
    let x = cx.tensor("x")?;
    let rank = rank(cx, x);
    let width = cx.option("pad_width");
    let mode = cx.option("mode");
    if !mode.is_null() && mode != "constant" {
        return Err(cx.argument("mode", "constant", mode));
    }
    let value = match cx.option("constant_values") {
        Value::Null => 0.0,
        value => value.as_f64().unwrap_or(f64::NAN),
    };
    if value != 0.0 {
        return Err(cx.argument("constant_values", "0", value));
    }
    let pairs: Option<Vec<[usize; 2]>> = width.as_array().and_then(|list| {
        list.iter().map(|pair| serde_json::from_value(pair.clone()).ok()).collect()
    });
    let pairs = pairs.filter(|pairs| pairs.len() == rank && pairs[0] == [0, 0]);
    let Some(pairs) = pairs else {
        let expected = format!("{rank} pairs, the first (0, 0)");
        return Err(cx.argument("pad_width", &expected, width));
    };
    let side = |i: usize| pairs[1..].iter().map(|pair| pair[i]).collect::<Vec<usize>>();
    let op = Op::Pad { before: side(0), after: side(1) };
    Ok(cx.graph().push(op, &[x])?.into())
}

ops! {
    NUMPY, "numpy";
    BroadcastTo(x) => broadcast,
    Concatenate(xs) => concat,
    ExpandDims(x) => expand_dims,
    Flip(x) => flip,
    GetItem(x, key) => get_item,
    Moveaxis(x) => move_axis,
    Pad(x, constant_values) => pad,
    Repeat(x) => repeat,
    Reshape(x) => reshape,
    Split(x) => split,
    Squeeze(x) => squeeze,
    Stack(x) => stack,
    Swapaxes(x) => swap_axes,
    Tile(x) => tile,
    Transpose(x) => transpose,
}

ops! {
    CORE, "core";
    Cast(x) => elementwise::CAST,
    Unstack(x) => unstack,
}
