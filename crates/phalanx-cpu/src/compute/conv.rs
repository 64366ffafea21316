//! Convolutions.

use super::{conv_method, epilogue};
use crate::kernels::conv::{Conv, Pass};
use crate::worker::WorkerCtx;
use phalanx_graph::Op;
use phalanx_graph::program::ValueId;

/// Computes `y` from `x` if `op` is of this family. Safety is argued in [`compute`](super::compute).
pub(super) fn compute(ctx: &WorkerCtx<'_>, op: &Op, x: &[ValueId], y: ValueId) {
    let conv = |geom, pass, rows| {
        let method = conv_method(ctx.program(), geom, pass);
        Conv { isa: ctx.run.isa, method, geom, rows }
    };
    match op {
        // SAFETY: see above; the result has a buffer of its own.
        Op::Conv(geom, e) => unsafe {
            let (input, w, e) = (ctx.matrix(x[0]), ctx.slice(x[1]), epilogue(ctx, e, x));
            let conv = conv(geom, Pass::Forward, ctx.row_count(y));
            conv.forward(input, w, e, ctx.matrix_mut(y), ctx.scratch());
        },
        // SAFETY: see above; the result has a buffer of its own.
        Op::ConvGradInput(geom) => unsafe {
            let (dy, w) = (ctx.matrix(x[0]), ctx.slice(x[1]));
            let conv = conv(geom, Pass::GradInput, ctx.row_count(y));
            conv.grad_input(dy, w, ctx.matrix_mut(y), ctx.scratch());
        },
        // SAFETY: see above; the result is a gradient or contiguous.
        Op::ConvGradKernel(geom) => unsafe {
            let (input, dy) = (ctx.matrix(x[0]), ctx.matrix(x[1]));
            let conv = conv(geom, Pass::GradKernel, ctx.rows.len());
            conv.grad_kernel(input, dy, ctx.slice_mut(y), ctx.scratch());
        },
        _ => unreachable!("{} is of another family", op.name()),
    }
}
