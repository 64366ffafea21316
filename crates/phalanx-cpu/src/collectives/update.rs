//! Gradient reduction and update: each worker reduces its part of every gradient over all workers, in index
//! order, and runs the optimizer's tape on that part while it is still in cache.
//!
//! Workers that share a copy of the training state divide what it updates. That is everything, or, if processes shard the
//! state, the elements that this process owns; new weights are then gathered from the others.

use super::chunks::{Chunk, chunks, longest_chunk, worker_part};
use super::norms;
use super::process_collectives::ProcessCollectives;
use super::reduction::{
    gather_shares, reads_shares, reduce_across_processes, reduce_scatter, reduces_early,
    sum_partials,
};
use crate::kernels::elementwise::{TapeInput, TapeOutput, TapePlan};
use crate::worker::{WorkerCtx, sharded_dense};
use phalanx_graph::Scope;
use phalanx_graph::loss_scale::{LossScale, STATE};
use phalanx_graph::program::{GradientPlan, ShardLevel, UpdatePlan, split_range};
use phalanx_graph::update::Clip;

/// Maximum number of optimizer slots.
pub(crate) const MAX_SLOTS: usize = 8;
/// Maximum number of optimizer scalars.
pub(crate) const MAX_SCALARS: usize = 16;

/// Floats of scratch memory that an update needs.
pub(crate) fn scratch_len(plan: Option<&UpdatePlan>, tape: Option<&TapePlan>) -> usize {
    let (Some(plan), Some(tape)) = (plan, tape) else { return 0 };
    longest_chunk(plan) + tape.scratch_len()
}

/// Whether the update needs the norms of gradients.
pub(crate) fn clips_norms(plan: &UpdatePlan) -> bool {
    matches!(plan.rule.clip, Some(Clip::Norm(_) | Clip::GlobalNorm(_)))
}

/// Runs the optimizer on this worker's parts.
pub(crate) fn update(ctx: &WorkerCtx<'_>) {
    let program = ctx.program();
    let Some(plan) = program.update() else { return };
    if ctx.run.mesh.replicas > 1 && plan.gradients.iter().any(|g| g.sharded && g.operands.is_none())
    {
        // Shards of other devices must be complete before they are read.
        ctx.barrier(Scope::All);
    }
    if reduces_early(ctx) {
        if let Some(collectives) = ctx.run.collectives {
            if ctx.is_leader() {
                ctx.run.unwrap_or_abort(collectives.flush());
            }
            ctx.barrier(Scope::All);
        }
    } else if let Some(collectives) = ctx.run.collectives {
        reduce_across_processes(ctx, plan, collectives);
    } else if reads_shares(ctx) {
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
    let longest = longest_chunk(plan);
    let norms = applies && clips_norms(plan);
    for (at, g) in plan.gradients.iter().enumerate() {
        for chunk in chunks(ctx, g) {
            // SAFETY: no other slice of the scratch memory is alive.
            let (tile, scratch) = unsafe { ctx.scratch() }.split_at_mut(longest);
            let tile = &mut tile[..chunk.len()];
            match scale {
                None => reduce_chunk(ctx, (g, at), &chunk, 1.0, tile),
                Some(scale) => unscale(ctx, &chunk, scale, tile),
            }
            accumulate(ctx, &chunk, tile);
            if !applies {
                continue;
            }
            if norms {
                store_reduced(ctx, &chunk, tile);
            } else {
                if let Some(Clip::Value(limit)) = plan.rule.clip {
                    tile.iter_mut().for_each(|v| *v = v.clamp(-limit, limit));
                }
                apply(ctx, plan, &chunk, tile.as_ptr(), scratch);
            }
        }
    }
    if norms {
        apply_clipped(ctx, plan);
    }
    if let Some(collectives) = ctx.run.collectives.filter(|_| applies && holds_all_weights(ctx)) {
        gather_weights(ctx, plan, collectives);
    }
}

/// Whether the processes divide the update but each holds all weights.
fn holds_all_weights(ctx: &WorkerCtx<'_>) -> bool {
    matches!(ctx.run.mesh.sharding.level, ShardLevel::Optimizer | ShardLevel::Gradients)
}

/// Reduces all gradients of a scaled loss and checks that they are finite. Every copy of the training state gets the same
/// answer and adjusts its loss scale accordingly. Returns the scale of the gradients, or `None` to skip the step.
fn reduce_and_check_finite(
    ctx: &WorkerCtx<'_>,
    plan: &UpdatePlan,
    scaling: LossScale,
) -> Option<f32> {
    let longest = longest_chunk(plan);
    let at = ctx.run.memory.weights.offsets[scaling.state.index()];
    // SAFETY: the parameter has `STATE` floats, and no worker writes it before the barrier below.
    let state = unsafe { *ctx.state().params.f32().add(at).cast::<[f32; STATE]>() };
    let mut finite = true;
    for (at, g) in plan.gradients.iter().enumerate() {
        for chunk in chunks(ctx, g) {
            // SAFETY: no other slice of the scratch memory is alive.
            let tile = &mut unsafe { ctx.scratch() }[..longest][..chunk.len()];
            reduce_chunk(ctx, (g, at), &chunk, state[0], tile);
            finite &= tile.iter().all(|v| v.is_finite());
            store_reduced(ctx, &chunk, tile);
        }
    }
    let finite = all_finite(ctx, finite);
    if ctx.state_worker().0 == 0 {
        let next = scaling.next(state, finite);
        // SAFETY: the other workers have read the state before the barrier of `all_finite`.
        unsafe { *ctx.state().params.f32().add(at).cast::<[f32; STATE]>() = next };
    }
    finite.then_some(state[0])
}

/// Whether `finite` holds for all parts of the gradients.
fn all_finite(ctx: &WorkerCtx<'_>, finite: bool) -> bool {
    // SAFETY: only this worker writes its flag; the others read it after the barrier.
    unsafe { *ctx.memory().finite.ptr().cast::<f64>() = f64::from(u8::from(finite)) };
    // A replica of several devices has parts of the gradients on each.
    let divided = ctx.run.mesh.sharding.is_on() || ctx.run.mesh.devices_per_replica > 1;
    ctx.barrier(if divided { Scope::All } else { Scope::Device });
    let (first, workers) = match divided {
        true => (0, ctx.run.memory.workers.len()),
        false => {
            ((ctx.replica - ctx.run.first_replica) * ctx.run.mesh.workers, ctx.run.mesh.workers)
        }
    };
    let sharing = &ctx.run.memory.workers[first..first + workers];
    // SAFETY: written before the barrier.
    let finite = sharing.iter().all(|w| unsafe { *w.finite.ptr().cast::<f64>() } != 0.0);
    match ctx.run.collectives.filter(|_| ctx.run.mesh.sharding.is_on()) {
        Some(collectives) => {
            if ctx.is_leader() {
                ctx.run.unwrap_or_abort(collectives.check_all(finite));
            }
            ctx.barrier(Scope::All);
            collectives.all_true()
        }
        None => finite,
    }
}

/// Stores a chunk of a reduced gradient.
fn store_reduced(ctx: &WorkerCtx<'_>, chunk: &Chunk, tile: &[f32]) {
    // SAFETY: only this worker accesses this part of the buffer.
    unsafe {
        let to = ctx.state().reduced.f32().add(chunk.at(&ctx.run.memory.owned));
        std::ptr::copy_nonoverlapping(tile.as_ptr(), to, tile.len());
    }
}

/// A chunk of a reduced gradient: one that this worker passed to [`store_reduced`], or of a bucket that was reduced
/// early.
fn stored_chunk<'a>(ctx: &WorkerCtx<'a>, chunk: &Chunk) -> &'a [f32] {
    // SAFETY: complete since then, and no other worker writes it in the meantime.
    unsafe {
        let at = ctx.state().reduced.f32().add(chunk.at(&ctx.run.memory.owned));
        std::slice::from_raw_parts(at, chunk.len())
    }
}

/// `tile` = a stored chunk divided by the loss scale.
fn unscale(ctx: &WorkerCtx<'_>, chunk: &Chunk, scale: f32, tile: &mut [f32]) {
    tile.iter_mut().zip(stored_chunk(ctx, chunk)).for_each(|(t, k)| *t = k / scale);
}

/// Reduces a chunk of gradient `g`, number `at` of the plan: the sum of all partial gradients plus the
/// regularisation penalty. `scale` is the loss scale.
fn reduce_chunk(
    ctx: &WorkerCtx<'_>,
    (g, at): (&GradientPlan, usize),
    chunk: &Chunk,
    scale: f32,
    tile: &mut [f32],
) {
    if reduces_early(ctx) {
        tile.copy_from_slice(stored_chunk(ctx, chunk));
    } else if let Some((x, dy)) = g.operands {
        let rows = chunk.elements.start / g.granule..chunk.elements.end / g.granule;
        sharded_dense::kernel_gradient_rows(ctx, x, dy, rows, tile);
    } else if let Some(collectives) = ctx.run.collectives {
        let from = ctx.run.loaded.gradients.position(at, chunk.elements.start);
        // SAFETY: complete since the barrier after the reduction, and not written again in this step.
        let values = unsafe {
            std::slice::from_raw_parts(collectives.gradients.f32().add(from), tile.len())
        };
        tile.copy_from_slice(values);
    } else if reads_shares(ctx) {
        gather_shares(ctx, g, chunk, tile);
    } else {
        sum_partials(ctx, g, chunk, tile);
    }
    if g.l1 != 0.0 || g.l2 != 0.0 {
        // SAFETY: only this worker writes the weights of this part, and only later.
        let weights = unsafe {
            let at = chunk.at(&ctx.run.memory.weights);
            std::slice::from_raw_parts(ctx.state().params.f32().add(at), tile.len())
        };
        for (t, w) in tile.iter_mut().zip(weights) {
            let sign = if *w == 0.0 { 0.0 } else { w.signum() };
            *t += scale * (g.l1 * sign + 2.0 * g.l2 * w);
        }
    }
}

/// Under gradient accumulation, adds `tile` to the running sum and replaces it by the gradient to apply.
fn accumulate(ctx: &WorkerCtx<'_>, chunk: &Chunk, tile: &mut [f32]) {
    if let Some(a) = ctx.run.batch.accumulate {
        // SAFETY: only this worker accesses this part of the running sum.
        let sum = unsafe {
            let at = ctx.state().accumulated.f32().add(chunk.at(&ctx.run.memory.owned));
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
    chunk: &Chunk,
    gradient: *const f32,
    scratch: &mut [f32],
) {
    let tape = ctx.run.loaded.update.as_ref().expect("`load` prepares the tape");
    let (state, memory) = (ctx.state(), ctx.run.memory);
    let ld = chunk.len();
    let slots = plan.rule.slots.len();
    let mut inputs = [TapeInput { ptr: std::ptr::null(), ld }; 2 + MAX_SLOTS + MAX_SCALARS];
    let mut outputs = [TapeOutput { ptr: std::ptr::null_mut(), ld }; 1 + MAX_SLOTS];
    // SAFETY: the chunk lies inside the layouts of the buffers.
    unsafe {
        let weights = state.params.f32().add(chunk.at(&memory.weights));
        inputs[0].ptr = weights;
        outputs[0].ptr = weights;
        inputs[1].ptr = gradient;
        for (i, slot) in state.slots.iter().enumerate() {
            let at = slot.f32().add(chunk.at(&memory.owned));
            inputs[2 + i].ptr = at;
            outputs[1 + i].ptr = at;
        }
    }
    for (input, scalar) in inputs[2 + slots..].iter_mut().zip(ctx.run.batch.scalars) {
        input.ptr = scalar;
    }
    let used = 2 + slots + plan.rule.scalars;
    // SAFETY: operands and results are as the tape expects. Each result overwrites its own operand in
    // place. No other worker accesses this worker's parts.
    unsafe {
        tape.run(ctx.run.isa, ld, 0..ld, &inputs[..used], &outputs[..=slots], scratch);
    }
}

/// The update with clipping by norm: scales each reduced gradient, then applies it.
fn apply_clipped(ctx: &WorkerCtx<'_>, plan: &UpdatePlan) {
    norms::compute(ctx, plan);
    let longest = longest_chunk(plan);
    let global: f64 = plan.gradients.iter().map(|g| norms::square(ctx, g.param)).sum();
    for g in &plan.gradients {
        let scale = match plan.rule.clip {
            Some(Clip::Norm(limit)) => limit_scale(norms::square(ctx, g.param), limit),
            Some(Clip::GlobalNorm(limit)) => limit_scale(global, limit),
            Some(Clip::Value(_)) | None => 1.0,
        };
        for chunk in chunks(ctx, g) {
            // SAFETY: no other slice of the scratch memory is alive.
            let (tile, scratch) = unsafe { ctx.scratch() }.split_at_mut(longest);
            let tile = &mut tile[..chunk.len()];
            tile.iter_mut().zip(stored_chunk(ctx, &chunk)).for_each(|(t, r)| *t = r * scale);
            apply(ctx, plan, &chunk, tile.as_ptr(), scratch);
        }
    }
}

/// The factor that scales a norm down to its limit, at most 1.
fn limit_scale(square: f64, limit: f32) -> f32 {
    let norm = square.sqrt();
    if norm > f64::from(limit) { (f64::from(limit) / norm) as f32 } else { 1.0 }
}

/// Gathers the weights that the other processes have updated. They travel through the buffer of the gradients, bucket
/// by bucket: while one is in flight, the one before it is copied.
fn gather_weights(ctx: &WorkerCtx<'_>, plan: &UpdatePlan, collectives: &ProcessCollectives) {
    let layout = &ctx.run.loaded.gradients;
    let weights = |at: usize, element: usize| {
        let position = ctx.run.memory.weights.at(plan.gradients[at].param, element);
        ctx.state().params.f32().wrapping_add(position)
    };
    let buffer = |at: usize, element: usize| {
        collectives.gradients.f32().wrapping_add(layout.position(at, element))
    };
    for turn in 0..=plan.buckets.len() {
        for at in plan.buckets.get(turn).cloned().into_iter().flatten() {
            let mine = worker_part(ctx, &plan.gradients[at]);
            if !mine.is_empty() {
                let (from, to) = (weights(at, mine.start), buffer(at, mine.start));
                // SAFETY: both buffers hold the elements. Only this worker accesses this part of them now: others
                // read what a bucket that many buckets earlier left there, two barriers ago.
                unsafe { std::ptr::copy_nonoverlapping(from, to, mine.len()) };
            }
        }
        ctx.barrier(Scope::All);
        if ctx.is_leader() {
            let in_flight = layout.buckets.get(turn);
            // SAFETY: no worker touches the bucket before the leader has waited for it in the next turn.
            in_flight.into_iter().for_each(|bucket| unsafe { collectives.submit_gather(bucket) });
            ctx.run.unwrap_or_abort(collectives.wait(usize::from(in_flight.is_some())));
        }
        ctx.barrier(Scope::All);
        let Some(arrived) = turn.checked_sub(1) else { continue };
        for at in plan.buckets[arrived].clone() {
            let (worker, workers) = ctx.state_worker();
            let others = layout.segments[at].iter().enumerate();
            for (_, segment) in others.filter(|(domain, _)| *domain != collectives.rank()) {
                let part = split_range(segment.elements.clone(), workers, worker);
                if !part.is_empty() {
                    let (from, to) = (buffer(at, part.start), weights(at, part.start));
                    // SAFETY: both buffers hold the elements, and only this worker writes this part of the weights.
                    unsafe { std::ptr::copy_nonoverlapping(from, to, part.len()) };
                }
            }
        }
    }
}
