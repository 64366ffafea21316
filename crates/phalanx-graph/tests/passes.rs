//! Tests of the passes, the lowering and the memory plan, without an executor.
//!
//! `UPDATE_SNAPSHOTS=1 cargo test -p phalanx-graph` rewrites the printed programs.

mod fusion;
mod model_axis;
mod networks;
mod precision;
mod printed;

use networks::{cnn, even_cnn, mlp, momentum, odd, scaled_cnn, scaled_mlp, transformer};
use phalanx_graph::autodiff::gradients;
use phalanx_graph::ops::{BatchNormAttrs, Binary, Epilogue, Unary};
use phalanx_graph::passes::{fuse_epilogues, simplify};
use phalanx_graph::program::{Instr, Location, Policy, SplitRules};
use phalanx_graph::{
    ConvGeom, Fetch, Gradient, Graph, Mesh, NodeId, Op, Options, Padding, ParamId, Program, Scope,
    Step, Type, Window,
};

const ONE: Mesh = Mesh::new(1, 1);
const TWO: Mesh = Mesh::new(1, 2);

/// Rules under which workers share work in every way.
const RULES: SplitRules = SplitRules {
    min_rows_per_worker: 1,
    min_floats_saved_by_gradient: 1,
    min_floats_saved_by_product: 4096,
};

fn rows(g: &mut Graph, dims: &[usize]) -> NodeId {
    let id = g.add_feed("x", Type::rows(dims));
    g.feed(id)
}

fn param(g: &mut Graph, name: &str, dims: &[usize]) -> NodeId {
    let id = g.add_param(name, dims, true);
    g.param(id)
}

/// A step that fetches nodes.
fn fetching(g: Graph, nodes: &[NodeId]) -> Step {
    let mut step = Step::new("test", g);
    for node in nodes {
        step.fetches.push(Fetch { name: format!("%{}", node.0), node: *node });
    }
    step
}

fn compile(step: Step, mesh: Mesh, max_batch: usize) -> Program {
    let options = Options { split_rules: RULES, ..Options::new(mesh, max_batch) };
    Program::compile(step, options).expect("compiles")
}

fn names(step: &Step) -> Vec<&'static str> {
    step.graph.nodes().iter().map(|n| n.op.name()).collect()
}

fn count(program: &Program, wanted: impl Fn(&Instr) -> bool) -> usize {
    program.instrs().iter().filter(|i| wanted(i)).count()
}

fn computes(program: &Program, name: &str) -> usize {
    count(program, |i| matches!(i, Instr::Compute { op, .. } if op.name() == name))
}

fn copies(program: &Program) -> usize {
    count(program, |i| matches!(i, Instr::Copy { .. }))
}

#[test]
fn constants_are_folded() {
    let mut g = Graph::new();
    let x = rows(&mut g, &[3]);
    let (two, three) = (g.scalar(2.0), g.fill(3.0, &[3]));
    let six = g.mul(two, three).unwrap();
    let root = g.unary(Unary::Sqrt, six).unwrap();
    let y = g.add(x, root).unwrap();
    let step = simplify(fetching(g, &[y]));
    assert_eq!(names(&step), ["feed", "const", "add"]);
    let expected = Op::Const { bits: 6f64.sqrt().to_bits(), dims: vec![3] };
    assert_eq!(step.graph.nodes()[1].op, expected);
}

#[test]
fn nan_propagates_when_folded() {
    for op in [Binary::Max, Binary::Min] {
        let mut g = Graph::new();
        let (nan, one) = (g.scalar(f64::NAN), g.scalar(1.0));
        let (l, r) = (g.binary(op, nan, one).unwrap(), g.binary(op, one, nan).unwrap());
        let relu = g.relu(nan).unwrap();
        let step = simplify(fetching(g, &[l, r, relu]));
        for f in &step.fetches {
            let Op::Const { bits, .. } = step.graph.node(f.node).op else {
                panic!("not folded:\n{step}")
            };
            assert!(f64::from_bits(bits).is_nan());
        }
    }
}

#[test]
fn identities_are_removed() {
    let mut g = Graph::new();
    let x = rows(&mut g, &[2, 3]);
    let (zero, one, ones) = (g.scalar(0.0), g.scalar(1.0), g.fill(1.0, &[4, 2, 3]));
    let mut y = g.add(zero, x).unwrap();
    y = g.sub(y, zero).unwrap();
    y = g.mul(one, y).unwrap();
    y = g.div(y, one).unwrap();
    y = g.push(Op::Transpose { perm: vec![0, 1] }, &[y]).unwrap();
    y = g.push(Op::Reshape { dims: vec![2, 3] }, &[y]).unwrap();
    y = g.neg(y).unwrap();
    y = g.neg(y).unwrap();
    // Repeats its operand four times, so it cannot be replaced by the operand.
    let wide = g.push(Op::Broadcast { dims: vec![4, 2, 3] }, &[x]).unwrap();
    let wide = g.mul(wide, ones).unwrap();
    let step = simplify(fetching(g, &[y, wide]));
    assert_eq!(names(&step), ["feed", "broadcast"], "{step}");
}

#[test]
fn repeated_and_dead_computation_is_removed() {
    let mut g = Graph::new();
    let x = rows(&mut g, &[3]);
    let a = g.unary(Unary::Tanh, x).unwrap();
    let b = g.unary(Unary::Tanh, x).unwrap();
    let unused = g.unary(Unary::Exp, x).unwrap();
    g.neg(unused).unwrap();
    let y = g.mul(a, b).unwrap();
    let step = simplify(fetching(g, &[y]));
    assert_eq!(names(&step), ["feed", "tanh", "mul"]);
    assert_eq!(step.graph.nodes()[2].inputs, [NodeId(1), NodeId(1)]);
}

/// `relu(product + bias)` of a dot and a convolution.
fn products(extra_user: bool) -> Step {
    let mut g = Graph::new();
    let x = rows(&mut g, &[4, 4, 3]);
    let geom = ConvGeom::new([4, 4, 3], 5, Window::new([3, 3], [1, 1], Padding::Same)).unwrap();
    let kernels = [param(&mut g, "conv", &geom.kernel_dims()), param(&mut g, "dot", &[3, 5])];
    let ops = [Op::Conv(geom, Epilogue::default()), Op::Dot(Epilogue::default())];
    let mut fetched = vec![];
    for (op, w) in ops.into_iter().zip(kernels) {
        let y = g.push(op, &[x, w]).unwrap();
        let bias = param(&mut g, "bias", &[5]);
        let sum = g.add(y, bias).unwrap();
        fetched.push(g.relu(sum).unwrap());
        if extra_user {
            fetched.push(sum);
        }
    }
    fuse_epilogues(fetching(g, &fetched))
}

#[test]
fn bias_and_relu_are_fused_into_the_product() {
    let step = products(false);
    let with = Epilogue { bias: true, relu: true };
    let fused = |n: &&phalanx_graph::Node| matches!(n.op, Op::Conv(_, e) | Op::Dot(e) if e == with);
    assert_eq!(step.graph.nodes().iter().filter(fused).count(), 2, "{step}");
    assert!(!names(&step).contains(&"add") && !names(&step).contains(&"relu"), "{step}");
    step.verify("test").unwrap();
}

#[test]
fn relu_is_not_fused_into_a_product_with_other_users() {
    let step = products(true);
    assert_eq!(names(&step).iter().filter(|n| **n == "relu").count(), 2, "{step}");
    assert!(!names(&step).contains(&"add"), "{step}");
}

#[test]
fn relu_is_fused_into_batch_normalisation() {
    for other_user in [false, true] {
        let mut g = Graph::new();
        let x = rows(&mut g, &[3]);
        let stats = param(&mut g, "stats", &[2, 3]);
        let (gamma, beta) = (param(&mut g, "gamma", &[3]), param(&mut g, "beta", &[3]));
        let attrs = BatchNormAttrs { epsilon: 1e-3.into(), relu: false, scope: Scope::All };
        let y = g.push(Op::BatchNorm(attrs), &[x, stats, gamma, beta]).unwrap();
        let z = g.relu(y).unwrap();
        let fetched = if other_user { vec![z, y] } else { vec![z] };
        let step = fuse_epilogues(fetching(g, &fetched));
        assert_eq!(names(&step).contains(&"relu"), other_user, "{step}");
    }
}

#[test]
fn gradients_are_reduced_in_buckets() {
    // 1 MiB, 2 MiB and 4 MiB kernels; backward completes the last one first.
    let step = mlp(&[512, 512, 1024, 1024, 5], momentum(None), (0.0, 0.0));
    let program = compile(step, ONE, 4);
    let update = program.update().unwrap();
    let name = |i: usize| program.params()[update.gradients[i].param.index()].name.as_str();
    let buckets: Vec<Vec<&str>> =
        update.buckets.iter().map(|b| b.clone().map(name).collect()).collect();
    assert_eq!(buckets.concat().len(), 8, "every gradient is in one bucket: {buckets:?}");
    assert!(buckets[0].contains(&"dense_3/kernel") && buckets[0].contains(&"dense_2/kernel"));
    assert!(buckets[1].contains(&"dense_1/kernel") && buckets[1].contains(&"dense_0/kernel"));
    assert_eq!(buckets.len(), 2, "{buckets:?}");
}

#[test]
fn concatenating_channels_needs_no_copy() {
    let step = cnn(Scope::All, false, momentum(None), (0.0, 0.0));
    let program = compile(step, TWO, 8);
    assert_eq!((copies(&program), computes(&program, "concat")), (0, 0), "{program}");
    // Neither does slicing the derivative; only the sums of batch normalisation are sliced by a kernel.
    let rows_cut = count(&program, |i| match i {
        Instr::Compute { op: Op::Slice { .. }, output, .. } => program.value(*output).ty.is_rows(),
        _ => false,
    });
    assert_eq!(rows_cut, 0, "{program}");
    let strided = program.values().iter().filter(|v| !v.contiguous()).count();
    assert!(strided >= 4, "both branches and both derivatives are views: {program}");
}

#[test]
fn operands_that_cannot_be_views_are_copied() {
    let mut g = Graph::new();
    let x = rows(&mut g, &[2, 3]);
    let a = g.relu(x).unwrap();
    // A feed cannot be moved, and a value cannot have two locations.
    let concat = g.push(Op::Concat { axis: 1 }, &[x, a, a]).unwrap();
    let again = g.push(Op::Concat { axis: 1 }, &[a, concat]).unwrap();
    let program = compile(fetching(g, &[concat, again]), ONE, 4);
    assert_eq!(copies(&program), 4, "{program}");
    assert_eq!(computes(&program, "concat"), 0, "{program}");
}

/// `relu(x)`, a product of it, and a product of that, concatenated in the given order.
fn concatenated_chain(order: &[usize], conv: bool) -> Program {
    let mut g = Graph::new();
    let x = rows(&mut g, &[4, 4, 3]);
    let mut parts = vec![g.relu(x).unwrap()];
    for i in 0..2 {
        let name = format!("w{i}");
        let (op, dims) = if conv {
            let geom = ConvGeom::new([4, 4, 3], 3, Window::new([3, 3], [1, 1], Padding::Same));
            let geom = geom.unwrap();
            let dims = geom.kernel_dims().to_vec();
            (Op::Conv(geom, Epilogue::default()), dims)
        } else {
            (Op::Dot(Epilogue::default()), vec![3, 3])
        };
        let w = param(&mut g, &name, &dims);
        parts.push(g.push(op, &[parts[i], w]).unwrap());
    }
    let inputs: Vec<NodeId> = order.iter().map(|i| parts[*i]).collect();
    let concat = g.push(Op::Concat { axis: 2 }, &inputs).unwrap();
    compile(fetching(g, &[concat]), ONE, 4)
}

#[test]
fn products_do_not_share_a_buffer_with_their_operands() {
    for conv in [false, true] {
        // The first product is copied into the result. The second one reads the source of that copy, so
        // it can be a view again.
        for order in [&[0, 1][..], &[1, 0], &[0, 1, 2], &[2, 1, 0], &[1, 2, 0]] {
            let program = concatenated_chain(order, conv);
            assert_eq!(copies(&program), 1, "{order:?}: {program}");
            for instr in program.instrs() {
                let Instr::Compute { op: Op::Dot(_) | Op::Conv(..), inputs, output, .. } = instr
                else {
                    continue;
                };
                let locations = [inputs[0], *output].map(|id| program.value(id).location);
                assert_ne!(locations[0], locations[1], "{order:?}: {program}");
            }
        }
        // Without its operand in the same buffer, a product writes directly into the result.
        assert_eq!(copies(&concatenated_chain(&[0, 2], conv)), 0);
    }
}

#[test]
fn elementwise_ops_may_share_a_buffer_with_their_operands() {
    let mut g = Graph::new();
    let x = rows(&mut g, &[2, 3]);
    let a = g.relu(x).unwrap();
    let b = g.unary(Unary::Tanh, a).unwrap();
    let concat = g.push(Op::Concat { axis: 1 }, &[b, a]).unwrap();
    let program = compile(fetching(g, &[concat]), ONE, 4);
    assert_eq!(copies(&program), 0, "{program}");
}

fn arena(program: &Program, id: phalanx_graph::program::ValueId) -> Option<usize> {
    match program.value(id).location {
        Location::Arena(at) => Some(at),
        _ => None,
    }
}

#[test]
fn elementwise_ops_work_in_place() {
    let mut g = Graph::new();
    let x = rows(&mut g, &[8]);
    let w = param(&mut g, "w", &[8, 8]);
    let mut y = g.push(Op::Dot(Epilogue::default()), &[x, w]).unwrap();
    y = g.unary(Unary::Tanh, y).unwrap();
    let noise = vec![8];
    y = g.push(Op::Dropout { rate: 0.5.into(), key: 0, noise }, &[y]).unwrap();
    y = g.relu(y).unwrap();
    let program = compile(fetching(g, &[y]), ONE, 16);
    assert_eq!(program.memory().arena, 16 * 8 * 4, "{program}");
    for instr in &program.instrs()[1..] {
        if let Instr::Compute { inputs, output, .. } = instr {
            assert_eq!(arena(&program, inputs[0]), arena(&program, *output), "{program}");
        }
    }
}

#[test]
fn a_deep_chain_reuses_its_memory() {
    let mut g = Graph::new();
    let mut y = rows(&mut g, &[16]);
    for i in 0..20 {
        let w = param(&mut g, &format!("w{i}"), &[16, 16]);
        y = g.push(Op::Dot(Epilogue { bias: false, relu: true }), &[y, w]).unwrap();
    }
    let program = compile(fetching(g, &[y]), ONE, 32);
    let buffer = 32 * 16 * 4;
    assert_eq!(
        (program.memory().arena, program.memory().unplanned),
        (2 * buffer, 20 * buffer),
        "{program}"
    );
}

/// Whether there is a device barrier between the last barrier over all workers and the update.
fn barrier_before_update(program: &Program) -> bool {
    let at = program.instrs().iter().position(|i| *i == Instr::Update).unwrap();
    let all = program.instrs().iter().rposition(|i| *i == Instr::Barrier(Scope::All)).unwrap();
    program.instrs()[all + 1..at].contains(&Instr::Barrier(Scope::Device))
}

#[test]
fn weights_are_read_before_others_update_them() {
    let mut step = mlp(&[4, 5], momentum(None), (0.0, 0.0));
    assert!(!barrier_before_update(&compile(step.clone(), TWO, 64)));
    let weight = step.graph.param(step.gradients[0].param);
    step.fetches.push(Fetch { name: "weight".into(), node: weight });
    let program = compile(step, TWO, 64);
    assert!(barrier_before_update(&program), "{program}");
}

#[test]
fn gradients_without_an_optimizer_are_not_computed() {
    let mut g = Graph::new();
    let x = rows(&mut g, &[4]);
    let w = param(&mut g, "w", &[4, 4]);
    let y = g.push(Op::Dot(Epilogue::default()), &[x, w]).unwrap();
    let found = gradients(&mut g, &[(y, y)], &[w]).unwrap();
    let mut step = fetching(g, &[y]);
    let Op::Param { id } = step.graph.node(w).op else { unreachable!() };
    step.gradients.push(Gradient { param: id, node: found[0], l1: 0.0, l2: 0.0 });
    let program = compile(step, ONE, 4);
    assert_eq!(computes(&program, "dot_grad_kernel"), 0, "{program}");
}

#[test]
fn gradients_reach_their_buffers() {
    let program = compile(odd(momentum(None)), ONE, 4);
    let written = |i: &Instr| match i {
        Instr::Copy { output, .. } => {
            matches!(program.value(*output).location, Location::Gradient(_))
        }
        _ => false,
    };
    // "a" and "b" share one gradient, and the gradient of the last bias is also fetched; the others are
    // computed directly in their gradient buffer.
    assert_eq!(count(&program, written), 3, "{program}");
    let direct = |i: &Instr| match i {
        Instr::Compute { output, .. } => {
            matches!(program.value(*output).location, Location::Gradient(_))
        }
        _ => false,
    };
    assert_eq!(count(&program, direct), program.params().len() - 3, "{program}");
}

#[test]
fn the_loss_scale_is_read_before_the_update_and_fetched_after_it() {
    for step in [
        scaled_mlp(&[6, 8, 5], momentum(None), (0.0, 0.0), 2000),
        scaled_cnn(Scope::Device, momentum(None), (0.0, 0.0), 2000),
    ] {
        let state = step.loss_scale.expect("scaled").state;
        for (mesh, policy) in [(TWO, Policy::Float32), (ONE, Policy::MixedFloat16)] {
            let options = Options { policy, split_rules: RULES, ..Options::new(mesh, 8) };
            let program = Program::compile(step.clone(), options).expect("compiles");
            let reads = |i: &Instr| match i {
                Instr::Compute { inputs, .. } => {
                    inputs.iter().any(|x| program.value(*x).location == Location::Param(state))
                }
                _ => false,
            };
            let at = |wanted: &dyn Fn(&Instr) -> bool| program.instrs().iter().position(wanted);
            let update = at(&|i| *i == Instr::Update).expect("an update");
            assert!(at(&reads).expect("a reader") < update, "{program}");
            let fetched = |i: &Instr| match i {
                Instr::Fetch { value, .. } => {
                    program.value(*value).location == Location::Param(state)
                }
                _ => false,
            };
            assert!(at(&fetched).expect("fetched") > update, "{program}");
            assert_eq!(program.update().and_then(|u| u.loss_scale), step.loss_scale);
            let half = program.to_string().contains("rows f16[");
            assert_eq!(half, policy == Policy::MixedFloat16, "{program}");
        }
    }
}
