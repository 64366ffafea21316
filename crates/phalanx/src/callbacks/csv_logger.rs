//! A CSV log of the metrics of every epoch.

use super::log_file::{LogFile, Mark};
use super::{Action, Callback, CallbackState, View};
use crate::config::setters;
use crate::error::{Error, Result};
use phalanx_graph::text::brief;
use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};

const OWNER: &str = "CSVLogger";
/// The maximum size of a header, in bytes.
const MAX_HEADER: u64 = 1 << 20;

/// Writes one line per epoch: `epoch`, counted from 0 as in Keras by default, then the metrics and
/// `learning_rate` by name.
///
/// As in Keras, a run without validation has `NA` in the validation columns, so that the tables of several runs
/// have the same columns. A metric whose result is a vector is a list in quotes, such as `"[0.5, 0.25]"`. Every line is
/// in the file when its epoch ends.
///
/// ```
/// use phalanx::callbacks::CSVLogger;
///
/// let callback = CSVLogger::new("training.csv").separator(";").append(true);
/// ```
#[derive(Debug)]
pub struct CSVLogger {
    filename: PathBuf,
    separator: String,
    append: bool,
    first_epoch: usize,
    file: Option<LogFile>,
    columns: Vec<String>,
}

impl CSVLogger {
    /// Writes to a new file or, for `-`, to standard output, with commas as separators.
    pub fn new(filename: impl AsRef<Path>) -> CSVLogger {
        CSVLogger {
            filename: filename.as_ref().into(),
            separator: ",".into(),
            append: false,
            first_epoch: 0,
            file: None,
            columns: vec![],
        }
    }

    setters! {
        /// The column separator.
        separator: &str,
        /// Whether to append to an existing file, using its columns.
        append: bool,
        /// The number of the first epoch: 0, or 1 to count as in all other output.
        first_epoch: usize,
    }

    fn check(&self) -> Result<()> {
        let mut bytes = self.separator.bytes();
        if bytes.len() == 1 && bytes.all(|b| !b"\"\n\r".contains(&b)) {
            return Ok(());
        }
        let received = format!("{:?}", self.separator);
        Err(Error::argument(OWNER, "separator", "one character", received))
    }

    /// The columns of a file that is continued.
    fn existing_columns(&self, log: &LogFile) -> Result<Vec<String>> {
        if log.is_empty()? {
            return Ok(vec![]);
        }
        let io = |source| Error::io(&self.filename, source);
        let file = File::open(&self.filename).map_err(io)?;
        let mut table = csv::ReaderBuilder::new();
        let table = table.has_headers(false).delimiter(self.delimiter());
        let mut lines = table.from_reader(file.take(MAX_HEADER)).into_byte_records();
        let Some(header) = lines.next() else { return Ok(vec![]) };
        let header = header.map_err(|e| io(e.into()))?;
        let text = |cell: &[u8]| String::from_utf8_lossy(cell).into_owned();
        let columns: Vec<String> = header.iter().map(text).collect();
        if columns[0] != "epoch" {
            let received = format!("'{}'", brief(&columns.join(&self.separator)));
            return Err(Error::file(&self.filename, "a table that starts with epoch", received));
        }
        Ok(columns)
    }

    /// The separator, which is one byte.
    fn delimiter(&self) -> u8 {
        self.separator.as_bytes()[0]
    }

    /// Writes a line; cells with separators, quotes or line breaks are quoted.
    fn line(&mut self, cells: &[String]) -> Result<()> {
        let mut table = csv::WriterBuilder::new().delimiter(self.delimiter()).from_writer(vec![]);
        let written = table.write_record(cells).map_err(std::io::Error::from);
        let line = written.and_then(|()| table.into_inner().map_err(|e| e.into_error()));
        let line = line.map_err(|source| Error::io(&self.filename, source))?;
        let Some(file) = &mut self.file else { return Ok(()) };
        file.write(&line)
    }
}

/// The columns of a new table.
fn columns(view: &View<'_>) -> Vec<String> {
    let mut names: Vec<String> = view.logs.iter().map(|(name, _)| name.clone()).collect();
    names.sort();
    if !names.iter().any(|name| name.starts_with("val_")) {
        let absent: Vec<String> = names.iter().map(|name| format!("val_{name}")).collect();
        names.extend(absent);
    }
    names.push("learning_rate".into());
    names.sort();
    names.insert(0, "epoch".into());
    names
}

/// A number as Python prints it.
fn number(value: f64) -> String {
    match value {
        v if v.is_nan() => "nan".into(),
        v if v.is_infinite() => if v > 0.0 { "inf" } else { "-inf" }.into(),
        v => format!("{v:?}"),
    }
}

/// A vector as Keras writes it: a list in quotes.
fn list(vector: &[f64]) -> String {
    let numbers: Vec<String> = vector.iter().copied().map(number).collect();
    format!("\"[{}]\"", numbers.join(", "))
}

impl Callback for CSVLogger {
    fn chief_only(&self) -> bool {
        true
    }

    fn wants_batch_events(&self) -> bool {
        false
    }

    fn on_train_begin(&mut self, _view: &View<'_>) -> Result<Action> {
        self.check()?;
        let log = match self.append {
            true => LogFile::append(&self.filename)?,
            false => LogFile::create(&self.filename)?,
        };
        self.columns = self.existing_columns(&log)?;
        self.file = Some(log);
        Ok(Action::Continue)
    }

    fn state(&mut self) -> Result<CallbackState> {
        let mark = self.file.as_ref().map_or(Ok(None), LogFile::mark)?;
        Ok(CallbackState::of((mark, &self.columns)))
    }

    fn on_train_resume(&mut self, view: &View<'_>, state: &CallbackState) -> Result<Action> {
        let (mark, columns): (Option<Mark>, Vec<String>) = state.read(OWNER)?;
        let Some(mark) = mark else { return self.on_train_begin(view) };
        self.check()?;
        let log = LogFile::resume(&self.filename, &mark)?;
        // An empty table needs its header again.
        self.columns = if log.is_empty()? { vec![] } else { columns };
        self.file = Some(log);
        Ok(Action::Continue)
    }

    fn on_epoch_end(&mut self, view: &View<'_>) -> Result<Action> {
        if self.columns.is_empty() {
            self.columns = columns(view);
            self.line(&self.columns.clone())?;
        }
        let cell = |name: &String| match name.as_str() {
            "epoch" => (view.epoch + self.first_epoch).to_string(),
            "learning_rate" => number(view.epoch_learning_rate()),
            metric => match view.logs.vector(metric) {
                Some(vector) => list(vector),
                None => view.log(metric).map_or("NA".into(), number),
            },
        };
        let cells: Vec<String> = self.columns.iter().map(cell).collect();
        self.line(&cells)?;
        Ok(Action::Continue)
    }

    fn on_train_end(&mut self, _view: &View<'_>) -> Result<Action> {
        self.file = None;
        Ok(Action::Continue)
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::TestRun;
    use super::*;

    fn run(mut logger: CSVLogger, epochs: &[(usize, &[(&str, f64)])]) -> Result<()> {
        let mut run = TestRun::default();
        run.view(0, &[], |view| logger.on_train_begin(view)).map(|_| ())?;
        for (epoch, logs) in epochs {
            run.view(*epoch, logs, |view| logger.on_epoch_end(view)).map(|_| ())?;
        }
        run.view(0, &[], |view| logger.on_train_end(view)).map(|_| ())
    }

    #[test]
    fn columns_are_sorted_and_absent_validation_is_marked() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("log.csv");
        let logs: &[_] = &[("loss", 0.5), ("accuracy", f64::NAN)];
        run(CSVLogger::new(&path), &[(0, logs), (1, &[("loss", 1e-7)])]).unwrap();
        let text = std::fs::read_to_string(&path).unwrap();
        let expected = "epoch,accuracy,learning_rate,loss,val_accuracy,val_loss\n\
                        0,nan,0.1,0.5,NA,NA\n\
                        1,NA,0.1,1e-7,NA,NA\n";
        assert_eq!(text, expected);
        let logs: &[_] = &[("loss", 0.5), ("val_loss", f64::INFINITY)];
        run(CSVLogger::new(&path).separator(";").first_epoch(1), &[(0, logs)]).unwrap();
        let text = std::fs::read_to_string(&path).unwrap();
        assert_eq!(text, "epoch;learning_rate;loss;val_loss\n1;0.1;0.5;inf\n");
    }

    #[test]
    fn a_continued_file_keeps_its_columns() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("log.csv");
        let logger = || CSVLogger::new(&path).append(true);
        run(logger(), &[(0, &[("loss", 0.5), ("val_loss", 0.25)])]).unwrap();
        run(logger(), &[(1, &[("loss", 0.25), ("accuracy", 1.0)])]).unwrap();
        let text = std::fs::read_to_string(&path).unwrap();
        assert_eq!(text, "epoch,learning_rate,loss,val_loss\n0,0.1,0.5,0.25\n1,0.1,0.25,NA\n");
        std::fs::write(&path, "a letter\n").unwrap();
        let error = run(logger(), &[]).unwrap_err().to_string();
        assert!(error.contains("log.csv: expected a table that starts with epoch"), "{error}");
    }

    #[test]
    fn names_with_separators_and_line_breaks_stay_one_column() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("log.csv");
        let logs: &[_] = &[("a,b\nc_loss", 0.5), ("val_\"x\"", 1.0)];
        let logger = || CSVLogger::new(&path).append(true);
        run(logger(), &[(0, logs)]).unwrap();
        run(logger(), &[(1, logs)]).unwrap();
        let text = std::fs::read_to_string(&path).unwrap();
        let expected = "epoch,\"a,b\nc_loss\",learning_rate,\"val_\"\"x\"\"\"\n\
                        0,0.5,0.1,1.0\n1,0.5,0.1,1.0\n";
        assert_eq!(text, expected);
    }

    #[test]
    fn files_that_cannot_be_written_are_named() {
        let directory = tempfile::tempdir().unwrap();
        let error = run(CSVLogger::new(directory.path().join("no/log.csv")), &[]).unwrap_err();
        assert!(error.to_string().contains("no/log.csv: No such file"), "{error}");
        let logger = CSVLogger::new(directory.path().join("log.csv")).separator("\n");
        assert!(run(logger, &[]).unwrap_err().to_string().contains("separator"));
    }
}
