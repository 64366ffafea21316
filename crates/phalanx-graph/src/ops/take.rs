//! Elements of a value at computed positions along an axis.

use super::{Backward, Cotangents, Op, operand};
use crate::error::Result;
use crate::graph::Graph;
use crate::types::{DType, Space, Type};
use std::fmt;

/// The axis along which positions count.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct TakeAxis {
    /// The axis of the operand.
    pub axis: usize,
    /// Whether every element of the result has its own position: the index then has the axes of the
    /// operand. Otherwise the axes of the index replace the axis.
    pub along: bool,
}

impl fmt::Display for TakeAxis {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, " axis={}", self.axis)?;
        if self.along { f.write_str(" along") } else { Ok(()) }
    }
}

/// The loops of `Take`: `y[row, outer, count, inner] = x[row, outer, index, inner]`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TakeLoops {
    /// Rows of the result; 1 if it has none.
    pub rows: usize,
    /// Elements before the axis.
    pub outer: usize,
    /// Elements of the operand's axis.
    pub size: usize,
    /// Positions per row.
    pub count: usize,
    /// Elements after the axis.
    pub inner: usize,
    /// Whether the operand has rows.
    pub x_rows: bool,
    /// Whether the index has rows.
    pub index_rows: bool,
    /// Whether every element has its own position.
    pub along: bool,
}

impl TakeAxis {
    /// The loops over an operand of type `x` with positions `index`, for `rows` rows.
    pub fn loops(&self, x: &[usize], x_rows: bool, index: &Type, rows: usize) -> TakeLoops {
        let index_rows = index.is_rows();
        let count = if self.along { index.dims[self.axis] } else { index.len() };
        TakeLoops {
            rows: if x_rows || index_rows { rows } else { 1 },
            outer: x[..self.axis].iter().product(),
            size: x[self.axis],
            count,
            inner: x[self.axis + 1..].iter().product(),
            x_rows,
            index_rows,
            along: self.along,
        }
    }
}

/// The dimensions of the result, or `None` if the operands do not fit.
fn result_dims(at: TakeAxis, x: &[usize], index: &[usize]) -> Option<Vec<usize>> {
    let (outer, inner) = (x.get(..at.axis)?, x.get(at.axis + 1..)?);
    if !at.along {
        return Some([outer, index, inner].concat());
    }
    let fits =
        index.len() == x.len() && index[..at.axis] == *outer && index[at.axis + 1..] == *inner;
    fits.then(|| index.to_vec())
}

fn check_index(index: &Type) -> Result<()> {
    let kept = matches!(index.space, Space::Rows | Space::Mirrored);
    if kept && index.dtype == DType::I32 {
        Ok(())
    } else {
        Err(operand("take", "integer positions", index))
    }
}

/// Shape rule of `Take`.
pub fn infer(at: TakeAxis, x: &Type, index: &Type) -> Result<Type> {
    check_index(index)?;
    let space = match (x.space, index.space) {
        (Space::Rows, _) | (Space::Mirrored, Space::Rows) => Space::Rows,
        (Space::Mirrored, _) => Space::Mirrored,
        _ => return Err(operand("take", "a value already reduced", x)),
    };
    match result_dims(at, &x.dims, &index.dims) {
        Some(dims) if matches!(x.dtype, DType::F32 | DType::I32) => {
            Ok(Type::new(x.dtype, space, dims))
        }
        _ => Err(operand("take", format!("positions on axis {} as in {index}", at.axis), x)),
    }
}

/// Shape rule of `TakeGrad`; operands `index, dy`.
pub fn infer_grad(
    at: TakeAxis,
    size: usize,
    sum_rows: bool,
    index: &Type,
    dy: &Type,
) -> Result<Type> {
    check_index(index)?;
    let space = match dy.space {
        Space::Rows if sum_rows => Space::Partial,
        Space::Rows | Space::Partial | Space::Mirrored if !sum_rows => dy.space,
        _ => return Err(operand("take_grad", "rows, or reduced or partial floats", dy)),
    };
    let mut dims = dy.dims.clone();
    let taken = if at.along { 1 } else { index.dims.len() };
    let rows_fit = dy.is_rows() || !index.is_rows();
    let inside = at.axis.checked_add(taken).is_some_and(|end| end <= dims.len());
    if inside && rows_fit && dy.dtype == DType::F32 {
        dims.splice(at.axis..at.axis + taken, [size]);
        if result_dims(at, &dims, &index.dims).as_ref() == Some(&dy.dims) {
            return Ok(Type::new(DType::F32, space, dims));
        }
    }
    Err(operand("take_grad", format!("an element for each of {index}"), dy))
}

/// Each element adds its `dy` to the position that it was read from, in order.
pub fn derivative(at: TakeAxis, g: &mut Graph, b: &Backward<'_>) -> Cotangents {
    let x = g.ty(b.inputs[0]);
    let (size, has_rows) = (x.dims[at.axis], x.is_rows());
    let sum_rows = !has_rows && g.ty(b.dy).is_rows();
    let d = g.push(Op::TakeGrad { at, size, sum_rows }, &[b.inputs[1], b.dy])?;
    Ok(vec![Some(d), None])
}
