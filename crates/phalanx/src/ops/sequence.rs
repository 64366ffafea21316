//! Evenly spaced numbers, powers and indices.

use super::context::{GraphResult, OpCall};
use super::ops;
use crate::error::Result;
use crate::layer::Outputs;
use phalanx_graph::functions::layout::{concat, iota};
use phalanx_graph::functions::math;
use phalanx_graph::ops::{Binary, Unary};
use phalanx_graph::{DType, Graph, NodeId};

/// The largest number of powers or of axes of an index.
const MAX_PARTS: usize = 4096;

/// Numbers from `start` to `stop` along a new axis, and their distance.
fn spaced(cx: OpCall<'_, '_, '_>, start: NodeId, stop: NodeId) -> Result<(NodeId, NodeId)> {
    let num = if cx.option("num").is_null() { 50 } else { cx.size("num", 1)? };
    let endpoint = cx.option("endpoint") != false;
    let g = cx.graph();
    let span = g.sub(stop, start)?;
    let steps = if endpoint { num.saturating_sub(1).max(1) } else { num };
    let step = g.scale(span, 1.0 / steps as f64)?;
    let (rank, rows) = (cx.rank(step), cx.is_rows(step));
    let axis = cx.option("axis").as_i64().unwrap_or(0);
    let at = cx.position(axis, rank + 1)?.checked_sub(usize::from(rows));
    let Some(at) = at else { return Err(cx.argument("axis", "an axis after the batch", axis)) };
    let mut dims = cx.dims(step);
    let mut count_dims = vec![1; dims.len() + 1];
    count_dims[at] = num;
    dims.insert(at, 1);
    let g = cx.graph();
    let counts = iota(g, num)?;
    let counts = g.reshape(counts, &count_dims)?;
    let apart = g.reshape(step, &dims)?;
    let offsets = g.mul(apart, counts)?;
    // `start` has the shape of the result only after broadcasting.
    let zero = g.scale(step, 0.0)?;
    let first = g.add(start, zero)?;
    let first = g.reshape(first, &dims)?;
    Ok((g.add(first, offsets)?, step))
}

fn linspace(cx: OpCall<'_, '_, '_>) -> Result<Outputs> {
    let [start, stop] = cx.operands(["start", "stop"])?;
    let (numbers, step) = spaced(cx, start, stop)?;
    Ok(if cx.flag("retstep") { vec![numbers, step].into() } else { numbers.into() })
}

/// Powers of a base with evenly spaced exponents.
fn logspace(cx: OpCall<'_, '_, '_>) -> Result<Outputs> {
    let [start, stop] = cx.operands(["start", "stop"])?;
    let base = cx.number_or("base", 10.0)?;
    let (exponents, _) = spaced(cx, start, stop)?;
    let base = cx.graph().scalar(base);
    Ok(cx.graph().binary(Binary::Pow, base, exponents)?.into())
}

/// Numbers with equal ratios.
fn geomspace(cx: OpCall<'_, '_, '_>) -> Result<Outputs> {
    let [start, stop] = cx.operands(["start", "stop"])?;
    let g = cx.graph();
    let logarithm = |g: &mut Graph, x: NodeId| g.unary(Unary::Log, x);
    let (start, stop) = (logarithm(g, start)?, logarithm(g, stop)?);
    let (exponents, _) = spaced(cx, start, stop)?;
    Ok(cx.graph().unary(Unary::Exp, exponents)?.into())
}

/// The powers of a number per sample: its Vandermonde matrix.
fn vander(cx: OpCall<'_, '_, '_>) -> Result<Outputs> {
    let x = cx.tensor("x")?;
    if cx.rank(x) != 1 {
        return Err(cx.argument("x", "one number per sample", format!("{} axes", cx.rank(x))));
    }
    let count = cx.size("N", 1)?;
    if count > MAX_PARTS {
        return Err(cx.argument("N", &format!("at most {MAX_PARTS}"), count));
    }
    let increasing = cx.flag("increasing");
    let dims = [&cx.dims(x)[..], &[1]].concat();
    let g = cx.graph();
    let x = g.reshape(x, &dims)?;
    let zero = g.scale(x, 0.0)?;
    let mut powers = vec![g.offset(zero, 1.0)?];
    for i in 1..count {
        powers.push(g.mul(powers[i - 1], x)?);
    }
    if !increasing {
        powers.reverse();
    }
    Ok(concat(g, &powers, dims.len() - 1)?.into())
}

/// The indices of each axis of a shape, from positions in the flattened value.
fn unravel_index(cx: OpCall<'_, '_, '_>) -> Result<Outputs> {
    let mut rest = cx.tensor("indices")?;
    let shape = cx.integers("shape")?.unwrap_or_default();
    if shape.is_empty() || shape.len() > MAX_PARTS || shape.iter().any(|n| *n < 1) {
        return Err(cx.argument("shape", "sizes above 0", format!("{shape:?}")));
    }
    let g = cx.graph();
    let part = |g: &mut Graph, function: fn(&mut Graph, NodeId, NodeId) -> GraphResult, rest, n| {
        let size = g.scalar(n as f64);
        function(g, rest, size)
    };
    let mut out = vec![];
    for n in shape.into_iter().rev() {
        let index = part(g, math::modulo, rest, n)?;
        out.push(g.cast(index, DType::I32)?);
        rest = part(g, math::floor_divide, rest, n)?;
    }
    out.reverse();
    Ok(out.into())
}

ops! {
    NUMPY, "numpy";
    Geomspace(start, stop) => geomspace,
    Linspace(start, stop) => linspace,
    Logspace(start, stop) => logspace,
    UnravelIndex(indices) => unravel_index,
    Vander(x) => vander,
}
