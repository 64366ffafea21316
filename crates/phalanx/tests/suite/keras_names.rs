//! `docs/keras.md`: every name that Keras exports, with "yes" or the reason for "no". The page is made of
//! `tests/fixtures/names.json` and the registries; `UPDATE_DOCS=1` writes it again.

use crate::keras_coverage::Coverage;
use phalanx::activations::ActivationFn;
use phalanx::by_name::Named;
use phalanx::constraints::Constraint;
use phalanx::initializers::Initializer;
use phalanx::regularizers::Regularizer;
use phalanx::schedules::Schedule;
use phalanx::{layers, losses, metrics, ops, optimizers};
use serde_json::Value;
use std::collections::BTreeMap;
use std::path::PathBuf;

const HEAD: &str = "# What of Keras there is

Every name of these families of Keras, and whether Phalanx has it: in Rust, in `.keras` files or both. A class of a file that says
\"no\" here is refused with an error that names it. The page is made of Keras' own list of names
(`tests/python/names.py`) and of the registries of Phalanx; a test keeps it true. The last column names the fixture in
`tests/fixtures` with cases of the name, or the file with the test of a callback.
";

/// Reasons for names that are refused on purpose. Others are not there yet.
const REASONS: &[(&str, &str)] = &[
    ("layers.Lambda", "holds Python code"),
    ("layers.TFSMLayer", "holds a TensorFlow program"),
    ("layers.JaxLayer", "holds Python code"),
    ("layers.FlaxLayer", "holds Python code"),
    ("layers.TorchModuleWrapper", "holds Python code"),
    ("layers.Layer", "the base class"),
    ("layers.Wrapper", "the base class"),
    ("layers.InputLayer", "yes"),
    ("layers.MaxNumBoundingBoxes", "bounding boxes are not values of a model"),
    ("losses.Loss", "the base class"),
    ("metrics.Metric", "the base class"),
    ("optimizers.Optimizer", "the base class"),
    ("initializers.Initializer", "the base class"),
    ("regularizers.Regularizer", "the base class"),
    ("constraints.Constraint", "the base class"),
    ("optimizers.schedules.LearningRateSchedule", "the base class; in Rust a trait"),
    ("callbacks.Callback", "the base class; in Rust a trait"),
    ("callbacks.History", "yes"),
    ("callbacks.ProgbarLogger", "yes"),
    ("callbacks.EarlyStopping", "yes"),
    ("callbacks.ModelCheckpoint", "yes"),
    ("callbacks.ReduceLROnPlateau", "yes"),
    ("callbacks.CSVLogger", "yes"),
    ("callbacks.TensorBoard", "yes"),
    ("callbacks.BackupAndRestore", "yes"),
    ("callbacks.TerminateOnNaN", "yes; without it such a loss is an error"),
    ("callbacks.LambdaCallback", "yes, of Rust closures"),
    ("callbacks.CallbackList", "yes"),
    ("callbacks.LearningRateScheduler", "yes"),
    ("callbacks.RemoteMonitor", "yes"),
    ("callbacks.SwapEMAWeights", "yes"),
    (
        "callbacks.OrbaxCheckpoint",
        "a format of JAX; `BackupAndRestore` and `ModelCheckpoint` save runs and models",
    ),
    ("layers.RandomCrop", "yes; outside of training the middle of the image, as documented"),
    ("layers.RandomFlip", "yes; flips each way independently, as documented"),
    ("layers.RandomContrast", "yes; from 1 - factor to 1 + factor, as documented"),
    ("metrics.Mean", "yes, for loops of one's own"),
    ("metrics.Sum", "yes, for loops of one's own"),
    ("optimizers.OptimizerMap", "yes, inside `MultiOptimizer`"),
    ("activations.threshold", "Keras cannot call it by name: its arguments have no defaults"),
];

/// A name without underscores, in small letters.
fn plain(name: &str) -> String {
    name.replace('_', "").to_lowercase()
}

/// The names that Phalanx knows, as `family.name`.
fn known() -> Vec<String> {
    let list = |family: &str, names: Vec<&'static str>| -> Vec<String> {
        names.into_iter().map(|name| format!("{family}.{name}")).collect()
    };
    let snake_case = |family: &str, names: &[&str]| -> Vec<String> {
        names.iter().map(|name| format!("{family}.{}", plain(name))).collect()
    };
    let ops = ops::class_names().into_iter().map(|(module, class)| format!("ops.{module}.{class}"));
    [
        list("layers", layers::class_names()),
        list("losses", losses::class_names()),
        list("metrics", metrics::class_names()),
        list("optimizers", optimizers::class_names()),
        list("activations", ActivationFn::NAMES.to_vec()),
        snake_case("initializers", Initializer::NAMES),
        snake_case("regularizers", Regularizer::NAMES),
        snake_case("constraints", Constraint::NAMES),
        list("optimizers.schedules", Schedule::NAMES.to_vec()),
        ops.collect(),
    ]
    .concat()
}

/// Why an op is refused.
fn refusal(full: &str) -> Option<&'static str> {
    let (module, class) = full.strip_prefix("ops.")?.split_once('.')?;
    ops::refusal(module, class)
}

/// The families of names, in the order of the page.
const FAMILIES: [&str; 11] = [
    "layers",
    "losses",
    "metrics",
    "optimizers",
    "activations",
    "initializers",
    "regularizers",
    "constraints",
    "optimizers.schedules",
    "callbacks",
    "ops",
];

/// The list of names that Python Keras wrote.
fn names() -> BTreeMap<String, Value> {
    let root = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../..");
    let names = std::fs::read_to_string(root.join("tests/fixtures/names.json")).unwrap();
    serde_json::from_str(&names).unwrap()
}

/// The names of every family.
pub fn known_to_keras() -> Vec<(String, Vec<String>)> {
    let names = names();
    let list = |family: &str| serde_json::from_value(names[family].clone()).expect("a list");
    FAMILIES.iter().map(|family| (family.to_string(), list(family))).collect()
}

/// Whether there is a name: "yes", or the reason for "no".
pub fn answer(family: &str, name: &str) -> String {
    let known = known();
    let full = format!("{family}.{name}");
    let by_name = format!("{family}.{}", plain(name));
    let given = REASONS.iter().find(|(known, _)| *known == full).map(|(_, reason)| *reason);
    if given.is_none() && (known.contains(&full) || known.contains(&by_name)) {
        return "yes".into();
    }
    match given.or_else(|| refusal(&full)) {
        Some(yes) if yes.starts_with("yes") => yes.to_string(),
        Some(reason) => format!("no: {reason}"),
        None => "no: not yet".into(),
    }
}

fn page() -> String {
    let covered = Coverage::of_fixtures();
    let version = names()["keras"].as_str().unwrap().to_string();
    let mut page = HEAD.to_string();
    for (family, list) in known_to_keras() {
        let answers: Vec<String> = list.iter().map(|name| answer(&family, name)).collect();
        let yes = answers.iter().filter(|answer| answer.starts_with("yes")).count();
        page += &format!(
            "\n## `keras.{family}`\n\n{yes} of {} names of Keras {version}.\n\n",
            list.len()
        );
        page += "| name | | checked by |\n|---|---|---|\n";
        for (name, answer) in list.iter().zip(&answers) {
            let file = match covered.file(&family, name) {
                Some(file) if answer.starts_with("yes") => format!("`{file}`"),
                _ => String::new(),
            };
            page += &format!("| `{name}` | {answer} | {file} |\n");
        }
    }
    page
}

#[test]
fn the_page_of_names_is_true() {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../docs/keras.md");
    if std::env::var_os("UPDATE_DOCS").is_some() {
        std::fs::write(&path, page()).unwrap();
    }
    let written = std::fs::read_to_string(&path).unwrap_or_default();
    assert!(written == page(), "docs/keras.md is out of date: run this test with UPDATE_DOCS=1");
}
