//! Transposition, concatenation, slices, padding, upsampling and affine sampling.

use crate::kernels::layout::Upsample;
use crate::kernels::{layout, sample};
use crate::worker::WorkerCtx;
use phalanx_graph::Op;
use phalanx_graph::program::ValueId;

impl WorkerCtx<'_> {
    /// Computes `y` from `x` if `op` is of this family. Safety is argued in [`compute`](Self::compute).
    pub(super) fn compute_layout(&self, op: &Op, x: &[ValueId], y: ValueId) {
        let isa = self.run.isa;
        let rows = self.row_count(y);
        let dims = |id: ValueId| &self.value(id).ty.dims[..];
        match op {
            // SAFETY: see above.
            Op::Transpose { perm } => unsafe {
                layout::transpose(isa, rows, dims(x[0]), perm, self.src(x[0]), self.dst(y));
            },
            Op::Concat { axis } => {
                let mut start = 0;
                for part in x {
                    let len = dims(*part)[*axis];
                    let (from, to) = (self.src(*part), self.dst(y));
                    // SAFETY: see above.
                    unsafe { layout::concat_part(rows, dims(y), *axis, (start, len), from, to) };
                    start += len;
                }
            }
            // SAFETY: see above.
            Op::Slice { axis, start, len } => unsafe {
                let part = (*start, *len);
                layout::slice(rows, dims(x[0]), *axis, part, self.src(x[0]), self.dst(y));
            },
            // SAFETY: see above.
            Op::Pad { before, after } => unsafe {
                layout::pad(rows, dims(x[0]), before, after, self.src(x[0]), self.dst(y));
            },
            Op::Upsample { size, bilinear } => {
                let d = dims(x[0]);
                let geom = Upsample { input: [d[0], d[1], d[2]], size: *size, bilinear: *bilinear };
                // SAFETY: see above.
                unsafe { layout::upsample(isa, rows, &geom, self.src(x[0]), self.dst(y)) };
            }
            Op::UpsampleGrad { size, bilinear } => {
                let d = dims(y);
                let geom = Upsample { input: [d[0], d[1], d[2]], size: *size, bilinear: *bilinear };
                // SAFETY: see above.
                unsafe { layout::upsample_grad(isa, rows, &geom, self.src(x[0]), self.dst(y)) };
            }
            Op::AffineSample(geom) => {
                let (input, matrices) = (self.slice(x[0]), self.slice(x[1]));
                sample::affine(isa, geom, rows, input, matrices, self.slice_mut(y));
            }
            Op::AffineSampleGrad(geom) => {
                let (dy, matrices) = (self.slice(x[0]), self.slice(x[1]));
                sample::affine_grad(isa, geom, rows, dy, matrices, self.slice_mut(y));
            }
            _ => unreachable!("{} is of another family", op.name()),
        }
    }
}
