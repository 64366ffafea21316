//! Softmax and cross-entropy.

use crate::kernels::softmax::{self, Logits};
use crate::worker::WorkerCtx;
use phalanx_graph::Op;
use phalanx_graph::program::ValueId;

/// Computes `y` from `x` if `op` is of this family. Safety is argued in [`compute`](super::compute).
pub(super) fn compute(ctx: &WorkerCtx<'_>, op: &Op, x: &[ValueId], y: ValueId) {
    let isa = ctx.run.isa;
    // The loss has one number per vector of logits, the other results one vector.
    let rows = if *op == Op::SparseXent { ctx.elements(y) } else { ctx.pixels(y) };
    let ld = ctx.value(x[0]).ld;
    let logits = Logits { ptr: ctx.f32(x[0]), rows, classes: ctx.value(x[0]).ty.last(), ld };
    match op {
        // SAFETY: see above.
        Op::Softmax => unsafe { softmax::softmax(isa, logits, ctx.f32(y)) },
        // SAFETY: see above.
        Op::SoftmaxGrad => unsafe {
            softmax::softmax_grad(isa, logits, ctx.f32(x[1]), ctx.f32(y));
        },
        // SAFETY: see above.
        Op::LogSoftmax => unsafe { softmax::log_softmax(isa, logits, ctx.f32(y)) },
        // SAFETY: see above.
        Op::SparseXent => unsafe {
            softmax::sparse_xent(isa, logits, ctx.i32(x[1]), ctx.f32(y));
        },
        // SAFETY: see above.
        Op::SparseXentGrad => unsafe {
            let (labels, dy) = (ctx.i32(x[1]), ctx.f32(x[2]));
            softmax::sparse_xent_grad(isa, logits, labels, dy, ctx.dst(y));
        },
        _ => unreachable!("{} is of another family", op.name()),
    }
}
