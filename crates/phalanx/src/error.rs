//! The error type of the library.

use crate::model::gibibytes;
use phalanx_exec::ExecError;
use phalanx_graph::GraphError;
use phalanx_graph::text::{brief, part};
use std::fmt;
use std::path::PathBuf;
use thiserror::Error;

/// Any error of the library.
#[derive(Error)]
#[non_exhaustive]
pub enum Error {
    /// Incompatible shapes, found when the model is built.
    #[error(transparent)]
    Graph(#[from] GraphError),
    /// An error of the executor.
    #[error(transparent)]
    Exec(#[from] ExecError),
    /// A batch that is too large for the memory of its devices.
    #[error(
        "{source}: a batch of {batch} takes {} of each device, {} are available; {}",
        gibibytes(*planned), gibibytes(*available), largest_fitting_batch(*largest)
    )]
    Memory {
        /// Samples of the global batch.
        batch: usize,
        /// Bytes that its step needs on each device.
        planned: usize,
        /// Bytes available on each device.
        available: usize,
        /// The largest global batch that fits, if any.
        largest: Option<usize>,
        /// The executor's error.
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
    /// A loss that is NaN or infinite.
    #[error(
        "the loss is {loss} at step {step} (epoch {epoch}): lower the learning rate, clip the \
         gradients or look for bad values in the data{}; {}",
        other_suspects(suspects), weights_state(*finite, saved.as_ref())
    )]
    NotFinite {
        /// NaN or infinite.
        loss: f64,
        /// The training step, counted from 1.
        step: u64,
        /// The epoch, counted from 1.
        epoch: usize,
        /// Other possible causes of NaN in this model: layers that look up rows of a table by indices that are
        /// only known during a step.
        suspects: Vec<String>,
        /// Whether all weights are still finite.
        finite: bool,
        /// The newest file with finite weights that a callback has saved.
        saved: Option<PathBuf>,
    },
    /// A run that was interrupted, for example by a signal.
    #[error(
        "interrupted after step {step} (epoch {epoch}); {}",
        saved.as_ref().map_or("nothing was saved".into(), |p| format!("saved {}", part(p.display())))
    )]
    Interrupted {
        /// The number of completed training steps.
        step: u64,
        /// The epoch, counted from 1.
        epoch: usize,
        /// The file from which the run can be resumed.
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
        /// The expected value.
        expected: String,
        /// The received value.
        received: String,
    },
    /// A weight whose shape would depend on an open size of the model's inputs.
    #[error(
        "layer '{}': {}: expected a shape that does not depend on an open size of the model's inputs, \
         received {received} for two sizes",
        part(layer),
        part(weight)
    )]
    OpenWeight {
        /// The layer.
        layer: String,
        /// The weight.
        weight: String,
        /// Its shapes for two sizes.
        received: String,
    },
    /// An unknown name.
    #[error("unknown {kind} '{}'{}", part(brief(name)), part(suggestion(known, name)))]
    Unknown {
        /// What was looked up: layer, activation, loss, …
        kind: &'static str,
        /// The requested name.
        name: String,
        /// The known names.
        known: Vec<String>,
    },
    /// An invalid config.
    #[error("{}: {}", part(owner), part(message))]
    Config {
        /// The class the config is for.
        owner: String,
        /// The reason.
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
    /// An I/O error of a file or stream that has no path, such as standard output.
    #[error("{0}")]
    System(#[from] std::io::Error),
    /// A file with unexpected contents.
    #[error("{}: expected {}, received {}", part(path.display()), part(expected), part(received))]
    File {
        /// The file.
        path: PathBuf,
        /// The expected value.
        expected: String,
        /// The received value.
        received: String,
    },
    /// A feature of the crate that was not compiled in.
    #[error("this build has no support for {what}; build with `--features {feature}`")]
    MissingFeature {
        /// What was asked for.
        what: &'static str,
        /// The feature that provides it.
        feature: &'static str,
    },
    /// An error of a callback or dataset that was written in another language or crate, unchanged.
    #[error("{0}")]
    Foreign(Box<dyn std::error::Error + Send + Sync>),
    /// A dataset whose files are missing.
    #[error(
        "dataset '{}' was not found; put {} into {}",
        part(name), part(files.join(", ")), part(directory.display())
    )]
    Missing {
        /// The dataset.
        name: String,
        /// The files looked for.
        files: Vec<String>,
        /// The directory where they are expected.
        directory: PathBuf,
    },
    /// A dataset whose files are missing and cannot be downloaded.
    #[error(
        "dataset '{}' was not found and cannot be downloaded ({}); put {} into {}, for example from {url}",
        part(name), part(reason), part(files.join(", ")), part(directory.display())
    )]
    Download {
        /// The dataset.
        name: String,
        /// The files looked for.
        files: Vec<String>,
        /// The directory where they are expected.
        directory: PathBuf,
        /// The URL where they are published.
        url: String,
        /// Why the download failed.
        reason: String,
    },
}

fn other_suspects(suspects: &[String]) -> String {
    suspects.iter().map(|suspect| format!(" ({suspect})")).collect()
}

/// The state of the weights after a run that ended in NaN.
fn weights_state(finite: bool, saved: Option<&PathBuf>) -> String {
    match (finite, saved) {
        (true, _) => "the weights are still finite".into(),
        (false, Some(path)) => {
            format!("the weights now hold NaN or infinities: resume from {}", path.display())
        }
        (false, None) => {
            "the weights now hold NaN or infinities, and there is no file to resume from".into()
        }
    }
}

fn largest_fitting_batch(largest: Option<usize>) -> String {
    match largest {
        Some(batch) => format!("the largest batch that fits is {batch}"),
        None => "not even a batch of one sample for each replica fits".into(),
    }
}

fn suggestion(known: &[String], name: &str) -> String {
    // Prefer a typo of a known name, then a name that shares a substring or a prefix.
    let distance_if_close = |k: &String| {
        let distance = edit_distance(&k.to_lowercase(), &name.to_lowercase());
        let max_distance = if name.chars().count() < 4 { 1 } else { 2 };
        (distance <= max_distance).then_some(distance)
    };
    let is_similar = |k: &&String| {
        let (k, n) = (k.to_lowercase(), name.to_lowercase());
        let both_given = !n.is_empty() && !k.is_empty();
        both_given && (k.contains(&n) || n.contains(&k) || k.chars().take(4).eq(n.chars().take(4)))
    };
    let closest = known
        .iter()
        .filter_map(|k| Some((distance_if_close(k)?, k)))
        .min_by_key(|(distance, _)| *distance);
    match closest.map(|(_, k)| k).or_else(|| known.iter().find(is_similar)) {
        Some(k) => format!("; did you mean '{k}'? known: {}", known.join(", ")),
        None => format!("; known: {}", known.join(", ")),
    }
}

/// The Levenshtein distance between the first 100 characters of two names.
pub(crate) fn edit_distance(from: &str, to: &str) -> usize {
    // Names from files may have any length.
    const MAX_CHARS: usize = 100;
    let to: Vec<char> = to.chars().take(MAX_CHARS).collect();
    let mut row: Vec<usize> = (0..=to.len()).collect();
    for (i, a) in from.chars().take(MAX_CHARS).enumerate() {
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

/// Prints the same text as `Display`, because a `main` that returns this error prints it with `Debug`.
impl fmt::Debug for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl From<phalanx_distributed::Error> for Error {
    fn from(error: phalanx_distributed::Error) -> Error {
        use phalanx_distributed::Error as E;
        match error {
            E::Argument { owner, argument, expected, received } => {
                Error::argument(owner, argument, expected, received)
            }
            E::Config { owner, message } => Error::config(owner, message),
            other => Error::Exec(other.into()),
        }
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

    /// An invalid config.
    pub fn config(owner: impl Into<String>, message: impl ToString) -> Error {
        Error::Config { owner: owner.into(), message: message.to_string() }
    }

    /// A file that could not be read or written.
    pub fn io(path: impl Into<PathBuf>, source: std::io::Error) -> Error {
        Error::Io { path: path.into(), source }
    }

    /// A file with unexpected contents.
    pub fn file(
        path: impl Into<PathBuf>,
        expected: impl Into<String>,
        received: impl ToString,
    ) -> Error {
        let (path, expected) = (path.into(), expected.into());
        Error::File { path, expected, received: received.to_string() }
    }
}

/// The result type of the library.
pub type Result<T, E = Error> = std::result::Result<T, E>;
