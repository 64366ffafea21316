//! The files of a run's states: damaged, unreadable, of an earlier version.

use super::{RunConfig, compiled, images, states, train};
use phalanx::callbacks::BackupAndRestore;
use phalanx::prelude::*;
use std::path::Path;

/// Flips a bit in the middle of a file.
fn damage(path: &Path) {
    let mut bytes = std::fs::read(path).unwrap();
    let middle = bytes.len() / 2;
    bytes[middle] ^= 0x10;
    std::fs::write(path, bytes).unwrap();
}

#[test]
fn a_damaged_state_is_set_aside_and_the_one_before_is_used() {
    let alone = tempfile::tempdir().unwrap();
    let expected = train(alone.path(), RunConfig::default(), None).unwrap();
    let directory = tempfile::tempdir().unwrap();
    train(directory.path(), RunConfig::default(), Some(9)).unwrap_err();
    let before = states(directory.path());
    assert_eq!(before.len(), 3);
    damage(&before[2]);
    std::fs::write(&before[1], b"short").unwrap();
    assert_eq!(train(directory.path(), RunConfig::default(), None).unwrap(), expected);
    assert!(before[2].with_extension("safetensors.damaged").exists());
}

/// The names in a run's directory, except its lock.
fn names(directory: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(directory.join("backup")).unwrap();
    let mut names: Vec<String> =
        entries.map(|e| e.unwrap().file_name().into_string().unwrap()).collect();
    names.retain(|name| name != ".lock");
    names.sort();
    names
}

#[test]
fn a_run_with_only_damaged_states_is_not_restarted_at_the_second_start() {
    let directory = tempfile::tempdir().unwrap();
    train(directory.path(), RunConfig::default(), Some(9)).unwrap_err();
    states(directory.path()).iter().for_each(|path| damage(path));
    let refuse = || {
        let before = names(directory.path());
        let error = train(directory.path(), RunConfig::default(), None).unwrap_err().to_string();
        let expected = "backup: expected an intact run state, received 3 damaged (to \
                        start again, move or remove step-*.safetensors and step-*.damaged)";
        assert!(error.ends_with(expected), "{error}");
        let backup = BackupAndRestore::new(directory.path().join("backup")).restore(false);
        let fit = Fit::new().verbose(0).callback(backup);
        let error = compiled(RunConfig::default()).fit(images(), fit).unwrap_err().to_string();
        assert!(error.contains("expected no earlier run"), "{error}");
        assert_eq!(names(directory.path()), before, "nothing is renamed");
    };
    refuse();
    refuse();
    // The same applies to those that were renamed.
    for path in states(directory.path()) {
        std::fs::rename(&path, path.with_extension("safetensors.damaged")).unwrap();
    }
    refuse();
    refuse();
    std::fs::remove_dir_all(directory.path().join("backup")).unwrap();
    train(directory.path(), RunConfig::default(), Some(1)).unwrap_err();
}

#[cfg(unix)]
#[test]
fn a_state_that_cannot_be_read_is_an_error_and_no_damage() {
    let alone = tempfile::tempdir().unwrap();
    let expected = train(alone.path(), RunConfig::default(), None).unwrap();
    let directory = tempfile::tempdir().unwrap();
    train(directory.path(), RunConfig::default(), Some(9)).unwrap_err();
    let all = states(directory.path());
    let kept = directory.path().join("kept");
    // A damaged state is not renamed either while an earlier one cannot be read.
    for (unreadable, damaged) in [(2, None), (1, Some(2))] {
        std::fs::rename(&all[unreadable], &kept).unwrap();
        std::os::unix::fs::symlink(&all[unreadable], &all[unreadable]).unwrap();
        damaged.iter().for_each(|at: &usize| damage(&all[*at]));
        let before = names(directory.path());
        for _ in 0..2 {
            let error = train(directory.path(), RunConfig::default(), None).unwrap_err();
            let Error::Io { path, .. } = error else { panic!("{error}") };
            assert_eq!(path, all[unreadable]);
            assert_eq!(names(directory.path()), before, "nothing is renamed");
            let latest = phalanx::saving::latest_intact_checkpoint(directory.path().join("backup"));
            assert!(matches!(latest, Err(Error::Io { .. })), "{latest:?}");
        }
        std::fs::rename(&kept, &all[unreadable]).unwrap();
    }
    assert_eq!(train(directory.path(), RunConfig::default(), None).unwrap(), expected);
}

#[test]
fn a_state_serves_as_a_file_of_weights() {
    let directory = tempfile::tempdir().unwrap();
    let backup = BackupAndRestore::new(directory.path().join("backup")).delete_checkpoint(false);
    let mut trained = compiled(RunConfig::default());
    trained.fit(images(), Fit::new().verbose(0).callback(backup)).unwrap();
    let mut model = compiled(RunConfig::default());
    model.load_weights(states(directory.path()).last().unwrap()).unwrap();
    assert_eq!(model.weights_sha256().unwrap(), trained.weights_sha256().unwrap());
}

/// Trains two weights on four samples, with their state in a directory. Written by version 1, it is the run in
/// `tests/fixtures/runs/version_1.safetensors`.
fn two_weights(directory: &Path, epochs: usize) -> History {
    let mut model =
        Sequential::new().named("net").add(Input::new([2])).add(Dense::new(1)).build().unwrap();
    model.compile(Compile::new("adam").loss("mse").seed(5)).unwrap();
    model.set_metadata("origin", "an earlier version");
    let x = Tensor::new([4, 2], (0..8).map(|v| v as f32).collect::<Vec<_>>()).unwrap();
    let y = Tensor::new([4, 1], (0..4).map(|v| v as f32).collect::<Vec<_>>()).unwrap();
    let backup = BackupAndRestore::new(directory).delete_checkpoint(false).keep_last(1);
    let fit = Fit::new().epochs(epochs).batch_size(2).verbose(0).callback(backup);
    model.fit((x, y), fit).unwrap()
}

#[test]
fn notes_are_stored_once_and_a_state_that_repeats_them_is_taken_up() {
    let old =
        concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/fixtures/runs/version_1.safetensors");
    let count = |path: &Path| {
        let bytes = std::fs::read(path).unwrap();
        String::from_utf8_lossy(&bytes).matches("an earlier version").count()
    };
    assert_eq!(count(old.as_ref()), 2);
    let directory = tempfile::tempdir().unwrap();
    std::fs::copy(old, directory.path().join("step-0000000002.safetensors")).unwrap();
    let history = two_weights(directory.path(), 2);
    assert_eq!(history.epochs, [0, 1]);
    assert_eq!(history.get("loss").unwrap()[0], 0.584489643573761);
    let newest = directory.path().join("step-0000000004.safetensors");
    assert_eq!(count(&newest), 1);
    assert_eq!(phalanx::saving::read_metadata(&newest).unwrap()["origin"], "an earlier version");
    assert_eq!(two_weights(directory.path(), 3).epochs, [0, 1, 2]);
}

#[test]
fn times_are_those_of_the_current_run() {
    let directory = tempfile::tempdir().unwrap();
    let first = two_weights(directory.path(), 2);
    assert_eq!(first.run_seconds(), first.seconds.iter().sum::<f64>());
    let nothing = two_weights(directory.path(), 2);
    assert_eq!(nothing.seconds, first.seconds);
    assert_eq!((nothing.run_seconds(), nothing.input_wait_seconds()), (0.0, 0.0));
    let more = two_weights(directory.path(), 3);
    // The time of the third epoch, minus the moment between its start and the save before it.
    let ran = more.run_seconds();
    assert!(ran > more.input_wait_seconds() && ran <= more.seconds[2], "{more:?}");
}
