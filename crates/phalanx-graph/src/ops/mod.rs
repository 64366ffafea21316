//! The op set. The attributes, shape rule and derivative of each op are in the file of its family; this
//! file lists the ops, and `rules.rs` dispatches to those files. The matches have no default arm, so a new
//! op does not compile until every case is handled.

pub mod collective;
pub mod conv;
pub mod cumulative;
pub mod dot;
pub mod elementwise;
pub mod factors;
pub mod index;
pub mod layer_norm;
pub mod layout;
pub mod matmul;
pub mod model;
pub mod norm;
pub mod pool;
mod print;
pub mod random;
pub mod recurrent;
pub mod reduce;
mod rules;
pub mod sample;
pub mod softmax;
pub mod take;

pub use elementwise::{Access, Binary, Instr, Tape, Unary};
pub use layer_norm::LayerNormAttrs;
pub use matmul::Contraction;
pub use model::{ModelOp, PartsOp};
pub use pool::PoolKind;
pub use recurrent::{RecurrentAttrs, RecurrentCell};
pub use reduce::ReduceKind;
pub use sample::{FillMode, SampleGeom};
pub use take::TakeAxis;

use crate::error::{GraphError, Result};
use crate::geometry::ConvGeom;
use crate::graph::{FeedId, NodeId, ParamId};
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
    /// Conversion to an element type, without derivative: a conversion to the own type stops gradients.
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
    /// Every `step`-th element along an axis, from the first on; from the last back if `step` is negative.
    Stride { axis: usize, step: isize },
    /// Derivative of `Stride` of an axis of `len` elements: its operand's elements with zeros between.
    Dilate { axis: usize, step: isize, len: usize },
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

    /// Product of two values, axis by axis; operands `left, right`.
    MatMul(Contraction),

    /// Convolution, NHWC; operands `x, w[kh, kw, c/groups, f]` and, if the epilogue has one, `bias`.
    Conv(ConvGeom, Epilogue),
    /// Derivative of `Conv` with respect to `x`, also a transposed convolution; operands `dy, w`.
    ConvGradInput(ConvGeom),
    /// Derivative of `Conv` with respect to `w`; operands `x, dy`.
    ConvGradKernel(ConvGeom),

    /// Pooling over windows; the geometry has as many output as input channels.
    Pool(PoolKind, ConvGeom),
    /// Derivative of `Pool`; operands `x, y, dy` (max) or `dy` (average).
    PoolGrad(PoolKind, ConvGeom),

    /// Softmax over the last axis.
    Softmax,
    /// Derivative of `Softmax`; operands `y, dy`.
    SoftmaxGrad,
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
    /// Elements at positions along an axis; operands `x, index`. Positions below zero count from the end,
    /// and positions outside give NaN.
    Take(TakeAxis),
    /// Derivative of `Take` with respect to `x`, whose axis has `size` elements; operands `index, dy`.
    TakeGrad { at: TakeAxis, size: usize, sum_rows: bool },
    /// Sum (or product) of the elements up to each one along an axis, or of those from it on if reversed.
    Cumulative { axis: usize, product: bool, reverse: bool },
    /// The positions that sort the last axis: stable, NaN last.
    ArgSort,
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
    /// The index of each sample in the global batch.
    RowIndex,

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

    /// Normalises the vectors along the last axis: `(x - mean) / √(variance + epsilon)`.
    LayerNorm(LayerNormAttrs),
    /// Derivative of `LayerNorm`; operands `x, dy`.
    LayerNormGrad(LayerNormAttrs),

    /// A recurrent cell over a sequence; operands `x[steps, gates · units]`, already multiplied by its kernel,
    /// `kernel[units, gates · units]`, then, as its attributes say, `bias`, the initial states `[units]` and
    /// `mask[steps]`. The result has the states of every step, and what the derivative needs.
    Recurrent(RecurrentAttrs),
    /// Derivative of `Recurrent` with respect to the gates; operands `y` with all it keeps, `kernel`, the initial
    /// states, `mask`, and the cotangents of `h` and, if any, of `c`.
    RecurrentGrad(RecurrentAttrs, bool),

    /// Sums partial sums over the workers of a scope, in index order.
    AllReduce { scope: Scope },
    /// Mean of per-device values, weighted by each device's rows.
    ReplicaMean,

    /// Changes how the devices of a replica share a value, whose dimensions are those of the whole. The pass `partition`
    /// inserts it.
    Model(ModelOp),
    /// Exchanges or selects parts, whose dimensions are those of the parts. Only programs have it.
    Parts(PartsOp),
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

/// Fails unless the operand is float rows or reduced floats.
fn need_values(op: &str, t: &Type) -> Result<()> {
    if t.space != Space::Partial && t.dtype == DType::F32 {
        Ok(())
    } else {
        Err(operand(op, "floats, already reduced", t))
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
