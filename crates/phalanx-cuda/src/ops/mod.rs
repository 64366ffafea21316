//! Kernel launches of ops: one file per family, named like its kernels in `kernels/`.

pub(crate) mod axes;
pub(crate) mod depthwise;
#[cfg(all(test, feature = "emulator"))]
pub(crate) mod harness;
pub(crate) mod index;
pub(crate) mod layer_norm;
pub(crate) mod layout;
pub(crate) mod matmul;
pub(crate) mod norm;
pub(crate) mod pool;
pub(crate) mod random;
pub(crate) mod recurrent;
pub(crate) mod reduce;
pub(crate) mod sample;
pub(crate) mod softmax;
pub(crate) mod update;

use crate::launch::Launch;
use crate::lowering_context::LowerCtx;
use crate::tape::{self, Tapes};
use phalanx_graph::Op;
use phalanx_graph::program::ValueId;

/// The launches of an op. Products, convolutions, batch norms and collectives are handled by
/// `lower`.
pub(crate) fn compute(
    cx: &mut LowerCtx<'_>,
    tapes: &mut Tapes,
    op: &Op,
    x: &[ValueId],
    y: ValueId,
) -> Vec<Launch> {
    match op {
        Op::Fused(t) => tape::fused(cx, tapes, t, x, y),
        Op::Const { bits, .. } => layout::constant(cx, f64::from_bits(*bits), y),
        Op::Cast { .. } => layout::cast(cx, x, y),
        Op::Broadcast { dims } => layout::broadcast(cx, dims, x, y),
        Op::Reduce { kind, axes } => reduce::reduce(cx, *kind, axes, x, y),
        Op::SumRows => reduce::sum_rows(cx, x, y),
        Op::Transpose { perm } => layout::transpose(cx, perm, x, y),
        Op::Concat { axis } => layout::concat(cx, *axis, x, y),
        Op::Slice { axis, start, .. } => layout::slice(cx, *axis, *start, x, y),
        Op::Stride { axis, step } => layout::stride(cx, *axis, *step, x, y),
        Op::Dilate { axis, step, .. } => layout::dilate(cx, *axis, *step, x, y),
        Op::Pad { before, .. } => layout::pad(cx, before, x, y),
        Op::Upsample { size, bilinear } => sample::upsample(cx, *size, *bilinear, x, y),
        Op::UpsampleGrad { size, bilinear } => sample::upsample_grad(cx, *size, *bilinear, x, y),
        Op::AffineSample(geom) => sample::affine(cx, geom, x, y),
        Op::AffineSampleGrad(geom) => sample::affine_grad(cx, geom, x, y),
        Op::Pool(kind, geom) => pool::pool(cx, *kind, geom, x, y),
        Op::PoolGrad(kind, geom) => pool::pool_grad(cx, *kind, geom, x, y),
        Op::Softmax => softmax::softmax(cx, x, y),
        Op::SoftmaxGrad => softmax::softmax_grad(cx, x, y),
        Op::LogSoftmax => softmax::log_softmax(cx, x, y),
        Op::SparseXent => softmax::sparse_xent(cx, x, y),
        Op::SparseXentGrad => softmax::sparse_xent_grad(cx, x, y),
        Op::Gather => index::gather(cx, x, y),
        Op::GatherGrad { .. } => index::gather_grad(cx, x, y),
        Op::Take(at) => index::take(cx, *at, x, y),
        Op::TakeGrad { at, .. } => index::take_grad(cx, *at, x, y),
        Op::Cumulative { axis, product, reverse } => {
            reduce::cumulative(cx, *axis, [*product, *reverse], x, y)
        }
        Op::ArgSort => index::arg_sort(cx, x, y),
        Op::OneHot { depth } => index::one_hot(cx, *depth, x, y),
        Op::ArgMax => index::arg_max(cx, x, y),
        Op::InTopK { k } => index::in_top_k(cx, *k, x, y),
        Op::ThresholdCounts { n } => index::threshold_counts(cx, *n, x, y),
        Op::Dropout { rate, key, noise } => random::dropout(cx, rate.get(), *key, noise, x, y),
        Op::Uniform { key, .. } => random::uniform(cx, *key, y),
        Op::RowIndex => index::row_index(cx, y),
        Op::LayerNorm(attrs) => layer_norm::layer_norm(cx, attrs, x, y),
        Op::LayerNormGrad(attrs) => layer_norm::layer_norm_grad(cx, attrs, x, y),
        Op::Recurrent(attrs) => recurrent::recurrent(cx, attrs, x, y),
        Op::RecurrentGrad(attrs, more) => recurrent::recurrent_grad(cx, attrs, *more, x, y),
        Op::Feed { .. }
        | Op::Param { .. }
        | Op::Unary(_)
        | Op::Binary(_)
        | Op::Select
        | Op::Reshape { .. }
        | Op::Dot(_)
        | Op::DotGradInput
        | Op::DotGradKernel
        | Op::MatMul(_)
        | Op::Conv(..)
        | Op::ConvGradInput(_)
        | Op::ConvGradKernel(_)
        | Op::Moments
        | Op::BatchStats { .. }
        | Op::BatchNorm(_)
        | Op::BatchNormGradSums(_)
        | Op::BatchNormGradInput(_)
        | Op::AllReduce { .. }
        | Op::ReplicaMean
        | Op::Model(_)
        | Op::Parts(_) => unreachable!("{} is not lowered op by op", op.name()),
    }
}

#[cfg(all(test, feature = "emulator"))]
mod case;
#[cfg(all(test, feature = "emulator"))]
mod tests;
