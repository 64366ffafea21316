//! Dropout. The mask is a pure function of (seed, step, global row, key, element), so forward and
//! backward compute it alike and nothing is stored.

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

/// The same mask applied to `dy`.
pub fn dropout_derivative(op: &Op, g: &mut Graph, b: &Backward<'_>) -> Cotangents {
    Ok(vec![Some(g.push(op.clone(), &[b.dy])?)])
}
