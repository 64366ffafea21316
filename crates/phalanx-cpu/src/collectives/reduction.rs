//! Sums of gradients over the workers of this process, and their way to the other processes.

use super::chunks::{CHUNK, Chunk, chunk_len, chunks_of, split, worker_part};
use super::process_collectives::ProcessCollectives;
use super::sum_sources;
use crate::worker::{WorkerCtx, sharded_dense};
use phalanx_graph::Scope;
use phalanx_graph::program::{GradientPlan, ShardLevel, UpdatePlan, split_range};
use std::ops::Range;

/// With at least this many replicas, gradients are reduced by a reduce-scatter: each replica sums its share of
/// every part and reads the other shares from the other replicas. If every replica summed everything, the cost
/// would grow with the square of their number.
pub(crate) const MIN_REDUCE_SCATTER_DEVICES: usize = 3;

/// Buckets that the processes' buffer holds at a time if gradients are sharded.
pub(crate) const BUCKETS_IN_FLIGHT: usize = 3;

/// Whether the buckets of gradients are reduced by instructions of their own, before the update.
pub(super) fn reduces_early(ctx: &WorkerCtx<'_>) -> bool {
    ctx.run.mesh.sharding.level >= ShardLevel::Gradients
}

/// Whether the replicas read gradients from the shares that each of them has summed.
pub(super) fn reads_shares(ctx: &WorkerCtx<'_>) -> bool {
    !ctx.run.mesh.sharding.is_on() && ctx.run.mesh.replicas >= MIN_REDUCE_SCATTER_DEVICES
}

/// After instruction `at`: submits the buckets that it finished for the reduction over all processes.
pub(crate) fn submit_finished_buckets(ctx: &WorkerCtx<'_>, at: usize) {
    let Some(collectives) = ctx.run.collectives else { return };
    let Some(plan) = ctx.program().update() else { return };
    let points = &ctx.run.loaded.send_points;
    for bucket in (0..plan.buckets.len()).filter(|b| points[*b] == Some(at)) {
        // After this barrier all partial sums are complete.
        ctx.barrier(Scope::All);
        sum_locally(ctx, plan, bucket, Some(collectives));
        let bucket = &ctx.run.loaded.gradients.buckets[bucket];
        collectives.finish_bucket(bucket, None, ctx.run.memory.workers.len());
    }
}

/// Reduces all gradients over all processes: waits for the buckets in flight and reduces the others.
pub(super) fn reduce_across_processes(
    ctx: &WorkerCtx<'_>,
    plan: &UpdatePlan,
    collectives: &ProcessCollectives,
) {
    let points = &ctx.run.loaded.send_points;
    let late = || (0..plan.buckets.len()).filter(|b| points[*b].is_none());
    late().for_each(|bucket| sum_locally(ctx, plan, bucket, Some(collectives)));
    ctx.barrier(Scope::All);
    if ctx.is_leader() {
        // SAFETY: the other workers wait at the barrier after this.
        unsafe {
            let buckets = &ctx.run.loaded.gradients.buckets;
            late().for_each(|b| collectives.submit_reduction(&buckets[b], None));
        }
        ctx.run.unwrap_or_abort(collectives.flush());
    }
    ctx.barrier(Scope::All);
}

/// Reduces a bucket during the backward pass. The sums that this process owns are in the state's `reduced` buffer when
/// the update begins.
pub(crate) fn reduce_bucket(ctx: &WorkerCtx<'_>, bucket: usize) {
    let Some(plan) = ctx.program().update() else { return };
    let Some(collectives) = ctx.run.collectives else {
        return sum_locally(ctx, plan, bucket, None);
    };
    if ctx.is_leader() {
        // An earlier bucket used the same part of the buffer.
        ctx.run.unwrap_or_abort(collectives.wait(BUCKETS_IN_FLIGHT - 1));
    }
    ctx.barrier(Scope::All);
    sum_locally(ctx, plan, bucket, Some(collectives));
    let sums = Some(ctx.state().reduced.f32());
    let bucket = &ctx.run.loaded.gradients.buckets[bucket];
    collectives.finish_bucket(bucket, sums, ctx.run.memory.workers.len());
}

/// Sums a bucket over the workers of this process, into the buffer that the processes share or, with a single process,
/// into the state's `reduced` buffer. All workers of the process call this together.
pub(super) fn sum_locally(
    ctx: &WorkerCtx<'_>,
    plan: &UpdatePlan,
    bucket: usize,
    collectives: Option<&ProcessCollectives>,
) {
    for at in plan.buckets[bucket].clone() {
        let g = &plan.gradients[at];
        if g.operands.is_some() {
            sum_products(ctx, (g, at), collectives);
            continue;
        }
        let whole = &ctx.run.memory.layout.held[g.param.index()];
        for (elements, to) in
            sums(ctx, (g, at), split(ctx, g, whole, ctx.process_worker()), collectives)
        {
            let first = elements.start;
            for chunk in chunks_of(g.param, elements, CHUNK) {
                // SAFETY: only this worker writes this part of the buffer.
                let out = unsafe {
                    std::slice::from_raw_parts_mut(
                        to.add(chunk.elements.start - first),
                        chunk.len(),
                    )
                };
                sum_partials(ctx, g, &chunk, out);
            }
        }
    }
}

/// The places of this process's sums of some elements of gradient `at`: runs of elements, and where they begin.
pub(super) fn sums<'a>(
    ctx: &WorkerCtx<'a>,
    (g, at): (&GradientPlan, usize),
    elements: Range<usize>,
    collectives: Option<&'a ProcessCollectives>,
) -> impl Iterator<Item = (Range<usize>, *mut f32)> + use<'a> {
    let segments = &ctx.run.loaded.gradients.segments;
    let of_processes = collectives.map(|c| (c.gradients.f32(), &segments[at]));
    let own = match collectives {
        Some(_) => None,
        None => {
            let at = ctx.run.memory.owned.at(g.param, elements.start);
            Some((elements.clone(), ctx.state().reduced.f32().wrapping_add(at)))
        }
    };
    let runs = of_processes.into_iter().flat_map(move |(buffer, segments)| {
        let elements = elements.clone();
        segments.iter().map(move |segment| {
            let part = segment.overlap(&elements);
            let at = segment.at(part.start);
            (part, buffer.wrapping_add(at))
        })
    });
    own.into_iter().chain(runs).filter(|(elements, _)| !elements.is_empty())
}

/// Computes a sharded gradient from its operands, replica by replica, and adds up what the replicas have.
pub(super) fn sum_products(
    ctx: &WorkerCtx<'_>,
    (g, at): (&GradientPlan, usize),
    collectives: Option<&ProcessCollectives>,
) {
    let Some((x, dy)) = g.operands else { return };
    let rows = ctx.program().params()[g.param.index()].len() / g.granule;
    let mine = split_range(0..rows, ctx.run.mesh.workers, ctx.worker);
    let mine = mine.start * g.granule..mine.end * g.granule;
    for replica in ctx.run.replicas() {
        let chunks = chunks_of(g.param, mine.clone(), chunk_len(g));
        for chunk in chunks.filter(|_| replica == ctx.replica) {
            // SAFETY: no other slice of the scratch memory is alive.
            let tile = &mut unsafe { ctx.scratch() }[..chunk.len()];
            let rows = chunk.elements.start / g.granule..chunk.elements.end / g.granule;
            sharded_dense::kernel_gradient_rows(ctx, x, dy, rows, tile);
            let first = chunk.elements.start;
            for (elements, to) in sums(ctx, (g, at), chunk.elements, collectives) {
                let tile = &tile[elements.start - first..elements.end - first];
                // SAFETY: while it is this replica's turn, only this worker accesses these elements.
                let out = unsafe { std::slice::from_raw_parts_mut(to, tile.len()) };
                match replica == ctx.run.first_replica {
                    true => out.copy_from_slice(tile),
                    false => out.iter_mut().zip(tile).for_each(|(sum, v)| *sum += v),
                }
            }
        }
        if ctx.run.replicas().len() > 1 {
            ctx.barrier(Scope::All);
        }
    }
}

/// Sums this replica's share of the worker's part into memory that all replicas read.
pub(super) fn reduce_scatter(ctx: &WorkerCtx<'_>, g: &GradientPlan) {
    let mine = split_range(worker_part(ctx, g), ctx.run.mesh.replicas, ctx.replica);
    for chunk in chunks_of(g.param, mine, CHUNK) {
        // SAFETY: only this worker writes this part of its replica's buffer.
        let out = unsafe {
            let at = ctx.device_memory().scattered.f32().add(chunk.at(&ctx.run.memory.layout));
            std::slice::from_raw_parts_mut(at, chunk.len())
        };
        sum_partials(ctx, g, &chunk, out);
    }
}

/// `tile = Σ partial gradients`, over replicas and workers in index order.
pub(super) fn sum_partials(ctx: &WorkerCtx<'_>, g: &GradientPlan, chunk: &Chunk, tile: &mut [f32]) {
    let mesh = ctx.run.mesh;
    // A penalty alone has no partial sums.
    let reduced_early = reduces_early(ctx);
    if reduced_early && g.value.is_none() {
        return tile.fill(0.0);
    }
    let of_replica = |replica: usize| {
        let sharded = g.sharded.then(|| ctx.run.device_memory(replica, ctx.part).sharded.f32());
        let workers = if g.sharded { 0 } else { mesh.workers };
        let partial = move |worker| match g.value {
            Some(value) => ctx.address(ctx.value(value), replica, worker).cast(),
            None => ctx.memory_of_worker(replica, worker).gradients.f32(),
        };
        sharded.into_iter().chain((0..workers).map(partial))
    };
    let at = match reduced_early {
        true => chunk.elements.start,
        false => chunk.at(&ctx.run.memory.layout),
    };
    // SAFETY: the sources are complete since the barrier before the update, and each holds the whole
    // flat layout.
    unsafe {
        let sources = ctx.run.replicas().flat_map(of_replica).map(|s| s.add(at));
        sum_sources(mesh, sources, tile);
    }
}

/// Copies a chunk of a gradient from the shares that the replicas summed in [`reduce_scatter`].
pub(super) fn gather_shares(
    ctx: &WorkerCtx<'_>,
    g: &GradientPlan,
    chunk: &Chunk,
    tile: &mut [f32],
) {
    let (replicas, wanted) = (ctx.run.mesh.replicas, &chunk.elements);
    for replica in ctx.run.replicas() {
        let owner = ctx.run.device_memory(replica, ctx.part);
        let part = split_range(worker_part(ctx, g), replicas, replica);
        let (from, to) = (part.start.max(wanted.start), part.end.min(wanted.end));
        if from < to {
            let at = ctx.run.memory.layout.at(g.param, from);
            // SAFETY: complete since the barrier after the reduce-scatter, and not written again in this
            // step.
            let values =
                unsafe { std::slice::from_raw_parts(owner.scattered.f32().add(at), to - from) };
            tile[from - wanted.start..to - wanted.start].copy_from_slice(values);
        }
    }
}
