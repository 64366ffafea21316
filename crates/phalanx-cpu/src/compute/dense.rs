//! Products of matrices.

use super::epilogue;
use crate::kernels::dot;
use crate::kernels::matmul::{Pointers, Product};
use crate::kernels::matrix::{MatrixMut, MatrixRef};
use crate::worker::WorkerCtx;
use phalanx_graph::Op;
use phalanx_graph::ops::matmul::Layout;
use phalanx_graph::program::ValueId;

/// Computes `y` from `x` if `op` is of this family. Safety is argued in [`compute`](super::compute).
pub(super) fn compute(ctx: &WorkerCtx<'_>, op: &Op, x: &[ValueId], y: ValueId) {
    let isa = ctx.run.isa;
    match op {
        // SAFETY: see above; the result has a buffer of its own.
        Op::Dot(e) => unsafe {
            let (input, w, e) = (ctx.matrix(x[0]), kernel(ctx, x[1]), epilogue(ctx, e, x));
            dot::forward(isa, input, w, e, ctx.matrix_mut(y), ctx.scratch());
        },
        // SAFETY: see above; the result has a buffer of its own.
        Op::DotGradInput => unsafe {
            let (dy, w) = (ctx.matrix(x[0]), kernel(ctx, x[1]));
            dot::grad_input(isa, dy, w, ctx.matrix_mut(y), ctx.scratch());
        },
        // SAFETY: see above; the result is contiguous.
        Op::DotGradKernel => unsafe {
            let (input, dy) = (ctx.matrix(x[0]), ctx.matrix(x[1]));
            let dims = &ctx.value(y).ty.dims;
            let dw = MatrixMut::contiguous(ctx.slice_mut(y), dims[0], dims[1]);
            dot::grad_weight(isa, input, dy, dw);
        },
        Op::MatMul(c) => {
            let axes = c.axes(layout(ctx, x[0]), layout(ctx, x[1]), layout(ctx, y));
            let product = Product::new(&axes);
            let at = Pointers { left: ctx.f32(x[0]), right: ctx.f32(x[1]), result: ctx.f32(y) };
            // SAFETY: see above.
            unsafe { product.run(isa, at, ctx.my_range(product.items()), ctx.scratch()) };
        }
        _ => unreachable!("{} is of another family", op.name()),
    }
}

/// How a value lies in memory.
fn layout<'a>(ctx: &WorkerCtx<'a>, id: ValueId) -> Layout<'a> {
    let v = ctx.value(id);
    Layout { dims: &v.ty.dims, ld: v.ld, rows: v.ty.is_rows().then_some(ctx.rows.len()) }
}

/// A dense layer's kernel.
///
/// # Safety
/// As [`WorkerCtx::slice`].
unsafe fn kernel<'a>(ctx: &WorkerCtx<'a>, id: ValueId) -> MatrixRef<'a> {
    let dims = &ctx.value(id).ty.dims;
    // SAFETY: the caller's contract.
    MatrixRef::contiguous(unsafe { ctx.slice(id) }, dims[0], dims[1])
}
