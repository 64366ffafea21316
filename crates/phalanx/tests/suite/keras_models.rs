//! Models from files of Python Keras: the same outputs, and the same losses and outputs in training.
//! `tests/python/models.py` makes the fixtures.

use crate::common::{Case, Fixture};
use phalanx::data::Arrays;
use phalanx::optimizers::SGD;
use phalanx::prelude::*;
use std::path::PathBuf;

/// The tolerance of outputs, relative to the largest number of a tensor.
const OUTPUTS: f64 = 1e-5;
/// The tolerance after training.
const TRAINED: f64 = 1e-4;

fn path(name: &str) -> PathBuf {
    let root = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../tests/fixtures/models");
    root.join(format!("{name}.keras"))
}

/// The tensors `field/0`, `field/1`, ….
fn list(case: &Case<'_>, field: &str) -> Vec<Tensor> {
    (0..).map_while(|i| case.find(&format!("{field}/{i}")).cloned()).collect()
}

fn difference(received: &[f32], expected: &[f32]) -> f64 {
    assert_eq!(received.len(), expected.len(), "number of elements");
    let largest = expected.iter().fold(1e-4f64, |m, e| m.max(f64::from(e.abs())));
    let apart = received.iter().zip(expected).map(|(r, e)| f64::from((r - e).abs()));
    apart.fold(0.0f64, |m, d| if d > m || d.is_nan() { d } else { m }) / largest
}

/// Compares lists of tensors; returns what differs.
fn compare(what: &str, received: &[Tensor], expected: &[Tensor], tolerance: f64) -> Vec<String> {
    assert_eq!(received.len(), expected.len(), "{what}");
    let mut wrong = vec![];
    for (i, (received, expected)) in received.iter().zip(expected).enumerate() {
        if received.dims() != expected.dims() {
            let (expected, received) = (expected.dims(), received.dims());
            wrong.push(format!("{what} {i}: expected {expected:?}, received {received:?}"));
            continue;
        }
        let d = difference(received.f32().unwrap(), expected.f32().unwrap());
        if d > tolerance || d.is_nan() {
            wrong.push(format!("{what} {i}: {d:.1e}"));
        }
    }
    wrong
}

/// Loads a model, predicts, trains three steps and predicts again.
fn run(case: &Case<'_>, strategy: MirroredStrategy) -> Result<Vec<String>> {
    let (inputs, targets) = (list(case, "input"), list(case, "target"));
    let mut model = phalanx::saving::load_model(path(&case.name))?;
    if model.has_open_sizes() {
        let error = model.predict_all(&Arrays::new(inputs.clone(), ())?).unwrap_err().to_string();
        assert!(error.contains("expected known sizes"), "{error}");
        let shapes = inputs.iter().map(|x| x.dims()[1..].to_vec());
        model = Load::new().input_shapes(shapes).model(path(&case.name))?;
    }
    let rows = inputs[0].dims()[0];
    let predict = |model: &Model| model.predict_all(&Arrays::new(inputs.clone(), ())?);
    let mut wrong = compare("output", &predict(&model)?, &list(case, "output"), OUTPUTS);
    let rate = case.json["rate"].as_f64().unwrap();
    let mut compile = Compile::new(SGD::default().learning_rate(rate)).strategy(strategy);
    for _ in 0..targets.len() {
        compile = compile.loss("mse");
    }
    model.compile(compile)?;
    let data = Arrays::new(inputs.clone(), targets)?;
    let fit = Fit::new().epochs(3).batch_size(rows).shuffle(false).verbose(0);
    let history = model.fit(&data, fit)?;
    let losses: Vec<f32> = history.get("loss").unwrap().iter().map(|l| *l as f32).collect();
    let d = difference(&losses, case.f32("losses"));
    if d > TRAINED || d.is_nan() {
        wrong.push(format!("losses: expected {:?}, received {losses:?}", case.f32("losses")));
    }
    wrong.extend(compare(
        "output after training",
        &predict(&model)?,
        &list(case, "after"),
        TRAINED,
    ));
    Ok(wrong)
}

fn check(strategy: impl Fn() -> MirroredStrategy) {
    let fixture = Fixture::load("models");
    let mut wrong = vec![];
    for case in fixture.cases() {
        match run(&case, strategy()) {
            Ok(list) => wrong.extend(list.into_iter().map(|w| format!("{}: {w}", case.name))),
            Err(e) => wrong.push(format!("{}: {e}", case.name)),
        }
    }
    assert!(wrong.is_empty(), "{} wrong:\n{}", wrong.len(), wrong.join("\n"));
}

#[test]
fn outputs_and_training_match_keras() {
    check(|| MirroredStrategy::cpus(1).unwrap());
}

#[test]
fn three_replicas_train_as_one() {
    check(|| MirroredStrategy::cpus(3).unwrap());
}
