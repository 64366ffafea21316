//! A text classifier that is fed with strings, against Python Keras: outputs, every gradient, ten losses, the weights
//! after them. `tests/python/text.py` makes the fixtures.

use super::{differs, file, fixture, samples};
use phalanx::data::Samples;
use phalanx::prelude::*;
use serde_json::Value;

/// The tolerance for f32 rounding, relative to the largest number of a tensor.
const ROUNDING: f64 = 2e-5;
/// The same after ten steps of Adam, which divides by small numbers.
const TRAINED: f64 = 2e-4;

/// The inputs and labels of a step.
fn batch(case: &Value, step: usize) -> (Vec<Samples>, Samples) {
    let batch = &case["batches"][step];
    let inputs = ["words", "genre"].map(|name| samples(&batch["inputs"][name]));
    (inputs.to_vec(), samples(&batch["labels"]))
}

/// Compares tensors by name with those of the fixture.
fn compare(what: &str, received: Vec<(String, Tensor)>, expected: &Value, tolerance: f64) {
    let expected = expected.as_object().unwrap();
    assert_eq!(received.len(), expected.len(), "{what}");
    for (name, tensor) in received {
        let wrong = differs(&tensor.into(), &samples(&expected[&name]), tolerance);
        assert!(wrong.is_none(), "{what} of {name}: {}", wrong.unwrap_or_default());
    }
}

fn check(case: &Value, replicas: usize) {
    let mut model = load_model(file(case["name"].as_str().unwrap())).unwrap();
    let loss = SparseCategoricalCrossentropy::default().from_logits(true);
    let compile = Compile::new(Adam::new(case["rate"].as_f64().unwrap())).loss(loss);
    model.compile(compile.strategy(MirroredStrategy::cpus(replicas).unwrap())).unwrap();
    let (x, y) = batch(case, 0);
    let output = model.predict_on_batch(x.clone()).unwrap();
    let wrong = differs(&output.into(), &samples(&case["output"]), ROUNDING);
    assert!(wrong.is_none(), "output: {}", wrong.unwrap_or_default());
    compare("gradient", model.gradients(x, y).unwrap(), &case["gradients"], ROUNDING);
    let losses = case["losses"].as_array().unwrap();
    assert_eq!(losses.len(), 10);
    for (step, expected) in losses.iter().enumerate() {
        let (x, y) = batch(case, step);
        let (before, expected) =
            (model.test_on_batch(x.clone(), y.clone()).unwrap(), expected.as_f64().unwrap());
        let loss = model.train_on_batch(x, y).unwrap().get("loss").unwrap();
        let d = (loss - expected).abs().max((before.get("loss").unwrap() - expected).abs());
        assert!(d <= TRAINED * expected, "loss of step {step}: {loss} for {expected}");
    }
    compare("weight after ten steps", model.weights().unwrap(), &case["after"], TRAINED);
}

#[test]
fn a_text_classifier_has_keras_gradients_and_losses() {
    let fixture = fixture();
    let cases = fixture["oracles"].as_array().unwrap();
    assert_eq!(cases.len(), 2);
    for case in cases {
        (1..=3).for_each(|replicas| check(case, replicas));
    }
}
