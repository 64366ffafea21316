//! What `--data` names, loaded: a dataset, a directory of images, an `.npz` or a `.csv`.

use crate::args::Size;
use crate::feed::{Feed, room};
use anyhow::{Context, Result, bail};
use phalanx::Data;
use phalanx::data::{ColorMode, Samples};
use phalanx::datasets::{Csv, Own, load_npz};
use phalanx::prelude::*;
use phalanx::text::{part, shown};
use std::path::Path;

/// Of each class of data without a test split, one in so many samples goes into one.
const TEST_SHARE: usize = 5;
/// More classes than a network sensibly tells apart.
pub const MOST_CLASSES: usize = 1 << 16;

/// The size of images where nothing else says it.
const USUAL_SIZE: Size = Size { height: 28, width: 28 };

/// Samples and class numbers as they came.
pub struct Loaded {
    /// To train on.
    pub train: (Feed, Tensor),
    /// To test on.
    pub test: (Feed, Tensor),
    /// The classes' names, in the order of their numbers.
    pub classes: Vec<String>,
    /// Whether the samples are images in height, width and channels.
    pub images: bool,
}

/// How images of a directory are read.
#[derive(Clone, Copy)]
pub struct Reading {
    size: Size,
    color: ColorMode,
    /// Whether files are read as they are needed: each worker then reads its share.
    shared: bool,
}

impl Reading {
    /// In colour or in shades of grey, in a network's usual size where none is given.
    pub fn of(usual: &[usize], size: Option<Size>, grey: bool) -> Reading {
        let usual = match *usual {
            [height, width, ..] => Size { height, width },
            _ => USUAL_SIZE,
        };
        let color = if grey { ColorMode::Grayscale } else { ColorMode::Rgb };
        Reading { size: size.unwrap_or(usual), color, shared: false }
    }

    /// By so many workers.
    pub fn by(self, workers: usize) -> Reading {
        Reading { shared: workers > 1, ..self }
    }

    /// As a model takes them: in shades of grey too where it has one channel.
    pub fn sized(input: &[usize], size: Option<Size>, grey: bool) -> Reading {
        Reading::of(input, size, grey || matches!(input, [_, _, 1]))
    }
}

/// The names of so many classes that have none.
pub fn numbered(count: usize) -> Vec<String> {
    (0..count).map(|class| class.to_string()).collect()
}

/// Some of the classes' names, to show.
pub fn list(classes: &[String]) -> String {
    part(format!("{classes:?}")).to_string()
}

/// Loads what a name or path stands for.
pub fn load(name: &str, reading: Reading) -> Result<Loaded> {
    if datasets::NAMES.contains(&datasets::canonical(name)) {
        let split = datasets::load(name)?;
        let classes = datasets::class_names(name)?;
        let held = |(x, y)| (Feed::Memory(x), y);
        let (train, test) = (held(split.train), held(split.test));
        return Ok(Loaded { train, test, classes, images: true });
    }
    let path = Path::new(name);
    let extension = path.extension().map(|e| e.to_string_lossy().to_lowercase());
    let loaded = match extension.as_deref() {
        Some("npz") => own(load_npz(path)?),
        Some("csv") => own(Csv::new().load(path)?),
        _ if path.is_dir() => folder(path, reading),
        _ => bail!(
            "--data: unknown dataset '{}': expected {}, a directory of images, an .npz or a .csv",
            shown(name),
            datasets::NAMES.join(", ")
        ),
    };
    loaded.with_context(|| format!("--data {}", shown(name)))
}

/// A directory with a directory per class; with `train` and `test` in it, those have them.
fn folder(path: &Path, reading: Reading) -> Result<Loaded> {
    let open = |path: &Path| -> Result<ImageFolder> {
        let folder = ImageFolder::open(path)?;
        let sized = folder.target_size(reading.size.height, reading.size.width)?;
        Ok(sized.color_mode(reading.color))
    };
    let part = |folder: ImageFolder, room: usize| -> Result<Part> {
        let labels = folder.labels();
        Ok(match reading.shared {
            true => (Feed::files(folder, room), labels),
            false => (Feed::Memory(folder.load()?.0), labels),
        })
    };
    let (train, test) = (path.join("train"), path.join("test"));
    let (train, test) = match train.is_dir() && test.is_dir() {
        true => (open(&train)?, Some(open(&test)?)),
        false => (open(path)?, None),
    };
    let classes = train.class_names().to_vec();
    if let Some(other) = test.as_ref().filter(|test| test.class_names() != classes) {
        bail!(
            "expected the same classes in train and test, received {}",
            list(other.class_names())
        );
    }
    let (train, test) = match test {
        Some(test) => (part(train, room() / 2)?, part(test, room() / 2)?),
        None => hold_back(part(train, room())?)?,
    };
    Ok(Loaded { train, test, classes, images: true })
}

/// Arrays of the user's own.
fn own(own: Own) -> Result<Loaded> {
    let whole =
        |(x, y): (Samples, Tensor)| -> Result<Part> { Ok((Feed::Memory(x), class_numbers(&y)?)) };
    let train = whole(own.train)?;
    let (train, test) = match own.test {
        Some(test) => (train, whole(test)?),
        None => hold_back(train)?,
    };
    let largest = [&train.1, &test.1].into_iter().filter_map(|y| y.i32()?.iter().max());
    let count = largest.max().map_or(0, |most| *most as usize + 1);
    let classes = if own.classes.is_empty() { numbered(count) } else { own.classes };
    // [height, width] and [height, width, channels].
    let images = matches!(train.0.dims().len(), 2 | 3);
    Ok(Loaded { train, test, classes, images })
}

/// Class numbers `[n]` from such, a column of them, or one-hot rows.
fn class_numbers(y: &Tensor) -> Result<Tensor> {
    let (rows, width) = (y.rows(), y.row_len());
    let largest = |row: &[f32]| {
        let best = row.iter().enumerate().max_by(|a, b| a.1.total_cmp(b.1).then(b.0.cmp(&a.0)));
        best.map_or(-1, |(i, _)| i as i32)
    };
    let numbers: Vec<i32> = match y.data() {
        Data::I32(v) if width == 1 => v.clone(),
        Data::F32(v) if width == 1 => {
            if let Some(other) = v.iter().find(|v| v.fract() != 0.0 || v.abs() > 1e9) {
                bail!("expected class numbers as labels, received {other}");
            }
            v.iter().map(|v| *v as i32).collect()
        }
        Data::F32(v) if y.dims().len() == 2 => v.chunks_exact(width).map(largest).collect(),
        Data::I32(v) if y.dims().len() == 2 => {
            let floats: Vec<f32> = v.iter().map(|v| *v as f32).collect();
            floats.chunks_exact(width).map(largest).collect()
        }
        _ => bail!("expected class numbers or one-hot rows as labels, received {:?}", y.dims()),
    };
    let out = |class: &&i32| usize::try_from(**class).map_or(true, |class| class >= MOST_CLASSES);
    if let Some(class) = numbers.iter().find(out) {
        bail!("expected labels from 0 to {}, received {class}", MOST_CLASSES - 1);
    }
    Ok(Tensor::new([rows], numbers)?)
}

type Part = (Feed, Tensor);

/// All but every fifth sample of each class, and those.
fn hold_back((x, y): Part) -> Result<(Part, Part)> {
    let labels = y.i32().unwrap_or_default();
    let most = labels.iter().max().map_or(0, |most| *most as usize);
    let mut seen = vec![0usize; most + 1];
    let (mut train, mut test) = (vec![], vec![]);
    for (row, class) in labels.iter().enumerate() {
        let count = &mut seen[*class as usize];
        *count += 1;
        let part = if count.is_multiple_of(TEST_SHARE) { &mut test } else { &mut train };
        part.push(row);
    }
    if test.is_empty() {
        let most = seen.iter().max().unwrap_or(&0);
        bail!("expected {TEST_SHARE} samples or more of a class, to test on one, received {most}");
    }
    let part = |rows: &[usize]| -> Result<Part> {
        let labels: Vec<i32> = rows.iter().map(|row| labels[*row]).collect();
        Ok((x.pick(rows)?, Tensor::new([rows.len()], labels)?))
    };
    Ok((part(&train)?, part(&test)?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn labels_of_any_kind_become_class_numbers() {
        let one_hot = Tensor::new([2, 3], vec![0.0, 1.0, 0.0, 0.0, 0.0, 1.0]).unwrap();
        assert_eq!(class_numbers(&one_hot).unwrap().i32().unwrap(), [1, 2]);
        let column = Tensor::new([2, 1], vec![3.0, 0.0]).unwrap();
        assert_eq!(class_numbers(&column).unwrap().i32().unwrap(), [3, 0]);
        let half = class_numbers(&Tensor::new([1], vec![0.5]).unwrap()).unwrap_err().to_string();
        assert!(half.contains("received 0.5"), "{half}");
        for bad in [-1, 1 << 20] {
            assert!(class_numbers(&Tensor::new([1], vec![bad]).unwrap()).is_err());
        }
    }

    #[test]
    fn every_fifth_of_a_class_is_held_back() {
        let labels: Vec<i32> = (0..20).map(|i| i % 2).collect();
        let x: Vec<f32> = (0..20).map(|i| i as f32).collect();
        let x = Feed::Memory(Tensor::new([20, 1], x).unwrap().into());
        let y = Tensor::new([20], labels).unwrap();
        let (train, test) = hold_back((x, y)).unwrap();
        assert_eq!(test.0.first(4).unwrap().unwrap().f32().unwrap(), [8.0, 9.0, 18.0, 19.0]);
        assert_eq!(test.1.i32().unwrap(), [0, 1, 0, 1]);
        assert_eq!(train.0.rows(), 16);
    }
}
