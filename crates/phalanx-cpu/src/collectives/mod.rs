//! Collectives: sums and means over the workers of this process in shared memory, over processes, and the
//! reduction of gradients with the optimizer's update.

pub(crate) mod async_reduce;
mod chunks;
pub(crate) mod exchange_layout;
mod exchanges;
mod norms;
pub(crate) mod parts;
pub(crate) mod process_collectives;
pub(crate) mod reduction;
#[cfg(test)]
mod test_group;
pub(crate) mod update;

use self::process_collectives::ProcessCollectives;
use crate::worker::WorkerCtx;
use phalanx_graph::program::{Instr, Mesh, SHARDS, ValueId};
use phalanx_graph::{DType, Scope};
use std::ops::Add;

/// After the barrier at index `barrier`: reduces the collectives that follow it over all processes.
pub(crate) fn exchange_collectives(ctx: &WorkerCtx<'_>, barrier: usize) {
    let Some(collectives) = ctx.run.collectives else { return };
    let all = &ctx.run.loaded.fused_collectives;
    let Some(fused) = ProcessCollectives::after_barrier(all, barrier) else { return };
    if ctx.is_leader() {
        ctx.run.unwrap_or_abort(collectives.reduce(ctx, fused));
    }
    ctx.barrier(Scope::All);
}

/// Copies the result of a collective that the processes reduced. Returns false for other instructions.
pub(crate) fn take_reduced(ctx: &WorkerCtx<'_>, at: usize, instr: &Instr) -> bool {
    let (Instr::AllReduce { input, output, .. } | Instr::ReplicaMean { input, output }) = instr
    else {
        return false;
    };
    let fused = &ctx.run.loaded.fused_collectives;
    let result = ctx.run.collectives.and_then(|c| c.result(fused, at));
    let Some(from) = result else { return false };
    let ty = &ctx.value(*input).ty;
    let out = ctx.address(ctx.value(*output), ctx.replica, ctx.worker);
    // SAFETY: the source is complete since the barrier before this. The output has the same type and
    // belongs to this worker.
    unsafe { std::ptr::copy_nonoverlapping(from, out, ty.len() * ty.dtype.bytes()) };
    true
}

/// Makes a group of weights complete, after all workers have finished reading the group before it.
pub(crate) fn gather_weights(ctx: &WorkerCtx<'_>, group: usize) {
    let Some(collectives) = ctx.run.collectives else { return };
    ctx.barrier(Scope::All);
    if ctx.is_leader() {
        let groups = &ctx.run.loaded.weight_groups;
        let weights = ctx.state().params.f32().cast_const();
        // SAFETY: the workers have passed the barrier.
        ctx.run.unwrap_or_abort(unsafe { collectives.gather_weights(groups, group, weights) });
    }
    ctx.barrier(Scope::All);
}

/// `output` = the sum of `input` over the workers of a scope.
pub(crate) fn all_reduce(ctx: &WorkerCtx<'_>, scope: Scope, input: ValueId, output: ValueId) {
    let (from, len) = (ctx.value(input), ctx.value(input).ty.len());
    let replicas = match scope {
        Scope::Device => ctx.replica..ctx.replica + 1,
        Scope::All => ctx.run.replicas(),
    };
    let sources = replicas.flat_map(|d| (0..ctx.run.mesh.workers).map(move |w| (d, w)));
    let out = ctx.address(ctx.value(output), ctx.replica, ctx.worker);
    // SAFETY: the sources are shared blocks, complete since the barrier before this. The result
    // belongs to this worker.
    unsafe {
        match from.ty.dtype {
            DType::F64 => {
                let sources = sources.map(|(d, w)| ctx.address(from, d, w).cast::<f64>());
                let out = std::slice::from_raw_parts_mut(out.cast::<f64>(), len);
                sum_sources(ctx.run.mesh, sources, out);
            }
            DType::F32 => {
                let sources = sources.map(|(d, w)| ctx.address(from, d, w).cast::<f32>());
                let out = std::slice::from_raw_parts_mut(out.cast::<f32>(), len);
                sum_sources(ctx.run.mesh, sources, out);
            }
            DType::I32 | DType::Bf16 | DType::F16 => unreachable!("sums are wide floats"),
        }
    }
}

/// `output` = the mean of `input` over the replicas.
pub(crate) fn replica_mean(ctx: &WorkerCtx<'_>, input: ValueId, output: ValueId) {
    // SAFETY: the result belongs to this worker and is no operand.
    let (from, out) = (ctx.value(input), unsafe { ctx.slice_mut(output) });
    let len = out.len();
    // SAFETY: the first worker of every replica finished its statistics before the barrier that
    // precedes this.
    let values = ctx.run.replicas().map(|replica| unsafe {
        std::slice::from_raw_parts(ctx.address(from, replica, 0).cast::<f32>(), len)
    });
    weighted_mean(ctx.run.mesh, ctx.run.batch.rows, values, out);
}

/// The mean over all replicas, weighted by their rows and summed in replica order.
fn weighted_mean<'v>(
    mesh: Mesh,
    rows: usize,
    replicas: impl Iterator<Item = &'v [f32]>,
    out: &mut [f32],
) {
    out.fill(0.0);
    let total = rows.max(1) as f32;
    for (replica, values) in replicas.enumerate() {
        let rows = mesh.replica_rows(rows, replica).len();
        if rows > 0 {
            let share = rows as f32 / total;
            out.iter_mut().zip(values).for_each(|(o, v)| *o += share * v);
        }
    }
}

/// `out = Σ sources`, in order or, on a fixed mesh, as a tree.
///
/// # Safety
/// Every source holds as many elements as `out` and does not overlap it.
unsafe fn sum_sources<T: Copy + Add<Output = T>>(
    mesh: Mesh,
    sources: impl Iterator<Item = *mut T>,
    out: &mut [T],
) {
    let len = out.len();
    // SAFETY: the caller's contract.
    let mut values = sources.map(|source| unsafe { std::slice::from_raw_parts(source, len) });
    if mesh.fixed {
        let mut shards: [&[T]; SHARDS] = [&[]; SHARDS];
        let count = shards.iter_mut().zip(&mut values).map(|(s, v)| *s = v).count();
        return sum_slices(true, &shards[..count], out);
    }
    for (i, values) in values.enumerate() {
        if i == 0 {
            out.copy_from_slice(values);
        } else {
            out.iter_mut().zip(values).for_each(|(o, v)| *o = *o + *v);
        }
    }
}

/// `out = Σ parts`, in order or as a tree.
fn sum_slices<T: Copy + Add<Output = T>>(tree: bool, parts: &[&[T]], out: &mut [T]) {
    match parts {
        [a, b, c, d] if tree => {
            let sum = |i: usize| (a[i] + b[i]) + (c[i] + d[i]);
            out.iter_mut().enumerate().for_each(|(i, o)| *o = sum(i));
        }
        [a, b, c, d, e, f, g, h] if tree => {
            let sum = |i: usize| ((a[i] + b[i]) + (c[i] + d[i])) + ((e[i] + f[i]) + (g[i] + h[i]));
            out.iter_mut().enumerate().for_each(|(i, o)| *o = sum(i));
        }
        [first, rest @ ..] => {
            out.copy_from_slice(first);
            for part in rest {
                out.iter_mut().zip(*part).for_each(|(o, v)| *o = *o + *v);
            }
        }
        [] => {}
    }
}
