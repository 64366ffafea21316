//! MNIST and Fashion-MNIST: 28x28 grayscale images of 10 classes, 60,000 for training and 10,000 for
//! testing, read from the official idx files.

use super::fetch::find_or_fetch;
use super::{Split, idx};
use crate::data::{Pixels, Samples};
use crate::error::{Error, Result};
use phalanx_graph::Tensor;
use std::path::{Path, PathBuf};

/// Side length in pixels.
const SIDE: usize = 28;
const CLASSES: u8 = 10;
const FILES: [[&str; 2]; 2] = [
    ["train-images-idx3-ubyte", "train-labels-idx1-ubyte"],
    ["t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte"],
];

/// The ten classes of Fashion-MNIST, in the order of their labels.
pub const FASHION_CLASSES: [&str; 10] = [
    "T-shirt/top",
    "trouser",
    "pullover",
    "dress",
    "coat",
    "sandal",
    "shirt",
    "sneaker",
    "bag",
    "ankle boot",
];

/// Directory of Debian's package `dataset-fashion-mnist`.
pub(super) const DEBIAN: &str = "/usr/share/dataset-fashion-mnist";

/// Loads handwritten digits: images `[n, 28, 28, 1]` in `[0, 1]` and labels `[n]`.
///
/// The four official files, gzipped or plain, are read from `dir`. Without `dir` they are read from
/// `mnist` under [`directory`](super::directory), and downloaded to it if necessary.
pub fn load(dir: Option<&Path>) -> Result<Split> {
    load_named("mnist", dir)
}

/// Loads articles of clothing, in the form of [`load`]. Without `dir` it reads `fashion-mnist`, or the
/// directory of Debian's package `dataset-fashion-mnist`.
pub fn load_fashion(dir: Option<&Path>) -> Result<Split> {
    load_named("fashion-mnist", dir)
}

fn load_named(name: &str, dir: Option<&Path>) -> Result<Split> {
    match dir {
        Some(dir) => load_from(name, dir),
        None => load_from(name, &find_or_fetch(name)?),
    }
}

fn load_from(name: &str, dir: &Path) -> Result<Split> {
    match FILES.map(|part| part.map(|file| find(dir, file))) {
        [[Some(images), Some(labels)], [Some(test_images), Some(test_labels)]] => Ok(Split {
            train: load_part(&images, &labels)?,
            test: load_part(&test_images, &test_labels)?,
        }),
        _ => {
            let (name, directory) = (name.into(), dir.into());
            Err(Error::Missing { name, files: missing(dir), directory })
        }
    }
}

/// The official files that are missing from a directory, gzipped or plain.
pub(super) fn missing(dir: &Path) -> Vec<String> {
    let files = FILES.iter().flatten().filter(|file| find(dir, file).is_none());
    files.map(|file| format!("{file}.gz")).collect()
}

/// The path of a file, gzipped or plain. Some tools write the last dash as a dot.
fn find(dir: &Path, file: &str) -> Option<PathBuf> {
    let dotted = file.replace("-idx", ".idx");
    let names = [format!("{file}.gz"), file.to_string(), format!("{dotted}.gz"), dotted];
    names.into_iter().map(|name| dir.join(name)).find(|path| path.exists())
}

fn load_part(images: &Path, labels: &Path) -> Result<(Samples, Tensor)> {
    let pixels = idx::read(images, &[SIDE, SIDE])?;
    let classes = idx::read(labels, &[])?;
    if classes.samples != pixels.samples {
        let expected = format!("{} labels, one per image of {}", pixels.samples, images.display());
        return Err(Error::file(labels, expected, classes.samples));
    }
    if let Some(at) = classes.bytes.iter().position(|label| *label >= CLASSES) {
        let received = format!("{} for sample {at}", classes.bytes[at]);
        return Err(Error::file(labels, format!("labels below {CLASSES}"), received));
    }
    let n = pixels.samples;
    let y: Vec<i32> = classes.bytes.iter().map(|label| i32::from(*label)).collect();
    match (Pixels::new([n, SIDE, SIDE, 1], pixels.bytes, 255.0), Tensor::new([n], y).ok()) {
        (Some(x), Some(y)) => Ok((x.into(), y)),
        _ => Err(Error::file(images, format!("{n} images"), "another number of pixels")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn write(dir: &Path, file: &str, words: &[u32], data: &[u8]) {
        let header: Vec<u8> = words.iter().flat_map(|w| w.to_be_bytes()).collect();
        std::fs::write(dir.join(file), [&header, data].concat()).unwrap();
    }

    fn write_part(dir: &Path, files: [&str; 2], labels: &[u8]) {
        let n = labels.len() as u32;
        write(dir, files[0], &[2051, 2, 28, 28], &[51; 2 * 784]);
        write(dir, files[1], &[2049, n], labels);
    }

    #[test]
    fn pixels_are_scaled_and_labels_read() {
        let dir = tempfile::tempdir().unwrap();
        write_part(dir.path(), FILES[0], &[3, 9]);
        write_part(dir.path(), FILES[1], &[0, 1]);
        let data = load(Some(dir.path())).unwrap();
        assert_eq!(data.train.0.dims(), [2, 28, 28, 1]);
        assert!(data.train.0.to_tensor().f32().unwrap().iter().all(|p| *p == 0.2));
        assert_eq!(data.train.1.i32().unwrap(), [3, 9]);
        assert_eq!(data.test.1.i32().unwrap(), [0, 1]);
    }

    #[test]
    fn labels_must_fit_their_images() {
        let dir = tempfile::tempdir().unwrap();
        write_part(dir.path(), FILES[1], &[0, 1]);
        for (labels, expected) in [
            (
                &[1u8, 10][..],
                "labels-idx1-ubyte: expected labels below 10, received 10 for sample 1",
            ),
            (&[1, 2, 3], "images-idx3-ubyte, received 3"),
        ] {
            write_part(dir.path(), FILES[0], labels);
            let message = load(Some(dir.path())).unwrap_err().to_string();
            assert!(message.contains(expected), "{message}");
        }
    }

    #[test]
    fn missing_files_are_named_with_their_place() {
        let dir = tempfile::tempdir().unwrap();
        write_part(dir.path(), FILES[0], &[0, 1]);
        let message = load_fashion(Some(dir.path())).unwrap_err().to_string();
        let expected = format!(
            "dataset 'fashion-mnist' was not found; put t10k-images-idx3-ubyte.gz, \
             t10k-labels-idx1-ubyte.gz into {}",
            dir.path().display()
        );
        assert_eq!(message, expected);
    }

    /// The counts and means that the README of the data states.
    #[phalanx_needs::needs(mnist)]
    #[test]
    fn the_official_files_give_the_published_counts_and_means() {
        let root = std::env::var_os("PHALANX_DATA").expect("PHALANX_DATA is set");
        for (name, mean, first_class) in [("mnist", 0.1307, 5923), ("fashion-mnist", 0.2860, 6000)]
        {
            let dir = Path::new(&root).join(name);
            let data = load_named(name, Some(&dir)).unwrap();
            let x = data.train.0.to_tensor();
            let (x, y) = (x.f32().unwrap(), data.train.1.i32().unwrap());
            assert_eq!((y.len(), data.test.0.rows()), (60_000, 10_000));
            let sum: f64 = x.iter().map(|p| f64::from(*p)).sum();
            assert!((sum / x.len() as f64 - mean).abs() < 5e-5);
            assert_eq!(y.iter().filter(|c| **c == 0).count(), first_class);
        }
    }
}
