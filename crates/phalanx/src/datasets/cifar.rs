//! CIFAR-10 and CIFAR-100: 32x32 color images, 50,000 for training and 10,000 for testing, read from the
//! official binary files.
//!
//! A record is the label (for CIFAR-100 the coarse one of 20, then the fine one of 100) and 3,072 bytes:
//! 32 rows of 32 red, then green, then blue. Images are returned as `[n, 32, 32, 3]`.

use super::Split;
use super::fetch::find_or_fetch;
use crate::data::{Pixels, Samples};
use crate::error::{Error, Result};
use crate::saving::open_file;
use phalanx_graph::Tensor;
use std::io::Read;
use std::path::{Path, PathBuf};

const SIDE: usize = 32;
const PLANE: usize = SIDE * SIDE;
const CHANNELS: usize = 3;
/// Maximum number of images in a file.
const MAX_IMAGES: u64 = 1_000_000;

/// The ten classes of CIFAR-10, in the order of their labels.
pub const CLASSES: [&str; 10] =
    ["airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck"];

/// The hundred fine classes of CIFAR-100, in the order of their labels.
#[rustfmt::skip]
pub const FINE_CLASSES: [&str; 100] = [
    "apple", "aquarium_fish", "baby", "bear", "beaver", "bed", "bee", "beetle", "bicycle",
    "bottle", "bowl", "boy", "bridge", "bus", "butterfly", "camel", "can", "castle",
    "caterpillar", "cattle", "chair", "chimpanzee", "clock", "cloud", "cockroach", "couch",
    "crab", "crocodile", "cup", "dinosaur", "dolphin", "elephant", "flatfish", "forest", "fox",
    "girl", "hamster", "house", "kangaroo", "keyboard", "lamp", "lawn_mower", "leopard", "lion",
    "lizard", "lobster", "man", "maple_tree", "motorcycle", "mountain", "mouse", "mushroom",
    "oak_tree", "orange", "orchid", "otter", "palm_tree", "pear", "pickup_truck", "pine_tree",
    "plain", "plate", "poppy", "porcupine", "possum", "rabbit", "raccoon", "ray", "road",
    "rocket", "rose", "sea", "seal", "shark", "shrew", "skunk", "skyscraper", "snail", "snake",
    "spider", "squirrel", "streetcar", "sunflower", "sweet_pepper", "table", "tank", "telephone",
    "television", "tiger", "tractor", "train", "trout", "tulip", "turtle", "wardrobe", "whale",
    "willow_tree", "wolf", "woman", "worm",
];

pub(super) const FILES_10: &[&str] = &[
    "data_batch_1.bin",
    "data_batch_2.bin",
    "data_batch_3.bin",
    "data_batch_4.bin",
    "data_batch_5.bin",
    "test_batch.bin",
];
pub(super) const FILES_100: &[&str] = &["train.bin", "test.bin"];

/// The file layout of one of the two datasets.
struct Layout {
    name: &'static str,
    /// The last file is the test set.
    files: &'static [&'static str],
    /// Number of classes for each label byte of a record. The last byte is the label.
    classes: &'static [u8],
}

const CIFAR_10: Layout = Layout { name: "cifar-10", files: FILES_10, classes: &[10] };
const CIFAR_100: Layout = Layout { name: "cifar-100", files: FILES_100, classes: &[20, 100] };

/// Loads CIFAR-10: images `[n, 32, 32, 3]` in `[0, 1]`, stored as bytes, and labels `[n]`.
///
/// The six official files are read from `dir`. Without `dir` they are read from `cifar-10-batches-bin`
/// under [`directory`](super::directory), and downloaded to it if necessary.
pub fn load(dir: Option<&Path>) -> Result<Split> {
    load_layout(&CIFAR_10, dir)
}

/// Loads CIFAR-100 with its 100 fine labels, in the form of [`load`]. Without `dir` it reads
/// `cifar-100-binary`.
pub fn load_100(dir: Option<&Path>) -> Result<Split> {
    load_layout(&CIFAR_100, dir)
}

fn load_layout(layout: &Layout, dir: Option<&Path>) -> Result<Split> {
    let dir = match dir {
        Some(dir) => dir.to_path_buf(),
        None => find_or_fetch(layout.name)?,
    };
    let missing = missing(layout.files, &dir);
    if !missing.is_empty() {
        let name = layout.name.into();
        return Err(Error::Missing { name, files: missing, directory: dir });
    }
    let mut train: Vec<PathBuf> = layout.files.iter().map(|file| dir.join(file)).collect();
    let test = train.split_off(layout.files.len() - 1);
    let (train, test) = (load_part(&train, layout.classes)?, load_part(&test, layout.classes)?);
    Ok(Split { train, test })
}

fn missing(files: &[&str], dir: &Path) -> Vec<String> {
    files.iter().filter(|file| !dir.join(file).exists()).map(|file| file.to_string()).collect()
}

/// The files of CIFAR-10 that are missing from a directory.
pub(super) fn missing_10(dir: &Path) -> Vec<String> {
    missing(FILES_10, dir)
}

/// The files of CIFAR-100 that are missing from a directory.
pub(super) fn missing_100(dir: &Path) -> Vec<String> {
    missing(FILES_100, dir)
}

fn load_part(files: &[PathBuf], classes: &[u8]) -> Result<(Samples, Tensor)> {
    let (mut pixels, mut labels) = (vec![], vec![]);
    for file in files {
        read(file, classes, &mut pixels, &mut labels)?;
    }
    let n = labels.len();
    match (Pixels::new([n, SIDE, SIDE, CHANNELS], pixels, 255.0), Tensor::new([n], labels).ok()) {
        (Some(x), Some(y)) => Ok((x.into(), y)),
        _ => Err(Error::file(&files[0], format!("{n} images"), "another number of pixels")),
    }
}

/// Appends the images of a file, channels last, and its labels.
fn read(path: &Path, classes: &[u8], pixels: &mut Vec<u8>, labels: &mut Vec<i32>) -> Result<()> {
    let fail = |source| Error::io(path, source);
    let file = open_file(path, "a file of images")?;
    let size = file.metadata().map_err(fail)?.len();
    let record = classes.len() + CHANNELS * PLANE;
    let images = size / record as u64;
    let wrong_length = |received: u64| {
        let expected = format!("a whole number of records of {record} bytes");
        Err(Error::file(path, expected, format!("{received} bytes")))
    };
    if images == 0 || size % record as u64 != 0 {
        return wrong_length(size);
    }
    if images > MAX_IMAGES {
        return Err(Error::file(path, format!("at most {MAX_IMAGES} images"), images));
    }
    let mut bytes = Vec::with_capacity(size as usize);
    file.take(size + 1).read_to_end(&mut bytes).map_err(fail)?;
    if bytes.len() as u64 != size {
        return wrong_length(bytes.len() as u64);
    }
    pixels.reserve_exact(images as usize * CHANNELS * PLANE);
    for (i, record) in bytes.chunks_exact(record).enumerate() {
        let (own, planes) = record.split_at(classes.len());
        for (label, classes) in own.iter().zip(classes) {
            if label >= classes {
                let received = format!("{label} for sample {i}");
                return Err(Error::file(path, format!("labels below {classes}"), received));
            }
        }
        labels.push(own.last().map_or(0, |label| i32::from(*label)));
        let (red, rest) = planes.split_at(PLANE);
        let (green, blue) = rest.split_at(PLANE);
        for ((r, g), b) in red.iter().zip(green).zip(blue) {
            pixels.extend_from_slice(&[*r, *g, *b]);
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A record with red equal to `label`, green 100 and blue the column.
    fn record(labels: &[u8]) -> Vec<u8> {
        let red = vec![*labels.last().unwrap(); PLANE];
        let blue: Vec<u8> = (0..PLANE).map(|i| (i % SIDE) as u8).collect();
        [labels.to_vec(), red, vec![100; PLANE], blue].concat()
    }

    fn write(layout: &Layout, labels: &[u8]) -> tempfile::TempDir {
        let dir = tempfile::tempdir().unwrap();
        for file in layout.files {
            std::fs::write(dir.path().join(file), record(labels)).unwrap();
        }
        dir
    }

    #[test]
    fn planes_become_channels() {
        let dir = write(&CIFAR_10, &[7]);
        let data = load(Some(dir.path())).unwrap();
        assert_eq!(data.train.0.dims(), [5, 32, 32, 3]);
        assert_eq!(data.train.1.i32().unwrap(), [7; 5]);
        let mut image = vec![0.0; 3072];
        data.test.0.read_row(0, &mut image);
        assert_eq!(image[31 * 3..32 * 3], [7.0 / 255.0, 100.0 / 255.0, 31.0 / 255.0]);
        assert_eq!(image[32 * 3 + 2], 0.0);
    }

    #[test]
    fn cifar_100_gives_fine_labels() {
        let dir = write(&CIFAR_100, &[19, 99]);
        let data = load_100(Some(dir.path())).unwrap();
        assert_eq!(data.train.1.i32().unwrap(), [99]);
        let dir = write(&CIFAR_100, &[20, 99]);
        let message = load_100(Some(dir.path())).unwrap_err().to_string();
        assert!(message.contains("labels below 20, received 20 for sample 0"), "{message}");
    }

    #[test]
    fn damaged_files_give_an_error_that_names_them() {
        let dir = write(&CIFAR_10, &[7]);
        let path = dir.path().join("data_batch_3.bin");
        let two = [record(&[1]), record(&[10])].concat();
        for (bytes, expected) in [
            (&two[..], "labels below 10, received 10 for sample 1"),
            (&two[..3072], "records of 3073 bytes, received 3072 bytes"),
            (&two[..3074], "received 3074 bytes"),
            (&[], "received 0 bytes"),
        ] {
            std::fs::write(&path, bytes).unwrap();
            let message = load(Some(dir.path())).unwrap_err().to_string();
            assert!(message.contains("data_batch_3.bin: expected"), "{message}");
            assert!(message.contains(expected), "{message} should say {expected}");
        }
        std::fs::remove_file(&path).unwrap();
        let message = load(Some(dir.path())).unwrap_err().to_string();
        let expected = format!(
            "dataset 'cifar-10' was not found; put data_batch_3.bin into {}",
            dir.path().display()
        );
        assert_eq!(message, expected);
        std::fs::create_dir(&path).unwrap();
        assert!(load(Some(dir.path())).unwrap_err().to_string().contains("expected a file"));
    }
}
