//! Outputs without a loss, metrics of only some outputs, and several outputs of one layer. The fixture is made by
//! tests/python/output_losses.py.

use crate::common::{Case, Fixture, difference_to_scale};
use phalanx::data::Arrays;
use phalanx::prelude::*;
use std::path::{Path, PathBuf};

pub fn file(group: &str, case: &Case<'_>) -> PathBuf {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/fixtures");
    root.join(format!("{group}_{}.keras", case.name))
}

/// Compares logs with those of a case, in `field`. Keras reports nothing else.
pub fn check_logs(logs: &[(String, f64)], case: &Case<'_>, field: &str, what: &str) {
    let names: Vec<&str> =
        case.json["names"].as_array().unwrap().iter().map(|name| name.as_str().unwrap()).collect();
    assert_eq!(logs.len(), names.len(), "{} {what}: {logs:?} {names:?}", case.name);
    for (name, expected) in names.iter().zip(case.f32(field)) {
        let found = logs.iter().find(|(known, _)| known == name);
        let (_, received) =
            found.unwrap_or_else(|| panic!("{} {what}: no {name} in {logs:?}", case.name));
        let error = (received - f64::from(*expected)).abs();
        let scale = f64::from(expected.abs()).max(0.2);
        assert!(error < 1e-5 * scale, "{} {what} {name}: {received} {expected}", case.name);
    }
}

/// Compares the weights of a model with those after Keras' training.
pub fn check_weights(model: &Model, case: &Case<'_>, what: &str) {
    let weights = model.get_weights().unwrap();
    assert_eq!(weights.len(), case.list("after").len(), "{} {what}", case.name);
    for (i, (received, expected)) in weights.iter().zip(case.list("after")).enumerate() {
        let error = difference_to_scale(received.f32().unwrap(), expected.f32().unwrap());
        assert!(error < 3e-5, "{} {what}: weight {i} differs by {error}", case.name);
    }
}

/// The last entry of each series of a run that Keras has too.
pub fn last_logs(history: &History) -> Vec<(String, f64)> {
    let last = |name: &String| (name.clone(), history.last(name).unwrap());
    history.names().filter(|name| *name != "lr").map(|name| last(&name.to_string())).collect()
}

fn data(case: &Case<'_>, targets: Vec<Tensor>) -> Arrays {
    let data = Arrays::new(case.tensor("x").clone(), targets).unwrap();
    data.sample_weight(case.f32("sample_weight")).unwrap()
}

fn check(model: &mut Model, case: &Case<'_>, targets: &[Tensor], what: &str) {
    let all = || data(case, targets.to_vec());
    let logs = model.evaluate_with(all(), Inference::new().batch_size(4)).unwrap();
    check_logs(&logs, case, "result", what);
    let fit = Fit::new().epochs(2).batch_size(4).shuffle(false).verbose(0);
    let history = model.fit(all(), fit).unwrap();
    check_logs(&last_logs(&history), case, "history", what);
    check_weights(model, case, what);
}

fn targets(case: &Case<'_>) -> Vec<Tensor> {
    case.list("y").into_iter().cloned().collect()
}

#[test]
fn outputs_without_a_loss_are_not_trained_as_in_keras() {
    let directory = tempfile::tempdir().unwrap();
    for case in Fixture::load("output_losses").cases() {
        for replicas in [1, 2] {
            let strategy = || MirroredStrategy::cpus(replicas).unwrap().threads(1);
            let load = |path: &Path| Load::new().strategy(strategy()).model(path).unwrap();
            let mut model = load(&file("output_losses", &case));
            for name in ["model.keras", "model.h5"] {
                let path = directory.path().join(name);
                model.save(&path).unwrap();
                check(&mut load(&path), &case, &targets(&case), name);
            }
            check(&mut model, &case, &targets(&case), "from Keras' file");
            let outputs = model.predict_with(case.tensor("x").clone(), Inference::new()).unwrap();
            assert_eq!(outputs.len(), targets(&case).len(), "{}", case.name);
        }
    }
}

#[test]
fn targets_of_outputs_without_loss_and_metrics_are_optional() {
    let fixture = Fixture::load("output_losses");
    for (name, kept) in
        [("second_none", &[0][..]), ("weights_none", &[0, 2]), ("dict_has_one", &[1])]
    {
        let case = fixture.cases().find(|case| case.name == name).unwrap();
        let mut model = load_model(file("output_losses", &case)).unwrap();
        let given: Vec<Tensor> = kept.iter().map(|i| targets(&case)[*i].clone()).collect();
        check(&mut model, &case, &given, "targets with losses");
        let none = data(&case, vec![]);
        let error = model.evaluate_with(none, Inference::new()).unwrap_err().to_string();
        assert!(error.contains("targets"), "{error}");
    }
}

#[test]
fn compile_takes_outputs_without_a_loss() {
    let fixture = Fixture::load("output_losses");
    let case = fixture.cases().find(|case| case.name == "first_none").unwrap();
    let mut model = Load::new().compile(false).model(file("output_losses", &case)).unwrap();
    let compile = || Compile::new(SGD::new(0.05)).no_loss().loss("mse").loss_weights([5.0, 2.0]);
    model.compile(compile().metrics(["mae"]).metrics(["mse"])).unwrap();
    check(&mut model, &case, &targets(&case), "compiled again");
    // One batch, and one of a dataset.
    let x = case.tensor("x").clone();
    let batch = model.test_on_batch(x.clone(), targets(&case)).unwrap();
    let pipeline = data(&case, targets(&case)).sample_weight(&[1.0; 6]).unwrap();
    assert!(batch.get("loss").is_some() && batch.get("a_mae").is_some());
    assert!(
        model
            .gradients(x, pipeline.targets().iter().map(|t| (**t).clone()).collect::<Vec<_>>())
            .is_ok()
    );
    // Keras has a loss of this name, not a metric.
    let x = Input::new([3]).symbol();
    let outputs = [Dense::new(2).apply(&x), Dense::new(4).apply(&x)];
    let mut model = Model::new(&x, outputs).unwrap();
    let compile = Compile::new("sgd").loss("mse").no_loss().metrics::<&str>([]);
    let error = model.compile(compile.metrics(["ce"])).unwrap_err().to_string();
    assert!(error.contains("sparse_categorical_crossentropy, received ce"), "{error}");
    let error = model.compile(Compile::new("sgd").no_loss().no_loss()).unwrap_err().to_string();
    assert!(error.contains("a loss for one output or more, metrics, or layers"), "{error}");
}
