//! Pooling.

use crate::kernels::pool;
use crate::worker::WorkerCtx;
use phalanx_graph::Op;
use phalanx_graph::ops::PoolKind;
use phalanx_graph::program::ValueId;

impl WorkerCtx<'_> {
    /// Computes `y` from `x` if `op` is of this family. Safety is argued in [`compute`](Self::compute).
    pub(super) fn compute_pool(&self, op: &Op, x: &[ValueId], y: ValueId) {
        let isa = self.run.isa;
        let rows = self.row_count(y);
        match op {
            // SAFETY: see above.
            Op::Pool(kind, geom) => unsafe {
                pool::pool(isa, *kind, geom, rows, self.src(x[0]), self.dst(y));
            },
            // SAFETY: see above.
            Op::PoolGrad(PoolKind::Max, geom) => unsafe {
                let (input, out, dy) = (self.src(x[0]), self.src(x[1]), self.src(x[2]));
                pool::max_grad(isa, geom, rows, input, out, dy, self.dst(y));
            },
            // SAFETY: see above.
            Op::PoolGrad(PoolKind::Average, geom) => unsafe {
                pool::average_grad(isa, geom, rows, self.src(x[0]), self.dst(y));
            },
            _ => unreachable!("{} is of another family", op.name()),
        }
    }
}
