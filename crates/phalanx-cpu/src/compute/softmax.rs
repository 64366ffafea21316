//! Softmax and cross-entropy.

use crate::kernels::softmax;
use crate::worker::WorkerCtx;
use phalanx_graph::Op;
use phalanx_graph::program::ValueId;

impl WorkerCtx<'_> {
    /// Computes `y` from `x` if `op` is of this family. Safety is argued in [`compute`](Self::compute).
    pub(super) fn compute_softmax(&self, op: &Op, x: &[ValueId], y: ValueId) {
        let isa = self.run.isa;
        match op {
            // SAFETY: see above.
            Op::Softmax => unsafe {
                let n = self.value(y).ty.last();
                softmax::softmax(isa, self.pixels(y), n, self.f32(x[0]), self.f32(y));
            },
            // SAFETY: see above.
            Op::LogSoftmax => unsafe {
                let n = self.value(y).ty.last();
                softmax::log_softmax(isa, self.pixels(y), n, self.f32(x[0]), self.f32(y));
            },
            // SAFETY: see above.
            Op::SparseXent => unsafe {
                let n = self.value(x[0]).ty.last();
                let (logits, labels) = (self.f32(x[0]), self.i32(x[1]));
                softmax::sparse_xent(isa, self.elements(y), n, logits, labels, self.f32(y));
            },
            // SAFETY: see above.
            Op::SparseXentGrad => unsafe {
                let (m, n) = (self.pixels(y), self.value(y).ty.last());
                let (logits, labels) = (self.f32(x[0]), self.i32(x[1]));
                softmax::sparse_xent_grad(isa, m, n, logits, labels, self.f32(x[2]), self.f32(y));
            },
            _ => unreachable!("{} is of another family", op.name()),
        }
    }
}
