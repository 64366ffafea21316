//! Dropout and random numbers.

use crate::kernels::random::{self, Dropout};
use crate::worker::WorkerCtx;
use phalanx_exec::Batch;
use phalanx_graph::Op;
use phalanx_graph::program::ValueId;
use phalanx_graph::rng::Draw;

impl WorkerCtx<'_> {
    /// Computes `y` from `x` if `op` is of this family. Safety is argued in [`compute`](Self::compute).
    pub(super) fn compute_random(&self, op: &Op, x: &[ValueId], y: ValueId) {
        let isa = self.run.isa;
        let rows = self.row_count(y);
        let dims = |id: ValueId| &self.value(id).ty.dims[..];
        match op {
            Op::Dropout { rate, key, noise } => {
                let Batch { seed, step, .. } = *self.run.batch;
                let draw = Draw { seed, step, stream: *key };
                let d = Dropout { draw, rate: rate.get() as f32, dims: dims(y), noise };
                let (from, to) = (self.f32(x[0]), self.f32(y));
                // SAFETY: see above; this kernel may work in place.
                unsafe { random::dropout(isa, &d, self.rows.start, rows, from, to) };
            }
            Op::Uniform { key, dims } => {
                let Batch { seed, step, .. } = *self.run.batch;
                let draw = Draw { seed, step, stream: *key };
                let len = dims.iter().product();
                random::uniform(&draw, self.rows.start, len, self.slice_mut(y));
            }
            _ => unreachable!("{} is of another family", op.name()),
        }
    }
}
