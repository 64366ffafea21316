//! Time of the main kernels on one thread: `cargo bench -p phalanx-cpu [FILTER]`.
//!
//! `Gelem/s` of products and convolutions are GFLOP/s; multiplications by padding count. Other kernels state the
//! bytes they read and write. `PHALANX_ISA` selects the instruction set.

use std::hint::black_box;
use std::time::Duration;

use criterion::measurement::WallTime;
use criterion::{BenchmarkGroup, Criterion, Throughput, criterion_group, criterion_main};
use phalanx_cpu::kernels::conv::{self, Conv, Method, Pass};
use phalanx_cpu::kernels::dot;
use phalanx_cpu::kernels::elementwise::TapePlan;
use phalanx_cpu::kernels::layout::{Dst, Src};
use phalanx_cpu::kernels::matmul::{self, Pointers, Product};
use phalanx_cpu::kernels::matrix::{Epilogue, MatrixMut, MatrixRef};
use phalanx_cpu::kernels::norm::{self, BatchNorm, NormPass, ReducedSums};
use phalanx_cpu::kernels::pool::{self, Windows};
use phalanx_cpu::kernels::reduce::{self, Reduction};
use phalanx_cpu::kernels::softmax::{self, Logits};
use phalanx_cpu::simd::Isa;
use phalanx_graph::ops::matmul::Layout;
use phalanx_graph::ops::{Contraction, PoolKind, ReduceKind, Unary};
use phalanx_graph::update::{RuleBuilder, Slot, SlotInit, UpdateRule};
use phalanx_graph::{ConvGeom, Padding, Window};

/// Floats aligned to a cache line, like the executor's buffers.
struct Buffer {
    data: Vec<f32>,
    skip: usize,
}

impl Buffer {
    fn new(len: usize) -> Buffer {
        let data: Vec<f32> = (0..len + 16).map(|i| (i * 7919 % 1000) as f32 * 1e-3 - 0.5).collect();
        let skip = data.as_ptr().align_offset(64);
        Buffer { data, skip }
    }

    fn get(&mut self) -> &mut [f32] {
        &mut self.data[self.skip..]
    }

    fn src(&mut self, ld: usize) -> Src {
        Src { ptr: self.get().as_ptr(), ld }
    }

    fn dst(&mut self, ld: usize) -> Dst {
        Dst { ptr: self.get().as_mut_ptr(), ld }
    }
}

/// The instruction set that an executor would use.
fn isa() -> Isa {
    Isa::detect().expect("PHALANX_ISA names an instruction set of this processor")
}

/// A group whose kernels do `macs` multiply-adds each.
fn products<'a>(c: &'a mut Criterion, name: &str, macs: usize) -> BenchmarkGroup<'a, WallTime> {
    let mut group = c.benchmark_group(name);
    group.throughput(Throughput::Elements(2 * macs as u64));
    group
}

/// Measures a kernel that reads and writes `floats` floats.
fn memory_bound(
    group: &mut BenchmarkGroup<'_, WallTime>,
    name: &str,
    floats: usize,
    mut work: impl FnMut(),
) {
    group.throughput(Throughput::Bytes(4 * floats as u64));
    group.bench_function(name, |b| b.iter(&mut work));
}

/// Dense layers: of a perceptron, of a recurrent layer and of a small transformer.
fn gemm(c: &mut Criterion) {
    for sizes in [[64, 784, 256], [3200, 128, 256], [3200, 32, 32]] {
        dense(c, sizes);
    }
}

/// The three passes of a dense layer.
fn dense(c: &mut Criterion, [m, k, n]: [usize; 3]) {
    let isa = isa();
    let (mut x, mut y) = (Buffer::new(m * k), Buffer::new(m * n));
    let (mut w, mut scratch) = (Buffer::new(k * n), Buffer::new(dot::scratch_len(k, n)));
    let (x, y, w, scratch) = (x.get(), y.get(), w.get(), scratch.get());
    let bias = vec![0.1; n];
    let epilogue = Epilogue { bias: Some(&bias), relu: true };
    let mut group = products(c, &format!("gemm {m}x{k}x{n}"), m * k * n);
    group.bench_function("forward", |b| {
        b.iter(|| {
            let (x, w) = (MatrixRef::contiguous(x, m, k), MatrixRef::contiguous(w, k, n));
            dot::forward(isa, x, w, epilogue, MatrixMut::contiguous(y, m, n), scratch);
        });
    });
    group.bench_function("grad_input", |b| {
        b.iter(|| {
            let (dy, w) = (MatrixRef::contiguous(y, m, n), MatrixRef::contiguous(w, k, n));
            dot::grad_input(isa, dy, w, MatrixMut::contiguous(x, m, k), scratch);
        });
    });
    group.bench_function("grad_weight", |b| {
        b.iter(|| {
            let (x, dy) = (MatrixRef::contiguous(x, m, k), MatrixRef::contiguous(y, m, n));
            dot::grad_weight(isa, x, dy, MatrixMut::contiguous(w, k, n));
        });
    });
}

/// The products of attention, two heads of 16 over 200 positions, and of its gradients. `a` is a head, `b` and `c` are
/// positions, `d` is the width of a head.
fn attention(c: &mut Criterion) {
    const SIZES: [usize; 4] = [2, 200, 200, 16];
    let (isa, rows) = (isa(), 16);
    let dims = |labels: &str| -> Vec<usize> {
        labels.bytes().map(|l| SIZES[usize::from(l - b'a')]).collect()
    };
    let mut buffers = [0; 3].map(|_| Buffer::new(rows * 2 * 200 * 200));
    let [left, right, result] = &mut buffers;
    let at = Pointers {
        left: left.get().as_ptr(),
        right: right.get().as_ptr(),
        result: result.get().as_mut_ptr(),
    };
    let mut scratch = Buffer::new(matmul::scratch_len());
    let scratch = scratch.get();
    let mut group = products(c, "attention 2x200x16", rows * SIZES.iter().product::<usize>());
    for (name, [l, r, y]) in [
        ("scores", ["bad", "cad", "abc"]),
        ("values", ["abc", "cad", "bad"]),
        ("grad_values", ["bad", "abc", "cad"]),
        ("grad_keys", ["abc", "bad", "cad"]),
    ] {
        let contraction = Contraction::new(l.as_bytes(), r.as_bytes(), y.as_bytes(), false);
        let [l, r, y] = [l, r, y].map(dims);
        let layout = |dims| Layout { dims, ld: *<[usize]>::last(dims).unwrap(), rows: Some(rows) };
        let product = Product::new(&contraction.axes(layout(&l), layout(&r), layout(&y)));
        group.bench_function(name, |b| {
            // SAFETY: the buffers hold the largest operand.
            b.iter(|| unsafe { product.run(isa, at, 0..product.items(), scratch) });
        });
    }
}

/// The three passes of a convolution.
fn conv_passes(c: &mut Criterion, name: &str, geom: &ConvGeom, method: Method) {
    let rows = 8;
    let ([height, width, cin], [out_height, out_width, cout]) = (geom.input, geom.output);
    let (from, to) = (rows * height * width, rows * out_height * out_width);
    let needed = [Pass::Forward, Pass::GradInput, Pass::GradKernel];
    let needed = needed.map(|pass| conv::scratch_len(method, geom, pass));
    let (mut x, mut y) = (Buffer::new(from * cin), Buffer::new(to * cout));
    let mut w = Buffer::new(geom.kernel_dims().iter().product());
    let mut scratch = Buffer::new(needed.into_iter().max().unwrap_or(0));
    let (x, y, w, scratch) = (x.get(), y.get(), w.get(), scratch.get());
    let conv = Conv { isa: isa(), method, geom, rows };
    let mut group = products(c, name, rows * geom.macs());
    group.bench_function("forward", |b| {
        b.iter(|| {
            let x = MatrixRef::contiguous(x, from, cin);
            conv.forward(x, w, Epilogue::NONE, MatrixMut::contiguous(y, to, cout), scratch);
        });
    });
    group.bench_function("grad_input", |b| {
        b.iter(|| {
            let dy = MatrixRef::contiguous(y, to, cout);
            conv.grad_input(dy, w, MatrixMut::contiguous(x, from, cin), scratch);
        });
    });
    group.bench_function("grad_kernel", |b| {
        b.iter(|| {
            let (x, dy) = (MatrixRef::contiguous(x, from, cin), MatrixRef::contiguous(y, to, cout));
            conv.grad_kernel(x, dy, w, scratch);
        });
    });
}

/// 3x3 windows of stride one on 8 images of 32x32 pixels.
fn convolution(c: &mut Criterion) {
    let geometry = |filters, groups| {
        ConvGeom::new(
            [32, 32, 96],
            filters,
            Window { groups, ..Window::new([3; 2], [1; 2], Padding::Same) },
        )
        .expect("the window fits")
    };
    conv_passes(c, "conv direct 96->32", &geometry(32, 1), Method::Direct);
    conv_passes(c, "conv winograd4 96->32", &geometry(32, 1), Method::Winograd4);
    conv_passes(c, "conv depthwise 96", &geometry(96, 96), Method::Direct);
}

/// Batch normalisation of 8 images of 32x32 pixels, with a ReLU.
fn batch_norm(c: &mut Criterion) {
    let (isa, pixels, channels) = (isa(), 8 * 32 * 32, 96);
    let len = pixels * channels;
    let (mut x, mut dy, mut y) = (Buffer::new(len), Buffer::new(len), Buffer::new(len));
    let (x, dy, y) = (x.src(channels), dy.src(channels), y.dst(channels));
    let stats: Vec<f32> = [vec![0.1; channels], vec![0.9; channels]].concat();
    let (gamma, beta) = (vec![1.1; channels], vec![0.2; channels]);
    let norm = BatchNorm { stats: &stats, gamma: &gamma, beta: &beta, epsilon: 1e-3, relu: true };
    let pass = NormPass { norm, pixels, x };
    let (mut wide, mut sums) = (vec![0.0; 2 * channels], vec![0.0; 2 * channels]);
    let mut scratch = vec![0.0; 4 * channels];
    let mut group = c.benchmark_group("batch_norm 8x32x32x96");
    memory_bound(&mut group, "moments", len, || {
        // SAFETY: the input has this many pixels.
        unsafe { norm::moments(isa, pixels, channels, x, &mut wide) };
    });
    memory_bound(&mut group, "normalize", 2 * len, || {
        // SAFETY: input and result have this many pixels.
        unsafe { norm::normalize(isa, &pass, y, &mut scratch) };
    });
    memory_bound(&mut group, "grad_sums", 2 * len, || {
        // SAFETY: both operands have this many pixels.
        unsafe { norm::grad_sums(isa, &pass, dy, &mut sums, &mut wide, &mut scratch) };
    });
    memory_bound(&mut group, "grad_input", 3 * len, || {
        let reduced = ReducedSums { sums: &sums, count: pixels as f64 };
        // SAFETY: operands and result have this many pixels.
        unsafe { norm::grad_input(isa, &pass, dy, reduced, y, &mut scratch) };
    });
}

/// 3x3 windows of stride two on 8 images of 32x32 pixels.
fn pooling(c: &mut Criterion) {
    let (isa, channels) = (isa(), 96);
    let input = [32, 32, channels];
    let geom = ConvGeom::new(input, channels, Window::new([3; 2], [2; 2], Padding::Same))
        .expect("the window fits");
    let windows = Windows { geom: &geom, rows: 8 };
    let (from, to) = (8 * geom.input_len(), 8 * geom.output_len());
    let (mut x, mut dx) = (Buffer::new(from), Buffer::new(from));
    let (mut y, mut dy) = (Buffer::new(to), Buffer::new(to));
    let (x, dx, dy) = (x.src(channels), dx.dst(channels), dy.src(channels));
    let (pooled, y) = (y.dst(channels), y.src(channels));
    let mut group = c.benchmark_group("pool 8x32x32x96 3x3/2");
    for (name, kind) in [("average", PoolKind::Average), ("max", PoolKind::Max)] {
        memory_bound(&mut group, name, from + to, || {
            // SAFETY: input and result have the images of the geometry.
            unsafe { pool::pool(isa, kind, windows, x, pooled) };
        });
    }
    memory_bound(&mut group, "max_grad", 2 * (from + to), || {
        // SAFETY: all operands have the images of the geometry.
        unsafe { pool::max_grad(isa, windows, x, y, dy, dx) };
    });
    memory_bound(&mut group, "average_grad", from + to, || {
        // SAFETY: both operands have the images of the geometry.
        unsafe { pool::average_grad(isa, windows, dy, dx) };
    });
}

/// Sums of 256 rows of 64x64 numbers.
fn reduction(c: &mut Criterion) {
    let (isa, rows, dims) = (isa(), 256, [64, 64]);
    let len = dims[0] * dims[1];
    let (mut x, mut y) = (Buffer::new(rows * len), Buffer::new(rows * len));
    let (x, y) = (x.get().as_ptr(), y.get().as_mut_ptr());
    let mut group = c.benchmark_group("reduce 256x64x64");
    memory_bound(&mut group, "sum_rows", rows * len, || {
        // SAFETY: both hold the rows.
        unsafe { reduce::sum_rows(isa, rows, len, x, y) };
    });
    for (name, axes) in [("sum of the first axis", [0]), ("sum of the last axis", [1])] {
        let reduction = Reduction { kind: ReduceKind::Sum, rows, dims: &dims, axes: &axes };
        memory_bound(&mut group, name, rows * len, || {
            // SAFETY: both hold the rows.
            unsafe { reduction.run(isa, x, y) };
        });
    }
}

/// Adam without bias correction: two slots, one scalar.
fn adam() -> UpdateRule {
    let slot = |name: &str| Slot { name: name.into(), init: SlotInit::Value(0.0) };
    let mut rule = RuleBuilder::new(vec![slot("m"), slot("v")], 1);
    let gradient = rule.gradient();
    let square = rule.mul(gradient, gradient);
    let m = rule.blend(0.9, rule.slot(0), gradient);
    let v = rule.blend(0.999, rule.slot(1), square);
    let (root, epsilon) = (rule.unary(Unary::Sqrt, v), rule.constant(1e-7));
    let deviation = rule.add(root, epsilon);
    let step = rule.mul(rule.scalar(0), m);
    let step = rule.div(step, deviation);
    let weight = rule.sub(rule.weight(), step);
    rule.finish("adam", None, weight, &[m, v])
}

/// The tape of an optimizer on 4,096 weights, the piece that an update works on, and on a million.
fn tape(c: &mut Criterion) {
    let (isa, plan) = (isa(), TapePlan::new(&adam().tape));
    let mut scratch = vec![0.0; plan.scratch_len()];
    let mut group = c.benchmark_group("elementwise tape");
    for len in [4096, 1 << 20] {
        let (mut weight, mut gradient) = (Buffer::new(len), Buffer::new(len));
        let (mut m, mut v) = (Buffer::new(len), Buffer::new(len));
        let rate = [1e-3];
        let rate = Src { ptr: rate.as_ptr(), ld: len };
        let inputs = [weight.src(len), gradient.src(len), m.src(len), v.src(len), rate];
        v.get().fill(0.1);
        let outputs = [weight.dst(len), m.dst(len), v.dst(len)];
        memory_bound(&mut group, &format!("adam {len}"), 7 * len, || {
            // SAFETY: the buffers hold `len` floats, and results replace their operands.
            unsafe { plan.run(isa, len, 0..len, &inputs, &outputs, &mut scratch) };
        });
    }
}

/// 1,024 rows of 1,000 classes.
fn softmax(c: &mut Criterion) {
    let (isa, rows, classes) = (isa(), 1024, 1000);
    let (mut x, mut y) = (Buffer::new(rows * classes), Buffer::new(rows * classes));
    let (mut loss, dy) = (vec![0.0; rows], vec![1.0; rows]);
    let labels: Vec<i32> = (0..rows).map(|row| (row * 7 % classes) as i32).collect();
    let logits = Logits { ptr: x.get().as_ptr(), rows, classes, ld: classes };
    let dx = y.dst(classes);
    let y = dx.ptr;
    let mut group = c.benchmark_group("softmax 1024x1000");
    memory_bound(&mut group, "softmax", 2 * rows * classes, || {
        // SAFETY: both hold the rows.
        unsafe { softmax::softmax(isa, logits, y) };
    });
    memory_bound(&mut group, "sparse_xent", rows * classes, || {
        // SAFETY: all operands hold the rows.
        unsafe { softmax::sparse_xent(isa, logits, labels.as_ptr(), loss.as_mut_ptr()) };
        black_box(&loss);
    });
    memory_bound(&mut group, "sparse_xent_grad", 2 * rows * classes, || {
        // SAFETY: all operands hold the rows.
        unsafe { softmax::sparse_xent_grad(isa, logits, labels.as_ptr(), dy.as_ptr(), dx) };
    });
    memory_bound(&mut group, "softmax_grad", 2 * rows * classes, || {
        // SAFETY: operand and result hold the rows; the result may be the operand.
        unsafe { softmax::softmax_grad(isa, logits, y, y) };
    });
}

criterion_group! {
    name = kernels;
    // About one second for each kernel.
    config = Criterion::default()
        .warm_up_time(Duration::from_millis(200))
        .measurement_time(Duration::from_millis(700))
        .sample_size(20)
        .nresamples(10_000);
    targets = gemm, attention, convolution, batch_norm, pooling, reduction, tape, softmax
}
criterion_main!(kernels);
