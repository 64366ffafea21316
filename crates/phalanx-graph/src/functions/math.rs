//! Composed elementwise functions: comparisons, logic, rounding, trigonometric and
//! hyperbolic functions. Truth values are the numbers 0 and 1.

use crate::error::Result;
use crate::graph::{Graph, NodeId};
use crate::ops::{Binary, Unary};
use std::f64::consts::{LN_2, PI};

/// The magnitude above which `eˣ` alone is the hyperbolic function, to the precision of 32-bit floats.
const LARGE: f64 = 20.0;

/// 1 where `l < r`.
pub fn less(g: &mut Graph, l: NodeId, r: NodeId) -> Result<NodeId> {
    g.binary(Binary::Gt, r, l)
}

/// 1 where `l <= r`.
pub fn less_equal(g: &mut Graph, l: NodeId, r: NodeId) -> Result<NodeId> {
    g.binary(Binary::Ge, r, l)
}

/// 1 where `l != r`, also where one is NaN.
pub fn not_equal(g: &mut Graph, l: NodeId, r: NodeId) -> Result<NodeId> {
    let equal = g.binary(Binary::Eq, l, r)?;
    let one = g.scalar(1.0);
    g.sub(one, equal)
}

/// 1 where `x` is 0.
pub fn logical_not(g: &mut Graph, x: NodeId) -> Result<NodeId> {
    let zero = g.scalar(0.0);
    g.binary(Binary::Eq, x, zero)
}

/// 1 where `x` is not 0.
pub fn truth(g: &mut Graph, x: NodeId) -> Result<NodeId> {
    let zero = g.scalar(0.0);
    not_equal(g, x, zero)
}

/// 1 where both are not 0.
pub fn logical_and(g: &mut Graph, l: NodeId, r: NodeId) -> Result<NodeId> {
    let (l, r) = (truth(g, l)?, truth(g, r)?);
    g.mul(l, r)
}

/// 1 where one or both are not 0.
pub fn logical_or(g: &mut Graph, l: NodeId, r: NodeId) -> Result<NodeId> {
    let (l, r) = (truth(g, l)?, truth(g, r)?);
    g.binary(Binary::Max, l, r)
}

/// 1 where exactly one is not 0.
pub fn logical_xor(g: &mut Graph, l: NodeId, r: NodeId) -> Result<NodeId> {
    let (l, r) = (truth(g, l)?, truth(g, r)?);
    not_equal(g, l, r)
}

/// 1 where `x` is NaN.
pub fn is_nan(g: &mut Graph, x: NodeId) -> Result<NodeId> {
    not_equal(g, x, x)
}

/// 1 where `x` is infinite.
pub fn is_inf(g: &mut Graph, x: NodeId) -> Result<NodeId> {
    let (a, infinity) = (g.unary(Unary::Abs, x)?, g.scalar(f64::INFINITY));
    g.binary(Binary::Eq, a, infinity)
}

/// 1 where `x` is neither infinite nor NaN.
pub fn is_finite(g: &mut Graph, x: NodeId) -> Result<NodeId> {
    let (a, infinity) = (g.unary(Unary::Abs, x)?, g.scalar(f64::INFINITY));
    g.binary(Binary::Gt, infinity, a)
}

/// The smallest integer not below `x`.
pub fn ceil(g: &mut Graph, x: NodeId) -> Result<NodeId> {
    let n = g.neg(x)?;
    let n = g.unary(Unary::Floor, n)?;
    g.neg(n)
}

/// `x` rounded towards zero.
pub fn trunc(g: &mut Graph, x: NodeId) -> Result<NodeId> {
    let (a, sign) = (g.unary(Unary::Abs, x)?, g.unary(Unary::Sign, x)?);
    let a = g.unary(Unary::Floor, a)?;
    g.mul(a, sign)
}

/// 1 where the remainder `rem` of a division by `r` must be corrected for a quotient rounded down.
fn differs_in_sign(g: &mut Graph, rem: NodeId, r: NodeId) -> Result<NodeId> {
    let zero = g.scalar(0.0);
    let below = less(g, rem, zero)?;
    let divisor_below = less(g, r, zero)?;
    let differs = not_equal(g, below, divisor_below)?;
    let inexact = truth(g, rem)?;
    g.mul(differs, inexact)
}

/// The remainder of a quotient rounded down, with the sign of `r`.
pub fn modulo(g: &mut Graph, l: NodeId, r: NodeId) -> Result<NodeId> {
    let rem = g.binary(Binary::Rem, l, r)?;
    let correct = differs_in_sign(g, rem, r)?;
    let more = g.add(rem, r)?;
    g.select(correct, more, rem)
}

/// `l / r` rounded down.
pub fn floor_divide(g: &mut Graph, l: NodeId, r: NodeId) -> Result<NodeId> {
    let rem = g.binary(Binary::Rem, l, r)?;
    let correct = differs_in_sign(g, rem, r)?;
    let exact = g.sub(l, rem)?;
    let quotient = g.div(exact, r)?;
    let quotient = g.sub(quotient, correct)?;
    g.unary(Unary::Round, quotient)
}

/// `tan x`
pub fn tan(g: &mut Graph, x: NodeId) -> Result<NodeId> {
    let (sin, cos) = (g.unary(Unary::Sin, x)?, g.unary(Unary::Cos, x)?);
    g.div(sin, cos)
}

/// The angle of the point with ordinate `y` and abscissa `x`, between -π and π.
pub fn atan2(g: &mut Graph, y: NodeId, x: NodeId) -> Result<NodeId> {
    let zero = g.scalar(0.0);
    let quotient = g.div(y, x)?;
    // Both zero: the angle is zero, or π to the left.
    let nothing = logical_or(g, y, x)?;
    let quotient = g.select(nothing, quotient, zero)?;
    let angle = g.unary(Unary::Atan, quotient)?;
    let below = less(g, y, zero)?;
    let (pi, minus) = (g.scalar(PI), g.scalar(-PI));
    let turn = g.select(below, minus, pi)?;
    let left = less(g, x, zero)?;
    let turned = g.add(angle, turn)?;
    g.select(left, turned, angle)
}

/// The arc sine: `atan(x / √((1 - x)(1 + x)))`.
pub fn asin(g: &mut Graph, x: NodeId) -> Result<NodeId> {
    let (above, n) = (g.offset(x, 1.0)?, g.neg(x)?);
    let below = g.offset(n, 1.0)?;
    let product = g.mul(below, above)?;
    let root = g.unary(Unary::Sqrt, product)?;
    let quotient = g.div(x, root)?;
    g.unary(Unary::Atan, quotient)
}

/// The arc cosine: `2 atan(√((1 - x) / (1 + x)))`.
pub fn acos(g: &mut Graph, x: NodeId) -> Result<NodeId> {
    let (above, n) = (g.offset(x, 1.0)?, g.neg(x)?);
    let below = g.offset(n, 1.0)?;
    let quotient = g.div(below, above)?;
    let root = g.unary(Unary::Sqrt, quotient)?;
    let angle = g.unary(Unary::Atan, root)?;
    g.scale(angle, 2.0)
}

/// `x` between ±[`LARGE`], so that the branch for small numbers has no infinities, and 1 where it is
/// larger.
fn limited(g: &mut Graph, x: NodeId) -> Result<(NodeId, NodeId)> {
    let a = g.unary(Unary::Abs, x)?;
    let limit = g.scalar(LARGE);
    let large = g.binary(Binary::Gt, a, limit)?;
    Ok((g.clamp(x, -LARGE, LARGE)?, large))
}

/// `sinh x`: `(t + t / (t + 1)) / 2` for `t = eˣ - 1`.
pub fn sinh(g: &mut Graph, x: NodeId) -> Result<NodeId> {
    let (small, large) = limited(g, x)?;
    let t = g.unary(Unary::Expm1, small)?;
    let next = g.offset(t, 1.0)?;
    let quotient = g.div(t, next)?;
    let sum = g.add(t, quotient)?;
    let near = g.scale(sum, 0.5)?;
    let (a, sign) = (g.unary(Unary::Abs, x)?, g.unary(Unary::Sign, x)?);
    let a = g.offset(a, -LN_2)?;
    let far = g.unary(Unary::Exp, a)?;
    let far = g.mul(far, sign)?;
    g.select(large, far, near)
}

/// `cosh x`: `e^(|x| - ln 2) + e^(-|x| - ln 2)`.
pub fn cosh(g: &mut Graph, x: NodeId) -> Result<NodeId> {
    let a = g.unary(Unary::Abs, x)?;
    let n = g.neg(a)?;
    let (up, down) = (g.offset(a, -LN_2)?, g.offset(n, -LN_2)?);
    let (up, down) = (g.unary(Unary::Exp, up)?, g.unary(Unary::Exp, down)?);
    g.add(up, down)
}

/// The inverse of `sinh`: `log1p(a + a² / (1 + √(a² + 1)))` with the sign of `x`, for `a = |x|`.
pub fn asinh(g: &mut Graph, x: NodeId) -> Result<NodeId> {
    let (a, sign) = (g.unary(Unary::Abs, x)?, g.unary(Unary::Sign, x)?);
    let limit = g.scalar(1e9);
    let large = g.binary(Binary::Gt, a, limit)?;
    let small = g.binary(Binary::Min, a, limit)?;
    let square = g.unary(Unary::Square, small)?;
    let root = g.offset(square, 1.0)?;
    let root = g.unary(Unary::Sqrt, root)?;
    let divisor = g.offset(root, 1.0)?;
    let quotient = g.div(square, divisor)?;
    let sum = g.add(small, quotient)?;
    let near = g.unary(Unary::Log1p, sum)?;
    let far = g.unary(Unary::Log, a)?;
    let far = g.offset(far, LN_2)?;
    let value = g.select(large, far, near)?;
    g.mul(value, sign)
}

/// The inverse of `cosh`, for `x` of at least 1: `log1p(t + √t √(t + 2))` for `t = x - 1`.
pub fn acosh(g: &mut Graph, x: NodeId) -> Result<NodeId> {
    let limit = g.scalar(1e9);
    let large = g.binary(Binary::Gt, x, limit)?;
    let small = g.binary(Binary::Min, x, limit)?;
    let t = g.offset(small, -1.0)?;
    let more = g.offset(t, 2.0)?;
    let (t_root, more_root) = (g.unary(Unary::Sqrt, t)?, g.unary(Unary::Sqrt, more)?);
    let root = g.mul(t_root, more_root)?;
    let sum = g.add(t, root)?;
    let near = g.unary(Unary::Log1p, sum)?;
    let far = g.unary(Unary::Log, x)?;
    let far = g.offset(far, LN_2)?;
    g.select(large, far, near)
}

/// The inverse of `tanh`: `log1p(2a / (1 - a)) / 2` with the sign of `x`, for `a = |x|`.
pub fn atanh(g: &mut Graph, x: NodeId) -> Result<NodeId> {
    let (a, sign) = (g.unary(Unary::Abs, x)?, g.unary(Unary::Sign, x)?);
    let n = g.neg(a)?;
    let rest = g.offset(n, 1.0)?;
    let double = g.scale(a, 2.0)?;
    let quotient = g.div(double, rest)?;
    let value = g.unary(Unary::Log1p, quotient)?;
    let value = g.scale(value, 0.5)?;
    g.mul(value, sign)
}
