//! Matrix product with a weight: `y = x · w`, over the last axis of `x`.

use super::{Backward, Binary, Cotangents, Epilogue, Op, need_reduced, need_rows, operand};
use crate::error::{GraphError, Result};
use crate::graph::{Graph, NodeId};
use crate::types::{Space, Type};

/// Shape rule.
pub fn infer(e: Epilogue, x: &[&Type]) -> Result<Type> {
    need_rows("dot", x[0])?;
    let ([.., k], [wk, n]) = (&x[0].dims[..], &x[1].dims[..]) else {
        return Err(operand("dot", "rows with a last axis, and a matrix", x[0]));
    };
    if k != wk {
        return Err(GraphError::mismatch(
            "last axis of the input",
            format!("{wk} (the kernel is {wk}x{n})"),
            format!("{k} (shape {})", x[0].shape_text()),
        ));
    }
    need_reduced("dot kernel", &[*wk, *n], x[1])?;
    if e.bias {
        need_reduced("dot bias", &[*n], x[2])?;
    }
    let mut dims = x[0].dims.clone();
    *dims.last_mut().expect("has a last axis") = *n;
    Ok(Type::rows(dims))
}

/// Shape rule of the input's derivative; operands `dy, w`.
pub fn infer_grad_input(dy: &Type, w: &Type) -> Result<Type> {
    need_rows("dot_grad_input", dy)?;
    need_reduced("dot_grad_input kernel", &w.dims, w)?;
    let mut dims = dy.dims.clone();
    match (dims.last_mut(), &w.dims[..]) {
        (Some(last), [k, n]) if last == n => *last = *k,
        _ => return Err(operand("dot_grad_input", format!("last axis as in {w}"), dy)),
    }
    Ok(Type::rows(dims))
}

/// Shape rule of the kernel's derivative; operands `x, dy`.
pub fn infer_grad_kernel(x: &Type, dy: &Type) -> Result<Type> {
    need_rows("dot_grad_kernel", x)?;
    need_rows("dot_grad_kernel", dy)?;
    match (&x.dims[..], &dy.dims[..]) {
        ([a @ .., k], [b @ .., n]) if a == b => Ok(Type::new(x.dtype, Space::Partial, [*k, *n])),
        _ => Err(operand("dot_grad_kernel", format!("leading axes as in {dy}"), x)),
    }
}

/// `dz`, the derivative before the fused epilogue, and the derivative of the bias. Used by all products.
pub fn epilogue_derivative(
    e: Epilogue,
    g: &mut Graph,
    b: &Backward<'_>,
) -> Result<(NodeId, Option<NodeId>)> {
    let dz = if e.relu {
        let zero = g.scalar(0.0);
        let mask = g.binary(Binary::Gt, b.y, zero)?;
        g.mul(b.dy, mask)?
    } else {
        b.dy
    };
    let dbias = if e.bias && b.wanted[2] {
        let ty = g.ty(b.inputs[2]).clone();
        Some(g.reduce_to(dz, &ty)?)
    } else {
        None
    };
    Ok((dz, dbias))
}

/// `dx = dz · wᵀ`, `dw = xᵀ · dz`, `dbias = Σ dz`.
pub fn derivative(e: Epilogue, g: &mut Graph, b: &Backward<'_>) -> Cotangents {
    let (x, w) = (b.inputs[0], b.inputs[1]);
    let (dz, dbias) = epilogue_derivative(e, g, b)?;
    let mut out = vec![None, None];
    if b.wanted[0] {
        out[0] = Some(g.push(Op::DotGradInput, &[dz, w])?);
    }
    if b.wanted[1] {
        out[1] = Some(g.push(Op::DotGradKernel, &[x, dz])?);
    }
    if e.bias {
        out.push(dbias);
    }
    Ok(out)
}

/// The derivative of `dot_grad_input` for its operands `x, w`: `dx = dy · w`, `dw = dyᵀ · x`.
pub fn grad_input_derivative(g: &mut Graph, b: &Backward<'_>) -> Cotangents {
    let (x, w) = (b.inputs[0], b.inputs[1]);
    let mut out = vec![None, None];
    if b.wanted[0] {
        out[0] = Some(g.push(Op::Dot(Epilogue::default()), &[b.dy, w])?);
    }
    if b.wanted[1] {
        out[1] = Some(g.push(Op::DotGradKernel, &[b.dy, x])?);
    }
    Ok(out)
}
