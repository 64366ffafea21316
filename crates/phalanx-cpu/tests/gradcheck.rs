//! Every derivative of `phalanx-graph` against finite differences of the reference evaluator.
//!
//! A case builds a small graph. Its loss is `Σ output · seed` for a random seed; the graph's own
//! gradient by every float feed and parameter must equal the central difference in f64.

use phalanx_cpu::reference::{Bindings, Context, Value, evaluate};
use phalanx_graph::autodiff::gradients;
use phalanx_graph::ops::{
    Access, Backward, BatchNormAttrs, Binary, Epilogue, Instr, PoolKind, ReduceKind, Tape, Unary,
};
use phalanx_graph::{
    ConvGeom, DType, Graph, GraphError, NodeId, Op, Padding, Scope, Space, Type, rng,
};
use std::collections::BTreeSet;

const ROWS: usize = 3;
const STEP: f64 = 1e-5;
const TOLERANCE: f64 = 1e-6;
const CONTEXT: Context = Context { rows: ROWS, seed: 11, step: 5 };

/// Where a float operand's numbers are bound.
#[derive(Clone, Copy)]
enum Source {
    Feed(usize),
    Param(usize),
}

/// A graph under construction together with numbers for its operands.
struct Build {
    g: Graph,
    bindings: Bindings,
    wrt: Vec<(NodeId, Source)>,
    random: rng::Stream,
    range: (f64, f64),
}

impl Build {
    fn new(case: &str) -> Build {
        let seed = case.bytes().fold(1u64, |h, b| h.wrapping_mul(31).wrapping_add(u64::from(b)));
        let random = rng::Stream::new(seed, 0, 0, 0);
        let bindings = Bindings::default();
        Build { g: Graph::new(), bindings, wrt: vec![], random, range: (-1.0, 1.0) }
    }

    /// Numbers in the current range, none close to the kink at zero.
    fn numbers(&mut self, len: usize) -> Vec<f64> {
        let (lo, hi) = self.range;
        let mut draw = || lo + (hi - lo) * self.random.unit();
        (0..len)
            .map(|_| match draw() {
                v if v.abs() < 0.05 => v + 0.1f64.copysign(v),
                v => v,
            })
            .collect()
    }

    fn feed(&mut self, ty: Type, value: Value) -> NodeId {
        let id = self.g.add_feed("feed", ty);
        self.bindings.feeds.push(value);
        self.g.feed(id)
    }

    /// Float rows.
    fn rows(&mut self, dims: &[usize]) -> NodeId {
        let full = [&[ROWS], dims].concat();
        let data = self.numbers(full.iter().product());
        let source = Source::Feed(self.bindings.feeds.len());
        let id = self.feed(Type::rows(dims), Value::float(full, data));
        self.wrt.push((id, source));
        id
    }

    /// A float parameter.
    fn param(&mut self, dims: &[usize]) -> NodeId {
        let data = self.numbers(dims.iter().product());
        let source = Source::Param(self.bindings.params.len());
        let id = self.g.add_param("param", dims, true);
        self.bindings.params.push(Value::float(dims, data));
        let id = self.g.param(id);
        self.wrt.push((id, source));
        id
    }

    /// Integer rows below `n`.
    fn labels(&mut self, dims: &[usize], n: u64) -> NodeId {
        let full = [&[ROWS], dims].concat();
        let len = full.iter().product();
        let data = (0..len).map(|_| self.random.below(n) as i32).collect();
        self.feed(Type::new(DType::I32, Space::Rows, dims), Value::int(full, data))
    }

    fn push(&mut self, op: Op, inputs: &[NodeId]) -> NodeId {
        self.g.push(op, inputs).expect("operands fit")
    }

    /// The derivatives of `Σ y · seed`, and the seed's numbers.
    fn differentiate(&mut self, y: NodeId) -> (Vec<Option<NodeId>>, Vec<f64>) {
        let ty = self.g.ty(y).clone();
        let lead = if ty.is_rows() { vec![ROWS] } else { vec![] };
        let full = [lead, ty.dims.clone()].concat();
        self.range = (-1.0, 1.0);
        let numbers = self.numbers(full.iter().product());
        let seed = self.feed(ty, Value::float(full, numbers.clone()));
        let wrt: Vec<NodeId> = self.wrt.iter().map(|(id, _)| *id).collect();
        let found = gradients(&mut self.g, &[(y, seed)], &wrt).expect("differentiable");
        self.g.verify("gradcheck").expect("verified");
        // Asking for one derivative at a time must not change it.
        for (x, together) in wrt.iter().zip(&found) {
            let mut alone = self.g.clone();
            let single = gradients(&mut alone, &[(y, seed)], &[*x]).expect("differentiable")[0];
            let value = |g: &Graph, id: Option<NodeId>| {
                id.map(|id| evaluate(g, &[id], &self.bindings, &CONTEXT).remove(0))
            };
            assert_eq!(value(&alone, single), value(&self.g, *together), "asked for alone");
        }
        (found, numbers)
    }

    /// The loss after moving one number of one operand.
    fn loss(&self, y: NodeId, seed: &[f64], at: Source, i: usize, by: f64) -> f64 {
        let mut moved = self.bindings.clone();
        let value = match at {
            Source::Feed(n) => &mut moved.feeds[n],
            Source::Param(n) => &mut moved.params[n],
        };
        value.floats_mut()[i] += by;
        let out = evaluate(&self.g, &[y], &moved, &CONTEXT).remove(0);
        out.floats().iter().zip(seed).map(|(a, b)| a * b).sum()
    }
}

/// A named way to build the output of a graph.
struct Case {
    name: String,
    build: Box<dyn Fn(&mut Build) -> NodeId>,
}

fn case(name: impl Into<String>, build: impl Fn(&mut Build) -> NodeId + 'static) -> Case {
    Case { name: name.into(), build: Box::new(build) }
}

fn check(case: &Case) {
    let name = &case.name;
    let mut b = Build::new(name);
    let y = (case.build)(&mut b);
    let whole = !b.g.ty(y).is_rows();
    let (found, seed) = b.differentiate(y);
    for ((x, source), found) in b.wrt.iter().zip(found) {
        let ty = b.g.ty(*x).clone();
        let derivative = match found {
            Some(id) => {
                let space = match ty.space {
                    Space::Mirrored if !whole => Space::Partial,
                    other => other,
                };
                assert_eq!(*b.g.ty(id), Type { space, ..ty }, "{name}: type of the derivative");
                evaluate(&b.g, &[id], &b.bindings, &CONTEXT).remove(0)
            }
            None => match source {
                Source::Feed(n) => Value::fill(b.bindings.feeds[*n].dims.clone(), 0.0),
                Source::Param(n) => Value::fill(b.bindings.params[*n].dims.clone(), 0.0),
            },
        };
        for (i, got) in derivative.floats().iter().enumerate() {
            let above = b.loss(y, &seed, *source, i, STEP);
            let below = b.loss(y, &seed, *source, i, -STEP);
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

const UNARY: [(Unary, (f64, f64)); 16] = [
    (Unary::Neg, (-1.0, 1.0)),
    (Unary::Abs, (-1.0, 1.0)),
    (Unary::Sign, (-1.0, 1.0)),
    (Unary::Recip, (0.5, 2.0)),
    (Unary::Square, (-1.0, 1.0)),
    (Unary::Sqrt, (0.3, 3.0)),
    (Unary::Rsqrt, (0.3, 3.0)),
    (Unary::Exp, (-1.0, 1.0)),
    (Unary::Expm1, (-1.0, 1.0)),
    (Unary::Log, (0.3, 3.0)),
    (Unary::Log1p, (-0.5, 2.0)),
    (Unary::Tanh, (-2.0, 2.0)),
    (Unary::Sigmoid, (-3.0, 3.0)),
    (Unary::Erf, (-2.0, 2.0)),
    (Unary::Relu, (-1.0, 1.0)),
    (Unary::Floor, (-3.0, 3.0)),
];

/// Each function of rows, and of a parameter, whose cotangent is a sum over rows.
fn unary_cases() -> Vec<Case> {
    let one = |(u, range): (Unary, (f64, f64))| {
        case(u.name(), move |b| {
            b.range = range;
            let (x, w) = (b.rows(&[2, 3]), b.param(&[3]));
            let fx = b.g.unary(u, x).expect("fits");
            let fw = b.g.unary(u, w).expect("fits");
            b.g.mul(fx, fw).expect("fits")
        })
    };
    UNARY.into_iter().map(one).collect()
}

const BINARY: [Binary; 10] = [
    Binary::Add,
    Binary::Sub,
    Binary::Mul,
    Binary::Div,
    Binary::Max,
    Binary::Min,
    Binary::Pow,
    Binary::Gt,
    Binary::Ge,
    Binary::Eq,
];

/// An operand: float rows or a parameter.
#[derive(Clone, Copy)]
enum Operand {
    Rows(&'static [usize]),
    Param(&'static [usize]),
}

impl Operand {
    fn add(self, b: &mut Build) -> NodeId {
        match self {
            Operand::Rows(dims) => b.rows(dims),
            Operand::Param(dims) => b.param(dims),
        }
    }
}

/// Each function with its operands in every broadcasting form, both ways round.
fn binary_cases() -> Vec<Case> {
    use Operand::{Param, Rows};
    let forms = [
        ("full", Rows(&[2, 3]), Rows(&[2, 3])),
        ("scalar", Rows(&[2, 3]), Param(&[])),
        ("scalar of rank two", Rows(&[2, 3]), Param(&[1, 1])),
        ("suffix", Rows(&[2, 3]), Param(&[3])),
        ("whole suffix", Rows(&[2, 3]), Param(&[2, 3])),
        ("prefix", Rows(&[2, 3]), Rows(&[2, 1])),
        ("one a row", Rows(&[2, 3]), Rows(&[])),
        ("rows of a parameter", Rows(&[]), Param(&[2, 3])),
        ("broadcast rows", Rows(&[2, 3]), Rows(&[3])),
        ("broadcast parameter", Rows(&[2, 3]), Param(&[2, 1])),
        ("broadcast both", Rows(&[1, 3]), Param(&[2, 1])),
        ("parameters", Param(&[2, 3]), Param(&[2, 1])),
        ("parameters, suffix", Param(&[2, 3]), Param(&[3])),
    ];
    let mut cases = vec![];
    for op in BINARY {
        for (form, l, r) in forms {
            for (order, l, r) in [("", l, r), (" swapped", r, l)] {
                let name = format!("{} {form}{order}", op.name());
                cases.push(case(name, move |b| {
                    if matches!(op, Binary::Div | Binary::Pow) {
                        b.range = (0.5, 2.0);
                    }
                    let (l, r) = (l.add(b), r.add(b));
                    let y = b.g.binary(op, l, r).expect("fits");
                    // Behind a product with rows a parameter's cotangent is a sum over rows.
                    let x = b.rows(&[2, 3]);
                    b.g.mul(x, y).expect("fits")
                }));
            }
        }
    }
    cases
}

fn select_cases() -> Vec<Case> {
    use Operand::{Param, Rows};
    let forms = [
        ("full", Rows(&[2, 3]), Rows(&[2, 3]), Rows(&[2, 3])),
        ("scalar and suffix", Rows(&[2, 3]), Param(&[]), Param(&[3])),
        ("prefix", Rows(&[2, 1]), Rows(&[2, 3]), Rows(&[])),
        ("broadcast", Rows(&[3]), Param(&[2, 1]), Rows(&[2, 3])),
        ("condition by parameter", Param(&[3]), Rows(&[2, 3]), Param(&[3])),
        ("parameters", Param(&[2, 3]), Param(&[3]), Param(&[2, 1])),
    ];
    let one = |(form, c, l, r): (&str, Operand, Operand, Operand)| {
        case(format!("select {form}"), move |b| {
            let (c, l, r) = (c.add(b), l.add(b), r.add(b));
            let zero = b.g.scalar(0.0);
            let c = b.g.binary(Binary::Gt, c, zero).expect("fits");
            let y = b.g.select(c, l, r).expect("fits");
            let x = b.rows(&[2, 3]);
            b.g.mul(x, y).expect("fits")
        })
    };
    forms.into_iter().map(one).collect()
}

/// `op` of rows, and of a parameter that then meets rows.
fn on_both(name: &str, op: Op, dims: &'static [usize]) -> [Case; 2] {
    let of_rows = op.clone();
    [
        case(format!("{name} of rows"), move |b| {
            let x = b.rows(dims);
            b.push(of_rows.clone(), &[x])
        }),
        case(format!("{name} of a parameter"), move |b| {
            let w = b.param(dims);
            let y = b.push(op.clone(), &[w]);
            let shape = b.g.ty(y).dims.clone();
            let x = b.rows(&shape);
            b.g.mul(x, y).expect("fits")
        }),
    ]
}

fn reduce_cases() -> Vec<Case> {
    let mut cases = vec![];
    for (name, kind) in [("sum", ReduceKind::Sum), ("max", ReduceKind::Max)] {
        for axes in [vec![], vec![0], vec![1], vec![2], vec![0, 2], vec![0, 1, 2]] {
            let name = format!("reduce {name} over {axes:?}");
            cases.extend(on_both(&name, Op::Reduce { kind, axes }, &[2, 3, 2]));
        }
    }
    cases.extend(on_both("broadcast", Op::Broadcast { dims: vec![2, 3, 4] }, &[3, 1]));
    cases.extend(on_both("broadcast of one", Op::Broadcast { dims: vec![2, 2] }, &[]));
    cases
}

fn layout_cases() -> Vec<Case> {
    let mut cases = vec![];
    cases.extend(on_both("reshape", Op::Reshape { dims: vec![3, 2] }, &[2, 3]));
    cases.extend(on_both("transpose", Op::Transpose { perm: vec![2, 0, 1] }, &[2, 3, 4]));
    cases.extend(on_both("slice", Op::Slice { axis: 1, start: 1, len: 2 }, &[2, 4]));
    let pad = Op::Pad { before: vec![1, 0], after: vec![2, 1] };
    cases.extend(on_both("pad", pad, &[2, 3]));
    for axis in 0..2 {
        cases.push(case(format!("concat on axis {axis}"), move |b| {
            let other: &[usize] = if axis == 0 { &[1, 3] } else { &[2, 2] };
            let (x, y, z) = (b.rows(&[2, 3]), b.rows(other), b.rows(&[2, 3]));
            b.push(Op::Concat { axis }, &[x, y, z])
        }));
    }
    for (bilinear, size) in [(false, [2, 3]), (true, [2, 3]), (true, [1, 2])] {
        cases.push(case(format!("upsample {size:?} bilinear {bilinear}"), move |b| {
            let x = b.rows(&[2, 3, 2]);
            b.push(Op::Upsample { size, bilinear }, &[x])
        }));
    }
    cases
}

const EPILOGUES: [Epilogue; 4] = [
    Epilogue { bias: false, relu: false },
    Epilogue { bias: true, relu: false },
    Epilogue { bias: false, relu: true },
    Epilogue { bias: true, relu: true },
];

/// `op(x, w)` or `op(x, w, bias)`.
fn product(b: &mut Build, op: Op, e: Epilogue, x: &[usize], w: &[usize]) -> NodeId {
    let mut inputs = vec![b.rows(x), b.param(w)];
    if e.bias {
        inputs.push(b.param(&[w[w.len() - 1]]));
    }
    b.push(op, &inputs)
}

fn dot_cases() -> Vec<Case> {
    let mut cases = vec![];
    for dims in [&[4][..], &[2, 4], &[2, 3, 4]] {
        for e in EPILOGUES {
            cases.push(case(format!("dot {dims:?}{e}"), move |b| {
                product(b, Op::Dot(e), e, dims, &[4, 3])
            }));
        }
    }
    cases
}

/// Input, filters, kernel, stride, dilation, groups.
type ConvShape = ([usize; 3], usize, [usize; 2], [usize; 2], [usize; 2], usize);

fn conv_cases() -> Vec<Case> {
    let shapes: [(&str, ConvShape); 7] = [
        ("plain", ([4, 5, 2], 3, [3, 3], [1, 1], [1, 1], 1)),
        ("1x1", ([3, 3, 3], 2, [1, 1], [1, 1], [1, 1], 1)),
        ("strided", ([5, 6, 2], 2, [3, 2], [2, 3], [1, 1], 1)),
        ("1x1 strided", ([4, 5, 2], 2, [1, 1], [2, 2], [1, 1], 1)),
        ("dilated", ([5, 6, 1], 2, [2, 3], [1, 1], [2, 2], 1)),
        ("grouped", ([4, 4, 4], 6, [2, 3], [1, 1], [1, 1], 2)),
        ("depthwise", ([4, 4, 3], 6, [3, 3], [1, 2], [1, 1], 3)),
    ];
    let mut cases = vec![];
    for (name, (input, filters, kernel, stride, dilation, groups)) in shapes {
        for padding in [Padding::Valid, Padding::Same] {
            for e in EPILOGUES {
                let g = ConvGeom::new(input, filters, kernel, stride, dilation, padding, groups);
                let g = g.expect("fits");
                cases.push(case(format!("conv {name} {padding:?}{e}"), move |b| {
                    product(b, Op::Conv(g, e), e, &input, &g.kernel_dims())
                }));
            }
        }
    }
    cases
}

fn pool_cases() -> Vec<Case> {
    let mut cases = vec![];
    let shapes = [([2, 2], [2, 2]), ([3, 2], [2, 1]), ([3, 3], [1, 1]), ([2, 2], [3, 3])];
    for kind in [PoolKind::Max, PoolKind::Average] {
        for padding in [Padding::Valid, Padding::Same] {
            for (kernel, stride) in shapes {
                let g = ConvGeom::new([4, 5, 2], 2, kernel, stride, [1, 1], padding, 1);
                let g = g.expect("fits");
                let name = format!("{kind:?} pool {kernel:?} by {stride:?} {padding:?}");
                cases.push(case(name, move |b| {
                    let x = b.rows(&[4, 5, 2]);
                    b.push(Op::Pool(kind, g), &[x])
                }));
            }
        }
    }
    cases
}

fn softmax_cases() -> Vec<Case> {
    let mut cases = vec![];
    for dims in [&[4][..], &[2, 4]] {
        for op in [Op::Softmax, Op::LogSoftmax] {
            cases.push(case(format!("{} {dims:?}", op.name()), move |b| {
                let x = b.rows(dims);
                b.push(op.clone(), &[x])
            }));
        }
        cases.push(case(format!("sparse_xent {dims:?}"), move |b| {
            let x = b.rows(dims);
            let labels = b.labels(&dims[..dims.len() - 1], 4);
            b.push(Op::SparseXent, &[x, labels])
        }));
    }
    cases
}

fn index_and_random_cases() -> Vec<Case> {
    let mut cases = vec![];
    for dims in [&[][..], &[4], &[2, 2]] {
        // Fewer rows of the table than indices, so that some are used twice.
        cases.push(case(format!("gather {dims:?}"), move |b| {
            let table = b.param(&[3, 2]);
            let index = b.labels(dims, 3);
            b.push(Op::Gather, &[table, index])
        }));
    }
    for noise in [[2, 3, 4], [1, 3, 4], [2, 1, 4], [1, 1, 1]] {
        cases.push(case(format!("dropout {noise:?}"), move |b| {
            let x = b.rows(&[2, 3, 4]);
            b.push(Op::Dropout { rate: 0.4.into(), key: 3, noise: noise.to_vec() }, &[x])
        }));
    }
    cases
}

/// `x → moments → all_reduce → batch_stats`, and the normalisation by them.
fn batch_norm(b: &mut Build, dims: &[usize], attrs: BatchNormAttrs) -> NodeId {
    let channels = dims[dims.len() - 1];
    let (x, gamma, beta) = (b.rows(dims), b.param(&[channels]), b.param(&[channels]));
    let sums = b.push(Op::Moments, &[x]);
    let sums = b.push(Op::AllReduce { scope: attrs.scope }, &[sums]);
    let positions = dims[..dims.len() - 1].iter().product();
    let stats = b.push(Op::BatchStats { scope: attrs.scope, positions }, &[sums]);
    b.push(Op::BatchNorm(attrs), &[x, stats, gamma, beta])
}

fn norm_cases() -> Vec<Case> {
    let mut cases = vec![];
    for dims in [&[3][..], &[2, 2, 3]] {
        for scope in [Scope::Device, Scope::All] {
            for relu in [false, true] {
                let attrs = BatchNormAttrs { epsilon: 1e-3.into(), relu, scope };
                let name = format!("batch_norm {dims:?} over {scope} relu {relu}");
                cases.push(case(name, move |b| batch_norm(b, dims, attrs)));
            }
        }
    }
    cases
}

fn shared_cases() -> Vec<Case> {
    vec![
        case("a node used three times", |b| {
            let x = b.rows(&[2, 3]);
            let t = b.g.unary(Unary::Tanh, x).expect("fits");
            let s = b.g.mul(t, t).expect("fits");
            b.g.add(s, x).expect("fits")
        }),
        case("one kernel in two layers", |b| {
            let (x, w) = (b.rows(&[3]), b.param(&[3, 3]));
            let h = b.push(Op::Dot(Epilogue { bias: false, relu: true }), &[x, w]);
            b.push(Op::Dot(Epilogue::default()), &[h, w])
        }),
        case("a block with a shortcut", |b| {
            let attrs = BatchNormAttrs { epsilon: 1e-3.into(), relu: true, scope: Scope::Device };
            let y = batch_norm(b, &[2, 2, 2], attrs);
            let x = b.wrt[0].0;
            let sum = b.g.add(x, y).expect("fits");
            b.push(Op::Concat { axis: 2 }, &[sum, x])
        }),
    ]
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
fn batch_norm_derivatives() {
    check_all(norm_cases());
}

#[test]
fn derivatives_of_shared_nodes_add_up() {
    check_all(shared_cases());
}

/// What an op's derivative is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    /// Has no operands.
    Leaf,
    /// A function to be checked.
    Smooth,
    /// Zero everywhere, or counted elsewhere.
    Flat,
    /// An error: nothing is trained through it.
    Refused,
}

/// Makes, from one table, an exhaustive question about an op and the list of all answers: a new op
/// does not compile until it has its line, and its line fails the tests until it has its case.
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
    Op::Binary(Binary::Add) => "add", Smooth;
    Op::Binary(Binary::Sub) => "sub", Smooth;
    Op::Binary(Binary::Mul) => "mul", Smooth;
    Op::Binary(Binary::Div) => "div", Smooth;
    Op::Binary(Binary::Max) => "max", Smooth;
    Op::Binary(Binary::Min) => "min", Smooth;
    Op::Binary(Binary::Pow) => "pow", Smooth;
    Op::Binary(Binary::Gt) => "gt", Flat;
    Op::Binary(Binary::Ge) => "ge", Flat;
    Op::Binary(Binary::Eq) => "eq", Flat;
    Op::Select => "select", Smooth;
    Op::Fused(_) => "fused", Refused;
    Op::Cast { .. } => "cast", Refused;
    Op::Broadcast { .. } => "broadcast", Smooth;
    Op::Reduce { kind: ReduceKind::Sum, .. } => "reduce_sum", Smooth;
    Op::Reduce { kind: ReduceKind::Max, .. } => "reduce_max", Smooth;
    Op::SumRows => "sum_rows", Refused;
    Op::Reshape { .. } => "reshape", Smooth;
    Op::Transpose { .. } => "transpose", Smooth;
    Op::Concat { .. } => "concat", Smooth;
    Op::Slice { .. } => "slice", Smooth;
    Op::Pad { .. } => "pad", Smooth;
    Op::Upsample { .. } => "upsample", Smooth;
    Op::UpsampleGrad { .. } => "upsample_grad", Refused;
    Op::Dot(_) => "dot", Smooth;
    Op::DotGradInput => "dot_grad_input", Refused;
    Op::DotGradKernel => "dot_grad_kernel", Refused;
    Op::Conv(..) => "conv", Smooth;
    Op::ConvGradInput(_) => "conv_grad_input", Refused;
    Op::ConvGradKernel(_) => "conv_grad_kernel", Refused;
    Op::Pool(PoolKind::Max, _) => "max_pool", Smooth;
    Op::Pool(PoolKind::Average, _) => "average_pool", Smooth;
    Op::PoolGrad(PoolKind::Max, _) => "max_pool_grad", Refused;
    Op::PoolGrad(PoolKind::Average, _) => "average_pool_grad", Refused;
    Op::Softmax => "softmax", Smooth;
    Op::LogSoftmax => "log_softmax", Smooth;
    Op::SparseXent => "sparse_xent", Smooth;
    Op::SparseXentGrad => "sparse_xent_grad", Refused;
    Op::Gather => "gather", Smooth;
    Op::GatherGrad { .. } => "gather_grad", Refused;
    Op::OneHot { .. } => "one_hot", Flat;
    Op::ArgMax => "arg_max", Flat;
    Op::InTopK { .. } => "in_top_k", Flat;
    Op::ThresholdCounts { .. } => "threshold_counts", Flat;
    Op::Dropout { .. } => "dropout", Smooth;
    Op::Moments => "moments", Flat;
    Op::BatchStats { .. } => "batch_stats", Flat;
    Op::BatchNorm(_) => "batch_norm", Smooth;
    Op::BatchNormGradSums(_) => "batch_norm_grad_sums", Refused;
    Op::BatchNormGradInput(_) => "batch_norm_grad_input", Refused;
    Op::AllReduce { .. } => "all_reduce", Refused;
    Op::ReplicaMean => "replica_mean", Refused;
}

fn all_cases() -> Vec<Case> {
    [
        unary_cases(),
        binary_cases(),
        select_cases(),
        reduce_cases(),
        layout_cases(),
        dot_cases(),
        conv_cases(),
        pool_cases(),
        softmax_cases(),
        index_and_random_cases(),
        norm_cases(),
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
        let mut b = Build::new(&case.name);
        (case.build)(&mut b);
        seen.extend(b.g.nodes().iter().map(|n| n.op.name()));
    }
    let smooth = TABLE.iter().filter(|(_, kind)| *kind == Kind::Smooth);
    let missing: Vec<&str> = smooth.map(|(name, _)| *name).filter(|n| !seen.contains(n)).collect();
    assert!(missing.is_empty(), "differentiable, but in no case of this file: {missing:?}");
}

/// The ops that neither the cases nor their derivatives contain.
fn other_ops() -> Graph {
    let mut b = Build::new("other ops");
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
    let instrs = vec![Instr::Input(0), Instr::Unary(Unary::Tanh, 0)];
    b.push(Op::Fused(Tape { inputs: vec![Access::Full], instrs, outputs: vec![1] }), &[x]);
    b.g
}

/// Asks a node for its derivative and compares the answer with the table.
fn check_answer(g: &Graph, id: NodeId) {
    let node = g.node(id);
    let (name, kind) = entry(&node.op);
    assert_eq!(name, node.op.name());
    let wanted: Vec<bool> = node.inputs.iter().map(|x| g.ty(*x).dtype == DType::F32).collect();
    let b = Backward { inputs: &node.inputs, y: id, dy: id, wanted: &wanted };
    match (kind, node.op.derivative(&mut g.clone(), &b)) {
        (Kind::Leaf, Ok(d)) => assert!(d.is_empty(), "{name}"),
        (Kind::Smooth, Ok(d)) => assert!(d.iter().any(Option::is_some), "{name} gives none"),
        (Kind::Flat, Ok(d)) => assert!(d.iter().all(Option::is_none), "{name} gives one"),
        (Kind::Refused, Err(GraphError::NotDifferentiable { op, .. })) => assert_eq!(op, name),
        (kind, answer) => panic!("{name}: {kind:?} expected, received {answer:?}"),
    }
}

#[test]
fn every_op_answers_as_the_table_says() {
    let mut graphs = vec![other_ops()];
    for case in all_cases() {
        let mut b = Build::new(&case.name);
        let y = (case.build)(&mut b);
        b.differentiate(y);
        graphs.push(b.g);
    }
    let mut seen = BTreeSet::new();
    // Sums that are still partial appear in derivatives only: they are asked last.
    for partial in [false, true] {
        for g in &graphs {
            for id in g.ids().filter(|id| (g.ty(*id).space == Space::Partial) == partial) {
                if seen.insert(g.node(id).op.name()) {
                    check_answer(g, id);
                }
            }
        }
    }
    let listed: BTreeSet<&str> = TABLE.iter().map(|(name, _)| *name).collect();
    assert_eq!(seen, listed);
}

/// The derivative of `Σ y` by the operands, in order.
fn derivative_of_sum(b: &mut Build, y: NodeId) -> Vec<Option<Vec<f64>>> {
    let ty = b.g.ty(y).clone();
    let full = [vec![ROWS], ty.dims.clone()].concat();
    let seed = b.feed(ty, Value::fill(full, 1.0));
    let wrt: Vec<NodeId> = b.wrt.iter().map(|(id, _)| *id).collect();
    let found = gradients(&mut b.g, &[(y, seed)], &wrt).expect("differentiable");
    let value = |id| evaluate(&b.g, &[id], &b.bindings, &CONTEXT).remove(0).floats().to_vec();
    found.into_iter().map(|d| d.map(value)).collect()
}

#[test]
fn ties_are_shared() {
    for op in [Binary::Max, Binary::Min] {
        let mut b = Build::new("ties");
        let (l, r) = (b.rows(&[]), b.rows(&[]));
        b.bindings.feeds[1] = b.bindings.feeds[0].clone();
        let y = b.g.binary(op, l, r).expect("fits");
        assert_eq!(derivative_of_sum(&mut b, y), vec![Some(vec![0.5; ROWS]); 2]);
    }
    let mut b = Build::new("ties");
    let x = b.rows(&[4]);
    b.bindings.feeds[0] = Value::float([ROWS, 4], [1.0, 3.0, 2.0, 3.0].repeat(ROWS));
    let y = b.push(Op::Reduce { kind: ReduceKind::Max, axes: vec![0] }, &[x]);
    assert_eq!(derivative_of_sum(&mut b, y), [Some([0.0, 0.5, 0.0, 0.5].repeat(ROWS))]);
}

#[test]
fn what_has_no_influence_has_no_derivative() {
    let mut b = Build::new("no influence");
    let (x, _unused, w) = (b.rows(&[2]), b.param(&[2]), b.param(&[2]));
    let y = b.g.mul(x, w).expect("fits");
    // Depends on the parameter, but only by its sign.
    let sign = b.g.unary(Unary::Sign, w).expect("fits");
    let z = b.g.mul(x, sign).expect("fits");
    let present = |d: Vec<Option<Vec<f64>>>| d.iter().map(Option::is_some).collect::<Vec<_>>();
    assert_eq!(present(derivative_of_sum(&mut b, y)), [true, false, true]);
    assert_eq!(present(derivative_of_sum(&mut b, z)), [true, false, false]);
}

#[test]
fn seeds_of_several_outputs_add_up() {
    let mut b = Build::new("several outputs");
    let x = b.rows(&[2]);
    let y = b.g.scale(x, 3.0).expect("fits");
    let z = b.g.scale(y, 5.0).expect("fits");
    let d = gradients(&mut b.g, &[(y, x), (z, x)], &[x]).expect("differentiable");
    let d = evaluate(&b.g, &[d[0].expect("depends"), x], &b.bindings, &CONTEXT);
    for (d, x) in d[0].floats().iter().zip(d[1].floats()) {
        assert!((d - 18.0 * x).abs() < 1e-12);
    }
}

#[test]
fn a_second_derivative_names_op_and_layer() {
    let mut b = Build::new("second derivative");
    b.g.enter("dense");
    let (x, w) = (b.rows(&[3]), b.param(&[3, 2]));
    let y = b.push(Op::Dot(Epilogue::default()), &[x, w]);
    let dx = gradients(&mut b.g, &[(y, y)], &[x]).expect("differentiable")[0].expect("depends");
    let error = gradients(&mut b.g, &[(dx, dx)], &[w]).expect_err("is refused");
    assert_eq!(error.to_string(), "layer 'dense': dot_grad_input has no derivative");
}
