//! Convolutions.

use super::conv_method;
use crate::kernels::conv;
use crate::worker::WorkerCtx;
use phalanx_graph::Op;
use phalanx_graph::program::ValueId;

impl WorkerCtx<'_> {
    /// Computes `y` from `x` if `op` is of this family. Safety is argued in [`compute`](Self::compute).
    pub(super) fn compute_conv(&self, op: &Op, x: &[ValueId], y: ValueId) {
        let isa = self.run.isa;
        let rows = self.row_count(y);
        match op {
            Op::Conv(geom, e) => {
                let bias = e.bias.then(|| self.slice(x[2]));
                let (input, ldx) = (self.slice(x[0]), self.value(x[0]).ld);
                let (out, ldy) = (self.slice_mut(y), self.value(y).ld);
                let w = self.slice(x[1]);
                let scratch = self.scratch();
                let method = conv_method(self.program(), geom, conv::Pass::Forward);
                conv::forward(
                    isa, method, geom, rows, input, ldx, w, bias, e.relu, out, ldy, scratch,
                );
            }
            Op::ConvGradInput(geom) => {
                let (dy, ldy) = (self.slice(x[0]), self.value(x[0]).ld);
                let (dx, ldx) = (self.slice_mut(y), self.value(y).ld);
                let w = self.slice(x[1]);
                let method = conv_method(self.program(), geom, conv::Pass::GradInput);
                conv::grad_input(isa, method, geom, rows, dy, ldy, w, dx, ldx, self.scratch());
            }
            Op::ConvGradKernel(geom) => {
                let (input, ldx) = (self.slice(x[0]), self.value(x[0]).ld);
                let (dy, ldy) = (self.slice(x[1]), self.value(x[1]).ld);
                let (dw, rows) = (self.slice_mut(y), self.rows.len());
                let method = conv_method(self.program(), geom, conv::Pass::GradKernel);
                let scratch = self.scratch();
                conv::grad_kernel(isa, method, geom, rows, input, ldx, dy, ldy, dw, scratch);
            }
            _ => unreachable!("{} is of another family", op.name()),
        }
    }
}
