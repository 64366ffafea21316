//! Selection of the latest checkpoint in a directory.

use super::atomic::is_temporary;
use super::run_checkpoints::{self, StateFile};
use super::{Format, open_stored, safetensors};
use crate::error::{Error, Result};
use phalanx_distributed::warnings::warning;
use phalanx_graph::text::shown;
use std::cmp::Ordering;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

/// Returns the latest checkpoint of a directory, if any.
///
/// If `BackupAndRestore` has saved a run, this is the state with the highest step, from which a resumed
/// run continues. Otherwise it is the file written last, as for `tf.train.latest_checkpoint`. Files with
/// equal times are ordered by the numbers in their names, so `ckpt-10` comes after `ckpt-9`. Temporary
/// files and files of other formats are ignored.
///
/// ```no_run
/// # use phalanx::prelude::*;
/// # fn example(mut model: Model) -> Result<(), phalanx::Error> {
/// if let Some(path) = latest_checkpoint("training_checkpoints")? {
///     model.load_weights(path)?;
/// }
/// # Ok(())
/// # }
/// ```
///
/// # Errors
/// A directory, or a file in it, that exists but cannot be read.
pub fn latest_checkpoint(directory: impl AsRef<Path>) -> Result<Option<PathBuf>> {
    Ok(checkpoints(directory.as_ref())?.pop())
}

/// Returns the latest intact checkpoint of a directory, if any. Damaged ones are skipped with a warning.
/// Run states are verified by their checksum, other files by their structure.
///
/// # Errors
/// A directory, or a checkpoint in it, that exists but cannot be read, and a directory in which all
/// checkpoints are damaged.
pub fn latest_intact_checkpoint(directory: impl AsRef<Path>) -> Result<Option<PathBuf>> {
    let directory = directory.as_ref();
    let mut damaged = 0;
    for path in checkpoints(directory)?.into_iter().rev() {
        let reason = match damage(&path) {
            Ok(None) => return Ok(Some(path)),
            Ok(Some(reason)) => reason,
            // A running job removes its oldest states.
            Err(Error::Io { source, .. }) if source.kind() == ErrorKind::NotFound => continue,
            Err(error) => return Err(error),
        };
        damaged += 1;
        warning!("{}: damaged ({reason}); using the previous one", shown(path.display()));
    }
    if damaged == 0 {
        return Ok(None);
    }
    Err(Error::file(directory, "an intact checkpoint", format!("{damaged} damaged")))
}

/// Returns what is wrong with a file, if anything.
fn damage(path: &Path) -> Result<Option<String>> {
    let opened = match Format::of(path)? {
        Format::SafeTensors => match safetensors::open(path) {
            Ok(file) if run_checkpoints::is_state(&file) => {
                return Ok(match run_checkpoints::read_open(file)? {
                    StateFile::Intact(_) => None,
                    StateFile::Damaged(reason) => Some(reason),
                });
            }
            opened => opened.map(|_| ()),
        },
        format => open_stored(path, format).map(|_| ()),
    };
    opened.err().map(run_checkpoints::damage).transpose()
}

/// The checkpoints of a directory, the latest last.
fn checkpoints(directory: &Path) -> Result<Vec<PathBuf>> {
    let io = |source| Error::io(directory, source);
    let entries = match std::fs::read_dir(directory) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(vec![]),
        entries => entries.map_err(io)?,
    };
    let mut found: Vec<(Option<u64>, SystemTime, PathBuf)> = vec![];
    for entry in entries {
        let path = entry.map_err(io)?.path();
        if is_temporary(&path) || Format::of(&path).is_err() {
            continue;
        }
        let metadata = match std::fs::metadata(&path) {
            // The file was removed in the meantime.
            Err(error) if error.kind() == ErrorKind::NotFound => continue,
            metadata => metadata.map_err(|source| Error::io(&path, source))?,
        };
        if metadata.is_file() {
            found.push((run_checkpoints::step(&path), metadata.modified().map_err(io)?, path));
        }
    }
    // Run states come after all other files, ordered by step. The time stamps of copies and restored
    // backups are not reliable.
    found.sort_by(|(step, time, path), (other_step, other, known)| {
        let order = step.cmp(other_step).then(time.cmp(other));
        order.then_with(|| compare(path, known)).then_with(|| path.cmp(known))
    });
    Ok(found.into_iter().map(|(_, _, path)| path).collect())
}

/// Natural order of names: numbers by value, the rest by character.
fn compare(a: &Path, b: &Path) -> Ordering {
    let (a, b) = (a.to_string_lossy(), b.to_string_lossy());
    let (mut a, mut b) = (a.as_ref(), b.as_ref());
    loop {
        let (Some(x), Some(y)) = (a.chars().next(), b.chars().next()) else {
            return a.len().cmp(&b.len());
        };
        let order = if x.is_ascii_digit() && y.is_ascii_digit() {
            let (m, n) = (take_number(&mut a), take_number(&mut b));
            m.len().cmp(&n.len()).then(m.cmp(n))
        } else {
            (a, b) = (&a[x.len_utf8()..], &b[y.len_utf8()..]);
            x.cmp(&y)
        };
        if order != Ordering::Equal {
            return order;
        }
    }
}

/// Takes the leading digits without leading zeros, so that more digits mean a larger number.
fn take_number<'a>(text: &mut &'a str) -> &'a str {
    let end = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let (digits, rest) = text.split_at(end);
    *text = rest;
    digits.trim_start_matches('0')
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::layers::Dense;
    use crate::model::{Input, Sequential};
    use std::fs::{self, File};
    use std::time::Duration;

    #[test]
    fn the_last_written_file_wins_then_the_highest_number() {
        let directory = tempfile::tempdir().unwrap();
        let at = |name: &str| directory.path().join(name);
        let latest = || latest_checkpoint(directory.path()).unwrap();
        assert_eq!(latest_checkpoint(at("missing")).unwrap(), None);
        assert_eq!(latest(), None);
        let start = SystemTime::now();
        let write = |name: &str, seconds: u64| {
            let file = File::create(at(name)).unwrap();
            file.set_modified(start + Duration::from_secs(seconds)).unwrap();
        };
        write("ckpt-9.safetensors", 0);
        write("ckpt-10.safetensors", 0);
        assert_eq!(compare(&at("ckpt-9"), &at("ckpt-10")), Ordering::Less);
        assert_eq!(compare(&at("ckpt-9"), &at("ckpt-9a")), Ordering::Less);
        assert_eq!(latest(), Some(at("ckpt-10.safetensors")));
        write("ckpt-2.safetensors", 1);
        assert_eq!(latest(), Some(at("ckpt-2.safetensors")));
        for other in ["notes.txt", ".ckpt-3.safetensors.1-0.phalanx.tmp", "ckpt-4"] {
            write(other, 9);
        }
        fs::create_dir(at("directory.safetensors")).unwrap();
        assert_eq!(latest(), Some(at("ckpt-2.safetensors")));
        assert!(latest_checkpoint(at("notes.txt")).is_err());
    }

    #[test]
    fn states_of_a_run_are_taken_by_their_step_and_not_by_their_time() {
        let directory = tempfile::tempdir().unwrap();
        let at = |name: &str| directory.path().join(name);
        let start = SystemTime::now();
        for (name, seconds) in [
            ("step-0000000009.safetensors", 2),
            ("step-0000000010.safetensors", 1),
            ("step-0000000002.safetensors", 3),
            ("best.safetensors", 9),
            ("step-0000000011.safetensors.damaged", 9),
        ] {
            let file = File::create(at(name)).unwrap();
            file.set_modified(start + Duration::from_secs(seconds)).unwrap();
        }
        let latest = latest_checkpoint(directory.path()).unwrap();
        assert_eq!(latest, Some(at("step-0000000010.safetensors")));
    }

    #[test]
    fn damaged_checkpoints_are_skipped() {
        let directory = tempfile::tempdir().unwrap();
        let at = |name: &str| directory.path().join(name);
        let latest = || latest_intact_checkpoint(directory.path());
        assert_eq!(latest().unwrap(), None);
        let model = Sequential::new().add(Input::new([1])).add(Dense::new(1)).build().unwrap();
        let start = SystemTime::now();
        let age = |name: &str, seconds: u64| {
            let file = File::options().append(true).open(at(name)).unwrap();
            file.set_modified(start + Duration::from_secs(seconds)).unwrap();
        };
        model.save_weights(at("1.safetensors")).unwrap();
        model.save(at("2.keras")).unwrap();
        age("1.safetensors", 1);
        age("2.keras", 2);
        assert_eq!(latest().unwrap(), Some(at("2.keras")));
        let damage = |name: &str, place: fn(usize) -> usize| {
            let mut bytes = fs::read(at(name)).unwrap();
            let place = place(bytes.len());
            bytes[place] ^= 0x80;
            fs::write(at(name), bytes).unwrap();
            age(name, 3);
        };
        damage("2.keras", |size| size / 2);
        assert_eq!(latest().unwrap(), Some(at("1.safetensors")));
        damage("1.safetensors", |_| 3);
        let error = latest().unwrap_err().to_string();
        assert!(error.ends_with("expected an intact checkpoint, received 2 damaged"));
    }
}
