//! How often a callback does what it does.

use crate::error::{Error, Result};

/// After every epoch, or every so many batches: `"epoch"`, `"batch"` or a number.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Frequency {
    /// After every epoch: `"epoch"`.
    #[default]
    Epoch,
    /// Every so many batches; `"batch"` is 1.
    Batches(u64),
    /// A word that says neither, reported when the training begins.
    Unknown(String),
}

impl From<u64> for Frequency {
    fn from(batches: u64) -> Frequency {
        Frequency::Batches(batches)
    }
}

impl From<&str> for Frequency {
    fn from(word: &str) -> Frequency {
        match word {
            "epoch" => Frequency::Epoch,
            "batch" => Frequency::Batches(1),
            other => Frequency::Unknown(other.into()),
        }
    }
}

impl Frequency {
    /// Refuses words that say nothing, and zero.
    pub(super) fn check(&self, owner: &str, argument: &str) -> Result<()> {
        let expected = "\"epoch\" or a number of batches from 1 up";
        match self {
            Frequency::Unknown(word) => {
                Err(Error::argument(owner, argument, expected, format!("\"{word}\"")))
            }
            Frequency::Batches(0) => Err(Error::argument(owner, argument, expected, 0)),
            _ => Ok(()),
        }
    }
}
