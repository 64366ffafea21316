//! Batch normalisation.

use super::doubles;
use crate::kernels::norm;
use crate::worker::WorkerCtx;
use phalanx_graph::Op;
use phalanx_graph::ops::BatchNormAttrs;
use phalanx_graph::program::ValueId;

impl<'a> WorkerCtx<'a> {
    /// Computes `y` from `x` if `op` is of this family. Safety is argued in [`compute`](Self::compute).
    pub(super) fn compute_norm(&self, op: &Op, x: &[ValueId], y: ValueId) {
        let isa = self.run.isa;
        match op {
            // SAFETY: see above.
            Op::Moments => unsafe {
                let c = self.value(x[0]).ty.last();
                let out = std::slice::from_raw_parts_mut(self.f32(y).cast::<f64>(), 2 * c);
                norm::moments(isa, self.pixels(x[0]), c, self.src(x[0]), out);
            },
            Op::BatchStats { scope, positions } => {
                let len = self.value(x[0]).ty.len();
                // SAFETY: see above; moments are doubles, which the plan aligns to 64 bytes.
                let sums = unsafe { std::slice::from_raw_parts(self.f32(x[0]).cast::<f64>(), len) };
                let count = self.scope_rows(*scope) * positions;
                norm::stats(sums, count as f64, self.slice_mut(y));
            }
            // SAFETY: see above.
            Op::BatchNorm(a) => unsafe {
                let n = self.batch_norm(a, &x[1..4]);
                let (input, out) = (self.src(x[0]), self.dst(y));
                norm::normalize(isa, &n, self.pixels(y), input, out, self.scratch());
            },
            // SAFETY: see above.
            Op::BatchNormGradSums(a) => unsafe {
                let n = self.batch_norm(a, &x[2..5]);
                let (dy, input) = (self.src(x[0]), self.src(x[1]));
                let c = self.value(x[0]).ty.last();
                let (wide, scratch) = self.scratch().split_at_mut(4 * c);
                let (out, wide) = (self.slice_mut(y), doubles(wide));
                norm::grad_sums(isa, &n, self.pixels(x[0]), dy, input, out, wide, scratch);
            },
            // SAFETY: see above.
            Op::BatchNormGradInput(a) => unsafe {
                let n = self.batch_norm(a, &x[2..5]);
                let (dy, input, dx) = (self.src(x[0]), self.src(x[1]), self.dst(y));
                let positions = self.value(y).ty.len() / self.value(y).ty.last();
                let count = (self.scope_rows(a.scope) * positions) as f64;
                let sums = (self.slice(x[5]), count);
                norm::grad_input(isa, &n, self.pixels(y), dy, input, sums, dx, self.scratch());
            },

            _ => unreachable!("{} is of another family", op.name()),
        }
    }

    pub fn batch_norm(&self, a: &BatchNormAttrs, x: &[ValueId]) -> norm::BatchNorm<'a> {
        norm::BatchNorm {
            stats: self.slice(x[0]),
            gamma: self.slice(x[1]),
            beta: self.slice(x[2]),
            epsilon: a.epsilon.get(),
            relu: a.relu,
        }
    }
}
