//! Programs that are altered after compilation, which only this crate can do: running each of them would
//! access memory out of bounds.

use super::*;
use crate::geometry::{ConvGeom, Padding, Window};
use crate::graph::{FeedId, Graph, NodeId};
use crate::ops::{Instr as TapeStep, PoolKind, Tape, Unary};
use crate::program::{Mesh, Options, ShardLevel, Sharding, UpdatePlan};
use crate::step::{Fetch, Gradient, Step};
use crate::types::{Scope, Space};
use crate::update::{RuleBuilder, Slot, SlotInit, UpdateRule};

const BATCH: usize = 8;

fn momentum() -> UpdateRule {
    let slot = Slot { name: "momentum".into(), init: SlotInit::Value(0.0) };
    let mut b = RuleBuilder::new(vec![slot], 1);
    let (w, g, m, rate) = (b.weight(), b.gradient(), b.slot(0), b.scalar(0));
    let m = b.add(m, g);
    let step = b.mul(m, rate);
    let w = b.sub(w, step);
    b.finish("momentum", None, w, &[m])
}

/// A dense layer, trained on the sum of its outputs, which are also fetched.
fn step() -> Step {
    let mut g = Graph::new();
    let feed = g.add_feed("x", Type::rows([4]));
    let kernel = g.add_param("w", &[4, 3], true);
    let (x, w) = (g.feed(feed), g.param(kernel));
    let y = g.push(Op::Dot(Epilogue::default()), &[x, w]).unwrap();
    let y = g.push(Op::Unary(Unary::Exp), &[y]).unwrap();
    let dw = g.push(Op::DotGradKernel, &[x, y]).unwrap();
    let sum = g.push(Op::SumRows, &[y]).unwrap();
    let sum = g.push(Op::AllReduce { scope: Scope::All }, &[sum]).unwrap();
    let mut step = Step::new("train", g);
    step.fetches =
        vec![Fetch { name: "y".into(), node: y }, Fetch { name: "sum".into(), node: sum }];
    step.gradients = vec![Gradient { param: kernel, node: Some(dw), l1: 0.0, l2: 0.0 }];
    step.update = Some(momentum());
    step
}

fn program() -> Program {
    Program::compile(step(), Options::new(Mesh::new(2, 1), BATCH)).unwrap()
}

#[track_caller]
fn rejected(what: &str, change: impl FnOnce(&mut Program)) {
    let mut altered = program();
    check(&altered).unwrap();
    change(&mut altered);
    assert!(check(&altered).is_err(), "{what}");
}

/// The values whose location satisfies `of`.
fn values(p: &mut Program, of: fn(&Location) -> bool) -> Vec<&mut Value> {
    p.values.iter_mut().filter(|v| of(&v.location)).collect()
}

#[test]
fn values_outside_their_memory_are_rejected() {
    rejected("an arena that is too small", |p| p.memory.arena = 0);
    rejected("a shared block that is too small", |p| p.memory.shared = 0);
    rejected("a larger batch", |p| p.options.max_batch = 1000);
    rejected("a batch that overflows", |p| p.options.max_batch = usize::MAX / 8);
    let arena: fn(&Location) -> bool = |p| matches!(p, Location::Arena(_));
    rejected("an offset after the arena", |p| {
        let end = p.memory.arena;
        values(p, arena)[0].location = Location::Arena(end);
    });
    rejected("an offset that overflows", |p| {
        values(p, arena)[0].location = Location::Arena(usize::MAX - 7);
    });
    rejected("a channel offset that overflows", |p| {
        values(p, arena)[0].offset = usize::MAX / 4 + 1;
    });
    rejected("a stride that overflows", |p| values(p, arena)[0].ld = usize::MAX / 2 + 1);
    rejected("pixels that overlap", |p| values(p, arena)[0].ld = 1);
    let feed: fn(&Location) -> bool = |p| matches!(p, Location::Feed(_));
    rejected("elements after the end of a feed", |p| values(p, feed)[0].offset = 1);
    rejected("a missing feed", |p| values(p, feed)[0].location = Location::Feed(FeedId(9)));
    rejected("a feed of another type", |p| p.feeds[0].ty.dtype = DType::I32);
    rejected("a feed of shorter rows", |p| p.feeds[0].ty.dims = vec![3]);
    rejected("a feed of longer rows", |p| p.feeds[0].ty.dims = vec![5]);
    let param: fn(&Location) -> bool = |p| matches!(p, Location::Param(_));
    rejected("elements after the end of a parameter", |p| values(p, param)[0].offset = 1);
    rejected("a missing parameter", |p| p.params.clear());
    rejected("a smaller parameter", |p| p.params[0].dims = vec![4, 2]);
    rejected("a parameter that overflows", |p| p.params[0].dims = vec![usize::MAX, 4]);
    rejected("gradients without an update", |p| p.update = None);
}

#[test]
fn instructions_that_do_not_match_their_values_are_rejected() {
    let compute = |p: &Program| {
        let is = |i: &Instr| matches!(i, Instr::Compute { op: Op::Dot(_), .. });
        p.instrs.iter().position(is).expect("a product")
    };
    rejected("a missing value", |p| {
        let at = compute(p);
        let Instr::Compute { inputs, .. } = &mut p.instrs[at] else { unreachable!() };
        inputs[1] = ValueId(99);
    });
    rejected("operands in another order", |p| {
        let at = compute(p);
        let Instr::Compute { inputs, .. } = &mut p.instrs[at] else { unreachable!() };
        inputs.swap(0, 1);
    });
    rejected("an operand too few", |p| {
        let at = compute(p);
        let Instr::Compute { inputs, .. } = &mut p.instrs[at] else { unreachable!() };
        inputs.pop();
    });
    rejected("a result in a feed", |p| {
        let at = compute(p);
        let Instr::Compute { inputs, output, .. } = &mut p.instrs[at] else { unreachable!() };
        *output = inputs[0];
    });
    rejected("a wider result", |p| {
        let at = compute(p);
        let Instr::Compute { output, .. } = p.instrs[at] else { unreachable!() };
        p.values[output.index()].ty.dims = vec![5];
        p.values[output.index()].ld = 5;
    });
    rejected("an op that is not computed", |p| {
        let at = compute(p);
        let Instr::Compute { op, .. } = &mut p.instrs[at] else { unreachable!() };
        *op = Op::Reshape { dims: vec![3] };
    });
    rejected("a missing layer", |p| {
        let at = compute(p);
        let Instr::Compute { layer, .. } = &mut p.instrs[at] else { unreachable!() };
        *layer = 9;
    });
    rejected("a kernel that one worker shares with itself", |p| {
        let at = compute(p);
        let Instr::Compute { sharded, .. } = &mut p.instrs[at] else { unreachable!() };
        *sharded = true;
    });
    rejected("a missing fetch", |p| p.fetches.truncate(1));
    rejected("a fetch of fewer elements", |p| p.fetches[0].ty.dims = vec![2]);
    rejected("a mirrored fetch of rows", |p| p.fetches[0].ty.space = Space::Mirrored);
    rejected("an all-reduce of a value that is not shared", |p| {
        for instr in &mut p.instrs {
            if let Instr::AllReduce { input, output, .. } = instr {
                *input = *output;
            }
        }
    });
    rejected("an update without an optimizer", |p| {
        p.update = None;
        p.values.retain(|v| !matches!(v.location, Location::Gradient(_)));
        p.instrs = vec![Instr::Update];
    });
    rejected("an assignment of rows", |p| {
        let Some(Instr::Fetch { value, .. }) =
            p.instrs.iter().find(|i| matches!(i, Instr::Fetch { index: 0, .. })).cloned()
        else {
            unreachable!()
        };
        p.instrs.push(Instr::Assign { param: ParamId(0), value });
    });
}

#[test]
fn a_result_that_overlaps_an_operand_is_rejected() {
    rejected("a product that reads what it writes", |p| {
        let Some((x, y)) = p.instrs.iter().find_map(|i| match i {
            Instr::Compute { op: Op::SumRows, inputs, output, .. } => Some((inputs[0], *output)),
            _ => None,
        }) else {
            unreachable!()
        };
        p.values[y.index()].location = p.values[x.index()].location;
    });
}

#[test]
fn an_update_that_does_not_match_its_gradients_is_rejected() {
    let plan = |p: &mut Program, change: fn(&mut UpdatePlan)| {
        change(p.update.as_mut().expect("a training step"));
    };
    rejected("a missing parameter", |p| {
        plan(p, |u| u.gradients[0].param = ParamId(7));
    });
    rejected("two gradients of a parameter", |p| {
        plan(p, |u| u.gradients.push(u.gradients[0].clone()));
    });
    rejected("a split inside a row", |p| plan(p, |u| u.gradients[0].granule = 0));
    rejected("a bucket after the last gradient", |p| plan(p, |u| u.buckets[0].end = 2));
    rejected("a bucket too few", |p| plan(p, |u| u.buckets.clear()));
    rejected("operands of another gradient", |p| {
        plan(p, |u| u.gradients[0].operands = Some((ValueId(0), ValueId(0))));
    });
    rejected("a gradient that one worker shares with itself", |p| {
        plan(p, |u| u.gradients[0].sharded = true);
    });
    rejected("a slot too few", |p| plan(p, |u| u.rule.slots.clear()));
    rejected("a scalar too many", |p| plan(p, |u| u.rule.scalars = usize::MAX));
    rejected("a missing register", |p| plan(p, |u| u.rule.tape.outputs[0] = 99));
}

/// Compiles a step that fetches one node.
fn compile_fetching(graph: Graph, node: NodeId) -> Result<Program> {
    let mut step = Step::new("predict", graph);
    step.fetches.push(Fetch { name: "y".into(), node });
    Program::compile(step, Options::new(Mesh::new(1, 1), BATCH))
}

#[test]
fn a_step_with_a_wrong_type_is_rejected_in_every_build() {
    let mut g = Graph::new();
    let feed = g.add_feed("x", Type::rows([4]));
    let x = g.feed(feed);
    let wide = g.push_typed(Op::Softmax, vec![x], Type::rows([1000]));
    assert!(compile_fetching(g, wide).is_err());

    let mut step = step();
    step.assigns.push((ParamId(4), step.fetches[1].node));
    let options = Options::new(Mesh::new(1, 1), BATCH);
    assert!(Program::compile(step.clone(), options).is_err(), "no such parameter");
    step.assigns.clear();
    step.fetches[0].node = NodeId(77);
    assert!(Program::compile(step, options).is_err(), "no such node");
}

#[test]
fn a_mesh_without_workers_or_with_too_many_is_rejected() {
    let odd = Mesh { fixed: true, ..Mesh::new(3, 1) };
    let half = usize::MAX / 2 + 1;
    for mesh in [Mesh::new(0, 1), Mesh::new(1, 0), Mesh::new(half, 2), odd] {
        let error = Program::compile(step(), Options::new(mesh, BATCH)).unwrap_err();
        assert!(error.to_string().starts_with("mesh: expected"), "{error}");
    }
}

#[test]
fn attributes_that_overflow_are_rejected() {
    let (half, image) = (usize::MAX / 2 + 1, Type::rows([4, 4, 2]));
    let types = [&image];
    let rejected = |op: &Op| op.infer(&types).is_err();
    assert!(rejected(&Op::Pad { before: vec![usize::MAX, 0, 0], after: vec![1, 0, 0] }));
    assert!(rejected(&Op::Upsample { size: [half, 1], bilinear: false }));
    assert!(rejected(&Op::Upsample { size: [0, 1], bilinear: false }));
    assert!(rejected(&Op::UpsampleGrad { size: [0, 1], bilinear: false }));
    assert!(rejected(&Op::Reshape { dims: vec![half, 2, 32] }));
    assert!(rejected(&Op::Slice { axis: 0, start: usize::MAX, len: 2 }));
    let long = Type::rows([1 << 47]);
    assert!(Op::Concat { axis: 0 }.infer(&vec![&long; 1 << 17]).is_err());
    let mut geom =
        ConvGeom::new([4, 4, 2], 2, Window::new([2, 2], [2, 2], Padding::Valid)).unwrap();
    assert!(!rejected(&Op::Pool(PoolKind::Max, geom)));
    geom.pad = [half, 0];
    assert!(rejected(&Op::Pool(PoolKind::Max, geom)));
}

#[test]
fn operands_that_a_kernel_would_misread_are_rejected() {
    let geom = ConvGeom::new([4, 4, 2], 2, Window::new([2, 2], [2, 2], Padding::Valid)).unwrap();
    let (image, small) = (Type::rows([4, 4, 2]), Type::rows([2, 2, 2]));
    let grad = Op::PoolGrad(PoolKind::Max, geom);
    grad.infer(&[&image, &small, &small]).unwrap();
    assert!(grad.infer(&[&small, &small, &small]).is_err(), "a smaller input");
    assert!(grad.infer(&[&image, &image, &small]).is_err(), "a larger output");
    let (x, kernel) = (Type::rows([4]), Type::mirrored([4, 3]));
    let dot = Op::Dot(Epilogue::default());
    dot.infer(&[&x, &kernel]).unwrap();
    for bad in [Type::rows([4, 3]), Type { dtype: DType::I32, ..kernel.clone() }] {
        assert!(dot.infer(&[&x, &bad]).is_err(), "{bad}");
        assert!(Op::DotGradInput.infer(&[&Type::rows([3]), &bad]).is_err(), "{bad}");
    }
    let index = Type::new(DType::I32, Space::Rows, [2]);
    let table = Type::new(DType::F64, Space::Mirrored, [9, 3]);
    assert!(Op::Gather.infer(&[&table, &index]).is_err(), "a table of doubles");
}

#[test]
fn a_tape_that_reads_ahead_is_rejected() {
    let tape = |instrs: Vec<TapeStep>, outputs: Vec<u16>| {
        let tape = Tape { inputs: vec![Access::Full], instrs, outputs };
        Op::Fused(tape).infer(&[&Type::rows([4])])
    };
    let exp = |r: u16| TapeStep::Unary(Unary::Exp, r);
    tape(vec![TapeStep::Input(0), exp(0)], vec![1]).unwrap();
    assert!(tape(vec![TapeStep::Input(0), exp(1)], vec![1]).is_err(), "itself");
    assert!(tape(vec![TapeStep::Input(1)], vec![0]).is_err(), "no such operand");
    assert!(tape(vec![TapeStep::Input(0)], vec![1]).is_err(), "no such result");
    assert!(tape(vec![TapeStep::Input(0)], vec![]).is_err(), "no result");
    assert!(tape(vec![TapeStep::Input(0); 1 << 16], vec![0]).is_err(), "too many steps");
}

/// The program of two memory domains that divide everything.
fn sharded() -> Program {
    let mesh = Mesh::new(2, 1).sharded(Sharding::new(ShardLevel::Weights, 2));
    Program::compile(step(), Options::new(mesh, BATCH)).unwrap()
}

#[track_caller]
fn rejected_if_sharded(expected: &str, change: impl FnOnce(&mut Program)) {
    let mut altered = sharded();
    check(&altered).unwrap();
    change(&mut altered);
    let error = check(&altered).unwrap_err().to_string();
    assert!(error.contains(expected), "{error}");
}

#[test]
fn a_sharded_program_gathers_weights_and_reduces_gradients() {
    let text = sharded().to_string();
    let at = |line: &str| text.find(line).unwrap_or_else(|| panic!("{line}: {text}"));
    let lines = [
        "gather weights 0: \"w\"",
        " = dot(\"x\", @weights0+0)",
        " = dot_grad_kernel(",
        "barrier all\n  reduce_scatter bucket 0: \"w\" from @",
        "update momentum",
    ];
    assert!(lines.map(at).is_sorted(), "{text}");
    let mirrored = program().to_string();
    assert!(!mirrored.contains("gather") && !mirrored.contains("reduce_scatter"), "{mirrored}");
}

#[test]
fn a_sharded_program_without_one_of_its_collectives_is_rejected() {
    let remove = |instr: fn(&Instr) -> bool| move |p: &mut Program| p.instrs.retain(|i| !instr(i));
    rejected_if_sharded(
        "a weight is read while it is not gathered",
        remove(|i| matches!(i, Instr::GatherWeights { .. })),
    );
    rejected_if_sharded(
        "a bucket is not reduced before the update",
        remove(|i| matches!(i, Instr::ReduceGradients { .. })),
    );
    rejected_if_sharded(
        "a bucket is not reduced between two barriers",
        remove(|i| matches!(i, Instr::Barrier(Scope::All))),
    );
}

#[test]
fn a_sharded_program_with_altered_collectives_is_rejected() {
    let position = |p: &Program, instr: fn(&Instr) -> bool| {
        p.instrs.iter().position(instr).expect("an instruction")
    };
    let reduces = |i: &Instr| matches!(i, Instr::ReduceGradients { .. });
    rejected_if_sharded("a bucket is reduced out of order", |p| {
        let at = position(p, reduces);
        let again = p.instrs[at - 1..=at + 1].to_vec();
        p.instrs.splice(at + 2..at + 2, again);
    });
    rejected_if_sharded("a gradient is reduced before it is computed", |p| {
        let at = position(p, reduces);
        let gradient = position(p, |i| matches!(i, Instr::Compute { op: Op::DotGradKernel, .. }));
        let moved: Vec<Instr> = p.instrs.drain(at - 1..=at + 1).collect();
        p.instrs.splice(gradient..gradient, moved);
    });
    rejected_if_sharded("a weight that is divided is read without being gathered", |p| {
        let gathered = |v: &&mut Value| matches!(v.location, Location::Gathered { .. });
        let value = p.values.iter_mut().find(gathered).expect("a weight");
        value.location = Location::Param(ParamId(0));
    });
    rejected_if_sharded("there is no weight at its offset", |p| {
        p.weight_groups[0].weights[0].1 = 64;
    });
    rejected_if_sharded("its weight exceeds the group", |p| p.memory.gathered = 0);
    rejected_if_sharded("it is no partial sum without gaps", |p| {
        let update = p.update.as_mut().expect("a training step");
        update.gradients[0].value = Some(ValueId(0));
    });
}
