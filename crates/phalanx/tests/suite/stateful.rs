//! Recurrent layers whose states outlive a batch: as in Keras' eager calls, on any number of devices, in every kind of
//! step, across sessions and interruptions. `tests/python/stateful.py` makes the fixtures.

use crate::common::{Case, Fixture, difference_to_scale, emulated_gpu};
use phalanx::callbacks::{Action, BackupAndRestore, LambdaCallback};
use phalanx::data::Arrays;
use phalanx::model::Interrupt;
use phalanx::optimizers::SGD;
use phalanx::prelude::*;
use phalanx_needs::needs;
use std::path::PathBuf;
use std::sync::Arc;

fn load(case: &Case<'_>) -> Model {
    let root = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../tests/fixtures/models");
    load_model(root.join(format!("stateful_{}.keras", case.name))).unwrap()
}

fn compile(case: &Case<'_>, model: &mut Model, strategy: MirroredStrategy) {
    let rate = case.json["rate"].as_f64().unwrap();
    let arguments = Compile::new(SGD::default().learning_rate(rate)).loss("mse");
    model.compile(arguments.strategy(strategy)).unwrap();
}

fn assert_close(what: &str, received: &Tensor, expected: &Tensor, tolerance: f64) {
    assert_eq!(received.dims(), expected.dims(), "{what}");
    let d = difference_to_scale(received.f32().unwrap(), expected.f32().unwrap());
    assert!(d <= tolerance, "{what}: {d:.1e}");
}

/// The rows of several tensors.
fn concatenated(tensors: &[&Tensor]) -> Tensor {
    let mut dims = tensors[0].dims().to_vec();
    dims[0] *= tensors.len();
    match tensors[0].f32() {
        Some(_) => Tensor::new(
            dims,
            tensors.iter().flat_map(|t| t.f32().unwrap()).copied().collect::<Vec<f32>>(),
        ),
        None => Tensor::new(
            dims,
            tensors.iter().flat_map(|t| t.i32().unwrap()).copied().collect::<Vec<i32>>(),
        ),
    }
    .unwrap()
}

/// Predicts, evaluates and trains as Keras does.
fn check(case: &Case<'_>, strategy: &dyn Fn() -> MirroredStrategy) {
    let name = case.name;
    let (x, outputs, y) = (case.list("input"), case.list("output"), case.list("target"));
    let mut model = load(case);
    // The first batch without, the others with a strategy: the states belong to the layers.
    assert_close(name, &model.predict(x[0]).unwrap(), outputs[0], 1e-5);
    compile(case, &mut model, strategy());
    assert_close(name, &model.predict(x[1]).unwrap(), outputs[1], 1e-5);
    assert_close(name, &model.predict(x[2]).unwrap(), outputs[2], 1e-5);
    model.reset_states();
    model.test_on_batch(x[0], y[0]).unwrap();
    assert_close(name, &model.predict(x[1]).unwrap(), outputs[1], 1e-5);
    model.reset_states();
    let losses: Vec<f32> =
        x.iter().zip(&y).map(|(x, y)| model.train_on_batch(*x, *y).unwrap()[0].1 as f32).collect();
    let d = difference_to_scale(&losses, case.f32("losses"));
    assert!(d < 1e-4, "{name}: expected {:?}, received {losses:?}", case.f32("losses"));
    assert_close(name, &model.predict(x[0]).unwrap(), case.tensor("after"), 1e-4);
}

#[test]
fn states_outlive_batches_as_in_keras() {
    for case in Fixture::load("stateful").cases() {
        for replicas in [1, 2, 3] {
            check(&case, &|| MirroredStrategy::cpus(replicas).unwrap());
        }
    }
}

#[needs(gxx)]
#[test]
fn states_outlive_batches_on_an_emulated_gpu() {
    let gpu = || MirroredStrategy::with_backend(Arc::new(emulated_gpu()), ["gpu:0"]).unwrap();
    for case in Fixture::load("stateful").cases() {
        if ["lstm", "bidirectional_gru", "conv_lstm"].contains(&case.name) {
            check(&case, &gpu);
        }
    }
}

#[test]
fn fit_carries_states_and_a_resumed_run_restores_them() {
    let fixture = Fixture::load("stateful");
    for case in fixture.cases().filter(|case| ["lstm", "bidirectional"].contains(&case.name)) {
        let (x, y) = (case.list("input"), case.list("target"));
        let data = Arrays::new(concatenated(&x), concatenated(&y)).unwrap();
        let fit = || Fit::new().epochs(2).batch_size(4).shuffle(false).verbose(0);
        let model = || {
            let mut model = load(&case);
            compile(&case, &mut model, MirroredStrategy::cpus(2).unwrap().threads(1));
            model
        };
        let mut one_epoch = model();
        let history = one_epoch.fit(&data, fit().epochs(1)).unwrap();
        let mean = case.f32("losses").iter().sum::<f32>() / x.len() as f32;
        let loss = history.get("loss").unwrap()[0] as f32;
        assert!((loss - mean).abs() < 1e-4 * mean, "{}: {loss} for {mean}", case.name);
        assert_close(case.name, &one_epoch.predict(x[0]).unwrap(), case.tensor("after"), 1e-4);

        let mut whole = model();
        let expected = whole.fit(&data, fit()).unwrap();
        let next = whole.predict(x[0]).unwrap();
        for stop in [1, 2, 4] {
            let dir = tempfile::tempdir().unwrap();
            let backup = || BackupAndRestore::new(dir.path());
            let interrupt = Interrupt::new();
            let requester = interrupt.clone();
            let stopping = LambdaCallback::new().batch_end(move |view| {
                if view.step == stop {
                    requester.request();
                }
                Ok(Action::Continue)
            });
            let run = fit().callback(backup()).callback(stopping).interrupt(&interrupt);
            assert!(matches!(model().fit(&data, run), Err(Error::Interrupted { .. })));
            let mut resumed = model();
            let history = resumed.fit(&data, fit().callback(backup())).unwrap();
            assert_eq!(history.get("loss"), expected.get("loss"), "stopped at {stop}");
            assert_eq!(resumed.predict(x[0]).unwrap(), next, "stopped at {stop}");
        }
    }
}

#[test]
fn files_have_the_batch_size_and_no_states() {
    let fixture = Fixture::load("stateful");
    let dir = tempfile::tempdir().unwrap();
    for case in fixture.cases() {
        let (x, model) = (case.list("input"), load(&case));
        let first = model.predict(x[0]).unwrap();
        assert_eq!(model.get_weights().unwrap().len(), load(&case).get_weights().unwrap().len());
        let path = dir.path().join("again.keras");
        model.save(&path).unwrap();
        let again = load_model(&path).unwrap();
        assert_eq!(again.predict(x[0]).unwrap(), first, "{}", case.name);
        assert_eq!(again.to_json(), model.to_json());
    }
}

#[test]
fn batches_of_another_size_are_refused() {
    let fixture = Fixture::load("stateful");
    let case = fixture.cases().find(|case| case.name == "lstm").unwrap();
    let mut model = load(&case);
    let error = model.predict(Tensor::zeros([3, 3, 2])).unwrap_err().to_string();
    assert!(error.contains("layer 'lstm': size of batch 1"), "{error}");
    assert!(error.contains("expected 4 samples, as its states have, received 3"), "{error}");
    compile(&case, &mut model, MirroredStrategy::cpus(1).unwrap());
    let (x, y) = (Tensor::zeros([6, 3, 2]), Tensor::zeros([6, 4]));
    let fit = Fit::new().batch_size(4).shuffle(false).verbose(0);
    let error = model.fit(Arrays::new(x, y).unwrap(), fit).unwrap_err().to_string();
    assert!(error.contains("expected 4 samples, as its states have, received 2"), "{error}");

    let x = Input::new([3, 2]).symbol();
    let error = Model::new(&x, LSTM::new(4).stateful(true).apply(&x)).err().unwrap().to_string();
    assert!(error.contains("inputs with a fixed batch size"), "{error}");
}

#[test]
fn a_shared_layer_continues_where_another_model_stopped() {
    let x = Input::new([2, 3]).batch_size(2).symbol();
    let layer = LayerHandle::from(GRU::new(3).stateful(true));
    let both = Model::new(&x, layer.apply(&x)).unwrap();
    let twice = Model::new(&x, Add::new().apply([&layer.apply(&x), &layer.apply(&x)])).unwrap();
    let input =
        Tensor::new([2, 2, 3], (0..12).map(|i| i as f32 / 7.0).collect::<Vec<_>>()).unwrap();
    let steps: Vec<Tensor> = (0..3).map(|_| both.predict(&input).unwrap()).collect();
    layer.reset_states();
    assert_eq!(both.predict(&input).unwrap(), steps[0]);
    let sum = twice.predict(&input).unwrap();
    let expected: Vec<f32> = std::iter::zip(steps[1].f32().unwrap(), steps[2].f32().unwrap())
        .map(|(a, b)| a + b)
        .collect();
    assert_eq!(sum.f32().unwrap(), expected);
}
