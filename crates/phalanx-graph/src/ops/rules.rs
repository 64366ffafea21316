//! The shape rule, the derivative and the number of operands of every op. The rules themselves are in the
//! file of each family.

use super::{
    Backward, Binary, Cotangents, Op, PoolKind, Unary, collective, conv, cumulative, dot,
    elementwise, factors, index, layer_norm, layout, matmul, model, norm, pool, random, recurrent,
    reduce, sample, softmax, take,
};
use crate::error::{GraphError, Result};
use crate::graph::Graph;
use crate::types::{DType, ModelSpace, Space, Type};

impl Op {
    /// Infers the type of the result. Fails if the operands do not match or the result is too large.
    pub fn infer(&self, x: &[&Type]) -> Result<Type> {
        let mut ty = self.infer_shape(x)?;
        ty.check_limits()?;
        ty.model = factors::infer_model(self, x, &ty)?;
        Ok(ty)
    }

    /// Infers the type of the result from whole operands: shape rules do not see how the devices of a replica share them.
    fn infer_shape(&self, x: &[&Type]) -> Result<Type> {
        if x.iter().all(|t| t.model == ModelSpace::Mirrored) {
            return self.infer_unlimited(x);
        }
        let whole: Vec<Type> =
            x.iter().map(|t| (*t).clone().with_model(ModelSpace::Mirrored)).collect();
        self.infer_unlimited(&whole.iter().collect::<Vec<_>>())
    }

    /// Whether the derivative is zero wherever it is defined: comparisons, rounding, conversions, indices.
    pub fn is_flat(&self) -> bool {
        matches!(
            self,
            Op::Unary(Unary::Sign | Unary::Floor | Unary::Round)
                | Op::Binary(Binary::Gt | Binary::Ge | Binary::Eq)
                | Op::Cast { .. }
                | Op::ArgMax
                | Op::ArgSort
                | Op::InTopK { .. }
                | Op::OneHot { .. }
        )
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
            Op::Stride { axis, step } => layout::infer_stride(*axis, *step, x[0]),
            Op::Dilate { axis, step, len } => layout::infer_dilate(*axis, *step, *len, x[0]),
            Op::Pad { before, after } => layout::infer_pad(before, after, x[0]),
            Op::Upsample { size, .. } => layout::infer_upsample(*size, x[0]),
            Op::UpsampleGrad { size, .. } => layout::infer_upsample_grad(*size, x[0]),
            Op::AffineSample(geom) => sample::infer(geom, x[0], x[1]),
            Op::AffineSampleGrad(geom) => sample::infer_grad(geom, x[0], x[1]),
            Op::Dot(e) => dot::infer(*e, x),
            Op::DotGradInput => dot::infer_grad_input(x[0], x[1]),
            Op::DotGradKernel => dot::infer_grad_kernel(x[0], x[1]),
            Op::MatMul(c) => matmul::infer(c, x[0], x[1]),
            Op::Conv(geom, e) => conv::infer(geom, *e, x),
            Op::ConvGradInput(geom) => conv::infer_grad_input(geom, x[0], x[1]),
            Op::ConvGradKernel(geom) => conv::infer_grad_kernel(geom, x[0], x[1]),
            Op::Pool(_, geom) => pool::infer(geom, x[0]),
            Op::PoolGrad(_, geom) => pool::infer_grad(geom, x),
            Op::Softmax | Op::LogSoftmax => softmax::infer(x[0]),
            Op::SoftmaxGrad => softmax::infer_grad(x[0], x[1]),
            Op::SparseXent => softmax::infer_sparse_xent(x[0], x[1]),
            Op::SparseXentGrad => softmax::infer_sparse_xent_grad(x[0], x[1], x[2]),
            Op::Gather => index::infer_gather(x[0], x[1]),
            Op::GatherGrad { vocab } => index::infer_gather_grad(*vocab, x[0], x[1]),
            Op::Take(at) => take::infer(*at, x[0], x[1]),
            Op::TakeGrad { at, size, sum_rows } => {
                take::infer_grad(*at, *size, *sum_rows, x[0], x[1])
            }
            Op::Cumulative { axis, product, .. } => cumulative::infer(*axis, *product, x[0]),
            Op::ArgSort => index::infer_arg_sort(x[0]),
            Op::OneHot { depth } => index::infer_one_hot(*depth, x[0]),
            Op::ArgMax => index::infer_arg_max(x[0]),
            Op::InTopK { k } => index::infer_in_top_k(*k, x[0], x[1]),
            Op::ThresholdCounts { n } => index::infer_threshold_counts(*n, x),
            Op::Dropout { noise, .. } => random::infer_dropout(noise, x[0]),
            Op::Uniform { dims, .. } => random::infer_uniform(dims),
            Op::RowIndex => Ok(Type::new(DType::I32, Space::Rows, [])),
            Op::Moments => norm::infer_moments(x[0]),
            Op::BatchStats { scope, .. } => norm::infer_stats(*scope, x[0]),
            Op::BatchNorm(_) => norm::infer_batch_norm(x),
            Op::BatchNormGradSums(_) => norm::infer_grad_sums(x),
            Op::BatchNormGradInput(_) => norm::infer_grad_input(x),
            Op::LayerNorm(_) => layer_norm::infer(x[0]),
            Op::LayerNormGrad(_) => layer_norm::infer_grad(x[0], x[1]),
            Op::Recurrent(attrs) => recurrent::infer(attrs, x),
            Op::RecurrentGrad(attrs, more) => recurrent::infer_grad(attrs, *more, x),
            Op::AllReduce { scope } => collective::infer_all_reduce(*scope, x[0]),
            Op::ReplicaMean => collective::infer_replica_mean(x[0]),
            Op::Model(_) => Ok(x[0].clone()),
            Op::Parts(op) => model::infer_parts(*op, x[0]),
        }
    }

    /// Appends the derivative. The rule of each op is next to its definition.
    pub fn derivative(&self, g: &mut Graph, b: &Backward<'_>) -> Cotangents {
        match self {
            Op::Feed { .. }
            | Op::Param { .. }
            | Op::Const { .. }
            | Op::Uniform { .. }
            | Op::RowIndex => Ok(vec![]),
            Op::Unary(u) => elementwise::unary_derivative(*u, g, b),
            Op::Binary(op) => elementwise::binary_derivative(*op, g, b),
            Op::Select => elementwise::select_derivative(g, b),
            Op::Broadcast { .. } => reduce::broadcast_derivative(g, b),
            Op::Reduce { kind, axes } => reduce::reduce_derivative(*kind, axes, g, b),
            Op::SumRows => reduce::sum_rows_derivative(g, b),
            Op::AllReduce { scope } => collective::all_reduce_derivative(*scope, g, b),
            Op::Reshape { .. } => layout::reshape_derivative(g, b),
            Op::Transpose { perm } => layout::transpose_derivative(perm, g, b),
            Op::Concat { axis } => layout::concat_derivative(*axis, g, b),
            Op::Slice { axis, start, .. } => layout::slice_derivative(*axis, *start, g, b),
            Op::Stride { axis, step } => layout::stride_derivative(*axis, *step, g, b),
            Op::Dilate { axis, step, .. } => layout::dilate_derivative(*axis, *step, g, b),
            Op::Pad { before, .. } => layout::pad_derivative(before, g, b),
            Op::Upsample { size, bilinear } => layout::upsample_derivative(*size, *bilinear, g, b),
            Op::AffineSample(geom) => sample::derivative(geom, g, b),
            Op::Dot(e) => dot::derivative(*e, g, b),
            Op::DotGradInput => dot::grad_input_derivative(g, b),
            Op::MatMul(c) => matmul::derivative(c, g, b),
            Op::Conv(geom, e) => conv::derivative(geom, *e, g, b),
            Op::ConvGradInput(geom) => conv::grad_input_derivative(geom, g, b),
            Op::Pool(kind, geom) => pool::derivative(*kind, geom, g, b),
            Op::Softmax => softmax::softmax_derivative(g, b),
            Op::SoftmaxGrad => softmax::softmax_grad_derivative(g, b),
            Op::LogSoftmax => softmax::log_softmax_derivative(g, b),
            Op::SparseXent => softmax::sparse_xent_derivative(g, b),
            Op::Gather => index::gather_derivative(g, b),
            Op::GatherGrad { .. } => index::gather_grad_derivative(g, b),
            Op::Take(at) => take::derivative(*at, g, b),
            Op::Cumulative { axis, product, reverse } => {
                cumulative::derivative(*axis, *product, *reverse, g, b)
            }
            Op::Dropout { .. } => random::dropout_derivative(self, g, b),
            Op::LayerNorm(attrs) => layer_norm::derivative(attrs, g, b),
            Op::Recurrent(attrs) => recurrent::derivative(attrs, g, b),
            Op::BatchNorm(attrs) => norm::derivative(attrs, g, b),
            // Integers have no derivative, and metrics are not differentiated.
            Op::Cast { .. }
            | Op::OneHot { .. }
            | Op::ArgMax
            | Op::ArgSort
            | Op::InTopK { .. }
            | Op::ThresholdCounts { .. } => Ok(vec![None; b.inputs.len()]),
            // The derivative of `BatchNorm` includes that of its statistics.
            Op::Moments | Op::BatchStats { .. } => Ok(vec![None]),
            Op::Fused(_)
            | Op::ReplicaMean
            | Op::UpsampleGrad { .. }
            | Op::AffineSampleGrad(_)
            | Op::DotGradKernel
            | Op::ConvGradKernel(_)
            | Op::PoolGrad(..)
            | Op::SparseXentGrad
            | Op::TakeGrad { .. }
            | Op::BatchNormGradSums(_)
            | Op::BatchNormGradInput(_)
            | Op::LayerNormGrad(_)
            | Op::RecurrentGrad(..)
            | Op::Model(_)
            | Op::Parts(_) => Err(GraphError::NotDifferentiable {
                layer: g.layer_name(b.y).into(),
                op: self.name().into(),
            }),
        }
    }

    /// Number of operands; `None` if any number above zero is valid.
    fn arity(&self) -> Option<usize> {
        Some(match self {
            Op::Feed { .. }
            | Op::Param { .. }
            | Op::Const { .. }
            | Op::Uniform { .. }
            | Op::RowIndex => 0,
            Op::Concat { .. } => return None,
            Op::Fused(tape) => tape.inputs.len(),
            Op::Dot(e) | Op::Conv(_, e) => 2 + usize::from(e.bias),
            Op::PoolGrad(PoolKind::Max, _) => 3,
            Op::Recurrent(attrs) => attrs.operands().count,
            Op::RecurrentGrad(attrs, more) => attrs.grad_operands(*more).count,
            Op::Unary(_)
            | Op::Cast { .. }
            | Op::Broadcast { .. }
            | Op::Reduce { .. }
            | Op::SumRows
            | Op::Reshape { .. }
            | Op::Transpose { .. }
            | Op::Slice { .. }
            | Op::Stride { .. }
            | Op::Dilate { .. }
            | Op::Pad { .. }
            | Op::Upsample { .. }
            | Op::UpsampleGrad { .. }
            | Op::Pool(..)
            | Op::PoolGrad(PoolKind::Average, _)
            | Op::Softmax
            | Op::LogSoftmax
            | Op::OneHot { .. }
            | Op::ArgMax
            | Op::ArgSort
            | Op::Cumulative { .. }
            | Op::Dropout { .. }
            | Op::Moments
            | Op::BatchStats { .. }
            | Op::LayerNorm(_)
            | Op::AllReduce { .. }
            | Op::ReplicaMean
            | Op::Model(_)
            | Op::Parts(_) => 1,
            Op::Binary(_)
            | Op::AffineSample(_)
            | Op::AffineSampleGrad(_)
            | Op::DotGradInput
            | Op::DotGradKernel
            | Op::MatMul(_)
            | Op::ConvGradInput(_)
            | Op::ConvGradKernel(_)
            | Op::SoftmaxGrad
            | Op::SparseXent
            | Op::Gather
            | Op::GatherGrad { .. }
            | Op::Take(_)
            | Op::TakeGrad { .. }
            | Op::LayerNormGrad(_)
            | Op::InTopK { .. } => 2,
            Op::Select | Op::SparseXentGrad | Op::ThresholdCounts { .. } => 3,
            Op::BatchNorm(_) => 4,
            Op::BatchNormGradSums(_) => 5,
            Op::BatchNormGradInput(_) => 6,
        })
    }
}
