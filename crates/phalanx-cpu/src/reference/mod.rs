//! The reference evaluator: defines every op by plain loops in f64, for a single worker that holds all rows of
//! the batch. It favours clarity over speed. Kernels are tested against it, derivatives against its finite
//! differences.
//!
//! Every float is an f64 here, regardless of its type in the graph. So a comparison shows the rounding errors
//! of the kernel alone.

mod collective;
mod conv;
mod cumulative;
mod dot;
mod elementwise;
mod index;
mod layer_norm;
mod layout;
mod matmul;
mod norm;
mod pool;
mod random;
mod recurrent;
mod reduce;
mod sample;
mod softmax;
mod take;
#[cfg(test)]
mod tests;
mod value;

pub use elementwise::run_tape;
pub use value::{Data, Value};

use phalanx_graph::{Graph, Node, NodeId, Op, Type};

/// The inputs of a step other than its bindings.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Context {
    /// Number of samples in the batch.
    pub rows: usize,
    /// The seed of the run.
    pub seed: u64,
    /// The training step.
    pub step: u64,
}

/// The values of feeds and parameters, each in the order of the graph's table.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Bindings {
    /// By `FeedId`.
    pub feeds: Vec<Value>,
    /// By `ParamId`.
    pub params: Vec<Value>,
}

/// Evaluates `outputs` and everything they depend on, in the order of the graph.
///
/// # Panics
/// If a binding is missing or its shape differs from the table, or if the graph does not pass
/// `Graph::verify`.
pub fn evaluate(
    graph: &Graph,
    outputs: &[NodeId],
    bindings: &Bindings,
    ctx: &Context,
) -> Vec<Value> {
    let mut needed = vec![false; graph.nodes().len()];
    outputs.iter().for_each(|id| needed[id.index()] = true);
    for id in graph.ids().rev() {
        if needed[id.index()] {
            graph.node(id).inputs.iter().for_each(|x| needed[x.index()] = true);
        }
    }
    let mut values: Vec<Option<Value>> = vec![None; graph.nodes().len()];
    for id in graph.ids().filter(|id| needed[id.index()]) {
        let node = graph.node(id);
        let operand = |x: &NodeId| values[x.index()].as_ref().expect("operands come first");
        let x: Vec<&Value> = node.inputs.iter().map(operand).collect();
        let types: Vec<&Type> = node.inputs.iter().map(|x| graph.ty(*x)).collect();
        let value = evaluate_node(node, &x, &types, bindings, ctx);
        assert_eq!(value.dims, full_dims(&node.ty, ctx.rows), "%{} {}", id.0, node.op);
        values[id.index()] = Some(value);
    }
    outputs.iter().map(|id| values[id.index()].clone().expect("was needed")).collect()
}

/// The dimensions of a value over the whole batch: the rows first, if any.
fn full_dims(ty: &Type, rows: usize) -> Vec<usize> {
    let lead = if ty.is_rows() { vec![rows] } else { vec![] };
    [lead, ty.dims.clone()].concat()
}

fn evaluate_node(
    node: &Node,
    x: &[&Value],
    types: &[&Type],
    bindings: &Bindings,
    ctx: &Context,
) -> Value {
    let dims = full_dims(&node.ty, ctx.rows);
    // Attributes count axes within a row; values have the rows as axis 0.
    let lead = usize::from(node.ty.is_rows());
    match &node.op {
        Op::Feed { id } => bindings.feeds[id.index()].clone(),
        Op::Param { id } => bindings.params[id.index()].clone(),
        Op::Const { bits, .. } => Value::fill(dims, f64::from_bits(*bits)),
        Op::Unary(u) => elementwise::unary(*u, x[0]),
        Op::Binary(b) => elementwise::binary(*b, &node.ty, x, types, dims),
        Op::Select => elementwise::select(&node.ty, x, types, dims),
        Op::Fused(tape) => elementwise::fused(tape, x, dims),
        Op::Cast { dtype } => elementwise::cast(*dtype, x[0]),
        Op::Broadcast { .. } => reduce::broadcast(x[0], lead, dims),
        Op::Reduce { kind, axes } => reduce::reduce(*kind, axes, lead, x[0], dims),
        Op::SumRows => reduce::sum_rows(x[0], dims),
        Op::Reshape { .. } => layout::reshape(x[0], dims),
        Op::Transpose { perm } => layout::transpose(perm, lead, x[0], dims),
        Op::Concat { axis } => layout::concat(axis + lead, x, dims),
        Op::Slice { axis, start, .. } => layout::slice(axis + lead, *start, x[0], dims),
        Op::Stride { axis, step } => layout::stride(axis + lead, *step, x[0], dims),
        Op::Dilate { axis, step, .. } => layout::dilate(axis + lead, *step, x[0], dims),
        Op::Pad { before, .. } => layout::pad(before, lead, x[0], dims),
        Op::Upsample { size, bilinear } => layout::upsample(*size, *bilinear, x[0], dims),
        Op::UpsampleGrad { size, bilinear } => layout::upsample_grad(*size, *bilinear, x[0], dims),
        Op::AffineSample(geom) => sample::affine(geom, x[0], x[1], dims),
        Op::AffineSampleGrad(geom) => sample::affine_grad(geom, x[0], x[1], dims),
        Op::Dot(e) => dot::dot(*e, x, dims),
        Op::DotGradInput => dot::grad_input(x[0], x[1], dims),
        Op::DotGradKernel => dot::grad_kernel(x[0], x[1], dims),
        Op::MatMul(c) => matmul::matmul(c, x, types, dims),
        Op::Conv(geom, e) => conv::conv(geom, *e, x, dims),
        Op::ConvGradInput(geom) => conv::grad_input(geom, x[0], x[1], dims),
        Op::ConvGradKernel(geom) => conv::grad_kernel(geom, x[0], x[1], dims),
        Op::Pool(kind, geom) => pool::pool(*kind, geom, x[0], dims),
        Op::PoolGrad(kind, geom) => pool::grad(*kind, geom, x, dims),
        Op::Softmax => softmax::softmax(x[0]),
        Op::SoftmaxGrad => softmax::softmax_grad(x[0], x[1]),
        Op::LogSoftmax => softmax::log_softmax(x[0]),
        Op::SparseXent => softmax::sparse_xent(x[0], x[1], dims),
        Op::SparseXentGrad => softmax::sparse_xent_grad(x[0], x[1], x[2]),
        Op::Gather => index::gather(x[0], x[1], dims),
        Op::GatherGrad { .. } => index::gather_grad(x[0], x[1], dims),
        Op::Take(at) => take::take(*at, x, types, dims),
        Op::TakeGrad { at, .. } => take::take_grad(*at, x, types, dims),
        Op::Cumulative { axis, product, reverse } => {
            cumulative::cumulative(axis + lead, *product, *reverse, x[0])
        }
        Op::ArgSort => index::arg_sort(x[0], dims),
        Op::OneHot { depth } => index::one_hot(*depth, x[0], dims),
        Op::ArgMax => index::arg_max(x[0], dims),
        Op::InTopK { k } => index::in_top_k(*k, x[0], x[1], dims),
        Op::ThresholdCounts { n } => index::threshold_counts(*n, x, dims),
        Op::Dropout { rate, key, noise } => random::dropout(rate.get(), *key, noise, x[0], ctx),
        Op::Uniform { key, .. } => random::uniform(*key, dims, ctx),
        Op::RowIndex => index::row_index(dims),
        Op::Moments => norm::moments(x[0], dims),
        Op::BatchStats { positions, .. } => norm::batch_stats(ctx.rows * positions, x[0]),
        Op::BatchNorm(attrs) => norm::batch_norm(attrs, x),
        Op::BatchNormGradSums(attrs) => norm::grad_sums(attrs, x, dims),
        Op::BatchNormGradInput(attrs) => norm::grad_input(attrs, x),
        Op::LayerNorm(attrs) => layer_norm::layer_norm(attrs, x[0]),
        Op::LayerNormGrad(attrs) => layer_norm::layer_norm_grad(attrs, x[0], x[1]),
        Op::Recurrent(attrs) => recurrent::recurrent(attrs, x, dims),
        Op::RecurrentGrad(attrs, more) => recurrent::grad(attrs, *more, x, dims),
        Op::AllReduce { .. } => collective::all_reduce(x[0]),
        Op::ReplicaMean => collective::replica_mean(x[0]),
        Op::Model(_) | Op::Parts(_) => collective::model(x[0]),
    }
}
