//! Gradient reduction and update: each worker reduces its slice of every gradient over all workers, in index
//! order, and runs the optimizer's tape on the slice while it is still in cache.

use super::process_collectives::ProcessCollectives;
use super::sum_sources;
use crate::kernels::elementwise::{TapeInput, TapeOutput, TapePlan};
use crate::worker::{MAX_WORKERS_PER_DEVICE, WorkerCtx, sharded_dense};
use phalanx_graph::Scope;
use phalanx_graph::loss_scale::{LossScale, STATE};
use phalanx_graph::program::{GradientPlan, UpdatePlan, split_range};
use phalanx_graph::update::Clip;
use std::ops::Range;

/// Elements reduced and updated at a time.
const CHUNK: usize = 4096;

/// With at least this many devices, gradients are reduced by a reduce-scatter: each device sums its share of
/// every slice and reads the other shares from the other devices. If every device summed everything, the cost
/// would grow with the square of their number.
pub(crate) const MIN_REDUCE_SCATTER_DEVICES: usize = 3;

/// Maximum number of optimizer slots.
pub(crate) const MAX_SLOTS: usize = 8;
/// Maximum number of optimizer scalars.
pub(crate) const MAX_SCALARS: usize = 16;

/// Floats of scratch memory that an update needs.
pub(crate) fn scratch_len(plan: Option<&UpdatePlan>, tape: Option<&TapePlan>) -> usize {
    let (Some(plan), Some(tape)) = (plan, tape) else { return 0 };
    longest_piece(plan) + tape.scratch_len()
}

/// Elements reduced and updated at a time. A whole number of rows if the gradient is computed during the
/// update (`GradientPlan::operands`).
fn piece_len(g: &GradientPlan) -> usize {
    if g.operands.is_none() { CHUNK } else { (CHUNK / g.granule).max(1) * g.granule }
}

fn longest_piece(plan: &UpdatePlan) -> usize {
    plan.gradients.iter().map(piece_len).fold(CHUNK, usize::max)
}

/// Runs the optimizer on this worker's slices.
pub(crate) fn update(ctx: &WorkerCtx<'_>) {
    let program = ctx.program();
    let Some(plan) = program.update() else { return };
    if ctx.run.mesh.devices > 1 && plan.gradients.iter().any(|g| g.sharded) {
        // Shards of other devices must be complete before they are read.
        ctx.barrier(Scope::All);
    }
    if let Some(collectives) = ctx.run.collectives {
        reduce_across_processes(ctx, plan, collectives);
    } else if ctx.run.mesh.devices >= MIN_REDUCE_SCATTER_DEVICES {
        for g in &plan.gradients {
            reduce_scatter(ctx, g);
        }
        ctx.barrier(Scope::All);
    }
    let scale = match plan.loss_scale {
        None => None,
        Some(scaling) => match reduce_and_check_finite(ctx, plan, scaling) {
            Some(scale) => Some(scale),
            None => return,
        },
    };
    let applies = ctx.run.batch.accumulate.is_none_or(|a| a.apply.is_some());
    let longest = longest_piece(plan);
    let norms = applies && matches!(plan.rule.clip, Some(Clip::Norm(_) | Clip::GlobalNorm(_)));
    for bucket in &plan.buckets {
        for (g, at) in plan.gradients[bucket.clone()].iter().zip(bucket.clone()) {
            let mut square = 0.0;
            for chunk in chunks(ctx, g) {
                // SAFETY: no other slice of the scratch memory is alive.
                let (tile, scratch) = unsafe { ctx.scratch() }.split_at_mut(longest);
                let tile = &mut tile[..chunk.len()];
                match scale {
                    None => reduce_chunk(ctx, (g, at), chunk.clone(), 1.0, tile),
                    Some(scale) => unscale(ctx, &chunk, scale, tile),
                }
                accumulate(ctx, &chunk, tile);
                if !applies {
                    continue;
                }
                if norms {
                    square += sum_of_squares(tile);
                    store_reduced(ctx, &chunk, tile);
                } else {
                    if let Some(Clip::Value(limit)) = plan.rule.clip {
                        tile.iter_mut().for_each(|v| *v = v.clamp(-limit, limit));
                    }
                    apply(ctx, plan, chunk, tile.as_ptr(), scratch);
                }
            }
            if norms {
                // SAFETY: only this worker writes its table, which has one number per parameter.
                unsafe { *ctx.memory().norms.ptr().cast::<f64>().add(g.param.index()) = square };
            }
        }
    }
    if norms {
        ctx.barrier(Scope::Device);
        apply_clipped(ctx, plan);
    }
}

/// This worker's slice of a gradient: a range of the flat layout, in whole granules.
fn worker_slice(ctx: &WorkerCtx<'_>, g: &GradientPlan) -> Range<usize> {
    let start = ctx.run.memory.layout.offsets[g.param.index()];
    let len = ctx.program().params()[g.param.index()].len();
    let mine = split_range(0..len / g.granule, ctx.run.mesh.workers, ctx.worker);
    start + mine.start * g.granule..start + mine.end * g.granule
}

/// Splits a range into pieces that fit the first-level cache.
fn pieces(range: Range<usize>, len: usize) -> impl Iterator<Item = Range<usize>> {
    let end = range.end;
    range.step_by(len).map(move |at| at..end.min(at + len))
}

fn chunks(ctx: &WorkerCtx<'_>, g: &GradientPlan) -> impl Iterator<Item = Range<usize>> + use<> {
    pieces(worker_slice(ctx, g), piece_len(g))
}

/// After instruction `at`: submits the buckets that it finished for the all-reduce over all processes.
pub(crate) fn submit_finished_buckets(ctx: &WorkerCtx<'_>, at: usize) {
    let Some(collectives) = ctx.run.collectives else { return };
    let Some(plan) = ctx.program().update() else { return };
    let points = &ctx.run.loaded.send_points;
    for (bucket, _) in plan.buckets.iter().zip(points).filter(|b| *b.1 == Some(at)) {
        // After this barrier all partial sums are complete.
        ctx.barrier(Scope::All);
        sum_locally(ctx, plan, bucket.clone(), collectives);
        let offsets = &ctx.run.loaded.gradient_offsets;
        let floats = offsets[bucket.start]..offsets[bucket.end];
        collectives.finish_bucket(floats, ctx.run.memory.workers.len());
    }
}

/// Reduces all gradients over all processes: waits for the buckets in flight and reduces the others.
fn reduce_across_processes(
    ctx: &WorkerCtx<'_>,
    plan: &UpdatePlan,
    collectives: &ProcessCollectives,
) {
    let points = &ctx.run.loaded.send_points;
    let late = || plan.buckets.iter().zip(points).filter(|b| b.1.is_none());
    late().for_each(|(bucket, _)| sum_locally(ctx, plan, bucket.clone(), collectives));
    ctx.barrier(Scope::All);
    if ctx.is_leader() {
        ctx.unwrap_or_abort(collectives.flush());
        for (bucket, _) in late() {
            let offsets = &ctx.run.loaded.gradient_offsets;
            let (from, to) = (offsets[bucket.start], offsets[bucket.end]);
            // SAFETY: the other workers wait at the barrier after this.
            let values = unsafe {
                std::slice::from_raw_parts_mut(collectives.gradients.f32().add(from), to - from)
            };
            ctx.unwrap_or_abort(collectives.all_reduce(values));
        }
    }
    ctx.barrier(Scope::All);
}

/// Sums this worker's part of a bucket over the workers of this process.
fn sum_locally(
    ctx: &WorkerCtx<'_>,
    plan: &UpdatePlan,
    bucket: Range<usize>,
    collectives: &ProcessCollectives,
) {
    let devices = ctx.devices();
    let gradients = plan.gradients[bucket.clone()].iter();
    for (g, at) in gradients.zip(&ctx.run.loaded.gradient_offsets[bucket]) {
        let first = ctx.run.memory.layout.offsets[g.param.index()];
        let mine = split_range(worker_slice(ctx, g), devices.len(), ctx.device - devices.start);
        for piece in pieces(mine, CHUNK) {
            // SAFETY: only this worker writes this part of the process's buffer.
            let out = unsafe {
                let to = collectives.gradients.f32().add(at + piece.start - first);
                std::slice::from_raw_parts_mut(to, piece.len())
            };
            sum_partials(ctx, g, piece, out);
        }
    }
}

/// Sums this device's share of the worker's slice into memory that all devices read.
fn reduce_scatter(ctx: &WorkerCtx<'_>, g: &GradientPlan) {
    let mine = split_range(worker_slice(ctx, g), ctx.run.mesh.devices, ctx.device);
    for piece in pieces(mine, CHUNK) {
        // SAFETY: only this worker writes this part of its device's buffer.
        let out = unsafe {
            let at = ctx.device_memory().scattered.f32().add(piece.start);
            std::slice::from_raw_parts_mut(at, piece.len())
        };
        sum_partials(ctx, g, piece, out);
    }
}

/// `tile = Σ partial gradients`, over devices and workers in index order.
fn sum_partials(ctx: &WorkerCtx<'_>, g: &GradientPlan, chunk: Range<usize>, tile: &mut [f32]) {
    let mesh = ctx.run.mesh;
    let of_device = |device: usize| {
        let sharded = g.sharded.then(|| ctx.memory_of_device(device).sharded.f32());
        let workers = if g.sharded { 0 } else { mesh.workers };
        let partial = move |worker| ctx.memory_of_worker(device, worker).gradients.f32();
        sharded.into_iter().chain((0..workers).map(partial))
    };
    // SAFETY: the sources are complete since the barrier before the update, and each holds the whole
    // flat layout.
    unsafe {
        let sources = ctx.devices().flat_map(of_device).map(|s| s.add(chunk.start));
        sum_sources(mesh, sources, tile);
    }
}

/// Copies a chunk of a gradient from the shares that the devices summed in [`reduce_scatter`].
fn gather_shares(ctx: &WorkerCtx<'_>, g: &GradientPlan, chunk: &Range<usize>, tile: &mut [f32]) {
    let devices = ctx.run.mesh.devices;
    for (device, owner) in ctx.run.memory.devices.iter().enumerate() {
        let part = split_range(worker_slice(ctx, g), devices, device);
        let (from, to) = (part.start.max(chunk.start), part.end.min(chunk.end));
        if from < to {
            // SAFETY: complete since the barrier after the reduce-scatter, and not written again in this
            // step.
            let values =
                unsafe { std::slice::from_raw_parts(owner.scattered.f32().add(from), to - from) };
            tile[from - chunk.start..to - chunk.start].copy_from_slice(values);
        }
    }
}

/// Reduces all gradients of a scaled loss and checks that they are finite. Every device gets the same answer
/// and adjusts its loss scale accordingly. Returns the scale of the gradients, or `None` to skip the step.
fn reduce_and_check_finite(
    ctx: &WorkerCtx<'_>,
    plan: &UpdatePlan,
    scaling: LossScale,
) -> Option<f32> {
    let longest = longest_piece(plan);
    let at = ctx.run.memory.layout.offsets[scaling.state.index()];
    // SAFETY: the parameter has `STATE` floats, and no worker writes it before the barrier below.
    let state = unsafe { *ctx.device_memory().params.f32().add(at).cast::<[f32; STATE]>() };
    let mut finite = true;
    for (g, at) in plan.gradients.iter().zip(0..) {
        for chunk in chunks(ctx, g) {
            // SAFETY: no other slice of the scratch memory is alive.
            let tile = &mut unsafe { ctx.scratch() }[..longest][..chunk.len()];
            reduce_chunk(ctx, (g, at), chunk.clone(), state[0], tile);
            finite &= tile.iter().all(|v| v.is_finite());
            store_reduced(ctx, &chunk, tile);
        }
    }
    let flag = |worker: usize| {
        let norms = ctx.memory_of_worker(ctx.device, worker).norms.ptr().cast::<f64>();
        // SAFETY: the table has one number per parameter, and the loss scale's state is a parameter.
        unsafe { norms.add(scaling.state.index()) }
    };
    // SAFETY: only this worker writes its table; the others read it after the barrier.
    unsafe { *flag(ctx.worker) = f64::from(u8::from(finite)) };
    ctx.barrier(Scope::Device);
    // SAFETY: written before the barrier.
    let finite = (0..ctx.run.mesh.workers).all(|w| unsafe { *flag(w) } != 0.0);
    if ctx.worker == 0 {
        let next = scaling.next(state, finite);
        // SAFETY: the other workers of the device have read the state before the barrier.
        unsafe { *ctx.device_memory().params.f32().add(at).cast::<[f32; STATE]>() = next };
    }
    finite.then_some(state[0])
}

/// Stores a chunk of a reduced gradient in the device's buffer.
fn store_reduced(ctx: &WorkerCtx<'_>, chunk: &Range<usize>, tile: &[f32]) {
    // SAFETY: only this worker accesses this slice of the device's buffer.
    unsafe {
        let to = ctx.device_memory().reduced.f32().add(chunk.start);
        std::ptr::copy_nonoverlapping(tile.as_ptr(), to, tile.len());
    }
}

/// A chunk that this worker passed to [`store_reduced`].
fn stored_chunk<'a>(ctx: &WorkerCtx<'a>, chunk: &Range<usize>) -> &'a [f32] {
    // SAFETY: this worker wrote the chunk earlier in this step, and no other worker writes it.
    unsafe {
        let at = ctx.device_memory().reduced.f32().add(chunk.start);
        std::slice::from_raw_parts(at, chunk.len())
    }
}

/// `tile` = a stored chunk divided by the loss scale.
fn unscale(ctx: &WorkerCtx<'_>, chunk: &Range<usize>, scale: f32, tile: &mut [f32]) {
    tile.iter_mut().zip(stored_chunk(ctx, chunk)).for_each(|(t, k)| *t = k / scale);
}

/// Reduces a chunk of gradient `g`, number `at` of the plan: the sum of all partial gradients plus the
/// regularisation penalty. `scale` is the loss scale.
fn reduce_chunk(
    ctx: &WorkerCtx<'_>,
    (g, at): (&GradientPlan, usize),
    chunk: Range<usize>,
    scale: f32,
    tile: &mut [f32],
) {
    if let Some((x, dy)) = g.operands {
        let first = ctx.run.memory.layout.offsets[g.param.index()];
        let rows = (chunk.start - first) / g.granule..(chunk.end - first) / g.granule;
        sharded_dense::kernel_gradient_rows(ctx, x, dy, rows, tile);
    } else if let Some(collectives) = ctx.run.collectives {
        let first = ctx.run.memory.layout.offsets[g.param.index()];
        // SAFETY: complete since the barrier after the reduction, and not written again in this step.
        let values = unsafe {
            let from = collectives.gradients.f32().add(ctx.run.loaded.gradient_offsets[at]);
            std::slice::from_raw_parts(from.add(chunk.start - first), tile.len())
        };
        tile.copy_from_slice(values);
    } else if ctx.run.mesh.devices >= MIN_REDUCE_SCATTER_DEVICES {
        gather_shares(ctx, g, &chunk, tile);
    } else {
        sum_partials(ctx, g, chunk.clone(), tile);
    }
    if g.l1 != 0.0 || g.l2 != 0.0 {
        // SAFETY: only this worker writes the weights of this slice, and only later.
        let weights = unsafe {
            std::slice::from_raw_parts(
                ctx.device_memory().params.f32().add(chunk.start),
                tile.len(),
            )
        };
        for (t, w) in tile.iter_mut().zip(weights) {
            let sign = if *w == 0.0 { 0.0 } else { w.signum() };
            *t += scale * (g.l1 * sign + 2.0 * g.l2 * w);
        }
    }
}

/// Under gradient accumulation, adds `tile` to the running sum and replaces it by the gradient to apply.
fn accumulate(ctx: &WorkerCtx<'_>, chunk: &Range<usize>, tile: &mut [f32]) {
    if let Some(a) = ctx.run.batch.accumulate {
        // SAFETY: only this worker accesses this slice of the device's running sum.
        let sum = unsafe {
            let at = ctx.device_memory().accumulated.f32().add(chunk.start);
            std::slice::from_raw_parts_mut(at, tile.len())
        };
        for (s, t) in sum.iter_mut().zip(tile.iter_mut()) {
            let weighted = a.weight * *t;
            *s = if a.first { weighted } else { *s + weighted };
            *t = *s * a.apply.unwrap_or(0.0);
        }
    }
}

/// Runs the optimizer's tape on one chunk; `gradient` points to its first element.
fn apply(
    ctx: &WorkerCtx<'_>,
    plan: &UpdatePlan,
    chunk: Range<usize>,
    gradient: *const f32,
    scratch: &mut [f32],
) {
    let tape = ctx.run.loaded.update.as_ref().expect("`load` prepares the tape");
    let device = ctx.device_memory();
    let ld = chunk.len();
    let slots = plan.rule.slots.len();
    let mut inputs = [TapeInput { ptr: std::ptr::null(), ld }; 2 + MAX_SLOTS + MAX_SCALARS];
    let mut outputs = [TapeOutput { ptr: std::ptr::null_mut(), ld }; 1 + MAX_SLOTS];
    // SAFETY: the chunk lies inside the flat layout, and every buffer here has this layout.
    unsafe {
        let weights = device.params.f32().add(chunk.start);
        inputs[0].ptr = weights;
        outputs[0].ptr = weights;
        inputs[1].ptr = gradient;
        for (i, slot) in device.slots.iter().enumerate() {
            let at = slot.f32().add(chunk.start);
            inputs[2 + i].ptr = at;
            outputs[1 + i].ptr = at;
        }
    }
    for (input, scalar) in inputs[2 + slots..].iter_mut().zip(ctx.run.batch.scalars) {
        input.ptr = scalar;
    }
    let used = 2 + slots + plan.rule.scalars;
    // SAFETY: operands and results are as the tape expects. Each result overwrites its own operand in
    // place. No other worker accesses this worker's slices.
    unsafe {
        tape.run(ctx.run.isa, ld, 0..ld, &inputs[..used], &outputs[..=slots], scratch);
    }
}

/// The update with clipping by norm: scales each reduced gradient, then applies it.
fn apply_clipped(ctx: &WorkerCtx<'_>, plan: &UpdatePlan) {
    let workers = ctx.run.mesh.workers;
    let longest = longest_piece(plan);
    debug_assert!(workers <= MAX_WORKERS_PER_DEVICE);
    let square = |g: &GradientPlan| -> f64 {
        if ctx.run.mesh.fixed {
            return squared_norm(ctx, g);
        }
        let part = |w: usize| {
            let norms = ctx.memory_of_worker(ctx.device, w).norms.ptr().cast::<f64>();
            // SAFETY: written before the barrier that precedes this.
            unsafe { *norms.add(g.param.index()) }
        };
        (0..workers).map(part).sum()
    };
    let global: f64 = plan.gradients.iter().map(square).sum();
    for g in &plan.gradients {
        let scale = match plan.rule.clip {
            Some(Clip::Norm(limit)) => limit_scale(square(g), limit),
            Some(Clip::GlobalNorm(limit)) => limit_scale(global, limit),
            Some(Clip::Value(_)) | None => 1.0,
        };
        for chunk in chunks(ctx, g) {
            // SAFETY: no other slice of the scratch memory is alive.
            let (tile, scratch) = unsafe { ctx.scratch() }.split_at_mut(longest);
            let tile = &mut tile[..chunk.len()];
            tile.iter_mut().zip(stored_chunk(ctx, &chunk)).for_each(|(t, r)| *t = r * scale);
            apply(ctx, plan, chunk, tile.as_ptr(), scratch);
        }
    }
}

/// The squared norm of a reduced gradient, summed in an order that does not depend on the workers' slices.
fn squared_norm(ctx: &WorkerCtx<'_>, g: &GradientPlan) -> f64 {
    let start = ctx.run.memory.layout.offsets[g.param.index()];
    let len = ctx.program().params()[g.param.index()].len();
    // SAFETY: the device's workers wrote it before the barrier that precedes this.
    let values =
        unsafe { std::slice::from_raw_parts(ctx.device_memory().reduced.f32().add(start), len) };
    values.chunks(CHUNK).map(sum_of_squares).sum()
}

fn sum_of_squares(values: &[f32]) -> f64 {
    values.iter().map(|v| f64::from(*v) * f64::from(*v)).sum()
}

/// The factor that scales a norm down to its limit, at most 1.
fn limit_scale(square: f64, limit: f32) -> f32 {
    let norm = square.sqrt();
    if norm > f64::from(limit) { (f64::from(limit) / norm) as f32 } else { 1.0 }
}
