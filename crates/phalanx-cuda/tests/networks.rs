//! The gradients of the tutorials' networks on one batch, as a GPU computes them and as the CPU does: on
//! a real GPU where there is one, else on an emulated one.

use phalanx::prelude::*;
use phalanx_cuda::emulator;

/// How far apart gradients may be, as a share of their length: TF32 has 10 bits, and a ReLU whose input is
/// nearly zero falls to either side.
fn tolerance() -> f64 {
    let real = phalanx_cuda::gpus().is_ok_and(|gpus| gpus[0].name != "emulated GPU");
    let tf32 = std::env::var("PHALANX_TF32").map_or(true, |v| v != "0");
    if real && tf32 { 0.1 } else { 1e-2 }
}

/// Whether there is a GPU of any kind; says so where there is not.
fn there_is_a_gpu() -> bool {
    if phalanx_cuda::gpus().is_ok_and(|gpus| !gpus.is_empty()) {
        return true;
    }
    if let Some(why) = emulator::missing() {
        eprintln!("skipped: no GPU, and {why}");
        return false;
    }
    emulator::pretend(1);
    true
}

/// Noise that a network can learn nothing from, and classes.
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
    device: &str,
    rows: usize,
    dims: &[usize],
) -> Vec<(String, Tensor)> {
    let strategy = MirroredStrategy::with_devices([device]).unwrap();
    let loss = SparseCategoricalCrossentropy::default().from_logits(logits);
    let mut model = build();
    model.compile(Compile::new("sgd").loss(loss).strategy(strategy).seed(3)).unwrap();
    let (x, y) = batch(rows, dims);
    model.gradients(&x, &y).unwrap()
}

fn compare(build: impl Fn() -> Model, logits: bool, rows: usize, dims: &[usize]) {
    compare_within(1.0, build, logits, rows, dims);
}

/// With so many times the usual tolerance.
fn compare_within(
    times: f64,
    build: impl Fn() -> Model,
    logits: bool,
    rows: usize,
    dims: &[usize],
) {
    if !there_is_a_gpu() {
        return;
    }
    let cpu = gradients(&build, logits, "cpu:0", rows, dims);
    let gpu = gradients(&build, logits, "gpu:0", rows, dims);
    assert_eq!(cpu.len(), gpu.len());
    // A bias in front of a batch norm has no gradient but rounding: what counts is the network's scale.
    let length = |v: &mut dyn Iterator<Item = f32>| v.map(|x| f64::from(x * x)).sum::<f64>().sqrt();
    let own = |g: &Tensor| length(&mut g.f32().unwrap().iter().copied());
    let all = cpu.iter().map(|(_, g)| own(g)).fold(0.0, f64::max);
    for ((name, a), (other, b)) in cpu.iter().zip(&gpu) {
        assert_eq!(name, other);
        let pairs = a.f32().unwrap().iter().zip(b.f32().unwrap());
        let apart = length(&mut pairs.map(|(x, y)| x - y)) / own(a).max(1e-3 * all);
        assert!(
            apart <= times * tolerance(),
            "{name}: the gradients are {apart} of their length apart"
        );
    }
}

#[test]
fn the_perceptron() {
    compare(|| applications::mnist_mlp(784, 10).unwrap(), true, 32, &[784]);
}

#[test]
fn the_convolutional_network() {
    compare(|| applications::mnist_cnn([28, 28, 1], 10).unwrap(), false, 16, &[28, 28, 1]);
}

#[test]
fn minigooglenet() {
    compare(
        || applications::mini_googlenet([32, 32, 3], Some(10)).unwrap(),
        false,
        4,
        &[32, 32, 3],
    );
}

#[test]
fn resnet50() {
    // Fifty layers with few pixels to each batch norm make much of little.
    let build = || applications::resnet50([64, 64, 3], Some(10)).unwrap();
    compare_within(5.0, build, false, 4, &[64, 64, 3]);
}
