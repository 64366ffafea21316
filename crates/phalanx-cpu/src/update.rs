//! Gradients made whole and applied: each worker reduces its slice of every gradient over all
//! others, in index order, and runs the optimizer's tape on it while it is still in cache.

use crate::between::Between;
use crate::kernels::elementwise::{TapeInput, TapeOutput, TapePlan};
use crate::worker::{self, Ctx, MAX_WORKERS};
use phalanx_graph::Scope;
use phalanx_graph::loss_scale::{LossScale, STATE};
use phalanx_graph::program::{GradientPlan, UpdatePlan, split_range};
use phalanx_graph::update::Clip;
use std::ops::Range;

/// Elements reduced and updated at a time.
const CHUNK: usize = 4096;

/// From this many devices on each adds up its share of every slice and takes the rest from the
/// others: were all to add up all, the cost would grow with the square of their number.
pub(crate) const SCATTER_FROM: usize = 3;

/// Most slots of an optimizer.
pub(crate) const MAX_SLOTS: usize = 8;
/// Most scalars of an optimizer.
pub(crate) const MAX_SCALARS: usize = 16;

/// Floats of scratch memory an update needs.
pub(crate) fn scratch_len(plan: Option<&UpdatePlan>, tape: Option<&TapePlan>) -> usize {
    let (Some(plan), Some(tape)) = (plan, tape) else { return 0 };
    longest_piece(plan) + tape.scratch_len()
}

/// Elements reduced and updated at a time: whole rows where the kernel's gradient is made here.
fn piece_len(g: &GradientPlan) -> usize {
    if g.operands.is_none() { CHUNK } else { (CHUNK / g.granule).max(1) * g.granule }
}

fn longest_piece(plan: &UpdatePlan) -> usize {
    plan.gradients.iter().map(piece_len).fold(CHUNK, usize::max)
}

/// Runs the optimizer on this worker's slices.
pub(crate) fn update(ctx: &Ctx<'_>) {
    let program = ctx.program();
    let Some(plan) = program.update() else { return };
    if ctx.run.mesh.devices > 1 && plan.gradients.iter().any(|g| g.sliced) {
        // Slices of other devices must be finished before they are read.
        ctx.barrier(Scope::All);
    }
    if let Some(between) = ctx.run.between {
        reduce_between(ctx, plan, between);
    } else if ctx.run.mesh.devices >= SCATTER_FROM {
        for g in &plan.gradients {
            scatter(ctx, g);
        }
        ctx.barrier(Scope::All);
    }
    let scale = match plan.loss_scale {
        None => None,
        Some(scaling) => match whole_and_finite(ctx, plan, scaling) {
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
                let (tile, scratch) = ctx.scratch().split_at_mut(longest);
                let tile = &mut tile[..chunk.len()];
                match scale {
                    None => whole(ctx, (g, at), chunk.clone(), 1.0, tile),
                    Some(scale) => unscaled(ctx, &chunk, scale, tile),
                }
                gather(ctx, &chunk, tile);
                if !applies {
                    continue;
                }
                if norms {
                    square += squares(tile);
                    keep(ctx, &chunk, tile);
                } else {
                    if let Some(Clip::Value(limit)) = plan.rule.clip {
                        tile.iter_mut().for_each(|v| *v = v.clamp(-limit, limit));
                    }
                    apply(ctx, plan, chunk, tile.as_ptr(), scratch);
                }
            }
            if norms {
                // SAFETY: a table of this worker's own, one number per parameter.
                unsafe { *ctx.me().norms.ptr().cast::<f64>().add(g.param.index()) = square };
            }
        }
    }
    if norms {
        ctx.barrier(Scope::Device);
        apply_clipped(ctx, plan);
    }
}

/// This worker's part of a gradient: elements of the flat layout, a whole number of granules.
fn slice(ctx: &Ctx<'_>, g: &GradientPlan) -> Range<usize> {
    let start = ctx.run.layout.offsets[g.param.index()];
    let len = ctx.program().params()[g.param.index()].len();
    let mine = split_range(0..len / g.granule, ctx.run.mesh.workers, ctx.worker);
    start + mine.start * g.granule..start + mine.end * g.granule
}

/// A range cut into pieces that fit the first cache.
fn pieces(range: Range<usize>, len: usize) -> impl Iterator<Item = Range<usize>> {
    let end = range.end;
    range.step_by(len).map(move |at| at..end.min(at + len))
}

fn chunks(ctx: &Ctx<'_>, g: &GradientPlan) -> impl Iterator<Item = Range<usize>> + use<> {
    pieces(slice(ctx, g), piece_len(g))
}

/// Behind an instruction: sends the buckets that it finished to the other processes.
pub(crate) fn send_finished(ctx: &Ctx<'_>, at: usize) {
    let (Some(between), Some(plan)) = (ctx.run.between, ctx.program().update()) else { return };
    for (bucket, _) in plan.buckets.iter().zip(&ctx.run.loaded.sends).filter(|b| *b.1 == Some(at)) {
        // All partial sums are there behind this.
        ctx.barrier(Scope::All);
        add_up_host(ctx, plan, bucket.clone(), between);
        let packed = &ctx.run.loaded.packed;
        between.send(packed[bucket.start]..packed[bucket.end], ctx.run.workers.len());
    }
}

/// Adds up all gradients over all processes, as far as they are not on their way.
fn reduce_between(ctx: &Ctx<'_>, plan: &UpdatePlan, between: &Between) {
    let late = || plan.buckets.iter().zip(&ctx.run.loaded.sends).filter(|b| b.1.is_none());
    late().for_each(|(bucket, _)| add_up_host(ctx, plan, bucket.clone(), between));
    ctx.barrier(Scope::All);
    if ctx.leads() {
        ctx.or_leave(between.arrive());
        for (bucket, _) in late() {
            let packed = &ctx.run.loaded.packed;
            let (from, to) = (packed[bucket.start], packed[bucket.end]);
            // SAFETY: the others wait at the barrier behind this.
            let values = unsafe {
                std::slice::from_raw_parts_mut(between.gradients.f32().add(from), to - from)
            };
            ctx.or_leave(between.sum(values));
        }
    }
    ctx.barrier(Scope::All);
}

/// Adds up this worker's part of a bucket over the host's workers.
fn add_up_host(ctx: &Ctx<'_>, plan: &UpdatePlan, bucket: Range<usize>, between: &Between) {
    let devices = ctx.devices();
    let gradients = plan.gradients[bucket.clone()].iter();
    for (g, at) in gradients.zip(&ctx.run.loaded.packed[bucket]) {
        let first = ctx.run.layout.offsets[g.param.index()];
        let mine = split_range(slice(ctx, g), devices.len(), ctx.device - devices.start);
        for piece in pieces(mine, CHUNK) {
            // SAFETY: this worker alone writes this part of the host's buffer.
            let out = unsafe {
                let to = between.gradients.f32().add(at + piece.start - first);
                std::slice::from_raw_parts_mut(to, piece.len())
            };
            add_up(ctx, g, piece, out);
        }
    }
}

/// Adds up this device's share of the worker's slice, for all devices to read.
fn scatter(ctx: &Ctx<'_>, g: &GradientPlan) {
    let mine = split_range(slice(ctx, g), ctx.run.mesh.devices, ctx.device);
    for piece in pieces(mine, CHUNK) {
        // SAFETY: this worker alone writes this part of its device's buffer.
        let out = unsafe {
            let at = ctx.device().scattered.f32().add(piece.start);
            std::slice::from_raw_parts_mut(at, piece.len())
        };
        add_up(ctx, g, piece, out);
    }
}

/// `tile = Σ partial gradients`, over devices and workers in index order.
fn add_up(ctx: &Ctx<'_>, g: &GradientPlan, chunk: Range<usize>, tile: &mut [f32]) {
    let mesh = ctx.run.mesh;
    let of_device = |device: usize| {
        let sliced = g.sliced.then(|| ctx.device_at(device).sliced.f32());
        let workers = if g.sliced { 0 } else { mesh.workers };
        let partial = move |worker| ctx.worker_of(device, worker).gradients.f32();
        sliced.into_iter().chain((0..workers).map(partial))
    };
    // SAFETY: sources were finished before the barrier in front of the update, and hold the whole
    // flat layout.
    unsafe {
        let sources = ctx.devices().flat_map(of_device).map(|s| s.add(chunk.start));
        worker::add_up(mesh, sources, tile);
    }
}

/// `tile = Σ partial gradients`, from the shares that each device added up.
fn collect(ctx: &Ctx<'_>, g: &GradientPlan, chunk: &Range<usize>, tile: &mut [f32]) {
    let devices = ctx.run.mesh.devices;
    for (device, owner) in ctx.run.devices.iter().enumerate() {
        let part = split_range(slice(ctx, g), devices, device);
        let (from, to) = (part.start.max(chunk.start), part.end.min(chunk.end));
        if from < to {
            // SAFETY: finished before the barrier behind the scattering, not written again before
            // the end of the step.
            let values =
                unsafe { std::slice::from_raw_parts(owner.scattered.f32().add(from), to - from) };
            tile[from - chunk.start..to - chunk.start].copy_from_slice(values);
        }
    }
}

/// Makes all gradients whole, of a loss that is scaled, and looks whether they are finite: every device
/// finds the same, and turns its scale accordingly. The scale they have, or nothing where the step is to
/// be skipped.
fn whole_and_finite(ctx: &Ctx<'_>, plan: &UpdatePlan, scaling: LossScale) -> Option<f32> {
    let longest = longest_piece(plan);
    let at = ctx.run.layout.offsets[scaling.state.index()];
    // SAFETY: a parameter of these numbers, which nobody writes before the barrier below.
    let state = unsafe { *ctx.device().params.f32().add(at).cast::<[f32; STATE]>() };
    let mut finite = true;
    for (g, at) in plan.gradients.iter().zip(0..) {
        for chunk in chunks(ctx, g) {
            let tile = &mut ctx.scratch()[..longest][..chunk.len()];
            whole(ctx, (g, at), chunk.clone(), state[0], tile);
            finite &= tile.iter().all(|v| v.is_finite());
            keep(ctx, &chunk, tile);
        }
    }
    let flag = |worker: usize| {
        let norms = ctx.worker_of(ctx.device, worker).norms.ptr().cast::<f64>();
        // SAFETY: tables of one number per parameter, and the state is one.
        unsafe { norms.add(scaling.state.index()) }
    };
    // SAFETY: this worker's own table, read by others behind the barrier.
    unsafe { *flag(ctx.worker) = f64::from(u8::from(finite)) };
    ctx.barrier(Scope::Device);
    // SAFETY: written in front of the barrier.
    let finite = (0..ctx.run.mesh.workers).all(|w| unsafe { *flag(w) } != 0.0);
    if ctx.worker == 0 {
        let next = scaling.next(state, finite);
        // SAFETY: the device's other workers have read the state in front of the barrier.
        unsafe { *ctx.device().params.f32().add(at).cast::<[f32; STATE]>() = next };
    }
    finite.then_some(state[0])
}

/// Puts a piece of a whole gradient into the device's buffer.
fn keep(ctx: &Ctx<'_>, chunk: &Range<usize>, tile: &[f32]) {
    // SAFETY: this worker alone owns this slice of the device's buffer.
    unsafe {
        let to = ctx.device().reduced.f32().add(chunk.start);
        std::ptr::copy_nonoverlapping(tile.as_ptr(), to, tile.len());
    }
}

/// A piece of what was kept, by this worker alone.
fn kept<'a>(ctx: &Ctx<'a>, chunk: &Range<usize>) -> &'a [f32] {
    // SAFETY: written by this worker a moment ago.
    unsafe {
        let at = ctx.device().reduced.f32().add(chunk.start);
        std::slice::from_raw_parts(at, chunk.len())
    }
}

/// A piece of a gradient that was made whole, of the loss itself.
fn unscaled(ctx: &Ctx<'_>, chunk: &Range<usize>, scale: f32, tile: &mut [f32]) {
    tile.iter_mut().zip(kept(ctx, chunk)).for_each(|(t, k)| *t = k / scale);
}

/// The whole gradient, which is number `at` of the plan, of a loss times `scale`: partial sums and penalty.
fn whole(
    ctx: &Ctx<'_>,
    (g, at): (&GradientPlan, usize),
    chunk: Range<usize>,
    scale: f32,
    tile: &mut [f32],
) {
    if let Some((x, dy)) = g.operands {
        let first = ctx.run.layout.offsets[g.param.index()];
        let rows = (chunk.start - first) / g.granule..(chunk.end - first) / g.granule;
        ctx.kernel_rows(x, dy, rows, tile);
    } else if let Some(between) = ctx.run.between {
        let first = ctx.run.layout.offsets[g.param.index()];
        // SAFETY: finished before the barrier behind the reduction, not written again before the end
        // of the step.
        let values = unsafe {
            let from = between.gradients.f32().add(ctx.run.loaded.packed[at]);
            std::slice::from_raw_parts(from.add(chunk.start - first), tile.len())
        };
        tile.copy_from_slice(values);
    } else if ctx.run.mesh.devices >= SCATTER_FROM {
        collect(ctx, g, &chunk, tile);
    } else {
        add_up(ctx, g, chunk.clone(), tile);
    }
    if g.l1 != 0.0 || g.l2 != 0.0 {
        // SAFETY: weights of this slice are written by this worker alone, later.
        let weights = unsafe {
            std::slice::from_raw_parts(ctx.device().params.f32().add(chunk.start), tile.len())
        };
        for (t, w) in tile.iter_mut().zip(weights) {
            let sign = if *w == 0.0 { 0.0 } else { w.signum() };
            *t += scale * (g.l1 * sign + 2.0 * g.l2 * w);
        }
    }
}

/// Under accumulation, adds to the running sum; what is to be applied of it.
fn gather(ctx: &Ctx<'_>, chunk: &Range<usize>, tile: &mut [f32]) {
    if let Some(a) = ctx.run.batch.accumulate {
        // SAFETY: this worker alone owns this slice of the device's running sum.
        let sum = unsafe {
            let at = ctx.device().accumulated.f32().add(chunk.start);
            std::slice::from_raw_parts_mut(at, tile.len())
        };
        for (s, t) in sum.iter_mut().zip(tile.iter_mut()) {
            let weighted = a.weight * *t;
            *s = if a.first { weighted } else { *s + weighted };
            *t = *s * a.apply.unwrap_or(0.0);
        }
    }
}

/// Runs the optimizer's tape on one piece; `gradient` points at its first element.
fn apply(
    ctx: &Ctx<'_>,
    plan: &UpdatePlan,
    chunk: Range<usize>,
    gradient: *const f32,
    scratch: &mut [f32],
) {
    let tape = ctx.run.loaded.update.as_ref().expect("prepared when the program was loaded");
    let device = ctx.device();
    let ld = chunk.len();
    let slots = plan.rule.slots.len();
    let mut inputs = [TapeInput { ptr: std::ptr::null(), ld }; 2 + MAX_SLOTS + MAX_SCALARS];
    let mut outputs = [TapeOutput { ptr: std::ptr::null_mut(), ld }; 1 + MAX_SLOTS];
    // SAFETY: the piece lies inside the flat layout, which every buffer here has.
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
    // SAFETY: operands and results are as the tape expects; results take over their own operands
    // in place; nobody else touches this worker's slices.
    unsafe {
        tape.run(ctx.run.isa, ld, 0..ld, &inputs[..used], &outputs[..=slots], scratch);
    }
}

/// The update behind a norm: scales each reduced gradient, then applies it.
fn apply_clipped(ctx: &Ctx<'_>, plan: &UpdatePlan) {
    let workers = ctx.run.mesh.workers;
    let longest = longest_piece(plan);
    debug_assert!(workers <= MAX_WORKERS);
    let square = |g: &GradientPlan| -> f64 {
        if ctx.run.mesh.fixed {
            return square_of_whole(ctx, g);
        }
        let part = |w: usize| {
            let norms = ctx.worker_of(ctx.device, w).norms.ptr().cast::<f64>();
            // SAFETY: written before the barrier in front of this.
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
            let (tile, scratch) = ctx.scratch().split_at_mut(longest);
            let tile = &mut tile[..chunk.len()];
            tile.iter_mut().zip(kept(ctx, &chunk)).for_each(|(t, r)| *t = r * scale);
            apply(ctx, plan, chunk, tile.as_ptr(), scratch);
        }
    }
}

/// The squared norm of a reduced gradient, added up in one way whoever has which slice.
fn square_of_whole(ctx: &Ctx<'_>, g: &GradientPlan) -> f64 {
    let start = ctx.run.layout.offsets[g.param.index()];
    let len = ctx.program().params()[g.param.index()].len();
    // SAFETY: written by the device's workers before the barrier in front of this.
    let whole = unsafe { std::slice::from_raw_parts(ctx.device().reduced.f32().add(start), len) };
    whole.chunks(CHUNK).map(squares).sum()
}

fn squares(values: &[f32]) -> f64 {
    values.iter().map(|v| f64::from(*v) * f64::from(*v)).sum()
}

/// The factor that brings a norm down to its limit.
fn limit_scale(square: f64, limit: f32) -> f32 {
    let norm = square.sqrt();
    if norm > f64::from(limit) { (f64::from(limit) / norm) as f32 } else { 1.0 }
}
