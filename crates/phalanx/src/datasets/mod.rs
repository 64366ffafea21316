//! Datasets by name.

pub mod cifar;
mod download;
mod fetch;
pub mod glyphs;
mod idx;
pub mod mnist;
pub mod npy;
mod own;

pub use download::Transfer;
pub use fetch::{fetch, find};
pub use own::{Csv, Own, load_npz};

use crate::data::Samples;
use crate::error::{Error, Result};
use phalanx_graph::Tensor;
use std::path::PathBuf;

/// The names [`load`] knows.
pub const NAMES: [&str; 5] = ["glyphs", "mnist", "fashion-mnist", "cifar-10", "cifar-100"];

/// Samples to train on and samples to test on: inputs and labels.
#[derive(Clone, Debug, PartialEq)]
pub struct Split {
    /// What the model learns from.
    pub train: (Samples, Tensor),
    /// What it has never seen.
    pub test: (Samples, Tensor),
}

/// Loads a dataset from where it belongs, with its defaults; one that is not there is fetched.
///
/// ```
/// let data = phalanx::datasets::load("glyphs")?;
/// assert_eq!(data.train.0.dims(), [6000, 28, 28, 1]);
/// # Ok::<(), phalanx::error::Error>(())
/// ```
pub fn load(name: &str) -> Result<Split> {
    match name {
        "glyphs" => glyphs::load(glyphs::Glyphs::default()),
        "mnist" => mnist::load(None),
        "fashion-mnist" => mnist::load_fashion(None),
        "cifar-10" => cifar::load(None),
        "cifar-100" => cifar::load_100(None),
        _ => Err(Error::Unknown {
            kind: "dataset",
            name: name.into(),
            known: NAMES.map(String::from).into(),
        }),
    }
}

/// Where datasets are kept: `$PHALANX_DATA`, or `phalanx` in the user's cache directory.
pub fn directory() -> PathBuf {
    let set = |name| std::env::var_os(name).filter(|v| !v.is_empty()).map(PathBuf::from);
    if let Some(chosen) = set("PHALANX_DATA") {
        return chosen;
    }
    let cache = set("XDG_CACHE_HOME")
        .filter(|p| p.is_absolute())
        .or_else(|| set("HOME").map(|home| home.join(".cache")));
    cache.unwrap_or_else(|| PathBuf::from(".cache")).join("phalanx")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_unknown_name_lists_the_known_ones() {
        let message = load("mnsit").unwrap_err().to_string();
        assert!(message.contains("unknown dataset 'mnsit'"), "{message}");
        assert!(message.contains("glyphs, mnist, fashion-mnist"), "{message}");
    }
}
