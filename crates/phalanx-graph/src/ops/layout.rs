//! Ops that move elements without computing: reshape, transpose, concat, slice, pad, upsample.

use super::{Backward, Cotangents, Op, need_rows, operand};
use crate::error::{GraphError, Result};
use crate::graph::Graph;
use crate::types::Type;

/// Shape rule of `Reshape`.
pub fn infer_reshape(dims: &[usize], x: &Type) -> Result<Type> {
    let ty = Type { dims: dims.to_vec(), ..x.clone() };
    ty.check_limits()?;
    if ty.len() != x.len() {
        return Err(GraphError::mismatch(
            "reshape",
            format!("{} elements", ty.len()),
            format!("{} of shape {}", x.len(), x.shape_text()),
        ));
    }
    Ok(ty)
}

/// Shape rule of `Transpose`.
pub fn infer_transpose(perm: &[usize], x: &Type) -> Result<Type> {
    let mut sorted = perm.to_vec();
    sorted.sort_unstable();
    if !sorted.iter().copied().eq(0..x.dims.len()) {
        return Err(operand("transpose", format!("axes permuted by {perm:?}"), x));
    }
    Ok(Type { dims: perm.iter().map(|p| x.dims[*p]).collect(), ..x.clone() })
}

/// Shape rule of `Concat`: all axes but `axis` are equal.
pub fn infer_concat(axis: usize, x: &[&Type]) -> Result<Type> {
    let mut ty = x[0].clone();
    if axis >= ty.dims.len() {
        return Err(operand("concat", format!("more than {axis} axes"), x[0]));
    }
    ty.dims[axis] = 0;
    for t in x {
        let mut probe = (*t).clone();
        if probe.dims.len() == ty.dims.len() {
            probe.dims[axis] = ty.dims[axis];
        }
        if probe != ty {
            let shapes: Vec<String> = x.iter().map(|t| t.shape_text()).collect();
            return Err(GraphError::mismatch(
                "inputs to concatenate",
                "equal shapes except on the axis joined",
                shapes.join(", "),
            ));
        }
        ty.dims[axis] = ty.dims[axis].saturating_add(t.dims[axis]);
    }
    Ok(ty)
}

/// Shape rule of `Slice`.
pub fn infer_slice(axis: usize, start: usize, len: usize, x: &Type) -> Result<Type> {
    match x.dims.get(axis) {
        Some(d) if start.checked_add(len).is_some_and(|end| end <= *d) => {
            let mut ty = x.clone();
            ty.dims[axis] = len;
            Ok(ty)
        }
        _ => Err(operand("slice", format!("{start}..{start}+{len} on axis {axis}"), x)),
    }
}

/// Shape rule of `Stride`.
pub fn infer_stride(axis: usize, step: isize, x: &Type) -> Result<Type> {
    match x.dims.get(axis) {
        Some(d) if step != 0 => {
            let mut ty = x.clone();
            ty.dims[axis] = d.div_ceil(step.unsigned_abs());
            Ok(ty)
        }
        _ => Err(operand("stride", format!("axis {axis}, and a step other than zero"), x)),
    }
}

/// Shape rule of `Dilate`.
pub fn infer_dilate(axis: usize, step: isize, len: usize, x: &Type) -> Result<Type> {
    match x.dims.get(axis) {
        Some(d) if step != 0 && len.div_ceil(step.unsigned_abs()) == *d => {
            let mut ty = x.clone();
            ty.dims[axis] = len;
            Ok(ty)
        }
        _ => Err(operand("dilate", format!("steps of {step} through {len} on axis {axis}"), x)),
    }
}

/// Shape rule of `Pad`.
pub fn infer_pad(before: &[usize], after: &[usize], x: &Type) -> Result<Type> {
    if before.len() != x.dims.len() || after.len() != x.dims.len() {
        return Err(operand("pad", format!("{} axes", before.len()), x));
    }
    let mut ty = x.clone();
    for (d, (b, a)) in ty.dims.iter_mut().zip(before.iter().zip(after)) {
        *d = d.saturating_add(*b).saturating_add(*a);
    }
    Ok(ty)
}

/// Shape rule of `Upsample`.
pub fn infer_upsample(size: [usize; 2], x: &Type) -> Result<Type> {
    need_rows("upsample", x)?;
    match x.dims[..] {
        [h, w, c] if !size.contains(&0) => {
            Ok(Type::rows([h.saturating_mul(size[0]), w.saturating_mul(size[1]), c]))
        }
        _ => Err(operand("upsample", "height, width and channels, and sizes of at least one", x)),
    }
}

/// Shape rule of `UpsampleGrad`.
pub fn infer_upsample_grad(size: [usize; 2], dy: &Type) -> Result<Type> {
    need_rows("upsample_grad", dy)?;
    match dy.dims[..] {
        [h, w, c] if !size.contains(&0) && h % size[0] == 0 && w % size[1] == 0 => {
            Ok(Type::rows([h / size[0], w / size[1], c]))
        }
        _ => Err(operand("upsample_grad", format!("a multiple of {size:?}"), dy)),
    }
}

/// Reshapes `dy` to the input's dimensions.
pub fn reshape_derivative(g: &mut Graph, b: &Backward<'_>) -> Cotangents {
    let dims = g.ty(b.inputs[0]).dims.clone();
    Ok(vec![Some(g.push(Op::Reshape { dims }, &[b.dy])?)])
}

/// The inverse permutation.
pub fn transpose_derivative(perm: &[usize], g: &mut Graph, b: &Backward<'_>) -> Cotangents {
    let mut inverse = vec![0; perm.len()];
    perm.iter().enumerate().for_each(|(i, p)| inverse[*p] = i);
    Ok(vec![Some(g.push(Op::Transpose { perm: inverse }, &[b.dy])?)])
}

/// Each operand gets its slice of `dy`.
pub fn concat_derivative(axis: usize, g: &mut Graph, b: &Backward<'_>) -> Cotangents {
    let mut start = 0;
    let mut out = Vec::with_capacity(b.inputs.len());
    for (x, wanted) in b.inputs.iter().zip(b.wanted) {
        let len = g.ty(*x).dims[axis];
        out.push(match wanted {
            true => Some(g.push(Op::Slice { axis, start, len }, &[b.dy])?),
            false => None,
        });
        start += len;
    }
    Ok(out)
}

/// Pads `dy` with zeros around the slice.
pub fn slice_derivative(axis: usize, start: usize, g: &mut Graph, b: &Backward<'_>) -> Cotangents {
    let x = g.ty(b.inputs[0]).dims.clone();
    let y = g.ty(b.y).dims[axis];
    let mut before = vec![0; x.len()];
    let mut after = vec![0; x.len()];
    before[axis] = start;
    after[axis] = x[axis] - start - y;
    Ok(vec![Some(g.push(Op::Pad { before, after }, &[b.dy])?)])
}

/// Zeros between the elements of `dy`.
pub fn stride_derivative(axis: usize, step: isize, g: &mut Graph, b: &Backward<'_>) -> Cotangents {
    let len = g.ty(b.inputs[0]).dims[axis];
    Ok(vec![Some(g.push(Op::Dilate { axis, step, len }, &[b.dy])?)])
}

/// The elements of `dy` that are not zeros between.
pub fn dilate_derivative(axis: usize, step: isize, g: &mut Graph, b: &Backward<'_>) -> Cotangents {
    Ok(vec![Some(g.push(Op::Stride { axis, step }, &[b.dy])?)])
}

/// Slices the padding off `dy`.
pub fn pad_derivative(before: &[usize], g: &mut Graph, b: &Backward<'_>) -> Cotangents {
    let dims = g.ty(b.inputs[0]).dims.clone();
    let mut d = b.dy;
    for (axis, (start, len)) in before.iter().zip(&dims).enumerate() {
        if g.ty(d).dims[axis] != *len {
            d = g.push(Op::Slice { axis, start: *start, len: *len }, &[d])?;
        }
    }
    Ok(vec![Some(d)])
}

/// Sums `dy` over the output pixels that each input pixel contributes to.
pub fn upsample_derivative(
    size: [usize; 2],
    bilinear: bool,
    g: &mut Graph,
    b: &Backward<'_>,
) -> Cotangents {
    Ok(vec![Some(g.push(Op::UpsampleGrad { size, bilinear }, &[b.dy])?)])
}
