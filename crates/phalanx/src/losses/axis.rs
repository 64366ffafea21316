//! The `axis` option of losses. It counts the batch as axis 0, as in Keras.

use super::{EPSILON, mean_last};
use crate::error::{Error, Result};
use phalanx_graph::ops::{Binary, Unary};
use phalanx_graph::{Graph, NodeId, Op, Type};

/// The axis of a sample that `axis` means.
///
/// # Errors
/// An axis that the samples do not have, and the batch axis.
pub(crate) fn sample_axis(owner: &str, axis: i64, ty: &Type) -> Result<usize> {
    let rank = ty.dims.len() as i64 + 1;
    let counted = if axis < 0 { axis.saturating_add(rank) } else { axis };
    if (1..rank).contains(&counted) {
        return Ok(counted as usize - 1);
    }
    let expected = format!("an axis of {} other than the batch", ty.shape_text());
    Err(Error::argument(owner, "axis", expected, axis))
}

/// Sum over axes in ascending order, which are removed.
pub(crate) fn sum_over(g: &mut Graph, x: NodeId, axes: &[usize]) -> Result<NodeId> {
    let kept = g.ty(x).dims.iter().enumerate().filter(|(i, _)| !axes.contains(i));
    let dims: Vec<usize> = kept.map(|(_, d)| *d).collect();
    let sum = g.sum_axes(x, axes)?;
    Ok(g.reshape(sum, &dims)?)
}

/// Mean over an axis, which is removed. A sample without axes is one number, which is its own mean.
pub(crate) fn mean_over(owner: &str, axis: i64, g: &mut Graph, x: NodeId) -> Result<NodeId> {
    if axis == -1 {
        return mean_last(g, x);
    }
    let axis = sample_axis(owner, axis, g.ty(x))?;
    let n = g.ty(x).dims[axis].max(1);
    let sum = sum_over(g, x, &[axis])?;
    Ok(g.scale(sum, 1.0 / n as f64)?)
}

/// Applies an op that works on the last axis, such as a softmax, to another axis.
pub(super) fn along(g: &mut Graph, op: Op, x: NodeId, axis: usize) -> Result<NodeId> {
    let last = g.ty(x).dims.len() - 1;
    if axis == last {
        return Ok(g.push(op, &[x])?);
    }
    let mut perm: Vec<usize> = (0..=last).collect();
    perm.swap(axis, last);
    // The permutation is its own inverse.
    let swapped = g.push(Op::Transpose { perm: perm.clone() }, &[x])?;
    let y = g.push(op, &[swapped])?;
    Ok(g.push(Op::Transpose { perm }, &[y])?)
}

/// `x / max(‖x‖, 1e-7)` with the Euclidean norm over an axis. The limit applies to the sum of squares, so that a
/// vector of zeros has a derivative.
pub(crate) fn normalize(g: &mut Graph, x: NodeId, axis: usize) -> Result<NodeId> {
    let square = g.unary(Unary::Square, x)?;
    let sum = g.sum_axes(square, &[axis])?;
    let least = g.scalar(EPSILON * EPSILON);
    let sum = g.binary(Binary::Max, sum, least)?;
    let inverse = g.unary(Unary::Rsqrt, sum)?;
    Ok(g.mul(x, inverse)?)
}
