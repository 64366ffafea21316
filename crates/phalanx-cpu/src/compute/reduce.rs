//! Constants, casts, broadcasts and reductions.

use crate::kernels::reduce;
use crate::worker::WorkerCtx;
use phalanx_graph::program::ValueId;
use phalanx_graph::{DType, Op};

impl WorkerCtx<'_> {
    /// Computes `y` from `x` if `op` is of this family. Safety is argued in [`compute`](Self::compute).
    pub(super) fn compute_reduce(&self, op: &Op, x: &[ValueId], y: ValueId) {
        let isa = self.run.isa;
        let rows = self.row_count(y);
        let dims = |id: ValueId| &self.value(id).ty.dims[..];
        match op {
            Op::Const { bits, .. } => self.slice_mut(y).fill(f64::from_bits(*bits) as f32),
            // SAFETY: see above.
            Op::Cast { dtype } => unsafe {
                match (self.value(x[0]).ty.dtype, dtype) {
                    (DType::I32, DType::F32) => {
                        reduce::cast_to_f32(self.elements(y), self.i32(x[0]), self.f32(y));
                    }
                    (DType::F32, DType::I32) => {
                        reduce::cast_to_i32(self.elements(y), self.f32(x[0]), self.i32(y));
                    }
                    (from, to) => unreachable!("no graph casts {from} to {to}"),
                }
            },
            // SAFETY: see above.
            Op::Broadcast { dims: to } => unsafe {
                reduce::broadcast(rows, dims(x[0]), to, self.f32(x[0]), self.f32(y));
            },
            // SAFETY: see above.
            Op::Reduce { kind, axes } => unsafe {
                reduce::reduce_axes(
                    isa,
                    *kind,
                    rows,
                    dims(x[0]),
                    axes,
                    self.f32(x[0]),
                    self.f32(y),
                );
            },
            // SAFETY: see above.
            Op::SumRows => unsafe {
                let len = self.value(y).ty.len();
                reduce::sum_rows(isa, self.rows.len(), len, self.f32(x[0]), self.f32(y));
            },
            _ => unreachable!("{} is of another family", op.name()),
        }
    }
}
