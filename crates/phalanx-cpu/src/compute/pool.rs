//! Pooling.

use crate::kernels::pool::{self, Windows};
use crate::worker::WorkerCtx;
use phalanx_graph::Op;
use phalanx_graph::ops::PoolKind;
use phalanx_graph::program::ValueId;

/// Computes `y` from `x` if `op` is of this family. Safety is argued in [`compute`](super::compute).
pub(super) fn compute(ctx: &WorkerCtx<'_>, op: &Op, x: &[ValueId], y: ValueId) {
    let isa = ctx.run.isa;
    let rows = ctx.row_count(y);
    match op {
        // SAFETY: see above.
        Op::Pool(kind, geom) => unsafe {
            pool::pool(isa, *kind, Windows { geom, rows }, ctx.src(x[0]), ctx.dst(y));
        },
        // SAFETY: see above.
        Op::PoolGrad(PoolKind::Max, geom) => unsafe {
            let (input, out, dy) = (ctx.src(x[0]), ctx.src(x[1]), ctx.src(x[2]));
            pool::max_grad(isa, Windows { geom, rows }, input, out, dy, ctx.dst(y));
        },
        // SAFETY: see above.
        Op::PoolGrad(PoolKind::Average, geom) => unsafe {
            pool::average_grad(isa, Windows { geom, rows }, ctx.src(x[0]), ctx.dst(y));
        },
        _ => unreachable!("{} is of another family", op.name()),
    }
}
