//! Complete runs of `fit` on emulated GPUs, against the same runs on the CPU: resident samples, several
//! steps per launch, augmentation on the GPU.

use crate::strategy_on;
use phalanx::callbacks::{Action, LambdaCallback};
use phalanx::data::{Arrays, Buckets, Dataset, HostBatch, ImageDataGenerator, Pixels, Samples};
use phalanx::model::IntoDataset;
use phalanx::prelude::*;
use phalanx::train_step::{StepContext, TrainStep};
use phalanx_testing::needs;

/// 22 images of bytes minus their mean, with class labels.
fn images() -> (Samples, Tensor) {
    let bytes = (0..22 * 6 * 6 * 2).map(|i: u32| (i.wrapping_mul(2_654_435_761) >> 24) as u8);
    let pixels = Samples::from(Pixels::new([22, 6, 6, 2], bytes.collect(), 255.0).unwrap());
    let mean = pixels.mean();
    let centred = pixels.subtract(&mean).unwrap();
    (centred, Tensor::new([22], (0..22).map(|i| i % 3).collect::<Vec<i32>>()).unwrap())
}

fn model(devices: &[&str]) -> Model {
    let strategy = strategy_on(devices).unwrap().threads(1);
    let mut model = Sequential::new()
        .add(Input::new([6, 6, 2]))
        .add(Conv2D::new(4, 3).activation("relu"))
        .add(Flatten::new())
        .add(Dropout::new(0.25))
        .add(Dense::new(3))
        .build()
        .unwrap();
    let loss = SparseCategoricalCrossentropy::default().from_logits(true);
    let compile = Compile::new(Adam::new(0.01)).loss(loss).metrics(["accuracy"]);
    model.compile(compile.strategy(strategy).seed(7)).unwrap();
    model
}

/// The losses of every epoch and the final weights.
fn trained(devices: &[&str], data: impl IntoDataset, fit: Fit) -> (Vec<f64>, Vec<f32>) {
    let mut model = model(devices);
    let history = model.fit(data, fit.epochs(3).verbose(0)).unwrap();
    let mut losses = history.get("loss").unwrap().to_vec();
    losses.extend(history.get("val_loss").unwrap_or_default());
    let weights = model.weights().unwrap().into_iter().flat_map(|(_, w)| w.f32().unwrap().to_vec());
    (losses, weights.collect())
}

fn assert_close(a: &(Vec<f64>, Vec<f32>), b: &(Vec<f64>, Vec<f32>)) {
    assert_eq!((a.0.len(), a.1.len()), (b.0.len(), b.1.len()));
    for (x, y) in a.0.iter().zip(&b.0) {
        assert!((x - y).abs() < 2e-4, "losses {:?} and {:?}", a.0, b.0);
    }
    for (x, y) in a.1.iter().zip(&b.1) {
        assert!((x - y).abs() < 2e-3, "weights {x} and {y}");
    }
}

#[needs(gxx)]
#[test]
fn resident_samples_train_as_on_the_cpu() {
    let (x, y) = images();
    let data = || Arrays::new(x.clone(), y.clone()).unwrap().batch(5).unwrap().shuffle(true);
    let fit = || Fit::new().validation_data(data().take(9).unwrap());
    let cpu = trained(&["cpu:0"], data(), fit());
    assert_close(&trained(&["gpu:0"], data(), fit()), &cpu);
    assert_close(&trained(&["gpu:0/0", "gpu:0/1"], data(), fit()), &cpu);
}

#[needs(gxx)]
#[test]
fn several_gpus_train_as_the_cpu_does() {
    let (x, y) = images();
    let data = || Arrays::new(x.clone(), y.clone()).unwrap().batch(5).unwrap().shuffle(true);
    let fit = || Fit::new().validation_data(data().take(9).unwrap());
    let cpu = trained(&["cpu:0"], data(), fit());
    assert_close(&trained(&["gpu:0", "gpu:2"], data(), fit()), &cpu);
    assert_close(&trained(&["gpu:0/0", "gpu:0/1", "gpu:1"], data(), fit()), &cpu);
}

/// Weights after some steps with an optimizer that updates whole weights, or the loss of a sequence.
fn trained_by(optimizer: Box<dyn Optimizer>, devices: &[&str], policy: Policy) -> Vec<f32> {
    let strategy = strategy_on(devices).unwrap().threads(1).policy(policy);
    let mut model = Sequential::new()
        .add(Input::new([5, 3]))
        .add(Conv1D::new(6, 2).padding("same").activation("tanh").kernel_regularizer("l2"))
        .add(Dense::new(4))
        .build()
        .unwrap();
    let compile = Compile::new(optimizer).loss("ctc");
    model.compile(compile.strategy(strategy).seed(5)).unwrap();
    let x: Vec<f32> = (0..14 * 15).map(|i| ((i * 7 % 13) as f32 - 6.0) / 6.0).collect();
    let y: Vec<i32> = (0..14 * 2).map(|i| i % 3 + 1).collect();
    let (x, y) = (Tensor::new([14, 5, 3], x).unwrap(), Tensor::new([14, 2], y).unwrap());
    let fit = Fit::new().epochs(2).batch_size(5).shuffle(false).verbose(0);
    model.fit((x, y), fit).unwrap();
    model.check_consistency().unwrap();
    model.weights().unwrap().into_iter().flat_map(|(_, w)| w.f32().unwrap().to_vec()).collect()
}

#[needs(gxx)]
#[test]
fn optimizers_of_whole_weights_train_on_gpus_as_on_the_cpu() {
    type Make = fn() -> Box<dyn Optimizer>;
    let makers: [Make; 5] = [
        || Box::new(Lamb::new(0.02).clipnorm(0.5).use_ema(0.9)),
        || Box::new(Adafactor::new(0.02).global_clipnorm(0.5)),
        || Box::new(Muon::new(0.02).gradient_accumulation_steps(2)),
        || {
            let map = OptimizerMap::new(SGD::new(0.1)).with(".*/kernel", Muon::new(0.02));
            Box::new(MultiOptimizer::new(map))
        },
        || Box::new(LossScaleOptimizer::new(Lamb::new(0.02))),
    ];
    for make in makers {
        let cpu = trained_by(make(), &["cpu:0"], Policy::Float32);
        for devices in [&["gpu:0"][..], &["gpu:0/0", "gpu:0/1"], &["gpu:0", "gpu:2"]] {
            let gpu = trained_by(make(), devices, Policy::Float32);
            for (x, y) in cpu.iter().zip(&gpu) {
                let name = make().rule_name();
                assert!((x - y).abs() < 1e-4, "{name} on {devices:?}: {x} and {y}");
            }
        }
        let narrow = trained_by(make(), &["gpu:0"], Policy::MixedBfloat16);
        assert!(cpu.iter().zip(&narrow).all(|(x, y)| (x - y).abs() < 0.1), "in 16 bits");
    }
}

#[needs(gxx)]
#[test]
fn images_are_augmented_on_the_gpu_as_on_the_cpu() {
    let (x, y) = images();
    for fill in ["nearest", "constant", "reflect", "wrap"] {
        let augment = ImageDataGenerator::new()
            .width_shift_range(0.3)
            .height_shift_range(0.3)
            .horizontal_flip(true)
            .vertical_flip(true)
            .rotation_range(if fill == "wrap" { 40.0 } else { 0.0 })
            .fill_mode(fill)
            .cval(0.25);
        let flow = || augment.flow(x.clone(), y.clone(), 5).unwrap();
        let cpu = trained(&["cpu:0"], flow(), Fit::new());
        assert_close(&trained(&["gpu:0"], flow(), Fit::new()), &cpu);
    }
}

#[needs(gxx)]
#[test]
fn a_batch_callback_sees_every_batch() {
    let (x, y) = images();
    let data = || Arrays::new(x.clone(), y.clone()).unwrap().batch(5).unwrap();
    let seen = std::sync::Arc::new(std::sync::Mutex::new(vec![]));
    let log = seen.clone();
    let observer = LambdaCallback::new().batch_end(move |view| {
        log.lock().unwrap().push(view.step);
        Ok(Action::Continue)
    });
    let watched = trained(&["gpu:0"], data(), Fit::new().callback(observer));
    assert!(seen.lock().unwrap().iter().copied().eq(1..=15));
    // The callback does not change a single bit of the result.
    assert_eq!(trained(&["gpu:0"], data(), Fit::new()), watched);
}

#[needs(gxx)]
#[test]
fn a_nan_loss_names_its_step() {
    let mut x = vec![0.5f32; 20 * 72];
    x[9 * 72] = f32::NAN;
    let x = Tensor::new([20, 6, 6, 2], x).unwrap();
    let y = Tensor::new([20], vec![1i32; 20]).unwrap();
    let data = Arrays::new(x, y).unwrap().batch(2).unwrap();
    let error = |device| {
        let error = model(&[device]).fit(data.clone(), Fit::new().verbose(0)).unwrap_err();
        error.to_string()
    };
    assert!(error("cpu:0").contains("at step "), "{}", error("cpu:0"));
    assert_eq!(error("gpu:0"), error("cpu:0"));
}

#[needs(gxx)]
#[test]
fn labels_out_of_range_are_named_before_the_first_step() {
    let y = Tensor::new([22], (0..22).map(|i| i % 4).collect::<Vec<i32>>()).unwrap();
    let (x, _) = images();
    let flow = ImageDataGenerator::new().horizontal_flip(true).flow(x, y, 5).unwrap();
    let error = model(&["gpu:0"]).fit(flow, Fit::new().verbose(0)).unwrap_err().to_string();
    assert!(error.contains("0 to 2") && error.contains("3 in row 3"), "{error}");
}

#[needs(gxx)]
#[test]
fn resident_rows_match_the_batches_of_the_epoch() {
    let (x, y) = images();
    let augment = ImageDataGenerator::new().width_shift_range(0.2).horizontal_flip(true);
    let flow = augment.flow(x.clone(), y.clone(), 5).unwrap();
    let arrays = Arrays::new(x, y).unwrap().batch(4).unwrap().shuffle(true).skip(3).unwrap();
    for data in [&flow as &dyn Dataset, &arrays] {
        let (mut batch, mut picked) = (HostBatch::default(), Default::default());
        let memory = data.in_memory().unwrap();
        let (mut epoch, mut picks) =
            (data.epoch(3, 1, 1).unwrap(), memory.index_batches(3, 1, 1).unwrap());
        let targets = memory.table().targets[0].clone();
        while epoch.next(&mut batch).unwrap() {
            assert!(picks.next(&mut picked).unwrap());
            let classes = picked.rows.iter().map(|r| targets.i32().unwrap()[*r as usize]);
            assert!(classes.eq(batch.targets[0].i32().unwrap()[..batch.rows].iter().copied()));
        }
        assert!(!picks.next(&mut picked).unwrap());
    }
}

/// Sequences of two numbers per step, with targets.
fn sequences() -> Vec<Vec<Tensor>> {
    let mut rng = phalanx::Stream::new(2, 0, 0, 0);
    let sequence = |length: usize| {
        let x: Vec<f32> = (0..length * 2).map(|_| rng.unit() as f32 + 0.1).collect();
        let y = vec![x[0] - x[length * 2 - 1]];
        vec![Tensor::new([length, 2], x).unwrap(), Tensor::new([1], y).unwrap()]
    };
    [2, 4, 3, 5, 2, 4, 3, 3, 5].map(sequence).to_vec()
}

fn open_model(devices: &[&str]) -> Model {
    let x = Input::new([None, Some(2)]).symbol();
    let y = SimpleRNN::new(3).apply(Masking::new().apply(&x));
    let mut model = Model::new(&x, Dense::new(1).apply(&y)).unwrap();
    let strategy = strategy_on(devices).unwrap().threads(1);
    let compile = Compile::new(Adam::new(0.02)).loss("mse").strategy(strategy).seed(7);
    model.compile(compile).unwrap();
    model
}

#[needs(gxx)]
#[test]
fn batches_of_all_lengths_train_as_on_the_cpu() {
    let data = Pipeline::from_elements(sequences()).unwrap().shuffle(9).unwrap();
    let data = data.bucket_by_sequence_length(Buckets::new([4], [3, 2])).unwrap();
    let trained = |devices: &[&str]| {
        let mut model = open_model(devices);
        let fit = Fit::new().epochs(3).validation_data(&data).verbose(0);
        let history = model.fit(&data, fit).unwrap();
        model.check_consistency().unwrap();
        let mut losses = history.get("loss").unwrap().to_vec();
        losses.extend(history.get("val_loss").unwrap());
        let weights = model.get_weights().unwrap();
        (losses, weights.iter().flat_map(|w| w.f32().unwrap().to_vec()).collect::<Vec<f32>>())
    };
    let cpu = trained(&["cpu:0"]);
    assert_close(&trained(&["gpu:0"]), &cpu);
    assert_close(&trained(&["gpu:0/0", "gpu:0/1"]), &cpu);
    assert_close(&trained(&["gpu:0", "gpu:2"]), &cpu);
}

/// Arrays are resident on the GPU, also those of a model with open sizes.
#[needs(gxx)]
#[test]
fn arrays_of_two_lengths_train_as_on_the_cpu() {
    let trained = |device: &str| {
        let mut model = open_model(&[device]);
        let mut losses = vec![];
        for length in [3, 5, 3] {
            let x: Vec<f32> = (0..6 * length * 2).map(|i| 0.1 + (i % 5) as f32 / 5.0).collect();
            let x = Tensor::new([6, length, 2], x).unwrap();
            let y = Tensor::new([6, 1], vec![0.5; 6]).unwrap();
            let fit = Fit::new().batch_size(4).epochs(2).verbose(0);
            losses.extend(model.fit((x, y), fit).unwrap().get("loss").unwrap());
        }
        let weights = model.get_weights().unwrap();
        (losses, weights.iter().flat_map(|w| w.f32().unwrap().to_vec()).collect::<Vec<f32>>())
    };
    assert_close(&trained("gpu:0"), &trained("cpu:0"));
}

/// A layer whose constants depend on open sizes.
#[needs(gxx)]
#[test]
fn images_of_all_sizes_are_resized_as_on_the_cpu() {
    let x = Input::new([None, None, Some(2)]).symbol();
    let mut model = Model::new(&x, Resizing::new(3, 4).apply(&x)).unwrap();
    let mut predict = |device: &str| {
        model.predict_on(strategy_on(&[device]).unwrap()).unwrap();
        [(5, 6), (3, 4), (7, 2)].map(|(height, width)| {
            let pixels = (0..height * width * 2).map(|i| (i % 7) as f32).collect::<Vec<f32>>();
            model.predict(Tensor::new([1, height, width, 2], pixels).unwrap()).unwrap()
        })
    };
    for (gpu, cpu) in predict("gpu:0").iter().zip(predict("cpu:0")) {
        assert_eq!(gpu.dims(), [1, 3, 4, 2]);
        for (a, b) in gpu.f32().unwrap().iter().zip(cpu.f32().unwrap()) {
            assert!((a - b).abs() < 1e-4, "{a} and {b}");
        }
    }
}

/// The losses and final weights of a GAN: two models, two optimizers, random inputs.
fn trained_gan(devices: &[&str]) -> (Vec<f64>, Vec<f32>) {
    use phalanx::custom::Binary;
    let generator = Sequential::new()
        .add(Input::new([3]))
        .add(Dense::new(8).activation("relu"))
        .add(Dense::new(16).activation("tanh"))
        .add(Reshape::new([4, 4, 1]))
        .build()
        .unwrap();
    let discriminator = Sequential::new()
        .add(Input::new([4, 4, 1]))
        .add(Conv2D::new(3, 3).activation("leaky_relu"))
        .add(Dropout::new(0.25))
        .add(Flatten::new())
        .add(Dense::new(1))
        .build()
        .unwrap();
    let mut gan = TrainStep::new("gan")
        .input("images", Input::new([4, 4, 1]))
        .model("generator", &generator)
        .model("discriminator", &discriminator)
        .optimizer("d", Adam::new(0.01).clipnorm(1.0))
        .optimizer("g", RMSprop::new(0.01))
        .strategy(strategy_on(devices).unwrap().threads(1))
        .compile(|cx| {
            let judge = |cx: &mut StepContext<'_>, logits, real: f64| {
                let ones = cx.graph().binary(Binary::Eq, logits, logits)?;
                let target = cx.graph().scale(ones, real)?;
                cx.loss(&BinaryCrossentropy::default().from_logits(true), target, logits)
            };
            let z = cx.random_normal(&[3])?;
            let (real, fake) = (cx.input("images")?, cx.call("generator", &[z])?);
            let (of_real, of_fake) =
                (cx.call("discriminator", &[real])?, cx.call("discriminator", &[fake])?);
            let (of_real, of_fake) = (judge(cx, of_real, 1.0)?, judge(cx, of_fake, 0.0)?);
            let loss = cx.graph().add(of_real, of_fake)?;
            cx.minimize("d_loss", loss, &["discriminator"], "d")?;
            let z = cx.random_normal(&[3])?;
            let fake = cx.call("generator", &[z])?;
            let logits = cx.call("discriminator", &[fake])?;
            let loss = judge(cx, logits, 1.0)?;
            cx.minimize("g_loss", loss, &["generator"], "g")
        })
        .unwrap();
    let pixels = (0..7 * 16).map(|i: u32| (i.wrapping_mul(2_654_435_761) >> 24) as f32 / 255.0);
    let x = Tensor::new([7, 4, 4, 1], pixels.collect::<Vec<f32>>()).unwrap();
    let fit = Fit::new().epochs(2).batch_size(4).verbose(0);
    let history = gan.fit(&x, fit).unwrap();
    gan.check_consistency().unwrap();
    let losses = ["d_loss", "g_loss"].iter().flat_map(|name| history.get(name).unwrap().to_vec());
    let weights = [generator.get_weights().unwrap(), discriminator.get_weights().unwrap()].concat();
    (losses.collect(), weights.iter().flat_map(|w| w.f32().unwrap().to_vec()).collect())
}

#[needs(gxx)]
#[test]
fn a_step_of_two_models_trains_as_on_the_cpu() {
    let cpu = trained_gan(&["cpu:0"]);
    assert_close(&trained_gan(&["gpu:0"]), &cpu);
    assert_close(&trained_gan(&["gpu:0/0", "gpu:0/1", "gpu:1"]), &cpu);
}
