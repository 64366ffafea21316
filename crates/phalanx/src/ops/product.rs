//! Products, norms and distances.

use super::context::{GraphResult, OpCall, OpContext};
use super::layout::slice;
use super::ops;
use super::reduce::{Axes, sum};
use crate::error::Result;
use crate::layer::Outputs;
use phalanx_graph::functions::index::{max_axes, min_axes};
use phalanx_graph::functions::layout::concat;
use phalanx_graph::functions::math;
use phalanx_graph::ops::{Binary, Unary};
use phalanx_graph::{Graph, NodeId};
use serde_json::Value;

fn matmul(cx: OpCall<'_, '_, '_>) -> Result<Outputs> {
    let (a, b) = (cx.tensor("x1")?, cx.tensor("x2")?);
    Ok(cx.graph().matmul(a, b)?.into())
}

fn einsum(cx: OpCall<'_, '_, '_>) -> Result<Outputs> {
    let operands = cx.positional()?;
    let subscripts = cx.option("subscripts");
    let Some(subscripts) = subscripts.as_str() else {
        return Err(cx.argument("subscripts", "a string", &subscripts));
    };
    Ok(cx.graph().einsum(subscripts, &operands)?.into())
}

/// The product of two values summed over pairs of axes, which count the batch. The other axes remain, those of `a`
/// first.
fn contract(
    cx: OpCall<'_, '_, '_>,
    [a, b]: [NodeId; 2],
    axes: &[(usize, usize)],
) -> Result<Outputs> {
    let (left, right) = (cx.rank(a), cx.rank(b));
    if left + right > 52 {
        return Err(cx.argument("x1, x2", "at most 52 axes together", left + right));
    }
    let letter = |i: usize| char::from(if i < 26 { b'a' + i as u8 } else { b'A' + (i - 26) as u8 });
    let first: Vec<char> = (0..left).map(letter).collect();
    let mut second: Vec<char> = (left..left + right).map(letter).collect();
    for (i, j) in axes {
        second[*j] = first[*i];
    }
    let kept = |l: &&char| !(first.contains(l) && second.contains(l));
    let result: String = first.iter().chain(&second).filter(kept).collect();
    let text = |letters: &[char]| letters.iter().collect::<String>();
    let subscripts = format!("{},{}->{result}", text(&first), text(&second));
    Ok(cx.graph().einsum(&subscripts, &[a, b])?.into())
}

/// `dot`: the sum over the last axis of `x1` and the last but one of `x2`.
fn dot(cx: OpCall<'_, '_, '_>) -> Result<Outputs> {
    let pair = [cx.tensor("x1")?, cx.tensor("x2")?];
    match pair.map(|x| cx.rank(x)) {
        [0, _] | [_, 0] => Ok(cx.graph().mul(pair[0], pair[1])?.into()),
        [left, right] => contract(cx, pair, &[(left - 1, right.saturating_sub(2))]),
    }
}

/// `inner`: the sum over the last axes of both.
fn inner(cx: OpCall<'_, '_, '_>) -> Result<Outputs> {
    let pair = [cx.tensor("x1")?, cx.tensor("x2")?];
    match pair.map(|x| cx.rank(x)) {
        [0, _] | [_, 0] => Ok(cx.graph().mul(pair[0], pair[1])?.into()),
        [left, right] => contract(cx, pair, &[(left - 1, right - 1)]),
    }
}

/// `outer`: all products of two vectors.
fn outer(cx: OpCall<'_, '_, '_>) -> Result<Outputs> {
    let mut pair = [cx.tensor("x1")?, cx.tensor("x2")?];
    for x in &mut pair {
        if cx.rank(*x) != 1 {
            *x = cx.flat(*x)?;
        }
    }
    contract(cx, pair, &[])
}

/// `vdot`: the sum of all products.
fn vdot(cx: OpCall<'_, '_, '_>) -> Result<Outputs> {
    let [a, b] = cx.operands(["x1", "x2"])?;
    let product = cx.graph().mul(a, b)?;
    let axes = Axes::read(cx, "axis", product)?;
    let y = sum(cx.graph(), product, &axes)?;
    Ok(axes.finish(cx, y, false)?.into())
}

fn tensordot(cx: OpCall<'_, '_, '_>) -> Result<Outputs> {
    let pair = [cx.tensor("x1")?, cx.tensor("x2")?];
    let (left, right) = (cx.rank(pair[0]), cx.rank(pair[1]));
    let value = cx.option("axes");
    let list = |value: &Value| -> Option<Vec<i64>> {
        match value {
            Value::Array(items) => items.iter().map(Value::as_i64).collect(),
            one => one.as_i64().map(|n| vec![n]),
        }
    };
    let lists: Option<(Vec<i64>, Vec<i64>)> = match &value {
        Value::Array(items) if items.len() == 2 => list(&items[0]).zip(list(&items[1])),
        // The last axes of the first, and the first of the second.
        Value::Null | Value::Number(_) => {
            let n = value.as_i64().unwrap_or(2);
            let fits = n >= 0 && n as u64 <= left.min(right) as u64;
            fits.then(|| ((left as i64 - n..left as i64).collect(), (0..n).collect()))
        }
        _ => None,
    };
    let Some((first, second)) = lists.filter(|(a, b)| a.len() == b.len()) else {
        return Err(cx.argument("axes", "a number, or two lists of as many axes", value));
    };
    let mut axes = vec![];
    for (a, b) in first.into_iter().zip(second) {
        axes.push((cx.position(a, left)?, cx.position(b, right)?));
    }
    contract(cx, pair, &axes)
}

/// The cross product of vectors with 2 or 3 components.
fn cross(cx: OpCall<'_, '_, '_>) -> Result<Outputs> {
    let [a, b] = cx.operands(["x1", "x2"])?;
    let axes = [("axisa", a), ("axisb", b), ("axisc", a)].map(|(name, x)| {
        let common = cx.option("axis").as_i64();
        let axis = common.or(cx.option(name).as_i64()).unwrap_or(-1);
        cx.dim(x, axis)
    });
    let [axis, second, third] = axes;
    let (axis, second, third) = (axis?, second?, third?);
    let size = cx.dims(a)[axis];
    if (second, third) != (axis, axis) || cx.dims(b)[axis] != size || !(2..=3).contains(&size) {
        let expected = "the same axis of 2 or 3 components in both values and the result";
        return Err(cx.argument("axis", expected, format!("{:?}, {:?}", cx.dims(a), cx.dims(b))));
    }
    let mut product = |i: usize, j: usize| -> Result<NodeId> {
        let (x, y) = (slice(cx, a, axis, (i, 1))?, slice(cx, b, axis, (j, 1))?);
        let (z, w) = (slice(cx, a, axis, (j, 1))?, slice(cx, b, axis, (i, 1))?);
        let g = cx.graph();
        let (first, second) = (g.mul(x, y)?, g.mul(z, w)?);
        Ok(g.sub(first, second)?)
    };
    if size == 2 {
        let y = product(0, 1)?;
        let mut dims = cx.dims(y);
        dims.remove(axis);
        return Ok(cx.graph().reshape(y, &dims)?.into());
    }
    let parts = [product(1, 2)?, product(2, 0)?, product(0, 1)?];
    Ok(concat(cx.graph(), &parts, axis)?.into())
}

/// The distances between the vectors of two lists.
fn distances(cx: OpCall<'_, '_, '_>) -> Result<Outputs> {
    let [a, b] = cx.operands(["x", "y"])?;
    let (mut left, mut right) = (cx.dims(a), cx.dims(b));
    if left.len() < 2 || right.len() < 2 {
        return Err(cx.argument("x, y", "a list of vectors per sample", format!("{left:?}")));
    }
    left.insert(left.len() - 1, 1);
    right.insert(right.len() - 2, 1);
    let g = cx.graph();
    let (a, b) = (g.reshape(a, &left)?, g.reshape(b, &right)?);
    let apart = g.sub(a, b)?;
    let square = g.unary(Unary::Square, apart)?;
    let last = left.len() - 1;
    let total = g.sum_axes(square, &[last])?;
    let root = g.unary(Unary::Sqrt, total)?;
    let dims = g.ty(root).dims[..last].to_vec();
    Ok(g.reshape(root, &dims)?.into())
}

/// A vector or matrix norm.
enum Order {
    /// The root of the sum of squares.
    Euclidean,
    /// The largest (or smallest) size.
    Extreme { largest: bool },
    /// How many elements are not zero.
    Count,
    /// The root of this degree of the sum of powers.
    Power(f64),
}

fn order(cx: &OpContext<'_, '_>) -> Result<Order> {
    let value = cx.option("ord");
    Ok(match (value.as_f64(), value.as_str()) {
        _ if value.is_null() => Order::Euclidean,
        (_, Some("fro")) => Order::Euclidean,
        (Some(2.0), _) => Order::Euclidean,
        (Some(f64::INFINITY), _) => Order::Extreme { largest: true },
        (Some(f64::NEG_INFINITY), _) => Order::Extreme { largest: false },
        (Some(0.0), _) => Order::Count,
        (Some(n), _) => Order::Power(n),
        _ => return Err(cx.argument("ord", "a number, inf, -inf or fro", value)),
    })
}

/// `(Σ |x|ⁿ)^(1/n)`
fn power_norm(g: &mut Graph, x: NodeId, axes: &Axes, n: f64) -> GraphResult {
    let size = g.unary(Unary::Abs, x)?;
    if n == 1.0 {
        return sum(g, size, axes);
    }
    let (degree, inverse) = (g.scalar(n), g.scalar(1.0 / n));
    let powers = g.binary(Binary::Pow, size, degree)?;
    let total = sum(g, powers, axes)?;
    g.binary(Binary::Pow, total, inverse)
}

fn euclidean(g: &mut Graph, x: NodeId, axes: &Axes) -> GraphResult {
    let squares = g.unary(Unary::Square, x)?;
    let total = sum(g, squares, axes)?;
    g.unary(Unary::Sqrt, total)
}

fn extreme(g: &mut Graph, x: NodeId, axes: &[usize], largest: bool) -> GraphResult {
    if largest { max_axes(g, x, axes) } else { min_axes(g, x, axes) }
}

fn norm(cx: OpCall<'_, '_, '_>) -> Result<Outputs> {
    let x = cx.tensor("x")?;
    let axes = Axes::read(cx, "axis", x)?;
    let order = order(cx)?;
    let named = cx.option("ord");
    let listed = cx.integers("axis")?.map_or(cx.rank(x), |list| list.len());
    let matrix = listed == 2 && !named.is_null() && named != "fro";
    if axes.batch && !matches!(order, Order::Euclidean) || matrix && named.as_f64() == Some(2.0) {
        return Err(cx.argument("ord", "null or fro over these axes", named));
    }
    let g = cx.graph();
    let y = match (order, matrix, &axes.inner[..]) {
        (Order::Euclidean, false, _) => euclidean(g, x, &axes)?,
        // The largest (or smallest) sum of a row, or of a column.
        (Order::Extreme { largest }, true, [row, column]) => {
            let size = g.unary(Unary::Abs, x)?;
            let sums = g.sum_axes(size, &[*column])?;
            extreme(g, sums, &[*row], largest)?
        }
        (Order::Power(n), true, [row, column]) if n.abs() == 1.0 => {
            let size = g.unary(Unary::Abs, x)?;
            let sums = g.sum_axes(size, &[*row])?;
            extreme(g, sums, &[*column], n > 0.0)?
        }
        (Order::Extreme { largest }, false, [axis]) => {
            let size = g.unary(Unary::Abs, x)?;
            extreme(g, size, &[*axis], largest)?
        }
        (Order::Count, false, [_]) => {
            let hits = math::truth(g, x)?;
            sum(g, hits, &axes)?
        }
        (Order::Power(n), false, [_]) => power_norm(g, x, &axes, n)?,
        _ => return Err(cx.argument("ord", "a norm of vectors, or 1, -1, inf, -inf, fro", named)),
    };
    let keep = cx.flag("keepdims");
    Ok(axes.finish(cx, y, keep)?.into())
}

/// Divides by a norm, which counts as `epsilon` at least.
fn normalize(cx: OpCall<'_, '_, '_>) -> Result<Outputs> {
    let x = cx.tensor("x")?;
    let axis = if cx.option("axis").is_null() { Some(cx.dim(x, -1)?) } else { None };
    let axes = match axis {
        Some(axis) => Axes { batch: false, inner: vec![axis] },
        None => Axes::read(cx, "axis", x)?,
    };
    let (order, epsilon) = (cx.number_or("order", 2.0)?, cx.number_or("epsilon", 1e-7)?);
    let g = cx.graph();
    if order == 2.0 {
        let squares = g.unary(Unary::Square, x)?;
        let total = sum(g, squares, &axes)?;
        let factor = g.unary(Unary::Rsqrt, total)?;
        let most = g.scalar(1.0 / epsilon);
        let factor = g.binary(Binary::Min, factor, most)?;
        return Ok(g.mul(x, factor)?.into());
    }
    let norm = power_norm(g, x, &axes, order)?;
    let least = g.scalar(epsilon);
    let divisor = g.binary(Binary::Max, norm, least)?;
    Ok(g.div(x, divisor)?.into())
}

ops! {
    NUMPY, "numpy";
    Cross(x1, x2) => cross,
    Dot(x1, x2) => dot,
    Einsum(args) => einsum,
    Inner(x1, x2) => inner,
    Matmul(x1, x2) => matmul,
    Outer(x1, x2) => outer,
    Tensordot(x1, x2) => tensordot,
    Vdot(x1, x2) => vdot,
}

ops! {
    MATH, "math";
    CDist(x, y) => distances,
}

ops! {
    LINALG, "linalg";
    Norm(x) => norm,
}

ops! {
    NN, "nn";
    Normalize(x) => normalize,
}
