//! Broadcasting, reductions within a row, and the sum over rows.

use super::{Backward, Binary, Cotangents, Op, elementwise::broadcast_dims, operand};
use crate::error::Result;
use crate::graph::Graph;
use crate::types::{DType, Space, Type};

/// The kind of reduction.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ReduceKind {
    /// Sum of the elements.
    Sum,
    /// Largest element.
    Max,
}

/// Shape rule of `Broadcast`.
pub fn infer_broadcast(dims: &[usize], x: &Type) -> Result<Type> {
    match broadcast_dims(&x.dims, dims) {
        Some(d) if d == dims => Ok(Type { dims: dims.to_vec(), ..x.clone() }),
        _ => Err(operand("broadcast", format!("something that broadcasts to {dims:?}"), x)),
    }
}

/// Shape rule of `Reduce`: the axes remain with size one.
pub fn infer_reduce(kind: ReduceKind, axes: &[usize], x: &Type) -> Result<Type> {
    let ordered = axes.windows(2).all(|w| w[0] < w[1]);
    if axes.iter().any(|a| *a >= x.dims.len()) || !ordered {
        return Err(operand("reduce", format!("axes {axes:?}, ascending"), x));
    }
    if x.dtype == DType::I32 {
        return Err(operand("reduce", "floats", x));
    }
    if kind == ReduceKind::Max && x.space == Space::Partial {
        return Err(operand("reduce_max", "a value already reduced", x));
    }
    if kind == ReduceKind::Max && axes.iter().any(|a| x.dims[*a] == 0) {
        return Err(operand("reduce_max", "at least one element", x));
    }
    let mut ty = x.clone();
    axes.iter().for_each(|a| ty.dims[*a] = 1);
    Ok(ty)
}

/// Shape rule of `SumRows`.
pub fn infer_sum_rows(x: &Type) -> Result<Type> {
    super::need_rows("sum_rows", x)?;
    Ok(Type { space: Space::Partial, ..x.clone() })
}

/// Sums `dy` over the broadcast axes.
pub fn broadcast_derivative(g: &mut Graph, b: &Backward<'_>) -> Cotangents {
    let ty = g.ty(b.inputs[0]).clone();
    Ok(vec![Some(g.reduce_to(b.dy, &ty)?)])
}

/// A sum passes `dy` to every element; a maximum divides it among the elements equal to the maximum.
pub fn reduce_derivative(
    kind: ReduceKind,
    axes: &[usize],
    g: &mut Graph,
    b: &Backward<'_>,
) -> Cotangents {
    let x = b.inputs[0];
    let dims = g.ty(x).dims.clone();
    let dx = match kind {
        ReduceKind::Sum => g.push(Op::Broadcast { dims }, &[b.dy])?,
        ReduceKind::Max => {
            let hit = g.binary(Binary::Eq, x, b.y)?;
            let count =
                g.push(Op::Reduce { kind: ReduceKind::Sum, axes: axes.to_vec() }, &[hit])?;
            let share = g.div(b.dy, count)?;
            g.mul(hit, share)?
        }
    };
    Ok(vec![Some(dx)])
}

/// Every row receives `dy`, which is complete: the cotangent of a partial sum is that of the whole sum.
pub fn sum_rows_derivative(g: &mut Graph, b: &Backward<'_>) -> Cotangents {
    let x = b.inputs[0];
    let ones = g.binary(Binary::Eq, x, x)?;
    Ok(vec![Some(g.mul(ones, b.dy)?)])
}
