//! Datasets by name, and the user's own `.npz` and `.csv` files. Downloads need the feature `datasets`; files
//! that are in place are read without it.

pub mod cifar;
#[cfg(feature = "datasets")]
mod download;
#[cfg(not(feature = "datasets"))]
#[path = "no_download.rs"]
mod download;
mod fetch;
pub mod glyphs;
mod idx;
pub mod mnist;
pub mod npy;
mod user_files;

pub(crate) use download::verify_file;
pub(crate) use fetch::{Checksum, Remote, fetch_file};
pub use fetch::{Transfer, fetch, find, terminal};
pub use user_files::{
    Categories, Csv, Missing, SampleSet, Table, TableEncoding, UserData, load_npz, read_arrays,
    write_arrays,
};

use crate::data::Samples;
use crate::error::{Error, Result};
use phalanx_graph::Tensor;
use std::path::PathBuf;

/// The names that [`load`] accepts.
pub const NAMES: [&str; 5] = ["glyphs", "mnist", "fashion-mnist", "cifar-10", "cifar-100"];

/// Training and test samples: inputs and labels.
#[derive(Clone, Debug, PartialEq)]
pub struct Split {
    /// Training samples.
    pub train: (Samples, Tensor),
    /// Test samples.
    pub test: (Samples, Tensor),
}

/// Loads a dataset by name with its defaults, and downloads it if necessary.
///
/// ```
/// let data = phalanx::datasets::load("glyphs")?;
/// assert_eq!(data.train.0.dims(), [6000, 28, 28, 1]);
/// # Ok::<(), phalanx::error::Error>(())
/// ```
pub fn load(name: &str) -> Result<Split> {
    match canonical(name) {
        "glyphs" => glyphs::load(glyphs::Glyphs::default()),
        "mnist" => mnist::load(None),
        "fashion-mnist" => mnist::load_fashion(None),
        "cifar-10" => cifar::load(None),
        "cifar-100" => cifar::load_100(None),
        _ => Err(unknown(name)),
    }
}

/// The class names of a dataset, in the order of the labels.
pub fn class_names(name: &str) -> Result<Vec<String>> {
    let own = |names: &[&str]| Ok(names.iter().map(ToString::to_string).collect());
    match canonical(name) {
        "glyphs" | "mnist" => Ok((0..10).map(|digit| digit.to_string()).collect()),
        "fashion-mnist" => own(&mnist::FASHION_CLASSES),
        "cifar-10" => own(&cifar::CLASSES),
        "cifar-100" => own(&cifar::FINE_CLASSES),
        _ => Err(unknown(name)),
    }
}

/// Maps a Keras name such as `cifar10` or `fashion_mnist` to the name used here.
pub fn canonical(name: &str) -> &str {
    let plain = |name: &str| name.replace(['-', '_'], "");
    NAMES.into_iter().find(|known| plain(known) == plain(name)).unwrap_or(name)
}

fn unknown(name: &str) -> Error {
    Error::Unknown { kind: "dataset", name: name.into(), known: NAMES.map(String::from).into() }
}

/// The directory of datasets: `$PHALANX_DATA`, or `phalanx` in the user's cache directory.
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
    fn every_dataset_names_its_classes() {
        for name in NAMES {
            let names = class_names(name).unwrap();
            let expected = if name == "cifar-100" { 100 } else { 10 };
            assert_eq!(names.len(), expected);
            assert!(names.iter().enumerate().all(|(i, n)| !names[..i].contains(n)), "{name}");
        }
        assert!(class_names("nope").is_err());
    }

    #[test]
    fn keras_names_are_known_too() {
        assert_eq!(
            ["cifar10", "cifar100", "fashion_mnist"].map(canonical),
            ["cifar-10", "cifar-100", "fashion-mnist"]
        );
        assert_eq!(canonical("cifar"), "cifar");
    }

    #[test]
    fn an_unknown_name_lists_the_known_ones() {
        let message = load("mnsit").unwrap_err().to_string();
        assert!(message.contains("unknown dataset 'mnsit'"), "{message}");
        assert!(message.contains("glyphs, mnist, fashion-mnist"), "{message}");
    }
}
