//! What a file does not keep of a model is said when it is written.

use super::{clouds, compiled, one_thread, warnings};
use phalanx::prelude::*;
use phalanx::saving::convert;
use phalanx::schedules::CosineDecay;
use std::path::Path;

/// What is said of files, without their directory.
fn said(directory: &Path, work: impl FnOnce()) -> Vec<String> {
    let prefix = format!("{}/", directory.display());
    warnings(work).1.into_iter().map(|line| line.replace(&prefix, "")).collect()
}

fn trained() -> Model {
    let mut model = compiled(Adam::default());
    model.fit(clouds(12), Fit::new().batch_size(4).verbose(0)).unwrap();
    model
}

const STATE: &str = "the optimizer's state after 3 steps (.keras files keep it)";

#[test]
fn conversions_say_what_they_lose() {
    let directory = tempfile::tempdir().unwrap();
    let at = |name: &str| directory.path().join(name);
    let model = trained();
    model.set_metadata("origin", "clouds");
    assert_eq!(said(directory.path(), || model.save(at("a.keras")).unwrap()), [] as [&str; 0]);
    let notes = "the notes 'origin' (.keras and .safetensors files keep them)";
    for (to, lost) in [
        ("b.safetensors", vec![STATE]),
        ("b.weights.h5", vec!["structure, losses and metrics", STATE, notes]),
        ("b.h5", vec![notes]),
        ("b.keras", vec![]),
    ] {
        let lines = said(directory.path(), || convert(at("a.keras"), at(to)).unwrap());
        let expected: Vec<String> = match lost[..] {
            [] => vec![],
            _ => vec![format!("{to}: not kept: {}", lost.join("; "))],
        };
        assert_eq!(lines, expected);
    }
    // Notes go along where there is a place for them.
    for name in ["b.safetensors", "b.keras"] {
        assert_eq!(phalanx::saving::read_metadata(at(name)).unwrap()["origin"], "clouds", "{name}");
    }
    let (from, to) = (at("b.safetensors"), at("c.keras"));
    assert_eq!(said(directory.path(), || convert(from, to).unwrap()), [] as [&str; 0]);
    assert_eq!(phalanx::saving::read_metadata(at("c.keras")).unwrap()["origin"], "clouds");
    // A model that was never trained loses no state.
    compiled(Adam::default()).save(at("new.keras")).unwrap();
    let lines = said(directory.path(), || convert(at("new.keras"), at("new.safetensors")).unwrap());
    assert_eq!(lines, [] as [&str; 0]);
}

#[test]
fn a_state_of_a_run_that_becomes_a_model_says_what_it_loses() {
    let directory = tempfile::tempdir().unwrap();
    let backup = BackupAndRestore::new(directory.path()).delete_checkpoint(false);
    let fit = Fit::new().batch_size(4).verbose(0).callback(backup);
    compiled(Adam::default()).fit(clouds(12), fit).unwrap();
    let state = directory.path().join("step-0000000003.safetensors");
    let to = directory.path().join("model.keras");
    let lines = said(directory.path(), || convert(&state, &to).unwrap());
    assert_eq!(
        lines,
        ["model.keras: not kept: the state of its run: optimizer, counters, place in the data \
          (BackupAndRestore goes on with it)"]
    );
}

#[test]
fn files_of_weights_say_that_the_optimizer_is_not_in_them() {
    let directory = tempfile::tempdir().unwrap();
    let model = trained();
    for name in ["a.safetensors", "a.weights.h5", "a.h5"] {
        let path = directory.path().join(name);
        let lines = said(directory.path(), || model.save_weights(&path).unwrap());
        assert_eq!(lines, [format!("{name}: not kept: {STATE}")]);
    }
}

#[test]
fn what_keras_files_have_no_place_for_is_said() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("model.keras");
    let mut model = compiled(SGD::new(CosineDecay::new(0.1, 9)));
    model.set_learning_rate(0.02).unwrap();
    let lines = said(directory.path(), || model.save(&path).unwrap());
    let words = "the learning rate 0.02 set in place of a schedule (BackupAndRestore keeps it)";
    assert_eq!(lines, [format!("model.keras: not kept: {words}")]);
    // Batches that `fit` gathers are not Keras'; a checkpoint in their midst says so once.
    let mut model = super::classifier();
    let compile = Compile::new("sgd").loss("sparse_categorical_crossentropy");
    model.compile(compile.strategy(one_thread())).unwrap();
    let lines = said(directory.path(), || {
        let checkpoint = ModelCheckpoint::new(&path).save_freq(1);
        let fit = Fit::new().batch_size(2).accumulate(4).verbose(0).callback(checkpoint);
        model.fit(clouds(8), fit).unwrap();
    });
    let words =
        "the gradients of 1 batches accumulated towards an update (BackupAndRestore keeps them)";
    assert_eq!(lines, [format!("model.keras: not kept: {words}")]);
}
