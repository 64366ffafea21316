//! Models from files of Python Keras: the same outputs, and the same losses and outputs in training.
//! `tests/python/models.py` and `recurrent.py` make the fixtures.

use crate::common::{Case, Fixture, difference_to_scale, emulated_gpu, on_emulated_gpu};
use phalanx::data::Arrays;
use phalanx::optimizers::SGD;
use phalanx::prelude::*;
use phalanx_needs::needs;
use std::path::PathBuf;
use std::sync::Arc;

/// The tolerance of outputs, relative to the largest number of a tensor.
const OUTPUTS: f64 = 1e-5;
/// The tolerance after training.
const TRAINED: f64 = 1e-4;

fn path(name: &str) -> PathBuf {
    let root = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../tests/fixtures/models");
    root.join(format!("{name}.keras"))
}

/// Compares lists of tensors; returns what differs.
fn compare(what: &str, received: &[Tensor], expected: &[&Tensor], tolerance: f64) -> Vec<String> {
    assert_eq!(received.len(), expected.len(), "{what}");
    let mut wrong = vec![];
    for (i, (received, expected)) in received.iter().zip(expected).enumerate() {
        if received.dims() != expected.dims() {
            let (expected, received) = (expected.dims(), received.dims());
            wrong.push(format!("{what} {i}: expected {expected:?}, received {received:?}"));
            continue;
        }
        let (Some(received), Some(expected)) = (received.f32(), expected.f32()) else {
            wrong.push(format!("{what} {i}: not floats"));
            continue;
        };
        let d = difference_to_scale(received, expected);
        if d > tolerance || d.is_nan() {
            wrong.push(format!("{what} {i}: {d:.1e}"));
        }
    }
    wrong
}

/// Loads a model, predicts, trains three steps and predicts again.
fn run(case: &Case<'_>, strategy: MirroredStrategy) -> Result<Vec<String>> {
    let owned = |field| case.list(field).into_iter().cloned().collect::<Vec<Tensor>>();
    let (inputs, targets) = (owned("input"), owned("target"));
    let mut model = phalanx::saving::load_model(path(case.name))?;
    let rows = inputs[0].dims()[0];
    let predict = |model: &Model| model.predict_all(&Arrays::new(inputs.clone(), ())?);
    let mut wrong = compare("output", &predict(&model)?, &case.list("output"), OUTPUTS);
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
    let d = difference_to_scale(&losses, case.f32("losses"));
    if d > TRAINED || d.is_nan() {
        wrong.push(format!("losses: expected {:?}, received {losses:?}", case.f32("losses")));
    }
    wrong.extend(compare("output after training", &predict(&model)?, &case.list("after"), TRAINED));
    Ok(wrong)
}

/// The models of Python Keras.
fn fixtures() -> [Fixture; 4] {
    ["models", "more_models", "recurrent", "sequences"].map(Fixture::load)
}

fn check(strategy: impl Fn() -> MirroredStrategy, chosen: impl Fn(usize) -> bool) {
    let mut wrong = vec![];
    let fixtures = fixtures();
    let cases = fixtures.iter().flat_map(Fixture::cases).enumerate();
    for (_, case) in cases.filter(|(i, _)| chosen(*i)) {
        // Keras computes the statistics of a batch over all of it. A deterministic mesh does so too.
        let strategy = match case.json["batch_statistics"] == true {
            true => MirroredStrategy::cpus(2).unwrap().deterministic(true),
            false => strategy(),
        };
        match run(&case, strategy) {
            Ok(list) => wrong.extend(list.into_iter().map(|w| format!("{}: {w}", case.name))),
            Err(e) => wrong.push(format!("{}: {e}", case.name)),
        }
    }
    assert!(wrong.is_empty(), "{} wrong:\n{}", wrong.len(), wrong.join("\n"));
}

#[test]
fn outputs_and_training_match_keras() {
    check(|| MirroredStrategy::cpus(1).unwrap(), |_| true);
}

#[test]
fn three_replicas_train_as_one() {
    check(|| MirroredStrategy::cpus(3).unwrap(), |_| true);
}

#[needs(gxx)]
#[test]
fn an_emulated_gpu_trains_as_keras_does() {
    let gpu = || MirroredStrategy::with_backend(Arc::new(emulated_gpu()), ["gpu:0"]).unwrap();
    check(gpu, on_emulated_gpu);
}

/// Every op is in some model, and no class of Keras is both known and refused.
#[test]
fn every_op_has_a_case() {
    let mut covered: Vec<String> = vec![];
    for case in fixtures().iter().flat_map(Fixture::cases) {
        let ops = case.json["ops"].as_array().into_iter().flatten();
        covered.extend(ops.map(|op| op.as_str().unwrap().to_string()));
    }
    let known = phalanx::ops::class_names();
    let refused = phalanx::ops::refused_class_names();
    let name = |(module, class): &(&str, &str)| format!("{module}.{class}");
    let missing: Vec<String> = known.iter().map(name).filter(|n| !covered.contains(n)).collect();
    assert!(missing.is_empty(), "without a case: {missing:?}");
    let both: Vec<_> = refused.iter().filter(|op| known.contains(op)).collect();
    assert!(both.is_empty(), "known and refused: {both:?}");
}

#[test]
fn refused_ops_say_why() {
    let x = Input::new([4]).symbol();
    for (op, reason) in [
        ("core.WhileLoop", "holds a Python function"),
        ("numpy.Nonzero", "has a shape that depends on the data"),
        ("linalg.SVD", "needs a matrix decomposition"),
    ] {
        let error = phalanx::ops::call(op, [(&x).into()], serde_json::json!({})).unwrap_err();
        assert!(error.to_string().contains(reason), "{error}");
    }
}

#[test]
fn operators_are_ops() {
    let (x, y) = (Input::new([2]).symbol(), Input::new([2]).symbol());
    let z = (1.0 - &x) * 2.0 + &y / (&x * &x + 1.0) - -&y;
    let model = Model::new([&x, &y], &z).unwrap();
    let input = |values: [f32; 2]| Tensor::new([1, 2], values.to_vec()).unwrap();
    let data = Arrays::new(vec![input([1.0, -2.0]), input([4.0, 5.0])], ()).unwrap();
    let outputs = model.predict_all(&data).unwrap();
    assert_eq!(outputs[0].f32().unwrap(), [6.0, 12.0]);
}

/// Ops that would mix samples, or whose arguments do not fit, are errors of the model.
#[test]
fn ops_refuse_what_they_cannot_do() {
    use serde_json::json;
    let x = Input::new([3, 4]).symbol();
    let wrong = [
        ("numpy.Max", json!({"axis": 0})),
        ("numpy.Mean", json!({"axis": 0})),
        ("numpy.Mean", json!({"axis": 7})),
        ("numpy.Cumsum", json!({})),
        ("numpy.Ravel", json!({})),
        ("numpy.Flip", json!({"axis": [0]})),
        ("numpy.Transpose", json!({"axes": [1, 0, 2]})),
        ("numpy.Split", json!({"indices_or_sections": 0, "axis": 1})),
        ("numpy.Split", json!({"indices_or_sections": [2, 1], "axis": 1})),
        ("numpy.Repeat", json!({"repeats": -1, "axis": 1})),
        ("numpy.Repeat", json!({"repeats": 1u64 << 62, "axis": 1})),
        ("numpy.Tile", json!({"repeats": [2, 1, 1]})),
        ("numpy.Pad", json!({"pad_width": [[0, 0], [1u64 << 60, 0], [0, 0]]})),
        ("numpy.Pad", json!({"pad_width": [[0, 0], [1, 1], [0, 0]], "mode": "linear_ramp"})),
        ("numpy.Diff", json!({"n": 4, "axis": 2})),
        ("numpy.Diagonal", json!({})),
        ("numpy.Diagonal", json!({"axis1": 1, "axis2": 2, "offset": -5})),
        ("numpy.Linspace", json!({"num": 1u64 << 40, "axis": 1})),
        ("numpy.Quantile", json!({"axis": 1})),
        ("numpy.Quantile", json!({"axis": 1, "method": "nearest"})),
        ("numpy.Reshape", json!({"newshape": [3, 4]})),
        ("numpy.Reshape", json!({"newshape": [-1, 5]})),
        ("numpy.Einsum", json!({"subscripts": "bij->ij"})),
        ("math.TopK", json!({"k": 5})),
        ("math.ExtractSequences", json!({"sequence_length": 5, "sequence_stride": 1})),
        ("nn.Unfold", json!({"kernel_size": 2})),
        ("nn.OneHot", json!({"num_classes": 0})),
        ("nn.MaxPool", json!({"pool_size": 9})),
        ("linalg.Norm", json!({"ord": "nuc", "axis": [1, 2]})),
        ("image.Resize", json!({"size": [2, 2]})),
    ];
    for (op, config) in wrong {
        let y = phalanx::ops::call(op, [(&x).into()], config.clone()).unwrap();
        let Err(error) = Model::new(&x, &y) else { panic!("{op} {config} is accepted") };
        assert!(error.to_string().contains("expected"), "{op} {config}: {error}");
    }
}
