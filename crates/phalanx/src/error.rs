//! What can go wrong, in the user's words.

use crate::model::gibibytes;
use phalanx_graph::GraphError;
use phalanx_graph::exec::ExecError;
use phalanx_graph::text::{brief, part};
use std::fmt;
use std::path::PathBuf;
use thiserror::Error;

/// Any error of the library.
#[derive(Error)]
#[non_exhaustive]
pub enum Error {
    /// Shapes that do not fit, found when the model is built.
    #[error(transparent)]
    Graph(#[from] GraphError),
    /// What the executor reports.
    #[error(transparent)]
    Exec(#[from] ExecError),
    /// A batch that is too large for the memory of its devices.
    #[error(
        "{source}: a batch of {batch} takes {} of each device, {} are available; {}",
        gibibytes(*planned), gibibytes(*available), fitting(*largest)
    )]
    Memory {
        /// Samples of the global batch.
        batch: usize,
        /// Bytes that its step takes of each device.
        planned: usize,
        /// Bytes that there are.
        available: usize,
        /// The largest global batch whose step takes no more, if there is one.
        largest: Option<usize>,
        /// What was refused.
        source: Box<ExecError>,
    },
    /// A call that needs a compiled model.
    #[error("model '{}' is not compiled: call compile(...) before {call}", part(model))]
    NotCompiled {
        /// The model.
        model: String,
        /// The call.
        call: &'static str,
    },
    /// A loss that is no longer a number.
    #[error(
        "the loss is {loss} at step {step} (epoch {epoch}): lower the learning rate, clip the \
         gradients or look for bad values in the data{}; {}",
        besides(suspects), left(*finite, saved.as_ref())
    )]
    NotFinite {
        /// NaN or infinite.
        loss: f64,
        /// The training step, counted from 1.
        step: u64,
        /// The epoch, counted from 1.
        epoch: usize,
        /// What else may give NaN in this model: layers that look up rows of a table by numbers that only a
        /// step knows.
        suspects: Vec<String>,
        /// Whether all weights are finite still.
        finite: bool,
        /// The newest file with finite weights that callbacks have saved.
        saved: Option<PathBuf>,
    },
    /// A run that was asked to end, by a signal for example.
    #[error(
        "interrupted after step {step} (epoch {epoch}); {}",
        saved.as_ref().map_or("nothing was saved".into(), |p| format!("saved {}", part(p.display())))
    )]
    Interrupted {
        /// The training steps done.
        step: u64,
        /// The epoch, counted from 1.
        epoch: usize,
        /// Where the run can be taken up.
        saved: Option<PathBuf>,
    },
    /// An argument outside its range.
    #[error(
        "{}: {}: expected {}, received {}",
        part(owner),
        part(argument),
        part(expected),
        part(received)
    )]
    Argument {
        /// The layer, loss, optimizer or call at fault.
        owner: String,
        /// The argument's name.
        argument: String,
        /// What would have been right.
        expected: String,
        /// What was there.
        received: String,
    },
    /// A name that nothing answers to.
    #[error("unknown {kind} '{}'{}", part(brief(name)), part(suggestion(known, name)))]
    Unknown {
        /// What was looked up: layer, activation, loss, …
        kind: &'static str,
        /// The name asked for.
        name: String,
        /// The names there are.
        known: Vec<String>,
    },
    /// A config that does not describe what it should.
    #[error("{}: {}", part(owner), part(message))]
    Config {
        /// The class the config is for.
        owner: String,
        /// What is wrong with it.
        message: String,
    },
    /// A file that could not be read or written.
    #[error("{}: {source}", part(path.display()))]
    Io {
        /// The file.
        path: PathBuf,
        /// The system's reason.
        source: std::io::Error,
    },
    /// What the system reports about a file or stream of the program's own.
    #[error("{0}")]
    System(#[from] std::io::Error),
    /// A file that does not hold what it should.
    #[error("{}: expected {}, received {}", part(path.display()), part(expected), part(received))]
    File {
        /// The file.
        path: PathBuf,
        /// What would have been right.
        expected: String,
        /// What was there.
        received: String,
    },
    /// A dataset whose files are not there.
    #[error(
        "dataset '{}' is not here; put {} into {}",
        part(name), part(files.join(", ")), part(directory.display())
    )]
    Missing {
        /// The dataset.
        name: String,
        /// The files looked for.
        files: Vec<String>,
        /// Where they belong.
        directory: PathBuf,
    },
    /// A dataset whose files are not there and cannot be fetched.
    #[error(
        "dataset '{}' is not here and cannot be fetched ({}); put {} into {}, for example from {url}",
        part(name), part(reason), part(files.join(", ")), part(directory.display())
    )]
    Download {
        /// The dataset.
        name: String,
        /// The files looked for.
        files: Vec<String>,
        /// Where they belong.
        directory: PathBuf,
        /// Where they are published.
        url: String,
        /// Why they could not be fetched.
        reason: String,
    },
}

fn besides(suspects: &[String]) -> String {
    suspects.iter().map(|words| format!(" ({words})")).collect()
}

/// What a run that ended in NaN leaves behind.
fn left(finite: bool, saved: Option<&PathBuf>) -> String {
    match (finite, saved) {
        (true, _) => "the weights are finite numbers still".into(),
        (false, Some(path)) => {
            format!("the weights hold NaN or infinities now: go on from {}", path.display())
        }
        (false, None) => {
            "the weights hold NaN or infinities now, and there is no file to go on from".into()
        }
    }
}

fn fitting(largest: Option<usize>) -> String {
    match largest {
        Some(batch) => format!("the largest batch that fits is {batch}"),
        None => "not even a batch of one sample for each replica fits".into(),
    }
}

fn suggestion(known: &[String], name: &str) -> String {
    // Names from files may be of any length.
    const COMPARED: usize = 100;
    let name: String = name.chars().take(COMPARED).collect();
    // A slip of the fingers, else a part of the name.
    let near = |k: &String| {
        let edits = edits(&k.to_lowercase(), &name.to_lowercase());
        let few = if name.chars().count() < 4 { 1 } else { 2 };
        (edits <= few).then_some(edits)
    };
    let alike = |k: &&String| {
        let (k, n) = (k.to_lowercase(), name.to_lowercase());
        let whole = !n.is_empty() && !k.is_empty();
        whole && (k.contains(&n) || n.contains(&k) || k.chars().take(4).eq(n.chars().take(4)))
    };
    let slip = known.iter().filter_map(|k| Some((near(k)?, k))).min_by_key(|(edits, _)| *edits);
    match slip.map(|(_, k)| k).or_else(|| known.iter().find(alike)) {
        Some(k) => format!("; did you mean '{k}'? known: {}", known.join(", ")),
        None => format!("; known: {}", known.join(", ")),
    }
}

/// How many characters must be put in, left out or replaced to make one name of the other.
fn edits(from: &str, to: &str) -> usize {
    let to: Vec<char> = to.chars().collect();
    let mut row: Vec<usize> = (0..=to.len()).collect();
    for (i, a) in from.chars().enumerate() {
        let mut corner = row[0];
        row[0] = i + 1;
        for (j, b) in to.iter().enumerate() {
            let replaced = corner + usize::from(a != *b);
            corner = row[j + 1];
            row[j + 1] = replaced.min(corner + 1).min(row[j] + 1);
        }
    }
    row[to.len()]
}

/// The same words: a `main` that returns this error prints it by `Debug`.
impl fmt::Debug for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl Error {
    /// An argument outside its range.
    pub fn argument(
        owner: impl Into<String>,
        argument: impl Into<String>,
        expected: impl Into<String>,
        received: impl ToString,
    ) -> Error {
        Error::Argument {
            owner: owner.into(),
            argument: argument.into(),
            expected: expected.into(),
            received: received.to_string(),
        }
    }

    /// A config that does not describe what it should.
    pub fn config(owner: impl Into<String>, message: impl ToString) -> Error {
        Error::Config { owner: owner.into(), message: message.to_string() }
    }

    /// A file that could not be read or written.
    pub fn io(path: impl Into<PathBuf>, source: std::io::Error) -> Error {
        Error::Io { path: path.into(), source }
    }

    /// A file that does not hold what it should.
    pub fn file(
        path: impl Into<PathBuf>,
        expected: impl Into<String>,
        received: impl ToString,
    ) -> Error {
        let (path, expected) = (path.into(), expected.into());
        Error::File { path, expected, received: received.to_string() }
    }
}

/// Result of the library's calls.
pub type Result<T, E = Error> = std::result::Result<T, E>;
