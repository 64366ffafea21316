//! The op set. The attributes, shape rule and derivative of each op are in one file of this folder; this
//! file lists the ops and dispatches to those files. The matches have no default arm, so a new op does not
//! compile until every case is handled.

pub mod collective;
pub mod conv;
pub mod dot;
pub mod elementwise;
pub mod index;
pub mod layout;
pub mod norm;
pub mod pool;
pub mod random;
pub mod reduce;
pub mod sample;
pub mod softmax;

pub use elementwise::{Access, Binary, Instr, Tape, Unary};
pub use pool::PoolKind;
pub use reduce::ReduceKind;
pub use sample::{FillMode, SampleGeom};

use crate::error::{GraphError, Result};
use crate::geometry::ConvGeom;
use crate::graph::{FeedId, Graph, NodeId, ParamId};
use crate::types::{DType, Scope, Space, Type};
use std::fmt;

/// A float attribute that compares and hashes by its bits.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Real(u64);

impl Real {
    /// The value.
    pub fn get(self) -> f64 {
        f64::from_bits(self.0)
    }
}

impl From<f64> for Real {
    fn from(v: f64) -> Real {
        Real(v.to_bits())
    }
}

impl fmt::Debug for Real {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.get())
    }
}

/// The epilogue of a product: `relu(y + bias)`, where each part is optional.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Epilogue {
    /// Adds a third operand `[channels]`.
    pub bias: bool,
    /// Applies a ReLU.
    pub relu: bool,
}

/// The shared attributes of the batch normalisation ops.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct BatchNormAttrs {
    /// Added to the variance.
    pub epsilon: Real,
    /// Whether a ReLU is fused.
    pub relu: bool,
    /// The workers whose rows the statistics span.
    pub scope: Scope,
}

/// An operation. The comment of each variant gives the order of its operands.
#[allow(missing_docs)]
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Op {
    /// A value that the host supplies at every step.
    Feed { id: FeedId },
    /// A weight or other variable.
    Param { id: ParamId },
    /// A mirrored constant with all elements equal.
    Const { bits: u64, dims: Vec<usize> },

    /// `f(x)` for every element.
    Unary(Unary),
    /// `f(a, b)` for every element, with broadcasting.
    Binary(Binary),
    /// `if c != 0 { a } else { b }` for every element; operands `c, a, b`.
    Select,
    /// Several elementwise ops in one pass; created by the fusion pass.
    Fused(Tape),
    /// Conversion to another element type.
    Cast { dtype: DType },

    /// Broadcasts to `dims` along axes of size one.
    Broadcast { dims: Vec<usize> },
    /// Sum or maximum along axes, which remain with size one.
    Reduce { kind: ReduceKind, axes: Vec<usize> },
    /// Sum over the rows of a worker, which gives a partial sum.
    SumRows,

    /// The same elements with other dimensions.
    Reshape { dims: Vec<usize> },
    /// Permutation of axes.
    Transpose { perm: Vec<usize> },
    /// Concatenation along an axis.
    Concat { axis: usize },
    /// `start..start+len` along an axis.
    Slice { axis: usize, start: usize, len: usize },
    /// Zero padding before and after each axis.
    Pad { before: Vec<usize>, after: Vec<usize> },
    /// Upsampling of `[h, w, c]`: nearest, or bilinear with half-pixel centres.
    Upsample { size: [usize; 2], bilinear: bool },
    /// Derivative of `Upsample` with respect to its input; operand `dy`.
    UpsampleGrad { size: [usize; 2], bilinear: bool },

    /// Samples images through an affine map per sample; operands `x, matrix[6]`.
    AffineSample(SampleGeom),
    /// Derivative of `AffineSample` with respect to `x`; operands `dy, matrix`.
    AffineSampleGrad(SampleGeom),

    /// `x[.., k] · w[k, n]`; operands `x, w` and, if the epilogue has one, `bias`.
    Dot(Epilogue),
    /// `dy[.., n] · wᵀ`; operands `dy, w`.
    DotGradInput,
    /// `xᵀ · dy` summed over rows; operands `x, dy`.
    DotGradKernel,

    /// 2-D convolution, NHWC; operands `x, w[kh, kw, c/groups, f]` and, if the epilogue has one, `bias`.
    Conv(ConvGeom, Epilogue),
    /// Derivative of `Conv` with respect to `x`; operands `dy, w`.
    ConvGradInput(ConvGeom),
    /// Derivative of `Conv` with respect to `w`; operands `x, dy`.
    ConvGradKernel(ConvGeom),

    /// Pooling over windows; the geometry has as many output as input channels.
    Pool(PoolKind, ConvGeom),
    /// Derivative of `Pool`; operands `x, y, dy` (max) or `dy` (average).
    PoolGrad(PoolKind, ConvGeom),

    /// Softmax over the last axis.
    Softmax,
    /// `log(softmax(x))` over the last axis.
    LogSoftmax,
    /// `-log_softmax(logits)[label]`; operands `logits[.., c], labels[..]`.
    SparseXent,
    /// Derivative of `SparseXent` with respect to `logits`; operands `logits, labels, dy`.
    SparseXentGrad,

    /// Looks up rows of a table; operands `table[v, d], index[..]`.
    Gather,
    /// Derivative of `Gather` with respect to the table, which has `vocab` rows; operands `index, dy`.
    GatherGrad { vocab: usize },
    /// 1 at the index, 0 elsewhere, along a new last axis.
    OneHot { depth: usize },
    /// Index of the first maximum along the last axis.
    ArgMax,
    /// 1 where the label's score is among the `k` best; operands `scores[.., c], labels[..]`.
    InTopK { k: usize },
    /// Weighted counts of positives and of negatives above each of `n` thresholds, `[2, n]`;
    /// operands `score, label, weight`, one number per row each.
    ThresholdCounts { n: usize },

    /// Zeroes a fraction `rate` of the elements and rescales the others. The mask is a function of
    /// (seed, step, global row, `key`). `noise` has size 1 on axes that share their mask.
    Dropout { rate: Real, key: u32, noise: Vec<usize> },
    /// Uniform random rows in `[0, 1)`, a function of (seed, step, global row, `key`).
    Uniform { key: u32, dims: Vec<usize> },

    /// Sum and sum of squares of every channel, `[2, c]`.
    Moments,
    /// Mean and variance, `[2, c]`, from reduced moments of `positions` positions per row.
    BatchStats { scope: Scope, positions: usize },
    /// `gamma * (x - mean) / sqrt(variance + epsilon) + beta`; operands `x, stats, gamma, beta`.
    BatchNorm(BatchNormAttrs),
    /// Sums of `dy` and `dy * x̂`, `[2, c]`; operands `dy, x, stats, gamma, beta`.
    BatchNormGradSums(BatchNormAttrs),
    /// Derivative of `BatchNorm` with respect to `x`; operands `dy, x, stats, gamma, beta, sums`.
    BatchNormGradInput(BatchNormAttrs),

    /// Sums partial sums over the workers of a scope, in index order.
    AllReduce { scope: Scope },
    /// Mean of per-device values, weighted by each device's rows.
    ReplicaMean,
}

/// Operands, result and cotangent of the node to differentiate.
pub struct Backward<'a> {
    /// Operands.
    pub inputs: &'a [NodeId],
    /// Result.
    pub y: NodeId,
    /// Gradient of the loss with respect to the result.
    pub dy: NodeId,
    /// Whether the derivative of each operand is needed.
    pub wanted: &'a [bool],
}

/// One derivative per operand; `None` if there is none or it is not needed.
pub type Cotangents = Result<Vec<Option<NodeId>>>;

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
            Op::Pad { .. } => "pad",
            Op::Upsample { .. } => "upsample",
            Op::UpsampleGrad { .. } => "upsample_grad",
            Op::AffineSample(_) => "affine_sample",
            Op::AffineSampleGrad(_) => "affine_sample_grad",
            Op::Dot(_) => "dot",
            Op::DotGradInput => "dot_grad_input",
            Op::DotGradKernel => "dot_grad_kernel",
            Op::Conv(..) => "conv",
            Op::ConvGradInput(_) => "conv_grad_input",
            Op::ConvGradKernel(_) => "conv_grad_kernel",
            Op::Pool(PoolKind::Max, _) => "max_pool",
            Op::Pool(PoolKind::Average, _) => "average_pool",
            Op::PoolGrad(PoolKind::Max, _) => "max_pool_grad",
            Op::PoolGrad(PoolKind::Average, _) => "average_pool_grad",
            Op::Softmax => "softmax",
            Op::LogSoftmax => "log_softmax",
            Op::SparseXent => "sparse_xent",
            Op::SparseXentGrad => "sparse_xent_grad",
            Op::Gather => "gather",
            Op::GatherGrad { .. } => "gather_grad",
            Op::OneHot { .. } => "one_hot",
            Op::ArgMax => "arg_max",
            Op::InTopK { .. } => "in_top_k",
            Op::ThresholdCounts { .. } => "threshold_counts",
            Op::Dropout { .. } => "dropout",
            Op::Uniform { .. } => "uniform",
            Op::Moments => "moments",
            Op::BatchStats { .. } => "batch_stats",
            Op::BatchNorm(_) => "batch_norm",
            Op::BatchNormGradSums(_) => "batch_norm_grad_sums",
            Op::BatchNormGradInput(_) => "batch_norm_grad_input",
            Op::AllReduce { .. } => "all_reduce",
            Op::ReplicaMean => "replica_mean",
        }
    }

    /// Infers the type of the result. Fails if the operands do not match or the result is too large.
    pub fn infer(&self, x: &[&Type]) -> Result<Type> {
        let ty = self.infer_unlimited(x)?;
        ty.check_limits()?;
        Ok(ty)
    }

    /// Infers the type without checking limits; sizes saturate on overflow.
    fn infer_unlimited(&self, x: &[&Type]) -> Result<Type> {
        let arity = self.arity();
        if arity.is_some_and(|n| n != x.len()) || x.is_empty() && arity != Some(0) {
            let expected = arity.map_or("one or more".into(), |n| n.to_string());
            let what = format!("operands of {}", self.name());
            return Err(GraphError::mismatch(what, expected, x.len().to_string()));
        }
        match self {
            Op::Feed { .. } | Op::Param { .. } => {
                Err(GraphError::internal("infer", "feeds and params are typed by their tables"))
            }
            Op::Const { dims, .. } => Ok(Type::mirrored(dims.clone())),
            Op::Unary(u) => elementwise::infer_unary(*u, x[0]),
            Op::Binary(b) => elementwise::infer_binary(*b, x[0], x[1]),
            Op::Select => elementwise::infer_select(x),
            Op::Fused(tape) => elementwise::infer_fused(tape, x),
            Op::Cast { dtype } => Ok(Type { dtype: *dtype, ..x[0].clone() }),
            Op::Broadcast { dims } => reduce::infer_broadcast(dims, x[0]),
            Op::Reduce { axes, kind } => reduce::infer_reduce(*kind, axes, x[0]),
            Op::SumRows => reduce::infer_sum_rows(x[0]),
            Op::Reshape { dims } => layout::infer_reshape(dims, x[0]),
            Op::Transpose { perm } => layout::infer_transpose(perm, x[0]),
            Op::Concat { axis } => layout::infer_concat(*axis, x),
            Op::Slice { axis, start, len } => layout::infer_slice(*axis, *start, *len, x[0]),
            Op::Pad { before, after } => layout::infer_pad(before, after, x[0]),
            Op::Upsample { size, .. } => layout::infer_upsample(*size, x[0]),
            Op::UpsampleGrad { size, .. } => layout::infer_upsample_grad(*size, x[0]),
            Op::AffineSample(geom) => sample::infer(geom, x[0], x[1]),
            Op::AffineSampleGrad(geom) => sample::infer_grad(geom, x[0], x[1]),
            Op::Dot(e) => dot::infer(*e, x),
            Op::DotGradInput => dot::infer_grad_input(x[0], x[1]),
            Op::DotGradKernel => dot::infer_grad_kernel(x[0], x[1]),
            Op::Conv(geom, e) => conv::infer(geom, *e, x),
            Op::ConvGradInput(geom) => conv::infer_grad_input(geom, x[0], x[1]),
            Op::ConvGradKernel(geom) => conv::infer_grad_kernel(geom, x[0], x[1]),
            Op::Pool(_, geom) => pool::infer(geom, x[0]),
            Op::PoolGrad(_, geom) => pool::infer_grad(geom, x),
            Op::Softmax | Op::LogSoftmax => softmax::infer(x[0]),
            Op::SparseXent => softmax::infer_sparse_xent(x[0], x[1]),
            Op::SparseXentGrad => softmax::infer_sparse_xent_grad(x[0], x[1], x[2]),
            Op::Gather => index::infer_gather(x[0], x[1]),
            Op::GatherGrad { vocab } => index::infer_gather_grad(*vocab, x[0], x[1]),
            Op::OneHot { depth } => index::infer_one_hot(*depth, x[0]),
            Op::ArgMax => index::infer_arg_max(x[0]),
            Op::InTopK { k } => index::infer_in_top_k(*k, x[0], x[1]),
            Op::ThresholdCounts { n } => index::infer_threshold_counts(*n, x),
            Op::Dropout { noise, .. } => random::infer_dropout(noise, x[0]),
            Op::Uniform { dims, .. } => random::infer_uniform(dims),
            Op::Moments => norm::infer_moments(x[0]),
            Op::BatchStats { scope, .. } => norm::infer_stats(*scope, x[0]),
            Op::BatchNorm(_) => norm::infer_batch_norm(x),
            Op::BatchNormGradSums(_) => norm::infer_grad_sums(x),
            Op::BatchNormGradInput(_) => norm::infer_grad_input(x),
            Op::AllReduce { scope } => collective::infer_all_reduce(*scope, x[0]),
            Op::ReplicaMean => collective::infer_replica_mean(x[0]),
        }
    }

    /// Appends the derivative. The rule of each op is next to its definition.
    pub fn derivative(&self, g: &mut Graph, b: &Backward<'_>) -> Cotangents {
        match self {
            Op::Feed { .. } | Op::Param { .. } | Op::Const { .. } | Op::Uniform { .. } => {
                Ok(vec![])
            }
            Op::Unary(u) => elementwise::unary_derivative(*u, g, b),
            Op::Binary(op) => elementwise::binary_derivative(*op, g, b),
            Op::Select => elementwise::select_derivative(g, b),
            Op::Broadcast { .. } => reduce::broadcast_derivative(g, b),
            Op::Reduce { kind, axes } => reduce::reduce_derivative(*kind, axes, g, b),
            Op::Reshape { .. } => layout::reshape_derivative(g, b),
            Op::Transpose { perm } => layout::transpose_derivative(perm, g, b),
            Op::Concat { axis } => layout::concat_derivative(*axis, g, b),
            Op::Slice { axis, start, .. } => layout::slice_derivative(*axis, *start, g, b),
            Op::Pad { before, .. } => layout::pad_derivative(before, g, b),
            Op::Upsample { size, bilinear } => layout::upsample_derivative(*size, *bilinear, g, b),
            Op::AffineSample(geom) => sample::derivative(geom, g, b),
            Op::Dot(e) => dot::derivative(*e, g, b),
            Op::Conv(geom, e) => conv::derivative(geom, *e, g, b),
            Op::Pool(kind, geom) => pool::derivative(*kind, geom, g, b),
            Op::Softmax => softmax::softmax_derivative(g, b),
            Op::LogSoftmax => softmax::log_softmax_derivative(g, b),
            Op::SparseXent => softmax::sparse_xent_derivative(g, b),
            Op::Gather => index::gather_derivative(g, b),
            Op::Dropout { .. } => random::dropout_derivative(self, g, b),
            Op::BatchNorm(attrs) => norm::derivative(attrs, g, b),
            // Integers have no derivative, and metrics are not differentiated.
            Op::OneHot { .. } | Op::ArgMax | Op::InTopK { .. } | Op::ThresholdCounts { .. } => {
                Ok(vec![None; b.inputs.len()])
            }
            // The derivative of `BatchNorm` includes that of its statistics.
            Op::Moments | Op::BatchStats { .. } => Ok(vec![None]),
            Op::Cast { .. }
            | Op::Fused(_)
            | Op::SumRows
            | Op::AllReduce { .. }
            | Op::ReplicaMean
            | Op::UpsampleGrad { .. }
            | Op::AffineSampleGrad(_)
            | Op::DotGradInput
            | Op::DotGradKernel
            | Op::ConvGradInput(_)
            | Op::ConvGradKernel(_)
            | Op::PoolGrad(..)
            | Op::SparseXentGrad
            | Op::GatherGrad { .. }
            | Op::BatchNormGradSums(_)
            | Op::BatchNormGradInput(_) => Err(GraphError::NotDifferentiable {
                layer: g.scope_name(b.y).into(),
                op: self.name().into(),
            }),
        }
    }

    /// Number of operands; `None` if any number above zero is valid.
    fn arity(&self) -> Option<usize> {
        Some(match self {
            Op::Feed { .. } | Op::Param { .. } | Op::Const { .. } | Op::Uniform { .. } => 0,
            Op::Concat { .. } => return None,
            Op::Fused(tape) => tape.inputs.len(),
            Op::Dot(e) | Op::Conv(_, e) => 2 + usize::from(e.bias),
            Op::PoolGrad(PoolKind::Max, _) => 3,
            Op::Unary(_)
            | Op::Cast { .. }
            | Op::Broadcast { .. }
            | Op::Reduce { .. }
            | Op::SumRows
            | Op::Reshape { .. }
            | Op::Transpose { .. }
            | Op::Slice { .. }
            | Op::Pad { .. }
            | Op::Upsample { .. }
            | Op::UpsampleGrad { .. }
            | Op::Pool(..)
            | Op::PoolGrad(PoolKind::Average, _)
            | Op::Softmax
            | Op::LogSoftmax
            | Op::OneHot { .. }
            | Op::ArgMax
            | Op::Dropout { .. }
            | Op::Moments
            | Op::BatchStats { .. }
            | Op::AllReduce { .. }
            | Op::ReplicaMean => 1,
            Op::Binary(_)
            | Op::AffineSample(_)
            | Op::AffineSampleGrad(_)
            | Op::DotGradInput
            | Op::DotGradKernel
            | Op::ConvGradInput(_)
            | Op::ConvGradKernel(_)
            | Op::SparseXent
            | Op::Gather
            | Op::GatherGrad { .. }
            | Op::InTopK { .. } => 2,
            Op::Select | Op::SparseXentGrad | Op::ThresholdCounts { .. } => 3,
            Op::BatchNorm(_) => 4,
            Op::BatchNormGradSums(_) => 5,
            Op::BatchNormGradInput(_) => 6,
        })
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
            Op::Pad { before, after } => write!(f, " before={before:?} after={after:?}"),
            Op::Upsample { size, bilinear } | Op::UpsampleGrad { size, bilinear } => {
                write!(f, " {}x{}", size[0], size[1])?;
                if *bilinear { f.write_str(" bilinear") } else { Ok(()) }
            }
            Op::AffineSample(geom) | Op::AffineSampleGrad(geom) => write!(f, " {geom}"),
            Op::Dot(e) => e.fmt(f),
            Op::Conv(geom, e) => {
                write!(f, " {geom}")?;
                e.fmt(f)
            }
            Op::ConvGradInput(geom) | Op::ConvGradKernel(geom) => write!(f, " {geom}"),
            Op::Pool(_, geom) | Op::PoolGrad(_, geom) => write!(f, " {geom}"),
            Op::GatherGrad { vocab } => write!(f, " vocab={vocab}"),
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
            Op::AllReduce { scope } => write!(f, " over={scope}"),
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

/// A mismatch between the expected and the actual operand of `op`.
fn operand(op: &str, expected: impl Into<String>, got: &Type) -> GraphError {
    GraphError::mismatch(format!("input of {op}"), expected, got.to_string())
}

/// Fails unless the operand is float rows.
fn need_rows(op: &str, t: &Type) -> Result<()> {
    if t.is_rows() && t.dtype == DType::F32 {
        Ok(())
    } else {
        Err(operand(op, "float rows, one per sample", t))
    }
}

/// Fails unless the operand is integer rows.
fn need_index(op: &str, t: &Type) -> Result<()> {
    if t.is_rows() && t.dtype == DType::I32 {
        Ok(())
    } else {
        Err(operand(op, "integer rows, one per sample", t))
    }
}

/// Fails unless the operand is a reduced f32 value of the given dimensions.
fn need_reduced(op: &str, dims: &[usize], t: &Type) -> Result<()> {
    let reduced = matches!(t.space, Space::Mirrored | Space::Device);
    if reduced && t.dtype == DType::F32 && t.dims == dims {
        Ok(())
    } else {
        Err(operand(op, format!("mirrored f32{dims:?}"), t))
    }
}
