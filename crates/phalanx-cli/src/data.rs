//! Loads and splits `--data`: a dataset by name, a directory of images, an `.npz` or a `.csv`.

use crate::args::{CategoriesArg, DataArgs, MissingArg, Size};
use crate::samples::{SampleSource, cache_budget};
use anyhow::{Context, Result, bail};
use phalanx::Error;
use phalanx::data::ColorMode;
use phalanx::datasets::{Categories, Csv, Missing, SampleSet, TableEncoding, load_npz};
use phalanx::prelude::*;
use phalanx::text::{part, shown};
use std::path::Path;

/// Maximum number of classes.
pub const MAX_CLASSES: usize = 1 << 16;

/// The size of images if neither the model nor the user gives one.
const DEFAULT_IMAGE_SIZE: Size = Size { height: 28, width: 28 };

/// Rows of samples before preprocessing: inputs and targets by name.
#[derive(Clone)]
pub struct NamedSamples {
    /// The inputs by name.
    pub inputs: Vec<(String, SampleSource)>,
    /// The targets by name.
    pub targets: Vec<(String, Tensor)>,
    /// A weight for each sample, if any.
    pub sample_weight: Option<Vec<f32>>,
    /// The weights of outputs by name, for each sample or each of its positions; an unnamed entry is for all outputs.
    pub output_weights: Vec<(String, Tensor)>,
}

/// Data before preprocessing.
pub struct LoadedData {
    /// Training rows.
    pub train: NamedSamples,
    /// Validation rows, if any.
    pub validation: Option<NamedSamples>,
    /// Test rows, if any.
    pub test: Option<NamedSamples>,
    /// The class names in index order, if the data define them: from a dataset or directory, or from a text column of a
    /// table. `None` for arrays, whose integers may or may not be classes.
    pub classes: Option<Vec<String>>,
    /// Whether the samples are images (height, width, channels).
    pub images: bool,
    /// Whether this is a dataset by name, with test rows.
    pub by_name: bool,
    /// Whether the samples are the user's arrays, which are reshaped or resized only on request.
    pub arrays: bool,
    /// For each target, whether it is a text column.
    pub text_targets: Vec<bool>,
    /// The encoding of a table's columns.
    pub table: Option<TableEncoding>,
    /// Notes on how the rows were changed, for the header.
    pub notices: Vec<String>,
}

/// How the images of a directory are read.
#[derive(Clone, Copy)]
pub struct ImageOptions {
    size: Size,
    color: ColorMode,
    /// Whether files are read on demand, so that each worker reads only its own rows.
    lazy: bool,
}

impl ImageOptions {
    /// In color or grayscale, in the default size of the network unless `size` is given.
    pub fn for_network(default: &[usize], size: Option<Size>, grayscale: bool) -> ImageOptions {
        let default = match *default {
            [height, width, ..] => Size { height, width },
            _ => DEFAULT_IMAGE_SIZE,
        };
        let color = if grayscale { ColorMode::Grayscale } else { ColorMode::Rgb };
        ImageOptions { size: size.unwrap_or(default), color, lazy: false }
    }

    /// For this number of workers.
    pub fn with_workers(self, workers: usize) -> ImageOptions {
        ImageOptions { lazy: workers > 1, ..self }
    }

    /// As a model takes them: also in grayscale if its input has one channel.
    pub fn for_model(input: &[usize], size: Option<Size>, grayscale: bool) -> ImageOptions {
        ImageOptions::for_network(input, size, grayscale || matches!(input, [_, _, 1]))
    }
}

/// The names under which tables have the inputs of a model.
#[derive(Clone, Debug, Default)]
pub struct InputNames {
    /// The names of the input layers.
    pub layers: Vec<String>,
    /// The keys or paths of the inputs, if the model takes a dict or nested structure.
    pub paths: Option<Vec<String>>,
    /// The names of the input layers that take strings.
    pub text: Vec<String>,
}

impl InputNames {
    /// A reader with the names that the columns of a table have: the keys or paths if each has a column, else the names of
    /// the input layers.
    ///
    /// # Errors
    /// A file that is not a table.
    pub fn of_table(&self, csv: Csv, path: &Path) -> Result<Csv> {
        let paths = match &self.paths {
            Some(paths) if csv.has_columns_for(path, paths)? => paths,
            _ => return Ok(csv.inputs(self.layers.clone()).text_inputs(self.text.clone())),
        };
        let is_text = self.layers.iter().map(|name| self.text.contains(name));
        let text = paths.iter().zip(is_text).filter(|(_, text)| *text);
        let text: Vec<String> = text.map(|(path, _)| path.clone()).collect();
        Ok(csv.inputs(paths.clone()).text_inputs(text))
    }
}

/// The data to load, and the inputs and outputs they are for.
pub struct LoadRequest<'a> {
    /// A dataset's name, or a path.
    pub name: &'a str,
    /// How to read images.
    pub image_options: ImageOptions,
    /// How to read tables.
    pub args: &'a DataArgs,
    /// The model's inputs.
    pub inputs: InputNames,
    /// The names of the model's outputs.
    pub outputs: Vec<String>,
    /// The encoding of the table that the model was trained on.
    pub table: Option<&'a TableEncoding>,
}

/// Names for `count` classes that have none: their indices.
pub fn numbered_classes(count: usize) -> Vec<String> {
    (0..count).map(|class| class.to_string()).collect()
}

/// The class names for a message, shortened.
pub fn format_classes(classes: &[String]) -> String {
    part(format!("{classes:?}")).to_string()
}

/// Loads a dataset by name, or the files at a path.
pub fn load(request: &LoadRequest<'_>) -> Result<LoadedData> {
    let name = request.name;
    let path = Path::new(name);
    let extension = path.extension().map(|e| e.to_string_lossy().to_lowercase());
    if extension.as_deref() != Some("csv") {
        request.args.check_no_table(name)?;
    }
    if datasets::NAMES.contains(&datasets::canonical(name)) {
        let split = datasets::load(name)?;
        let (train, test) = (NamedSamples::of(split.train), Some(NamedSamples::of(split.test)));
        let classes = Some(datasets::class_names(name)?);
        return Ok(LoadedData {
            test,
            classes,
            images: true,
            by_name: true,
            ..LoadedData::of(train)
        });
    }
    let loaded = match extension.as_deref() {
        Some("npz") => load_npz_file(path),
        Some("csv") => load_table(path, request),
        _ if path.is_dir() => load_folder(path, request.image_options),
        _ => {
            let known = datasets::NAMES.map(String::from).into();
            let unknown = Error::Unknown { kind: "dataset", name: name.into(), known };
            bail!("--data: {unknown}, a directory of images, an .npz or a .csv")
        }
    };
    loaded.with_context(|| format!("--data {}", shown(name)))
}

impl LoadedData {
    /// Training rows without further information.
    fn of(train: NamedSamples) -> LoadedData {
        let (validation, test, classes, table) = (None, None, None, None);
        let (images, by_name, arrays, notices) = (false, false, false, vec![]);
        let text_targets = vec![];
        LoadedData {
            train,
            validation,
            test,
            classes,
            images,
            by_name,
            arrays,
            text_targets,
            table,
            notices,
        }
    }
}

impl NamedSamples {
    fn of((x, y): (phalanx::data::Samples, Tensor)) -> NamedSamples {
        NamedSamples::single(SampleSource::Memory(x), y)
    }

    fn single(x: SampleSource, y: Tensor) -> NamedSamples {
        let (inputs, targets) = (vec![(String::new(), x)], vec![(String::new(), y)]);
        NamedSamples { inputs, targets, sample_weight: None, output_weights: vec![] }
    }

    fn from_set(set: SampleSet) -> NamedSamples {
        let inputs =
            set.inputs.into_iter().map(|(name, x)| (name, SampleSource::Memory(x))).collect();
        let SampleSet { targets, sample_weight, output_weights, .. } = set;
        NamedSamples { inputs, targets, sample_weight, output_weights }
    }

    /// Number of samples.
    pub fn rows(&self) -> usize {
        self.inputs.first().map_or(0, |(_, x)| x.rows())
    }

    /// These rows, in this order.
    pub fn select_rows(&self, rows: &[usize]) -> Result<NamedSamples> {
        let pick = |(name, x): &(String, SampleSource)| Ok((name.clone(), x.select_rows(rows)?));
        let inputs = self.inputs.iter().map(pick).collect::<Result<_>>()?;
        let pick = |(name, y): &(String, Tensor)| (name.clone(), y.select_rows(rows));
        let targets = self.targets.iter().map(pick).collect();
        let output_weights = self.output_weights.iter().map(pick).collect();
        let weight = |weights: &Vec<f32>| rows.iter().map(|row| weights[*row]).collect();
        let sample_weight = self.sample_weight.as_ref().map(weight);
        Ok(NamedSamples { inputs, targets, sample_weight, output_weights })
    }

    /// The class of every row, if there is one target with one integer per row.
    fn classes(&self) -> Option<&[i32]> {
        match &self.targets[..] {
            [(_, y)] if y.row_len() == 1 => y.i32(),
            _ => None,
        }
    }
}

impl DataArgs {
    /// Rejects flags that apply only to tables.
    fn check_no_table(&self, name: &str) -> Result<()> {
        match self.table_flag() {
            Some(flag) => bail!("{flag}: expected a .csv as --data, received {name}"),
            None => Ok(()),
        }
    }

    /// The first flag that controls how a table is read, if any.
    pub fn table_flag(&self) -> Option<&'static str> {
        let flags = [
            ("--label", !self.label.is_empty()),
            ("--sample-weight", self.sample_weight.is_some()),
            ("--categories", self.categories.is_some()),
            ("--missing", self.missing.is_some()),
            ("--no-header", self.no_header),
        ];
        flags.iter().find(|(_, given)| *given).map(|(flag, _)| *flag)
    }

    /// The CSV reader that these arguments describe.
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

fn load_npz_file(path: &Path) -> Result<LoadedData> {
    let data = load_npz(path)?;
    let train = NamedSamples::from_set(data.train);
    // Images are [height, width] or [height, width, channels].
    let images = matches!(&train.inputs[..], [(_, x)] if matches!(x.dims().len(), 2 | 3));
    let (validation, test) =
        (data.validation.map(NamedSamples::from_set), data.test.map(NamedSamples::from_set));
    Ok(LoadedData { validation, test, images, arrays: true, ..LoadedData::of(train) })
}

fn load_table(path: &Path, request: &LoadRequest<'_>) -> Result<LoadedData> {
    let mut csv = request.args.csv();
    match request.table {
        Some(encoding) => csv = csv.encoding(encoding.clone()),
        None => {
            let inputs = &request.inputs;
            if inputs.layers.len() > 1 {
                csv = inputs.of_table(csv, path)?;
            } else if !inputs.text.is_empty() {
                csv = csv.text_inputs([String::new()]);
            }
            if inputs.layers.len() > 1 || request.outputs.len() > 1 {
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
    let text_targets = table.classes.iter().map(|classes| !classes.is_empty()).collect();
    let train = NamedSamples::from_set(table.set);
    Ok(LoadedData {
        text_targets,
        classes,
        table: Some(table.encoding),
        notices,
        arrays: true,
        ..LoadedData::of(train)
    })
}

/// Loads a directory with one sub-directory per class, or with `train` and `test` or `val` directories that contain them.
fn load_folder(path: &Path, image_options: ImageOptions) -> Result<LoadedData> {
    let open = |path: &Path| -> Result<ImageFolder> {
        let folder = ImageFolder::open(path)?;
        let sized = folder.target_size(image_options.size.height, image_options.size.width)?;
        Ok(sized.color_mode(image_options.color))
    };
    let part = |folder: ImageFolder, budget: usize| -> Result<NamedSamples> {
        let labels = folder.labels();
        let images = match image_options.lazy {
            true => SampleSource::files(folder, budget),
            false => SampleSource::Memory(folder.load()?.0),
        };
        Ok(NamedSamples::single(images, labels))
    };
    let [train, test] = ["train", "test"].map(|name| path.join(name));
    let candidates = ["val", "valid", "validation"].map(|name| path.join(name));
    let validation = candidates.iter().find(|path| path.is_dir()).unwrap_or(&candidates[0]).clone();
    let split = train.is_dir() && (test.is_dir() || validation.is_dir());
    if !split {
        let folder = open(path)?;
        let classes = Some(folder.class_names().to_vec());
        return Ok(LoadedData {
            classes,
            images: true,
            ..LoadedData::of(part(folder, cache_budget())?)
        });
    }
    let train = open(&train)?;
    let classes = train.class_names().to_vec();
    let held_out = |path: &Path| -> Result<Option<NamedSamples>> {
        if !path.is_dir() {
            return Ok(None);
        }
        let folder = open(path)?;
        if folder.class_names() != classes {
            let received = folder.class_names();
            bail!("expected the classes of train in {}, received {received:?}", path.display());
        }
        part(folder, cache_budget() / 3).map(Some)
    };
    let (validation, test) = (held_out(&validation)?, held_out(&test)?);
    let train = part(train, cache_budget() / 3)?;
    let classes = Some(classes);
    Ok(LoadedData { validation, test, classes, images: true, ..LoadedData::of(train) })
}

/// The rows to keep and the rows to hold out: the last rows, or the last of each class if `by_class`.
fn split_rows(part: &NamedSamples, share: f64, by_class: bool) -> (Vec<usize>, Vec<usize>) {
    // Rounds as Keras does.
    let first = |count: usize| (count as f64 * (1.0 - share)).floor() as usize;
    let Some(labels) = part.classes().filter(|_| by_class) else {
        let first = first(part.rows());
        return ((0..first).collect(), (first..part.rows()).collect());
    };
    let last_class = labels.iter().max().map_or(0, |max| usize::try_from(*max).unwrap_or(0));
    let mut counts = vec![0usize; last_class + 1];
    labels.iter().for_each(|class| counts[*class as usize] += 1);
    let mut left: Vec<usize> = counts.into_iter().map(first).collect();
    (0..part.rows()).partition(|row| {
        let left = &mut left[labels[*row] as usize];
        let stays = *left > 0;
        *left = left.saturating_sub(1);
        stays
    })
}

/// Takes a fraction of the rows out of `part`, as requested by `flag`.
fn take_share(
    flag: &str,
    part: &mut NamedSamples,
    share: f64,
    by_class: bool,
) -> Result<NamedSamples> {
    if !(share > 0.0 && share < 1.0) {
        bail!("{flag}: expected a share between 0 and 1, received {share}");
    }
    let (kept, held_out) = split_rows(part, share, by_class);
    if kept.is_empty() || held_out.is_empty() {
        bail!(
            "{flag}: expected a share that leaves rows on both sides, received {share} of {} rows",
            part.rows()
        );
    }
    let (train, other) = (part.select_rows(&kept)?, part.select_rows(&held_out)?);
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

impl LoadedData {
    /// Renumbers the classes to match the class names of a model. Returns whether the model has all of them.
    pub fn align_classes(&mut self, known: &[String]) -> Result<bool> {
        let Some(names) = &self.classes else { return Ok(true) };
        // Indices are not names, and match any classes.
        if known.is_empty() || known == numbered_classes(known.len()) || known.starts_with(names) {
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

    /// Holds out the requested test and validation rows.
    pub fn hold_out(mut self, test: Option<f64>, validation: Option<f64>) -> Result<LoadedData> {
        let by_class = self.classes.is_some() && self.images && !self.by_name;
        let which = if by_class { "the last of each class" } else { "the last rows" };
        if let Some(share) = test.filter(|share| *share != 0.0) {
            if self.test.is_some() {
                bail!("--test-split: expected data without test rows of their own");
            }
            self.test = Some(take_share("--test-split", &mut self.train, share, by_class)?);
            self.notices.push(format!("test on {which}, {share} of all"));
        }
        if let Some(share) = validation.filter(|share| *share != 0.0) {
            if self.validation.is_some() {
                bail!("--validation-split: expected data without validation rows of their own");
            }
            let train = self.train.rows();
            self.validation =
                Some(take_share("--validation-split", &mut self.train, share, by_class)?);
            self.notices.push(format!("validate on {which} of the {train} training rows"));
        }
        Ok(self)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn part(labels: Vec<i32>) -> NamedSamples {
        let rows = labels.len();
        let x: Vec<f32> = (0..rows).map(|i| i as f32).collect();
        let x = SampleSource::Memory(Tensor::new([rows, 1], x).unwrap().into());
        NamedSamples::single(x, Tensor::new([rows], labels).unwrap())
    }

    fn values(part: &NamedSamples) -> Vec<f32> {
        part.inputs[0].1.first(part.rows()).unwrap().unwrap().f32().unwrap().to_vec()
    }

    #[test]
    fn no_row_is_held_out_unless_requested() {
        let loaded = LoadedData::of(part((0..20).map(|i| i % 2).collect()));
        let loaded = loaded.hold_out(None, None).unwrap();
        assert_eq!(loaded.train.rows(), 20);
        assert!(loaded.test.is_none() && loaded.validation.is_none());
        let loaded = loaded.hold_out(Some(0.2), Some(0.25)).unwrap();
        assert_eq!(values(loaded.test.as_ref().unwrap()), [16.0, 17.0, 18.0, 19.0]);
        assert_eq!(values(loaded.validation.as_ref().unwrap()), [12.0, 13.0, 14.0, 15.0]);
        assert_eq!(loaded.train.rows(), 12);
    }

    #[test]
    fn a_directory_holds_out_the_last_of_each_class() {
        let train = part([vec![0; 10], vec![1; 5]].concat());
        let loaded = LoadedData {
            classes: Some(numbered_classes(2)),
            images: true,
            ..LoadedData::of(train)
        };
        let loaded = loaded.hold_out(Some(0.2), None).unwrap();
        assert_eq!(values(loaded.test.as_ref().unwrap()), [8.0, 9.0, 14.0]);
    }

    #[test]
    fn classes_are_matched_by_name_and_not_by_index() {
        let known: Vec<String> = ["cat", "dog", "mouse"].map(String::from).to_vec();
        let classes = Some(vec!["dog".to_string(), "mouse".to_string()]);
        let mut loaded = LoadedData { classes, ..LoadedData::of(part(vec![0, 1, 1])) };
        assert!(loaded.align_classes(&known).unwrap());
        assert_eq!(loaded.train.classes().unwrap(), [1, 2, 2]);
        assert_eq!(loaded.classes, Some(known.clone()));
        let classes = Some(vec!["cat".to_string(), "wolf".to_string()]);
        let mut loaded = LoadedData { classes, ..LoadedData::of(part(vec![0, 1])) };
        assert!(!loaded.align_classes(&known).unwrap());
        assert!(loaded.align_classes(&numbered_classes(3)).unwrap(), "indices match any classes");
    }

    #[test]
    fn shares_that_leave_no_rows_are_rejected() {
        for share in [1.0, -0.1, f64::NAN, 0.99] {
            let error = LoadedData::of(part(vec![0; 3])).hold_out(Some(share), None).err().unwrap();
            assert!(error.to_string().starts_with("--test-split: expected a share"), "{error}");
        }
    }
}
