//! Products of matrices.

use crate::kernels::dot;
use crate::worker::WorkerCtx;
use phalanx_graph::Op;
use phalanx_graph::program::ValueId;

impl WorkerCtx<'_> {
    /// Computes `y` from `x` if `op` is of this family. Safety is argued in [`compute`](Self::compute).
    pub(super) fn compute_dense(&self, op: &Op, x: &[ValueId], y: ValueId) {
        let isa = self.run.isa;
        let dims = |id: ValueId| &self.value(id).ty.dims[..];
        match op {
            Op::Dot(e) => {
                let (k, n) = (dims(x[1])[0], dims(x[1])[1]);
                let bias = e.bias.then(|| self.slice(x[2]));
                let (input, ldx) = (self.slice(x[0]), self.value(x[0]).ld);
                let (out, ldy) = (self.slice_mut(y), self.value(y).ld);
                let (m, w) = (self.pixels(y), self.slice(x[1]));
                dot::forward(isa, m, k, n, input, ldx, w, bias, e.relu, out, ldy, self.scratch());
            }
            Op::DotGradInput => {
                let (k, n) = (dims(x[1])[0], dims(x[1])[1]);
                let (dy, ldy) = (self.slice(x[0]), self.value(x[0]).ld);
                let (dx, ldx) = (self.slice_mut(y), self.value(y).ld);
                let m = self.pixels(y);
                dot::grad_input(isa, m, k, n, dy, ldy, self.slice(x[1]), dx, ldx, self.scratch());
            }
            Op::DotGradKernel => {
                let (k, n) = (dims(y)[0], dims(y)[1]);
                let (ldx, ldy) = (self.value(x[0]).ld, self.value(x[1]).ld);
                let (input, dy, m) = (self.slice(x[0]), self.slice(x[1]), self.pixels(x[0]));
                dot::grad_weight(isa, m, k, n, input, ldx, dy, ldy, 0..k, self.slice_mut(y));
            }
            _ => unreachable!("{} is of another family", op.name()),
        }
    }
}
