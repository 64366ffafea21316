use super::super::Rewriter;
use super::*;
use crate::ops::{Binary, Unary};
use crate::step::{Fetch, Gradient};
use crate::types::{DType, Scope, Space};

/// Two dense layers, the first partitioned by columns, the second by rows, as in a transformer; and their gradients.
fn step() -> Step {
    let mut g = Graph::new();
    let feed = g.add_feed("x", Type::rows([6]));
    let up = g.add_param("up", &[6, 8], true);
    let bias = g.add_param("bias", &[8], true);
    let down = g.add_param("down", &[8, 4], true);
    g.partition(up, 1);
    g.partition(down, 0);
    let (x, w, b, v) = (g.feed(feed), g.param(up), g.param(bias), g.param(down));
    let h = g.push(Op::Dot(Epilogue { bias: true, relu: true }), &[x, w, b]).unwrap();
    let y = g.push(Op::Dot(Epilogue { bias: false, relu: true }), &[h, v]).unwrap();
    let total = g.mean_row(y).unwrap();
    let sum = g.push(Op::SumRows, &[total]).unwrap();
    let sum = g.push(Op::AllReduce { scope: Scope::All }, &[sum]).unwrap();
    let mut step = Step::new("train", g);
    step.fetches =
        [(sum, "loss"), (y, "y")].map(|(node, name)| Fetch { name: name.into(), node }).into();
    let params: Vec<NodeId> = [w, b, v].into();
    let one = step.graph.scalar(1.0);
    let found = crate::autodiff::gradients(&mut step.graph, &[(total, one)], &params).unwrap();
    for (param, node) in [up, bias, down].into_iter().zip(found) {
        step.gradients.push(Gradient { param, node, l1: 0.0, l2: 0.0 });
    }
    step
}

fn conversions(step: &Step) -> Vec<NodeId> {
    step.graph.ids().filter(|id| matches!(step.graph.node(*id).op, Op::Model(_))).collect()
}

/// The step with the operand of a node in its place.
fn without(step: &Step, removed: NodeId) -> Step {
    let mut r = Rewriter::new(step);
    for id in step.graph.ids() {
        let node = step.graph.node(id);
        let inputs: Vec<NodeId> = node.inputs.iter().map(|x| r.get(*x)).collect();
        r.map[id.index()] = Some(match id == removed {
            true => inputs[0],
            false => r.graph.push_typed(node.op.clone(), inputs, node.ty.clone()),
        });
    }
    r.finish(step.clone())
}

#[test]
fn a_pair_of_dense_layers_is_summed_once() {
    let divided = partition(step(), 2).unwrap();
    let text = divided.graph.to_string();
    let ops = |name: &str| text.lines().filter(|l| l.contains(&format!("= {name}("))).count();
    // Forward the product with `down`; backward nothing, since the input needs no derivative.
    assert_eq!(ops("model_all_reduce_sum"), 1, "{text}");
    // The bias follows the units, and its gradient is joined.
    assert_eq!((ops("model_slice axis=0"), ops("model_all_gather axis=0")), (1, 1), "{text}");
    assert!(text.contains("param() \"up\" : mirrored f32[6,8/model]"), "{text}");
    assert!(text.contains(": rows partial(model) f32[4]"), "{text}");
}

#[test]
fn a_step_without_one_of_its_conversions_is_refused() {
    let divided = partition(step(), 2).unwrap();
    let found = conversions(&divided);
    assert!(found.len() >= 3);
    for id in found {
        let altered = without(&divided, id);
        assert!(altered.verify("test").is_err(), "{}", divided.graph.node(id).op);
    }
}

#[test]
fn parameters_that_cannot_be_cut_are_refused() {
    let error = |change: fn(&mut Graph)| {
        let mut step = step();
        change(&mut step.graph);
        partition(step, 4).unwrap_err().to_string()
    };
    let odd = error(|g| g.partition(ParamId(0), 0));
    assert_eq!(odd, "axis 0 of 'up': expected a multiple of the model axis, 4, received 6");
    let missing = error(|g| g.partition(ParamId(1), 1));
    assert_eq!(missing, "axis 1 of 'bias': expected one of its 1 axes, received 1");
    let mut g = Graph::new();
    let scores = g.add_param("scores", &[4, 8], true);
    g.partition(scores, 1);
    let scores = g.param(scores);
    let sorted = g.push(Op::ArgSort, &[scores]).unwrap();
    let mut step = Step::new("sort", g);
    step.fetches.push(Fetch { name: "order".into(), node: sorted });
    let error = partition(step, 2).unwrap_err().to_string();
    let expected = "axis 1 of 'scores': expected an axis that its ops can work on in parts";
    assert!(error.starts_with(expected), "{error}");
}

/// How an op on these operands shares its result; `None` if it refuses them.
fn shared(op: Op, x: &[(&[usize], ModelSpace)]) -> Option<ModelSpace> {
    let types: Vec<Type> =
        x.iter().map(|(dims, model)| Type::rows(*dims).with_model(*model)).collect();
    op.infer(&types.iter().collect::<Vec<_>>()).ok().map(|ty| ty.model)
}

#[test]
fn sums_over_the_model_axis_are_neither_forgotten_nor_counted_twice() {
    use ModelSpace::{Mirrored, Partial, Partitioned};
    let unary = |u, x| shared(Op::Unary(u), &[(&[4], x)]);
    let binary = |b, x, y| shared(Op::Binary(b), &[(&[4], x), (&[4], y)]);
    assert_eq!(unary(Unary::Relu, Partial), None);
    assert_eq!(unary(Unary::Neg, Partial), Some(Partial));
    assert_eq!(unary(Unary::Exp, Partitioned(0)), Some(Partitioned(0)));
    assert_eq!(binary(Binary::Add, Partial, Partial), Some(Partial));
    assert_eq!(binary(Binary::Add, Partial, Mirrored), None);
    assert_eq!(binary(Binary::Mul, Partial, Mirrored), Some(Partial));
    assert_eq!(binary(Binary::Mul, Partial, Partial), None);
    assert_eq!(binary(Binary::Add, Partitioned(0), Mirrored), None);
    assert_eq!(binary(Binary::Add, Partitioned(0), Partial), None);
    let sum = |x| shared(Op::Model(ModelOp::AllReduce(ReduceKind::Sum)), &[(&[4], x)]);
    assert_eq!((sum(Partial), sum(Mirrored), sum(Partitioned(0))), (Some(Mirrored), None, None));
    let reduce = |kind, x| shared(Op::Reduce { kind, axes: vec![0] }, &[(&[4, 2], x)]);
    assert_eq!(reduce(ReduceKind::Sum, Partitioned(0)), Some(Partial));
    assert_eq!(reduce(ReduceKind::Sum, Partitioned(1)), Some(Partitioned(1)));
    assert_eq!(reduce(ReduceKind::Max, Partitioned(0)), Some(ModelSpace::PartialMax));
    assert_eq!(reduce(ReduceKind::Max, Partial), None);
    assert_eq!(shared(Op::Softmax, &[(&[4, 2], Partitioned(1))]), None);
    assert_eq!(shared(Op::Softmax, &[(&[4, 2], Partitioned(0))]), Some(Partitioned(0)));
}

#[test]
fn reshapes_keep_the_outermost_axis_of_those_they_merge() {
    let reshape = |from: &[usize], axis, to: &[usize]| {
        shared(Op::Reshape { dims: to.to_vec() }, &[(from, ModelSpace::Partitioned(axis))])
    };
    assert_eq!(reshape(&[5, 4, 3], 1, &[5, 12]), Some(ModelSpace::Partitioned(1)));
    assert_eq!(reshape(&[5, 4, 3], 2, &[5, 12]), None);
    assert_eq!(reshape(&[5, 12], 1, &[5, 4, 3]), Some(ModelSpace::Partitioned(1)));
    assert_eq!(reshape(&[5, 12], 1, &[5, 1, 12]), Some(ModelSpace::Partitioned(2)));
    assert_eq!(reshape(&[4, 3], 0, &[12]), Some(ModelSpace::Partitioned(0)));
    assert_eq!(reshape(&[4, 3], 1, &[3, 4]), None);
}

#[test]
fn integers_and_statistics_are_shared_too() {
    let labels = Type::new(DType::I32, Space::Rows, [5]);
    let table = Type::mirrored([8, 4]).with_model(ModelSpace::Partitioned(0));
    let found = Op::Gather.infer(&[&table, &labels]).unwrap();
    assert_eq!((found.model, found.dims), (ModelSpace::Partial, vec![5, 4]));
    let wide = Type::mirrored([8, 4]).with_model(ModelSpace::Partitioned(1));
    assert_eq!(Op::Gather.infer(&[&wide, &labels]).unwrap().model, ModelSpace::Partitioned(1));
    let image = Type::rows([6, 6, 8]).with_model(ModelSpace::Partitioned(2));
    assert_eq!(Op::Moments.infer(&[&image]).unwrap().model, ModelSpace::Partitioned(1));
}
