//! Elementwise functions and comparisons. Truth values are 0 and 1.

use super::context::{GraphResult, OpCall};
use super::ops;
use crate::error::Result;
use crate::layer::Outputs;
use phalanx_graph::functions::layout::repeat_rows;
use phalanx_graph::functions::math;
use phalanx_graph::ops::{Binary, Unary};
use phalanx_graph::{DType, Graph, NodeId, Op};
use serde_json::Value;
use std::f64::consts::{LN_2, LOG2_E, LOG10_E, PI};

fn unary(cx: OpCall<'_, '_, '_>, function: Unary) -> Result<Outputs> {
    let x = cx.tensor("x")?;
    Ok(cx.graph().unary(function, x)?.into())
}

/// A function of the argument `x`.
pub(super) fn map(
    cx: OpCall<'_, '_, '_>,
    function: fn(&mut Graph, NodeId) -> GraphResult,
) -> Result<Outputs> {
    let x = cx.tensor("x")?;
    Ok(function(cx.graph(), x)?.into())
}

fn binary(cx: OpCall<'_, '_, '_>, function: Binary) -> Result<Outputs> {
    let [a, b] = cx.operands(["x1", "x2"])?;
    Ok(cx.graph().binary(function, a, b)?.into())
}

fn combine(
    cx: OpCall<'_, '_, '_>,
    function: fn(&mut Graph, NodeId, NodeId) -> GraphResult,
) -> Result<Outputs> {
    let [a, b] = cx.operands(["x1", "x2"])?;
    Ok(function(cx.graph(), a, b)?.into())
}

fn scaled(g: &mut Graph, x: NodeId, function: Unary, factor: f64) -> GraphResult {
    let y = g.unary(function, x)?;
    g.scale(y, factor)
}

/// `2ˣ`
fn exp2(g: &mut Graph, x: NodeId) -> GraphResult {
    let x = g.scale(x, LN_2)?;
    g.unary(Unary::Exp, x)
}

fn divide_no_nan(g: &mut Graph, a: NodeId, b: NodeId) -> GraphResult {
    let (zero, one) = (g.scalar(0.0), g.scalar(1.0));
    let safe = g.binary(Binary::Eq, b, zero)?;
    let divisor = g.select(safe, one, b)?;
    let quotient = g.div(a, divisor)?;
    g.select(safe, zero, quotient)
}

/// `max(a, b) + log(1 + e^-|a - b|)`, in logarithms to the base `e^unit`.
fn log_add_exp(g: &mut Graph, a: NodeId, b: NodeId, unit: f64) -> GraphResult {
    let largest = g.binary(Binary::Max, a, b)?;
    let apart = g.sub(a, b)?;
    let apart = g.unary(Unary::Abs, apart)?;
    let apart = g.scale(apart, -unit)?;
    let apart = g.unary(Unary::Exp, apart)?;
    let rest = g.unary(Unary::Log1p, apart)?;
    let rest = g.scale(rest, 1.0 / unit)?;
    g.add(largest, rest)
}

/// `√(a² + b²)` without overflow.
fn hypot(g: &mut Graph, a: NodeId, b: NodeId) -> GraphResult {
    let (a, b) = (g.unary(Unary::Abs, a)?, g.unary(Unary::Abs, b)?);
    let (large, small) = (g.binary(Binary::Max, a, b)?, g.binary(Binary::Min, a, b)?);
    let ratio = divide_no_nan(g, small, large)?;
    let square = g.unary(Unary::Square, ratio)?;
    let sum = g.offset(square, 1.0)?;
    let root = g.unary(Unary::Sqrt, sum)?;
    g.mul(large, root)
}

/// 0 below zero, `b` at zero, 1 above.
fn heaviside(g: &mut Graph, a: NodeId, b: NodeId) -> GraphResult {
    let zero = g.scalar(0.0);
    let above = g.binary(Binary::Gt, a, zero)?;
    let at_zero = g.binary(Binary::Eq, a, zero)?;
    let step = g.select(at_zero, b, above)?;
    let missing = math::is_nan(g, a)?;
    g.select(missing, a, step)
}

/// The larger (or smaller) of two numbers, or the one that is not NaN.
fn ignoring_nan(g: &mut Graph, function: Binary, a: NodeId, b: NodeId) -> GraphResult {
    let (no_a, no_b) = (math::is_nan(g, a)?, math::is_nan(g, b)?);
    let (x, y) = (g.select(no_a, b, a)?, g.select(no_b, a, b)?);
    g.binary(function, x, y)
}

/// `sin(πx) / (πx)`, 1 at zero.
fn sinc(g: &mut Graph, x: NodeId) -> GraphResult {
    let (zero, one) = (g.scalar(0.0), g.scalar(1.0));
    let at_zero = g.binary(Binary::Eq, x, zero)?;
    let x = g.select(at_zero, one, x)?;
    let angle = g.scale(x, PI)?;
    let sine = g.unary(Unary::Sin, angle)?;
    let quotient = g.div(sine, angle)?;
    g.select(at_zero, one, quotient)
}

/// The cube root.
fn cbrt(g: &mut Graph, x: NodeId) -> GraphResult {
    let (size, sign) = (g.unary(Unary::Abs, x)?, g.unary(Unary::Sign, x)?);
    let third = g.scalar(1.0 / 3.0);
    let root = g.binary(Binary::Pow, size, third)?;
    g.mul(root, sign)
}

/// 1 where the sign is negative, also that of zero.
fn sign_bit(g: &mut Graph, x: NodeId) -> GraphResult {
    let zero = g.scalar(0.0);
    let below = math::less(g, x, zero)?;
    let inverse = g.unary(Unary::Recip, x)?;
    let inverse_below = math::less(g, inverse, zero)?;
    math::logical_or(g, below, inverse_below)
}

/// 1 where `x` is the given infinity.
fn is_infinity(g: &mut Graph, x: NodeId, infinity: f64) -> GraphResult {
    let infinity = g.scalar(infinity);
    g.binary(Binary::Eq, x, infinity)
}

/// The coefficients of the inverse error function in `w - 2.5` for `w = -log(1 - x²)` below 5, and in `√w - 3` above
/// (M. Giles, Approximating the erfinv function, for single precision).
const ERFINV: [[f64; 9]; 2] = [
    [
        2.81022636e-08,
        3.43273939e-07,
        -3.5233877e-06,
        -4.39150654e-06,
        0.00021858087,
        -0.00125372503,
        -0.00417768164,
        0.246640727,
        1.50140941,
    ],
    [
        -0.000200214257,
        0.000100950558,
        0.00134934322,
        -0.00367342844,
        0.00573950773,
        -0.0076224613,
        0.00943887047,
        1.00167406,
        2.83297682,
    ],
];

fn erfinv(g: &mut Graph, x: NodeId) -> GraphResult {
    let square = g.unary(Unary::Square, x)?;
    let square = g.neg(square)?;
    let w = g.unary(Unary::Log1p, square)?;
    let w = g.neg(w)?;
    let five = g.scalar(5.0);
    let central = math::less(g, w, five)?;
    let near = g.offset(w, -2.5)?;
    // At least 5, so that the branch that is not used has a finite derivative.
    let far = g.binary(Binary::Max, w, five)?;
    let far = g.unary(Unary::Sqrt, far)?;
    let far = g.offset(far, -3.0)?;
    let mut branches = [near, far];
    for (branch, [first, rest @ ..]) in branches.iter_mut().zip(ERFINV) {
        let w = *branch;
        let mut sum = g.scalar(first);
        for coefficient in rest {
            sum = g.mul(sum, w)?;
            sum = g.offset(sum, coefficient)?;
        }
        *branch = sum;
    }
    let factor = g.select(central, branches[0], branches[1])?;
    let inside = g.mul(factor, x)?;
    let (size, one) = (g.unary(Unary::Abs, x)?, g.scalar(1.0));
    let at_end = g.binary(Binary::Eq, size, one)?;
    // Without derivative: zero times infinity would be NaN in the branch that is not used.
    let sign = g.unary(Unary::Sign, x)?;
    let infinite = g.scale(sign, f64::INFINITY)?;
    g.select(at_end, infinite, inside)
}

fn clip(cx: OpCall<'_, '_, '_>) -> Result<Outputs> {
    let x = cx.tensor("x")?;
    let (low, high) = (cx.option("x_min"), cx.option("x_max"));
    let (Some(low), Some(high)) = (low.as_f64(), high.as_f64()) else {
        return Err(cx.argument("x_min, x_max", "numbers", format!("{low}, {high}")));
    };
    Ok(cx.graph().clamp(x, low, high)?.into())
}

fn choose(cx: OpCall<'_, '_, '_>) -> Result<Outputs> {
    let [condition, a, b] = cx.operands(["condition", "x1", "x2"])?;
    Ok(cx.graph().select(condition, a, b)?.into())
}

/// The choice of the first condition that is true, or the default.
fn choose_first(cx: OpCall<'_, '_, '_>) -> Result<Outputs> {
    let mut values = cx.tensors("condlist")?;
    let choices = cx.tensors("choicelist")?;
    let count = values.len();
    if choices.len() != count {
        return Err(cx.argument("choicelist", &count.to_string(), choices.len()));
    }
    values.extend(choices);
    let default = cx.optional("default")?;
    let zero = cx.graph().scalar(0.0);
    values.push(default.unwrap_or(zero));
    cx.align(&mut values)?;
    let mut y = values[2 * count];
    for i in (0..count).rev() {
        y = cx.graph().select(values[i], values[count + i], y)?;
    }
    Ok(y.into())
}

/// A number in the shape of `x`.
fn like(cx: OpCall<'_, '_, '_>, value: Option<f64>) -> Result<Outputs> {
    let x = cx.any_tensor("x")?;
    let mut nodes = [x, x];
    nodes[1] = match value {
        Some(value) => cx.graph().scalar(value),
        None => cx.tensor("fill_value")?,
    };
    cx.align(&mut nodes)?;
    Ok(spread_like(cx, nodes[1], nodes[0])?.into())
}

/// A value repeated to the shape of another, which it is aligned with.
pub(super) fn spread_like(cx: OpCall<'_, '_, '_>, value: NodeId, like: NodeId) -> Result<NodeId> {
    let dims = cx.dims(like);
    let rows = cx.is_rows(like);
    let g = cx.graph();
    let y = g.push(Op::Broadcast { dims }, &[value])?;
    Ok(if rows { repeat_rows(g, y, like)? } else { y })
}

/// Converts a value to an element type of Keras.
fn converted(cx: OpCall<'_, '_, '_>, x: NodeId, dtype: &Value) -> Result<NodeId> {
    match dtype.as_str() {
        Some("float32" | "float16" | "bfloat16" | "float64") => {
            Ok(cx.graph().cast(x, DType::F32)?)
        }
        Some("bool") => {
            let x = cx.graph().cast(x, DType::F32)?;
            Ok(math::truth(cx.graph(), x)?)
        }
        Some("int32" | "int64" | "int16" | "int8" | "uint8" | "uint16" | "uint32") => {
            Ok(cx.graph().cast(x, DType::I32)?)
        }
        None if dtype.is_null() => Ok(x),
        _ => Err(cx.argument("dtype", "a float or integer type, or bool", dtype)),
    }
}

fn cast(cx: OpCall<'_, '_, '_>) -> Result<Outputs> {
    let x = cx.any_tensor("x")?;
    let dtype = cx.option("dtype");
    Ok(converted(cx, x, &dtype)?.into())
}

/// Clamps a value to the range of an integer type and converts it.
fn saturate_cast(cx: OpCall<'_, '_, '_>) -> Result<Outputs> {
    let mut x = cx.any_tensor("x")?;
    let dtype = cx.option("dtype");
    let range = match dtype.as_str() {
        Some("bool") => Some((0.0, 1.0)),
        Some("uint8") => Some((0.0, 255.0)),
        Some("int8") => Some((-128.0, 127.0)),
        Some("uint16") => Some((0.0, 65535.0)),
        Some("int16") => Some((-32768.0, 32767.0)),
        _ => None,
    };
    if let Some((low, high)) = range {
        x = cx.graph().cast(x, DType::F32)?;
        x = cx.graph().clamp(x, low, high)?;
    }
    Ok(converted(cx, x, &dtype)?.into())
}

fn stop_gradient(cx: OpCall<'_, '_, '_>) -> Result<Outputs> {
    let x = cx.any_tensor("variable")?;
    Ok(cx.graph().stop_gradient(x)?.into())
}

/// Rounds to a number of decimals.
fn round(cx: OpCall<'_, '_, '_>) -> Result<Outputs> {
    let x = cx.tensor("x")?;
    let decimals = cx.number_or("decimals", 0.0)?.clamp(-38.0, 38.0);
    let factor = 10f64.powf(decimals);
    let g = cx.graph();
    let large = g.scale(x, factor)?;
    let whole = g.unary(Unary::Round, large)?;
    let factor = g.scalar(factor);
    Ok(g.div(whole, factor)?.into())
}

/// Replaces NaN and infinities.
fn nan_to_num(cx: OpCall<'_, '_, '_>) -> Result<Outputs> {
    let x = cx.tensor("x")?;
    let nan = cx.number_or("nan", 0.0)?;
    let high = cx.number_or("posinf", f64::from(f32::MAX))?;
    let low = cx.number_or("neginf", f64::from(f32::MIN))?;
    let g = cx.graph();
    let conditions = [
        (math::is_nan(g, x)?, nan),
        (is_infinity(g, x, f64::INFINITY)?, high),
        (is_infinity(g, x, f64::NEG_INFINITY)?, low),
    ];
    let mut y = x;
    for (condition, value) in conditions {
        let value = g.scalar(value);
        y = g.select(condition, value, y)?;
    }
    Ok(y.into())
}

/// 1 where two values are as close as the tolerances allow.
pub(super) fn is_close(cx: OpCall<'_, '_, '_>) -> Result<NodeId> {
    let [a, b] = cx.operands(["x1", "x2"])?;
    let (relative, absolute) = (cx.number_or("rtol", 1e-5)?, cx.number_or("atol", 1e-8)?);
    let equal_nan = cx.flag("equal_nan");
    let g = cx.graph();
    let apart = g.sub(a, b)?;
    let apart = g.unary(Unary::Abs, apart)?;
    let size = g.unary(Unary::Abs, b)?;
    let limit = g.scale(size, relative)?;
    let limit = g.offset(limit, absolute)?;
    let near = math::less_equal(g, apart, limit)?;
    let finite = math::is_finite(g, limit)?;
    let near = g.mul(near, finite)?;
    let equal = g.binary(Binary::Eq, a, b)?;
    let mut close = math::logical_or(g, near, equal)?;
    if equal_nan {
        let (no_a, no_b) = (math::is_nan(g, a)?, math::is_nan(g, b)?);
        let neither = g.mul(no_a, no_b)?;
        close = math::logical_or(g, close, neither)?;
    }
    Ok(close)
}

ops! {
    NUMPY, "numpy";
    Abs(x) => |cx| unary(cx, Unary::Abs),
    Absolute(x) => |cx| unary(cx, Unary::Abs),
    Add(x1, x2) => |cx| binary(cx, Binary::Add),
    Angle(x) => |cx| map(cx, |g, x| {
        let zero = g.scalar(0.0);
        let below = math::less(g, x, zero)?;
        g.scale(below, PI)
    }),
    Arccos(x) => |cx| map(cx, math::acos),
    Arccosh(x) => |cx| map(cx, math::acosh),
    Arcsin(x) => |cx| map(cx, math::asin),
    Arcsinh(x) => |cx| map(cx, math::asinh),
    Arctan(x) => |cx| unary(cx, Unary::Atan),
    Arctan2(x1, x2) => |cx| combine(cx, math::atan2),
    Arctanh(x) => |cx| map(cx, math::atanh),
    Array(x) => cast,
    Cbrt(x) => |cx| map(cx, cbrt),
    Ceil(x) => |cx| map(cx, math::ceil),
    Clip(x, x_min, x_max) => clip,
    Conj(x) => |cx| map(cx, |_, x| Ok(x)),
    Conjugate(x) => |cx| map(cx, |_, x| Ok(x)),
    Copy(x) => |cx| map(cx, |_, x| Ok(x)),
    Cos(x) => |cx| unary(cx, Unary::Cos),
    Cosh(x) => |cx| map(cx, math::cosh),
    Deg2rad(x) => |cx| map(cx, |g, x| g.scale(x, PI / 180.0)),
    Divide(x1, x2) => |cx| binary(cx, Binary::Div),
    DivideNoNan(x1, x2) => |cx| combine(cx, divide_no_nan),
    EmptyLike(x) => |cx| like(cx, Some(0.0)),
    Equal(x1, x2) => |cx| binary(cx, Binary::Eq),
    Exp(x) => |cx| unary(cx, Unary::Exp),
    Exp2(x) => |cx| map(cx, exp2),
    Expm1(x) => |cx| unary(cx, Unary::Expm1),
    Fabs(x) => |cx| unary(cx, Unary::Abs),
    Floor(x) => |cx| unary(cx, Unary::Floor),
    FloorDivide(x1, x2) => |cx| combine(cx, math::floor_divide),
    Fmax(x1, x2) => |cx| combine(cx, |g, a, b| ignoring_nan(g, Binary::Max, a, b)),
    Fmin(x1, x2) => |cx| combine(cx, |g, a, b| ignoring_nan(g, Binary::Min, a, b)),
    Fmod(x1, x2) => |cx| binary(cx, Binary::Rem),
    FullLike(x, fill_value) => |cx| like(cx, None),
    Greater(x1, x2) => |cx| binary(cx, Binary::Gt),
    GreaterEqual(x1, x2) => |cx| binary(cx, Binary::Ge),
    Heaviside(x1, x2) => |cx| combine(cx, heaviside),
    Hypot(x1, x2) => |cx| combine(cx, hypot),
    Imag(x) => |cx| like(cx, Some(0.0)),
    Isclose(x1, x2, rtol, atol) => |cx| Ok(is_close(cx)?.into()),
    Isfinite(x) => |cx| map(cx, math::is_finite),
    Isinf(x) => |cx| map(cx, math::is_inf),
    Isnan(x) => |cx| map(cx, math::is_nan),
    Isneginf(x) => |cx| map(cx, |g, x| is_infinity(g, x, f64::NEG_INFINITY)),
    Isposinf(x) => |cx| map(cx, |g, x| is_infinity(g, x, f64::INFINITY)),
    Isreal(x) => |cx| like(cx, Some(1.0)),
    Ldexp(x1, x2) => |cx| combine(cx, |g, a, b| {
        let two = g.scalar(2.0);
        let power = g.binary(Binary::Pow, two, b)?;
        g.mul(a, power)
    }),
    Less(x1, x2) => |cx| combine(cx, math::less),
    LessEqual(x1, x2) => |cx| combine(cx, math::less_equal),
    Log(x) => |cx| unary(cx, Unary::Log),
    Log10(x) => |cx| map(cx, |g, x| scaled(g, x, Unary::Log, LOG10_E)),
    Log1p(x) => |cx| unary(cx, Unary::Log1p),
    Log2(x) => |cx| map(cx, |g, x| scaled(g, x, Unary::Log, LOG2_E)),
    Logaddexp(x1, x2) => |cx| combine(cx, |g, a, b| log_add_exp(g, a, b, 1.0)),
    Logaddexp2(x1, x2) => |cx| combine(cx, |g, a, b| log_add_exp(g, a, b, LN_2)),
    LogicalAnd(x1, x2) => |cx| combine(cx, math::logical_and),
    LogicalNot(x) => |cx| map(cx, math::logical_not),
    LogicalOr(x1, x2) => |cx| combine(cx, math::logical_or),
    LogicalXor(x1, x2) => |cx| combine(cx, math::logical_xor),
    Maximum(x1, x2) => |cx| binary(cx, Binary::Max),
    Minimum(x1, x2) => |cx| binary(cx, Binary::Min),
    Mod(x1, x2) => |cx| combine(cx, math::modulo),
    Multiply(x1, x2) => |cx| binary(cx, Binary::Mul),
    NanToNum(x) => nan_to_num,
    Negative(x) => |cx| unary(cx, Unary::Neg),
    NotEqual(x1, x2) => |cx| combine(cx, math::not_equal),
    OnesLike(x, dtype) => |cx| like(cx, Some(1.0)),
    Power(x1, x2) => |cx| binary(cx, Binary::Pow),
    Rad2deg(x) => |cx| map(cx, |g, x| g.scale(x, 180.0 / PI)),
    Real(x) => |cx| map(cx, |_, x| Ok(x)),
    Reciprocal(x) => |cx| unary(cx, Unary::Recip),
    Round(x) => round,
    Select(condlist, choicelist, default) => choose_first,
    Sign(x) => |cx| unary(cx, Unary::Sign),
    Signbit(x) => |cx| map(cx, sign_bit),
    Sin(x) => |cx| unary(cx, Unary::Sin),
    Sinc(x) => |cx| map(cx, sinc),
    Sinh(x) => |cx| map(cx, math::sinh),
    Sqrt(x) => |cx| unary(cx, Unary::Sqrt),
    Square(x) => |cx| unary(cx, Unary::Square),
    Subtract(x1, x2) => |cx| binary(cx, Binary::Sub),
    Tan(x) => |cx| map(cx, math::tan),
    Tanh(x) => |cx| unary(cx, Unary::Tanh),
    TrueDivide(x1, x2) => |cx| binary(cx, Binary::Div),
    Trunc(x) => |cx| map(cx, math::trunc),
    Where(condition, x1, x2) => choose,
    ZerosLike(x, dtype) => |cx| like(cx, Some(0.0)),
}

ops! {
    MATH, "math";
    Erf(x) => |cx| unary(cx, Unary::Erf),
    Erfc(x) => |cx| map(cx, |g, x| {
        let (one, erf) = (g.scalar(1.0), g.unary(Unary::Erf, x)?);
        g.sub(one, erf)
    }),
    Erfinv(x) => |cx| map(cx, erfinv),
    Rsqrt(x) => |cx| unary(cx, Unary::Rsqrt),
}

ops! {
    CORE, "core";
    Cast(x) => cast,
    ConvertToTensor(x) => cast,
    SaturateCast(x) => saturate_cast,
    StopGradient(variable) => stop_gradient,
}
