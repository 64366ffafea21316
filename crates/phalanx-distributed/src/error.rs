//! Errors of launching, joining and losing processes.

use phalanx_graph::text::part;
use thiserror::Error;

/// The result of this crate's functions.
pub type Result<T> = std::result::Result<T, Error>;

/// An error from joining the other processes of a job.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum Error {
    /// A launcher's variable or an argument outside its range.
    #[error(
        "{owner}: {}: expected {}, received {}",
        part(argument),
        part(expected),
        part(received)
    )]
    Argument {
        /// The part at fault.
        owner: &'static str,
        /// The variable or argument.
        argument: String,
        /// The expected value.
        expected: String,
        /// The received value.
        received: String,
    },
    /// Processes that cannot join.
    #[error("{owner}: {}", part(message))]
    Config {
        /// The part at fault.
        owner: &'static str,
        /// The reason.
        message: String,
    },
    /// A device through which a process cannot communicate.
    #[error("{device}: {message}")]
    Device {
        /// The device.
        device: String,
        /// The cause.
        message: String,
    },
    /// The loss of another process.
    #[error(transparent)]
    Peer(#[from] PeerError),
}

impl Error {
    pub(crate) fn argument(
        owner: &'static str,
        argument: impl Into<String>,
        expected: impl Into<String>,
        received: impl ToString,
    ) -> Error {
        let (argument, expected) = (argument.into(), expected.into());
        Error::Argument { owner, argument, expected, received: received.to_string() }
    }

    pub(crate) fn config(owner: &'static str, message: impl ToString) -> Error {
        Error::Config { owner, message: message.to_string() }
    }
}

/// The loss of a process.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("{}: {}", part(name), part(message))]
pub struct PeerError {
    /// Description of the process.
    pub name: String,
    /// The cause.
    pub message: String,
}
