//! Dropout and random numbers.

use crate::kernels::random::{self, Dropout};
use crate::worker::WorkerCtx;
use phalanx_exec::Batch;
use phalanx_graph::Op;
use phalanx_graph::program::ValueId;
use phalanx_graph::rng::Draw;

/// Computes `y` from `x` if `op` is of this family. Safety is argued in [`compute`](super::compute).
pub(super) fn compute(ctx: &WorkerCtx<'_>, op: &Op, x: &[ValueId], y: ValueId) {
    let isa = ctx.run.isa;
    let rows = ctx.row_count(y);
    let dims = |id: ValueId| &ctx.value(id).ty.dims[..];
    match op {
        Op::Dropout { rate, key, noise } => {
            let Batch { seed, step, .. } = *ctx.run.batch;
            let draw = Draw { seed, step, stream: *key };
            let d = Dropout { draw, rate: rate.get() as f32, dims: dims(y), noise };
            let (from, to) = (ctx.f32(x[0]), ctx.f32(y));
            // SAFETY: see above; this kernel may work in place.
            unsafe { random::dropout(isa, &d, ctx.rows.start, rows, from, to) };
        }
        Op::Uniform { key, dims } => {
            let Batch { seed, step, .. } = *ctx.run.batch;
            let draw = Draw { seed, step, stream: *key };
            let len = dims.iter().product();
            // SAFETY: see above; the result is the only value.
            let out = unsafe { ctx.slice_mut(y) };
            random::uniform(&draw, ctx.rows.start, len, out);
        }
        _ => unreachable!("{} is of another family", op.name()),
    }
}
