//! Sharded dense layers: if the kernel is large relative to the batch, each worker of a device handles its own
//! rows of the kernel. See `lower/sharded_dense.rs` of the graph crate.

use super::{MAX_WORKERS_PER_DEVICE, WorkerCtx};
use crate::kernels::dot as dot_kernels;
use crate::kernels::layout::Dst;
use crate::kernels::matrix::{Epilogue, MatrixMut, MatrixRef};
use phalanx_graph::program::{ValueId, split_range};
use phalanx_graph::{Op, ParamId};
use std::ops::Range;

/// This worker's rows of a kernel with `k` rows.
fn my_kernel_rows(ctx: &WorkerCtx<'_>, k: usize) -> Range<usize> {
    split_range(0..k, ctx.run.mesh.workers, ctx.worker)
}

/// Number of pixels (vectors along the last axis) of a value on all workers of the device.
fn device_pixels(ctx: &WorkerCtx<'_>, id: ValueId) -> usize {
    let ty = &ctx.value(id).ty;
    let rows = ctx.run.mesh.replica_rows(ctx.run.batch.rows, ctx.replica).len();
    rows * ty.len() / ty.last().max(1)
}

/// A value on all workers of the device, as a matrix with one row per pixel.
///
/// # Safety
/// Nothing writes to the value while the matrix lives.
unsafe fn device_matrix<'a>(ctx: &WorkerCtx<'a>, id: ValueId) -> MatrixRef<'a> {
    let (v, pixels) = (ctx.value(id), device_pixels(ctx, id));
    let len = match pixels {
        0 => 0,
        n => (n - 1) * v.ld + v.ty.last(),
    };
    let first = ctx.address(v, ctx.replica, 0).cast();
    // SAFETY: feeds and the device's block hold all rows of the device contiguously, in worker order. The
    // rest is the caller's contract.
    let data = unsafe { std::slice::from_raw_parts(first, len) };
    MatrixRef::new(data, pixels, v.ty.last(), v.ld)
}

/// This worker's rows of a kernel, and their range.
fn kernel_rows<'a>(ctx: &WorkerCtx<'a>, kernel: ValueId) -> (MatrixRef<'a>, Range<usize>) {
    let dims = &ctx.value(kernel).ty.dims;
    let (rows, n) = (my_kernel_rows(ctx, dims[0]), dims[1]);
    // SAFETY: only the update and assignments write to weights, both after a barrier.
    let weights = unsafe { ctx.slice(kernel) };
    let weights = &weights[rows.start * n..rows.end * n];
    (MatrixRef::contiguous(weights, rows.len(), n), rows)
}

/// Computes `y` from the operands `x`: a product with this worker's rows of a kernel.
pub(super) fn compute(ctx: &WorkerCtx<'_>, op: &Op, x: &[ValueId], y: ValueId) {
    match op {
        Op::Dot(_) => dot(ctx, x[0], x[1], y),
        Op::DotGradInput => grad_input(ctx, x[0], x[1], y),
        _ => unreachable!("the verifier rejects a sharded {}", op.name()),
    }
}

/// Multiplies all rows of the device by this worker's rows of a kernel.
fn dot(ctx: &WorkerCtx<'_>, x: ValueId, kernel: ValueId, y: ValueId) {
    let (w, mine) = kernel_rows(ctx, kernel);
    let (m, n) = (device_pixels(ctx, x), w.cols());
    if m == 0 {
        return;
    }
    // SAFETY: the input is complete since the barrier before this, and not written again in this step. A
    // part holds all rows of the device, and only this worker writes its part. Nothing else uses the
    // scratch memory during this instruction.
    unsafe {
        let input = device_matrix(ctx, x).columns(mine);
        let out = MatrixMut::from_raw(Dst { ptr: ctx.f32(y), ld: n }, m, n);
        dot_kernels::forward(ctx.run.isa, input, w, Epilogue::NONE, out, ctx.scratch());
    }
}

/// Sums the parts of a product for this worker's rows.
pub(super) fn reduce_scatter(
    ctx: &WorkerCtx<'_>,
    part: ValueId,
    bias: Option<ValueId>,
    relu: bool,
    y: ValueId,
) {
    let before = ctx.rows.start - ctx.run.rows(ctx.replica, 0).start;
    let skip = before * ctx.value(part).ty.len();
    let mut parts = [std::ptr::null(); MAX_WORKERS_PER_DEVICE];
    let workers = ctx.run.mesh.workers;
    for (worker, part_of) in parts[..workers].iter_mut().enumerate() {
        let at = ctx.address(ctx.value(part), ctx.replica, worker).cast::<f32>();
        *part_of = at.wrapping_add(skip).cast_const();
    }
    // SAFETY: the parts are complete since the barrier before this and hold the rows of all workers.
    // The result belongs to this worker. Only the update and assignments write to the bias.
    unsafe {
        let epilogue = Epilogue { bias: bias.map(|b| ctx.slice(b)), relu };
        let out = MatrixMut::from_raw(ctx.dst(y), ctx.pixels(y), ctx.value(y).ty.last());
        dot_kernels::add_parts(ctx.run.isa, &parts[..workers], epilogue, out);
    }
}

/// The columns of the input's gradient that belong to this worker's rows of the kernel.
fn grad_input(ctx: &WorkerCtx<'_>, dy: ValueId, kernel: ValueId, dx: ValueId) {
    let (w, mine) = kernel_rows(ctx, kernel);
    let m = device_pixels(ctx, dy);
    let out = ctx.address(ctx.value(dx), ctx.replica, 0).cast::<f32>();
    // SAFETY: the output's gradient is complete since the barrier before this, and not written again in
    // this step. The device's block holds all rows of the result, and only this worker writes these
    // columns. Nothing else uses the scratch memory during this instruction.
    unsafe {
        let dst = Dst { ptr: out.add(mine.start), ld: ctx.value(dx).ld };
        let out = MatrixMut::from_raw(dst, m, mine.len());
        dot_kernels::grad_input(ctx.run.isa, device_matrix(ctx, dy), w, out, ctx.scratch());
    }
}

/// The gradient of this worker's rows of a dense kernel, written to memory that other devices read.
pub(super) fn grad_kernel(ctx: &WorkerCtx<'_>, param: ParamId, x: ValueId, dy: ValueId) {
    let dims = &ctx.program().params()[param.index()].dims;
    let (mine, n) = (my_kernel_rows(ctx, dims[0]), dims[1]);
    let start = ctx.run.memory.layout.offsets[param.index()] + mine.start * n;
    // SAFETY: only this worker writes these rows of the device's gradient.
    let out = unsafe {
        let at = ctx.device_memory().sharded.f32().add(start);
        std::slice::from_raw_parts_mut(at, mine.len() * n)
    };
    kernel_gradient_rows(ctx, x, dy, mine, out);
}

/// Rows `mine` of a dense kernel's gradient, over all rows of the device.
pub(crate) fn kernel_gradient_rows(
    ctx: &WorkerCtx<'_>,
    x: ValueId,
    dy: ValueId,
    mine: Range<usize>,
    out: &mut [f32],
) {
    // SAFETY: both are complete since the barrier before this, and not written again in this step.
    let (x, dy) = unsafe { (device_matrix(ctx, x), device_matrix(ctx, dy)) };
    let dw = MatrixMut::contiguous(out, mine.len(), dy.cols());
    dot_kernels::grad_weight(ctx.run.isa, x.columns(mine), dy, dw);
}
