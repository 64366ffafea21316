//! Squared norms of reduced gradients, summed block by block. The sums do not depend on how workers, devices or
//! processes divide the gradients.

use crate::worker::WorkerCtx;
use phalanx_graph::ParamId;
use phalanx_graph::Scope;
use phalanx_graph::program::{BLOCK, UpdatePlan, split_range};
use std::ops::Range;

/// The blocks that hold some elements of a parameter.
fn blocks(elements: &Range<usize>) -> Range<usize> {
    if elements.is_empty() { 0..0 } else { elements.start / BLOCK..elements.end.div_ceil(BLOCK) }
}

/// Computes the squared norm of every block of the stored gradients.
pub(super) fn compute(ctx: &WorkerCtx<'_>, plan: &UpdatePlan) {
    // The other workers' parts must be complete.
    ctx.state_barrier();
    let (state, memory) = (ctx.state(), ctx.run.memory);
    let (worker, workers) = ctx.state_worker();
    for g in &plan.gradients {
        let held = &memory.owned.held[g.param.index()];
        for block in split_range(blocks(held), workers, worker) {
            let elements = block * BLOCK..held.end.min((block + 1) * BLOCK);
            // SAFETY: the gradients are complete since the barrier, and only this worker writes the norms of its
            // blocks.
            unsafe {
                let from = state.reduced.f32().add(memory.owned.at(g.param, elements.start));
                let values = std::slice::from_raw_parts(from, elements.len());
                let to = state.block_norms.ptr().cast::<f64>();
                *to.add(memory.first_blocks[g.param.index()] + block) = sum_of_squares(values);
            }
        }
    }
    // The norms of a parameter may be those of several devices.
    ctx.barrier(if ctx.run.mesh.devices_per_replica > 1 { Scope::All } else { ctx.state_scope() });
    if let Some(collectives) = ctx.run.collectives.filter(|_| ctx.run.mesh.sharding.is_on()) {
        if ctx.is_leader() {
            let owned = |param: ParamId, domain: usize| {
                let len = ctx.program().params()[param.index()].len();
                let blocks = blocks(&ctx.run.mesh.sharding.owned(param, len, domain));
                let first = memory.first_blocks[param.index()];
                first + blocks.start..first + blocks.end
            };
            let parts = |domain: usize| plan.gradients.iter().map(move |g| owned(g.param, domain));
            // SAFETY: the other workers wait at the barrier below.
            let norms = unsafe {
                let first = state.block_norms.ptr().cast::<f64>();
                std::slice::from_raw_parts_mut(first, state.block_norms.bytes() / 8)
            };
            ctx.run.unwrap_or_abort(collectives.gather_doubles(norms, parts));
        }
        ctx.barrier(Scope::All);
    }
}

/// The squared norm of a gradient: of all its parts if the devices of a replica hold parts.
pub(super) fn square(ctx: &WorkerCtx<'_>, param: ParamId) -> f64 {
    let first = ctx.run.memory.first_blocks[param.index()];
    let spec = &ctx.program().params()[param.index()];
    let of_part = |part: usize| -> f64 {
        // SAFETY: complete since the barrier at the end of `compute`.
        let norms = unsafe {
            let at = ctx.run.state(ctx.replica, part).block_norms.ptr().cast::<f64>().add(first);
            std::slice::from_raw_parts(at, spec.len().div_ceil(BLOCK))
        };
        norms.iter().sum()
    };
    match spec.partition_axis {
        Some(_) => (0..ctx.run.mesh.devices_per_replica).map(of_part).sum(),
        None => of_part(ctx.part),
    }
}

fn sum_of_squares(values: &[f32]) -> f64 {
    values.iter().map(|v| f64::from(*v) * f64::from(*v)).sum()
}
