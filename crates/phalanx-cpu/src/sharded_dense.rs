//! Sharded dense layers: if the kernel is large relative to the batch, each worker of a device handles its own
//! rows of the kernel. See `lower/sharded_dense.rs` of the graph crate.

use crate::kernels::dot;
use crate::worker::{MAX_WORKERS_PER_DEVICE, WorkerCtx};
use phalanx_graph::ParamId;
use phalanx_graph::program::{ValueId, split_range};
use std::ops::Range;

impl<'a> WorkerCtx<'a> {
    /// This worker's rows of a kernel with `k` rows.
    fn my_kernel_rows(&self, k: usize) -> Range<usize> {
        split_range(0..k, self.run.mesh.workers, self.worker)
    }

    /// Number of pixels (vectors along the last axis) of a value on all workers of the device.
    fn device_pixels(&self, id: ValueId) -> usize {
        let ty = &self.value(id).ty;
        let rows = self.run.mesh.device_rows(self.run.batch.rows, self.device).len();
        rows * ty.len() / ty.last().max(1)
    }

    /// A value's floats on all workers of the device.
    fn device_slice(&self, id: ValueId) -> &'a [f32] {
        let v = self.value(id);
        let len = match self.device_pixels(id) {
            0 => 0,
            n => (n - 1) * v.ld + v.ty.last(),
        };
        // SAFETY: feeds and the device's block hold all rows of the device contiguously, in worker
        // order. They are complete since the barrier before this and not written again in this step.
        unsafe { std::slice::from_raw_parts(self.address(v, self.device, 0).cast(), len) }
    }

    /// This worker's rows of a kernel `[k, n]`: the floats, the range of rows, and `n`.
    fn kernel_slice(&self, kernel: ValueId) -> (&'a [f32], Range<usize>, usize) {
        let dims = &self.value(kernel).ty.dims;
        let (rows, n) = (self.my_kernel_rows(dims[0]), dims[1]);
        (&self.slice(kernel)[rows.start * n..rows.end * n], rows, n)
    }

    /// Multiplies all rows of the device by this worker's slice of a kernel.
    pub fn sliced_dot(&self, x: ValueId, kernel: ValueId, y: ValueId) {
        let (w, mine, n) = self.kernel_slice(kernel);
        let (m, ldx) = (self.device_pixels(x), self.value(x).ld);
        if m == 0 {
            return;
        }
        let input = &self.device_slice(x)[mine.start..];
        // SAFETY: a part holds all rows of the device, and only this worker writes its part.
        let out = unsafe { std::slice::from_raw_parts_mut(self.f32(y), m * n) };
        let (isa, k, scratch) = (self.run.isa, mine.len(), self.scratch());
        dot::forward(isa, m, k, n, input, ldx, w, None, false, out, n, scratch);
    }

    /// Sums the parts of a product for this worker's rows.
    pub fn add_slices(&self, part: ValueId, bias: Option<ValueId>, relu: bool, y: ValueId) {
        let n = self.value(y).ty.last();
        let before = self.rows.start - self.run.rows(self.device, 0).start;
        let skip = before * self.value(part).ty.len();
        let mut parts = [std::ptr::null(); MAX_WORKERS_PER_DEVICE];
        let workers = self.run.mesh.workers;
        for (worker, part_of) in parts[..workers].iter_mut().enumerate() {
            let at = self.address(self.value(part), self.device, worker).cast::<f32>();
            *part_of = at.wrapping_add(skip).cast_const();
        }
        let (out, bias) = (self.dst(y), bias.map(|b| self.slice(b)));
        // SAFETY: the parts are complete since the barrier before this and hold the rows of all workers.
        // The result belongs to this worker.
        unsafe {
            dot::add_parts(self.run.isa, self.pixels(y), n, &parts[..workers], bias, relu, out);
        }
    }

    /// The columns of the input's gradient that belong to this worker's slice of the kernel.
    pub fn sliced_grad_input(&self, dy: ValueId, kernel: ValueId, dx: ValueId) {
        let (w, mine, n) = self.kernel_slice(kernel);
        let (m, k) = (self.device_pixels(dy), mine.len());
        let (ldy, ldx) = (self.value(dy).ld, self.value(dx).ld);
        let out = self.address(self.value(dx), self.device, 0).cast::<f32>();
        let (isa, dy, scratch) = (self.run.isa, self.device_slice(dy), self.scratch());
        // SAFETY: the device's block holds all rows, and only this worker writes these columns.
        unsafe {
            let out = out.add(mine.start);
            dot::grad_input_at(isa, m, k, n, dy, ldy, w, out, ldx, scratch);
        }
    }

    /// This worker's slice of a dense kernel's gradient, written to memory that other devices read.
    pub fn sliced_gradient(&self, param: ParamId, x: ValueId, dy: ValueId) {
        let dims = &self.program().params()[param.index()].dims;
        let (mine, n) = (self.my_kernel_rows(dims[0]), dims[1]);
        let start = self.run.layout.offsets[param.index()] + mine.start * n;
        // SAFETY: only this worker writes this slice of the device's gradient.
        let out = unsafe {
            std::slice::from_raw_parts_mut(
                self.device_memory().sliced.f32().add(start),
                mine.len() * n,
            )
        };
        self.kernel_gradient_rows(x, dy, mine, out);
    }

    /// Rows `mine` of a dense kernel's gradient, over all rows of the device.
    pub fn kernel_gradient_rows(
        &self,
        x: ValueId,
        dy: ValueId,
        mine: Range<usize>,
        out: &mut [f32],
    ) {
        let (k, n) = (self.value(x).ty.last(), self.value(dy).ty.last());
        let (ldx, ldy) = (self.value(x).ld, self.value(dy).ld);
        let (isa, m) = (self.run.isa, self.device_pixels(x));
        let (x, dy) = (self.device_slice(x), self.device_slice(dy));
        dot::grad_weight(isa, m, k, n, x, ldx, dy, ldy, mine, out);
    }
}
