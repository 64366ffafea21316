//! Reports of compiled models: the names of metrics, of which a model may have the same several times, with and without
//! sample weights, results that are vectors, and penalties without a loss. The fixture is made by
//! tests/python/metric_names.py.

use crate::common::{Case, Fixture, assert_close, emulated_gpu};
use phalanx::callbacks::{Callback, JsonLines, Mode};
use phalanx::data::Arrays;
use phalanx::prelude::*;
use phalanx_needs::needs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

fn file(case: &Case<'_>) -> PathBuf {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/fixtures");
    root.join(format!("metric_names_{}.keras", case.name))
}

fn data(case: &Case<'_>) -> Arrays {
    let targets: Vec<Tensor> = case.list("y").into_iter().cloned().collect();
    let data = Arrays::new(case.tensor("x").clone(), targets).unwrap();
    data.sample_weight(case.f32("sample_weight")).unwrap()
}

/// The numbers of a result: of a vector, or one.
fn numbers(logs: &Logs, name: &str) -> Option<Vec<f64>> {
    let one = || logs.get(name).map(|number| vec![number]);
    logs.vector(name).map(<[f64]>::to_vec).or_else(one)
}

/// Evaluates a model and compares names and values with Keras'.
fn check(model: &mut Model, case: &Case<'_>, what: &str) {
    let what = format!("{} {what}", case.name);
    let logs = model.evaluate_with(data(case), Inference::new().batch_size(4)).unwrap();
    let names = names(case);
    assert_eq!(logs.iter().count(), names.len(), "{what}: {logs:?}");
    let mut expected = case.f32("result").iter();
    for (i, name) in names.iter().enumerate() {
        let length = case.json.get("lengths").and_then(|lengths| lengths[i].as_u64()).unwrap_or(0);
        assert_eq!(logs.vector(name).map_or(0, <[f64]>::len) as u64, length, "{what}: {name}");
        let received = numbers(&logs, name).unwrap_or_else(|| panic!("{what}: no {name}: {logs}"));
        for (received, expected) in received.iter().zip(&mut expected) {
            let expected = f64::from(*expected);
            assert!(
                (received - expected).abs() <= 2e-6 * expected.abs(),
                "{what} {name}: {received} {expected}"
            );
        }
    }
    assert!(expected.next().is_none(), "{what}: {logs}");
}

/// The names that Keras reports.
fn names<'a>(case: &Case<'a>) -> Vec<&'a str> {
    let names = case.json["names"].as_array().unwrap();
    names.iter().map(|name| name.as_str().unwrap()).collect()
}

/// A case by its name.
fn with_case(name: &str, check: impl FnOnce(&Case<'_>)) {
    let fixture = Fixture::load("metric_names");
    check(&fixture.cases().find(|case| case.name == name).unwrap());
}

#[test]
fn the_same_metric_with_and_without_weights_has_the_names_of_keras() {
    let directory = tempfile::tempdir().unwrap();
    for case in Fixture::load("metric_names").cases().filter(|case| case.name != "penalties") {
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
    with_case("outputs", |case| {
        let mut model = load_model(file(case)).unwrap();
        let compile = Compile::new("sgd").loss("mse").loss("mse").metrics(["mae"]);
        let compile = compile.metrics(["mse", "mae"]).weighted_metrics(["mae", "mse"]);
        model.compile(compile.weighted_metrics(["mae", "mae"])).unwrap();
        check(&mut model, case, "compiled again");
        // The history of a run has them under these names too.
        let history = model.fit(data(case), Fit::new().verbose(0)).unwrap();
        for name in ["a_weighted_mae", "b_mae", "b_weighted_mae", "b_weighted_mae_1"] {
            assert!(history.get(name).is_some(), "{name}");
        }
    });
}

#[test]
fn vectors_are_in_the_history_and_in_files_of_metrics() {
    let directory = tempfile::tempdir().unwrap();
    let at = |name: &str| directory.path().join(name);
    with_case("vectors", |case| {
        let mut model = load_model(file(case)).unwrap();
        // The weights stay as they are, so that every epoch has Keras' numbers.
        model.set_learning_rate(0.0).unwrap();
        let fit = Fit::new().epochs(2).batch_size(4).verbose(0).validation_data(data(case));
        let fit = fit
            .callback(CSVLogger::new(at("log.csv")))
            .callback(JsonLines::new(at("log.jsonl")))
            .callback(TensorBoard::new(at("tensorboard")))
            .callback(BackupAndRestore::new(at("run")).delete_checkpoint(false));
        let history = model.fit(data(case), fit).unwrap();
        let logs = model.evaluate_with(data(case), Inference::new()).unwrap();
        let scores = logs.vector("f1_score").unwrap();
        let of_epochs = history.vectors("val_f1_score").unwrap();
        assert_eq!(of_epochs, [scores.to_vec(), scores.to_vec()]);
        let mean = logs.get("f1_score").unwrap();
        assert_eq!(history.get("val_f1_score").unwrap(), [mean, mean]);
        assert_eq!(mean, scores.iter().sum::<f64>() / 3.0);
        assert!(history.vectors("loss").is_none() && history.vectors("auc").is_none());
        let list = format!("[{:?}, {:?}, {:?}]", scores[0], scores[1], scores[2]);
        let table = std::fs::read_to_string(at("log.csv")).unwrap();
        let count = table.matches(&format!("\"\"\"{list}\"\"\"")).count();
        assert_eq!(count, 4, "two epochs, and their validation: {table}");
        for line in std::fs::read_to_string(at("log.jsonl")).unwrap().lines() {
            let object: serde_json::Value = serde_json::from_str(line).unwrap();
            assert_eq!(object["val_f1_score"], serde_json::json!(scores), "{line}");
        }
        // A run that ended has all vectors when it is resumed.
        let mut again = load_model(file(case)).unwrap();
        let fit = Fit::new().epochs(2).batch_size(4).verbose(0).validation_data(data(case));
        let fit = fit.callback(BackupAndRestore::new(at("run")).delete_checkpoint(false));
        let resumed = again.fit(data(case), fit).unwrap();
        assert_eq!(resumed.vectors, history.vectors);
    });
}

#[test]
fn a_vector_cannot_be_monitored() {
    with_case("vectors", |case| {
        let stopping = EarlyStopping::new("val_f1_score").mode(Mode::Max);
        let plateau = ReduceLROnPlateau::new("f1_score");
        let checkpoint =
            ModelCheckpoint::new("best.keras").monitor("r2_score").save_best_only(true);
        let all: [Box<dyn Callback>; 3] =
            [Box::new(stopping), Box::new(plateau), Box::new(checkpoint)];
        for callback in all {
            let mut model = load_model(file(case)).unwrap();
            let fit = Fit::new().verbose(0).validation_data(data(case));
            let error =
                model.fit(data(case), fit.callbacks(vec![callback])).unwrap_err().to_string();
            let expected = "monitor: expected a metric of one number, received '";
            assert!(error.contains(expected), "{error}");
            assert!(error.ends_with("which is a vector of 3 numbers"), "{error}");
        }
    });
}

/// Evaluates and trains as the fixture did; compares losses and weights.
fn check_penalties(model: &mut Model, case: &Case<'_>, what: &str) {
    let x = case.tensor("x");
    let before = model.evaluate_with(x, Inference::new().batch_size(4)).unwrap();
    let fit = Fit::new().batch_size(4).epochs(3).shuffle(false).verbose(0);
    let history = model.fit(x, fit).unwrap();
    assert!(history.names().filter(|name| *name != "lr").eq(names(case)), "{what}");
    let mut losses = vec![before.get("loss").unwrap()];
    losses.extend(history.get("loss").unwrap());
    assert_close(what, &losses, case.f32("result"), 1e-5);
    let weights = model.get_weights().unwrap();
    assert_eq!(weights.len(), 4, "{what}");
    for (i, received) in weights.iter().enumerate() {
        let received: Vec<f64> = received.f32().unwrap().iter().map(|v| f64::from(*v)).collect();
        assert_close(what, &received, case.f32(&format!("weights/{i}")), 1e-4);
    }
}

#[test]
fn a_model_without_a_loss_trains_on_its_penalties_as_in_keras() {
    let directory = tempfile::tempdir().unwrap();
    with_case("penalties", |case| {
        for replicas in [1, 2] {
            let strategy = || MirroredStrategy::cpus(replicas).unwrap().threads(1);
            let load = |path: &Path| Load::new().strategy(strategy()).model(path).unwrap();
            let model = load(&file(case));
            for name in ["model.keras", "model.h5"] {
                let path = directory.path().join(name);
                model.save(&path).unwrap();
                check_penalties(&mut load(&path), case, &format!("{name} on {replicas}"));
            }
            let mut again = load(&file(case));
            let compile = Compile::new(Adam::new(0.05)).strategy(strategy());
            again.compile(compile).unwrap();
            check_penalties(&mut again, case, &format!("compiled in Rust on {replicas}"));
        }
    });
}

#[needs(gxx)]
#[test]
fn vectors_and_penalties_are_those_of_keras_on_emulated_gpus() {
    let gpus = || {
        let gpus = Arc::new(emulated_gpu());
        MirroredStrategy::with_backend(gpus, ["gpu:0/0", "gpu:0/1"]).unwrap()
    };
    let load = |case: &Case<'_>| Load::new().strategy(gpus()).model(file(case)).unwrap();
    with_case("vectors", |case| check(&mut load(case), case, "on emulated GPUs"));
    with_case("penalties", |case| check_penalties(&mut load(case), case, "on emulated GPUs"));
}

#[test]
fn a_model_without_a_loss_metrics_and_penalties_is_refused() {
    let x = Input::new([3]).symbol();
    let mut model = Model::new(&x, Dense::new(2).apply(&x)).unwrap();
    let text = model.compile(Compile::new("sgd")).unwrap_err().to_string();
    let expected = "a loss for one output or more, metrics, or layers with penalties, \
                    received none of them";
    assert!(text.ends_with(expected), "{text}");
    let mut model = Model::new(&x, Dense::new(2).kernel_regularizer("l2").apply(&x)).unwrap();
    let compile = Compile::new("sgd").loss_weights([2.0]);
    let text = model.compile(compile).unwrap_err().to_string();
    assert!(text.contains("loss_weights: expected none without a loss, received 1"), "{text}");
}
