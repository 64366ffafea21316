//! Functions of whole numbers: bits and divisors. Numbers are exact below 2²⁴, which [`exact`](super::exact) checks.

use super::context::{GraphResult, OpCall};
use super::ops;
use crate::error::Result;
use crate::layer::Outputs;
use phalanx_graph::functions::math;
use phalanx_graph::ops::{Binary, Unary};
use phalanx_graph::{DType, Graph, NodeId};

/// The bits of a number that is exact as a float, without its sign.
const BITS: usize = 24;

/// No pair of numbers below 2²⁴ takes more divisions: they would be larger than Fibonacci's numbers.
const DIVISIONS: usize = 36;

/// A function of two whole numbers.
fn combine(
    cx: OpCall<'_, '_, '_>,
    [x, y]: [&str; 2],
    function: fn(&mut Graph, NodeId, NodeId) -> GraphResult,
) -> Result<Outputs> {
    let [a, b] = cx.operands([x, y])?;
    let y = function(cx.graph(), a, b)?;
    Ok(cx.graph().cast(y, DType::I32)?.into())
}

/// `-x - 1`: all bits are inverted.
fn invert(cx: OpCall<'_, '_, '_>) -> Result<Outputs> {
    let x = cx.tensor("x")?;
    let g = cx.graph();
    let y = g.neg(x)?;
    let y = g.offset(y, -1.0)?;
    Ok(g.cast(y, DType::I32)?.into())
}

/// The lowest bit of a number, and the number without it. A negative number has infinitely many ones in front.
fn lowest_bit(g: &mut Graph, x: NodeId) -> phalanx_graph::Result<(NodeId, NodeId)> {
    let half = g.scale(x, 0.5)?;
    let rest = g.unary(Unary::Floor, half)?;
    let even = g.scale(rest, 2.0)?;
    Ok((g.sub(x, even)?, rest))
}

/// Combines two numbers bit by bit.
fn bitwise(
    g: &mut Graph,
    mut a: NodeId,
    mut b: NodeId,
    function: fn(&mut Graph, NodeId, NodeId) -> GraphResult,
) -> GraphResult {
    let mut total: Option<NodeId> = None;
    for bit in 0..=BITS {
        let ((low_a, rest_a), (low_b, rest_b)) = (lowest_bit(g, a)?, lowest_bit(g, b)?);
        (a, b) = (rest_a, rest_b);
        let both = function(g, low_a, low_b)?;
        // The last bit is the sign.
        let sign = if bit == BITS { -1.0 } else { 1.0 };
        let value = g.scale(both, sign * (1u64 << bit) as f64)?;
        total = Some(match total {
            None => value,
            Some(total) => g.add(total, value)?,
        });
    }
    Ok(total.unwrap_or(a))
}

fn and(g: &mut Graph, a: NodeId, b: NodeId) -> GraphResult {
    bitwise(g, a, b, |g, a, b| g.mul(a, b))
}

fn or(g: &mut Graph, a: NodeId, b: NodeId) -> GraphResult {
    bitwise(g, a, b, |g, a, b| g.binary(Binary::Max, a, b))
}

fn xor(g: &mut Graph, a: NodeId, b: NodeId) -> GraphResult {
    bitwise(g, a, b, |g, a, b| {
        let apart = g.sub(a, b)?;
        g.unary(Unary::Abs, apart)
    })
}

/// `2ⁿ`, exactly.
fn power_of_two(g: &mut Graph, n: NodeId) -> GraphResult {
    let two = g.scalar(2.0);
    let power = g.binary(Binary::Pow, two, n)?;
    g.unary(Unary::Round, power)
}

fn left_shift(g: &mut Graph, a: NodeId, b: NodeId) -> GraphResult {
    let power = power_of_two(g, b)?;
    g.mul(a, power)
}

fn right_shift(g: &mut Graph, a: NodeId, b: NodeId) -> GraphResult {
    let power = power_of_two(g, b)?;
    let quotient = g.div(a, power)?;
    g.unary(Unary::Floor, quotient)
}

/// The greatest common divisor, by Euclid's algorithm.
fn gcd(g: &mut Graph, a: NodeId, b: NodeId) -> GraphResult {
    let (mut a, mut b) = (g.unary(Unary::Abs, a)?, g.unary(Unary::Abs, b)?);
    let (zero, one) = (g.scalar(0.0), g.scalar(1.0));
    for _ in 0..DIVISIONS {
        let done = g.binary(Binary::Eq, b, zero)?;
        let divisor = g.select(done, one, b)?;
        let rest = math::modulo(g, a, divisor)?;
        a = g.select(done, a, b)?;
        b = g.select(done, zero, rest)?;
    }
    Ok(a)
}

/// The least common multiple.
fn lcm(g: &mut Graph, a: NodeId, b: NodeId) -> GraphResult {
    let divisor = gcd(g, a, b)?;
    let (zero, one) = (g.scalar(0.0), g.scalar(1.0));
    let none = g.binary(Binary::Eq, divisor, zero)?;
    let divisor = g.select(none, one, divisor)?;
    let quotient = math::floor_divide(g, a, divisor)?;
    let multiple = g.mul(quotient, b)?;
    g.unary(Unary::Abs, multiple)
}

ops! {
    NUMPY, "numpy";
    BitwiseAnd(x, y) => |cx| combine(cx, ["x", "y"], and),
    BitwiseInvert(x) => invert,
    BitwiseLeftShift(x, y) => |cx| combine(cx, ["x", "y"], left_shift),
    BitwiseNot(x) => invert,
    BitwiseOr(x, y) => |cx| combine(cx, ["x", "y"], or),
    BitwiseRightShift(x, y) => |cx| combine(cx, ["x", "y"], right_shift),
    BitwiseXor(x, y) => |cx| combine(cx, ["x", "y"], xor),
    Gcd(x1, x2) => |cx| combine(cx, ["x1", "x2"], gcd),
    Lcm(x1, x2) => |cx| combine(cx, ["x1", "x2"], lcm),
    LeftShift(x, y) => |cx| combine(cx, ["x", "y"], left_shift),
    RightShift(x, y) => |cx| combine(cx, ["x", "y"], right_shift),
}
