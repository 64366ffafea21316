//! Saves the whole run while it trains, and takes it up where it was.

use super::{Action, Callback, CallbackState, Frequency, View};
use crate::error::{Error, Result};
use crate::model::RunState;
use crate::saving::RunDirectory;
use crate::warnings::warning;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;

const OWNER: &str = "BackupAndRestore";
/// States kept unless said otherwise.
const KEEP: usize = 3;

/// Saves the whole run after every epoch, or every so many batches too; a run that finds a saved one
/// in its directory continues it, to the bit as if it had never been interrupted.
///
/// What is saved: weights, what the optimizer keeps, counters, the place in the data, the history
/// and what callbacks remember. Files are written by a thread of their own, whole or not at all, and
/// the newest few are kept; a damaged one is found by its checksum, renamed to `*.damaged`, and the
/// one before is used. A file that cannot be read is an error and stays as it is, and so is a
/// directory with states of which none is whole. A save that fails leaves the earlier ones as they
/// are: there is a warning, the training goes on, and when the last save of the run failed the run
/// ends with that error. So it does when its directory was moved or replaced meanwhile. A run that
/// is not finite any more is not saved. Each file also serves
/// [`crate::model::Model::load_weights`].
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
    /// Batches since the last save that was due.
    waited: u64,
    /// Whether the run's beginning, or what it goes on from, is on the disk.
    begun: bool,
}

impl BackupAndRestore {
    /// Saves after every epoch.
    pub fn new(backup_dir: impl AsRef<Path>) -> BackupAndRestore {
        BackupAndRestore {
            backup_dir: backup_dir.as_ref().into(),
            save_freq: Frequency::Epoch,
            delete_checkpoint: true,
            keep_last: KEEP,
            restore: true,
            directory: None,
            writer: None,
            waited: 0,
            begun: false,
        }
    }

    /// `"epoch"`, or a number of batches after which the run is saved as well.
    pub fn save_freq(mut self, frequency: impl Into<Frequency>) -> BackupAndRestore {
        self.save_freq = frequency.into();
        self
    }

    /// Whether the files are removed when the training has come to its end; true unless said
    /// otherwise.
    pub fn delete_checkpoint(mut self, delete: bool) -> BackupAndRestore {
        self.delete_checkpoint = delete;
        self
    }

    /// How many of the newest files are kept: 3 unless said otherwise.
    pub fn keep_last(mut self, files: usize) -> BackupAndRestore {
        self.keep_last = files;
        self
    }

    /// Whether a run found in the directory is continued, as it is unless said otherwise. With
    /// `false` it is an error to find one, since the new run would replace it.
    pub fn restore(mut self, restore: bool) -> BackupAndRestore {
        self.restore = restore;
        self
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

    /// Waits for what is being written; the last file written, or why there is none.
    fn finish(&mut self) -> Result<Option<PathBuf>> {
        self.writer.take().map_or(Ok(None), Writer::finish)
    }
}

impl Callback for BackupAndRestore {
    fn writes(&self) -> bool {
        true
    }

    fn sees_batches(&self) -> bool {
        self.save_freq != Frequency::Epoch
    }

    fn earlier_run(&mut self) -> Result<Option<RunState>> {
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
        (self.waited, self.begun) = (0, false);
        self.directory().map(|_| Action::BackUp)
    }

    fn state(&mut self) -> Result<CallbackState> {
        Ok(CallbackState::of(self.waited))
    }

    fn on_train_resume(&mut self, view: &View<'_>, state: &CallbackState) -> Result<Action> {
        let _ = self.on_train_begin(view)?;
        (self.waited, self.begun) = (state.read(OWNER)?, true);
        Ok(Action::Continue)
    }

    fn on_batch_end(&mut self, _view: &View<'_>) -> Result<Action> {
        let Frequency::Batches(every) = self.save_freq else { return Ok(Action::Continue) };
        self.waited += 1;
        if self.waited < every {
            return Ok(Action::Continue);
        }
        self.waited = 0;
        Ok(Action::BackUp)
    }

    fn on_epoch_end(&mut self, _view: &View<'_>) -> Result<Action> {
        Ok(Action::BackUp)
    }

    fn back_up(&mut self, state: RunState) -> Result<()> {
        if self.begun {
            return self.save(state);
        }
        // The beginning is on the disk before there is anything to repeat: logs know from the
        // first line on how far they belong to the run.
        self.begun = true;
        self.directory()?.save(state).map(|_| ())
    }

    fn newest_saved(&mut self) -> Option<PathBuf> {
        // What is being written comes first; why it was not was said.
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
        // A run that ended in NaN has nothing better than its last good states.
        let finished = self.delete_checkpoint && is_sound(view);
        if let Some(directory) = directory.filter(|_| finished) {
            directory.clear()?;
        }
        Ok(Action::Continue)
    }
}

/// Whether the last loss and every weight are numbers.
fn is_sound(view: &View<'_>) -> bool {
    let loss = view.history.get("loss").and_then(|losses| losses.last());
    loss.is_none_or(|loss| loss.is_finite()) && view.weights.is_finite()
}

/// A thread that writes states, one after the other.
#[derive(Debug)]
struct Writer {
    sender: Option<SyncSender<RunState>>,
    thread: Option<JoinHandle<()>>,
    /// The last file written, or why it was not.
    outcome: Arc<Mutex<Result<Option<PathBuf>>>>,
}

impl Writer {
    fn start(directory: Arc<RunDirectory>) -> std::io::Result<Writer> {
        // One state may wait while another is written; then training waits too, rather than memory
        // filling up.
        let (sender, receiver) = sync_channel(1);
        let outcome = Arc::new(Mutex::new(Ok(None)));
        let shared = outcome.clone();
        let work = move || write_all(&directory, &receiver, &shared);
        let thread = std::thread::Builder::new().name("phalanx-backup".into()).spawn(work)?;
        Ok(Writer { sender: Some(sender), thread: Some(thread), outcome })
    }

    fn save(&self, state: RunState) {
        if let Some(sender) = &self.sender {
            // The thread only ends when the sender does.
            let _ = sender.send(state);
        }
    }

    fn finish(mut self) -> Result<Option<PathBuf>> {
        if !self.join() {
            return Err(Error::config(OWNER, "the thread that writes has failed"));
        }
        let mut outcome = self.outcome.lock().unwrap_or_else(PoisonError::into_inner);
        std::mem::replace(&mut *outcome, Ok(None))
    }

    /// Waits for the thread; whether it ended well.
    fn join(&mut self) -> bool {
        self.sender = None;
        self.thread.take().is_none_or(|thread| thread.join().is_ok())
    }
}

impl Drop for Writer {
    /// What was asked for is written, however the run ends.
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
            warning!("not saved at step {}: weights that are no numbers", state.step());
            continue;
        }
        let step = state.step();
        let saved = directory.save(state).map(Some);
        if let Err(error) = &saved {
            warning!("not saved at step {step}: {error}; earlier checkpoints stay");
        }
        *outcome.lock().unwrap_or_else(PoisonError::into_inner) = saved;
    }
}
