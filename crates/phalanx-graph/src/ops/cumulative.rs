//! Sums and products of the elements up to each one.

use super::{Backward, Binary, Cotangents, Op, operand};
use crate::error::Result;
use crate::graph::{Graph, NodeId};
use crate::types::{DType, Space, Type};

/// Shape rule.
pub fn infer(axis: usize, product: bool, x: &Type) -> Result<Type> {
    let linear = !product || x.space != Space::Partial;
    if axis < x.dims.len() && x.dtype == DType::F32 && linear {
        Ok(x.clone())
    } else {
        Err(operand("cumulative", format!("floats with an axis {axis}"), x))
    }
}

/// The derivative of a sum is the sum in the other direction. That of a product is the same sum of
/// `dy · y`, divided by `x`.
pub fn derivative(
    axis: usize,
    product: bool,
    reverse: bool,
    g: &mut Graph,
    b: &Backward<'_>,
) -> Cotangents {
    let back = Op::Cumulative { axis, product: false, reverse: !reverse };
    let dx = match product {
        false => g.push(back, &[b.dy])?,
        true => product_derivative(axis, reverse, back, g, b)?,
    };
    Ok(vec![Some(dx)])
}

/// Elements after the first zero have no influence, and the division leaves out the first zero itself:
/// its derivative has the products without it.
fn product_derivative(
    axis: usize,
    reverse: bool,
    back: Op,
    g: &mut Graph,
    b: &Backward<'_>,
) -> Result<NodeId> {
    let x = b.inputs[0];
    let (zero, one) = (g.scalar(0.0), g.scalar(1.0));
    let is_zero = g.binary(Binary::Eq, x, zero)?;
    let count = g.push(Op::Cumulative { axis, product: false, reverse }, &[is_zero])?;
    let first = g.binary(Binary::Eq, count, one)?;
    let first = g.mul(first, is_zero)?;

    let terms = g.mul(b.dy, b.y)?;
    let sums = g.push(back.clone(), &[terms])?;
    let divisor = g.select(is_zero, one, x)?;
    let plain = g.div(sums, divisor)?;

    let without = g.select(first, one, x)?;
    let products = g.push(Op::Cumulative { axis, product: true, reverse }, &[without])?;
    let terms = g.mul(b.dy, products)?;
    let sums = g.push(back, &[terms])?;

    // Masks instead of a selection: partial sums may only be scaled and added.
    let at_first = g.mul(sums, first)?;
    let elsewhere = g.sub(one, first)?;
    let elsewhere = g.mul(plain, elsewhere)?;
    g.add(at_first, elsewhere)
}
