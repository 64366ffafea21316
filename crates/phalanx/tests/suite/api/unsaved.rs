//! Warnings about the parts of a model that a file format cannot store.

use super::{clouds, compiled, one_thread, warnings};
use phalanx::prelude::*;
use phalanx::saving::convert;
use phalanx::schedules::CosineDecay;
use std::path::Path;

/// The warnings about files, without their directory.
fn warnings_about(directory: &Path, work: impl FnOnce()) -> Vec<String> {
    let prefix = format!("{}/", directory.display());
    warnings(work).1.into_iter().map(|line| line.replace(&prefix, "")).collect()
}

fn trained() -> Model {
    let mut model = compiled(Adam::default());
    model.fit(clouds(12), Fit::new().batch_size(4).verbose(0)).unwrap();
    model
}

const STATE: &str = "the optimizer's state after 3 steps (.keras files store it)";

#[test]
fn conversions_report_what_they_lose() {
    let directory = tempfile::tempdir().unwrap();
    let at = |name: &str| directory.path().join(name);
    let model = trained();
    model.set_metadata("origin", "clouds");
    assert_eq!(
        warnings_about(directory.path(), || model.save(at("a.keras")).unwrap()),
        [] as [&str; 0]
    );
    let notes = "the metadata 'origin' (.keras and .safetensors files store it)";
    for (to, lost) in [
        ("b.safetensors", vec![STATE]),
        ("b.weights.h5", vec!["structure, losses and metrics", STATE, notes]),
        ("b.h5", vec![notes]),
        ("b.keras", vec![]),
    ] {
        let lines = warnings_about(directory.path(), || convert(at("a.keras"), at(to)).unwrap());
        let expected: Vec<String> = match lost[..] {
            [] => vec![],
            _ => vec![format!("{to}: not saved: {}", lost.join("; "))],
        };
        assert_eq!(lines, expected);
    }
    // Notes are saved if the format can store them.
    for name in ["b.safetensors", "b.keras"] {
        assert_eq!(phalanx::saving::read_metadata(at(name)).unwrap()["origin"], "clouds", "{name}");
    }
    let (from, to) = (at("b.safetensors"), at("c.keras"));
    assert_eq!(warnings_about(directory.path(), || convert(from, to).unwrap()), [] as [&str; 0]);
    assert_eq!(phalanx::saving::read_metadata(at("c.keras")).unwrap()["origin"], "clouds");
    // An untrained model loses no state.
    compiled(Adam::default()).save(at("new.keras")).unwrap();
    let lines = warnings_about(directory.path(), || {
        convert(at("new.keras"), at("new.safetensors")).unwrap()
    });
    assert_eq!(lines, [] as [&str; 0]);
}

#[test]
fn a_run_state_loaded_as_a_model_reports_what_it_loses() {
    let directory = tempfile::tempdir().unwrap();
    let backup = BackupAndRestore::new(directory.path()).delete_checkpoint(false);
    let fit = Fit::new().batch_size(4).verbose(0).callback(backup);
    compiled(Adam::default()).fit(clouds(12), fit).unwrap();
    let state = directory.path().join("step-0000000003.safetensors");
    let to = directory.path().join("model.keras");
    let lines = warnings_about(directory.path(), || convert(&state, &to).unwrap());
    assert_eq!(
        lines,
        ["model.keras: not saved: the state of its run: optimizer, counters, place in the data \
          (BackupAndRestore can resume it)"]
    );
}

#[test]
fn weights_files_report_that_they_lack_the_optimizer() {
    let directory = tempfile::tempdir().unwrap();
    let model = trained();
    for name in ["a.safetensors", "a.weights.h5", "a.h5"] {
        let path = directory.path().join(name);
        let lines = warnings_about(directory.path(), || model.save_weights(&path).unwrap());
        assert_eq!(lines, [format!("{name}: not saved: {STATE}")]);
    }
}

#[test]
fn files_of_keras_report_what_they_cannot_store() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("model.keras");
    let mut model = compiled(SGD::new(CosineDecay::new(0.1, 9)));
    model.set_learning_rate(0.02).unwrap();
    let lines = warnings_about(directory.path(), || model.save(&path).unwrap());
    let expected = "the learning rate 0.02 set in place of a schedule (BackupAndRestore keeps it)";
    assert_eq!(lines, [format!("model.keras: not saved: {expected}")]);
    // Keras cannot store the accumulation of `fit`; a checkpoint in the middle reports this once.
    let mut model = super::classifier();
    let compile = Compile::new("sgd").loss("sparse_categorical_crossentropy");
    model.compile(compile.strategy(one_thread())).unwrap();
    let lines = warnings_about(directory.path(), || {
        let checkpoint = ModelCheckpoint::new(&path).save_freq(1);
        let fit = Fit::new().batch_size(2).accumulate(4).verbose(0).callback(checkpoint);
        model.fit(clouds(8), fit).unwrap();
    });
    let expected =
        "the gradients of 1 batches accumulated towards an update (BackupAndRestore keeps them)";
    assert_eq!(lines, [format!("model.keras: not saved: {expected}")]);
}
