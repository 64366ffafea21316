//! Names of metrics: a model may have the same metric several times, with and without sample weights. The fixture is made
//! by tests/python/metric_names.py.

use crate::common::{Case, Fixture};
use phalanx::data::Arrays;
use phalanx::prelude::*;
use std::path::{Path, PathBuf};

fn file(case: &Case<'_>) -> PathBuf {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/fixtures");
    root.join(format!("metric_names_{}.keras", case.name))
}

fn data(case: &Case<'_>) -> Arrays {
    let targets: Vec<Tensor> = case.list("y").into_iter().cloned().collect();
    let data = Arrays::new(case.tensor("x").clone(), targets).unwrap();
    data.sample_weight(case.f32("sample_weight")).unwrap()
}

/// Evaluates a model and compares names and values with Keras'.
fn check(model: &mut Model, case: &Case<'_>, what: &str) {
    let what = format!("{} {what}", case.name);
    let logs = model.evaluate_with(data(case), Inference::new().batch_size(4)).unwrap();
    let names: Vec<&str> =
        case.json["names"].as_array().unwrap().iter().map(|name| name.as_str().unwrap()).collect();
    assert_eq!(logs.iter().count(), names.len(), "{what}: {logs:?}");
    for (name, expected) in names.iter().zip(case.f32("result")) {
        let received = logs.get(name).unwrap_or_else(|| panic!("{what}: no {name} in {logs:?}"));
        let expected = f64::from(*expected);
        assert!(
            (received - expected).abs() < 2e-6 * expected,
            "{what} {name}: {received} {expected}"
        );
    }
}

#[test]
fn the_same_metric_with_and_without_weights_has_the_names_of_keras() {
    let directory = tempfile::tempdir().unwrap();
    for case in Fixture::load("metric_names").cases() {
        for replicas in [1, 2] {
            let strategy = || MirroredStrategy::cpus(replicas).unwrap().threads(1);
            let load = |path: &Path| Load::new().strategy(strategy()).model(path).unwrap();
            let mut model = load(&file(&case));
            check(&mut model, &case, "from Keras' file");
            // Files that Phalanx writes have the same metrics.
            // The older format has no calls of ops, as Keras' files of masks contain them.
            let names = ["model.keras", "model.h5"];
            let count = if case.name.starts_with("masked") { 1 } else { 2 };
            for name in &names[..count] {
                let path = directory.path().join(name);
                model.save(&path).unwrap();
                check(&mut load(&path), &case, name);
            }
        }
    }
}

#[test]
fn compile_takes_the_same_metric_with_and_without_weights() {
    let fixture = Fixture::load("metric_names");
    let case = fixture.cases().find(|case| case.name == "outputs").unwrap();
    let mut model = load_model(file(&case)).unwrap();
    let compile = Compile::new("sgd").loss("mse").loss("mse").metrics(["mae"]);
    let compile = compile.metrics(["mse", "mae"]).weighted_metrics(["mae", "mse"]);
    model.compile(compile.weighted_metrics(["mae", "mae"])).unwrap();
    check(&mut model, &case, "compiled again");
    // The history of a run has them under these names too.
    let history = model.fit(data(&case), Fit::new().verbose(0)).unwrap();
    for name in ["a_weighted_mae", "b_mae", "b_weighted_mae", "b_weighted_mae_1"] {
        assert!(history.get(name).is_some(), "{name}");
    }
}
