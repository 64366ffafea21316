//! Dense layers with a kernel that is large against the batch: each worker of a device has its rows
//! of the kernel to itself (`lower/slices.rs` of the graph crate says when and why).

use crate::kernels::dot;
use crate::worker::{Ctx, MAX_WORKERS};
use phalanx_graph::ParamId;
use phalanx_graph::program::{ValueId, split_range};
use std::ops::Range;

impl<'a> Ctx<'a> {
    /// This worker's rows of a kernel with so many.
    fn my_rows(&self, k: usize) -> Range<usize> {
        split_range(0..k, self.run.mesh.workers, self.worker)
    }

    /// Runs of the last axis of a value on all workers of the device.
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
        // SAFETY: feeds and the device's block hold all its rows, one worker's behind the other's.
        // They were finished before the barrier in front of this and are not written again before
        // the end of the step.
        unsafe { std::slice::from_raw_parts(self.address(v, self.device, 0).cast(), len) }
    }

    /// This worker's rows of a kernel `[k, n]`, and which they are.
    fn kernel_slice(&self, kernel: ValueId) -> (&'a [f32], Range<usize>, usize) {
        let dims = &self.value(kernel).ty.dims;
        let (rows, n) = (self.my_rows(dims[0]), dims[1]);
        (&self.slice(kernel)[rows.start * n..rows.end * n], rows, n)
    }

    /// All rows of the device times this worker's slice of a kernel.
    pub fn sliced_dot(&self, x: ValueId, kernel: ValueId, y: ValueId) {
        let (w, mine, n) = self.kernel_slice(kernel);
        let (m, ldx) = (self.device_pixels(x), self.value(x).ld);
        if m == 0 {
            return;
        }
        let input = &self.device_slice(x)[mine.start..];
        // SAFETY: a part has room for all rows of the device, and this worker alone writes its own.
        let out = unsafe { std::slice::from_raw_parts_mut(self.f32(y), m * n) };
        let (isa, k, scratch) = (self.run.isa, mine.len(), self.scratch());
        dot::forward(isa, m, k, n, input, ldx, w, None, false, out, n, scratch);
    }

    /// Adds up the parts of a product for this worker's rows.
    pub fn add_slices(&self, part: ValueId, bias: Option<ValueId>, relu: bool, y: ValueId) {
        let n = self.value(y).ty.last();
        let before = self.rows.start - self.run.rows(self.device, 0).start;
        let skip = before * self.value(part).ty.len();
        let mut parts = [std::ptr::null(); MAX_WORKERS];
        let workers = self.run.mesh.workers;
        for (worker, part_of) in parts[..workers].iter_mut().enumerate() {
            let at = self.address(self.value(part), self.device, worker).cast::<f32>();
            *part_of = at.wrapping_add(skip).cast_const();
        }
        let (out, bias) = (self.dst(y), bias.map(|b| self.slice(b)));
        // SAFETY: parts were finished before the barrier in front of this and hold the rows of all
        // workers; the result is this worker's own.
        unsafe {
            dot::add_parts(self.run.isa, self.pixels(y), n, &parts[..workers], bias, relu, out);
        }
    }

    /// The columns of an input's derivative that belong to this worker's slice of the kernel.
    pub fn sliced_grad_input(&self, dy: ValueId, kernel: ValueId, dx: ValueId) {
        let (w, mine, n) = self.kernel_slice(kernel);
        let (m, k) = (self.device_pixels(dy), mine.len());
        let (ldy, ldx) = (self.value(dy).ld, self.value(dx).ld);
        let out = self.address(self.value(dx), self.device, 0).cast::<f32>();
        let (isa, dy, scratch) = (self.run.isa, self.device_slice(dy), self.scratch());
        // SAFETY: the device's block holds all rows, and this worker alone writes these columns.
        unsafe {
            let out = out.add(mine.start);
            dot::grad_input_at(isa, m, k, n, dy, ldy, w, out, ldx, scratch);
        }
    }

    /// This worker's slice of a dense kernel's gradient, for other devices to read.
    pub fn sliced_gradient(&self, param: ParamId, x: ValueId, dy: ValueId) {
        let dims = &self.program().params()[param.index()].dims;
        let (mine, n) = (self.my_rows(dims[0]), dims[1]);
        let start = self.run.layout.offsets[param.index()] + mine.start * n;
        // SAFETY: this worker alone writes this slice of the device's gradient.
        let out = unsafe {
            std::slice::from_raw_parts_mut(self.device().sliced.f32().add(start), mine.len() * n)
        };
        self.kernel_rows(x, dy, mine, out);
    }

    /// Rows `mine` of a dense kernel's gradient, over all rows of the device.
    pub fn kernel_rows(&self, x: ValueId, dy: ValueId, mine: Range<usize>, out: &mut [f32]) {
        let (k, n) = (self.value(x).ty.last(), self.value(dy).ty.last());
        let (ldx, ldy) = (self.value(x).ld, self.value(dy).ld);
        let (isa, m) = (self.run.isa, self.device_pixels(x));
        let (x, dy) = (self.device_slice(x), self.device_slice(dy));
        dot::grad_weight(isa, m, k, n, x, ldx, dy, ldy, mine, out);
    }
}
