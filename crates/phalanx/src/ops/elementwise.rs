//! Elementwise functions and comparisons. Booleans are 0 and 1.

use super::context::OpContext;
use super::ops;
use crate::error::Result;
use crate::layer::Outputs;
use phalanx_graph::ops::{Binary, Unary};
use phalanx_graph::{DType, Graph, NodeId};

type Cx<'a, 'b, 'c> = &'c mut OpContext<'a, 'b>;

fn unary(cx: Cx<'_, '_, '_>, function: Unary) -> Result<Outputs> {
    let x = cx.tensor("x")?;
    Ok(cx.graph().unary(function, x)?.into())
}

fn map(cx: Cx<'_, '_, '_>, function: fn(&mut Graph, NodeId) -> Result<NodeId>) -> Result<Outputs> {
    let x = cx.tensor("x")?;
    Ok(function(cx.graph(), x)?.into())
}

fn binary(cx: Cx<'_, '_, '_>, function: Binary) -> Result<Outputs> {
    let (a, b) = (cx.tensor("x1")?, cx.tensor("x2")?);
    Ok(cx.graph().binary(function, a, b)?.into())
}

/// `f(x2, x1)`.
fn swapped(cx: Cx<'_, '_, '_>, function: Binary) -> Result<Outputs> {
    let (a, b) = (cx.tensor("x1")?, cx.tensor("x2")?);
    Ok(cx.graph().binary(function, b, a)?.into())
}

fn combine(
    cx: Cx<'_, '_, '_>,
    function: fn(&mut Graph, NodeId, NodeId) -> Result<NodeId>,
) -> Result<Outputs> {
    let (a, b) = (cx.tensor("x1")?, cx.tensor("x2")?);
    Ok(function(cx.graph(), a, b)?.into())
}

/// 1 where `x` is not zero.
fn truth(g: &mut Graph, x: NodeId) -> Result<NodeId> {
    let zero = g.scalar(0.0);
    Ok(g.not_equal(x, zero)?)
}

fn scaled(g: &mut Graph, x: NodeId, function: Unary, factor: f64) -> Result<NodeId> {
    let y = g.unary(function, x)?;
    Ok(g.scale(y, factor)?)
}

/// `(eˣ + sign · e⁻ˣ) / 2`.
fn hyperbolic(g: &mut Graph, x: NodeId, sign: f64) -> Result<NodeId> {
    let minus = g.neg(x)?;
    let (up, down) = (g.unary(Unary::Exp, x)?, g.unary(Unary::Exp, minus)?);
    let down = g.scale(down, sign)?;
    let sum = g.add(up, down)?;
    Ok(g.scale(sum, 0.5)?)
}

fn cosine(g: &mut Graph, x: NodeId) -> Result<NodeId> {
    let x = g.offset(x, std::f64::consts::FRAC_PI_2)?;
    Ok(g.unary(Unary::Sin, x)?)
}

fn ceil(g: &mut Graph, x: NodeId) -> Result<NodeId> {
    let minus = g.neg(x)?;
    let floor = g.unary(Unary::Floor, minus)?;
    Ok(g.neg(floor)?)
}

fn floor_divide(g: &mut Graph, a: NodeId, b: NodeId) -> Result<NodeId> {
    let quotient = g.div(a, b)?;
    Ok(g.unary(Unary::Floor, quotient)?)
}

fn modulo(g: &mut Graph, a: NodeId, b: NodeId) -> Result<NodeId> {
    let whole = floor_divide(g, a, b)?;
    let whole = g.mul(whole, b)?;
    Ok(g.sub(a, whole)?)
}

fn divide_no_nan(g: &mut Graph, a: NodeId, b: NodeId) -> Result<NodeId> {
    let zero = g.scalar(0.0);
    let one = g.scalar(1.0);
    let safe = g.binary(Binary::Eq, b, zero)?;
    let divisor = g.select(safe, one, b)?;
    let quotient = g.div(a, divisor)?;
    Ok(g.select(safe, zero, quotient)?)
}

/// `max(a, b) + log1p(e^-|a - b|)`.
fn log_add_exp(g: &mut Graph, a: NodeId, b: NodeId) -> Result<NodeId> {
    let largest = g.binary(Binary::Max, a, b)?;
    let apart = g.sub(a, b)?;
    let apart = g.unary(Unary::Abs, apart)?;
    let apart = g.neg(apart)?;
    let apart = g.unary(Unary::Exp, apart)?;
    let rest = g.unary(Unary::Log1p, apart)?;
    Ok(g.add(largest, rest)?)
}

fn clip(cx: Cx<'_, '_, '_>) -> Result<Outputs> {
    let x = cx.tensor("x")?;
    let (low, high) = (cx.option("x_min"), cx.option("x_max"));
    let (Some(low), Some(high)) = (low.as_f64(), high.as_f64()) else {
        return Err(cx.argument("x_min, x_max", "numbers", format!("{low}, {high}")));
    };
    Ok(cx.graph().clamp(x, low, high)?.into())
}

fn choose(cx: Cx<'_, '_, '_>) -> Result<Outputs> {
    let condition = cx.tensor("condition")?;
    let (a, b) = (cx.tensor("x1")?, cx.tensor("x2")?);
    Ok(cx.graph().select(condition, a, b)?.into())
}

/// Zeros or ones in the shape of `x`.
fn like(cx: Cx<'_, '_, '_>, value: f64) -> Result<Outputs> {
    let x = cx.tensor("x")?;
    let g = cx.graph();
    // 1, or 0 for NaN.
    let equal = g.binary(Binary::Eq, x, x)?;
    let one = g.scalar(1.0);
    let ones = g.binary(Binary::Max, equal, one)?;
    Ok(g.scale(ones, value)?.into())
}

fn cast(cx: Cx<'_, '_, '_>) -> Result<Outputs> {
    let x = cx.any_tensor("x")?;
    let dtype = cx.option("dtype");
    match dtype.as_str() {
        Some("float32" | "float16" | "bfloat16" | "float64") => {
            Ok(cx.graph().cast(x, DType::F32)?.into())
        }
        Some("bool") => {
            let x = cx.graph().cast(x, DType::F32)?;
            Ok(truth(cx.graph(), x)?.into())
        }
        Some("int32" | "int64" | "int16" | "int8" | "uint8" | "uint16" | "uint32") => {
            Ok(cx.graph().cast(x, DType::I32)?.into())
        }
        _ => Err(cx.argument("dtype", "a float or integer type, or bool", dtype)),
    }
}

fn logical_xor(g: &mut Graph, a: NodeId, b: NodeId) -> Result<NodeId> {
    let (a, b) = (truth(g, a)?, truth(g, b)?);
    Ok(g.not_equal(a, b)?)
}

ops! {
    NUMPY, "numpy";
    Absolute(x) => |cx| unary(cx, Unary::Abs),
    Fabs(x) => |cx| unary(cx, Unary::Abs),
    Add(x1, x2) => |cx| binary(cx, Binary::Add),
    Ceil(x) => |cx| map(cx, ceil),
    Clip(x, x_min, x_max) => clip,
    Copy(x) => |cx| map(cx, |_, x| Ok(x)),
    Cos(x) => |cx| map(cx, cosine),
    Cosh(x) => |cx| map(cx, |g, x| hyperbolic(g, x, 1.0)),
    Deg2rad(x) => |cx| map(cx, |g, x| Ok(g.scale(x, std::f64::consts::PI / 180.0)?)),
    Rad2deg(x) => |cx| map(cx, |g, x| Ok(g.scale(x, 180.0 / std::f64::consts::PI)?)),
    Divide(x1, x2) => |cx| binary(cx, Binary::Div),
    DivideNoNan(x1, x2) => |cx| combine(cx, divide_no_nan),
    Equal(x1, x2) => |cx| binary(cx, Binary::Eq),
    Exp(x) => |cx| unary(cx, Unary::Exp),
    Exp2(x) => |cx| map(cx, |g, x| {
        let x = g.scale(x, std::f64::consts::LN_2)?;
        Ok(g.unary(Unary::Exp, x)?)
    }),
    Expm1(x) => |cx| unary(cx, Unary::Expm1),
    Floor(x) => |cx| unary(cx, Unary::Floor),
    FloorDivide(x1, x2) => |cx| combine(cx, floor_divide),
    Greater(x1, x2) => |cx| binary(cx, Binary::Gt),
    GreaterEqual(x1, x2) => |cx| binary(cx, Binary::Ge),
    Less(x1, x2) => |cx| swapped(cx, Binary::Gt),
    LessEqual(x1, x2) => |cx| swapped(cx, Binary::Ge),
    Log(x) => |cx| unary(cx, Unary::Log),
    Log10(x) => |cx| map(cx, |g, x| scaled(g, x, Unary::Log, std::f64::consts::LOG10_E)),
    Log1p(x) => |cx| unary(cx, Unary::Log1p),
    Log2(x) => |cx| map(cx, |g, x| scaled(g, x, Unary::Log, std::f64::consts::LOG2_E)),
    Logaddexp(x1, x2) => |cx| combine(cx, log_add_exp),
    LogicalAnd(x1, x2) => |cx| combine(cx, |g, a, b| {
        let (a, b) = (truth(g, a)?, truth(g, b)?);
        Ok(g.mul(a, b)?)
    }),
    LogicalNot(x) => |cx| map(cx, |g, x| {
        let zero = g.scalar(0.0);
        Ok(g.binary(Binary::Eq, x, zero)?)
    }),
    LogicalOr(x1, x2) => |cx| combine(cx, |g, a, b| {
        let (a, b) = (truth(g, a)?, truth(g, b)?);
        Ok(g.binary(Binary::Max, a, b)?)
    }),
    LogicalXor(x1, x2) => |cx| combine(cx, logical_xor),
    Maximum(x1, x2) => |cx| binary(cx, Binary::Max),
    Minimum(x1, x2) => |cx| binary(cx, Binary::Min),
    Mod(x1, x2) => |cx| combine(cx, modulo),
    Multiply(x1, x2) => |cx| binary(cx, Binary::Mul),
    Negative(x) => |cx| unary(cx, Unary::Neg),
    NotEqual(x1, x2) => |cx| combine(cx, |g, a, b| Ok(g.not_equal(a, b)?)),
    OnesLike(x, dtype) => |cx| like(cx, 1.0),
    Power(x1, x2) => |cx| binary(cx, Binary::Pow),
    Reciprocal(x) => |cx| unary(cx, Unary::Recip),
    Sign(x) => |cx| unary(cx, Unary::Sign),
    Sin(x) => |cx| unary(cx, Unary::Sin),
    Sinh(x) => |cx| map(cx, |g, x| hyperbolic(g, x, -1.0)),
    Sqrt(x) => |cx| unary(cx, Unary::Sqrt),
    Square(x) => |cx| unary(cx, Unary::Square),
    Subtract(x1, x2) => |cx| binary(cx, Binary::Sub),
    Tan(x) => |cx| map(cx, |g, x| {
        let (sine, cosine) = (g.unary(Unary::Sin, x)?, cosine(g, x)?);
        Ok(g.div(sine, cosine)?)
    }),
    Tanh(x) => |cx| unary(cx, Unary::Tanh),
    TrueDivide(x1, x2) => |cx| binary(cx, Binary::Div),
    Where(condition, x1, x2) => choose,
    ZerosLike(x, dtype) => |cx| like(cx, 0.0),
}

ops! {
    MATH, "math";
    Erf(x) => |cx| unary(cx, Unary::Erf),
    Rsqrt(x) => |cx| unary(cx, Unary::Rsqrt),
}

/// Conversion to another element type.
pub(super) const CAST: fn(&mut OpContext<'_, '_>) -> Result<Outputs> = cast;
