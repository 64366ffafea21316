//! Batch and layer normalisation.

use super::doubles;
use crate::kernels::layer_norm::{self, LayerNorm};
use crate::kernels::norm::{self, BatchNorm, NormPass, ReducedSums};
use crate::worker::WorkerCtx;
use phalanx_graph::Op;
use phalanx_graph::ops::{BatchNormAttrs, LayerNormAttrs};
use phalanx_graph::program::ValueId;

/// Computes `y` from `x` if `op` is of this family. Safety is argued in [`compute`](super::compute).
pub(super) fn compute(ctx: &WorkerCtx<'_>, op: &Op, x: &[ValueId], y: ValueId) {
    let isa = ctx.run.isa;
    match op {
        // SAFETY: see above.
        Op::Moments => unsafe {
            let c = ctx.value(x[0]).ty.last();
            let out = std::slice::from_raw_parts_mut(ctx.f32(y).cast::<f64>(), 2 * c);
            norm::moments(isa, ctx.pixels(x[0]), c, ctx.src(x[0]), out);
        },
        // SAFETY: see above; moments are doubles, which the plan aligns to 64 bytes.
        Op::BatchStats { scope, positions } => unsafe {
            let len = ctx.value(x[0]).ty.len();
            let sums = std::slice::from_raw_parts(ctx.f32(x[0]).cast::<f64>(), len);
            let count = ctx.scope_rows(*scope) * positions;
            norm::stats(sums, count as f64, ctx.slice_mut(y));
        },
        // SAFETY: see above.
        Op::BatchNorm(a) => unsafe {
            let norm = batch_norm(ctx, a, &x[1..4]);
            let pass = NormPass { norm, pixels: ctx.pixels(y), x: ctx.src(x[0]) };
            norm::normalize(isa, &pass, ctx.dst(y), ctx.scratch());
        },
        // SAFETY: see above.
        Op::BatchNormGradSums(a) => unsafe {
            let norm = batch_norm(ctx, a, &x[2..5]);
            let pass = NormPass { norm, pixels: ctx.pixels(x[0]), x: ctx.src(x[1]) };
            let c = ctx.value(x[0]).ty.last();
            let (wide, scratch) = ctx.scratch().split_at_mut(4 * c);
            let (out, wide) = (ctx.slice_mut(y), doubles(wide));
            norm::grad_sums(isa, &pass, ctx.src(x[0]), out, wide, scratch);
        },
        // SAFETY: see above.
        Op::BatchNormGradInput(a) => unsafe {
            let norm = batch_norm(ctx, a, &x[2..5]);
            let pass = NormPass { norm, pixels: ctx.pixels(y), x: ctx.src(x[1]) };
            let positions = ctx.value(y).ty.len() / ctx.value(y).ty.last();
            let count = (ctx.scope_rows(a.scope) * positions) as f64;
            let reduced = ReducedSums { sums: ctx.slice(x[5]), count };
            norm::grad_input(isa, &pass, ctx.src(x[0]), reduced, ctx.dst(y), ctx.scratch());
        },
        // SAFETY: see above.
        Op::LayerNorm(a) => unsafe {
            layer_norm::layer_norm(isa, lines(ctx, a, y), ctx.f32(x[0]), ctx.f32(y));
        },
        // SAFETY: see above.
        Op::LayerNormGrad(a) => unsafe {
            let (input, dy) = (ctx.f32(x[0]), ctx.f32(x[1]));
            layer_norm::layer_norm_grad(isa, lines(ctx, a, y), input, dy, ctx.f32(y));
        },
        _ => unreachable!("{} is of another family", op.name()),
    }
}

/// The lines of a layer normalisation.
fn lines(ctx: &WorkerCtx<'_>, attrs: &LayerNormAttrs, y: ValueId) -> LayerNorm {
    let (lines, n) = (ctx.pixels(y), ctx.value(y).ty.last());
    LayerNorm { lines, n, epsilon: attrs.epsilon.get(), rms: attrs.rms }
}

/// The parameters of a normalisation: statistics, gamma and beta in `x`.
///
/// # Safety
/// As [`WorkerCtx::slice`].
pub(crate) unsafe fn batch_norm<'a>(
    ctx: &WorkerCtx<'a>,
    a: &BatchNormAttrs,
    x: &[ValueId],
) -> BatchNorm<'a> {
    // SAFETY: the caller's contract.
    let (stats, gamma, beta) = unsafe { (ctx.slice(x[0]), ctx.slice(x[1]), ctx.slice(x[2])) };
    BatchNorm { stats, gamma, beta, epsilon: a.epsilon.get(), relu: a.relu }
}
