//! Dropout and random numbers. Both are pure functions of (seed, step, global row, key, element), so
//! forward and backward use the same mask, nothing is stored and results do not depend on the number of
//! workers.

use super::{Backward, Cotangents, Op, need_rows, operand};
use crate::error::Result;
use crate::graph::Graph;
use crate::types::Type;

/// Shape rule of `Dropout`.
pub fn infer_dropout(noise: &[usize], x: &Type) -> Result<Type> {
    need_rows("dropout", x)?;
    let fits =
        noise.len() == x.dims.len() && noise.iter().zip(&x.dims).all(|(n, d)| n == d || *n == 1);
    if fits { Ok(x.clone()) } else { Err(operand("dropout", format!("noise shape {noise:?}"), x)) }
}

/// Shape rule of `Uniform`.
pub fn infer_uniform(dims: &[usize]) -> Result<Type> {
    Ok(Type::rows(dims))
}

/// The same mask applied to `dy`.
pub fn dropout_derivative(op: &Op, g: &mut Graph, b: &Backward<'_>) -> Cotangents {
    Ok(vec![Some(g.push(op.clone(), &[b.dy])?)])
}
