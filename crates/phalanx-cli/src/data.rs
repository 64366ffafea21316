//! What `--data` names, loaded and split: a dataset, a directory of images, an `.npz` or a `.csv`.

use crate::args::{CategoriesArg, DataArgs, MissingArg, Size};
use crate::feed::{Feed, room};
use anyhow::{Context, Result, bail};
use phalanx::Error;
use phalanx::data::ColorMode;
use phalanx::datasets::{Categories, Csv, Missing, SampleSet, TableEncoding, load_npz};
use phalanx::prelude::*;
use phalanx::text::{part, shown};
use std::path::Path;

/// More classes than a network sensibly tells apart.
pub const MOST_CLASSES: usize = 1 << 16;

/// The size of images where nothing else says it.
const USUAL_SIZE: Size = Size { height: 28, width: 28 };

/// Rows of samples as they came: inputs and targets by name.
#[derive(Clone)]
pub struct Part {
    /// What the model is given.
    pub inputs: Vec<(String, Feed)>,
    /// What it should make of them.
    pub targets: Vec<(String, Tensor)>,
    /// A weight for each sample, if any.
    pub sample_weight: Option<Vec<f32>>,
}

/// Data as they came.
pub struct Loaded {
    /// To train on.
    pub train: Part,
    /// To validate on, if there are such rows.
    pub validation: Option<Part>,
    /// To test on, if there are such rows.
    pub test: Option<Part>,
    /// The classes that the data themselves have, in the order of their numbers: those of a dataset or directory, or the words
    /// of a table. Numbers in an array may be classes or not.
    pub classes: Option<Vec<String>>,
    /// Whether the samples are images in height, width and channels.
    pub images: bool,
    /// Whether it is a dataset by name, with rows to test on.
    pub by_name: bool,
    /// Whether the samples are arrays of the user's own, whose shape is not changed unasked.
    pub arrays: bool,
    /// For each target, whether it is a column of words.
    pub words: Vec<bool>,
    /// How a table's columns became numbers.
    pub table: Option<TableEncoding>,
    /// What was done to the rows.
    pub notices: Vec<String>,
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

/// What is loaded, and for what model.
pub struct Request<'a> {
    /// A dataset's name, or a path.
    pub name: &'a str,
    /// How images are read.
    pub reading: Reading,
    /// How tables are read.
    pub args: &'a DataArgs,
    /// The names of the model's inputs and outputs.
    pub inputs: Vec<String>,
    pub outputs: Vec<String>,
    /// How the table was read that the model was trained on.
    pub table: Option<&'a TableEncoding>,
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
pub fn load(request: &Request<'_>) -> Result<Loaded> {
    let name = request.name;
    let path = Path::new(name);
    let extension = path.extension().map(|e| e.to_string_lossy().to_lowercase());
    if extension.as_deref() != Some("csv") {
        request.args.check_no_table(name)?;
    }
    if datasets::NAMES.contains(&datasets::canonical(name)) {
        let split = datasets::load(name)?;
        let (train, test) = (Part::of(split.train), Some(Part::of(split.test)));
        let classes = Some(datasets::class_names(name)?);
        return Ok(Loaded { test, classes, images: true, by_name: true, ..Loaded::of(train) });
    }
    let loaded = match extension.as_deref() {
        Some("npz") => npz(path),
        Some("csv") => table(path, request),
        _ if path.is_dir() => folder(path, request.reading),
        _ => {
            let known = datasets::NAMES.map(String::from).into();
            let unknown = Error::Unknown { kind: "dataset", name: name.into(), known };
            bail!("--data: {unknown}, a directory of images, an .npz or a .csv")
        }
    };
    loaded.with_context(|| format!("--data {}", shown(name)))
}

impl Loaded {
    /// Rows to train on, of which nothing more is known.
    fn of(train: Part) -> Loaded {
        let (validation, test, classes, table) = (None, None, None, None);
        let (images, by_name, arrays, notices) = (false, false, false, vec![]);
        let words = vec![];
        Loaded { train, validation, test, classes, images, by_name, arrays, words, table, notices }
    }
}

impl Part {
    fn of((x, y): (phalanx::data::Samples, Tensor)) -> Part {
        Part::single(Feed::Memory(x), y)
    }

    fn single(x: Feed, y: Tensor) -> Part {
        let (inputs, targets) = (vec![(String::new(), x)], vec![(String::new(), y)]);
        Part { inputs, targets, sample_weight: None }
    }

    fn from_set(set: SampleSet) -> Part {
        let inputs = set.inputs.into_iter().map(|(name, x)| (name, Feed::Memory(x))).collect();
        Part { inputs, targets: set.targets, sample_weight: set.sample_weight }
    }

    /// Number of samples.
    pub fn rows(&self) -> usize {
        self.inputs.first().map_or(0, |(_, x)| x.rows())
    }

    /// Some of the samples, in this order.
    pub fn pick(&self, rows: &[usize]) -> Result<Part> {
        let pick = |(name, x): &(String, Feed)| Ok((name.clone(), x.pick(rows)?));
        let inputs = self.inputs.iter().map(pick).collect::<Result<_>>()?;
        let pick = |(name, y): &(String, Tensor)| (name.clone(), y.select_rows(rows));
        let targets = self.targets.iter().map(pick).collect();
        let weight = |weights: &Vec<f32>| rows.iter().map(|row| weights[*row]).collect();
        Ok(Part { inputs, targets, sample_weight: self.sample_weight.as_ref().map(weight) })
    }

    /// The class of every row, if there is one target and its rows are whole numbers.
    fn classes(&self) -> Option<&[i32]> {
        match &self.targets[..] {
            [(_, y)] if y.row_len() == 1 => y.i32(),
            _ => None,
        }
    }
}

impl DataArgs {
    /// Refuses what only a table has.
    fn check_no_table(&self, name: &str) -> Result<()> {
        match self.table_flag() {
            Some(flag) => bail!("{flag}: expected a .csv as --data, received {name}"),
            None => Ok(()),
        }
    }

    /// The flag that says how a table is read, if there is one.
    pub fn table_flag(&self) -> Option<&'static str> {
        let asked = [
            ("--label", !self.label.is_empty()),
            ("--sample-weight", self.sample_weight.is_some()),
            ("--categories", self.categories.is_some()),
            ("--missing", self.missing.is_some()),
            ("--no-header", self.no_header),
        ];
        asked.iter().find(|(_, asked)| *asked).map(|(flag, _)| *flag)
    }

    /// How a table is read.
    pub fn csv(&self) -> Csv {
        let mut csv = Csv::new().header(!self.no_header);
        for label in &self.label {
            csv = csv.label(label);
        }
        if let Some(weight) = &self.sample_weight {
            csv = csv.sample_weight(weight);
        }
        if let Some(categories) = self.categories {
            csv = csv.categories(match categories {
                CategoriesArg::OneHot => Categories::OneHot,
                CategoriesArg::Index => Categories::Index,
            });
        }
        if let Some(missing) = self.missing {
            csv = csv.missing(match missing {
                MissingArg::Mean => Missing::Mean,
                MissingArg::Zero => Missing::Zero,
                MissingArg::Drop => Missing::Drop,
            });
        }
        csv
    }
}

fn npz(path: &Path) -> Result<Loaded> {
    let data = load_npz(path)?;
    let train = Part::from_set(data.train);
    // [height, width] and [height, width, channels].
    let images = matches!(&train.inputs[..], [(_, x)] if matches!(x.dims().len(), 2 | 3));
    let (validation, test) = (data.validation.map(Part::from_set), data.test.map(Part::from_set));
    Ok(Loaded { validation, test, images, arrays: true, ..Loaded::of(train) })
}

fn table(path: &Path, request: &Request<'_>) -> Result<Loaded> {
    let mut csv = request.args.csv();
    match request.table {
        Some(encoding) => csv = csv.encoding(encoding.clone()),
        None => {
            if request.inputs.len() > 1 {
                csv = csv.inputs(request.inputs.clone());
            }
            if request.inputs.len() > 1 || request.outputs.len() > 1 {
                csv = csv.outputs(request.outputs.clone());
            }
        }
    }
    let table = csv.load(path)?;
    let notices = match table.dropped {
        0 => vec![],
        n => vec![format!("{n} rows with missing values left out")],
    };
    let classes = match &table.classes[..] {
        [classes] if !classes.is_empty() => Some(classes.clone()),
        _ => None,
    };
    let words = table.classes.iter().map(|classes| !classes.is_empty()).collect();
    let train = Part::from_set(table.set);
    Ok(Loaded {
        words,
        classes,
        table: Some(table.encoding),
        notices,
        arrays: true,
        ..Loaded::of(train)
    })
}

/// A directory with a directory per class; with `train` and `test` (and `val`) in it, those have them.
fn folder(path: &Path, reading: Reading) -> Result<Loaded> {
    let open = |path: &Path| -> Result<ImageFolder> {
        let folder = ImageFolder::open(path)?;
        let sized = folder.target_size(reading.size.height, reading.size.width)?;
        Ok(sized.color_mode(reading.color))
    };
    let part = |folder: ImageFolder, room: usize| -> Result<Part> {
        let labels = folder.labels();
        let images = match reading.shared {
            true => Feed::files(folder, room),
            false => Feed::Memory(folder.load()?.0),
        };
        Ok(Part::single(images, labels))
    };
    let [train, test] = ["train", "test"].map(|name| path.join(name));
    let names = ["val", "valid", "validation"].map(|name| path.join(name));
    let validation = names.iter().find(|path| path.is_dir()).unwrap_or(&names[0]).clone();
    let split = train.is_dir() && (test.is_dir() || validation.is_dir());
    if !split {
        let folder = open(path)?;
        let classes = Some(folder.class_names().to_vec());
        return Ok(Loaded { classes, images: true, ..Loaded::of(part(folder, room())?) });
    }
    let train = open(&train)?;
    let classes = train.class_names().to_vec();
    let other = |place: &Path| -> Result<Option<Part>> {
        if !place.is_dir() {
            return Ok(None);
        }
        let folder = open(place)?;
        if folder.class_names() != classes {
            let received = folder.class_names();
            bail!("expected the classes of train in {}, received {received:?}", place.display());
        }
        part(folder, room() / 3).map(Some)
    };
    let (validation, test) = (other(&validation)?, other(&test)?);
    let train = part(train, room() / 3)?;
    let classes = Some(classes);
    Ok(Loaded { validation, test, classes, images: true, ..Loaded::of(train) })
}

/// The last rows; where every class has its own, the last of each class.
fn held_back(part: &Part, share: f64, by_class: bool) -> (Vec<usize>, Vec<usize>) {
    // As Keras counts.
    let first = |count: usize| (count as f64 * (1.0 - share)).floor() as usize;
    let Some(labels) = part.classes().filter(|_| by_class) else {
        let first = first(part.rows());
        return ((0..first).collect(), (first..part.rows()).collect());
    };
    let most = labels.iter().max().map_or(0, |most| usize::try_from(*most).unwrap_or(0));
    let mut counts = vec![0usize; most + 1];
    labels.iter().for_each(|class| counts[*class as usize] += 1);
    let mut left: Vec<usize> = counts.into_iter().map(first).collect();
    (0..part.rows()).partition(|row| {
        let left = &mut left[labels[*row] as usize];
        let stays = *left > 0;
        *left = left.saturating_sub(1);
        stays
    })
}

/// Cuts a share off some rows by a flag.
fn cut(flag: &str, part: &mut Part, share: f64, by_class: bool) -> Result<Part> {
    if !(share > 0.0 && share < 1.0) {
        bail!("{flag}: expected a share between 0 and 1, received {share}");
    }
    let (kept, held) = held_back(part, share, by_class);
    if kept.is_empty() || held.is_empty() {
        bail!(
            "{flag}: expected a share that leaves rows on both sides, received {share} of {} rows",
            part.rows()
        );
    }
    let (train, other) = (part.pick(&kept)?, part.pick(&held)?);
    if let (Some(train), Some(other)) = (train.classes(), other.classes())
        && let Some(class) = other.iter().find(|class| !train.contains(class))
        && train.iter().collect::<std::collections::BTreeSet<_>>().len() < 1000
    {
        tracing::warn!(
            "{flag}: the last rows have the target {class}, which no training row has; are the rows sorted?"
        );
    }
    *part = train;
    Ok(other)
}

impl Loaded {
    /// Gives classes the numbers that a model knows their names by. Whether all of them are known.
    pub fn align(&mut self, known: &[String]) -> Result<bool> {
        let Some(names) = &self.classes else { return Ok(true) };
        // Numbers are no names.
        if known.is_empty() || known == numbered(known.len()) || known.starts_with(names) {
            return Ok(true);
        }
        let find = |name: &String| known.iter().position(|known| known == name);
        let Some(numbers) = names.iter().map(find).collect::<Option<Vec<usize>>>() else {
            return Ok(false);
        };
        let parts = [Some(&mut self.train), self.validation.as_mut(), self.test.as_mut()];
        for part in parts.into_iter().flatten() {
            let renumbered = part.classes().map(|labels| {
                let number = |label: &i32| numbers.get(*label as usize).map_or(-1, |n| *n as i32);
                labels.iter().map(number).collect::<Vec<i32>>()
            });
            if let (Some(labels), [(_, y)]) = (renumbered, &mut part.targets[..]) {
                *y = Tensor::new([labels.len()], labels)?;
            }
        }
        self.classes = Some(known.to_vec());
        Ok(true)
    }

    /// Holds back the rows that were asked for.
    pub fn split(mut self, test: Option<f64>, validation: Option<f64>) -> Result<Loaded> {
        let by_class = self.classes.is_some() && self.images && !self.by_name;
        let of_each = if by_class { "the last of each class" } else { "the last rows" };
        if let Some(share) = test.filter(|share| *share != 0.0) {
            if self.test.is_some() {
                bail!("--test-split: expected data without test rows of their own");
            }
            self.test = Some(cut("--test-split", &mut self.train, share, by_class)?);
            self.notices.push(format!("test on {of_each}, {share} of all"));
        }
        if let Some(share) = validation.filter(|share| *share != 0.0) {
            if self.validation.is_some() {
                bail!("--validation-split: expected data without validation rows of their own");
            }
            let train = self.train.rows();
            self.validation = Some(cut("--validation-split", &mut self.train, share, by_class)?);
            self.notices.push(format!("validate on {of_each} of the {train} training rows"));
        }
        Ok(self)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn part(labels: Vec<i32>) -> Part {
        let rows = labels.len();
        let x: Vec<f32> = (0..rows).map(|i| i as f32).collect();
        let x = Feed::Memory(Tensor::new([rows, 1], x).unwrap().into());
        Part::single(x, Tensor::new([rows], labels).unwrap())
    }

    fn values(part: &Part) -> Vec<f32> {
        part.inputs[0].1.first(part.rows()).unwrap().unwrap().f32().unwrap().to_vec()
    }

    #[test]
    fn no_row_is_held_back_unless_asked_for() {
        let loaded = Loaded::of(part((0..20).map(|i| i % 2).collect()));
        let loaded = loaded.split(None, None).unwrap();
        assert_eq!(loaded.train.rows(), 20);
        assert!(loaded.test.is_none() && loaded.validation.is_none());
        let loaded = loaded.split(Some(0.2), Some(0.25)).unwrap();
        assert_eq!(values(loaded.test.as_ref().unwrap()), [16.0, 17.0, 18.0, 19.0]);
        assert_eq!(values(loaded.validation.as_ref().unwrap()), [12.0, 13.0, 14.0, 15.0]);
        assert_eq!(loaded.train.rows(), 12);
    }

    #[test]
    fn a_directory_gives_the_last_of_each_class() {
        let train = part([vec![0; 10], vec![1; 5]].concat());
        let loaded = Loaded { classes: Some(numbered(2)), images: true, ..Loaded::of(train) };
        let loaded = loaded.split(Some(0.2), None).unwrap();
        assert_eq!(values(loaded.test.as_ref().unwrap()), [8.0, 9.0, 14.0]);
    }

    #[test]
    fn classes_are_matched_by_name_and_not_by_number() {
        let known: Vec<String> = ["cat", "dog", "mouse"].map(String::from).to_vec();
        let classes = Some(vec!["dog".to_string(), "mouse".to_string()]);
        let mut loaded = Loaded { classes, ..Loaded::of(part(vec![0, 1, 1])) };
        assert!(loaded.align(&known).unwrap());
        assert_eq!(loaded.train.classes().unwrap(), [1, 2, 2]);
        assert_eq!(loaded.classes, Some(known.clone()));
        let classes = Some(vec!["cat".to_string(), "wolf".to_string()]);
        let mut loaded = Loaded { classes, ..Loaded::of(part(vec![0, 1])) };
        assert!(!loaded.align(&known).unwrap());
        assert!(loaded.align(&numbered(3)).unwrap(), "numbers are no names");
    }

    #[test]
    fn shares_that_leave_nothing_are_refused() {
        for share in [1.0, -0.1, f64::NAN, 0.99] {
            let error = Loaded::of(part(vec![0; 3])).split(Some(share), None).err().unwrap();
            assert!(error.to_string().starts_with("--test-split: expected a share"), "{error}");
        }
    }
}
