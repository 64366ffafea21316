//! Layers and losses that compare or mix the samples of a batch: `Circle`, `MixUp` and `CutMix`. Every sample sees all
//! others of the global batch, on any number of devices and for any number of rows.

use crate::common::{Fixture, emulated_gpu};
use phalanx::losses::{self, Circle, Loss, LossExt, Reduction};
use phalanx::model::BatchWeights;
use phalanx::prelude::*;
use phalanx::train_step::{StepContext, TrainStep};
use phalanx_cuda::CudaBackend;
use phalanx_cuda::emulator::Emulator;
use phalanx_needs::needs;
use std::sync::{Arc, LazyLock};

fn cpus(devices: usize, threads: usize) -> MirroredStrategy {
    MirroredStrategy::cpus(devices).unwrap().threads(threads)
}

fn strategies() -> Vec<MirroredStrategy> {
    [(1, 1), (1, 2), (2, 1), (3, 1), (2, 2), (4, 1)].map(|(d, t)| cpus(d, t)).to_vec()
}

fn gpus(devices: usize) -> MirroredStrategy {
    static EMULATOR: LazyLock<Emulator> = LazyLock::new(|| Emulator::new(3));
    let names: Vec<String> = (0..devices).map(|i| format!("gpu:{i}")).collect();
    let backend = Arc::new(CudaBackend::emulated(EMULATOR.clone()));
    MirroredStrategy::with_backend(backend, &names).unwrap()
}

/// Numbers in `-1..1` that depend on the seed alone.
fn noise(seed: u64, dims: &[usize]) -> Tensor {
    let mut rng = phalanx::Stream::new(seed, 0, 1, 0);
    let len = dims.iter().product();
    let values: Vec<f32> = (0..len).map(|_| (2.0 * rng.unit() - 1.0) as f32).collect();
    Tensor::new(dims, values).unwrap()
}

fn labels(seed: u64, rows: usize) -> Tensor {
    let mut rng = phalanx::Stream::new(seed, 0, 2, 0);
    Tensor::new([rows], (0..rows).map(|_| 50 * rng.below(3) as i32).collect::<Vec<_>>()).unwrap()
}

fn assert_close(what: &str, received: &[f32], expected: &[f32], tolerance: f32) {
    assert_eq!(received.len(), expected.len(), "{what}");
    let largest = expected.iter().fold(1e-3f32, |m, v| m.max(v.abs()));
    for (i, (r, e)) in received.iter().zip(expected).enumerate() {
        let near = (r - e).abs() <= tolerance * largest;
        assert!(near, "{what}: element {i}: expected {e}, received {r}");
    }
}

/// A model whose output is its input, with a kernel that trains.
fn identity(width: usize, loss: Box<dyn Loss>, strategy: MirroredStrategy) -> Model {
    let layer = Dense::new(width).use_bias(false);
    let mut model = Sequential::new().add(Input::new([width])).add(layer).build().unwrap();
    let eye = (0..width * width).map(|i| f32::from(u8::from(i % (width + 1) == 0)));
    let eye = Tensor::new([width, width], eye.collect::<Vec<_>>()).unwrap();
    model.set_weights(&[eye]).unwrap();
    model.compile(Compile::new(SGD::new(1.0)).loss(loss).strategy(strategy)).unwrap();
    model
}

/// Losses of `evaluate` and of training, and the gradient through the kernel, for every case of the fixture whose
/// predictions are vectors.
fn check_cases(
    class: &str,
    strategy: impl Fn() -> MirroredStrategy,
    chosen: impl Fn(&str) -> bool,
) {
    let fixture = Fixture::load("losses");
    let cases = fixture.cases().filter(|case| {
        let vectors = case.tensor("y_pred").dims().len() == 2;
        case.class_name() == class && vectors && chosen(case.name)
    });
    let mut count = 0;
    for case in cases {
        let (x, y) = (case.tensor("y_pred"), case.tensor("y_true"));
        let (rows, width) = (x.rows(), x.row_len());
        let what = format!("{} on {:?}", case.name, strategy());
        let loss = losses::from_config(class, case.config()).unwrap();
        let mut model = identity(width, loss, strategy());
        let mut weights = BatchWeights::new();
        if let Some(w) = case.find("sample_weight") {
            weights = weights.sample_weight(w.f32().unwrap().to_vec());
        }
        let expected = [case.f32("loss")[0]];
        let tested = model.test_on_batch_with(x, y, &weights).unwrap().get("loss").unwrap();
        assert_close(&format!("{what}: test"), &[tested as f32], &expected, 2e-5);
        let trained = model.train_on_batch_with(x, y, &weights).unwrap().get("loss").unwrap();
        assert_close(&format!("{what}: train"), &[trained as f32], &expected, 2e-5);
        // The derivative by the kernel is the product of inputs and derivatives by outputs.
        let grad = case.f32("grad");
        let x = x.f32().unwrap();
        let mut after = vec![0.0; width * width];
        for (i, after) in after.iter_mut().enumerate() {
            let of_row = |r: usize| {
                f64::from(x[r * width + i / width]) * f64::from(grad[r * width + i % width])
            };
            let eye = f64::from(u8::from(i % (width + 1) == 0));
            *after = (eye - (0..rows).map(of_row).sum::<f64>()) as f32;
        }
        let kernel = model.get_weights().unwrap().remove(0);
        assert_close(&format!("{what}: kernel"), kernel.f32().unwrap(), &after, 1e-4);
        model.check_consistency().unwrap();
        count += 1;
    }
    assert!(count > 0);
}

#[test]
fn circle_is_that_of_keras_on_any_number_of_devices() {
    for (devices, threads) in [(1, 1), (1, 2), (2, 1), (3, 2)] {
        check_cases("Circle", || cpus(devices, threads), |_| true);
    }
}

/// The sum of a loss of the whole batch depends on whether there are sample weights.
#[test]
fn losses_of_a_batch_have_the_reductions_of_keras() {
    for (devices, threads) in [(1, 1), (1, 2), (2, 1), (3, 2)] {
        for class in ["Dice", "Tversky"] {
            check_cases(class, || cpus(devices, threads), |_| true);
        }
    }
}

#[needs(gxx)]
#[test]
fn circle_is_that_of_keras_on_emulated_gpus() {
    for devices in 1..=3 {
        check_cases("Circle", || gpus(devices), |name| name == "circle_soft_weighted");
    }
}

/// Embeddings of unit length.
fn embedding(strategy: MirroredStrategy) -> Model {
    let mut model = Sequential::new()
        .add(Input::new([5]))
        .add(Dense::new(6).activation("tanh"))
        .add(Dense::new(4))
        .add(UnitNormalization::new())
        .build()
        .unwrap();
    let compile = Compile::new(SGD::new(0.05).momentum(0.9)).loss(Circle::default().gamma(5.0));
    model.compile(compile.strategy(strategy).seed(5)).unwrap();
    model
}

/// Images that are mixed before and after a convolution.
fn mixture(strategy: MirroredStrategy) -> Model {
    let mut model = Sequential::new()
        .add(Input::new([6, 5, 2]))
        .add(CutMix::new(1.0))
        .add(Conv2D::new(3, 3).activation("tanh"))
        .add(MixUp::new(0.5))
        .add(Flatten::new())
        .add(Dense::new(3))
        .build()
        .unwrap();
    let compile = Compile::new(SGD::new(0.05).momentum(0.9)).loss("mse");
    model.compile(compile.strategy(strategy).seed(6)).unwrap();
    model
}

type Network = (&'static str, fn(MirroredStrategy) -> Model, fn(usize) -> (Tensor, Tensor));

const NETWORKS: [Network; 2] = [
    ("circle", embedding, |rows| (noise(rows as u64, &[rows, 5]), labels(rows as u64, rows))),
    ("mixtures", mixture, |rows| {
        (noise(rows as u64, &[rows, 6, 5, 2]), noise(90 + rows as u64, &[rows, 3]))
    }),
];

#[test]
fn gradients_are_those_of_one_device_for_every_number_of_rows() {
    for (name, network, samples) in NETWORKS {
        let single = network(cpus(1, 1));
        let mut moved = 0;
        for strategy in strategies() {
            let model = network(strategy.clone());
            // Larger batches after smaller ones, and smaller ones again.
            for rows in (1..=11).chain([3, 5]) {
                let (x, y) = samples(rows);
                let expected = single.gradients(&x, &y).unwrap();
                let received = model.gradients(&x, &y).unwrap();
                for ((weight, r), (_, e)) in received.iter().zip(&expected) {
                    let what = format!("{name}: {weight} of {rows} rows on {strategy:?}");
                    assert_close(&what, r.f32().unwrap(), e.f32().unwrap(), 1e-5);
                    moved += usize::from(e.f32().unwrap().iter().any(|v| v.abs() > 1e-4));
                }
            }
        }
        assert!(moved > 200, "{name}: {moved}");
    }
}

/// Losses, weights and evaluation of a run whose last batch is short.
fn outcome(network: Network, strategy: MirroredStrategy) -> Vec<f32> {
    let (_, network, samples) = network;
    let mut model = network(strategy);
    let fit = Fit::new().epochs(2).batch_size(6).validation_batch_size(9).verbose(0);
    let history = model.fit(samples(23), fit.validation_data(samples(10))).unwrap();
    let mut numbers: Vec<f32> = vec![];
    for name in ["loss", "val_loss"] {
        numbers.extend(history.get(name).unwrap().iter().map(|v| *v as f32));
    }
    let logs = model.evaluate_with(samples(17), Inference::new().batch_size(13)).unwrap();
    numbers.push(logs.get("loss").unwrap() as f32);
    model.check_consistency().unwrap();
    let weights = model.get_weights().unwrap();
    numbers.extend(weights.iter().flat_map(|w| w.f32().unwrap().to_vec()));
    numbers
}

#[test]
fn runs_are_those_of_one_device() {
    for network in NETWORKS {
        let expected = outcome(network, cpus(1, 1));
        for strategy in strategies() {
            let what = format!("{} on {strategy:?}", network.0);
            assert_close(&what, &outcome(network, strategy), &expected, 1e-4);
        }
    }
}

#[test]
fn runs_have_the_same_bits_in_deterministic_mode() {
    for network in NETWORKS {
        let run = |devices, threads| outcome(network, cpus(devices, threads).deterministic(true));
        let expected = run(1, 1);
        for (devices, threads) in [(1, 2), (2, 1), (4, 1), (8, 2)] {
            assert!(run(devices, threads) == expected, "{} on {devices} devices", network.0);
        }
    }
}

#[needs(gxx)]
#[test]
fn runs_on_emulated_gpus_are_those_of_a_cpu_device() {
    for network in NETWORKS {
        let expected = outcome(network, cpus(1, 1));
        for devices in 1..=3 {
            let what = format!("{} on {devices} GPUs", network.0);
            assert_close(&what, &outcome(network, gpus(devices)), &expected, 1e-3);
        }
        let replicas =
            MirroredStrategy::with_backend(Arc::new(emulated_gpu()), ["gpu:0/0", "gpu:0/1"]);
        let what = format!("{} on two replicas of a GPU", network.0);
        assert_close(&what, &outcome(network, replicas.unwrap()), &expected, 1e-3);
    }
}

/// Activations of 16 bits give nearly the same losses and weights. A number with 8 significant bits is off by up to
/// 2^-9 of it. After the eight updates of these runs, one weight of `circle` is off by 0.005 of the largest loss; everything
/// else is closer.
#[needs(gxx)]
#[test]
fn runs_with_mixed_precision_are_close() {
    for network in NETWORKS {
        let expected = outcome(network, cpus(1, 1));
        let received = outcome(network, gpus(2).policy(Policy::MixedBfloat16));
        assert!(received != expected);
        assert_close(network.0, &received, &expected, 0.0078);
    }
}

/// A training step of one's own has the losses of `compile`.
#[test]
fn circle_in_a_custom_step() {
    let (x, y) = (noise(3, &[7, 5]), labels(3, 7));
    let run = |devices: usize| {
        let step = |cx: &mut StepContext<'_>| {
            let (x, labels) = (cx.input("x")?, cx.input("label")?);
            let vectors = cx.call("model", &[x])?;
            let loss = cx.loss(&Circle::default().gamma(5.0), labels, vectors)?;
            cx.minimize("loss", loss, &["model"], "optimizer")
        };
        let model = embedding(cpus(1, 1));
        let step = TrainStep::new("metric_learning")
            .model("model", &model)
            .optimizer("optimizer", SGD::new(0.05).momentum(0.9))
            .input("x", Input::new([5]))
            .target("label", Input::new([0usize; 0]))
            .strategy(cpus(devices, 1))
            .compile(step);
        let mut trainer = step.unwrap();
        let y = Tensor::new([7], y.i32().unwrap().iter().map(|v| *v as f32).collect::<Vec<_>>());
        let y = y.unwrap();
        (0..3)
            .map(|_| trainer.train_on_batch((&x, &y)).unwrap().get("loss").unwrap() as f32)
            .collect()
    };
    let mut model = embedding(cpus(1, 1));
    let expected: Vec<f32> =
        (0..3).map(|_| model.train_on_batch(&x, &y).unwrap().get("loss").unwrap() as f32).collect();
    for devices in 1..=3 {
        let received: Vec<f32> = run(devices);
        assert_close(&format!("{devices} devices"), &received, &expected, 1e-5);
    }
}

#[test]
fn circle_is_in_files_and_refuses_what_it_cannot_compare() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("model.keras");
    let mut model = identity(3, Box::new(Circle::default().margin(0.3).named("pairs")), cpus(1, 1));
    let (x, y) = (noise(1, &[6, 3]), labels(1, 6));
    model.train_on_batch(&x, &y).unwrap();
    model.save(&path).unwrap();
    let mut again = load_model(&path).unwrap();
    let loss = |model: &mut Model| model.test_on_batch(&x, &y).unwrap().get("loss").unwrap();
    assert_eq!(loss(&mut again), loss(&mut model));

    let refused = |shape: &[usize], loss: Circle| {
        let x = Input::new(shape).symbol();
        let mut model = Model::new(&x, ReLU::new().apply(&x)).unwrap();
        model.compile(Compile::new("sgd").loss(loss)).unwrap_err().to_string()
    };
    let text = refused(&[4, 3], Circle::default());
    let expected =
        "loss 'circle': y_pred: expected a float vector per sample, received f32 (None, 4, 3)";
    assert!(text.contains(expected), "{text}");
    let text = refused(&[3], Circle::default().gamma(f64::NAN));
    assert!(text.contains("loss 'circle': gamma: expected a finite number"), "{text}");
    // A sum counts every sample, a weighted mean each with its weight.
    let sum = |reduction| {
        let loss = Circle::default().gamma(4.0).with_reduction(reduction);
        let mut model = identity(3, Box::new(loss), cpus(2, 1));
        model.test_on_batch(&x, &y).unwrap().get("loss").unwrap()
    };
    let (total, mean) = (sum(Reduction::Sum), sum(Reduction::MeanWithSampleWeight));
    assert!((mean - sum(Reduction::SumOverBatchSize)).abs() < 1e-5 && total > mean);
}
