//! Forward values computed by hand. Finite differences only show that derivatives agree with the forward pass;
//! these tests check the forward pass itself.

use super::*;
use phalanx_graph::ops::{
    Access, BatchNormAttrs, Binary, Epilogue, FillMode, Instr, PoolKind, ReduceKind, SampleGeom,
    Tape, Unary,
};
use phalanx_graph::{ConvGeom, DType, Padding, Scope, Space, Window, rng};

/// Builds a graph with feeds, applies ops and evaluates the last node. Values have a leading axis of rows.
struct Bench {
    g: Graph,
    bindings: Bindings,
    rows: usize,
}

impl Bench {
    fn new(rows: usize) -> Bench {
        Bench { g: Graph::new(), bindings: Bindings::default(), rows }
    }

    fn feed(&mut self, space: Space, value: Value) -> NodeId {
        let dtype = match value.data {
            Data::Float(_) => DType::F32,
            Data::Int(_) => DType::I32,
        };
        let skip = usize::from(space == Space::Rows);
        let id = self.g.add_feed("x", Type::new(dtype, space, &value.dims[skip..]));
        self.bindings.feeds.push(value);
        self.g.feed(id)
    }

    fn rows(&mut self, dims: &[usize], data: &[f64]) -> NodeId {
        let dims = [&[self.rows], dims].concat();
        self.feed(Space::Rows, Value::float(dims, data.to_vec()))
    }

    fn labels(&mut self, data: &[i32]) -> NodeId {
        self.feed(Space::Rows, Value::int([self.rows], data.to_vec()))
    }

    fn mirrored(&mut self, dims: &[usize], data: &[f64]) -> NodeId {
        self.feed(Space::Mirrored, Value::float(dims, data.to_vec()))
    }

    fn value(&mut self, op: Op, inputs: &[NodeId]) -> Value {
        let y = self.g.push(op, inputs).expect("fits");
        self.g.verify("test").expect("verified");
        let ctx = Context { rows: self.rows, seed: 7, step: 3 };
        evaluate(&self.g, &[y], &self.bindings, &ctx).remove(0)
    }

    fn floats(&mut self, op: Op, inputs: &[NodeId]) -> Vec<f64> {
        self.value(op, inputs).floats().to_vec()
    }
}

fn close(a: &[f64], b: &[f64]) {
    assert_eq!(a.len(), b.len(), "{a:?} {b:?}");
    for (x, y) in a.iter().zip(b) {
        assert!((x - y).abs() < 1e-12 || x.is_nan() && y.is_nan(), "{a:?} instead of {b:?}");
    }
}

fn geom(
    input: [usize; 3],
    filters: usize,
    kernel: usize,
    stride: usize,
    padding: Padding,
) -> ConvGeom {
    ConvGeom::new(input, filters, Window::new([kernel; 2], [stride; 2], padding)).expect("fits")
}

fn count(n: usize) -> Vec<f64> {
    (1..=n).map(|v| v as f64).collect()
}

#[test]
fn numbers() {
    let mut b = Bench::new(1);
    let x = b.rows(&[4], &[-1.5, 0.0, 0.5, f64::NAN]);
    let nan = f64::NAN;
    close(&b.floats(Op::Unary(Unary::Sign), &[x]), &[-1.0, 0.0, 1.0, nan]);
    close(&b.floats(Op::Unary(Unary::Relu), &[x]), &[0.0, 0.0, 0.5, nan]);
    close(&b.floats(Op::Unary(Unary::Floor), &[x]), &[-2.0, 0.0, 0.0, nan]);
    // erf(-1.5), erf(0.5): Abramowitz & Stegun, table 7.1, and more digits by its series.
    let erf = [-0.966_105_146_475_310_7, 0.0, 0.520_499_877_813_046_5, nan];
    close(&b.floats(Op::Unary(Unary::Erf), &[x]), &erf);
    let y = b.rows(&[4], &[0.0, 0.0, f64::NAN, 1.0]);
    close(&b.floats(Op::Binary(Binary::Max), &[x, y]), &[0.0, 0.0, nan, nan]);
    close(&b.floats(Op::Binary(Binary::Min), &[x, y]), &[-1.5, 0.0, nan, nan]);
    close(&b.floats(Op::Binary(Binary::Ge), &[x, y]), &[0.0, 1.0, 0.0, 0.0]);
    assert_eq!(b.value(Op::Cast { dtype: DType::I32 }, &[x]).ints(), [-1, 0, 0, 0]);
}

#[test]
fn a_tape_reads_operands_in_every_way() {
    let mut b = Bench::new(2);
    let full = b.rows(&[2, 2], &count(8));
    let scalar = b.mirrored(&[], &[100.0]);
    let suffix = b.mirrored(&[2], &[10.0, 20.0]);
    let prefix = b.rows(&[2, 1], &[1000.0, 2000.0, 3000.0, 4000.0]);
    let tape = Tape {
        inputs: vec![Access::Full, Access::Scalar, Access::Suffix(2), Access::Prefix(2)],
        instrs: vec![
            Instr::Input(0),
            Instr::Input(1),
            Instr::Input(2),
            Instr::Input(3),
            Instr::Binary(Binary::Add, 0, 1),
            Instr::Binary(Binary::Add, 4, 2),
            Instr::Binary(Binary::Add, 5, 3),
        ],
        outputs: vec![6],
    };
    let got = b.floats(Op::Fused(tape), &[full, scalar, suffix, prefix]);
    close(&got, &[1111.0, 1122.0, 2113.0, 2124.0, 3115.0, 3126.0, 4117.0, 4128.0]);
}

#[test]
fn reductions_and_layout() {
    let mut b = Bench::new(1);
    let x = b.rows(&[2, 3], &[1.0, 5.0, 3.0, 4.0, 2.0, 6.0]);
    let reduce = |kind, axes: &[usize]| Op::Reduce { kind, axes: axes.to_vec() };
    close(&b.floats(reduce(ReduceKind::Sum, &[0]), &[x]), &[5.0, 7.0, 9.0]);
    close(&b.floats(reduce(ReduceKind::Max, &[1]), &[x]), &[5.0, 6.0]);
    let t = b.floats(Op::Transpose { perm: vec![1, 0] }, &[x]);
    close(&t, &[1.0, 4.0, 5.0, 2.0, 3.0, 6.0]);
    let s = b.floats(Op::Slice { axis: 1, start: 1, len: 2 }, &[x]);
    close(&s, &[5.0, 3.0, 2.0, 6.0]);
    let p = b.floats(Op::Pad { before: vec![0, 1], after: vec![1, 0] }, &[x]);
    close(&p, &[0.0, 1.0, 5.0, 3.0, 0.0, 4.0, 2.0, 6.0, 0.0, 0.0, 0.0, 0.0]);
    let c = b.floats(Op::Concat { axis: 1 }, &[x, x]);
    close(&c, &[1.0, 5.0, 3.0, 1.0, 5.0, 3.0, 4.0, 2.0, 6.0, 4.0, 2.0, 6.0]);
    let v = b.rows(&[2, 1], &[7.0, 8.0]);
    let r = b.floats(Op::Broadcast { dims: vec![2, 2, 2] }, &[v]);
    close(&r, &[7.0, 7.0, 8.0, 8.0, 7.0, 7.0, 8.0, 8.0]);

    let mut b = Bench::new(2);
    let x = b.rows(&[2], &count(4));
    close(&b.floats(Op::SumRows, &[x]), &[4.0, 6.0]);
}

#[test]
fn upsampling_has_half_pixel_centres() {
    let mut b = Bench::new(1);
    let x = b.rows(&[1, 2, 1], &[0.0, 4.0]);
    let up = |bilinear| Op::Upsample { size: [1, 2], bilinear };
    close(&b.floats(up(false), &[x]), &[0.0, 0.0, 4.0, 4.0]);
    close(&b.floats(up(true), &[x]), &[0.0, 1.0, 3.0, 4.0]);
}

#[test]
fn products() {
    let mut b = Bench::new(1);
    let x = b.rows(&[2, 2], &count(4));
    let w = b.mirrored(&[2, 2], &[1.0, -1.0, 0.0, 2.0]);
    let bias = b.mirrored(&[2], &[0.5, -4.0]);
    close(&b.floats(Op::Dot(Epilogue::default()), &[x, w]), &[1.0, 3.0, 3.0, 5.0]);
    let e = Epilogue { bias: true, relu: true };
    close(&b.floats(Op::Dot(e), &[x, w, bias]), &[1.5, 0.0, 3.5, 1.0]);
}

#[test]
fn convolution_puts_the_odd_padding_at_the_end() {
    let mut b = Bench::new(1);
    let x = b.rows(&[4, 4, 1], &count(16));
    let w = b.mirrored(&[3, 3, 1, 1], &[1.0; 9]);
    let conv = |g| Op::Conv(g, Epilogue::default());
    let valid = b.floats(conv(geom([4, 4, 1], 1, 3, 1, Padding::Valid)), &[x, w]);
    close(&valid, &[54.0, 63.0, 90.0, 99.0]);
    // Even size, stride 2: no padding at the top and left, one row and column at the far end.
    let same = b.floats(conv(geom([4, 4, 1], 1, 3, 2, Padding::Same)), &[x, w]);
    close(&same, &[54.0, 45.0, 72.0, 54.0]);
}

#[test]
fn convolution_orders_taps_channels_and_groups() {
    let mut b = Bench::new(1);
    let x = b.rows(&[1, 3, 2], &count(6));
    // Two taps, two channels in, one out: 1·x[p,0] + 10·x[p,1] + 100·x[p+1,0] + 1000·x[p+1,1].
    let w = b.mirrored(&[1, 2, 2, 1], &[1.0, 10.0, 100.0, 1000.0]);
    let g = |filters, dilation, groups| {
        let window = Window::new([1, 2], [1, 1], Padding::Valid);
        ConvGeom::new([1, 3, 2], filters, Window { dilation, groups, ..window })
    };
    let conv = |g: Option<ConvGeom>| Op::Conv(g.expect("fits"), Epilogue::default());
    close(&b.floats(conv(g(1, [1, 1], 1)), &[x, w]), &[4321.0, 6543.0]);
    close(&b.floats(conv(g(1, [1, 2], 1)), &[x, w]), &[6521.0]);
    // Two groups of one channel: kernel [1, 2, 1, 4], filters 0 and 1 read only channel 0.
    let w = b.mirrored(&[1, 2, 1, 4], &count(8));
    let grouped = b.floats(conv(g(4, [1, 2], 2)), &[x, w]);
    let [first, last] = [[1.0, 2.0], [5.0, 6.0]];
    let want = [
        first[0] + 5.0 * last[0],
        2.0 * first[0] + 6.0 * last[0],
        3.0 * first[1] + 7.0 * last[1],
        4.0 * first[1] + 8.0 * last[1],
    ];
    close(&grouped, &want);
}

#[test]
fn pooling_ignores_padding_and_breaks_ties_at_the_first() {
    let mut b = Bench::new(1);
    let x = b.rows(&[3, 3, 1], &[-1.0, -2.0, -3.0, -4.0, -5.0, -6.0, -7.0, -8.0, -9.0]);
    let g = geom([3, 3, 1], 1, 2, 2, Padding::Same);
    close(&b.floats(Op::Pool(PoolKind::Max, g), &[x]), &[-1.0, -3.0, -7.0, -9.0]);
    close(&b.floats(Op::Pool(PoolKind::Average, g), &[x]), &[-3.0, -4.5, -7.5, -9.0]);

    let g = geom([2, 2, 1], 1, 2, 1, Padding::Valid);
    let x = b.rows(&[2, 2, 1], &[0.0, 5.0, 5.0, 5.0]);
    let y = b.g.push(Op::Pool(PoolKind::Max, g), &[x]).expect("fits");
    let dy = b.rows(&[1, 1, 1], &[2.0]);
    close(&b.floats(Op::PoolGrad(PoolKind::Max, g), &[x, y, dy]), &[0.0, 2.0, 0.0, 0.0]);
}

#[test]
fn softmax_and_crossentropy() {
    let mut b = Bench::new(2);
    let x = b.rows(&[2], &[1000.0, 1000.0, 0.0, 3f64.ln()]);
    close(&b.floats(Op::Softmax, &[x]), &[0.5, 0.5, 0.25, 0.75]);
    let half = 0.5f64.ln();
    close(&b.floats(Op::LogSoftmax, &[x]), &[half, half, 0.25f64.ln(), 0.75f64.ln()]);
    let masked = b.rows(&[2], &[-1e38, -1e38, -1e38, 0.0]);
    close(&b.floats(Op::Softmax, &[masked]), &[0.5, 0.5, 0.0, 1.0]);
    let labels = b.labels(&[0, 1]);
    close(&b.floats(Op::SparseXent, &[x, labels]), &[-half, -(0.75f64.ln())]);
    let outside = b.labels(&[2, -1]);
    close(&b.floats(Op::SparseXent, &[x, outside]), &[f64::NAN, f64::NAN]);
    let dy = b.rows(&[], &[1.0, 2.0]);
    let d = b.floats(Op::SparseXentGrad, &[x, labels, dy]);
    close(&d, &[-0.5, 0.5, 0.5, -0.5]);
}

#[test]
fn indices() {
    let mut b = Bench::new(3);
    let table = b.mirrored(&[2, 2], &count(4));
    let index = b.labels(&[1, 2, -1]);
    let nan = f64::NAN;
    close(&b.floats(Op::Gather, &[table, index]), &[3.0, 4.0, nan, nan, nan, nan]);
    close(&b.floats(Op::OneHot { depth: 2 }, &[index]), &[0.0, 1.0, 0.0, 0.0, 0.0, 0.0]);
    let dy = b.rows(&[2], &count(6));
    close(&b.floats(Op::GatherGrad { vocab: 2 }, &[index, dy]), &[0.0, 0.0, 1.0, 2.0]);
    let x = b.rows(&[3], &[1.0, 3.0, 3.0, 2.0, 1.0, 0.0, 0.0, 0.0, 5.0]);
    assert_eq!(b.value(Op::ArgMax, &[x]).ints(), [1, 0, 2]);
}

#[test]
fn ties_are_inside_the_top_k_and_non_finite_scores_are_not() {
    let mut b = Bench::new(4);
    let inf = f64::INFINITY;
    let scores = [3.0, 2.0, 2.0, 3.0, 2.0, 1.0, 3.0, 2.0, inf, 1.0, 1.0, 1.0];
    let x = b.rows(&[3], &scores);
    let labels = b.labels(&[2, 2, 0, 3]);
    close(&b.floats(Op::InTopK { k: 2 }, &[x, labels]), &[1.0, 0.0, 0.0, 0.0]);
}

#[test]
fn threshold_counts_reach_beyond_both_ends() {
    let mut b = Bench::new(4);
    let score = b.rows(&[], &[0.0, 0.5, 1.0, 0.7]);
    let label = b.rows(&[], &[1.0, 1.0, 1.0, 0.0]);
    let weight = b.rows(&[], &[1.0, 2.0, 4.0, 8.0]);
    let counts = b.floats(Op::ThresholdCounts { n: 3 }, &[score, label, weight]);
    close(&counts, &[7.0, 4.0, 0.0, 8.0, 8.0, 0.0]);
}

#[test]
fn dropout_follows_the_counter() {
    let mut b = Bench::new(2);
    let x = b.rows(&[3, 2], &[1.0; 12]);
    let drop = |noise: &[usize]| Op::Dropout { rate: 0.5.into(), key: 9, noise: noise.to_vec() };
    let draw = rng::Draw { seed: 7, step: 3, stream: 9 };
    let kept = |row: u32, e: usize| {
        let word = draw.words(row, (e / 4) as u32)[e % 4];
        if rng::unit(word) >= 0.5 { 2.0 } else { 0.0 }
    };
    let own: Vec<f64> = (0..12).map(|i| kept(i as u32 / 6, i % 6)).collect();
    close(&b.floats(drop(&[3, 2]), &[x]), &own);
    let shared: Vec<f64> = (0..12).map(|i| kept(i as u32 / 6, i % 2)).collect();
    close(&b.floats(drop(&[1, 2]), &[x]), &shared);
}

#[test]
fn random_numbers_follow_the_counter() {
    let mut b = Bench::new(3);
    let draw = rng::Draw { seed: 7, step: 3, stream: 9 };
    let number = |row: u32, e: usize| f64::from(rng::unit(draw.words(row, (e / 4) as u32)[e % 4]));
    let want: Vec<f64> = (0..18).map(|i| number(i as u32 / 6, i % 6)).collect();
    close(&b.floats(Op::Uniform { key: 9, dims: vec![2, 3] }, &[]), &want);
}

#[test]
fn affine_maps_read_between_pixels_and_beyond_the_border() {
    let mut b = Bench::new(1);
    let x = b.rows(&[2, 2, 1], &[1.0, 2.0, 3.0, 4.0]);
    let geom = |fill, bilinear| {
        let (input, output) = ([2, 2, 1], [1, 3]);
        Op::AffineSample(SampleGeom { input, output, fill, fill_value: 9.0.into(), bilinear })
    };
    // Along a line through the middle of the second row, from half a pixel before it.
    let matrix = b.rows(&[6], &[1.0, 0.0, -0.5, 0.0, 1.0, 1.0]);
    close(&b.floats(geom(FillMode::Constant, true), &[x, matrix]), &[6.0, 3.5, 6.5]);
    close(&b.floats(geom(FillMode::Nearest, true), &[x, matrix]), &[3.0, 3.5, 4.0]);
    close(&b.floats(geom(FillMode::Wrap, true), &[x, matrix]), &[3.5, 3.5, 3.5]);
    // Halves are rounded away from zero.
    close(&b.floats(geom(FillMode::Constant, false), &[x, matrix]), &[9.0, 4.0, 9.0]);
    // A quarter turn: the result's row is a column of the image.
    let matrix = b.rows(&[6], &[0.0, 0.0, 1.0, 1.0, 0.0, 0.0]);
    close(&b.floats(geom(FillMode::Reflect, false), &[x, matrix]), &[2.0, 4.0, 4.0]);
}

#[test]
fn batch_normalisation() {
    let attrs = |relu| BatchNormAttrs { epsilon: 0.0.into(), relu, scope: Scope::All };
    let run = |rows: usize, data: &[f64], relu: bool| {
        let mut b = Bench::new(rows);
        let x = b.rows(&[2, 1], data);
        let sums = b.g.push(Op::Moments, &[x]).expect("fits");
        let sums = b.g.push(Op::AllReduce { scope: Scope::All }, &[sums]).expect("fits");
        let op = Op::BatchStats { scope: Scope::All, positions: 2 };
        let stats = b.g.push(op.clone(), &[sums]).expect("fits");
        let (gamma, beta) = (b.mirrored(&[1], &[2.0]), b.mirrored(&[1], &[1.0]));
        let y = b.floats(Op::BatchNorm(attrs(relu)), &[x, stats, gamma, beta]);
        (b.floats(op, &[sums]), y)
    };
    let (stats, y) = run(2, &[1.0, 1.0, 5.0, 5.0], false);
    close(&stats, &[3.0, 4.0]);
    close(&y, &[-1.0, -1.0, 3.0, 3.0]);
    close(&run(2, &[1.0, 1.0, 5.0, 5.0], true).1, &[0.0, 0.0, 3.0, 3.0]);
    let (stats, y) = run(0, &[], false);
    close(&stats, &[0.0, 0.0]);
    assert!(y.is_empty());
}
