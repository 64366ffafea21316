//! Constants, casts, broadcasts and reductions.

use crate::kernels::cumulative;
use crate::kernels::reduce::{self, Reduction};
use crate::worker::WorkerCtx;
use phalanx_graph::program::ValueId;
use phalanx_graph::{DType, Op};

/// Computes `y` from `x` if `op` is of this family. Safety is argued in [`compute`](super::compute).
pub(super) fn compute(ctx: &WorkerCtx<'_>, op: &Op, x: &[ValueId], y: ValueId) {
    let isa = ctx.run.isa;
    let rows = ctx.row_count(y);
    let dims = |id: ValueId| &ctx.value(id).ty.dims[..];
    match op {
        // SAFETY: see above; the result is the only value.
        Op::Const { bits, .. } => unsafe {
            ctx.slice_mut(y).fill(f64::from_bits(*bits) as f32);
        },
        // SAFETY: see above.
        Op::Cast { dtype } => unsafe {
            match (ctx.value(x[0]).ty.dtype, dtype) {
                (DType::I32, DType::F32) => {
                    reduce::cast_to_f32(ctx.elements(y), ctx.i32(x[0]), ctx.f32(y));
                }
                (DType::F32, DType::I32) => {
                    reduce::cast_to_i32(ctx.elements(y), ctx.f32(x[0]), ctx.i32(y));
                }
                (from, to) => unreachable!("no graph casts {from} to {to}"),
            }
        },
        // SAFETY: see above.
        Op::Broadcast { dims: to } => unsafe {
            reduce::broadcast(rows, dims(x[0]), to, ctx.f32(x[0]), ctx.f32(y));
        },
        // SAFETY: see above.
        Op::Reduce { kind, axes } => unsafe {
            let reduction = Reduction { kind: *kind, rows, dims: dims(x[0]), axes };
            reduction.run(isa, ctx.f32(x[0]), ctx.f32(y));
        },
        // SAFETY: see above.
        Op::Cumulative { axis, product, reverse } => unsafe {
            let d = dims(y);
            let outer = rows * d[..*axis].iter().product::<usize>();
            let shape = [outer, d[*axis], d[*axis + 1..].iter().product()];
            cumulative::cumulative(*product, *reverse, shape, ctx.f32(x[0]), ctx.f32(y));
        },
        // SAFETY: see above.
        Op::SumRows => unsafe {
            let len = ctx.value(y).ty.len();
            reduce::sum_rows(isa, ctx.rows.len(), len, ctx.f32(x[0]), ctx.f32(y));
        },
        _ => unreachable!("{} is of another family", op.name()),
    }
}
