//! Errors of files, and of content that is to be written.

/// Why a file cannot be read, or content cannot be written. The message says what was received.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The file is damaged: truncated, contradictory, or made to consume memory or time.
    #[error("{0}")]
    Damaged(String),
    /// The file uses a part of HDF5 that this crate does not read.
    #[error("{0}")]
    Unsupported(String),
    /// A path does not lead to the object asked for.
    #[error("{found} where the {expected} '{path}' belongs")]
    NotFound {
        /// The kind of object asked for.
        expected: &'static str,
        /// The path.
        path: String,
        /// What the file has there.
        found: &'static str,
    },
    /// Elements of another type, or another number of them, than asked for.
    #[error("{found} where {expected}")]
    WrongType {
        /// What was asked for, for example `numbers belong`.
        expected: &'static str,
        /// What the file has.
        found: String,
    },
    /// Content that a file cannot store.
    #[error("{0}")]
    NotWritable(String),
}

/// The result of this crate's functions.
pub type Result<T> = std::result::Result<T, Error>;

/// A [`Error::Damaged`].
pub(crate) fn damaged(message: impl Into<String>) -> Error {
    Error::Damaged(message.into())
}

/// An [`Error::Unsupported`].
pub(crate) fn unsupported(message: impl Into<String>) -> Error {
    Error::Unsupported(message.into())
}
