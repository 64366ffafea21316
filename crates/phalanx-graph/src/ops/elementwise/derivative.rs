//! Derivatives of elementwise ops.

use super::{Binary, Unary};
use crate::error::Result;
use crate::graph::{Graph, NodeId};
use crate::ops::{Backward, Cotangents};
use crate::types::Space;

/// How the derivative of a unary function scales `dy`.
enum Slope {
    Zero,
    Times(NodeId),
    Over(NodeId),
    MinusOne,
    MinusTimes(NodeId),
}

/// `dx = f'(x) · dy`.
pub fn unary_derivative(u: Unary, g: &mut Graph, b: &Backward<'_>) -> Cotangents {
    let dx = match slope(u, g, b.inputs[0], b.y)? {
        Slope::Zero => return Ok(vec![None]),
        Slope::Times(t) => g.mul(b.dy, t)?,
        Slope::Over(t) => g.div(b.dy, t)?,
        Slope::MinusOne => g.neg(b.dy)?,
        Slope::MinusTimes(t) => {
            let t = g.mul(b.dy, t)?;
            g.neg(t)?
        }
    };
    Ok(vec![Some(dx)])
}

/// `f'(x)` in terms of `x` and the result `y`.
fn slope(u: Unary, g: &mut Graph, x: NodeId, y: NodeId) -> Result<Slope> {
    Ok(Slope::Times(match u {
        Unary::Neg => return Ok(Slope::MinusOne),
        // sign(x)
        Unary::Abs => g.unary(Unary::Sign, x)?,
        Unary::Sign | Unary::Floor | Unary::Round => return Ok(Slope::Zero),
        // -y²
        Unary::Recip => return Ok(Slope::MinusTimes(g.unary(Unary::Square, y)?)),
        // 2x
        Unary::Square => {
            let two = g.scalar(2.0);
            g.mul(x, two)?
        }
        // 1 / 2y
        Unary::Sqrt => {
            let half = g.scalar(0.5);
            g.div(half, y)?
        }
        // -y³ / 2
        Unary::Rsqrt => {
            let y2 = g.unary(Unary::Square, y)?;
            let y3 = g.mul(y2, y)?;
            let c = g.scalar(-0.5);
            g.mul(y3, c)?
        }
        // y
        Unary::Exp => y,
        // y + 1
        Unary::Expm1 => {
            let one = g.scalar(1.0);
            g.add(y, one)?
        }
        // 1 / x
        Unary::Log => return Ok(Slope::Over(x)),
        // 1 / (1 + x)
        Unary::Log1p => {
            let one = g.scalar(1.0);
            return Ok(Slope::Over(g.add(x, one)?));
        }
        // 1 - y²
        Unary::Tanh => {
            let one = g.scalar(1.0);
            let y2 = g.unary(Unary::Square, y)?;
            g.sub(one, y2)?
        }
        // y (1 - y)
        Unary::Sigmoid => {
            let one = g.scalar(1.0);
            let t = g.sub(one, y)?;
            g.mul(y, t)?
        }
        // cos x
        Unary::Sin => g.unary(Unary::Cos, x)?,
        // -sin x
        Unary::Cos => return Ok(Slope::MinusTimes(g.unary(Unary::Sin, x)?)),
        // 1 / (1 + x²)
        Unary::Atan => {
            let x2 = g.unary(Unary::Square, x)?;
            return Ok(Slope::Over(g.offset(x2, 1.0)?));
        }
        // 2/√π · e^(-x²)
        Unary::Erf => {
            let x2 = g.unary(Unary::Square, x)?;
            let n = g.neg(x2)?;
            let e = g.unary(Unary::Exp, n)?;
            let c = g.scalar(std::f64::consts::FRAC_2_SQRT_PI);
            g.mul(e, c)?
        }
        // y > 0
        Unary::Relu => {
            let zero = g.scalar(0.0);
            g.binary(Binary::Gt, y, zero)?
        }
    }))
}

/// Derivatives of binary ops, summed over the axes along which an operand was broadcast.
pub fn binary_derivative(op: Binary, g: &mut Graph, b: &Backward<'_>) -> Cotangents {
    let (l, r, y, dy) = (b.inputs[0], b.inputs[1], b.y, b.dy);
    let mut out = vec![None, None];
    if b.wanted[0] {
        let dl = match op {
            Binary::Add | Binary::Sub | Binary::Rem => dy,
            Binary::Mul => g.mul(dy, r)?,
            Binary::Div => g.div(dy, r)?,
            // A tie gives half to each side, as in other frameworks.
            Binary::Max | Binary::Min => tie_weighted(op, g, l, r, dy)?,
            // b · a^(b-1)
            Binary::Pow => {
                let one = g.scalar(1.0);
                let e = g.sub(r, one)?;
                let p = g.binary(Binary::Pow, l, e)?;
                let t = g.mul(r, p)?;
                g.mul(dy, t)?
            }
            Binary::Gt | Binary::Ge | Binary::Eq => return Ok(out),
        };
        let ty = g.ty(l).clone();
        out[0] = Some(g.reduce_to(dl, &ty)?);
    }
    if b.wanted[1] {
        let dr = match op {
            Binary::Add => dy,
            Binary::Sub => g.neg(dy)?,
            Binary::Mul => g.mul(dy, l)?,
            // -y / b
            Binary::Div => {
                let t = g.div(y, r)?;
                let t = g.mul(dy, t)?;
                g.neg(t)?
            }
            Binary::Max | Binary::Min => tie_weighted(op, g, r, l, dy)?,
            // -trunc(a / b), from y = a - b · trunc(a / b)
            Binary::Rem => {
                let t = g.sub(y, l)?;
                let t = g.div(t, r)?;
                g.mul(dy, t)?
            }
            // ln a · y
            Binary::Pow => {
                let ln = g.unary(Unary::Log, l)?;
                let t = g.mul(ln, y)?;
                g.mul(dy, t)?
            }
            Binary::Gt | Binary::Ge | Binary::Eq => return Ok(out),
        };
        let ty = g.ty(r).clone();
        out[1] = Some(g.reduce_to(dr, &ty)?);
    }
    Ok(out)
}

/// `dy` times the weight of `mine` in `max(mine, other)`: 1 if it wins, ½ if they tie.
fn tie_weighted(
    op: Binary,
    g: &mut Graph,
    mine: NodeId,
    other: NodeId,
    dy: NodeId,
) -> Result<NodeId> {
    let (hi, lo) = if op == Binary::Max { (mine, other) } else { (other, mine) };
    let wins = g.binary(Binary::Gt, hi, lo)?;
    let ties = g.binary(Binary::Ge, hi, lo)?;
    let both = g.add(wins, ties)?;
    let half = g.scalar(0.5);
    let weight = g.mul(both, half)?;
    g.mul(dy, weight)
}

/// `da = dy` where the condition holds, `db = dy` elsewhere.
pub fn select_derivative(g: &mut Graph, b: &Backward<'_>) -> Cotangents {
    let c = b.inputs[0];
    let zero = g.scalar(0.0);
    // A partial sum may be scaled but not selected from, so it is multiplied by a mask of 0 and 1.
    let partial = g.ty(b.dy).space == Space::Partial;
    let source = if partial { g.scalar(1.0) } else { b.dy };
    let mut out = vec![None, None, None];
    for (i, slot) in out.iter_mut().enumerate().skip(1) {
        if b.wanted[i] {
            let d = if i == 1 { g.select(c, source, zero)? } else { g.select(c, zero, source)? };
            let d = if partial { g.mul(b.dy, d)? } else { d };
            let ty = g.ty(b.inputs[i]).clone();
            *slot = Some(g.reduce_to(d, &ty)?);
        }
    }
    Ok(out)
}
