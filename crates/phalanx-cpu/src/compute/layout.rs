//! Transposition, concatenation, slices, padding, upsampling and affine sampling.

use crate::kernels::layout::{Stride, Upsample};
use crate::kernels::{layout, sample};
use crate::worker::WorkerCtx;
use phalanx_graph::Op;
use phalanx_graph::ops::PartsOp;
use phalanx_graph::program::ValueId;

/// Computes `y` from `x` if `op` is of this family. Safety is argued in [`compute`](super::compute).
pub(super) fn compute(ctx: &WorkerCtx<'_>, op: &Op, x: &[ValueId], y: ValueId) {
    let isa = ctx.run.isa;
    let rows = ctx.row_count(y);
    let dims = |id: ValueId| &ctx.value(id).ty.dims[..];
    match op {
        // SAFETY: see above.
        Op::Transpose { perm } => unsafe {
            layout::transpose(isa, rows, dims(x[0]), perm, ctx.src(x[0]), ctx.dst(y));
        },
        Op::Concat { axis } => {
            let mut start = 0;
            for part in x {
                let len = dims(*part)[*axis];
                let (from, to) = (ctx.src(*part), ctx.dst(y));
                // SAFETY: see above.
                unsafe { layout::concat_part(rows, dims(y), *axis, start..start + len, from, to) };
                start += len;
            }
        }
        // SAFETY: see above.
        Op::Slice { axis, start, len } => unsafe {
            let part = *start..*start + *len;
            layout::slice(rows, dims(x[0]), *axis, part, ctx.src(x[0]), ctx.dst(y));
        },
        Op::Parts(PartsOp::Slice { axis, parts }) => {
            let len = dims(x[0])[*axis] / parts;
            // SAFETY: see above.
            unsafe {
                let part = ctx.part * len..(ctx.part + 1) * len;
                layout::slice(rows, dims(x[0]), *axis, part, ctx.src(x[0]), ctx.dst(y));
            }
        }
        // SAFETY: see above; the values have no gaps.
        Op::Stride { axis, step } => unsafe {
            layout::stride(strided(rows, dims(x[0]), *axis, *step), ctx.f32(x[0]), ctx.f32(y));
        },
        // SAFETY: see above; the values have no gaps.
        Op::Dilate { axis, step, .. } => unsafe {
            layout::dilate(strided(rows, dims(y), *axis, *step), ctx.f32(x[0]), ctx.f32(y));
        },
        // SAFETY: see above.
        Op::Pad { before, after } => unsafe {
            layout::pad(rows, dims(x[0]), before, after, ctx.src(x[0]), ctx.dst(y));
        },
        Op::Upsample { size, bilinear } => {
            let d = dims(x[0]);
            let geom = Upsample { input: [d[0], d[1], d[2]], size: *size, bilinear: *bilinear };
            // SAFETY: see above.
            unsafe { layout::upsample(isa, rows, &geom, ctx.src(x[0]), ctx.dst(y)) };
        }
        Op::UpsampleGrad { size, bilinear } => {
            let d = dims(y);
            let geom = Upsample { input: [d[0], d[1], d[2]], size: *size, bilinear: *bilinear };
            // SAFETY: see above.
            unsafe { layout::upsample_grad(isa, rows, &geom, ctx.src(x[0]), ctx.dst(y)) };
        }
        // SAFETY: see above; the values have no gaps.
        Op::AffineSample(geom) => unsafe {
            let (input, matrices) = (ctx.slice(x[0]), ctx.slice(x[1]));
            sample::affine(isa, geom, rows, input, matrices, ctx.slice_mut(y));
        },
        // SAFETY: see above; the values have no gaps.
        Op::AffineSampleGrad(geom) => unsafe {
            let (dy, matrices) = (ctx.slice(x[0]), ctx.slice(x[1]));
            sample::affine_grad(isa, geom, rows, dy, matrices, ctx.slice_mut(y));
        },
        _ => unreachable!("{} is of another family", op.name()),
    }
}

/// A stride along an axis of `dims`.
fn strided(rows: usize, dims: &[usize], axis: usize, step: isize) -> Stride {
    let outer = rows * dims[..axis].iter().product::<usize>();
    Stride { outer, len: dims[axis], inner: dims[axis + 1..].iter().product(), step }
}
