//! Custom training steps that are evaluated with a function of their own, against a `test_step` of Keras. The fixture is made
//! by tests/python/train_steps.py.

use crate::common::{Case, Fixture, difference_to_scale};
use crate::train_steps::cpus;
use crate::workers::job;
use phalanx::callbacks::{BackupAndRestore, ModelCheckpoint};
use phalanx::custom::Unary;
use phalanx::data::Arrays;
use phalanx::layer::Argument;
use phalanx::metrics::MetricExt;
use phalanx::model::{Inference, StepKind};
use phalanx::prelude::*;
use phalanx::train_step::{StepContext, TrainStep, Trainer};
use serde_json::json;

/// What evaluation reports: how right the student is, and how far from its teacher. The models are called in another order
/// than in training.
fn test(cx: &mut StepContext<'_>) -> Result<()> {
    assert!(!cx.training());
    let (x, labels) = (cx.input("x")?, cx.input("labels")?);
    let found = cx.call("student", &[x])?;
    let loss = SparseCategoricalCrossentropy::default().from_logits(true);
    let loss = cx.loss(&loss, labels, found)?;
    cx.metric("loss", loss)?;
    cx.track(SparseCategoricalAccuracy::default().named("accuracy"), labels, found)?;
    let wanted = cx.call("teacher", &[x])?;
    let apart = cx.graph().sub(wanted, found)?;
    let apart = cx.graph().unary(Unary::Abs, apart)?;
    cx.metric("apart", apart)
}

/// The loss of the training step, which needs no labels.
fn train(cx: &mut StepContext<'_>) -> Result<()> {
    assert!(cx.training());
    let x = cx.input("x")?;
    let wanted = cx.call_inference("teacher", &[x])?;
    let found = cx.call("student", &[x])?;
    let loss = cx.loss(&MeanSquaredError::default(), wanted, found)?;
    cx.minimize("distilled", loss, &["student"], "sgd")
}

fn distiller(
    case: &Case<'_>,
    strategy: impl Into<MultiWorkerMirroredStrategy>,
) -> (Model, Trainer) {
    let dense = |units, activation| Dense::new(units).activation(activation);
    let student = Sequential::new().add(Input::new([4])).add(dense(5, "tanh"));
    let mut student = student.add(Dropout::new(0.5)).add(Dense::new(3)).build().unwrap();
    let teacher = Sequential::new().add(Input::new([4])).add(dense(6, "relu"));
    let mut teacher = teacher.add(Dense::new(3)).build().unwrap();
    let start: Vec<Tensor> = case.list("start").into_iter().cloned().collect();
    student.set_weights(&start[..4]).unwrap();
    teacher.set_weights(&start[4..]).unwrap();
    let trainer = TrainStep::new("distillation")
        .input("x", Input::new([4]))
        .labels("labels")
        .model("teacher", &teacher)
        .model("student", &student)
        .optimizer("sgd", SGD::new(0.1).momentum(0.5))
        .strategy(strategy)
        .test_step(test)
        .compile(train)
        .unwrap();
    (student, trainer)
}

fn data(case: &Case<'_>) -> Arrays {
    Arrays::new(case.tensor("x").clone(), case.tensor("labels").clone()).unwrap()
}

/// Evaluates and compares with Keras.
fn check(case: &Case<'_>, trainer: &mut Trainer, what: &str) {
    let logs = trainer.evaluate(data(case), Inference::new().batch_size(4)).unwrap();
    let names: Vec<&str> =
        case.json["names"].as_array().unwrap().iter().map(|name| name.as_str().unwrap()).collect();
    assert_eq!(logs.iter().count(), names.len(), "{what}: {logs:?}");
    let received: Vec<f64> = names.iter().map(|name| logs.get(name).unwrap()).collect();
    let apart = difference_to_scale(&received, case.f32("result"));
    assert!(apart < 1e-5, "{what}: {received:?} {:?}", case.f32("result"));
}

#[test]
fn evaluation_with_a_function_of_its_own_matches_keras() {
    let fixture = Fixture::load("train_steps_test");
    let case = fixture.cases().next().unwrap();
    for replicas in [1, 2, 3] {
        let (_, mut trainer) = distiller(&case, cpus(replicas));
        check(&case, &mut trainer, &format!("on {replicas}"));
    }
    let (_, mut trainer) = distiller(&case, cpus(2).deterministic(true));
    check(&case, &mut trainer, "in deterministic mode");
    let workers = job(3, |rank, strategy| {
        let (_, mut trainer) = distiller(&case, strategy);
        check(&case, &mut trainer, &format!("worker {rank}"));
        Ok(())
    });
    workers.into_iter().for_each(|worker| worker.unwrap());
}

#[test]
fn validation_reports_what_the_test_step_does_and_runs_resume_with_it() {
    let fixture = Fixture::load("train_steps_test");
    let case = fixture.cases().next().unwrap();
    let directory = tempfile::tempdir().unwrap();
    let run = |epochs: usize, backup: &str| {
        let (student, mut trainer) = distiller(&case, cpus(2));
        let best = ModelCheckpoint::new(directory.path().join("best.keras"));
        let best = best.model("student").monitor("val_accuracy").save_best_only(true);
        let fit = Fit::new().epochs(epochs).batch_size(4).verbose(0).validation_data(data(&case));
        let fit = fit.callback(BackupAndRestore::new(directory.path().join(backup))).callback(best);
        let history = trainer.fit(data(&case), fit).unwrap();
        (student.get_weights().unwrap(), history)
    };
    let (expected, history) = run(4, "whole");
    for name in ["distilled", "val_loss", "val_accuracy", "val_apart"] {
        assert_eq!(history.get(name).unwrap().len(), 4, "{name}");
    }
    assert!(history.get("val_distilled").is_none() && history.get("accuracy").is_none());
    // The student comes closer to its teacher.
    let apart = history.get("val_apart").unwrap();
    assert!(apart[3] < apart[0], "{apart:?}");
    run(2, "parts");
    let (weights, resumed) = run(4, "parts");
    assert_eq!(weights, expected);
    assert_eq!(resumed.get("val_apart"), history.get("val_apart"));
    assert!(load_model(directory.path().join("best.keras")).is_ok());
}

/// Constants of the test step are not among the parameters of the training step.
#[test]
fn a_test_step_may_have_constants_and_call_fewer_models() {
    let model = || Sequential::new().add(Input::new([2])).add(Dense::new(2)).build().unwrap();
    let x = Input::new([2]).symbol();
    let factors = [(&x).into(), Argument::Plain(json!([2.0, 2.0]))];
    let doubled = phalanx::ops::call("numpy.Multiply", factors, json!({})).unwrap();
    let doubled = Model::new(&x, doubled).unwrap();
    let (first, second) = (model(), model());
    let step = |test: fn(&mut StepContext<'_>) -> Result<()>| {
        TrainStep::new("two")
            .input("x", Input::new([2]))
            .model("first", &first)
            .model("second", &second)
            .model("doubled", &doubled)
            .optimizer("adam", Adam::default())
            .test_step(test)
            .compile(|cx| {
                let x = cx.input("x")?;
                for name in ["first", "second"] {
                    let y = cx.call(name, &[x])?;
                    let square = cx.graph().unary(Unary::Square, y)?;
                    cx.minimize(name, square, &[name], "adam")?;
                }
                Ok(())
            })
    };
    let x = Tensor::new([3, 2], vec![1.0, 2.0, 3.0, 4.0, 5.0, 6.0]).unwrap();
    let mut trainer = step(|cx| {
        let x = cx.input("x")?;
        let y = cx.call("second", &[x])?;
        let y = cx.call("doubled", &[y])?;
        cx.metric("mean", y)?;
        let square = cx.graph().unary(Unary::Square, y)?;
        cx.minimize("second", square, &["second"], "adam")
    })
    .unwrap();
    for _ in 0..2 {
        let logs = trainer.evaluate(&x, Inference::new()).unwrap();
        let outputs = second.predict(&x).unwrap();
        let outputs: Vec<f64> =
            outputs.f32().unwrap().iter().map(|v| 2.0 * f64::from(*v)).collect();
        let mean = outputs.iter().sum::<f64>() / 6.0;
        let square = outputs.iter().map(|v| v * v).sum::<f64>() / 6.0;
        assert!((logs.get("mean").unwrap() - mean).abs() < 1e-5, "{logs:?} {mean}");
        assert!((logs.get("second").unwrap() - square).abs() < 1e-4, "{logs:?} {square}");
        let before = second.get_weights().unwrap();
        trainer.evaluate(&x, Inference::new()).unwrap();
        assert_eq!(second.get_weights().unwrap(), before);
        trainer.train_on_batch(&x).unwrap();
    }
    assert!(trainer.program(StepKind::Test, 3).is_ok());
    let error = step(|_| Ok(())).err().unwrap().to_string();
    let expected = "training step 'two': test step: expected one loss or metric or more";
    assert!(error.starts_with(expected), "{error}");
}
