//! Lookups, one-hot, argmax and counts.

use super::doubles;
use crate::kernels::{index, take};
use crate::worker::WorkerCtx;
use phalanx_graph::program::ValueId;
use phalanx_graph::{DType, Op};

/// Computes `y` from `x` if `op` is of this family. Safety is argued in [`compute`](super::compute).
pub(super) fn compute(ctx: &WorkerCtx<'_>, op: &Op, x: &[ValueId], y: ValueId) {
    let isa = ctx.run.isa;
    let dims = |id: ValueId| &ctx.value(id).ty.dims[..];
    match op {
        // SAFETY: see above.
        Op::Gather => unsafe {
            let table = [dims(x[0])[0], dims(x[0])[1]];
            let (from, ids) = (ctx.f32(x[0]), ctx.i32(x[1]));
            index::gather(table, from, ctx.elements(x[1]), ids, ctx.f32(y));
        },
        // SAFETY: see above.
        Op::GatherGrad { .. } => unsafe {
            let table = [dims(y)[0], dims(y)[1]];
            let (count, ids) = (ctx.elements(x[0]), ctx.i32(x[0]));
            index::gather_grad(isa, table, count, ids, ctx.f32(x[1]), ctx.f32(y));
        },
        // SAFETY: see above.
        Op::Take(at) => unsafe {
            let (from, positions) = (ctx.value(x[0]), &ctx.value(x[1]).ty);
            let loops = at.loops(dims(x[0]), from.ty.is_rows(), positions, ctx.rows.len());
            let outside = match from.ty.dtype {
                DType::I32 => f32::from_bits(i32::MIN as u32),
                _ => f32::NAN,
            };
            take::take(&loops, outside, ctx.f32(x[0]), ctx.i32(x[1]), ctx.f32(y));
        },
        // SAFETY: see above.
        Op::TakeGrad { at, .. } => unsafe {
            let (has_rows, positions) = (ctx.value(y).ty.is_rows(), &ctx.value(x[0]).ty);
            let loops = at.loops(dims(y), has_rows, positions, ctx.rows.len());
            take::take_grad(&loops, ctx.i32(x[0]), ctx.f32(x[1]), ctx.f32(y));
        },
        // SAFETY: see above.
        Op::ArgSort => unsafe {
            let n = ctx.value(y).ty.last();
            index::arg_sort(ctx.pixels(y), n, ctx.f32(x[0]), ctx.i32(y));
        },
        // SAFETY: see above.
        Op::OneHot { depth } => unsafe {
            index::one_hot(*depth, ctx.elements(x[0]), ctx.i32(x[0]), ctx.f32(y));
        },
        // SAFETY: see above.
        Op::ArgMax => unsafe {
            let n = ctx.value(x[0]).ty.last();
            index::arg_max(ctx.elements(y), n, ctx.src(x[0]), ctx.i32(y));
        },
        // SAFETY: see above.
        Op::InTopK { k } => unsafe {
            let shape = [ctx.elements(y), ctx.value(x[0]).ty.last()];
            index::in_top_k(isa, *k, shape, ctx.f32(x[0]), ctx.i32(x[1]), ctx.f32(y));
        },
        // SAFETY: see above.
        Op::ThresholdCounts { n } => unsafe {
            let operands = [ctx.f32(x[0]), ctx.f32(x[1]), ctx.f32(x[2])].map(|p| p.cast_const());
            let (count, wide) = (ctx.elements(x[0]), doubles(ctx.scratch()));
            index::threshold_counts(*n, count, operands, ctx.slice_mut(y), wide);
        },
        Op::RowIndex => {
            // SAFETY: see above; the result is the only value.
            let out = unsafe { std::slice::from_raw_parts_mut(ctx.i32(y), ctx.elements(y)) };
            out.iter_mut().zip(ctx.rows.start..).for_each(|(y, row)| *y = row as i32);
        }
        _ => unreachable!("{} is of another family", op.name()),
    }
}
