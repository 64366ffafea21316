//! Dynamic loss scaling, compared with Python Keras and with unscaled training.

use crate::common::trainer::Trainer;
use crate::common::{Case, Fixture, assert_config, emulated_gpu, on_emulated_gpu};
use phalanx::optimizers;
use phalanx::prelude::*;
use phalanx_needs::needs;
use std::sync::Arc;

fn check(case: &Case<'_>, strategy: MirroredStrategy) {
    let mut trainer = Trainer::new(case, strategy.clone());
    let spoiled = case.json["spoiled"].as_array().expect("a list");
    let what = |step: usize| format!("{} on {strategy:?}, step {step}", case.name);
    for (step, spoiled) in spoiled.iter().enumerate() {
        let [kernel, bias] = [0, 1].map(|i| case.f32(&format!("grad/{step}/{i}")));
        let mut kernel = kernel.to_vec();
        if let Some(number) = spoiled.as_str() {
            kernel[4] = number.parse().expect("inf or nan");
        }
        let before = trainer.weights();
        trainer.apply(&kernel, bias);
        let after = trainer.weights();
        if spoiled.is_string() {
            assert_eq!(before, after, "{}: nothing is changed", what(step));
        }
        for (i, weight) in after.iter().enumerate() {
            let expected = case.f32(&format!("after/{step}/{i}"));
            for (r, e) in weight.f32().unwrap().iter().zip(expected) {
                let close = (r - e).abs() <= 2e-5;
                assert!(close, "{}: weight {i}: expected {e}, received {r}", what(step));
            }
        }
        let scale = trainer.0.loss_scale().expect("compiled").expect("scaled");
        assert_eq!(scale, f64::from(case.f32(&format!("scale/{step}"))[0]), "{}", what(step));
    }
    trainer.0.check_consistency().expect("equal replicas");
}

#[test]
fn twelve_steps_match_keras() {
    let fixture = Fixture::load("loss_scale");
    assert_eq!(fixture.cases().count(), 10);
    for (devices, threads) in [(1, 1), (1, 2), (2, 1), (3, 1)] {
        let strategy = MirroredStrategy::cpus(devices).unwrap().threads(threads);
        fixture.cases().for_each(|case| check(&case, strategy.clone()));
    }
    let deterministic = MirroredStrategy::cpus(2).unwrap().deterministic(true);
    fixture.cases().for_each(|case| check(&case, deterministic.clone()));
}

#[needs(gxx)]
#[test]
fn twelve_steps_match_keras_on_an_emulated_gpu() {
    let gpu = MirroredStrategy::with_backend(Arc::new(emulated_gpu()), ["gpu:0"]).unwrap();
    for (i, case) in Fixture::load("loss_scale").cases().enumerate() {
        if on_emulated_gpu(i) {
            check(&case, gpu.clone());
        }
    }
}

#[test]
fn configs_round_trip() {
    for case in Fixture::load("loss_scale").cases() {
        let optimizer = optimizers::from_config(case.class_name(), case.config()).unwrap();
        let mut keras = case.config().clone();
        let inner = &mut keras["inner_optimizer"];
        inner.as_object_mut().unwrap().remove("build_config");
        if let Some(schedule) = inner["config"]["learning_rate"].get_mut("config") {
            schedule.as_object_mut().unwrap().remove("name");
        }
        let ours = optimizer.config();
        let options = |config: &serde_json::Value| config["config"].as_object().unwrap().clone();
        let (a, b) = (options(&ours["inner_optimizer"]), options(&keras["inner_optimizer"]));
        assert_config(case.name, &a, &b, &[]);
        assert_config(case.name, &ours, &keras, &["inner_optimizer"]);
        let again = optimizers::from_config(case.class_name(), &ours).unwrap();
        assert_eq!(again.config(), ours);
    }
}

#[test]
fn options_outside_their_range_are_refused() {
    let scaled = || LossScaleOptimizer::new(SGD::new(0.1));
    for (optimizer, part) in [
        (scaled().initial_scale(0.0), "initial_scale: expected a positive number"),
        (scaled().initial_scale(-1.0), "received -1"),
        (scaled().initial_scale(f64::NAN), "received NaN"),
        (scaled().initial_scale(1e300), "initial_scale"),
        (scaled().dynamic_growth_steps(0), "dynamic_growth_steps: expected 1 to"),
        (scaled().dynamic_growth_steps(u32::MAX), "dynamic_growth_steps"),
        (LossScaleOptimizer::new(SGD::new(-1.0)), "SGD: learning_rate"),
    ] {
        let error = optimizer.validate().unwrap_err().to_string();
        assert!(error.contains(part), "{error}");
    }
    let twice = serde_json::json!({ "inner_optimizer":
        { "class_name": "LossScaleOptimizer", "config": scaled().config() } });
    for config in [serde_json::json!({}), serde_json::json!({ "inner_optimizer": 3 }), twice] {
        let config = config.as_object().unwrap();
        let error = optimizers::from_config("LossScaleOptimizer", config).unwrap_err().to_string();
        assert!(error.contains("inner_optimizer: expected an optimizer"), "{error}");
    }
}

fn images() -> (Tensor, Tensor) {
    let mut rng = phalanx::Stream::new(3, 0, 0, 0);
    let x: Vec<f32> = (0..24 * 64).map(|_| rng.unit() as f32).collect();
    let y: Vec<i32> = (0..24).map(|i| i % 3).collect();
    (Tensor::new([24, 8, 8, 1], x).unwrap(), Tensor::new([24], y).unwrap())
}

fn compiled(optimizer: impl Optimizer + 'static, strategy: MirroredStrategy) -> Model {
    let mut model = Sequential::new()
        .add(Input::new([8, 8, 1]))
        .add(Conv2D::new(4, 3).activation("relu").kernel_regularizer(Regularizer::l2(1e-2)))
        .add(BatchNormalization::new())
        .add(Flatten::new())
        .add(Dense::new(3).activation("softmax"))
        .build()
        .unwrap();
    // Large enough that the largest scales overflow.
    let compile = Compile::new(optimizer).loss("sparse_categorical_crossentropy");
    let compile = compile.loss_weights([4096.0]);
    model.compile(compile.strategy(strategy).seed(5)).unwrap();
    model
}

fn bits(model: &Model) -> Vec<Vec<u32>> {
    let weights = model.get_weights().unwrap();
    weights.iter().map(|w| w.f32().unwrap().iter().map(|v| v.to_bits()).collect()).collect()
}

#[test]
fn the_policy_wraps_the_optimizer() {
    let one = || MirroredStrategy::cpus(1).unwrap();
    let model = compiled(Adam::new(0.01), one().policy(Policy::MixedFloat16));
    assert_eq!(model.loss_scale().unwrap(), Some(32768.0));
    let own = LossScaleOptimizer::new(Adam::new(0.01)).initial_scale(8.0);
    let model = compiled(own, one().policy(Policy::MixedFloat16));
    assert_eq!(model.loss_scale().unwrap(), Some(8.0), "it is wrapped once");
    for policy in [Policy::Float32, Policy::MixedBfloat16] {
        let model = compiled(Adam::new(0.01), one().policy(policy));
        assert_eq!(model.loss_scale().unwrap(), None);
    }
}

#[test]
fn scaling_does_not_change_losses_and_weights() {
    let (x, y) = images();
    for devices in [1, 2, 3] {
        let strategy = || MirroredStrategy::cpus(devices).unwrap().threads(2);
        let mut plain = compiled(SGD::new(0.1).momentum(0.9).global_clipnorm(0.5), strategy());
        let inner = SGD::new(0.1).momentum(0.9).global_clipnorm(0.5);
        let scaled = LossScaleOptimizer::new(inner).dynamic_growth_steps(4);
        let mut scaled = compiled(scaled, strategy());
        let fit = || Fit::new().epochs(3).batch_size(8).verbose(0);
        let a = plain.fit((x.clone(), y.clone()), fit()).unwrap();
        let b = scaled.fit((x.clone(), y.clone()), fit()).unwrap();
        assert_eq!(a.get("loss"), b.get("loss"), "the loss reported is the loss");
        assert_eq!(b.get("loss_scale"), Some(&[32768.0, 65536.0, 131072.0][..]));
        assert_eq!(bits(&plain), bits(&scaled), "powers of two leave no trace");
        let data = || Arrays::new(x.clone(), y.clone()).unwrap().batch(8).unwrap();
        let held = |m: &mut Model| m.evaluate(data()).unwrap();
        assert_eq!(held(&mut plain), held(&mut scaled));
    }
}

#[test]
fn steps_that_overflow_have_no_effect() {
    let (x, y) = images();
    let strategy = || MirroredStrategy::cpus(2).unwrap().threads(1);
    let high = LossScaleOptimizer::new(Adam::new(0.01)).initial_scale(2f64.powi(127));
    let mut scaled = compiled(high.dynamic_growth_steps(5), strategy());
    let mut plain = compiled(Adam::new(0.01), strategy());
    let (mut scale, mut skipped) = (2f64.powi(127), 0);
    for _ in 0..20 {
        let before = bits(&scaled);
        scaled.train_on_batch(&x, &y).unwrap();
        let now = scaled.loss_scale().unwrap().unwrap();
        if now < scale {
            assert_eq!(now, scale / 2.0);
            skipped += 1;
            // Moving statistics do not depend on gradients and are updated as in Keras.
            let trained = |b: Vec<Vec<u32>>| [b[0].clone(), b[1].clone(), b[6].clone()];
            assert_eq!(trained(before), trained(bits(&scaled)));
        } else {
            plain.train_on_batch(&x, &y).unwrap();
        }
        scale = now;
    }
    assert!((2..18).contains(&skipped), "{skipped} steps overflowed");
    let trained = |m: &Model| {
        let all = bits(m).into_iter().enumerate();
        all.filter(|(i, _)| ![4, 5].contains(i)).collect::<Vec<_>>()
    };
    assert_eq!(trained(&scaled), trained(&plain), "Adam's bias correction counts updates alone");
}

#[test]
fn deterministic_runs_skip_the_same_steps() {
    let run = |devices: usize| {
        let (x, y) = images();
        let strategy = MirroredStrategy::cpus(devices).unwrap().deterministic(true);
        let high = LossScaleOptimizer::new(Adam::new(0.01).global_clipnorm(0.3));
        let high = high.initial_scale(2f64.powi(126)).dynamic_growth_steps(3);
        let mut model = compiled(high, strategy.policy(Policy::MixedFloat16));
        let history = model.fit((x, y), Fit::new().epochs(4).batch_size(8).verbose(0)).unwrap();
        (bits(&model), history.get("loss_scale").unwrap().to_vec())
    };
    let one = run(1);
    assert!(one.1.iter().all(|scale| *scale < 2f64.powi(126)), "{:?}", one.1);
    [2, 4].into_iter().for_each(|devices| assert_eq!(run(devices), one));
}

#[test]
fn files_keep_the_scale() {
    let directory = tempfile::tempdir().unwrap();
    let (x, y) = images();
    let strategy = || MirroredStrategy::cpus(1).unwrap();
    for ending in ["keras", "h5"] {
        let path = directory.path().join(format!("model.{ending}"));
        let high = LossScaleOptimizer::new(Adam::new(0.01)).initial_scale(2f64.powi(126));
        let mut model = compiled(high.dynamic_growth_steps(4), strategy());
        for _ in 0..7 {
            model.train_on_batch(&x, &y).unwrap();
        }
        model.save(&path).unwrap();
        let mut again = Load::new().strategy(strategy()).model(&path).unwrap();
        assert_eq!(again.loss_scale().unwrap(), model.loss_scale().unwrap());
        for model in [&mut model, &mut again] {
            (0..9).for_each(|_| drop(model.train_on_batch(&x, &y).unwrap()));
        }
        assert_eq!(again.loss_scale().unwrap(), model.loss_scale().unwrap(), "{ending}");
        assert_eq!(bits(&again), bits(&model), "{ending}");
    }
}
