//! Broadcasting and shape rules.

use super::{Access, Binary, Tape, Unary};
use crate::error::{GraphError, Result};
use crate::ops::operand;
use crate::types::{DType, Space, Type};

/// The dimensions that two operands broadcast to, aligned at the end as in NumPy.
pub fn broadcast_dims(a: &[usize], b: &[usize]) -> Option<Vec<usize>> {
    let rank = a.len().max(b.len());
    let at = |d: &[usize], i: usize| (i + d.len()).checked_sub(rank).map_or(1, |k| d[k]);
    (0..rank)
        .map(|i| match (at(a, i), at(b, i)) {
            (x, y) if x == y => Some(x),
            (1, y) => Some(y),
            (x, 1) => Some(x),
            _ => None,
        })
        .collect()
}

/// How a tape over `out` reads an operand of type `x`; `None` if it must be broadcast first.
pub fn access(out: &Type, x: &Type) -> Option<Access> {
    let rank = out.dims.len();
    let lead = rank.checked_sub(x.dims.len())?;
    let aligned: Vec<usize> =
        (0..rank).map(|i| if i < lead { 1 } else { x.dims[i - lead] }).collect();
    let same_kind = out.is_rows() == x.is_rows();
    if same_kind && aligned == out.dims {
        return Some(Access::Full);
    }
    if !x.is_rows() && x.len() == 1 {
        return Some(Access::Scalar);
    }
    if same_kind {
        let k = (0..rank).take_while(|i| aligned[*i] == out.dims[*i]).count();
        if aligned[k..].iter().all(|d| *d == 1) {
            return Some(Access::Prefix(out.dims[k..].iter().product()));
        }
    }
    if !x.is_rows() {
        let k = aligned.iter().take_while(|d| **d == 1).count();
        if aligned[k..] == out.dims[k..] {
            return Some(Access::Suffix(x.len()));
        }
    }
    None
}

/// The space of a result. Partial sums allow only linear operations.
fn join_spaces(op: &str, a: &Type, b: &Type) -> Result<Space> {
    use Space::*;
    match (a.space, b.space) {
        (Partial, Partial) if op == "add" || op == "sub" => Ok(Partial),
        (Partial, Mirrored | Device) if op == "mul" || op == "div" => Ok(Partial),
        (Mirrored | Device, Partial) if op == "mul" => Ok(Partial),
        (Partial, _) => Err(operand(op, "a value already reduced", a)),
        (_, Partial) => Err(operand(op, "a value already reduced", b)),
        (Rows, _) | (_, Rows) => Ok(Rows),
        (Device, _) | (_, Device) => Ok(Device),
        (Mirrored, Mirrored) => Ok(Mirrored),
    }
}

fn need_float(op: &str, x: &Type) -> Result<()> {
    if x.dtype == DType::F32 { Ok(()) } else { Err(operand(op, "f32", x)) }
}

/// Shape rule of unary ops.
pub fn infer_unary(u: Unary, x: &Type) -> Result<Type> {
    need_float(u.name(), x)?;
    if x.space == Space::Partial && u != Unary::Neg {
        return Err(operand(u.name(), "a value already reduced", x));
    }
    Ok(x.clone())
}

fn broadcast_types(op: &str, a: &Type, b: &Type) -> Result<Type> {
    need_float(op, a)?;
    need_float(op, b)?;
    let dims = broadcast_dims(&a.dims, &b.dims).ok_or_else(|| {
        GraphError::mismatch(
            format!("inputs of {op}"),
            "shapes that broadcast together",
            format!("{} and {}", a.shape_text(), b.shape_text()),
        )
    })?;
    Ok(Type::new(DType::F32, join_spaces(op, a, b)?, dims))
}

fn check_access(op: &str, out: Type, x: &[&Type]) -> Result<Type> {
    match x.iter().find(|t| access(&out, t).is_none()) {
        None => Ok(out),
        Some(t) => Err(operand(op, format!("a value broadcast to {out} beforehand"), t)),
    }
}

/// Shape rule of binary ops. Operands must be readable without a copy: the builder inserts a `Broadcast`
/// where necessary.
pub fn infer_binary(op: Binary, a: &Type, b: &Type) -> Result<Type> {
    check_access(op.name(), broadcast_types(op.name(), a, b)?, &[a, b])
}

/// Shape rule of `Select`.
pub fn infer_select(x: &[&Type]) -> Result<Type> {
    let out = broadcast_types("select", &broadcast_types("select", x[0], x[1])?, x[2])?;
    check_access("select", out, x)
}

/// Shape rule of a fused tape: the broadcast of all operands, each with the access of the tape.
pub fn infer_fused(tape: &Tape, x: &[&Type]) -> Result<Type> {
    if x.is_empty() || tape.outputs.len() != 1 {
        let received = format!("{} and {}", x.len(), tape.outputs.len());
        return Err(GraphError::mismatch("fused", "operands and one result", received));
    }
    tape.check()?;
    x.iter().try_for_each(|t| need_float("fused", t))?;
    let mut out = x[0].clone();
    for t in &x[1..] {
        // Partial sums were checked before fusion; a tape with a partial operand is partial.
        let space = match (out.space, t.space) {
            (Space::Partial, _) | (_, Space::Partial) => Space::Partial,
            _ => join_spaces("fused", &out, t)?,
        };
        let dims = broadcast_dims(&out.dims, &t.dims)
            .ok_or_else(|| operand("fused", format!("something like {out}"), t))?;
        out = Type::new(DType::F32, space, dims);
    }
    for (t, how) in x.iter().zip(&tape.inputs) {
        if access(&out, t) != Some(*how) {
            return Err(operand("fused", format!("{how:?} access over {out}"), t));
        }
    }
    Ok(out)
}
