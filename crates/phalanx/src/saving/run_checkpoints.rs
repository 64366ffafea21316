//! Checkpoints of training runs: a directory with the most recent states of one run.
//!
//! A state is a `.safetensors` file. The weights have their own names, so it also serves as a weights
//! file. Other tensors of the run have names that start with `@`. The rest is JSON in the metadata, with
//! a checksum over all of it.

use super::atomic::{create_directory, write_atomic};
use super::safe_open::{identity, open_no_follow};
use super::safetensors::{self, SafeTensors};
use crate::error::{Error, Result};
use crate::model::RunState;
use phalanx_distributed::warnings::warning;
use phalanx_graph::Tensor;
use phalanx_graph::text::shown;
use sha2::{Digest, Sha256};
use std::collections::BTreeMap;
use std::fs::{File, TryLockError};
use std::io::{ErrorKind, Read, Write};
use std::path::{Path, PathBuf};

/// Metadata keys of the run, and of the checksum over it and the tensors.
pub(super) const RUN: &str = "run";
pub(super) const CHECKSUM: &str = "sha256";
/// File names of states: prefix, step, suffix.
const PREFIX: &str = "step-";
const SUFFIX: &str = ".safetensors";
/// Appended to the name of a damaged file, and the complete suffix of such files.
const DAMAGED_EXTENSION: &str = ".damaged";
const DAMAGED_SUFFIX: &str = ".safetensors.damaged";
const LOCK: &str = ".lock";

/// Writes the state of a run atomically.
pub(crate) fn write(path: &Path, mut state: RunState) -> Result<()> {
    let (model, mut notes) = (state.header.config.model.clone(), std::mem::take(&mut state.notes));
    let (text, mut tensors) = state.into_parts()?;
    tensors.sort_by(|a, b| a.0.cmp(&b.0));
    notes.insert(RUN.into(), text);
    let sum = checksum(&safetensors::metadata(&model, notes.clone()), &tensors);
    notes.insert(CHECKSUM.into(), sum);
    write_atomic(path, |out| safetensors::write(out, &model, notes, &tensors))
}

/// The result of reading a state file.
pub(crate) enum StateFile {
    /// The checksum matches.
    Intact(Box<RunState>),
    /// Damaged, with the reason.
    Damaged(String),
}

/// Whether a file claims to be the state of a run.
pub(super) fn is_state(file: &SafeTensors) -> bool {
    [RUN, CHECKSUM].iter().any(|key| file.note(key).is_some())
}

/// Converts a read error to the reason why a file is damaged.
///
/// # Errors
/// Errors of the system: a file that cannot be read now may still be intact.
pub(super) fn damage(error: Error) -> Result<String> {
    match error {
        Error::Io { .. } => Err(error),
        error => Ok(error.to_string()),
    }
}

/// Reads the state of a run.
///
/// # Errors
/// A file that the system cannot read, or one of a newer version.
pub(crate) fn read(path: &Path) -> Result<StateFile> {
    match safetensors::open(path) {
        Err(error) => damage(error).map(StateFile::Damaged),
        Ok(file) => read_open(file),
    }
}

/// Reads the state of a run from an open file.
pub(super) fn read_open(mut file: SafeTensors) -> Result<StateFile> {
    let mut metadata = file.metadata();
    let (Some(sum), Some(text)) = (metadata.remove(CHECKSUM), metadata.get(RUN).cloned()) else {
        return Ok(StateFile::Damaged("no run in it".into()));
    };
    let mut tensors = match read_all(&mut file) {
        Err(error) => return damage(error).map(StateFile::Damaged),
        Ok(tensors) => tensors,
    };
    tensors.sort_by(|a, b| a.0.cmp(&b.0));
    if checksum(&metadata, &tensors) != sum {
        return Ok(StateFile::Damaged("its checksum does not fit its content".into()));
    }
    file.check_version()?;
    metadata.remove(RUN);
    Ok(StateFile::Intact(Box::new(RunState::from_parts(&text, metadata, tensors)?)))
}

fn read_all(file: &mut SafeTensors) -> Result<Vec<(String, Tensor)>> {
    let mut tensors = vec![];
    for (name, dims) in file.floats() {
        let values = file.read(&name)?;
        tensors.push((name, Tensor::new(dims, values)?));
    }
    Ok(tensors)
}

fn checksum(metadata: &BTreeMap<String, String>, tensors: &[(String, Tensor)]) -> String {
    let mut hash = Sha256::new();
    for text in metadata.iter().flat_map(|(key, value)| [key, value]) {
        hash.update((text.len() as u64).to_le_bytes());
        hash.update(text);
    }
    for (name, tensor) in tensors {
        super::hash::update(&mut hash, name, tensor);
    }
    super::hash::hex(hash)
}

/// A directory with the states of one run, locked against other runs.
#[derive(Debug)]
pub(crate) struct RunDirectory {
    path: PathBuf,
    keep: usize,
    lock: File,
}

impl RunDirectory {
    /// Creates the directory if it is missing, and locks it.
    pub(crate) fn open(path: &Path, keep: usize) -> Result<RunDirectory> {
        create_directory(path)?;
        Ok(RunDirectory { path: path.into(), keep, lock: lock(path)? })
    }

    /// Returns the newest intact state, if any. Newer damaged ones are renamed, with a warning.
    ///
    /// # Errors
    /// A state that cannot be read, or a directory without an intact state: starting again would lose the
    /// damaged ones. Nothing is renamed in this case.
    pub(crate) fn latest(&self) -> Result<Option<(PathBuf, RunState)>> {
        let mut damaged: Vec<PathBuf> = vec![];
        for (_, path) in self.states()?.into_iter().rev() {
            let reason = match read(&path)? {
                StateFile::Intact(state) => {
                    self.check_locked_directory()?;
                    damaged.iter().for_each(|path| set_aside(path));
                    return Ok(Some((path, *state)));
                }
                StateFile::Damaged(reason) => reason,
            };
            warning!("{}: damaged ({reason}); using the previous one", shown(path.display()));
            damaged.push(path);
        }
        match damaged.len() + self.files(DAMAGED_SUFFIX)?.len() {
            0 => Ok(None),
            n => {
                let received = format!(
                    "{n} damaged (to start again, move or remove {PREFIX}*{SUFFIX} and \
                     {PREFIX}*{DAMAGED_EXTENSION})"
                );
                Err(Error::file(&self.path, "an intact run state", received))
            }
        }
    }

    /// Whether there is no state: intact, damaged or set aside.
    pub(crate) fn is_empty(&self) -> Result<bool> {
        Ok(self.states()?.is_empty() && self.files(DAMAGED_SUFFIX)?.is_empty())
    }

    /// Adds a state, and removes the oldest beyond the number to keep.
    pub(crate) fn save(&self, state: RunState) -> Result<PathBuf> {
        let path = self.path.join(format!("{PREFIX}{:010}{SUFFIX}", state.step()));
        self.check_locked_directory()?;
        write(&path, state)?;
        // The new state is saved, even if old ones cannot be removed.
        if let Err(error) = self.prune() {
            warning!("older checkpoints cannot be removed: {error}");
        }
        Ok(path)
    }

    fn prune(&self) -> Result<()> {
        self.check_locked_directory()?;
        let states = self.states()?;
        let mut old = states.iter().take(states.len().saturating_sub(self.keep));
        old.try_for_each(|(_, path)| remove(path))
    }

    /// Removes all states, including those set aside.
    pub(crate) fn clear(&self) -> Result<()> {
        self.check_locked_directory()?;
        let files = [self.states()?, self.files(DAMAGED_SUFFIX)?].concat();
        files.iter().try_for_each(|(_, path)| remove(path))
    }

    /// Fails if the directory is no longer the one that this run has locked. A directory that has
    /// replaced it may belong to another run.
    fn check_locked_directory(&self) -> Result<()> {
        let path = self.path.join(LOCK);
        let wrong = |received: &str| {
            let expected = format!("the directory that this run began with, and its {LOCK}");
            Err(Error::file(&self.path, expected, received))
        };
        let own = self.lock.metadata().map_err(|source| Error::io(&path, source))?;
        match std::fs::symlink_metadata(&path) {
            Ok(there) if identity(&there) == identity(&own) => Ok(()),
            Ok(_) => wrong("another in its place"),
            Err(error) if error.kind() == ErrorKind::NotFound => wrong("none: moved or removed"),
            Err(source) => Err(Error::io(path, source)),
        }
    }

    /// The states in the order of their steps.
    fn states(&self) -> Result<Vec<(u64, PathBuf)>> {
        self.files(SUFFIX)
    }

    /// The step files with this suffix, in the order of their steps.
    fn files(&self, suffix: &str) -> Result<Vec<(u64, PathBuf)>> {
        let io = |source| Error::io(&self.path, source);
        let mut files = vec![];
        for entry in std::fs::read_dir(&self.path).map_err(io)? {
            let path = entry.map_err(io)?.path();
            if let Some(step) = step_before(&path, suffix) {
                files.push((step, path));
            }
        }
        files.sort();
        Ok(files)
    }
}

/// The step in the name of a state file.
pub(super) fn step(path: &Path) -> Option<u64> {
    step_before(path, SUFFIX)
}

fn step_before(path: &Path, suffix: &str) -> Option<u64> {
    let name = path.file_name()?.to_str()?;
    name.strip_prefix(PREFIX)?.strip_suffix(suffix)?.parse().ok()
}

fn remove(path: &Path) -> Result<()> {
    match std::fs::remove_file(path) {
        Err(error) if error.kind() != ErrorKind::NotFound => Err(Error::io(path, error)),
        _ => Ok(()),
    }
}

/// Renames a damaged file, so that it does not count among the states to keep but stays available for
/// inspection.
fn set_aside(path: &Path) {
    let mut name = path.as_os_str().to_owned();
    name.push(DAMAGED_EXTENSION);
    if let Err(error) = std::fs::rename(path, &name) {
        warning!("{}: cannot be set aside: {error}", shown(path.display()));
    }
}

/// Locks a directory for this process while the file is open.
fn lock(directory: &Path) -> Result<File> {
    let path = directory.join(LOCK);
    let io = |source| Error::io(&path, source);
    let mut file = open_no_follow(&path)?;
    if let Err(TryLockError::WouldBlock) = file.try_lock() {
        let mut owner = String::new();
        let _ = (&file).take(64).read_to_string(&mut owner);
        let received = format!("one in use by process {}", owner.trim());
        return Err(Error::file(directory, "a directory that no other run uses", received));
    }
    // File systems without locks are no reason not to train.
    file.set_len(0).and_then(|()| writeln!(file, "{}", std::process::id())).map_err(io)?;
    Ok(file)
}
