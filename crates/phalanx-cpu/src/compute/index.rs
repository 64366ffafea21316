//! Lookups, one-hot, argmax and counts.

use super::doubles;
use crate::kernels::index;
use crate::worker::WorkerCtx;
use phalanx_graph::Op;
use phalanx_graph::program::ValueId;

impl WorkerCtx<'_> {
    /// Computes `y` from `x` if `op` is of this family. Safety is argued in [`compute`](Self::compute).
    pub(super) fn compute_index(&self, op: &Op, x: &[ValueId], y: ValueId) {
        let isa = self.run.isa;
        let dims = |id: ValueId| &self.value(id).ty.dims[..];
        match op {
            // SAFETY: see above.
            Op::Gather => unsafe {
                let table = [dims(x[0])[0], dims(x[0])[1]];
                let (from, ids) = (self.f32(x[0]), self.i32(x[1]));
                index::gather(table, from, self.elements(x[1]), ids, self.f32(y));
            },
            // SAFETY: see above.
            Op::GatherGrad { .. } => unsafe {
                let table = [dims(y)[0], dims(y)[1]];
                let (count, ids) = (self.elements(x[0]), self.i32(x[0]));
                index::gather_grad(isa, table, count, ids, self.f32(x[1]), self.f32(y));
            },
            // SAFETY: see above.
            Op::OneHot { depth } => unsafe {
                index::one_hot(*depth, self.elements(x[0]), self.i32(x[0]), self.f32(y));
            },
            // SAFETY: see above.
            Op::ArgMax => unsafe {
                let n = self.value(x[0]).ty.last();
                index::arg_max(self.elements(y), n, self.f32(x[0]), self.i32(y));
            },
            // SAFETY: see above.
            Op::InTopK { k } => unsafe {
                let shape = [self.elements(y), self.value(x[0]).ty.last()];
                index::in_top_k(isa, *k, shape, self.f32(x[0]), self.i32(x[1]), self.f32(y));
            },
            // SAFETY: see above.
            Op::ThresholdCounts { n } => unsafe {
                let operands =
                    [self.f32(x[0]), self.f32(x[1]), self.f32(x[2])].map(|p| p.cast_const());
                let (count, wide) = (self.elements(x[0]), doubles(self.scratch()));
                index::threshold_counts(*n, count, operands, self.slice_mut(y), wide);
            },
            _ => unreachable!("{} is of another family", op.name()),
        }
    }
}
