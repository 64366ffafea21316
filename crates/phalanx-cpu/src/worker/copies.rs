//! Copies of values: between buffers, to parameters and to the fetches of a step.

use super::WorkerCtx;
use phalanx_graph::program::{Value, ValueId};
use phalanx_graph::{DType, ParamId};

/// Copies a value to another location.
pub(super) fn copy(ctx: &WorkerCtx<'_>, input: ValueId, output: ValueId) {
    let (from, to) = (ctx.value(input), ctx.value(output));
    // A side without gaps can be split into pixels of the other side's width.
    let width = if from.contiguous() { to.ty.last() } else { from.ty.last() };
    let step = |v: &Value| if v.contiguous() { width } else { v.ld };
    let pixels = ctx.my_range(ctx.elements(output) / width.max(1));
    let (src, dst) = (ctx.f32(input), ctx.f32(output));
    for p in pixels {
        // SAFETY: both values have this many pixels, and the two sides of a copy never overlap.
        unsafe {
            let (src, dst) = (src.add(p * step(from)), dst.add(p * step(to)));
            std::ptr::copy_nonoverlapping(src, dst, width);
        }
    }
}

/// Copies a value to a parameter, once for each copy of the training state.
pub(super) fn assign(ctx: &WorkerCtx<'_>, param: ParamId, value: ValueId) {
    if ctx.state_worker().0 != 0 {
        return;
    }
    let weights = &ctx.run.memory.weights;
    let held = &weights.held[param.index()];
    // SAFETY: this runs after a barrier of all workers that read this copy, and only one of them writes. The value has as
    // many elements as the parameter. `copy` because a parameter may be assigned to itself.
    unsafe {
        let to = ctx.state().params.f32().add(weights.offsets[param.index()]);
        std::ptr::copy(ctx.f32(value).add(held.start), to, held.len());
    }
}

/// Copies a value to a fetch of the step.
pub(super) fn fetch(ctx: &WorkerCtx<'_>, index: usize, value: ValueId) {
    let v = ctx.value(value);
    let whole = !v.ty.is_rows() && !ctx.is_leader();
    if whole || ctx.part > 0 || ctx.worker != ctx.memory_owner() {
        return;
    }
    let start = if v.ty.is_rows() { ctx.rows.start * v.ty.len() } else { 0 };
    let from = ctx.address(v, ctx.replica, ctx.worker);
    // SAFETY: `start` sized the vector for all rows, and workers write disjoint rows. The value is
    // complete and has elements of its type.
    unsafe {
        let len = ctx.elements(value);
        let to = ctx.run.fetches[index].0.add(start);
        match v.ty.dtype {
            DType::F32 => std::ptr::copy_nonoverlapping(from.cast(), to, len),
            DType::I32 => (0..len).for_each(|i| *to.add(i) = *from.cast::<i32>().add(i) as f32),
            DType::F64 => (0..len).for_each(|i| *to.add(i) = *from.cast::<f64>().add(i) as f32),
            DType::Bf16 | DType::F16 => unreachable!("`load` rejects this program"),
        }
    }
}
