//! Training runs in files: the newest few states of a run in a directory of their own.
//!
//! A state is a `.safetensors` file: the weights under their own names, so that it serves as a file
//! of weights too; what else belongs to the run under names that start with `@`; the rest as JSON
//! in the metadata, with a checksum over all of it.

use super::atomic::{create_directory, write_atomic};
use super::open::{identity, open_own};
use super::safetensors::{self, SafeTensors};
use crate::error::{Error, Result};
use crate::model::RunState;
use crate::warnings::warning;
use phalanx_graph::Tensor;
use phalanx_graph::text::shown;
use sha2::{Digest, Sha256};
use std::collections::BTreeMap;
use std::fs::{File, TryLockError};
use std::io::{ErrorKind, Read, Write};
use std::path::{Path, PathBuf};

/// Metadata of the run, and of the checksum over it and the tensors.
pub(super) const RUN: &str = "run";
pub(super) const CHECKSUM: &str = "sha256";
/// Names of states: this, the step, the extension.
const PREFIX: &str = "step-";
const SUFFIX: &str = ".safetensors";
/// Added to the name of a file that turned out to be damaged, and the whole ending then.
const DAMAGED: &str = ".damaged";
const DAMAGED_SUFFIX: &str = ".safetensors.damaged";
const LOCK: &str = ".lock";

/// Writes a run's state, whole or not at all.
pub(crate) fn write(path: &Path, mut state: RunState) -> Result<()> {
    let (model, mut notes) = (state.header.config.model.clone(), std::mem::take(&mut state.notes));
    let (text, mut tensors) = state.into_parts()?;
    tensors.sort_by(|a, b| a.0.cmp(&b.0));
    notes.insert(RUN.into(), text);
    let sum = checksum(&safetensors::metadata(&model, notes.clone()), &tensors);
    notes.insert(CHECKSUM.into(), sum);
    write_atomic(path, |out| safetensors::write(out, &model, notes, &tensors))
}

/// What a file of a run's state turned out to be.
pub(crate) enum Found {
    /// As it was written.
    Whole(Box<RunState>),
    /// Not as it was written.
    Damaged(String),
}

/// Whether a file says that it is a run's state, or once did.
pub(super) fn is_state(file: &SafeTensors) -> bool {
    [RUN, CHECKSUM].iter().any(|key| file.note(key).is_some())
}

/// Why a file is damaged, from the error of reading it.
///
/// # Errors
/// What the system reports: a file that cannot be read now says nothing about its content.
pub(super) fn damage(error: Error) -> Result<String> {
    match error {
        Error::Io { .. } => Err(error),
        error => Ok(error.to_string()),
    }
}

/// Reads a run's state.
///
/// # Errors
/// A file that the system cannot read, or one of a newer version.
pub(crate) fn read(path: &Path) -> Result<Found> {
    match safetensors::open(path) {
        Err(error) => damage(error).map(Found::Damaged),
        Ok(file) => read_open(file),
    }
}

/// Reads a run's state from a file that is open.
pub(super) fn read_open(mut file: SafeTensors) -> Result<Found> {
    let mut metadata = file.metadata();
    let (Some(sum), Some(text)) = (metadata.remove(CHECKSUM), metadata.get(RUN).cloned()) else {
        return Ok(Found::Damaged("no run in it".into()));
    };
    let mut tensors = match read_all(&mut file) {
        Err(error) => return damage(error).map(Found::Damaged),
        Ok(tensors) => tensors,
    };
    tensors.sort_by(|a, b| a.0.cmp(&b.0));
    if checksum(&metadata, &tensors) != sum {
        return Ok(Found::Damaged("its checksum does not fit its content".into()));
    }
    file.check_version()?;
    metadata.remove(RUN);
    Ok(Found::Whole(Box::new(RunState::from_parts(&text, metadata, tensors)?)))
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

/// A directory with the states of one run, which no other run may use meanwhile.
#[derive(Debug)]
pub(crate) struct RunDirectory {
    path: PathBuf,
    keep: usize,
    lock: File,
}

impl RunDirectory {
    /// Makes the directory where it is missing, and takes it.
    pub(crate) fn open(path: &Path, keep: usize) -> Result<RunDirectory> {
        create_directory(path)?;
        Ok(RunDirectory { path: path.into(), keep, lock: lock(path)? })
    }

    /// The newest state that is whole, if there is any. Damaged ones are then set aside, with a
    /// warning.
    ///
    /// # Errors
    /// A state that cannot be read, and states of which none is whole, set aside or not: to begin
    /// anew would be to lose them. Nothing is renamed then.
    pub(crate) fn latest(&self) -> Result<Option<(PathBuf, RunState)>> {
        let mut damaged: Vec<PathBuf> = vec![];
        for (_, path) in self.states()?.into_iter().rev() {
            let reason = match read(&path)? {
                Found::Whole(state) => {
                    self.check_place()?;
                    damaged.iter().for_each(|path| set_aside(path));
                    return Ok(Some((path, *state)));
                }
                Found::Damaged(reason) => reason,
            };
            warning!("{}: damaged ({reason}); the one before is used", shown(path.display()));
            damaged.push(path);
        }
        match damaged.len() + self.files(DAMAGED_SUFFIX)?.len() {
            0 => Ok(None),
            n => {
                let received = format!(
                    "{n} damaged (to begin anew, move or remove {PREFIX}*{SUFFIX} and \
                     {PREFIX}*{DAMAGED})"
                );
                Err(Error::file(&self.path, "a state of a run that is whole", received))
            }
        }
    }

    /// Whether there is no state, whole, damaged or set aside.
    pub(crate) fn is_empty(&self) -> Result<bool> {
        Ok(self.states()?.is_empty() && self.files(DAMAGED_SUFFIX)?.is_empty())
    }

    /// Adds a state, and removes the oldest beyond those to keep.
    pub(crate) fn save(&self, state: RunState) -> Result<PathBuf> {
        let path = self.path.join(format!("{PREFIX}{:010}{SUFFIX}", state.step()));
        self.check_place()?;
        write(&path, state)?;
        // What is saved is saved, whatever becomes of the old ones.
        if let Err(error) = self.prune() {
            warning!("older checkpoints cannot be removed: {error}");
        }
        Ok(path)
    }

    fn prune(&self) -> Result<()> {
        self.check_place()?;
        let states = self.states()?;
        let mut old = states.iter().take(states.len().saturating_sub(self.keep));
        old.try_for_each(|(_, path)| remove(path))
    }

    /// Removes all states, those set aside too.
    pub(crate) fn clear(&self) -> Result<()> {
        self.check_place()?;
        let files = [self.states()?, self.files(DAMAGED_SUFFIX)?].concat();
        files.iter().try_for_each(|(_, path)| remove(path))
    }

    /// Fails where the directory is no longer the one with this run's lock: one that has taken its
    /// place may be another run's.
    fn check_place(&self) -> Result<()> {
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

    /// The states by their step.
    fn states(&self) -> Result<Vec<(u64, PathBuf)>> {
        self.files(SUFFIX)
    }

    /// The files of steps with this ending, by their step.
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

/// The step that a state's name tells.
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

/// A damaged file must not count among the states to keep; it is kept for who wants to look.
fn set_aside(path: &Path) {
    let mut name = path.as_os_str().to_owned();
    name.push(DAMAGED);
    if let Err(error) = std::fs::rename(path, &name) {
        warning!("{}: cannot be set aside: {error}", shown(path.display()));
    }
}

/// Takes a directory for this process, as long as the file is open.
fn lock(directory: &Path) -> Result<File> {
    let path = directory.join(LOCK);
    let io = |source| Error::io(&path, source);
    let mut file = open_own(&path)?;
    if let Err(TryLockError::WouldBlock) = file.try_lock() {
        let mut owner = String::new();
        let _ = (&file).take(64).read_to_string(&mut owner);
        let received = format!("process {} at work in it", owner.trim());
        return Err(Error::file(directory, "a directory that no other run uses", received));
    }
    // File systems that know no locks are no reason not to train.
    file.set_len(0).and_then(|()| writeln!(file, "{}", std::process::id())).map_err(io)?;
    Ok(file)
}
