//! Logs for TensorBoard.

mod events;
mod graph;
mod proto;

use super::log_file::{LogFile, Mark};
use super::{Action, Callback, CallbackState, Frequency, View};
use crate::error::{Error, Result};
use events::{EventFile, new_name, now};
use proto::Message;
use std::path::{Path, PathBuf};
use std::time::Instant;

const OWNER: &str = "TensorBoard";

/// Writes what TensorBoard shows, under `log_dir/train` and `log_dir/validation` as Keras does.
///
/// After every epoch `epoch_loss` and so on for every metric, `epoch_learning_rate` and
/// `epoch_images_per_second`, at the epoch's number from 0; of the validation also
/// `evaluation_loss_vs_iterations` and so on, at the training step. Look at them with
/// `tensorboard --logdir logs`.
///
/// Every run has files of its own. They are made when the first epoch begins, after
/// [`BackupAndRestore`](super::BackupAndRestore) has saved their name: a run that is killed before
/// leaves none, and one that is continued goes on in its own.
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
    /// What the run's files are called, in `train` and in `validation`.
    name: String,
    train: Option<EventFile>,
    validation: Option<EventFile>,
    /// When the batch began.
    batch: Option<Instant>,
    /// The step the epoch began with.
    first: u64,
}

impl Default for TensorBoard {
    fn default() -> TensorBoard {
        TensorBoard::new("logs")
    }
}

impl TensorBoard {
    /// Logs every epoch, and the graph.
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

    /// Every how many epochs the distribution of each weight is written; 0 never.
    pub fn histogram_freq(mut self, epochs: usize) -> TensorBoard {
        self.histogram_freq = epochs;
        self
    }

    /// Whether the model's graph is written; true unless said otherwise.
    pub fn write_graph(mut self, write: bool) -> TensorBoard {
        self.write_graph = write;
        self
    }

    /// Whether training steps per second are written, of every epoch and batch logged.
    pub fn write_steps_per_second(mut self, write: bool) -> TensorBoard {
        self.write_steps_per_second = write;
        self
    }

    /// `"epoch"`, `"batch"`, or every how many batches `batch_loss` and so on are written too, at
    /// the training step.
    pub fn update_freq(mut self, frequency: impl Into<Frequency>) -> TensorBoard {
        self.update_freq = frequency.into();
        self
    }

    /// Where a file of the run belongs; the directory is made where it is missing.
    fn path(&self, part: &str) -> Result<PathBuf> {
        let directory = self.log_dir.join(part);
        std::fs::create_dir_all(&directory).map_err(|source| Error::io(&directory, source))?;
        Ok(directory.join(&self.name))
    }

    fn graph(&self, view: &View<'_>) -> Option<Message> {
        let graph = || proto::graph(proto::event(now(), 0), &graph::graph_def(view.model));
        self.write_graph.then(graph)
    }

    /// Made when first needed.
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

    /// Made when first needed: one that a killed run began and never saved is begun again when that
    /// run is continued.
    fn validation(&mut self) -> Result<&mut EventFile> {
        let file = match self.validation.take() {
            Some(file) => file,
            None => EventFile::new(LogFile::create(&self.path("validation")?)?, || None)?,
        };
        Ok(self.validation.insert(file))
    }
}

/// One event with these numbers.
fn scalars<'a>(step: u64, values: impl Iterator<Item = (String, &'a f64)>) -> Message {
    let values: Vec<Message> = values.map(|(tag, value)| proto::scalar(&tag, *value)).collect();
    proto::summary(proto::event(now(), step), &values)
}

impl Callback for TensorBoard {
    fn writes(&self) -> bool {
        true
    }

    fn sees_batches(&self) -> bool {
        self.update_freq != Frequency::Epoch
    }

    fn on_train_begin(&mut self, _view: &View<'_>) -> Result<Action> {
        self.update_freq.check(OWNER, "update_freq")?;
        (self.train, self.validation, self.name) = (None, None, new_name());
        // A place that takes no logs is found before the first epoch.
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
                Some(proto::histogram(&format!("{name}/histogram"), &values))
            };
            let values: Vec<Message> =
                view.weights.names().into_iter().filter_map(histogram).collect();
            events.push(proto::summary(proto::event(now(), epoch), &values));
        }
        self.train(view)?.write(&events)?;
        if !validation.is_empty() {
            let short = |name: &str| name.strip_prefix("val_").unwrap_or(name).to_string();
            let of_epoch = validation.iter().map(|(n, v)| (format!("epoch_{}", short(n)), v));
            let of_step = validation
                .iter()
                .map(|(n, v)| (format!("evaluation_{}_vs_iterations", short(n)), v));
            // The file comes before what goes into it, as their times tell.
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
