//! Fixtures by the name of Keras that they check. Every name that `docs/keras.md` calls supported has a case.

use crate::common::Fixture;
use crate::keras_names::{answer, known_to_keras};
use phalanx::activations::ActivationFn;
use phalanx::by_name::Named;
use serde_json::Value;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// The fixtures whose cases are objects of a family.
const FAMILIES: &[(&str, &[&str])] = &[
    ("layers", &["layers", "more_layers", "image_layers", "preprocessing", "augmentation"]),
    ("losses", &["losses", "ctc"]),
    ("metrics", &["metrics", "running_metrics"]),
    ("optimizers", &["optimizers", "whole_weights", "loss_scale"]),
    ("initializers", &["initializers", "stft"]),
    ("regularizers", &["penalties"]),
    ("constraints", &["penalties"]),
    ("optimizers.schedules", &["schedules"]),
];

/// The fixtures of whole models, which also name the ops in them.
const MODELS: &[&str] = &["models", "more_models", "recurrent"];

/// Second names of functions. Keras saves the first.
const ALIASES: &[(&str, &str)] = &[("swish", "silu"), ("hard_swish", "hard_silu")];

/// The tests of callbacks, which have no numbers to compare: source file and function.
const CALLBACKS: &[(&str, &str, &str)] = &[
    (
        "BackupAndRestore",
        "tests/suite/resume/nan.rs",
        "a_run_that_ended_in_nan_keeps_its_good_states",
    ),
    ("CSVLogger", "tests/suite/callbacks.rs", "tables_and_lines_hold_what_the_history_holds"),
    (
        "CallbackList",
        "tests/suite/training_arguments.rs",
        "checkpoints_between_epochs_have_the_averages",
    ),
    (
        "EarlyStopping",
        "tests/suite/api/fit.rs",
        "early_stopping_stops_and_brings_the_best_weights_back",
    ),
    ("History", "tests/suite/api/fit.rs", "validation_data_is_evaluated_after_each_epoch"),
    (
        "LambdaCallback",
        "tests/suite/training_arguments.rs",
        "callbacks_see_evaluations_and_predictions",
    ),
    (
        "LearningRateScheduler",
        "tests/suite/api/fit.rs",
        "the_learning_rate_follows_callbacks_and_the_user",
    ),
    ("ModelCheckpoint", "tests/suite/callbacks.rs", "checkpoints_by_batches_and_of_the_best_only"),
    ("ProgbarLogger", "src/progress.rs", "the_bar_grows_in_place"),
    (
        "ReduceLROnPlateau",
        "tests/suite/callbacks.rs",
        "a_plateau_lowers_the_rate_of_the_epochs_that_follow",
    ),
    ("RemoteMonitor", "src/callbacks/remote_monitor.rs", "a_server_receives_the_metrics"),
    ("SwapEMAWeights", "tests/suite/training_arguments.rs", "averages_stand_in_for_the_weights"),
    ("TensorBoard", "tests/suite/tensorboard.rs", "scalars_histograms_and_graph_match_the_run"),
    (
        "TerminateOnNaN",
        "tests/suite/resume/nan.rs",
        "a_run_that_ended_in_nan_keeps_its_good_states",
    ),
];

fn package() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR"))
}

/// Names as `family.name`, each with the first file that has a case of it.
#[derive(Default)]
pub struct Coverage(BTreeMap<String, String>);

impl Coverage {
    fn add(&mut self, family: &str, name: &str, file: &str) {
        self.0.entry(format!("{family}.{name}")).or_insert_with(|| file.to_string());
    }

    /// Adds the layers and activations in a config.
    fn add_config(&mut self, value: &Value, file: &str) {
        match value {
            Value::Object(map) => {
                let text = |key: &str| map.get(key).and_then(Value::as_str);
                if let (Some("keras.layers"), Some(class)) = (text("module"), text("class_name")) {
                    self.add("layers", class, file);
                }
                for (key, value) in map {
                    if let (true, Some(name)) = (key.ends_with("activation"), value.as_str()) {
                        self.add("activations", name, file);
                    }
                    self.add_config(value, file);
                }
            }
            Value::Array(items) => items.iter().for_each(|item| self.add_config(item, file)),
            _ => {}
        }
    }

    /// Everything that the fixtures check.
    pub fn of_fixtures() -> Coverage {
        let mut covered = Coverage::default();
        let ops = |covered: &mut Coverage, case: &Value, file: &str| {
            let list = case["ops"].as_array().into_iter().flatten();
            list.for_each(|op| covered.add("ops", op.as_str().unwrap(), file));
        };
        for (family, groups) in FAMILIES {
            for group in *groups {
                for case in Fixture::load(group).cases() {
                    ops(&mut covered, case.json, group);
                    // The fixture of one initializer has only its arguments.
                    let class = case.json["class_name"].as_str().unwrap_or("STFT");
                    if case.json["ops"].is_null() {
                        covered.add(family, class, group);
                    }
                    covered.add_config(case.json, group);
                }
            }
        }
        for group in MODELS {
            for case in Fixture::load(group).cases() {
                ops(&mut covered, case.json, group);
                let path = package().join("../../tests/fixtures/models").join(case.name);
                covered.add_config(&config(&path.with_extension("keras")), group);
            }
        }
        let text = std::fs::read_to_string(package().join("../../tests/fixtures/text.json"));
        let text: Value = serde_json::from_str(&text.unwrap()).unwrap();
        for case in text["layers"].as_array().unwrap() {
            covered.add("layers", case["class"].as_str().unwrap(), "text");
        }
        for (alias, name) in ALIASES {
            if let Some(file) = covered.0.get(&format!("activations.{name}")).cloned() {
                covered.add("activations", alias, &file);
            }
        }
        for (callback, file, _) in CALLBACKS {
            covered.add("callbacks", callback, &format!("crates/phalanx/{file}"));
        }
        covered
    }

    /// The file with a case of a name.
    pub fn file(&self, family: &str, name: &str) -> Option<&str> {
        self.0.get(&format!("{family}.{name}")).map(String::as_str)
    }
}

/// The config of a `.keras` file.
fn config(path: &Path) -> Value {
    let file = std::fs::File::open(path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
    let mut archive = zip::ZipArchive::new(file).expect("an archive");
    serde_json::from_reader(archive.by_name("config.json").expect("a config")).expect("JSON")
}

#[test]
fn every_supported_name_has_a_case() {
    let covered = Coverage::of_fixtures();
    let mut missing = vec![];
    for (family, names) in known_to_keras() {
        for name in names {
            let yes = answer(&family, &name).starts_with("yes");
            if yes && covered.file(&family, &name).is_none() {
                missing.push(format!("{family}.{name}"));
            }
        }
    }
    assert!(missing.is_empty(), "without a case: {missing:?}");
}

#[test]
fn aliases_are_the_same_function() {
    for (alias, name) in ALIASES {
        let (alias, name) = (ActivationFn::from_name(alias), ActivationFn::from_name(name));
        assert!(name.is_some() && alias == name, "{alias:?} and {name:?}");
    }
}

#[test]
fn the_tests_of_callbacks_exist() {
    for (callback, file, test) in CALLBACKS {
        let source = std::fs::read_to_string(package().join(file)).expect(file);
        let exists = source.contains(&format!("#[test]\n    fn {test}("))
            || source.contains(&format!("#[test]\nfn {test}("));
        assert!(exists, "{callback}: {file} has no test {test}");
    }
}
