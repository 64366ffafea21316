//! Logs for TensorBoard.

mod events;
mod graph;
mod proto;

use super::log_file::{LogFile, Mark};
use super::{Action, Callback, CallbackState, Frequency, View};
use crate::config::setters;
use crate::error::{Error, Result};
use events::{EventFile, new_name, now};
use proto::Message;
use std::path::{Path, PathBuf};
use std::time::Instant;

const OWNER: &str = "TensorBoard";

/// Writes logs for TensorBoard under `log_dir/train` and `log_dir/validation`, as Keras does.
///
/// After every epoch it writes `epoch_<metric>` for every metric, `epoch_learning_rate` and
/// `epoch_images_per_second`, at the epoch's number from 0. For the validation it also writes
/// `evaluation_<metric>_vs_iterations` at the training step. View them with `tensorboard --logdir logs`.
///
/// Every run has its own files. They are created when the first epoch begins, after
/// [`BackupAndRestore`](super::BackupAndRestore) has saved their names: a run that is killed earlier leaves
/// none, and a resumed run continues its own files.
///
/// ```
/// use phalanx::callbacks::TensorBoard;
///
/// let callback = TensorBoard::new("logs").histogram_freq(1).update_freq(100);
/// ```
#[derive(Debug)]
pub struct TensorBoard {
    log_dir: PathBuf,
    histogram_freq: usize,
    write_graph: bool,
    write_steps_per_second: bool,
    update_freq: Frequency,
    /// The name of the run's files in `train` and `validation`.
    name: String,
    train: Option<EventFile>,
    validation: Option<EventFile>,
    /// The start time of the batch.
    batch: Option<Instant>,
    /// The first step of the epoch.
    first: u64,
}

impl Default for TensorBoard {
    fn default() -> TensorBoard {
        TensorBoard::new("logs")
    }
}

impl TensorBoard {
    /// Logs every epoch and the graph.
    pub fn new(log_dir: impl AsRef<Path>) -> TensorBoard {
        TensorBoard {
            log_dir: log_dir.as_ref().into(),
            histogram_freq: 0,
            write_graph: true,
            write_steps_per_second: false,
            update_freq: Frequency::Epoch,
            name: String::new(),
            train: None,
            validation: None,
            batch: None,
            first: 0,
        }
    }

    setters! {
        /// The number of epochs between histograms of the weights; 0 for none.
        histogram_freq: usize,
        /// Whether to write the graph of the model; true by default.
        write_graph: bool,
        /// Whether to write the training steps per second of every logged epoch and batch.
        write_steps_per_second: bool,
        /// `"epoch"`, `"batch"`, or the number of batches after which `batch_<metric>` is also written, at the
        /// training step.
        update_freq: impl Into<Frequency>,
    }

    /// The path of a file of the run. Creates its directory if necessary.
    fn path(&self, part: &str) -> Result<PathBuf> {
        let directory = self.log_dir.join(part);
        std::fs::create_dir_all(&directory).map_err(|source| Error::io(&directory, source))?;
        Ok(directory.join(&self.name))
    }

    fn graph(&self, view: &View<'_>) -> Option<Message> {
        let graph = || proto::graph(proto::event(now(), 0), &graph::graph_def(view.model));
        self.write_graph.then(graph)
    }

    /// Created on first use.
    fn train(&mut self, view: &View<'_>) -> Result<&mut EventFile> {
        let file = match self.train.take() {
            Some(file) => file,
            None => {
                let log = LogFile::create_new(&self.path("train")?)?;
                EventFile::new(log, || self.graph(view))?
            }
        };
        Ok(self.train.insert(file))
    }

    /// Created on first use. A file that a killed run created but never saved is created again when that run
    /// resumes.
    fn validation(&mut self) -> Result<&mut EventFile> {
        let file = match self.validation.take() {
            Some(file) => file,
            None => EventFile::new(LogFile::create(&self.path("validation")?)?, || None)?,
        };
        Ok(self.validation.insert(file))
    }
}

/// An event with these values.
fn scalars<'a>(step: u64, values: impl Iterator<Item = (String, &'a f64)>) -> Message {
    let values: Vec<Message> = values.map(|(tag, value)| proto::scalar(&tag, *value)).collect();
    proto::summary(proto::event(now(), step), &values)
}

impl Callback for TensorBoard {
    fn chief_only(&self) -> bool {
        true
    }

    fn wants_batch_events(&self) -> bool {
        self.update_freq != Frequency::Epoch
    }

    fn on_train_begin(&mut self, _view: &View<'_>) -> Result<Action> {
        self.update_freq.check(OWNER, "update_freq")?;
        (self.train, self.validation, self.name) = (None, None, new_name());
        // A directory that cannot be written is detected before the first epoch.
        self.path("train").map(|_| Action::Continue)
    }

    fn state(&mut self) -> Result<CallbackState> {
        let train = match &self.train {
            Some(file) => file.mark()?,
            None => Some(Mark::begin(self.path("train")?)),
        };
        let validation = self.validation.as_ref().map_or(Ok(None), EventFile::mark)?;
        Ok(CallbackState::of((train, validation, self.first)))
    }

    fn on_train_resume(&mut self, view: &View<'_>, state: &CallbackState) -> Result<Action> {
        let begun = self.on_train_begin(view)?;
        let (train, validation, first): (Option<Mark>, Option<Mark>, u64) = state.read(OWNER)?;
        if let Some(name) = train.as_ref().and_then(Mark::name) {
            self.name = name;
        }
        if let Some(mark) = &train {
            let log = LogFile::resume(&self.path("train")?, mark)?;
            self.train = Some(EventFile::new(log, || self.graph(view))?);
        }
        if let Some(mark) = &validation {
            let log = LogFile::resume(&self.path("validation")?, mark)?;
            self.validation = Some(EventFile::new(log, || None)?);
        }
        self.first = first;
        Ok(begun)
    }

    fn on_epoch_begin(&mut self, view: &View<'_>) -> Result<Action> {
        self.first = view.step;
        self.train(view).map(|_| Action::Continue)
    }

    fn on_batch_begin(&mut self, _view: &View<'_>) -> Result<Action> {
        self.batch = Some(Instant::now());
        Ok(Action::Continue)
    }

    fn on_batch_end(&mut self, view: &View<'_>) -> Result<Action> {
        let Frequency::Batches(every) = self.update_freq else { return Ok(Action::Continue) };
        if view.step.is_multiple_of(every) {
            let seconds = self.batch.map_or(0.0, |began| began.elapsed().as_secs_f64());
            let speed = ("steps_per_second".to_string(), 1.0 / seconds.max(1e-9));
            let speed = self.write_steps_per_second.then_some(&speed);
            let values = view.logs.iter().chain(speed);
            let event = scalars(view.step, values.map(|(n, v)| (format!("batch_{n}"), v)));
            self.train(view)?.write(&[event])?;
        }
        Ok(Action::Continue)
    }

    fn on_epoch_end(&mut self, view: &View<'_>) -> Result<Action> {
        let epoch = view.epoch as u64;
        let (validation, training): (Vec<_>, Vec<_>) =
            view.logs.iter().cloned().partition(|(name, _)| name.starts_with("val_"));
        let mut training = training;
        training.push(("learning_rate".into(), view.epoch_learning_rate()));
        let seconds = view.history.seconds.last();
        if let (true, Some(seconds)) = (self.write_steps_per_second, seconds) {
            let steps = view.step.saturating_sub(self.first) as f64;
            training.push(("steps_per_second".into(), steps / seconds.max(1e-9)));
        }
        if let Some(speed) = view.history.images_per_second.last() {
            training.push(("images_per_second".into(), *speed));
        }
        let mut events =
            vec![scalars(epoch, training.iter().map(|(n, v)| (format!("epoch_{n}"), v)))];
        if self.histogram_freq > 0 && view.epoch.is_multiple_of(self.histogram_freq) {
            let histogram = |name: String| {
                let values = view.weights.get(&name)?;
                Ok(proto::histogram(&format!("{name}/histogram"), &values))
            };
            let values: Result<Vec<Message>> =
                view.weights.names().into_iter().map(histogram).collect();
            let values = values?;
            events.push(proto::summary(proto::event(now(), epoch), &values));
        }
        self.train(view)?.write(&events)?;
        if !validation.is_empty() {
            let short = |name: &str| name.strip_prefix("val_").unwrap_or(name).to_string();
            let of_epoch = validation.iter().map(|(n, v)| (format!("epoch_{}", short(n)), v));
            let of_step = validation
                .iter()
                .map(|(n, v)| (format!("evaluation_{}_vs_iterations", short(n)), v));
            // Create the file before the event, so that their times are in order.
            let file = self.validation()?;
            file.write(&[scalars(epoch, of_epoch), scalars(view.step, of_step)])?;
        }
        Ok(Action::Continue)
    }

    fn on_train_end(&mut self, _view: &View<'_>) -> Result<Action> {
        (self.train, self.validation) = (None, None);
        Ok(Action::Continue)
    }
}
