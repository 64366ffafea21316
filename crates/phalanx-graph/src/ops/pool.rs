//! Pooling over windows. Padding is ignored: it never is the maximum and does not count in an average.

use super::{Backward, Cotangents, Op, need_rows, operand};
use crate::error::Result;
use crate::geometry::ConvGeom;
use crate::graph::Graph;
use crate::types::Type;

/// The kind of pooling.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum PoolKind {
    /// The largest element of the window.
    Max,
    /// The mean of the elements that are not padding.
    Average,
}

/// Shape rule.
pub fn infer(geom: &ConvGeom, x: &Type) -> Result<Type> {
    geom.check()?;
    need_rows("pool", x)?;
    if x.dims != geom.input || geom.input[2] != geom.output[2] || !geom.is_flat() {
        return Err(operand("pool", format!("image {:?}", geom.input), x));
    }
    Ok(Type::rows(geom.output))
}

/// Shape rule of the derivative; operands `x, y, dy` or `dy` alone.
pub fn infer_grad(geom: &ConvGeom, operands: &[&Type]) -> Result<Type> {
    let x = Type::rows(geom.input);
    let y = infer(geom, &x)?;
    // In reverse, since `dy` is always present.
    for (t, expected) in operands.iter().rev().zip([&y, &y, &x]) {
        need_rows("pool_grad", t)?;
        if t.dims != expected.dims {
            return Err(operand("pool_grad", format!("image {:?}", expected.dims), t));
        }
    }
    Ok(x)
}

/// `dy` goes to the first maximum of each window, or is spread evenly over its elements.
pub fn derivative(kind: PoolKind, geom: &ConvGeom, g: &mut Graph, b: &Backward<'_>) -> Cotangents {
    let op = Op::PoolGrad(kind, *geom);
    let dx = match kind {
        PoolKind::Max => g.push(op, &[b.inputs[0], b.y, b.dy])?,
        PoolKind::Average => g.push(op, &[b.dy])?,
    };
    Ok(vec![Some(dx)])
}
