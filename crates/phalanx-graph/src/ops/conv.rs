//! Convolution of images and volumes, NHWC, with stride, padding, dilation and groups. Used forward, its derivative with
//! respect to the input is a transposed convolution.

use super::{Backward, Cotangents, Epilogue, Op, dot, need_reduced, need_rows, operand};
use crate::error::Result;
use crate::geometry::ConvGeom;
use crate::graph::Graph;
use crate::types::{Space, Type};

fn need_image(op: &str, dims: [usize; 3], t: &Type) -> Result<()> {
    need_rows(op, t)?;
    if t.dims == dims { Ok(()) } else { Err(operand(op, format!("image {dims:?}"), t)) }
}

/// Shape rule.
pub fn infer(geom: &ConvGeom, e: Epilogue, x: &[&Type]) -> Result<Type> {
    geom.check()?;
    need_image("conv", geom.input_dims(), x[0])?;
    need_reduced("conv kernel", &geom.kernel_dims(), x[1])?;
    if e.bias {
        need_reduced("conv bias", &[geom.output[2]], x[2])?;
    }
    Ok(Type::rows(geom.output_dims()))
}

/// Shape rule of the input's derivative; operands `dy, w`.
pub fn infer_grad_input(geom: &ConvGeom, dy: &Type, w: &Type) -> Result<Type> {
    geom.check()?;
    need_image("conv_grad_input", geom.output_dims(), dy)?;
    need_reduced("conv_grad_input", &geom.kernel_dims(), w)?;
    Ok(Type::rows(geom.input_dims()))
}

/// Shape rule of the kernel's derivative; operands `x, dy`.
pub fn infer_grad_kernel(geom: &ConvGeom, x: &Type, dy: &Type) -> Result<Type> {
    geom.check()?;
    need_image("conv_grad_kernel", geom.input_dims(), x)?;
    need_image("conv_grad_kernel", geom.output_dims(), dy)?;
    Ok(Type::new(x.dtype, Space::Partial, geom.kernel_dims()))
}

/// `dx` is a convolution of `dz` with the transposed kernel, `dw` correlates `x` and `dz`, `dbias = Σ dz`.
pub fn derivative(geom: &ConvGeom, e: Epilogue, g: &mut Graph, b: &Backward<'_>) -> Cotangents {
    let (x, w) = (b.inputs[0], b.inputs[1]);
    let (dz, dbias) = dot::epilogue_derivative(e, g, b)?;
    let mut out = vec![None, None];
    if b.wanted[0] {
        out[0] = Some(g.push(Op::ConvGradInput(*geom), &[dz, w])?);
    }
    if b.wanted[1] {
        out[1] = Some(g.push(Op::ConvGradKernel(*geom), &[x, dz])?);
    }
    if e.bias {
        out.push(dbias);
    }
    Ok(out)
}

/// The derivative of `conv_grad_input` for its operands `x, w`: `dx` is a convolution of the cotangent, `dw` correlates
/// the cotangent and `x`.
pub fn grad_input_derivative(geom: &ConvGeom, g: &mut Graph, b: &Backward<'_>) -> Cotangents {
    let (x, w) = (b.inputs[0], b.inputs[1]);
    let mut out = vec![None, None];
    if b.wanted[0] {
        out[0] = Some(g.push(Op::Conv(*geom, Epilogue::default()), &[b.dy, w])?);
    }
    if b.wanted[1] {
        out[1] = Some(g.push(Op::ConvGradKernel(*geom), &[b.dy, x])?);
    }
    Ok(out)
}
