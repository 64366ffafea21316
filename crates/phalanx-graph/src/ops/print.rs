//! Text form of ops.

use super::{Epilogue, ModelOp, Op, PartsOp, PoolKind, ReduceKind};
use std::fmt;

impl Op {
    /// The name of the op in programs and messages.
    pub fn name(&self) -> &'static str {
        match self {
            Op::Feed { .. } => "feed",
            Op::Param { .. } => "param",
            Op::Const { .. } => "const",
            Op::Unary(u) => u.name(),
            Op::Binary(b) => b.name(),
            Op::Select => "select",
            Op::Fused(_) => "fused",
            Op::Cast { .. } => "cast",
            Op::Broadcast { .. } => "broadcast",
            Op::Reduce { kind: ReduceKind::Sum, .. } => "reduce_sum",
            Op::Reduce { kind: ReduceKind::Max, .. } => "reduce_max",
            Op::SumRows => "sum_rows",
            Op::Reshape { .. } => "reshape",
            Op::Transpose { .. } => "transpose",
            Op::Concat { .. } => "concat",
            Op::Slice { .. } => "slice",
            Op::Stride { .. } => "stride",
            Op::Dilate { .. } => "dilate",
            Op::Pad { .. } => "pad",
            Op::Upsample { .. } => "upsample",
            Op::UpsampleGrad { .. } => "upsample_grad",
            Op::AffineSample(_) => "affine_sample",
            Op::AffineSampleGrad(_) => "affine_sample_grad",
            Op::Dot(_) => "dot",
            Op::DotGradInput => "dot_grad_input",
            Op::DotGradKernel => "dot_grad_kernel",
            Op::MatMul(_) => "matmul",
            Op::Conv(..) => "conv",
            Op::ConvGradInput(_) => "conv_grad_input",
            Op::ConvGradKernel(_) => "conv_grad_kernel",
            Op::Pool(PoolKind::Max, _) => "max_pool",
            Op::Pool(PoolKind::Average, _) => "average_pool",
            Op::PoolGrad(PoolKind::Max, _) => "max_pool_grad",
            Op::PoolGrad(PoolKind::Average, _) => "average_pool_grad",
            Op::Softmax => "softmax",
            Op::SoftmaxGrad => "softmax_grad",
            Op::LogSoftmax => "log_softmax",
            Op::SparseXent => "sparse_xent",
            Op::SparseXentGrad => "sparse_xent_grad",
            Op::Gather => "gather",
            Op::GatherGrad { .. } => "gather_grad",
            Op::Take(_) => "take",
            Op::TakeGrad { .. } => "take_grad",
            Op::Cumulative { product: false, .. } => "cumulative_sum",
            Op::Cumulative { product: true, .. } => "cumulative_product",
            Op::ArgSort => "arg_sort",
            Op::OneHot { .. } => "one_hot",
            Op::ArgMax => "arg_max",
            Op::InTopK { .. } => "in_top_k",
            Op::ThresholdCounts { .. } => "threshold_counts",
            Op::Dropout { .. } => "dropout",
            Op::Uniform { .. } => "uniform",
            Op::RowIndex => "row_index",
            Op::Moments => "moments",
            Op::BatchStats { .. } => "batch_stats",
            Op::BatchNorm(_) => "batch_norm",
            Op::BatchNormGradSums(_) => "batch_norm_grad_sums",
            Op::BatchNormGradInput(_) => "batch_norm_grad_input",
            Op::LayerNorm(_) => "layer_norm",
            Op::LayerNormGrad(_) => "layer_norm_grad",
            Op::Recurrent(_) => "recurrent",
            Op::RecurrentGrad(..) => "recurrent_grad",
            Op::AllReduce { .. } => "all_reduce",
            Op::ReplicaMean => "replica_mean",
            Op::Model(ModelOp::AllReduce(ReduceKind::Sum)) => "model_all_reduce_sum",
            Op::Model(ModelOp::AllReduce(ReduceKind::Max)) => "model_all_reduce_max",
            Op::Model(ModelOp::AllGather { .. }) => "model_all_gather",
            Op::Model(ModelOp::Slice { .. }) => "model_slice",
            Op::Parts(PartsOp::AllReduce(ReduceKind::Sum)) => "all_reduce_sum_parts",
            Op::Parts(PartsOp::AllReduce(ReduceKind::Max)) => "all_reduce_max_parts",
            Op::Parts(PartsOp::AllGather { .. }) => "all_gather_parts",
            Op::Parts(PartsOp::Slice { .. }) => "slice_part",
        }
    }
}

/// The name with its attributes, as programs print it.
impl fmt::Display for Op {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())?;
        match self {
            Op::Const { bits, .. } => write!(f, " {}", f64::from_bits(*bits)),
            Op::Fused(tape) => write!(f, " {{{tape}}}"),
            Op::Cast { dtype } => write!(f, " {dtype}"),
            Op::Reduce { axes, .. } => write!(f, " axes={axes:?}"),
            Op::Transpose { perm } => write!(f, " perm={perm:?}"),
            Op::Concat { axis } => write!(f, " axis={axis}"),
            Op::Slice { axis, start, len } => {
                write!(f, " axis={axis} {start}..{}", start + len)
            }
            Op::Stride { axis, step } | Op::Dilate { axis, step, .. } => {
                write!(f, " axis={axis} step={step}")
            }
            Op::Pad { before, after } => write!(f, " before={before:?} after={after:?}"),
            Op::Upsample { size, bilinear } | Op::UpsampleGrad { size, bilinear } => {
                write!(f, " {}x{}", size[0], size[1])?;
                if *bilinear { f.write_str(" bilinear") } else { Ok(()) }
            }
            Op::AffineSample(geom) | Op::AffineSampleGrad(geom) => write!(f, " {geom}"),
            Op::Dot(e) => e.fmt(f),
            Op::MatMul(c) => write!(f, " {c}"),
            Op::Conv(geom, e) => {
                write!(f, " {geom}")?;
                e.fmt(f)
            }
            Op::ConvGradInput(geom) | Op::ConvGradKernel(geom) => write!(f, " {geom}"),
            Op::Pool(_, geom) | Op::PoolGrad(_, geom) => write!(f, " {geom}"),
            Op::GatherGrad { vocab } => write!(f, " vocab={vocab}"),
            Op::Take(at) => write!(f, "{at}"),
            Op::TakeGrad { at, size, .. } => write!(f, "{at} size={size}"),
            Op::Cumulative { axis, reverse, .. } => {
                write!(f, " axis={axis}")?;
                if *reverse { f.write_str(" reversed") } else { Ok(()) }
            }
            Op::OneHot { depth } => write!(f, " {depth}"),
            Op::InTopK { k } => write!(f, " k={k}"),
            Op::ThresholdCounts { n } => write!(f, " {n}"),
            Op::Dropout { rate, key, .. } => write!(f, " rate={} key={key}", rate.get()),
            Op::Uniform { key, .. } => write!(f, " key={key}"),
            Op::BatchStats { scope, .. } => write!(f, " over={scope}"),
            Op::BatchNorm(a) | Op::BatchNormGradSums(a) | Op::BatchNormGradInput(a) => {
                write!(f, " epsilon={}", a.epsilon.get())?;
                if a.relu { f.write_str(" +relu") } else { Ok(()) }
            }
            Op::LayerNorm(a) | Op::LayerNormGrad(a) => {
                write!(f, " epsilon={}", a.epsilon.get())?;
                if a.rms { f.write_str(" rms") } else { Ok(()) }
            }
            Op::Recurrent(a) | Op::RecurrentGrad(a, _) => a.fmt(f),
            Op::AllReduce { scope } => write!(f, " over={scope}"),
            Op::Model(ModelOp::AllGather { axis } | ModelOp::Slice { axis })
            | Op::Parts(PartsOp::AllGather { axis, .. } | PartsOp::Slice { axis, .. }) => {
                write!(f, " axis={axis}")
            }
            _ => Ok(()),
        }
    }
}

impl fmt::Display for Epilogue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.bias {
            f.write_str(" +bias")?;
        }
        if self.relu {
            f.write_str(" +relu")?;
        }
        Ok(())
    }
}
