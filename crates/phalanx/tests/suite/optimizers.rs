//! Optimizers and schedules against Python Keras: seven updates of two weights by a compiled model, on one
//! replica and on several.

use crate::common::trainer::Trainer;
use crate::common::{Case, Fixture, assert_close, assert_config, emulated_gpu, on_emulated_gpu};
use phalanx::optimizers;
use phalanx::prelude::*;
use phalanx::schedules::Schedule;
use phalanx_graph::update::Clip;
use phalanx_needs::needs;
use std::sync::Arc;

fn check(case: &Case<'_>, strategy: MirroredStrategy) {
    let mut trainer = Trainer::new(case, strategy.clone());
    // Relative to the largest weight of the model: Keras computes bias corrections in f32, where
    // that of Adam's first step is off by 6e-6, and with it every change of a small weight.
    let largest = (0..2)
        .flat_map(|i| case.f32(&format!("after/0/{i}")))
        .fold(0.0_f32, |largest, w| largest.max(w.abs()));
    let close = |what: String, received: &Tensor, field: &str| {
        for (r, e) in received.f32().unwrap().iter().zip(case.f32(field)) {
            assert!(
                (r - e).abs() <= 1e-5 * largest,
                "{} on {strategy:?}: {what}: expected {e}, received {r}",
                case.name
            );
        }
    };
    for step in 0..case.json["steps"].as_u64().expect("a number of steps") {
        let [kernel, bias] = [0, 1].map(|i| case.f32(&format!("grad/{step}/{i}")));
        trainer.apply(kernel, bias);
        for (i, weight) in trainer.weights().iter().enumerate() {
            close(format!("step {step}, weight {i}"), weight, &format!("after/{step}/{i}"));
        }
    }
    trainer.0.check_consistency().expect("equal replicas");
    if case.find("ema/0").is_some() {
        // At the end of training the average replaces the weights.
        let x = (Tensor::zeros([1, 4]), Tensor::zeros([1, 3]));
        trainer.0.fit(x, Fit::new().epochs(0).verbose(0)).expect("nothing to do");
        for (i, weight) in trainer.weights().iter().enumerate() {
            close(format!("average {i}"), weight, &format!("ema/{i}"));
        }
    }
}

#[test]
fn seven_updates_match_keras() {
    for (group, cases) in [("optimizers", 40), ("whole_weights", 35)] {
        let fixture = Fixture::load(group);
        assert!(fixture.cases().count() > cases);
        for (devices, threads) in [(1, 1), (1, 2), (2, 1), (3, 1)] {
            let strategy = MirroredStrategy::cpus(devices).unwrap().threads(threads);
            fixture.cases().for_each(|case| check(&case, strategy.clone()));
        }
    }
    let fixed = MirroredStrategy::cpus(2).unwrap().deterministic(true);
    Fixture::load("whole_weights").cases().for_each(|case| check(&case, fixed.clone()));
}

#[needs(gxx)]
#[test]
fn seven_updates_match_keras_on_an_emulated_gpu() {
    let gpu = MirroredStrategy::with_backend(Arc::new(emulated_gpu()), ["gpu:0"]).unwrap();
    let fixtures = ["optimizers", "whole_weights"].map(Fixture::load);
    for (i, case) in fixtures.iter().flat_map(Fixture::cases).enumerate() {
        if on_emulated_gpu(i) {
            check(&case, gpu.clone());
        }
    }
}

/// Removes the names of schedules, also those of optimizers in a map.
fn without_schedule_names(config: &mut serde_json::Map<String, serde_json::Value>) {
    for (key, value) in config.iter_mut() {
        if let Some(inner) = value.as_object_mut() {
            if key == "learning_rate" {
                inner["config"].as_object_mut().unwrap().remove("name");
            }
            without_schedule_names(inner);
        }
    }
}

#[test]
fn configs_round_trip() {
    let whole = Fixture::load("whole_weights");
    for case in Fixture::load("optimizers").cases().chain(whole.cases()) {
        let optimizer = optimizers::from_config(case.class_name(), case.config()).unwrap();
        assert_eq!(optimizer.class_name(), case.class_name());
        // The name of a schedule labels TensorFlow's graph and has no meaning here.
        let mut keras = case.config().clone();
        without_schedule_names(&mut keras);
        assert_config(case.name, &optimizer.config(), &keras, &[]);
        let again = optimizers::from_config(case.class_name(), &optimizer.config()).unwrap();
        assert_eq!(again.config(), optimizer.config());
    }
}

#[test]
fn schedules_match_keras() {
    for case in Fixture::load("schedules").cases() {
        let json = serde_json::json!({"class_name": case.class_name(), "config": case.config()});
        let schedule: Schedule = serde_json::from_value(json).expect(case.name);
        schedule.validate().expect(case.name);
        let steps = case.tensor("step").i32().unwrap();
        let received: Vec<f64> = steps.iter().map(|s| schedule.at(*s as u64)).collect();
        assert_close(case.name, &received, case.f32("value"), 1e-5);
        let written = serde_json::to_value(&schedule).unwrap();
        let config = written["config"].as_object().unwrap();
        assert_config(case.name, config, case.config(), &["name"]);
    }
}

#[test]
fn nadam_needs_only_the_step() {
    let nadam = Nadam::default();
    let naive = |step: u64| {
        let u = |t: u64| 0.9 * (1.0 - 0.5 * 0.96_f64.powf(t as f64));
        let product = |t: u64| (1..=t).map(u).product::<f64>();
        let of_m = 0.1 * u(step + 1) / (1.0 - product(step + 1));
        let of_g = 0.1 * (1.0 - u(step)) / (1.0 - product(step));
        [of_m, of_g, 1.0 / (1.0 - 0.999_f64.powf(step as f64))]
    };
    for step in [1, 2, 30, 999, 1000, 1001, 5000, 1] {
        let received = nadam.scalars(0.1, step);
        for (r, e) in received.iter().zip(naive(step)) {
            assert!(
                (f64::from(*r) - e).abs() < 1e-6 * e,
                "step {step}: expected {e}, received {r}"
            );
        }
    }
    assert!(nadam.scalars(0.1, u64::MAX - 1).iter().all(|s| s.is_finite()));
}

#[test]
fn rules_are_stable_and_print() {
    let rule = SGD::new(0.1).momentum(0.9).weight_decay(0.01).clipnorm(1.0).rule();
    assert_eq!(rule.clip, Some(Clip::Norm(1.0)));
    assert_eq!(rule.slots.iter().map(|s| s.name.as_str()).collect::<Vec<_>>(), ["momentum"]);
    let text = rule.tape.to_string();
    let expected = "r0=x0; r1=x1; r2=x2; r3=x3; r4=x4; r5=mul(r0,r4); r6=sub(r0,r5); \
                    r7=mul(r1,r3); r8=0.9; r9=mul(r2,r8); r10=sub(r9,r7); r11=add(r6,r10); \
                    -> r11,r10";
    assert_eq!(text, expected);
}

#[test]
fn options_outside_their_range_are_refused() {
    let adam = Adam::default;
    let cases: [(Box<dyn Optimizer>, &str); 14] = [
        (
            Box::new(SGD::new(f64::NAN)),
            "SGD: learning_rate: expected a number from 0, received NaN",
        ),
        (Box::new(SGD::new(f64::INFINITY)), "learning_rate"),
        (Box::new(SGD::new(-0.1)), "received -0.1"),
        (Box::new(SGD::new(0.1).momentum(1.5)), "SGD: momentum: expected a number from 0 to 1"),
        (Box::new(adam().beta_1(1.0)), "Adam: beta_1: expected a number from 0 to below 1"),
        (Box::new(adam().epsilon(f64::NAN)), "epsilon"),
        (Box::new(adam().weight_decay(-1.0)), "weight_decay"),
        (Box::new(adam().clipnorm(1.0).clipvalue(1.0)), "received clipnorm, clipvalue"),
        (Box::new(adam().global_clipnorm(f64::NAN)), "global_clipnorm"),
        (Box::new(adam().use_ema(1.1)), "ema_momentum"),
        (Box::new(adam().use_ema(0.9).ema_overwrite_frequency(0)), "ema_overwrite_frequency"),
        (Box::new(adam().gradient_accumulation_steps(1)), "gradient_accumulation_steps"),
        (Box::new(adam().learning_rate(CosineDecay::new(0.1, 0))), "CosineDecay: decay_steps"),
        (
            Box::new(adam().learning_rate(PiecewiseConstantDecay::new([5, 9], [0.1, 0.2]))),
            "PiecewiseConstantDecay: values: expected 3 values, received 2",
        ),
    ];
    for (optimizer, expected) in cases {
        let text = optimizer.validate().unwrap_err().to_string();
        assert!(text.contains(expected), "expected '{expected}' in '{text}'");
    }
}

#[test]
fn names_and_configs_that_mean_nothing_are_refused() {
    for name in ["sgd", "adam", "adamw", "rmsprop", "adagrad", "nadam", "lion", "Adam", "SGD"] {
        optimizers::get(name).expect(name);
    }
    let text = optimizers::get("adamm").unwrap_err().to_string();
    assert!(text.contains("unknown optimizer 'adamm'; did you mean 'adam'?"), "{text}");
    let refused = |config: serde_json::Value| {
        optimizers::from_config("Adam", config.as_object().unwrap()).unwrap_err().to_string()
    };
    let text = refused(serde_json::json!({"learning_rate": "fast"}));
    assert!(text.starts_with("Adam: learning_rate: "), "{text}");
    let schedule = serde_json::json!({"class_name": "Decay", "config": {}});
    let text = refused(serde_json::json!({"learning_rate": schedule}));
    assert!(text.contains("unknown variant `Decay`"), "{text}");
    let text = refused(serde_json::json!({"beta_1": -1}));
    assert!(text.contains("beta_1"), "{text}");
}

#[test]
fn a_learning_rate_is_a_number_or_a_schedule() {
    assert_eq!(LearningRate::from(0.1).at(7), 0.1);
    let warm = LearningRate::from(CosineDecay::new(0.0, 10).warmup(0.5, 5));
    assert_eq!([warm.at(0), warm.at(5), warm.at(15)], [0.0, 0.5, 0.0]);
    let saved = serde_json::to_value(&warm).unwrap();
    assert_eq!(saved["module"], "keras.optimizers.schedules");
    assert_eq!(serde_json::from_value::<LearningRate>(saved).unwrap(), warm);
}
