//! Accumulated gradients are part of a model's file. A model saved between two updates continues where it was,
//! whichever program wrote the file and on any number of replicas.

use crate::common::{Case, Fixture};
use phalanx::prelude::*;
use std::path::{Path, PathBuf};

/// The maximum difference of a weight from Keras'.
const TOLERANCE: f32 = 2e-6;

/// Fixtures, and the first word of their files.
const GROUPS: [(&str, &str); 2] =
    [("accumulation", "accumulated"), ("optimizer_files", "optimizer")];

fn fixture(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/fixtures").join(name)
}

fn load(path: &Path, replicas: usize) -> Model {
    let strategy = MirroredStrategy::cpus(replicas).unwrap().threads(1);
    Load::new().strategy(strategy).model(path).unwrap()
}

fn number(case: &Case<'_>, key: &str) -> usize {
    case.json[key].as_u64().unwrap() as usize
}

/// Trains on the batch of a step and returns the difference of the weights from Keras'.
fn step(model: &mut Model, case: &Case<'_>, step: usize) -> f32 {
    let (x, y) = (case.tensor(&format!("x/{step}")), case.tensor(&format!("y/{step}")));
    model.train_on_batch(x, y).unwrap();
    let weights = model.get_weights().unwrap();
    let off = weights.iter().enumerate().map(|(i, weight)| {
        let expected = case.tensor(&format!("after/{step}/{i}")).f32().unwrap();
        let pairs = weight.f32().unwrap().iter().zip(expected);
        pairs.map(|(a, b)| (a - b).abs()).fold(0.0, f32::max)
    });
    off.fold(0.0, f32::max)
}

#[test]
fn a_file_of_keras_between_two_updates_goes_on_with_keras_numbers() {
    for (group, file) in GROUPS {
        for case in Fixture::load(group).cases() {
            let path = fixture(&format!("{file}_{}.keras", case.name));
            for replicas in [1, 3] {
                let mut model = load(&path, replicas);
                for at in number(&case, "saved")..number(&case, "steps") {
                    let off = step(&mut model, &case, at);
                    let what = format!("{} step {at}, {replicas} replicas", case.name);
                    assert!(off <= TOLERANCE, "{what}: {off}");
                }
            }
        }
    }
}

#[test]
fn a_file_of_ours_between_two_updates_goes_on_on_any_number_of_replicas() {
    let directory = tempfile::tempdir().unwrap();
    let groups = GROUPS.map(|(group, file)| (Fixture::load(group), file));
    for (case, file) in groups.iter().flat_map(|(g, file)| g.cases().map(move |c| (c, file))) {
        let mut from = fixture(&format!("{file}_{}.keras", case.name));
        let steps = number(&case, "saved")..number(&case, "steps");
        // After every step: another file, format and number of replicas.
        for (i, at) in steps.enumerate() {
            let mut model = load(&from, [1, 3, 2][i % 3]);
            let off = step(&mut model, &case, at);
            assert!(off <= TOLERANCE, "{} step {at}: {off}", case.name);
            from = directory.path().join(["model.keras", "model.h5"][i % 2]);
            model.save(&from).unwrap();
        }
    }
}

/// An optimizer that accumulates gradients continues across epochs; an interruption must not change that.
#[test]
fn a_run_that_ends_between_two_updates_is_continued_with_their_gradients() {
    let x =
        Tensor::new([10, 3], (0..30).map(|i| (i % 7) as f32 / 7.0).collect::<Vec<_>>()).unwrap();
    let y = Tensor::new([10, 1], (0..10).map(|i| i as f32 / 10.0).collect::<Vec<_>>()).unwrap();
    let run = |epochs: usize, replicas: usize, backup: Option<&Path>| {
        let mut model = Sequential::new()
            .add(Input::new([3]))
            .add(Dense::new(4).activation("tanh"))
            .add(Dense::new(1))
            .build()
            .unwrap();
        let adam = Adam::new(0.05).gradient_accumulation_steps(4);
        let strategy = MirroredStrategy::cpus(replicas).unwrap().threads(1).deterministic(true);
        model.compile(Compile::new(adam).loss("mse").strategy(strategy).seed(4)).unwrap();
        let mut fit = Fit::new().epochs(epochs).batch_size(4).verbose(0);
        if let Some(directory) = backup {
            let backup = BackupAndRestore::new(directory).delete_checkpoint(false);
            fit = fit.callback(backup);
        }
        model.fit((&x, &y), fit).unwrap();
        model.weights_sha256().unwrap()
    };
    let directory = tempfile::tempdir().unwrap();
    // Three batches per epoch, four per update.
    run(1, 1, Some(directory.path()));
    run(2, 2, Some(directory.path()));
    assert_eq!(run(5, 1, Some(directory.path())), run(5, 1, None));
}
