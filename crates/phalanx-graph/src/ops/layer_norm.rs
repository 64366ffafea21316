//! Normalisation of the vectors along the last axis.

use super::{Backward, Cotangents, Op, Real, need_values, operand};
use crate::error::Result;
use crate::graph::Graph;
use crate::types::Type;

/// The attributes of a layer normalisation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct LayerNormAttrs {
    /// Added to the variance.
    pub epsilon: Real,
    /// Divides by the root mean square, without subtracting the mean.
    pub rms: bool,
}

/// Shape rule.
pub fn infer(x: &Type) -> Result<Type> {
    need_values("layer_norm", x)?;
    if x.dims.is_empty() || x.last() == 0 {
        return Err(operand("layer_norm", "a last axis to normalise", x));
    }
    Ok(x.clone())
}

/// Shape rule of the derivative; operands `x, dy`.
pub fn infer_grad(x: &Type, dy: &Type) -> Result<Type> {
    infer(x)?;
    if dy.dims != x.dims || dy.dtype != x.dtype || dy.is_rows() != x.is_rows() {
        return Err(operand("layer_norm_grad", format!("the shape of {x}"), dy));
    }
    Ok(dy.clone())
}

/// `dx = (dy - mean(dy) - y · mean(dy · y)) / deviation`, computed with the statistics of `x` again;
/// without the mean of `dy` for a root mean square.
pub fn derivative(attrs: &LayerNormAttrs, g: &mut Graph, b: &Backward<'_>) -> Cotangents {
    Ok(vec![Some(g.push(Op::LayerNormGrad(*attrs), &[b.inputs[0], b.dy])?)])
}
