//! Softmax, its derivative, and the crossentropy fused with it.

use super::{Backward, Cotangents, Op, Unary, need_index, need_rows, need_values, operand};
use crate::error::Result;
use crate::graph::{Graph, NodeId};
use crate::types::{Space, Type};

/// Shape rule of softmax and log-softmax.
pub fn infer(x: &Type) -> Result<Type> {
    need_values("softmax", x)?;
    if x.dims.is_empty() || x.last() == 0 {
        return Err(operand("softmax", "a last axis to normalise over", x));
    }
    Ok(x.clone())
}

/// Shape rule of sparse crossentropy: one number per label.
pub fn infer_sparse_xent(logits: &Type, labels: &Type) -> Result<Type> {
    infer(logits)?;
    need_rows("sparse_xent", logits)?;
    need_index("sparse_xent labels", labels)?;
    if logits.dims[..logits.dims.len() - 1] != labels.dims {
        return Err(operand(
            "sparse_xent labels",
            format!("one label for each of {logits}"),
            labels,
        ));
    }
    Ok(Type::rows(labels.dims.clone()))
}

/// Shape rule of its derivative.
pub fn infer_sparse_xent_grad(logits: &Type, labels: &Type, dy: &Type) -> Result<Type> {
    if *dy != infer_sparse_xent(logits, labels)? {
        return Err(operand("sparse_xent_grad", "one number per label", dy));
    }
    Ok(logits.clone())
}

/// Shape rule of the derivative of softmax; operands `y, dy`.
pub fn infer_grad(y: &Type, dy: &Type) -> Result<Type> {
    infer(y)?;
    if dy.dims != y.dims || dy.dtype != y.dtype || dy.is_rows() != y.is_rows() {
        return Err(operand("softmax_grad", format!("the shape of {y}"), dy));
    }
    let space = if dy.space == Space::Mirrored { y.space } else { dy.space };
    Ok(Type { space, ..dy.clone() })
}

/// `x` summed over the last axis, which remains with size one.
fn sum_last(g: &mut Graph, x: NodeId) -> Result<NodeId> {
    let axis = g.ty(x).dims.len() - 1;
    g.sum_axes(x, &[axis])
}

/// `dx = y · (dy - Σ dy·y)`
pub fn softmax_derivative(g: &mut Graph, b: &Backward<'_>) -> Cotangents {
    Ok(vec![Some(g.push(Op::SoftmaxGrad, &[b.y, b.dy])?)])
}

/// With `dx = y · (dy - s)`, `s = Σ dy·y` and the derivative `d` of `dx`: `d · (dy - s) - dy · Σ d·y` for `y`, and for
/// `dy` the same op of `d`, since it is symmetric.
pub fn softmax_grad_derivative(g: &mut Graph, b: &Backward<'_>) -> Cotangents {
    let (y, dy, d) = (b.inputs[0], b.inputs[1], b.dy);
    let sum_of_products = |g: &mut Graph, a| {
        let product = g.mul(a, y)?;
        sum_last(g, product)
    };
    let (s, t) = (sum_of_products(g, dy)?, sum_of_products(g, d)?);
    let centred = g.sub(dy, s)?;
    let (first, second) = (g.mul(d, centred)?, g.mul(dy, t)?);
    Ok(vec![Some(g.sub(first, second)?), Some(g.push(Op::SoftmaxGrad, &[y, d])?)])
}

/// `dx = dy - eʸ · Σ dy`
pub fn log_softmax_derivative(g: &mut Graph, b: &Backward<'_>) -> Cotangents {
    let s = sum_last(g, b.dy)?;
    let p = g.unary(Unary::Exp, b.y)?;
    let t = g.mul(p, s)?;
    Ok(vec![Some(g.sub(b.dy, t)?)])
}

/// `dlogits = (softmax(logits) - onehot(label)) · dy`
pub fn sparse_xent_derivative(g: &mut Graph, b: &Backward<'_>) -> Cotangents {
    let d = g.push(Op::SparseXentGrad, &[b.inputs[0], b.inputs[1], b.dy])?;
    Ok(vec![Some(d), None])
}
