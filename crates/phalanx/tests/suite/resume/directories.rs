//! The directories of a run: shared, moved, replaced, linked.

use super::{RunConfig, compiled, events, images, states, train};
use phalanx::callbacks::{BackupAndRestore, LambdaCallback};
use phalanx::prelude::*;
use std::path::{Path, PathBuf};

#[test]
fn two_runs_do_not_share_a_directory() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().to_path_buf();
    let inner = LambdaCallback::new().epoch_end(move |_| {
        let (x, y) = images();
        let fit = Fit::new().verbose(0).callback(BackupAndRestore::new(&path));
        let error = compiled(RunConfig::default()).fit((x, y), fit).unwrap_err().to_string();
        let process = std::process::id();
        assert!(error.contains(&format!("one in use by process {process}")), "{error}");
        Ok(Action::Continue)
    });
    let backup = BackupAndRestore::new(directory.path());
    let fit = Fit::new().verbose(0).callback(backup).callback(inner);
    compiled(RunConfig::default()).fit(images(), fit).unwrap();
    assert!(states_in(directory.path()).is_empty(), "a finished run leaves no backup");
}

fn states_in(directory: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(directory).unwrap();
    let names = entries.map(|e| e.unwrap().file_name().into_string().unwrap());
    names.filter(|name| name.starts_with("step-")).collect()
}

#[test]
fn a_directory_that_vanishes_ends_the_run_with_its_name() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("backup");
    let (gone, elsewhere) = (path.clone(), directory.path().join("elsewhere"));
    let remove = LambdaCallback::new().epoch_begin(move |view| {
        if view.epoch == 1 {
            std::fs::rename(&gone, &elsewhere).unwrap();
        }
        Ok(Action::Continue)
    });
    let fit = Fit::new().epochs(2).verbose(0).callback(BackupAndRestore::new(&path));
    let error = compiled(RunConfig::default()).fit(images(), fit.callback(remove)).unwrap_err();
    assert!(error.to_string().ends_with("its .lock, received none: moved or removed"), "{error}");
}

#[test]
fn a_directory_that_replaced_the_runs_own_is_left_alone() {
    let directory = tempfile::tempdir().unwrap();
    let at = |name: &str| directory.path().join(name);
    let other = BackupAndRestore::new(at("other")).delete_checkpoint(false).keep_last(9);
    let fit = Fit::new().epochs(2).verbose(0).callback(other);
    compiled(RunConfig::default()).fit(images(), fit).unwrap();
    let content = |path: PathBuf| {
        let mut files: Vec<(String, Vec<u8>)> = states_in(&path)
            .into_iter()
            .map(|name| (name.clone(), std::fs::read(path.join(name)).unwrap()))
            .collect();
        files.sort();
        files
    };
    let before = content(at("other"));
    assert_eq!(before.len(), 3);
    let [path, moved, taken] = ["backup", "moved", "other"].map(at);
    let swap = LambdaCallback::new().epoch_begin(move |view| {
        if view.epoch == 1 {
            std::fs::rename(&path, &moved).unwrap();
            std::fs::rename(&taken, &path).unwrap();
        }
        Ok(Action::Continue)
    });
    // It would have removed all but one state.
    let backup = BackupAndRestore::new(at("backup")).keep_last(1);
    let fit = Fit::new().epochs(3).verbose(0).callback(backup).callback(swap);
    let error = compiled(RunConfig::default()).fit(images(), fit).unwrap_err().to_string();
    let expected = "backup: expected the directory that this run began with, and its .lock, \
                    received another in its place";
    assert!(error.ends_with(expected), "{error}");
    assert_eq!(content(at("backup")), before);
}

#[cfg(unix)]
#[test]
fn a_lock_that_is_a_link_is_not_followed() {
    let directory = tempfile::tempdir().unwrap();
    let at = |name: &str| directory.path().join(name);
    std::fs::create_dir(at("backup")).unwrap();
    std::fs::write(at("precious"), "content").unwrap();
    std::os::unix::fs::symlink(at("precious"), at("backup/.lock")).unwrap();
    let error = train(directory.path(), RunConfig::default(), None).unwrap_err().to_string();
    assert!(error.ends_with(".lock: expected a file, received a link"), "{error}");
    assert_eq!(std::fs::read_to_string(at("precious")).unwrap(), "content");
}

#[test]
fn a_run_that_ends_before_its_first_save_leaves_no_event_files() {
    let directory = tempfile::tempdir().unwrap();
    let at = |name: &str| directory.path().join(name);
    let fit = || {
        let backup = BackupAndRestore::new(at("backup")).delete_checkpoint(false);
        Fit::new().epochs(1).verbose(0).callback(backup).callback(TensorBoard::new(at("logs")))
    };
    let files = || std::fs::read_dir(at("logs/train")).unwrap().count();
    let fails = LambdaCallback::new().train_begin(|_| Err(Error::config("callback", "fails")));
    compiled(RunConfig::default()).fit(images(), fit().callback(fails)).unwrap_err();
    assert_eq!(files(), 0);
    compiled(RunConfig::default()).fit(images(), fit()).unwrap();
    assert_eq!(files(), 1);
    let whole = events(&at("logs/train"));
    // Resumed after a kill right after the first save, the run creates the file it announced.
    let entry = std::fs::read_dir(at("logs/train")).unwrap().next().unwrap().unwrap();
    for path in states(directory.path()).iter().skip(1) {
        std::fs::remove_file(path).unwrap();
    }
    std::fs::write(entry.path(), "a killed run's").unwrap();
    compiled(RunConfig::default()).fit(images(), fit()).unwrap();
    assert_eq!((files(), events(&at("logs/train"))), (1, whole));
}
