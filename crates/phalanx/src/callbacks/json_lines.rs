//! A log of the metrics of every epoch, with one JSON object per line.

use super::log_file::{LogFile, Mark};
use super::{Action, Callback, CallbackState, View};
use crate::error::Result;
use phalanx_graph::text::escape_json;
use serde_json::Value;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

/// Writes one object per epoch: `epoch`, counted from 1, every metric, `lr`, `seconds` and `images_per_second`.
/// NaN and the infinities, which JSON lacks, are `null`. A metric whose result is a vector is an array.
///
/// Clones write to the same file, so the program can write objects of its own:
///
/// ```
/// use phalanx::callbacks::JsonLines;
///
/// let lines = JsonLines::new("-");
/// // model.fit(data, Fit::new().callback(lines.clone()))?;
/// lines.event("end", [("test_loss", 0.25.into()), ("seconds", 2.into())])?;
/// # Ok::<(), phalanx::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct JsonLines {
    log: Arc<Mutex<SharedLog>>,
}

#[derive(Debug)]
struct SharedLog {
    path: PathBuf,
    append: bool,
    file: Option<LogFile>,
}

impl JsonLines {
    /// Writes to a new file or, for `-`, to standard output.
    pub fn new(path: impl AsRef<Path>) -> JsonLines {
        let log = SharedLog { path: path.as_ref().into(), append: false, file: None };
        JsonLines { log: Arc::new(Mutex::new(log)) }
    }

    /// Whether to append to an existing file.
    pub fn append(self, append: bool) -> JsonLines {
        self.log().append = append;
        self
    }

    /// Writes a custom object with `event` and these fields.
    pub fn event<'a>(
        &self,
        event: &str,
        fields: impl IntoIterator<Item = (&'a str, Value)>,
    ) -> Result<()> {
        let first = ("event", Value::from(event));
        self.log().line([first].into_iter().chain(fields))
    }

    fn log(&self) -> std::sync::MutexGuard<'_, SharedLog> {
        self.log.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }
}

impl SharedLog {
    /// The file, opened on first use.
    fn file(&mut self) -> Result<&mut LogFile> {
        let opened = match self.file.take() {
            Some(file) => file,
            None if self.append => LogFile::append(&self.path)?,
            None => LogFile::create(&self.path)?,
        };
        Ok(self.file.insert(opened))
    }

    /// Writes an object with its keys in the given order, in a single call.
    fn line<'a>(&mut self, fields: impl Iterator<Item = (&'a str, Value)>) -> Result<()> {
        let pair = |(name, value): (&str, Value)| format!("{}: {value}", Value::from(name));
        let line = format!("{{{}}}", fields.map(pair).collect::<Vec<_>>().join(", "));
        self.file()?.write(format!("{}\n", escape_json(&line)).as_bytes())
    }
}

impl Callback for JsonLines {
    fn chief_only(&self) -> bool {
        true
    }

    fn wants_batch_events(&self) -> bool {
        false
    }

    fn on_train_begin(&mut self, _view: &View<'_>) -> Result<Action> {
        self.log().file()?;
        Ok(Action::Continue)
    }

    fn state(&mut self) -> Result<CallbackState> {
        let mark = self.log().file.as_ref().map_or(Ok(None), LogFile::mark)?;
        Ok(CallbackState::of(mark))
    }

    fn on_train_resume(&mut self, view: &View<'_>, state: &CallbackState) -> Result<Action> {
        let mark: Option<Mark> = state.read("JsonLines")?;
        let Some(mark) = mark else { return self.on_train_begin(view) };
        let mut log = self.log();
        log.file = Some(LogFile::resume(&log.path, &mark)?);
        Ok(Action::Continue)
    }

    fn on_epoch_end(&mut self, view: &View<'_>) -> Result<Action> {
        let number = |series: &[f64]| series.last().map_or(Value::Null, |v| Value::from(*v));
        let first = [("epoch", Value::from(view.epoch + 1))];
        let scale = view.history.get("loss_scale").map(|scales| ("loss_scale", number(scales)));
        let last = [
            ("lr", Value::from(view.epoch_learning_rate())),
            ("seconds", number(&view.history.seconds)),
            ("images_per_second", number(&view.history.images_per_second)),
        ];
        let metrics = first.into_iter().chain(view.logs.to_json());
        self.log().line(metrics.chain(scale).chain(last))?;
        Ok(Action::Continue)
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::TestRun;
    use super::*;

    #[test]
    fn an_object_per_epoch_and_one_at_the_end() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("log.jsonl");
        let lines = JsonLines::new(&path);
        let mut callback = lines.clone();
        let mut run = TestRun::default();
        run.view(0, &[], |view| callback.on_train_begin(view)).map(|_| ()).unwrap();
        for (epoch, loss) in [0.5, f64::NAN].into_iter().enumerate() {
            let logs = [("loss", loss), ("val_loss", 1.0)];
            run.end_epoch(epoch, &logs, |view| callback.on_epoch_end(view)).map(|_| ()).unwrap();
        }
        lines.event("end", [("note", "say \"hi\"".into()), ("test_loss", 0.25.into())]).unwrap();
        let text = std::fs::read_to_string(&path).unwrap();
        let expected = "{\"epoch\": 1, \"loss\": 0.5, \"val_loss\": 1.0, \"lr\": 0.1, \
                         \"seconds\": 2.0, \"images_per_second\": 50.0}\n\
                        {\"epoch\": 2, \"loss\": null, \"val_loss\": 1.0, \"lr\": 0.1, \
                         \"seconds\": 2.0, \"images_per_second\": 50.0}\n\
                        {\"event\": \"end\", \"note\": \"say \\\"hi\\\"\", \"test_loss\": 0.25}\n";
        assert_eq!(text, expected);
        text.lines().for_each(|line| drop(serde_json::from_str::<Value>(line).unwrap()));
        JsonLines::new(&path).append(true).event("more", []).unwrap();
        let text = std::fs::read_to_string(&path).unwrap();
        assert_eq!(text.lines().count(), 4);
    }

    #[test]
    fn a_file_that_cannot_be_made_is_named_before_the_first_epoch() {
        let directory = tempfile::tempdir().unwrap();
        let mut lines = JsonLines::new(directory.path().join("no/log.jsonl"));
        let begin = TestRun::default().view(0, &[], |view| lines.on_train_begin(view));
        assert!(begin.unwrap_err().to_string().contains("no/log.jsonl: No such file"));
    }
}
