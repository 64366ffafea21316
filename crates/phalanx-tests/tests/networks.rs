//! The gradients of the tutorial networks on one batch, GPU against CPU. Without a GPU the tests use an
//! emulated one.

use phalanx::prelude::*;
use phalanx::strategy::Backend;
use phalanx_cuda::CudaBackend;
use phalanx_cuda::emulator::Emulator;
use phalanx_testing::needs;
use std::sync::Arc;

/// The GPU of this machine, if it has one.
fn real_gpu() -> Option<CudaBackend> {
    let backend = CudaBackend::new();
    backend.devices().is_ok_and(|gpus| !gpus.is_empty()).then_some(backend)
}

/// Whether products round their operands to TF32, with 10 bits of mantissa.
fn tf32() -> bool {
    real_gpu().is_some() && std::env::var("PHALANX_TF32").map_or(true, |v| v != "0")
}

/// The tolerated distance of gradients, relative to their norm.
fn tolerance() -> f64 {
    if tf32() { 0.1 } else { 1e-2 }
}

/// The GPU of this machine, or an emulated one.
fn gpu() -> MirroredStrategy {
    let backend = real_gpu().unwrap_or_else(|| CudaBackend::emulated(Emulator::new(1)));
    MirroredStrategy::with_backend(Arc::new(backend), ["gpu:0"]).unwrap()
}

/// Noise, and class labels.
fn batch(rows: usize, dims: &[usize]) -> (Tensor, Tensor) {
    let len = rows * dims.iter().product::<usize>();
    let mut state = 12345u32;
    let mut next = || {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (state >> 8) as f32 / (1 << 24) as f32 - 0.5
    };
    let x: Vec<f32> = (0..len).map(|_| next()).collect();
    let mut full = vec![rows];
    full.extend(dims);
    let y = Tensor::new([rows], (0..rows as i32).map(|i| i % 10).collect::<Vec<i32>>()).unwrap();
    (Tensor::new(full, x).unwrap(), y)
}

fn gradients(
    build: &dyn Fn() -> Model,
    logits: bool,
    strategy: MirroredStrategy,
    rows: usize,
    dims: &[usize],
) -> Vec<(String, Tensor)> {
    let loss = SparseCategoricalCrossentropy::default().from_logits(logits);
    let mut model = build();
    model.compile(Compile::new("sgd").loss(loss).strategy(strategy).seed(3)).unwrap();
    let (x, y) = batch(rows, dims);
    model.gradients(&x, &y).unwrap()
}

fn compare(build: impl Fn() -> Model, logits: bool, rows: usize, dims: &[usize]) {
    compare_within(1.0, build, logits, rows, dims);
}

/// Like [`compare`], with `factor` times the default tolerance. Deep untrained networks amplify rounding errors,
/// and a ReLU with an input close to zero may go either way.
fn compare_within(
    factor: f64,
    build: impl Fn() -> Model,
    logits: bool,
    rows: usize,
    dims: &[usize],
) {
    let cpu = gradients(&build, logits, MirroredStrategy::cpus(1).unwrap(), rows, dims);
    let gpu = gradients(&build, logits, gpu(), rows, dims);
    assert_eq!(cpu.len(), gpu.len());
    // The gradient of a bias before batch normalisation is only rounding noise. Distances are therefore relative
    // to at least a thousandth of the largest norm.
    let norm = |v: &mut dyn Iterator<Item = f32>| v.map(|x| f64::from(x * x)).sum::<f64>().sqrt();
    let norm_of = |g: &Tensor| norm(&mut g.f32().unwrap().iter().copied());
    let largest = cpu.iter().map(|(_, g)| norm_of(g)).fold(0.0, f64::max);
    let mut worst = (0.0, "");
    for ((name, a), (other, b)) in cpu.iter().zip(&gpu) {
        assert_eq!(name, other);
        let pairs = a.f32().unwrap().iter().zip(b.f32().unwrap());
        let distance = norm(&mut pairs.map(|(x, y)| x - y)) / norm_of(a).max(1e-3 * largest);
        worst = if distance > worst.0 { (distance, name) } else { worst };
    }
    let (distance, name) = worst;
    eprintln!("{name}: the gradients differ by {distance:.2e} of their norm");
    assert!(
        distance.is_finite() && distance <= factor * tolerance(),
        "{name}: the gradients differ by {distance} of their norm"
    );
}

#[needs(gpu_or_gxx)]
#[test]
fn the_perceptron() {
    compare(|| applications::mnist_mlp(784, 10).unwrap(), true, 32, &[784]);
}

#[needs(gpu_or_gxx)]
#[test]
fn the_convolutional_network() {
    compare(|| applications::mnist_cnn([28, 28, 1], 10).unwrap(), false, 16, &[28, 28, 1]);
}

#[needs(gpu_or_gxx)]
#[test]
fn minigooglenet() {
    let build = || applications::mini_googlenet([32, 32, 3], Some(10)).unwrap();
    compare_within(5.0, build, false, 4, &[32, 32, 3]);
}

#[needs(gpu_or_gxx)]
#[test]
fn resnet50() {
    // TF32 is too coarse for fifty layers: the gradients are only checked to be finite.
    let factor = if tf32() { f64::MAX } else { 5.0 };
    let build = || applications::resnet50([64, 64, 3], Some(10)).unwrap();
    compare_within(factor, build, false, 4, &[64, 64, 3]);
}
