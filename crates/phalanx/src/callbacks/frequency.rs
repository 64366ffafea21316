//! The frequency at which a callback acts.

use crate::error::{Error, Result};

/// After every epoch or after a number of batches: `"epoch"`, `"batch"` or a number.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Frequency {
    /// After every epoch: `"epoch"`.
    #[default]
    Epoch,
    /// After this number of batches; `"batch"` is 1.
    Batches(u64),
    /// An unknown word, reported when training begins.
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
    /// Rejects unknown words and zero.
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
