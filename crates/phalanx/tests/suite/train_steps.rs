//! Custom training steps: on several replicas, resumed, saved, and with the errors of a wrong description.

use crate::common::difference_to_scale;
use phalanx::callbacks::{BackupAndRestore, LambdaCallback};
use phalanx::custom::{Binary, NodeId};
use phalanx::model::{Interrupt, StepKind};
use phalanx::prelude::*;
use phalanx::train_step::{StepContext, TrainStep, Trainer};

pub(crate) fn cpus(replicas: usize) -> MirroredStrategy {
    let devices: Vec<String> = (0..replicas).map(|i| format!("cpu:{i}")).collect();
    MirroredStrategy::with_devices(&devices).unwrap().threads(1)
}

pub(crate) fn generator() -> Model {
    Sequential::new()
        .add(Input::new([3]))
        .add(Dense::new(6).use_bias(false))
        .add(BatchNormalization::new().momentum(0.8).synchronized(true))
        .add(Activation::new("relu"))
        .add(Dense::new(5).activation("tanh"))
        .build()
        .unwrap()
}

pub(crate) fn discriminator() -> Model {
    Sequential::new()
        .add(Input::new([5]))
        .add(Dense::new(7).activation("tanh").kernel_regularizer("l2"))
        .add(Dense::new(1).bias_constraint("non_neg"))
        .build()
        .unwrap()
}

/// A value of `number` for every sample.
fn constant(cx: &mut StepContext<'_>, like: NodeId, number: f64) -> Result<NodeId> {
    let g = cx.graph();
    let same = g.binary(Binary::Eq, like, like)?;
    Ok(g.scale(same, number)?)
}

/// The loss of logits for samples that are all real, or all fake.
fn judge(cx: &mut StepContext<'_>, logits: NodeId, real: bool) -> Result<NodeId> {
    let target = constant(cx, logits, f64::from(u8::from(real)))?;
    cx.loss(&BinaryCrossentropy::default().from_logits(true), target, logits)
}

pub(crate) fn discriminator_loss(
    cx: &mut StepContext<'_>,
    real: NodeId,
    z: NodeId,
) -> Result<NodeId> {
    let fake = cx.call("generator", &[z])?;
    let of_real = cx.call("discriminator", &[real])?;
    let of_fake = cx.call("discriminator", &[fake])?;
    let (of_real, of_fake) = (judge(cx, of_real, true)?, judge(cx, of_fake, false)?);
    Ok(cx.graph().add(of_real, of_fake)?)
}

pub(crate) fn generator_loss(cx: &mut StepContext<'_>, z: NodeId) -> Result<NodeId> {
    let fake = cx.call("generator", &[z])?;
    let logits = cx.call("discriminator", &[fake])?;
    judge(cx, logits, true)
}

/// A GAN with random inputs, dropout and two optimizers.
pub(crate) fn small_gan(
    strategy: impl Into<MultiWorkerMirroredStrategy>,
) -> (Model, Model, Trainer) {
    let g = Sequential::new()
        .add(Input::new([3]))
        .add(Dense::new(8).activation("relu"))
        .add(Dense::new(5))
        .build()
        .unwrap();
    let d = Sequential::new()
        .add(Input::new([5]))
        .add(Dense::new(6).activation("tanh"))
        .add(Dropout::new(0.3))
        .add(Dense::new(1))
        .build()
        .unwrap();
    let trainer = TrainStep::new("small_gan")
        .input("real", Input::new([5]))
        .model("generator", &g)
        .model("discriminator", &d)
        .optimizer("d", Adam::new(0.01).clipnorm(1.0))
        .optimizer("g", Adam::new(0.02))
        .strategy(strategy)
        .seed(4)
        .compile(|cx| {
            let real = cx.input("real")?;
            let z = cx.random_normal(&[3])?;
            let loss = discriminator_loss(cx, real, z)?;
            cx.minimize("d_loss", loss, &["discriminator"], "d")?;
            let z = cx.random_normal(&[3])?;
            let size = cx.graph().unary(phalanx::custom::Unary::Square, z)?;
            cx.metric("variance", size)?;
            let loss = generator_loss(cx, z)?;
            cx.minimize("g_loss", loss, &["generator"], "g")
        })
        .unwrap();
    (g, d, trainer)
}

pub(crate) fn samples(rows: usize) -> Tensor {
    let mut rng = phalanx::Stream::new(9, 0, 0, 0);
    Tensor::new([rows, 5], (0..rows * 5).map(|_| rng.unit() as f32).collect::<Vec<f32>>()).unwrap()
}

#[test]
fn replicas_and_remainders_give_the_losses_and_gradients_of_one_device() {
    let x = samples(13);
    let run = |replicas: usize| {
        let (g, d, mut gan) = small_gan(cpus(replicas));
        let first = gan.gradients(&x).unwrap();
        let fit = Fit::new().epochs(3).batch_size(5).verbose(0).validation_data(samples(7));
        let history = gan.fit(&x, fit).unwrap();
        gan.check_consistency().unwrap();
        let names = ["d_loss", "g_loss", "variance", "val_d_loss", "val_g_loss"];
        let losses: Vec<f64> =
            names.iter().flat_map(|n| history.get(n).unwrap().to_vec()).collect();
        let weights = [g.get_weights().unwrap(), d.get_weights().unwrap()].concat();
        (first, losses, weights)
    };
    let one = run(1);
    let names: Vec<&str> = one.0.iter().map(|(name, _)| name.as_str()).collect();
    assert_eq!(names[0], "d_loss/discriminator/dense/kernel");
    assert_eq!(names[4], "g_loss/generator/dense/kernel");
    assert_eq!(names.len(), 8);
    assert!(one.0.iter().all(|(_, t)| t.f32().unwrap().iter().any(|v| *v != 0.0)));
    for replicas in [2, 3] {
        let several = run(replicas);
        for ((name, a), (_, b)) in one.0.iter().zip(&several.0) {
            let apart = difference_to_scale(a.f32().unwrap(), b.f32().unwrap());
            assert!(apart < 1e-5, "{name} on {replicas}: {apart:.1e}");
        }
        for (a, b) in one.1.iter().zip(&several.1) {
            assert!((a - b).abs() < 1e-5 * a.abs(), "{replicas}: {:?} {:?}", one.1, several.1);
        }
        for (a, b) in one.2.iter().zip(&several.2) {
            assert!(difference_to_scale(a.f32().unwrap(), b.f32().unwrap()) < 1e-4);
        }
    }
}

#[test]
fn gradients_change_nothing() {
    let (g, d, mut gan) = small_gan(cpus(1));
    let weights =
        |g: &Model, d: &Model| [g.get_weights().unwrap(), d.get_weights().unwrap()].concat();
    let before = weights(&g, &d);
    let first = gan.gradients(samples(4)).unwrap();
    let again = gan.gradients(samples(4)).unwrap();
    assert_eq!((first, before), (again, weights(&g, &d)));
}

#[test]
fn a_resumed_run_is_the_uninterrupted_one_to_the_bit() {
    let bits = |g: &Model, d: &Model| -> Vec<u32> {
        let all = [g.get_weights().unwrap(), d.get_weights().unwrap()].concat();
        all.iter().flat_map(|t| t.f32().unwrap().iter().map(|v| v.to_bits())).collect()
    };
    let fit = || Fit::new().epochs(4).batch_size(4).verbose(0);
    let x = samples(10);
    let whole = {
        let (g, d, mut gan) = small_gan(cpus(2));
        let history = gan.fit(&x, fit()).unwrap();
        (bits(&g, &d), history.get("g_loss").unwrap().to_vec())
    };
    for after in [1, 5, 7] {
        let directory = tempfile::tempdir().unwrap();
        let (mut steps, interrupt) = (0, Interrupt::new());
        let requester = interrupt.clone();
        let stop = LambdaCallback::new().batch_end(move |_| {
            steps += 1;
            if steps == after {
                requester.request();
            }
            Ok(Action::Continue)
        });
        let backup = || BackupAndRestore::new(directory.path());
        let (_, _, mut gan) = small_gan(cpus(2));
        let stopped = gan.fit(&x, fit().interrupt(&interrupt).callback(backup()).callback(stop));
        assert!(matches!(stopped, Err(Error::Interrupted { .. })), "{stopped:?}");
        drop(gan);
        let (g, d, mut gan) = small_gan(cpus(2));
        let history = gan.fit(&x, fit().callback(backup())).unwrap();
        assert_eq!((bits(&g, &d), history.get("g_loss").unwrap().to_vec()), whole, "{after}");
    }
}

#[test]
fn a_step_of_one_model_is_the_step_of_compile_to_the_bit() {
    let model = || {
        Sequential::new()
            .add(Input::new([4]))
            .add(Dense::new(8).activation("relu").kernel_regularizer("l2"))
            .add(BatchNormalization::new())
            .add(Dropout::new(0.2))
            .add(Dense::new(3).kernel_constraint("max_norm"))
            .build()
            .unwrap()
    };
    let mut rng = phalanx::Stream::new(2, 0, 0, 0);
    let x: Vec<f32> = (0..22 * 4).map(|_| rng.unit() as f32).collect();
    let x = Tensor::new([22, 4], x).unwrap();
    let y = Tensor::new([22], (0..22).map(|i| i % 3).collect::<Vec<i32>>()).unwrap();
    let loss = || SparseCategoricalCrossentropy::default().from_logits(true);
    let fit = || Fit::new().epochs(3).batch_size(5).verbose(0).validation_split(0.3);
    let optimizer = || Adam::new(0.01).use_ema(0.9);
    for replicas in [1, 2] {
        let mut compiled = model();
        let arguments = Compile::new(optimizer()).loss(loss()).metrics(["accuracy"]);
        compiled.compile(arguments.strategy(cpus(replicas)).seed(6)).unwrap();
        let expected = compiled.fit((&x, &y), fit()).unwrap();
        let own = model();
        let mut trainer = TrainStep::new("classifier")
            .input("x", Input::new([4]))
            .labels("y")
            .model("net", &own)
            .optimizer("adam", optimizer())
            .strategy(cpus(replicas))
            .seed(6)
            .compile(move |cx| {
                let (x, y) = (cx.input("x")?, cx.input("y")?);
                let found = cx.call("net", &[x])?;
                let values = cx.loss(&loss(), y, found)?;
                cx.track(SparseCategoricalAccuracy::default(), y, found)?;
                cx.minimize("loss", values, &["net"], "adam")
            })
            .unwrap();
        let received = trainer.fit((&x, &y), fit()).unwrap();
        for name in ["loss", "val_loss"] {
            assert_eq!(received.get(name), expected.get(name), "{name} on {replicas}");
        }
        let accuracy = received.get("val_sparse_categorical_accuracy");
        assert_eq!(accuracy, expected.get("val_accuracy"));
        assert_eq!(own.get_weights().unwrap(), compiled.get_weights().unwrap());
        let wrong = Tensor::new([22], vec![3; 22]).unwrap();
        let error = trainer.fit((&x, &wrong), fit()).unwrap_err().to_string();
        assert!(error.contains("labels of 'y': expected 0 to 2, received 3"), "{error}");
        let text = trainer.program(StepKind::Train, 5).unwrap().to_string();
        assert!(text.contains("update Adam"), "{text}");
    }
}

#[test]
fn a_gan_is_one_program_that_can_be_printed_and_profiled() {
    let (_, _, mut gan) = small_gan(cpus(1));
    let text = gan.program(StepKind::Train, 8).unwrap().to_string();
    for part in ["update Adam", ":=", "uniform", "all_reduce", "; update of d_loss"] {
        assert!(text.contains(part), "no {part} in\n{text}");
    }
    gan.set_profiling(true).unwrap();
    gan.train_on_batch(samples(8)).unwrap();
    let profile = gan.profile(StepKind::Train).unwrap().unwrap();
    assert!(profile.lines.iter().any(|line| line.layer.contains("update of d_loss")));
}

#[test]
fn checkpoints_have_one_model_of_the_step() {
    let directory = tempfile::tempdir().unwrap();
    let (g, d, mut gan) = small_gan(cpus(2));
    let path = |name: &str| directory.path().join(name);
    let fit = Fit::new()
        .epochs(3)
        .batch_size(4)
        .verbose(0)
        .validation_data(samples(6))
        .callback(ModelCheckpoint::new(path("g-{epoch}.keras")).model("generator").keep_last(2))
        .callback(
            ModelCheckpoint::new(path("d.weights.h5"))
                .model("discriminator")
                .monitor("val_d_loss")
                .save_best_only(true),
        );
    gan.fit(samples(10), fit).unwrap();
    assert!(!path("g-1.keras").exists() && path("g-2.keras").exists());
    let saved = load_model(path("g-3.keras")).unwrap();
    assert_eq!(saved.get_weights().unwrap(), g.get_weights().unwrap());
    let mut again = d.clone_model().unwrap();
    again.load_weights(path("d.weights.h5")).unwrap();
    let wrong = ModelCheckpoint::new(path("a.keras")).model("critic");
    let error = gan.fit(samples(4), Fit::new().verbose(0).callback(wrong)).unwrap_err();
    assert!(error.to_string().ends_with("generator, discriminator, received critic"), "{error}");
    let mut model = net();
    model.compile(Compile::new("sgd").loss("mse")).unwrap();
    let wrong = ModelCheckpoint::new(path("a.keras")).model("net");
    let fit = Fit::new().verbose(0).callback(wrong);
    let error = model.fit((samples(4), Tensor::zeros([4, 2])), fit).unwrap_err().to_string();
    assert!(error.contains("model: expected none for a run that trains a model"), "{error}");
}

#[test]
fn optimizers_have_their_own_rates() {
    let (_, d, mut gan) = small_gan(cpus(1));
    assert_eq!(gan.learning_rate().unwrap(), 0.02);
    let first = gan.gradients(samples(4)).unwrap();
    gan.set_learning_rate(0.0).unwrap();
    assert_eq!(gan.gradients(samples(4)).unwrap(), first, "the rate of the first phase stays");
    assert_eq!(
        (gan.learning_rate_of("d").unwrap(), gan.learning_rate_of("g").unwrap()),
        (0.01, 0.0)
    );
    gan.set_learning_rate_of("d", 0.0).unwrap();
    assert_eq!(gan.learning_rate_of("d").unwrap(), 0.0);
    let weights = d.get_weights().unwrap();
    gan.train_on_batch(samples(4)).unwrap();
    assert_eq!(d.get_weights().unwrap(), weights);
    let error = gan.set_learning_rate_of("e", 0.0).unwrap_err().to_string();
    assert!(error.contains("unknown optimizer of the training step 'e'"), "{error}");
    let error = gan.set_learning_rate_of("d", -1.0).unwrap_err().to_string();
    assert!(error.contains("optimizer 'd': learning_rate: expected a finite rate"), "{error}");
}

pub(crate) fn net() -> Model {
    Sequential::new().add(Input::new([5])).add(Dense::new(2)).build().unwrap()
}

pub(crate) fn refused(
    step: TrainStep,
    body: impl Fn(&mut StepContext<'_>) -> Result<()> + Send + Sync + 'static,
) -> String {
    match step.compile(body) {
        Ok(_) => panic!("the step was accepted"),
        Err(error) => error.to_string(),
    }
}

#[test]
fn a_wrong_description_is_refused() {
    let model = net();
    let step = || {
        let step = TrainStep::new("odd").input("x", Input::new([5])).model("net", &model);
        step.optimizer("sgd", "sgd")
    };
    type Body = fn(&mut StepContext<'_>) -> Result<()>;
    let cases: [(&str, Body); 8] = [
        ("training step 'odd': step: expected one call of minimize or more, received none", |_| {
            Ok(())
        }),
        ("unknown input of the training step 'y'", |cx| cx.input("y").map(|_| ())),
        ("unknown model of the training step 'nets'; did you mean 'net'?", |cx| {
            let x = cx.input("x")?;
            cx.call("nets", &[x]).map(|_| ())
        }),
        (
            "model 'net': input 'input_0': expected rows f32 (None, 5), received rows f32 (None, 4)",
            |cx| {
                let z = cx.random_normal(&[4])?;
                cx.call("net", &[z]).map(|_| ())
            },
        ),
        ("loss 'a': models: expected trainable weights that a call before has used", |cx| {
            let x = cx.input("x")?;
            cx.minimize("a", x, &["net"], "sgd")
        }),
        ("loss 'a': value: expected a value that depends on the trainable weights", |cx| {
            let x = cx.input("x")?;
            cx.call("net", &[x])?;
            cx.minimize("a", x, &["net"], "sgd")
        }),
        ("unknown optimizer of the training step 'adam'", |cx| {
            let x = cx.input("x")?;
            let y = cx.call("net", &[x])?;
            cx.minimize("a", y, &["net"], "adam")
        }),
        ("compile: losses and metrics: expected each name once", |cx| {
            let x = cx.input("x")?;
            let y = cx.call("net", &[x])?;
            cx.metric("a", y)?;
            cx.minimize("a", y, &["net"], "sgd")
        }),
    ];
    for (expected, body) in cases {
        let error = refused(step(), body);
        assert!(error.starts_with(expected), "{error}\nexpected {expected}");
    }
    let error = refused(step().model("net", &model), |_| Ok(()));
    assert!(error.contains("models: expected each name once"), "{error}");
    let pooled = Sequential::new()
        .add(Input::new([5]))
        .add(LayerNormalization::new())
        .add(Dense::new(2))
        .build()
        .unwrap();
    let penalized = step().model("pooled", &pooled);
    let error = refused(penalized, |cx| {
        let x = cx.input("x")?;
        let y = cx.call("pooled", &[x])?;
        let slope = cx.gradient(y, x)?;
        cx.minimize("a", slope, &["pooled"], "sgd")
    });
    assert!(error.contains("layer_norm_grad has no derivative"), "{error}");
    let error = refused(step(), |cx| {
        let (x, z) = (cx.input("x")?, cx.random_normal(&[5])?);
        let y = cx.call("net", &[x])?;
        cx.gradient(y, z).map(|_| ())
    });
    assert!(error.contains("expected a value that is computed from `by`"), "{error}");
}

#[test]
fn what_a_step_cannot_do_is_an_error() {
    let (_, _, mut gan) = small_gan(cpus(1));
    let error = gan.fit(samples(4), Fit::new().accumulate(2).verbose(0)).unwrap_err().to_string();
    assert!(error.starts_with("fit: accumulate: expected none for a step"), "{error}");
    let error = gan.program(StepKind::Predict, 4).unwrap_err().to_string();
    assert!(error.contains("predict: expected a model"), "{error}");
    let directory = tempfile::tempdir().unwrap();
    let checkpoint = ModelCheckpoint::new(directory.path().join("a.keras"));
    let fit = Fit::new().verbose(0).callback(checkpoint);
    let error = gan.fit(samples(4), fit).unwrap_err().to_string();
    let expected =
        "model: expected a model of the step, set with model(..): generator, discriminator";
    assert!(error.contains(expected), "{error}");
    let wrong = Tensor::zeros([4, 6]);
    let error = gan.train_on_batch(wrong).unwrap_err().to_string();
    assert!(error.contains("input 'real': expected 4 rows of f32 (None, 5)"), "{error}");
}

#[test]
fn weights_that_two_phases_update_are_updated_twice() {
    let model = net();
    let start = model.get_weights().unwrap();
    let mut trainer = TrainStep::new("two")
        .input("x", Input::new([5]))
        .model("net", &model)
        .optimizer("a", SGD::new(0.1))
        .optimizer("b", SGD::new(0.01))
        .strategy(cpus(2))
        .compile(|cx| {
            let x = cx.input("x")?;
            let y = cx.call("net", &[x])?;
            cx.minimize("first", y, &["net"], "a")?;
            let y = cx.call("net", &[x])?;
            cx.minimize("second", y, &["net"], "b")
        })
        .unwrap();
    let x = samples(3);
    let logs = trainer.train_on_batch(&x).unwrap();
    // The loss is linear, so both gradients are equal: the mean input for the kernel, 1 for the bias; halved by the mean
    // over two outputs.
    let after = model.get_weights().unwrap();
    let bias = after[1].f32().unwrap();
    assert!(bias.iter().all(|b| (b + 0.055).abs() < 1e-6), "{bias:?}");
    let mean = |i: usize| (0..3).map(|row| x.f32().unwrap()[row * 5 + i]).sum::<f32>() / 3.0;
    for i in 0..5 {
        let moved = start[0].f32().unwrap()[2 * i] - after[0].f32().unwrap()[2 * i];
        assert!((moved - 0.055 * mean(i)).abs() < 1e-6, "{moved} {}", mean(i));
    }
    assert!(logs.get("second").unwrap() < logs.get("first").unwrap());
}

#[test]
fn gradients_that_are_applied_train_as_the_step_does() {
    let (x, y) = (samples(7), Tensor::zeros([7, 2]));
    for (replicas, optimizer) in [(1, "adam"), (2, "rmsprop"), (3, "adam")] {
        let compiled = || {
            let mut model = Sequential::new()
                .add(Input::new([5]))
                .add(Dense::new(4).activation("tanh").kernel_regularizer("l2"))
                .add(Dense::new(2).kernel_constraint("max_norm"))
                .build()
                .unwrap();
            let compile = Compile::new(optimizer).loss("mse").strategy(cpus(replicas));
            model.compile(compile).unwrap();
            model
        };
        let (mut stepped, mut applied) = (compiled(), compiled());
        for _ in 0..4 {
            stepped.train_on_batch(&x, &y).unwrap();
            let gradients = applied.gradients(&x, &y).unwrap();
            applied.apply_gradients(&gradients).unwrap();
        }
        applied.check_consistency().unwrap();
        let weights = |model: &Model| model.get_weights().unwrap();
        for (a, b) in weights(&stepped).iter().zip(&weights(&applied)) {
            assert!(difference_to_scale(a.f32().unwrap(), b.f32().unwrap()) < 1e-4);
        }
        let mut gradients = applied.gradients(&x, &y).unwrap();
        gradients[0].0 = "other".into();
        let error = applied.apply_gradients(&gradients).unwrap_err().to_string();
        assert!(
            error.contains("expected 'dense/kernel' of shape [5, 4], received none such"),
            "{error}"
        );
        let error = applied.apply_gradients(&gradients[1..]).unwrap_err().to_string();
        assert!(error.contains("expected 4, one for each trainable weight, received 3"), "{error}");
    }
}
