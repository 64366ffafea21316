//! Exchange of parts among the devices of a replica.

use crate::worker::WorkerCtx;
use phalanx_graph::DType;
use phalanx_graph::ops::{PartsOp, ReduceKind};
use phalanx_graph::program::ValueId;

/// Sums, maximises or joins what the devices of this worker's replica hold for its rows.
pub(crate) fn exchange(ctx: &WorkerCtx<'_>, op: PartsOp, input: ValueId, output: ValueId) {
    match (op, ctx.value(input).ty.dtype) {
        (PartsOp::AllReduce(kind), DType::F64) => reduce::<f64>(ctx, kind, input, output),
        (PartsOp::AllReduce(kind), _) => reduce::<f32>(ctx, kind, input, output),
        (PartsOp::AllGather { axis, .. }, dtype) => join(ctx, axis, dtype.bytes(), (input, output)),
        (PartsOp::Slice { .. }, _) => unreachable!("the verifier rejects it"),
    }
}

/// The operand on every device of the replica.
fn sources<'a, T>(ctx: &'a WorkerCtx<'_>, input: ValueId) -> impl Iterator<Item = *const T> + 'a {
    let address = move |part| {
        ctx.address_of(ctx.value(input), (ctx.replica, part), ctx.memory_owner())
            .cast_const()
            .cast()
    };
    (0..ctx.run.mesh.devices_per_replica).map(address)
}

fn reduce<T: Copy + PartialOrd + std::ops::Add<Output = T>>(
    ctx: &WorkerCtx<'_>,
    kind: ReduceKind,
    input: ValueId,
    output: ValueId,
) {
    let len = ctx.elements(output);
    let out = ctx.address(ctx.value(output), ctx.replica, ctx.memory_owner()).cast::<T>();
    // SAFETY: the sources are complete since the barrier before this and stay so up to the next one. The result belongs to
    // this worker, and overlaps none of them.
    let out = unsafe { std::slice::from_raw_parts_mut(out, len) };
    for (part, from) in sources::<T>(ctx, input).enumerate() {
        // SAFETY: as above.
        let from = unsafe { std::slice::from_raw_parts(from, len) };
        match kind {
            _ if part == 0 => out.copy_from_slice(from),
            ReduceKind::Sum => out.iter_mut().zip(from).for_each(|(o, v)| *o = *o + *v),
            // A NaN stays.
            ReduceKind::Max => {
                for (o, v) in out.iter_mut().zip(from) {
                    if *v > *o || v.partial_cmp(v).is_none() {
                        *o = *v;
                    }
                }
            }
        }
    }
}

/// Joins parts of `bytes` bytes per element along an axis.
fn join(ctx: &WorkerCtx<'_>, axis: usize, bytes: usize, (input, output): (ValueId, ValueId)) {
    let dims = &ctx.value(input).ty.dims;
    let (parts, rows) = (ctx.run.mesh.devices_per_replica, ctx.row_count(output));
    let run: usize = dims[axis..].iter().product::<usize>() * bytes;
    let outer = rows * dims[..axis].iter().product::<usize>();
    let out = ctx.address(ctx.value(output), ctx.replica, ctx.memory_owner());
    for (part, from) in sources::<u8>(ctx, input).enumerate() {
        for i in 0..outer {
            // SAFETY: as in `reduce`; the result has `outer` times the runs of all parts.
            unsafe {
                std::ptr::copy_nonoverlapping(
                    from.add(i * run),
                    out.add((i * parts + part) * run),
                    run,
                );
            }
        }
    }
}
