//! Comparison of every derivative of `phalanx-graph` with finite differences of the reference evaluator.
//!
//! A case builds a small graph. Its loss is `Σ output · seed` for a random seed; the graph's
//! gradient with respect to every float feed and parameter must equal the central difference in f64.

use phalanx_cpu::reference::{Value, evaluate};
use phalanx_graph::autodiff::gradients;
use phalanx_graph::ops::{
    Access, Backward, Binary, FillMode, Instr, ModelOp, PartsOp, PoolKind, ReduceKind, SampleGeom,
    Tape, Unary,
};
use phalanx_graph::{DType, Graph, GraphError, NodeId, Op, Scope, Space, Type};
use phalanx_testing::cases::*;
use std::collections::BTreeSet;

const ROWS: usize = 3;
const STEP: f64 = 1e-5;
const TOLERANCE: f64 = 1e-6;

/// The loss after changing one element of one operand by `by`.
fn loss(b: &Build, y: NodeId, seed: &[f64], at: Source, i: usize, by: f64) -> f64 {
    let mut moved = b.bindings.clone();
    let value = match at {
        Source::Feed(n) => &mut moved.feeds[n],
        Source::Param(n) => &mut moved.params[n],
    };
    value.floats_mut()[i] += by;
    let out = evaluate(&b.g, &[y], &moved, &b.context).remove(0);
    out.floats().iter().zip(seed).map(|(a, b)| a * b).sum()
}

/// Requesting one derivative at a time must not change it.
fn check_alone(b: &Build, y: NodeId, d: &Differentiated) {
    for ((x, _), together) in b.wrt.iter().zip(&d.found) {
        let mut alone = b.g.clone();
        let single = gradients(&mut alone, &[(y, d.seed)], &[*x]).expect("differentiable")[0];
        let value = |g: &Graph, id: Option<NodeId>| {
            id.map(|id| evaluate(g, &[id], &b.bindings, &b.context).remove(0))
        };
        assert_eq!(value(&alone, single), value(&b.g, *together), "requested alone");
    }
}

fn check(case: &Case) {
    let name = &case.name;
    let mut b = Build::new(name, ROWS);
    let y = (case.build)(&mut b);
    let whole = !b.g.ty(y).is_rows();
    let d = b.differentiate(y);
    check_alone(&b, y, &d);
    for ((x, source), found) in b.wrt.iter().zip(&d.found) {
        let ty = b.g.ty(*x).clone();
        let derivative = match found {
            Some(id) => {
                let id = *id;
                let space = match ty.space {
                    Space::Mirrored if !whole => Space::Partial,
                    other => other,
                };
                assert_eq!(*b.g.ty(id), Type { space, ..ty }, "{name}: type of the derivative");
                evaluate(&b.g, &[id], &b.bindings, &b.context).remove(0)
            }
            None => match source {
                Source::Feed(n) => Value::fill(b.bindings.feeds[*n].dims.clone(), 0.0),
                Source::Param(n) => Value::fill(b.bindings.params[*n].dims.clone(), 0.0),
            },
        };
        for (i, got) in derivative.floats().iter().enumerate() {
            let above = loss(&b, y, &d.numbers, *source, i, STEP);
            let below = loss(&b, y, &d.numbers, *source, i, -STEP);
            let want = (above - below) / (2.0 * STEP);
            let error = (got - want).abs() / want.abs().max(1.0);
            assert!(
                error < TOLERANCE,
                "{name}: derivative by %{} [{i}] is {got}, finite differences give {want}\n{}",
                x.0,
                b.g
            );
        }
    }
}

fn check_all(cases: Vec<Case>) {
    cases.iter().for_each(check);
}

#[test]
fn unary_derivatives() {
    check_all(unary_cases());
}

#[test]
fn binary_derivatives() {
    check_all(binary_cases());
}

#[test]
fn select_derivatives() {
    check_all(select_cases());
}

#[test]
fn reduce_derivatives() {
    check_all(reduce_cases());
}

#[test]
fn layout_derivatives() {
    check_all(layout_cases());
}

#[test]
fn dot_derivatives() {
    check_all(dot_cases());
}

#[test]
fn matmul_derivatives() {
    check_all(matmul_cases());
}

#[test]
fn conv_derivatives() {
    check_all(conv_cases());
}

#[test]
fn pool_derivatives() {
    check_all(pool_cases());
}

#[test]
fn softmax_derivatives() {
    check_all(softmax_cases());
}

#[test]
fn index_and_random_derivatives() {
    check_all(index_and_random_cases());
}

#[test]
fn function_derivatives() {
    check_all(function_cases());
}

#[test]
fn batch_sum_derivatives() {
    check_all(batch_sum_cases());
}

#[test]
fn sample_derivatives() {
    check_all(sample_cases());
}

#[test]
fn recurrent_derivatives() {
    check_all(recurrent_cases());
}

#[test]
fn batch_norm_derivatives() {
    check_all(norm_cases());
}

#[test]
fn derivatives_of_shared_nodes_add_up() {
    check_all(shared_cases());
}

/// The kind of an op's derivative.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    /// Has no operands.
    Leaf,
    /// Differentiable, and checked numerically.
    Smooth,
    /// Zero everywhere, or accounted for by another op.
    Flat,
    /// An error: the op is not differentiable.
    Refused,
}

/// Generates an exhaustive match over ops and a list of its entries from one table. A new op does not compile
/// without an entry, and its entry fails the tests without a case.
macro_rules! op_table {
    ($($pattern:pat => $name:literal, $kind:ident;)*) => {
        fn entry(op: &Op) -> (&'static str, Kind) {
            match op { $($pattern => ($name, Kind::$kind)),* }
        }
        const TABLE: &[(&str, Kind)] = &[$(($name, Kind::$kind)),*];
    };
}

op_table! {
    Op::Feed { .. } => "feed", Leaf;
    Op::Param { .. } => "param", Leaf;
    Op::Const { .. } => "const", Leaf;
    Op::Unary(Unary::Neg) => "neg", Smooth;
    Op::Unary(Unary::Abs) => "abs", Smooth;
    Op::Unary(Unary::Sign) => "sign", Flat;
    Op::Unary(Unary::Recip) => "recip", Smooth;
    Op::Unary(Unary::Square) => "square", Smooth;
    Op::Unary(Unary::Sqrt) => "sqrt", Smooth;
    Op::Unary(Unary::Rsqrt) => "rsqrt", Smooth;
    Op::Unary(Unary::Exp) => "exp", Smooth;
    Op::Unary(Unary::Expm1) => "expm1", Smooth;
    Op::Unary(Unary::Log) => "log", Smooth;
    Op::Unary(Unary::Log1p) => "log1p", Smooth;
    Op::Unary(Unary::Tanh) => "tanh", Smooth;
    Op::Unary(Unary::Sigmoid) => "sigmoid", Smooth;
    Op::Unary(Unary::Erf) => "erf", Smooth;
    Op::Unary(Unary::Relu) => "relu", Smooth;
    Op::Unary(Unary::Floor) => "floor", Flat;
    Op::Unary(Unary::Sin) => "sin", Smooth;
    Op::Unary(Unary::Cos) => "cos", Smooth;
    Op::Unary(Unary::Atan) => "atan", Smooth;
    Op::Unary(Unary::Round) => "round", Flat;
    Op::Binary(Binary::Add) => "add", Smooth;
    Op::Binary(Binary::Sub) => "sub", Smooth;
    Op::Binary(Binary::Mul) => "mul", Smooth;
    Op::Binary(Binary::Div) => "div", Smooth;
    Op::Binary(Binary::Max) => "max", Smooth;
    Op::Binary(Binary::Min) => "min", Smooth;
    Op::Binary(Binary::Pow) => "pow", Smooth;
    Op::Binary(Binary::Rem) => "rem", Smooth;
    Op::Binary(Binary::Gt) => "gt", Flat;
    Op::Binary(Binary::Ge) => "ge", Flat;
    Op::Binary(Binary::Eq) => "eq", Flat;
    Op::Select => "select", Smooth;
    Op::Fused(_) => "fused", Refused;
    Op::Cast { .. } => "cast", Flat;
    Op::Broadcast { .. } => "broadcast", Smooth;
    Op::Reduce { kind: ReduceKind::Sum, .. } => "reduce_sum", Smooth;
    Op::Reduce { kind: ReduceKind::Max, .. } => "reduce_max", Smooth;
    Op::SumRows => "sum_rows", Smooth;
    Op::Reshape { .. } => "reshape", Smooth;
    Op::Transpose { .. } => "transpose", Smooth;
    Op::Concat { .. } => "concat", Smooth;
    Op::Slice { .. } => "slice", Smooth;
    Op::Stride { .. } => "stride", Smooth;
    Op::Dilate { .. } => "dilate", Smooth;
    Op::Pad { .. } => "pad", Smooth;
    Op::Upsample { .. } => "upsample", Smooth;
    Op::UpsampleGrad { .. } => "upsample_grad", Refused;
    Op::AffineSample(_) => "affine_sample", Smooth;
    Op::AffineSampleGrad(_) => "affine_sample_grad", Refused;
    Op::Dot(_) => "dot", Smooth;
    Op::DotGradInput => "dot_grad_input", Smooth;
    Op::DotGradKernel => "dot_grad_kernel", Refused;
    Op::MatMul(_) => "matmul", Smooth;
    Op::Conv(..) => "conv", Smooth;
    Op::ConvGradInput(_) => "conv_grad_input", Smooth;
    Op::ConvGradKernel(_) => "conv_grad_kernel", Refused;
    Op::Pool(PoolKind::Max, _) => "max_pool", Smooth;
    Op::Pool(PoolKind::Average, _) => "average_pool", Smooth;
    Op::PoolGrad(PoolKind::Max, _) => "max_pool_grad", Refused;
    Op::PoolGrad(PoolKind::Average, _) => "average_pool_grad", Refused;
    Op::Softmax => "softmax", Smooth;
    Op::SoftmaxGrad => "softmax_grad", Smooth;
    Op::LogSoftmax => "log_softmax", Smooth;
    Op::SparseXent => "sparse_xent", Smooth;
    Op::SparseXentGrad => "sparse_xent_grad", Refused;
    Op::Gather => "gather", Smooth;
    Op::GatherGrad { .. } => "gather_grad", Smooth;
    Op::Take(_) => "take", Smooth;
    Op::TakeGrad { .. } => "take_grad", Refused;
    Op::Cumulative { product: false, .. } => "cumulative_sum", Smooth;
    Op::Cumulative { product: true, .. } => "cumulative_product", Smooth;
    Op::ArgSort => "arg_sort", Flat;
    Op::OneHot { .. } => "one_hot", Flat;
    Op::ArgMax => "arg_max", Flat;
    Op::InTopK { .. } => "in_top_k", Flat;
    Op::ThresholdCounts { .. } => "threshold_counts", Flat;
    Op::Dropout { .. } => "dropout", Smooth;
    Op::Uniform { .. } => "uniform", Leaf;
    Op::RowIndex => "row_index", Leaf;
    Op::Moments => "moments", Flat;
    Op::BatchStats { .. } => "batch_stats", Flat;
    Op::BatchNorm(_) => "batch_norm", Smooth;
    Op::BatchNormGradSums(_) => "batch_norm_grad_sums", Refused;
    Op::BatchNormGradInput(_) => "batch_norm_grad_input", Refused;
    Op::LayerNorm(_) => "layer_norm", Smooth;
    Op::LayerNormGrad(_) => "layer_norm_grad", Refused;
    Op::Recurrent(_) => "recurrent", Smooth;
    Op::RecurrentGrad(..) => "recurrent_grad", Refused;
    Op::AllReduce { .. } => "all_reduce", Smooth;
    Op::ReplicaMean => "replica_mean", Refused;
    Op::Model(_) => "model_slice", Refused;
    Op::Parts(_) => "slice_part", Refused;
}

fn all_cases() -> Vec<Case> {
    [
        unary_cases(),
        binary_cases(),
        select_cases(),
        reduce_cases(),
        layout_cases(),
        dot_cases(),
        matmul_cases(),
        conv_cases(),
        pool_cases(),
        softmax_cases(),
        index_and_random_cases(),
        function_cases(),
        batch_sum_cases(),
        sample_cases(),
        norm_cases(),
        recurrent_cases(),
        shared_cases(),
    ]
    .into_iter()
    .flatten()
    .collect()
}

#[test]
fn every_differentiable_op_has_a_case() {
    let mut seen = BTreeSet::new();
    for case in all_cases() {
        let mut b = Build::new(&case.name, ROWS);
        (case.build)(&mut b);
        seen.extend(b.g.nodes().iter().map(|n| n.op.name()));
    }
    let smooth = TABLE.iter().filter(|(_, kind)| *kind == Kind::Smooth);
    let missing: Vec<&str> = smooth.map(|(name, _)| *name).filter(|n| !seen.contains(n)).collect();
    assert!(missing.is_empty(), "differentiable, but in no case of this file: {missing:?}");
}

/// A graph of the ops that neither the cases nor their derivatives contain.
fn other_ops() -> Graph {
    let mut b = Build::new("other ops", ROWS);
    let x = b.rows(&[4]);
    let index = b.labels(&[], 4);
    b.push(Op::Cast { dtype: DType::I32 }, &[x]);
    b.push(Op::OneHot { depth: 3 }, &[index]);
    b.push(Op::ArgMax, &[x]);
    b.push(Op::InTopK { k: 2 }, &[x, index]);
    b.push(Op::ThresholdCounts { n: 3 }, &[x, x, x]);
    let sums = b.push(Op::SumRows, &[x]);
    let mean = b.push(Op::AllReduce { scope: Scope::Device }, &[sums]);
    b.push(Op::ReplicaMean, &[mean]);
    b.push(Op::Model(ModelOp::Slice { axis: 0 }), &[x]);
    b.push(Op::Parts(PartsOp::Slice { axis: 0, parts: 2 }), &[x]);
    let instrs = vec![Instr::Input(0), Instr::Unary(Unary::Tanh, 0)];
    b.push(Op::Fused(Tape { inputs: vec![Access::Full], instrs, outputs: vec![1] }), &[x]);
    b.g
}

/// Differentiates a node and compares the result with the table.
fn check_entry(g: &Graph, id: NodeId) {
    let node = g.node(id).clone();
    let (name, kind) = entry(&node.op);
    assert_eq!(name, node.op.name());
    let mut wanted: Vec<bool> = node.inputs.iter().map(|x| g.ty(*x).dtype == DType::F32).collect();
    if let Op::AffineSample(_) = node.op {
        wanted[1] = false;
    }
    let mut g = g.clone();
    // The cotangent of a sum over rows is reduced.
    let dy = match node.op {
        Op::SumRows | Op::GatherGrad { .. } => {
            g.push(Op::AllReduce { scope: Scope::All }, &[id]).expect("a partial sum")
        }
        _ => id,
    };
    let b = Backward { inputs: &node.inputs, y: id, dy, wanted: &wanted };
    match (kind, node.op.derivative(&mut g, &b)) {
        (Kind::Leaf, Ok(d)) => assert!(d.is_empty(), "{name}"),
        (Kind::Smooth, Ok(d)) => assert!(d.iter().any(Option::is_some), "{name} gives none"),
        (Kind::Flat, Ok(d)) => assert!(d.iter().all(Option::is_none), "{name} gives one"),
        (Kind::Refused, Err(GraphError::NotDifferentiable { op, .. })) => assert_eq!(op, name),
        (kind, answer) => panic!("{name}: {kind:?} expected, received {answer:?}"),
    }
}

#[test]
fn every_op_matches_the_table() {
    let mut graphs = vec![other_ops()];
    for case in all_cases() {
        let mut b = Build::new(&case.name, ROWS);
        let y = (case.build)(&mut b);
        b.differentiate(y);
        graphs.push(b.g);
    }
    let mut seen = BTreeSet::new();
    // Partial sums appear only in derivatives, so they come last.
    for partial in [false, true] {
        for g in &graphs {
            for id in g.ids().filter(|id| (g.ty(*id).space == Space::Partial) == partial) {
                if seen.insert(g.node(id).op.name()) {
                    check_entry(g, id);
                }
            }
        }
    }
    let listed: BTreeSet<&str> = TABLE.iter().map(|(name, _)| *name).collect();
    assert_eq!(seen, listed);
}

/// The derivative of `Σ y` with respect to the operands, in order.
fn derivative_of_sum(b: &mut Build, y: NodeId) -> Vec<Option<Vec<f64>>> {
    let ty = b.g.ty(y).clone();
    let full = [vec![ROWS], ty.dims.clone()].concat();
    let seed = b.feed(ty, Value::fill(full, 1.0));
    let wrt: Vec<NodeId> = b.wrt.iter().map(|(id, _)| *id).collect();
    let found = gradients(&mut b.g, &[(y, seed)], &wrt).expect("differentiable");
    let value = |id| evaluate(&b.g, &[id], &b.bindings, &b.context).remove(0).floats().to_vec();
    found.into_iter().map(|d| d.map(value)).collect()
}

#[test]
fn ties_are_shared() {
    for op in [Binary::Max, Binary::Min] {
        let mut b = Build::new("ties", ROWS);
        let (l, r) = (b.rows(&[]), b.rows(&[]));
        b.bindings.feeds[1] = b.bindings.feeds[0].clone();
        let y = b.g.binary(op, l, r).expect("fits");
        assert_eq!(derivative_of_sum(&mut b, y), vec![Some(vec![0.5; ROWS]); 2]);
    }
    let mut b = Build::new("ties", ROWS);
    let x = b.rows(&[4]);
    b.bindings.feeds[0] = Value::float([ROWS, 4], [1.0, 3.0, 2.0, 3.0].repeat(ROWS));
    let y = b.push(Op::Reduce { kind: ReduceKind::Max, axes: vec![0] }, &[x]);
    assert_eq!(derivative_of_sum(&mut b, y), [Some([0.0, 0.5, 0.0, 0.5].repeat(ROWS))]);
}

#[test]
fn inputs_without_influence_have_no_derivative() {
    let mut b = Build::new("no influence", ROWS);
    let (x, _unused, w) = (b.rows(&[2]), b.param(&[2]), b.param(&[2]));
    let y = b.g.mul(x, w).expect("fits");
    // Depends on the parameter, but only through its sign.
    let sign = b.g.unary(Unary::Sign, w).expect("fits");
    let z = b.g.mul(x, sign).expect("fits");
    let present = |d: Vec<Option<Vec<f64>>>| d.iter().map(Option::is_some).collect::<Vec<_>>();
    assert_eq!(present(derivative_of_sum(&mut b, y)), [true, false, true]);
    assert_eq!(present(derivative_of_sum(&mut b, z)), [true, false, false]);
}

#[test]
fn seeds_of_several_outputs_add_up() {
    let mut b = Build::new("several outputs", ROWS);
    let x = b.rows(&[2]);
    let y = b.g.scale(x, 3.0).expect("fits");
    let z = b.g.scale(y, 5.0).expect("fits");
    let d = gradients(&mut b.g, &[(y, x), (z, x)], &[x]).expect("differentiable");
    let d = evaluate(&b.g, &[d[0].expect("depends"), x], &b.bindings, &b.context);
    for (d, x) in d[0].floats().iter().zip(d[1].floats()) {
        assert!((d - 18.0 * x).abs() < 1e-12);
    }
}

#[test]
fn training_the_matrix_of_an_affine_map_is_refused() {
    let mut b = Build::new("trained map", ROWS);
    b.g.enter("transformer");
    let (x, matrix) = (b.rows(&[2, 2, 1]), b.rows(&[6]));
    let (input, output, fill) = ([2, 2, 1], [2, 2], FillMode::Wrap);
    let geom = SampleGeom { input, output, fill, fill_value: 0.0.into(), bilinear: true };
    let y = b.push(Op::AffineSample(geom), &[x, matrix]);
    gradients(&mut b.g, &[(y, y)], &[x]).expect("the image can be trained through");
    let error = gradients(&mut b.g, &[(y, y)], &[matrix]).expect_err("is refused");
    let text = "layer 'transformer': affine_sample by its matrix has no derivative";
    assert_eq!(error.to_string(), text);
}

#[test]
fn a_second_derivative_names_op_and_layer() {
    let mut b = Build::new("second derivative", ROWS);
    b.g.enter("larger");
    let x = b.rows(&[2, 2, 1]);
    let y = b.push(Op::Upsample { size: [2, 2], bilinear: false }, &[x]);
    let dx = gradients(&mut b.g, &[(y, y)], &[x]).expect("differentiable")[0].expect("depends");
    let error = gradients(&mut b.g, &[(dx, dx)], &[x]).expect_err("is refused");
    assert_eq!(error.to_string(), "layer 'larger': upsample_grad has no derivative");
}
