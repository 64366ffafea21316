//! Periodic checkpoints of the model.

use super::template::{Number, Template};
use super::{Action, Callback, CallbackState, Frequency, Mode, View};
use crate::config::setters;
use crate::error::{Error, Result};
use crate::json_float::JsonFloat;
use crate::model::Definition;
use crate::saving::{self, Format};
use std::collections::VecDeque;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::sync::Arc;

const OWNER: &str = "ModelCheckpoint";

/// Saves the model after every epoch or after a number of batches.
///
/// The extension of the path selects the format. The placeholders `{epoch}` (from 1), `{batch}` and
/// `{<metric>}` are replaced by their values, formatted as in Python. Files are written atomically, and no file
/// is written or replaced while the loss or a weight is NaN or infinite.
///
/// ```
/// use phalanx::callbacks::ModelCheckpoint;
///
/// let every_epoch = ModelCheckpoint::new("ckpt/{epoch:02d}-{val_loss:.4f}.safetensors");
/// let best = ModelCheckpoint::new("best.safetensors").monitor("val_accuracy").save_best_only(true);
/// let often = ModelCheckpoint::new("ckpt/{epoch}-{batch}.safetensors").save_freq(100).keep_last(3);
/// ```
#[derive(Clone, Debug)]
pub struct ModelCheckpoint {
    filepath: PathBuf,
    monitor: String,
    save_best_only: bool,
    save_weights_only: Option<bool>,
    mode: Mode,
    save_freq: Frequency,
    initial_value_threshold: Option<f64>,
    keep_last: Option<usize>,
    model: Option<String>,
    progress: Progress,
}

/// What a [`ModelCheckpoint`] remembers of a run.
#[derive(Clone, Debug, Default)]
struct Progress {
    template: Template,
    best: Option<f64>,
    /// The number of batches in this epoch, and since the last save.
    batch: u64,
    waited: u64,
    saved: VecDeque<PathBuf>,
    newest: Option<PathBuf>,
    /// The number of items that the last file could not store. It is reported when it changes, not for every
    /// file.
    not_stored: usize,
}

impl ModelCheckpoint {
    /// Saves after every epoch.
    pub fn new(filepath: impl AsRef<Path>) -> ModelCheckpoint {
        ModelCheckpoint {
            filepath: filepath.as_ref().into(),
            monitor: "val_loss".into(),
            save_best_only: false,
            save_weights_only: None,
            mode: Mode::Auto,
            save_freq: Frequency::Epoch,
            initial_value_threshold: None,
            keep_last: None,
            model: None,
            progress: Progress::default(),
        }
    }

    /// The model that is saved of a training step ([`train_step`](crate::train_step)), by its name in the step.
    pub fn model(mut self, name: &str) -> ModelCheckpoint {
        self.model = Some(name.into());
        self
    }

    setters! {
        /// The metric that determines the best model; `val_loss` by default.
        monitor: &str,
        /// Whether to save only models that are better than all previous ones.
        save_best_only: bool,
        /// Whether to save only the weights; by default the format decides.
        save_weights_only: bool,
        /// The direction in which the metric improves.
        mode: Mode,
        /// `"epoch"`, or a number of batches.
        save_freq: impl Into<Frequency>,
        /// With `save_best_only`, the value that the first saved model must improve on.
        initial_value_threshold: f64,
        /// Keeps only the last `keep_last` files of this run.
        keep_last: usize,
    }

    /// The model of a training step that is saved; `None` if the run trains a model.
    fn model_of_step(&self, view: &View<'_>) -> Result<Option<Arc<Definition>>> {
        let models = view.model.models_of_step();
        let names = || models.iter().map(|(name, _)| *name).collect::<Vec<_>>().join(", ");
        let found = models.iter().find(|(name, _)| Some(*name) == self.model.as_deref());
        let expected = match (models.is_empty(), &self.model, found) {
            (true, None, _) => return Ok(None),
            (false, _, Some((_, model))) => return Ok(Some((*model).clone())),
            (true, ..) => "none for a run that trains a model".to_string(),
            (false, ..) => format!("a model of the step, set with model(..): {}", names()),
        };
        let received = self.model.as_deref().unwrap_or("none");
        Err(Error::argument(OWNER, "model", expected, received))
    }

    fn check(&mut self, view: &View<'_>) -> Result<()> {
        self.model_of_step(view)?;
        self.save_freq.check(OWNER, "save_freq")?;
        if self.save_best_only {
            let validates = self.monitor.starts_with("val_");
            if validates && self.save_freq != Frequency::Epoch {
                let expected = "a metric of batches, because save_freq counts batches";
                let received = format!("'{}'", self.monitor);
                return Err(Error::argument(OWNER, "monitor", expected, received));
            }
            view.check_monitor(OWNER, &self.monitor)?;
            self.mode.higher_is_better(OWNER, &self.monitor)?;
        }
        if self.keep_last == Some(0) {
            return Err(Error::argument(OWNER, "keep_last", "1 or more", 0));
        }
        let format = Format::of(&self.filepath)?;
        if let (Some(requested), Some(only)) = (self.save_weights_only, format.weights_only())
            && requested != only
        {
            let holds = if only { "weights only" } else { "whole models" };
            let received =
                format!("{requested} for '{}', which holds {holds}", self.filepath.display());
            let expected = only.to_string();
            return Err(Error::argument(OWNER, "save_weights_only", expected, received));
        }
        let text = self.filepath.to_str().ok_or_else(|| {
            let received = self.filepath.display();
            Error::argument(OWNER, "filepath", "a name in UTF-8", received)
        })?;
        self.progress.template = Template::parse(text)?;
        // A placeholder that will never have a value is detected now, not after an epoch.
        let every_epoch = self.save_freq == Frequency::Epoch;
        let there = |(name, _): &&(String, f64)| every_epoch || !name.starts_with("val_");
        let values = view.metrics.iter().filter(there).cloned();
        self.fill(view.epoch, values).map(|_| ())
    }

    /// Whether a model with this value should be saved.
    fn improves(&self, value: f64) -> Result<bool> {
        let higher_is_better = self.mode.higher_is_better(OWNER, &self.monitor)?;
        Ok(match self.progress.best {
            None => !value.is_nan(),
            Some(best) => (higher_is_better && value > best) || (!higher_is_better && value < best),
        })
    }

    /// The file name for an epoch with these metrics.
    fn fill(&self, epoch: usize, metrics: impl Iterator<Item = (String, f64)>) -> Result<PathBuf> {
        let mut values = vec![("epoch".to_string(), Number::Whole(epoch as u64 + 1))];
        if self.save_freq != Frequency::Epoch {
            values.push(("batch".into(), Number::Whole(self.progress.batch)));
        }
        values.extend(metrics.map(|(name, value)| (name, Number::Real(value))));
        Ok(self.progress.template.fill(&values)?.into())
    }

    fn save(&mut self, view: &View<'_>) -> Result<()> {
        let is_finite_loss =
            |(name, value): &(String, f64)| value.is_finite() || !name.ends_with("loss");
        if !view.logs.iter().all(is_finite_loss) {
            return Ok(());
        }
        let mut value = None;
        if self.save_best_only {
            value = view.monitored(OWNER, &self.monitor)?;
            if !value.map_or(Ok(false), |value| self.improves(value))? {
                return Ok(());
            }
        }
        let path = self.fill(view.epoch, view.logs.iter().cloned())?;
        let of_step = self.model_of_step(view)?;
        let weights = match &of_step {
            None => saving::snapshot(view.model, view.weights)?,
            Some(model) => saving::current_weights(model)?,
        };
        // The loss belongs to the weights before the last update, which may have made them infinite or
        // NaN.
        if !weights.iter().all(|(_, tensor)| tensor.is_finite()) {
            return Ok(());
        }
        if let Some(directory) = path.parent() {
            saving::create_directory(directory)?;
        }
        let weights_only = Format::of(&path)?.weights_only().or(self.save_weights_only);
        let whole = !weights_only.unwrap_or(false);
        let training = if whole && of_step.is_none() { view.weights.training()? } else { None };
        let parts = saving::SaveOptions { structure: whole, training };
        let not_stored =
            saving::save(&path, of_step.as_deref().unwrap_or(view.model), &weights, parts)?;
        if not_stored.len() != self.progress.not_stored {
            self.progress.not_stored = not_stored.len();
            saving::warn_not_saved(&path, &not_stored);
        }
        self.progress.best = value.or(self.progress.best);
        self.progress.newest = Some(path.clone());
        self.remove_oldest(path)
    }

    /// Removes the oldest files beyond `keep_last`.
    fn remove_oldest(&mut self, newest: PathBuf) -> Result<()> {
        let Some(keep) = self.keep_last else { return Ok(()) };
        self.progress.saved.retain(|path| *path != newest);
        self.progress.saved.push_back(newest);
        while self.progress.saved.len() > keep {
            let Some(oldest) = self.progress.saved.pop_front() else { break };
            match std::fs::remove_file(&oldest) {
                Err(error) if error.kind() != ErrorKind::NotFound => {
                    return Err(Error::io(oldest, error));
                }
                _ => {}
            }
        }
        Ok(())
    }
}

impl Callback for ModelCheckpoint {
    fn chief_only(&self) -> bool {
        true
    }

    fn wants_batch_events(&self) -> bool {
        self.save_freq != Frequency::Epoch
    }

    fn newest_saved(&mut self) -> Option<PathBuf> {
        self.progress.newest.clone()
    }

    fn on_train_begin(&mut self, view: &View<'_>) -> Result<Action> {
        self.check(view)?;
        (self.progress.best, self.progress.newest) = (self.initial_value_threshold, None);
        (self.progress.batch, self.progress.waited) = (0, 0);
        Ok(Action::Continue)
    }

    fn state(&mut self) -> Result<CallbackState> {
        let Progress { best, batch, waited, saved, .. } = &self.progress;
        Ok(CallbackState::of((best.map(JsonFloat), batch, waited, saved)))
    }

    fn on_train_resume(&mut self, view: &View<'_>, state: &CallbackState) -> Result<Action> {
        let begun = self.on_train_begin(view)?;
        let (best, batch, waited, saved): (Option<JsonFloat>, _, _, _) = state.read(OWNER)?;
        self.progress.best = best.map(|b| b.0);
        (self.progress.batch, self.progress.waited, self.progress.saved) = (batch, waited, saved);
        Ok(begun)
    }

    fn on_epoch_begin(&mut self, _view: &View<'_>) -> Result<Action> {
        self.progress.batch = 0;
        Ok(Action::Continue)
    }

    fn on_batch_end(&mut self, view: &View<'_>) -> Result<Action> {
        self.progress.batch += 1;
        if let Frequency::Batches(every) = self.save_freq {
            self.progress.waited += 1;
            if self.progress.waited >= every {
                self.progress.waited = 0;
                self.save(view)?;
            }
        }
        Ok(Action::Continue)
    }

    fn on_epoch_end(&mut self, view: &View<'_>) -> Result<Action> {
        if self.save_freq == Frequency::Epoch {
            self.save(view)?;
        }
        Ok(Action::Continue)
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::TestRun;
    use super::*;
    use std::collections::BTreeSet;

    /// The files after each epoch with these values of the metric and of the weight.
    fn run(mut callback: ModelCheckpoint, metric: &str, values: &[(f64, f32)]) -> Vec<Vec<String>> {
        let directory = callback.filepath.parent().unwrap().to_path_buf();
        let mut run = TestRun::default();
        let begin = run.view(0, &[(metric, 0.0)], |view| callback.on_train_begin(view));
        begin.map(|_| ()).unwrap();
        let epoch = |(epoch, (value, weight)): (usize, &(f64, f32))| {
            run.weight = *weight;
            run.view(epoch, &[(metric, *value)], |v| callback.on_epoch_end(v)).map(|_| ()).unwrap();
            let name = |e: std::io::Result<std::fs::DirEntry>| {
                e.unwrap().file_name().into_string().unwrap()
            };
            let names: BTreeSet<String> =
                std::fs::read_dir(&directory).unwrap().map(name).collect();
            names.into_iter().collect()
        };
        values.iter().enumerate().map(epoch).collect()
    }

    #[test]
    fn every_epoch_has_its_file_and_the_oldest_go() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("sub/{epoch:02d}-{loss:.1f}.safetensors");
        let values = [(3.0, 1.0), (2.0, 1.0), (1.0, 1.0)];
        let all = ["01-3.0.safetensors", "02-2.0.safetensors", "03-1.0.safetensors"];
        let files = run(ModelCheckpoint::new(&path), "loss", &values);
        assert_eq!(files, [&all[..1], &all[..2], &all]);
        std::fs::remove_dir_all(directory.path().join("sub")).unwrap();
        let files = run(ModelCheckpoint::new(&path).keep_last(2), "loss", &values);
        assert_eq!(files, [&all[..1], &all[..2], &all[1..]]);
    }

    #[test]
    fn only_the_best_finite_models_are_saved() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("{epoch}.safetensors");
        let best =
            |monitor: &str| ModelCheckpoint::new(&path).monitor(monitor).save_best_only(true);
        let last = |callback: ModelCheckpoint, metric: &str, values: &[(f64, f32)]| {
            let files = run(callback, metric, values).pop().unwrap();
            files.iter().for_each(|f| std::fs::remove_file(directory.path().join(f)).unwrap());
            files.join(" ").replace(".safetensors", "")
        };
        let (nan, inf) = (f64::NAN, f64::INFINITY);
        let values = [(nan, 1.0), (3.0, 1.0), (4.0, 1.0), (nan, 1.0), (2.0, 1.0), (1.0, f32::NAN)];
        assert_eq!(last(best("val_loss"), "val_loss", &values), "2 5");
        assert_eq!(last(best("accuracy"), "accuracy", &values[..5]), "2 3");
        let above = best("accuracy").initial_value_threshold(3.5);
        assert_eq!(last(above, "accuracy", &values[..5]), "3");
        let falling = best("accuracy").mode(Mode::Min);
        assert_eq!(last(falling, "accuracy", &values[..5]), "2 5");
        // Models with NaN or infinite values are not saved even without `save_best_only`.
        let values = [(1.0, 1.0), (nan, 1.0), (inf, 1.0), (1.0, f32::INFINITY), (1.0, 2.0)];
        assert_eq!(last(ModelCheckpoint::new(&path), "loss", &values), "1 5");
    }

    #[test]
    fn batches_are_counted_across_epochs() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("{epoch}-{batch}.safetensors");
        let mut callback = ModelCheckpoint::new(path).save_freq(3);
        let mut run = TestRun::default();
        run.view(0, &[], |view| callback.on_train_begin(view)).map(|_| ()).unwrap();
        for epoch in 0..2 {
            run.view(epoch, &[], |view| callback.on_epoch_begin(view)).map(|_| ()).unwrap();
            for _ in 0..4 {
                let logs = [("loss", 1.0)];
                run.view(epoch, &logs, |view| callback.on_batch_end(view)).map(|_| ()).unwrap();
            }
            run.view(epoch, &[], |view| callback.on_epoch_end(view)).map(|_| ()).unwrap();
        }
        let there = |name: &str| directory.path().join(name).exists();
        assert!(there("1-3.safetensors") && there("2-2.safetensors"));
        assert_eq!(std::fs::read_dir(directory.path()).unwrap().count(), 2);
    }

    #[test]
    fn arguments_are_checked_before_the_first_epoch() {
        let new = ModelCheckpoint::new;
        for (mut bad, what) in [
            (new("model.onnx"), "model.onnx: expected a name ending in .weights.h5"),
            (new("model.keras").save_weights_only(true), "which holds whole models"),
            (new("model"), "received no extension"),
            (new("{epoch:x}.safetensors"), "received {epoch:x}"),
            (new("a.safetensors").save_freq("hour"), "save_freq"),
            (new("a.safetensors").save_freq(0), "received 0"),
            (new("a.safetensors").keep_last(0), "keep_last"),
            (new("a.safetensors").save_weights_only(false), "which holds weights only"),
            (new("a.safetensors").monitor("score").save_best_only(true), "ModelCheckpoint: mode"),
        ] {
            let metrics = [("loss", 0.0), ("score", 0.0)];
            let begin = TestRun::default().view(0, &metrics, |view| bad.on_train_begin(view));
            let error = begin.unwrap_err().to_string();
            assert!(error.contains(what), "{error}");
        }
        let mut best = new("a.safetensors").save_best_only(true).save_weights_only(true);
        let mut run = TestRun::default();
        let error = run.view(0, &[("loss", 1.0)], |view| best.on_train_begin(view)).unwrap_err();
        assert!(error.to_string().contains("'val_loss' without either"), "{error}");
    }
}
