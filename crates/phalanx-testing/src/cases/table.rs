//! The cases: every op with the various forms of its operands.

use super::composed::{sort_cases, take_cases, times_rows};
use super::{Build, Case, case};
use phalanx_graph::functions::layout::{PadMode, concat, pad};
use phalanx_graph::ops::{
    BatchNormAttrs, Binary, Contraction, Epilogue, FillMode, LayerNormAttrs, ReduceKind,
    SampleGeom, Unary,
};
use phalanx_graph::{ConvGeom, NodeId, Op, Padding, Scope, Window};

const UNARY: [(Unary, (f64, f64)); 20] = [
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
    (Unary::Sin, (-7.0, 7.0)),
    (Unary::Cos, (-7.0, 7.0)),
    (Unary::Atan, (-3.0, 3.0)),
    (Unary::Round, (-3.0, 3.0)),
];

/// Each function of rows, and of a parameter, whose cotangent is summed over rows.
pub fn unary_cases() -> Vec<Case> {
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

/// An operand: float rows or a parameter.
#[derive(Clone, Copy)]
pub(super) enum Operand {
    Rows(&'static [usize]),
    Param(&'static [usize]),
}

impl Operand {
    pub(super) fn add(self, b: &mut Build) -> NodeId {
        match self {
            Operand::Rows(dims) => b.rows(dims),
            Operand::Param(dims) => b.param(dims),
        }
    }
}

/// Each function with its operands in every broadcasting form and in both orders.
pub fn binary_cases() -> Vec<Case> {
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
    for op in Binary::ALL {
        for (form, l, r) in forms {
            for (order, l, r) in [("", l, r), (" swapped", r, l)] {
                let name = format!("{} {form}{order}", op.name());
                cases.push(case(name, move |b| {
                    if matches!(op, Binary::Div | Binary::Pow | Binary::Rem) {
                        b.range = (0.5, 2.0);
                    }
                    let (l, r) = (l.add(b), r.add(b));
                    let y = b.g.binary(op, l, r).expect("fits");
                    // After a product with rows, the cotangent of a parameter is a sum over rows.
                    let x = b.rows(&[2, 3]);
                    b.g.mul(x, y).expect("fits")
                }));
            }
        }
    }
    cases
}

pub fn select_cases() -> Vec<Case> {
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

/// `op` of rows, and of a parameter that is then multiplied by rows.
pub(super) fn on_both(name: &str, op: Op, dims: &'static [usize]) -> [Case; 2] {
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

pub fn reduce_cases() -> Vec<Case> {
    let mut cases = vec![];
    for (name, kind) in [("sum", ReduceKind::Sum), ("max", ReduceKind::Max)] {
        for axes in [vec![], vec![0], vec![1], vec![2], vec![0, 2], vec![0, 1, 2]] {
            let name = format!("reduce {name} over {axes:?}");
            cases.extend(on_both(&name, Op::Reduce { kind, axes }, &[2, 3, 2]));
        }
    }
    cases.extend(on_both("broadcast", Op::Broadcast { dims: vec![2, 3, 4] }, &[3, 1]));
    cases.extend(on_both("broadcast of one", Op::Broadcast { dims: vec![2, 2] }, &[]));
    cases.push(case("sum over the batch", |b| {
        let x = b.rows(&[2, 3]);
        let square = b.push(Op::Unary(Unary::Square), &[x]);
        let sum = b.push(Op::SumRows, &[square]);
        let total = b.push(Op::AllReduce { scope: Scope::All }, &[sum]);
        b.push(Op::Binary(Binary::Mul), &[x, total])
    }));
    cases
}

pub fn layout_cases() -> Vec<Case> {
    let mut cases = vec![];
    cases.extend(on_both("reshape", Op::Reshape { dims: vec![3, 2] }, &[2, 3]));
    cases.extend(on_both("transpose", Op::Transpose { perm: vec![2, 0, 1] }, &[2, 3, 4]));
    cases.extend(on_both("slice", Op::Slice { axis: 1, start: 1, len: 2 }, &[2, 4]));
    for (axis, step) in [(1, 2), (0, -1), (1, -1), (1, -3), (1, 9), (0, 1)] {
        let name = format!("stride {step} on axis {axis}");
        cases.extend(on_both(&name, Op::Stride { axis, step }, &[3, 5, 2]));
    }
    cases.extend(on_both("dilate", Op::Dilate { axis: 0, step: -2, len: 6 }, &[3, 2]));
    for mode in
        [PadMode::Constant(1.5), PadMode::Edge, PadMode::Reflect, PadMode::Symmetric, PadMode::Wrap]
    {
        cases.push(case(format!("pad with {mode:?}"), move |b| {
            let (x, w) = (b.rows(&[2, 3]), b.param(&[2, 3]));
            let mut padded = |x| pad(&mut b.g, x, &[1, 4], &[2, 0], mode).expect("fits");
            let (x, w) = (padded(x), padded(w));
            b.g.mul(x, w).expect("fits")
        }));
    }
    cases.push(case("concat of rows and a parameter", |b| {
        let (x, w) = (b.rows(&[2, 3]), b.param(&[1, 3]));
        concat(&mut b.g, &[w, x, w], 0).expect("fits")
    }));
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

pub(super) const EPILOGUES: [Epilogue; 4] = [
    Epilogue { bias: false, relu: false },
    Epilogue { bias: true, relu: false },
    Epilogue { bias: false, relu: true },
    Epilogue { bias: true, relu: true },
];

/// `op(x, w)` or `op(x, w, bias)`.
pub(super) fn product(b: &mut Build, op: Op, e: Epilogue, x: &[usize], w: &[usize]) -> NodeId {
    let mut inputs = vec![b.rows(x), b.param(w)];
    if e.bias {
        inputs.push(b.param(&[w[w.len() - 1]]));
    }
    b.push(op, &inputs)
}

pub fn dot_cases() -> Vec<Case> {
    let mut cases = vec![];
    for dims in [&[4][..], &[2, 4], &[2, 3, 4]] {
        for e in EPILOGUES {
            cases.push(case(format!("dot {dims:?}{e}"), move |b| {
                product(b, Op::Dot(e), e, dims, &[4, 3])
            }));
        }
        cases.push(case(format!("transposed dot {dims:?}"), move |b| {
            let inputs = [b.rows(dims), b.param(&[3, 4])];
            b.push(Op::DotGradInput, &inputs)
        }));
    }
    cases
}

/// A product of two operands with these axes; a parameter's result is multiplied by rows.
fn contraction(b: &mut Build, equation: [&str; 3], l: Operand, r: Operand) -> NodeId {
    let [left, right, result] = equation.map(str::as_bytes);
    let inputs = [l.add(b), r.add(b)];
    let y = b.push(Op::MatMul(Contraction::new(left, right, result, false)), &inputs);
    times_rows(b, y)
}

pub fn matmul_cases() -> Vec<Case> {
    use Operand::{Param, Rows};
    let mut cases = vec![];
    let shapes: [([&str; 3], &[usize], &[usize]); 8] = [
        (["ik", "kj", "ij"], &[2, 3], &[3, 4]),
        (["ki", "jk", "ij"], &[3, 2], &[4, 3]),
        (["bik", "bkj", "bij"], &[2, 3, 4], &[2, 4, 5]),
        (["thd", "shd", "hts"], &[3, 2, 4], &[5, 2, 4]),
        (["hts", "shd", "thd"], &[2, 3, 5], &[5, 2, 4]),
        (["k", "k", ""], &[7], &[7]),
        (["iab", "jba", "ji"], &[3, 2, 4], &[5, 4, 2]),
        (["bik", "bkj", "ijb"], &[3, 2, 5], &[3, 5, 2]),
    ];
    for (equation, l, r) in shapes {
        let text = equation.join(" ");
        for (spaces, l, r) in [
            ("rows", Rows(l), Rows(r)),
            ("rows and a parameter", Rows(l), Param(r)),
            ("a parameter and rows", Param(l), Rows(r)),
            ("parameters", Param(l), Param(r)),
        ] {
            cases.push(case(format!("matmul {text} of {spaces}"), move |b| {
                contraction(b, equation, l, r)
            }));
        }
    }
    // Operands and results with gaps: parts of a concatenation.
    cases.push(case("matmul between slices and concatenations", |b| {
        let (x, y) = (b.rows(&[3, 8]), b.rows(&[4, 2]));
        let x = b.g.unary(Unary::Tanh, x).expect("fits");
        let [l, r] = [0, 4].map(|start| b.push(Op::Slice { axis: 1, start, len: 4 }, &[x]));
        let scores = Contraction::new(b"ik", b"jk", b"ij", false);
        let first = b.push(Op::MatMul(scores), &[l, r]);
        let second = b.push(Op::MatMul(Contraction::matrices(0)), &[r, y]);
        b.push(Op::Concat { axis: 1 }, &[first, second])
    }));
    cases
}

pub fn softmax_cases() -> Vec<Case> {
    let mut cases = vec![];
    for op in [Op::Softmax, Op::LogSoftmax] {
        cases.extend(on_both(op.name(), op, &[2, 4]));
    }
    for dims in [&[4][..], &[2, 4]] {
        for op in [Op::Softmax, Op::LogSoftmax] {
            cases.push(case(format!("{} {dims:?}", op.name()), move |b| {
                let x = b.rows(dims);
                b.push(op.clone(), &[x])
            }));
        }
        cases.push(case(format!("softmax_grad {dims:?}"), move |b| {
            let (y, dy) = (b.rows(dims), b.rows(dims));
            b.push(Op::SoftmaxGrad, &[y, dy])
        }));
        cases.push(case(format!("sparse_xent {dims:?}"), move |b| {
            let x = b.rows(dims);
            let labels = b.labels(&dims[..dims.len() - 1], 4);
            b.push(Op::SparseXent, &[x, labels])
        }));
    }
    // GPUs pad this many classes to a multiple of 8.
    cases.push(case("sparse_xent of a product with 517 columns", |b| {
        let (x, w, labels) = (b.rows(&[2, 3]), b.param(&[3, 517]), b.labels(&[2], 517));
        let logits = b.push(Op::MatMul(Contraction::matrices(0)), &[x, w]);
        b.push(Op::SparseXent, &[logits, labels])
    }));
    cases
}

pub fn index_and_random_cases() -> Vec<Case> {
    let mut cases = vec![];
    for dims in [&[][..], &[4], &[2, 2]] {
        // The table has fewer rows than there are indices, so some rows are used twice.
        cases.push(case(format!("gather {dims:?}"), move |b| {
            let table = b.param(&[3, 2]);
            let index = b.labels(dims, 3);
            b.push(Op::Gather, &[table, index])
        }));
    }
    cases.extend(take_cases());
    cases.extend(sort_cases());
    for noise in [[2, 3, 4], [1, 3, 4], [2, 1, 4], [1, 1, 1]] {
        cases.push(case(format!("dropout {noise:?}"), move |b| {
            let x = b.rows(&[2, 3, 4]);
            b.push(Op::Dropout { rate: 0.4.into(), key: 3, noise: noise.to_vec() }, &[x])
        }));
    }
    cases
}

/// Images through random maps (rotated, scaled, shifted), and outputs of other sizes.
pub fn sample_cases() -> Vec<Case> {
    let modes = [FillMode::Constant, FillMode::Nearest, FillMode::Reflect, FillMode::Wrap];
    let mut cases = vec![];
    for (fill, bilinear) in modes.into_iter().flat_map(|m| [(m, false), (m, true)]) {
        for output in [[4, 3], [2, 7], [1, 1]] {
            let input = [4, 3, 2];
            let geom = SampleGeom { input, output, fill, fill_value: 0.7.into(), bilinear };
            cases.push(case(format!("affine_sample {geom}"), move |b| {
                let x = b.rows(&input);
                let (key, dims) = (5, vec![6]);
                let matrix = b.push(Op::Uniform { key, dims }, &[]);
                let matrix = b.g.scale(matrix, 3.0).expect("fits");
                let matrix = b.g.offset(matrix, -1.3).expect("fits");
                b.push(Op::AffineSample(geom), &[x, matrix])
            }));
        }
    }
    cases
}

/// `x → moments → all_reduce → batch_stats`, and the normalisation by these statistics.
pub fn batch_norm_of(b: &mut Build, x: NodeId, attrs: BatchNormAttrs) -> NodeId {
    let ty = b.g.ty(x).clone();
    let channels = ty.last();
    let (gamma, beta) = (b.param(&[channels]), b.param(&[channels]));
    let sums = b.push(Op::Moments, &[x]);
    let sums = b.push(Op::AllReduce { scope: attrs.scope }, &[sums]);
    let positions = ty.len() / channels;
    let stats = b.push(Op::BatchStats { scope: attrs.scope, positions }, &[sums]);
    b.push(Op::BatchNorm(attrs), &[x, stats, gamma, beta])
}

fn batch_norm(b: &mut Build, dims: &[usize], attrs: BatchNormAttrs) -> NodeId {
    let x = b.rows(dims);
    batch_norm_of(b, x, attrs)
}

pub fn norm_cases() -> Vec<Case> {
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
    for rms in [false, true] {
        let op = Op::LayerNorm(LayerNormAttrs { epsilon: 1e-3.into(), rms });
        cases.extend(on_both(&format!("layer_norm rms {rms}"), op, &[3, 7]));
    }
    cases
}

pub fn shared_cases() -> Vec<Case> {
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
        // A concatenation of the operand and the result of a product, in either order.
        case("a node beside its convolution", |b| {
            let [x, y] = convolved(b);
            b.push(Op::Concat { axis: 2 }, &[x, y])
        }),
        case("a convolution beside its operand", |b| {
            let [x, y] = convolved(b);
            b.push(Op::Concat { axis: 2 }, &[y, x])
        }),
        case("a chain of products side by side", |b| {
            let (x, v, w) = (b.rows(&[2, 3]), b.param(&[3, 4]), b.param(&[4, 5]));
            let x = b.g.unary(Unary::Tanh, x).expect("fits");
            let y = b.push(Op::Dot(Epilogue::default()), &[x, v]);
            let z = b.push(Op::Dot(Epilogue::default()), &[y, w]);
            b.push(Op::Concat { axis: 1 }, &[z, x, y])
        }),
    ]
}

/// A computed image and its convolution.
fn convolved(b: &mut Build) -> [NodeId; 2] {
    let x = b.rows(&[3, 3, 2]);
    let x = b.g.unary(Unary::Tanh, x).expect("fits");
    let geom = ConvGeom::new([3, 3, 2], 4, Window::new([3, 3], [1, 1], Padding::Same));
    let geom = geom.expect("fits");
    let w = b.param(&geom.kernel_dims());
    [x, b.push(Op::Conv(geom, Epilogue::default()), &[x, w])]
}
