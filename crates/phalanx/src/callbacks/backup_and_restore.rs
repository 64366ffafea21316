//! Periodic backups of the whole run, and resumption from them.

use super::{Action, Callback, CallbackState, Frequency, View};
use crate::config::setters;
use crate::error::{Error, Result};
use crate::model::RunState;
use crate::saving::RunDirectory;
use phalanx_distributed::warnings::warning;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;

const OWNER: &str = "BackupAndRestore";
/// The default number of states to keep.
const DEFAULT_KEEP_LAST: usize = 3;

/// Saves the whole run after every epoch, or also after a number of batches. A run that finds a saved one in
/// its directory resumes it. The result is bit-identical to that of an uninterrupted run.
///
/// A saved run consists of weights, optimizer state, counters, the position in the data, the history and the
/// state of callbacks. A separate thread writes the files atomically and keeps the newest few. A damaged file
/// is detected by its checksum and renamed to `*.damaged`, and the previous one is used. A file that cannot be
/// read is an error and stays unchanged, and so is a directory with states of which none is intact. A failed
/// save leaves the earlier files unchanged: it causes a warning, training continues, and if the last save of
/// the run failed, the run ends with that error. The run also ends with an error if its directory was moved or
/// replaced in the meantime. A run with a NaN or infinite loss or weight is not saved. Each file can also be
/// read by [`crate::model::Model::load_weights`].
///
/// ```
/// use phalanx::callbacks::BackupAndRestore;
///
/// let callback = BackupAndRestore::new("backup").save_freq(100);
/// ```
#[derive(Debug)]
pub struct BackupAndRestore {
    backup_dir: PathBuf,
    save_freq: Frequency,
    delete_checkpoint: bool,
    keep_last: usize,
    restore: bool,
    directory: Option<Arc<RunDirectory>>,
    writer: Option<Writer>,
    /// The number of batches since the last save.
    batches_since_save: u64,
    /// Whether the start of the run, or the state it resumes from, is on disk.
    started: bool,
}

impl BackupAndRestore {
    /// Saves after every epoch.
    pub fn new(backup_dir: impl AsRef<Path>) -> BackupAndRestore {
        BackupAndRestore {
            backup_dir: backup_dir.as_ref().into(),
            save_freq: Frequency::Epoch,
            delete_checkpoint: true,
            keep_last: DEFAULT_KEEP_LAST,
            restore: true,
            directory: None,
            writer: None,
            batches_since_save: 0,
            started: false,
        }
    }

    setters! {
        /// `"epoch"`, or a number of batches after which the run is also saved.
        save_freq: impl Into<Frequency>,
        /// Whether to remove the files at the end of training; true by default.
        delete_checkpoint: bool,
        /// The number of newest files to keep; 3 by default.
        keep_last: usize,
        /// Whether to resume a run found in the directory; true by default. If `false`, finding one is an error,
        /// because the new run would replace it.
        restore: bool,
    }

    fn directory(&mut self) -> Result<Arc<RunDirectory>> {
        self.save_freq.check(OWNER, "save_freq")?;
        if self.keep_last == 0 {
            return Err(Error::argument(OWNER, "keep_last", "1 or more", 0));
        }
        if self.directory.is_none() {
            let opened = RunDirectory::open(&self.backup_dir, self.keep_last)?;
            self.directory = Some(Arc::new(opened));
        }
        let missing = || Error::argument(OWNER, "backup_dir", "a directory", "none");
        self.directory.clone().ok_or_else(missing)
    }

    fn save(&mut self, state: RunState) -> Result<()> {
        let directory = self.directory()?;
        let writer = match self.writer.take() {
            Some(writer) => writer,
            None => Writer::start(directory).map_err(|e| Error::io(&self.backup_dir, e))?,
        };
        self.writer.insert(writer).save(state);
        Ok(())
    }

    /// Waits for pending writes. Returns the last file written, or the error.
    fn finish(&mut self) -> Result<Option<PathBuf>> {
        self.writer.take().map_or(Ok(None), Writer::finish)
    }
}

impl Callback for BackupAndRestore {
    fn chief_only(&self) -> bool {
        true
    }

    fn wants_batch_events(&self) -> bool {
        self.save_freq != Frequency::Epoch
    }

    fn load_run(&mut self) -> Result<Option<RunState>> {
        let directory = self.directory()?;
        if self.restore {
            return Ok(directory.latest()?.map(|(_, state)| state));
        }
        if directory.is_empty()? {
            return Ok(None);
        }
        let expected = "no earlier run (resume it with --resume or restore(true), or choose another \
                        directory)";
        Err(Error::file(&self.backup_dir, expected, "one"))
    }

    fn on_train_begin(&mut self, _view: &View<'_>) -> Result<Action> {
        (self.batches_since_save, self.started) = (0, false);
        self.directory().map(|_| Action::SaveRun)
    }

    fn state(&mut self) -> Result<CallbackState> {
        Ok(CallbackState::of(self.batches_since_save))
    }

    fn on_train_resume(&mut self, view: &View<'_>, state: &CallbackState) -> Result<Action> {
        let _ = self.on_train_begin(view)?;
        (self.batches_since_save, self.started) = (state.read(OWNER)?, true);
        Ok(Action::Continue)
    }

    fn on_batch_end(&mut self, _view: &View<'_>) -> Result<Action> {
        let Frequency::Batches(every) = self.save_freq else { return Ok(Action::Continue) };
        self.batches_since_save += 1;
        if self.batches_since_save < every {
            return Ok(Action::Continue);
        }
        self.batches_since_save = 0;
        Ok(Action::SaveRun)
    }

    fn on_epoch_end(&mut self, _view: &View<'_>) -> Result<Action> {
        Ok(Action::SaveRun)
    }

    fn save_run(&mut self, state: RunState) -> Result<()> {
        if self.started {
            return self.save(state);
        }
        // The start of the run is written synchronously, before there is anything to repeat. Logs then
        // know from the first line on how far they belong to the run.
        self.started = true;
        self.directory()?.save(state).map(|_| ())
    }

    fn newest_saved(&mut self) -> Option<PathBuf> {
        // Wait for pending writes; a failure has already been reported.
        let _ = self.finish();
        let (path, _) = self.directory.as_ref()?.latest().ok().flatten()?;
        Some(path)
    }

    fn on_interrupt(&mut self, state: &RunState) -> Result<Option<PathBuf>> {
        self.save(state.clone())?;
        self.finish()
    }

    fn on_train_end(&mut self, view: &View<'_>) -> Result<Action> {
        self.finish()?;
        let directory = self.directory.take();
        // A run that ended in NaN keeps its last good states.
        let finished = self.delete_checkpoint && is_finite_run(view);
        if let Some(directory) = directory.filter(|_| finished) {
            directory.clear()?;
        }
        Ok(Action::Continue)
    }
}

/// Whether the last loss and all weights are finite.
fn is_finite_run(view: &View<'_>) -> bool {
    let loss = view.history.get("loss").and_then(|losses| losses.last());
    loss.is_none_or(|loss| loss.is_finite()) && view.weights.is_finite()
}

/// A thread that writes states in sequence.
#[derive(Debug)]
struct Writer {
    sender: Option<SyncSender<RunState>>,
    thread: Option<JoinHandle<()>>,
    /// The last file written, or the error.
    outcome: Arc<Mutex<Result<Option<PathBuf>>>>,
}

impl Writer {
    fn start(directory: Arc<RunDirectory>) -> std::io::Result<Writer> {
        // One state may be queued while another is written. After that training waits, which bounds the
        // memory.
        let (sender, receiver) = sync_channel(1);
        let outcome = Arc::new(Mutex::new(Ok(None)));
        let shared = outcome.clone();
        let work = move || write_all(&directory, &receiver, &shared);
        let thread = std::thread::Builder::new().name("phalanx-backup".into()).spawn(work)?;
        Ok(Writer { sender: Some(sender), thread: Some(thread), outcome })
    }

    fn save(&self, state: RunState) {
        if let Some(sender) = &self.sender {
            // The thread only ends after the sender is dropped.
            let _ = sender.send(state);
        }
    }

    fn finish(mut self) -> Result<Option<PathBuf>> {
        if !self.join() {
            return Err(Error::config(OWNER, "the writer thread has failed"));
        }
        let mut outcome = self.outcome.lock().unwrap_or_else(PoisonError::into_inner);
        std::mem::replace(&mut *outcome, Ok(None))
    }

    /// Waits for the thread. Returns whether it ended without a panic.
    fn join(&mut self) -> bool {
        self.sender = None;
        self.thread.take().is_none_or(|thread| thread.join().is_ok())
    }
}

impl Drop for Writer {
    /// Requested saves are written however the run ends.
    fn drop(&mut self) {
        self.join();
    }
}

fn write_all(
    directory: &RunDirectory,
    states: &Receiver<RunState>,
    outcome: &Mutex<Result<Option<PathBuf>>>,
) {
    while let Ok(state) = states.recv() {
        if !state.is_finite() {
            warning!("not saved at step {}: the weights are NaN or infinite", state.step());
            continue;
        }
        let step = state.step();
        let saved = directory.save(state).map(Some);
        if let Err(error) = &saved {
            warning!("not saved at step {step}: {error}; earlier checkpoints are kept");
        }
        *outcome.lock().unwrap_or_else(PoisonError::into_inner) = saved;
    }
}
