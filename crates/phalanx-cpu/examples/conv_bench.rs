//! Speed of the dense and convolution kernels on one thread, in GFLOP/s:
//! `cargo run --release -p phalanx-cpu --example conv_bench [isa]`.
//!
//! Multiplications by padding count, as is usual. Each number is the best of several repetitions.

use std::time::Instant;

use phalanx_cpu::kernels::conv::{self, Conv};
use phalanx_cpu::kernels::dot;
use phalanx_cpu::kernels::matrix::{Epilogue, MatrixMut, MatrixRef};
use phalanx_cpu::simd::Isa;
use phalanx_graph::{ConvGeom, Padding, Window};

/// Seconds spent on each measurement.
const SECONDS: f64 = 0.15;

/// The epilogue of a layer without bias.
const RELU: Epilogue<'_> = Epilogue { bias: None, relu: true };

/// Floats aligned to a cache line, like the executor's buffers.
struct Buffer(Vec<f32>, usize);

impl Buffer {
    fn new(len: usize) -> Buffer {
        let data: Vec<f32> = (0..len + 16).map(|i| (i * 7919 % 1000) as f32 * 1e-3 - 0.5).collect();
        let skip = data.as_ptr().align_offset(64);
        Buffer(data, skip)
    }

    fn get(&mut self) -> &mut [f32] {
        &mut self.0[self.1..]
    }
}

/// GFLOP/s of the fastest call.
fn speed(macs: usize, mut work: impl FnMut()) -> f64 {
    work();
    let (begin, mut best) = (Instant::now(), f64::INFINITY);
    while begin.elapsed().as_secs_f64() < SECONDS {
        let start = Instant::now();
        work();
        best = best.min(start.elapsed().as_secs_f64());
    }
    2.0 * macs as f64 / best * 1e-9
}

/// Prints one line. A star marks the method that `Method::choose` selects.
fn print(name: &str, speeds: [f64; 3], chosen: [bool; 3]) {
    print!("{name:44}");
    for (speed, chosen) in speeds.into_iter().zip(chosen) {
        print!(" {speed:8.1}{}", if chosen { '*' } else { ' ' });
    }
    println!();
}

fn bench_conv(
    isa: Isa,
    rows: usize,
    size: usize,
    channels: [usize; 2],
    window: [usize; 2],
    padding: Padding,
) {
    let ([cin, cout], [kernel, stride]) = (channels, window);
    let geom =
        ConvGeom::new([size, size, cin], cout, Window::new([kernel; 2], [stride; 2], padding))
            .expect("the window fits");
    let mut x = Buffer::new(rows * geom.input_len());
    let mut y = Buffer::new(rows * geom.output_len());
    let mut w = Buffer::new(geom.kernel_dims().iter().product());
    let (x, y, w) = (x.get(), y.get(), w.get());
    let macs = rows * geom.macs();
    let [from, to] = [geom.input, geom.output].map(|[height, width, _]| rows * height * width);
    let passes = [conv::Pass::Forward, conv::Pass::GradInput, conv::Pass::GradKernel];
    let chosen = passes.map(|pass| conv::Method::choose(&geom, pass, rows));
    for method in [conv::Method::Direct, conv::Method::Winograd2, conv::Method::Winograd4] {
        if !method.computes(&geom) {
            continue;
        }
        let needed = passes.map(|pass| conv::scratch_len(method, &geom, pass));
        let mut scratch = Buffer::new(needed.into_iter().max().unwrap_or(0));
        let room = scratch.get();
        let conv = Conv { isa, method, geom: &geom, rows };
        let speeds = [
            speed(macs, || {
                let (x, y) =
                    (MatrixRef::contiguous(x, from, cin), MatrixMut::contiguous(y, to, cout));
                conv.forward(x, w, RELU, y, room);
            }),
            speed(macs, || {
                let (y, x) =
                    (MatrixRef::contiguous(y, to, cout), MatrixMut::contiguous(x, from, cin));
                conv.grad_input(y, w, x, room);
            }),
            speed(macs, || {
                let (x, y) =
                    (MatrixRef::contiguous(x, from, cin), MatrixRef::contiguous(y, to, cout));
                conv.grad_kernel(x, y, w, room);
            }),
        ];
        let name = format!("{rows} x {size}x{size} {cin}->{cout} {kernel}x{kernel}/{stride}");
        print(&format!("{name} {method:?}"), speeds, chosen.map(|c| c == method));
    }
}

fn bench_dot(isa: Isa, [m, k, n]: [usize; 3]) {
    let (mut x, mut y) = (Buffer::new(m * k), Buffer::new(m * n));
    let (mut w, mut scratch) = (Buffer::new(k * n), Buffer::new(dot::scratch_len(k, n)));
    let (x, y, w, room) = (x.get(), y.get(), w.get(), scratch.get());
    let macs = m * k * n;
    let speeds = [
        speed(macs, || {
            let (x, w) = (MatrixRef::contiguous(x, m, k), MatrixRef::contiguous(w, k, n));
            dot::forward(isa, x, w, RELU, MatrixMut::contiguous(y, m, n), room);
        }),
        speed(macs, || {
            let (y, w) = (MatrixRef::contiguous(y, m, n), MatrixRef::contiguous(w, k, n));
            dot::grad_input(isa, y, w, MatrixMut::contiguous(x, m, k), room);
        }),
        speed(macs, || {
            let (x, y) = (MatrixRef::contiguous(x, m, k), MatrixRef::contiguous(y, m, n));
            dot::grad_weight(isa, x, y, MatrixMut::contiguous(w, k, n));
        }),
    ];
    print(&format!("dense {m}x{k}x{n}"), speeds, [true; 3]);
}

fn main() {
    use Padding::{Same, Valid};
    let wanted = std::env::args().nth(1);
    let isa = Isa::available()
        .into_iter()
        .find(|isa| wanted.as_deref() == Some(&isa.to_string()))
        .unwrap_or(Isa::available()[0]);
    println!(
        "{:44} {:>8}  {:>8}  {:>8}",
        format!("{isa}, GFLOP/s"),
        "forward",
        "d input",
        "d kernel"
    );
    // The small networks: a number of rows that fits the second-level cache, and the rows of one worker.
    bench_conv(isa, 2, 28, [1, 32], [3, 1], Valid);
    bench_conv(isa, 32, 28, [1, 32], [3, 1], Valid);
    // MiniGoogLeNet.
    bench_conv(isa, 16, 32, [3, 96], [3, 1], Same);
    bench_conv(isa, 16, 32, [96, 32], [1, 1], Same);
    bench_conv(isa, 16, 32, [96, 32], [3, 1], Same);
    bench_conv(isa, 16, 32, [64, 48], [3, 1], Same);
    bench_conv(isa, 16, 32, [80, 80], [3, 2], Valid);
    bench_conv(isa, 16, 15, [160, 96], [3, 1], Same);
    bench_conv(isa, 16, 15, [112, 48], [3, 1], Same);
    bench_conv(isa, 16, 7, [240, 176], [1, 1], Same);
    bench_conv(isa, 16, 7, [240, 160], [3, 1], Same);
    // ResNet50.
    bench_conv(isa, 4, 224, [3, 64], [7, 2], Same);
    bench_conv(isa, 4, 56, [64, 64], [3, 1], Same);
    bench_conv(isa, 4, 56, [256, 64], [1, 1], Same);
    bench_conv(isa, 8, 14, [256, 256], [3, 1], Same);
    bench_conv(isa, 8, 7, [512, 512], [3, 1], Same);
    bench_dot(isa, [32, 784, 256]);
    bench_dot(isa, [64, 5408, 64]);
}
