//! Data preprocessed for a model.

mod adapt;
mod checks;
mod part;

pub use checks::check_shape;
pub use part::PreparedPart;

use crate::args::{DataArgs, Size};
use crate::data::{self, ImageOptions, LoadRequest, LoadedData, NamedSamples};
use crate::model_file::LossSource;
use crate::model_spec::{ModelKind, ModelSpec};
use crate::preprocessing::{Preprocessing, check_sample_size};
use crate::samples::SampleSource;
use crate::targets::class_numbers;
use adapt::{file_preprocessing, network_preprocessing};
use anyhow::{Context, Result, bail};
use checks::{check_targets, inputs_by_name, targets_by_name, weights_by_name};
use phalanx::prelude::*;
use phalanx::text::shown;

/// Data preprocessed for a model.
pub struct PreparedData {
    /// Training rows.
    pub train: PreparedPart,
    /// Validation rows, if any.
    pub validation: Option<PreparedPart>,
    /// Test rows, if any.
    pub test: Option<PreparedPart>,
    /// The class of each row of [`PreparedData::evaluated`], if each has one.
    pub labels: Option<Vec<i32>>,
    /// The name or path of the data.
    pub name: String,
    /// The first input of the same rows before preprocessing, for plots.
    pub raw_inputs: SampleSource,
    /// The preprocessing that was applied.
    pub preprocessing: Preprocessing,
    /// The losses and their targets.
    pub objective: LossSpec,
    /// Notes on how the rows were changed, for the header.
    pub notices: Vec<String>,
    /// The dimensions of a sample before preprocessing; empty for several inputs.
    pub raw_dims: Vec<usize>,
    /// Whether the model was trained on these data, as recorded in its file.
    pub trained_on: bool,
}

/// The losses of a model, and the targets that they compare its outputs with.
pub struct LossSpec {
    /// Where the loss comes from.
    pub source: LossSource,
    /// Keras' class names of the losses.
    pub losses: Vec<&'static str>,
    /// Descriptions of the targets of each output.
    pub target_forms: Vec<String>,
}

/// The requested data, and how to read and split them.
pub struct DataRequest<'a> {
    /// A dataset's name, or a path.
    pub name: &'a str,
    /// How to read them.
    pub args: &'a DataArgs,
    /// The size to resize images to.
    pub size: Option<Size>,
    /// Whether to read images as grayscale.
    pub grayscale: bool,
    /// The fraction of the training rows to validate on.
    pub validation_split: Option<f64>,
}

impl<'a> DataRequest<'a> {
    /// Data by name, with default options.
    pub fn plain(name: &'a str, args: &'a DataArgs) -> DataRequest<'a> {
        DataRequest { name, args, size: None, grayscale: false, validation_split: None }
    }
}

impl PreparedData {
    /// The rows to evaluate: the test rows, or the training rows if there are none.
    pub fn evaluated(&self) -> &PreparedPart {
        self.test.as_ref().unwrap_or(&self.train)
    }
}

/// Loads data for a trained model, with its recorded preprocessing.
pub fn prepare_for_trained(
    spec: &ModelSpec,
    preprocessing: &Preprocessing,
    request: &DataRequest<'_>,
    workers: &MultiWorkerMirroredStrategy,
) -> Result<PreparedData> {
    let image_options = ImageOptions::for_model(&preprocessing.input, None, false);
    let load_request = load_request(
        spec,
        request,
        image_options.with_workers(workers.num_workers()),
        preprocessing.table.as_ref(),
    );
    if let (Some(flag), Some(_)) = (request.args.table_flag(), &preprocessing.table) {
        bail!(
            "{flag}: the model records how its table was read; another encoding would change its inputs"
        );
    }
    let mut loaded = data::load(&load_request)?;
    if let (Some(classes), max @ 1..) = (&loaded.classes, preprocessing.classes.len())
        && classes.len() > max
    {
        let (name, received) = (request.name, classes.len());
        bail!("--data {}: expected at most {max} classes, received {received}", shown(name));
    }
    if !loaded.align_classes(&preprocessing.classes)? {
        let (expected, received) = (
            data::format_classes(&preprocessing.classes),
            data::format_classes(loaded.classes.as_deref().unwrap_or_default()),
        );
        bail!(
            "--data {}: expected the classes of the model, {expected}, received {received}",
            shown(request.name)
        );
    }
    // By default the rows that were held out in training.
    let recorded = preprocessing
        .test_split
        .filter(|_| preprocessing.was_trained_on(request.name) && loaded.test.is_none());
    let loaded = loaded.hold_out(request.args.test_split.or(recorded), None)?;
    let mut preprocessing = preprocessing.clone().rescaled(request.args.rescale);
    if give_sizes(spec, &loaded)? && loaded.arrays {
        preprocessing.input = spec.dims(&preprocessing.input).concat();
    }
    finish(spec, preprocessing, request, loaded)
}

/// Gives the sizes of the data to a model that leaves some open. Returns whether it does.
fn give_sizes(spec: &ModelSpec, loaded: &LoadedData) -> Result<bool> {
    let ModelKind::File(file) = &spec.kind else { return Ok(false) };
    if !file.has_open_sizes() {
        return Ok(false);
    }
    let inputs = inputs_by_name(spec, &loaded.train.inputs)?;
    let dims: Vec<Vec<usize>> = inputs.iter().map(|source| source.dims()).collect();
    file.give_sizes(&dims)?;
    Ok(true)
}

/// Loads data and adapts them and the model to each other. A network by name takes its input and classes from the
/// data. A model file has fixed dimensions, and images are resized to them.
pub fn prepare(
    spec: &ModelSpec,
    request: &DataRequest<'_>,
    workers: &MultiWorkerMirroredStrategy,
) -> Result<PreparedData> {
    let &DataRequest { name, args, size, grayscale, validation_split } = request;
    let image_options = match &spec.kind {
        ModelKind::Network(network) => {
            ImageOptions::for_network(&network.default_input(), size, grayscale)
        }
        ModelKind::File(file) => {
            let recorded =
                spec.preprocessing.as_ref().filter(|recorded| !recorded.input.is_empty());
            let input =
                recorded.map_or_else(|| file.image_dims(), |recorded| recorded.input.clone());
            ImageOptions::for_model(&input, size, grayscale)
        }
    };
    let image_options = image_options.with_workers(workers.num_workers());
    // A table is encoded as in the earlier training unless flags say otherwise.
    let recorded = spec.preprocessing.as_ref().filter(|_| args.table_flag().is_none());
    let table = recorded.and_then(|recorded| recorded.table.as_ref());
    let mut loaded = data::load(&load_request(spec, request, image_options, table))?;
    if !loaded.images && (size.is_some() || grayscale) {
        let flag = if size.is_some() { "--image-size" } else { "--grayscale" };
        bail!("{flag}: expected images, received --data {}", shown(name));
    }
    if let ModelKind::File(file) = &spec.kind
        && file.has_open_sizes()
        && spec.preprocessing.is_none()
        && size.is_none()
        && loaded.images
        && !loaded.arrays
    {
        bail!(
            "--image-size: expected the size of the images, which the model leaves open: {}",
            file.declared_shapes()
        );
    }
    give_sizes(spec, &loaded).with_context(|| format!("--data {}", shown(name)))?;
    if grayscale && loaded.arrays {
        bail!("--grayscale: expected a directory of images, received --data {}", shown(name));
    }
    if let (ModelKind::File(_), Some(recorded)) = (&spec.kind, &spec.preprocessing)
        && !loaded.align_classes(&recorded.classes)?
    {
        loaded
            .notices
            .push("the classes of the data replace those that the model was trained on".into());
    }
    if let Some(classes) = loaded.classes.as_ref().filter(|classes| classes.len() < 2) {
        let received = data::format_classes(classes);
        bail!("--data {}: expected two classes or more, received {received}", shown(name));
    }
    // The default validation split applies only to the datasets of the tutorials.
    let default_split = spec.default_validation_split().filter(|_| loaded.by_name);
    loaded = loaded.hold_out(args.test_split, validation_split.or(default_split))?;
    let preprocessing = match &spec.kind {
        ModelKind::Network(network) => {
            network_preprocessing(*network, spec, &loaded, request, workers)
        }
        ModelKind::File(file) => file_preprocessing(file, spec, &loaded, request),
    };
    let preprocessing = preprocessing.with_context(|| format!("--data {}", shown(name)))?;
    let (data, test_split) = (name.into(), args.test_split.filter(|share| *share != 0.0));
    let resized = size.is_some() && loaded.arrays;
    let preprocessing =
        Preprocessing { data, test_split, table: loaded.table.clone(), resized, ..preprocessing };
    finish(spec, preprocessing, request, loaded)
}

fn load_request<'a>(
    spec: &ModelSpec,
    request: &DataRequest<'a>,
    image_options: ImageOptions,
    table: Option<&'a phalanx::datasets::TableEncoding>,
) -> LoadRequest<'a> {
    let (inputs, (_, outputs)) = (spec.table_inputs(), spec.io_names());
    let (name, args) = (request.name, request.args);
    LoadRequest { name, image_options, args, inputs, outputs, table }
}

/// The class of each row, if each has one.
fn labels_of(part: &NamedSamples, preprocessing: &Preprocessing) -> Option<Vec<i32>> {
    match &part.targets[..] {
        [(_, y)] if !preprocessing.classes.is_empty() => {
            class_numbers(y).ok().and_then(|t| Some(t.values.i32()?.to_vec()))
        }
        _ => None,
    }
}

/// Preprocesses the loaded data.
fn finish(
    spec: &ModelSpec,
    mut preprocessing: Preprocessing,
    request: &DataRequest<'_>,
    loaded: LoadedData,
) -> Result<PreparedData> {
    let name = request.name;
    let named = || format!("--data {}", shown(name));
    check_sample_size(&preprocessing.input).with_context(named)?;
    let (loss_source, losses) = spec.loss_source(request.args.loss.as_deref(), &loaded)?;
    if let ModelKind::File(file) = &spec.kind
        && preprocessing.classes.is_empty()
    {
        preprocessing.classes = file.class_names(&losses, loaded.classes.as_ref());
    }
    check_targets(spec, &losses, &loaded, &loss_source).with_context(named)?;
    let classes = loaded.classes.as_ref().map(Vec::len);
    let checks_shape = loaded.arrays
        && matches!(&spec.kind, ModelKind::File(_) if preprocessing.network.is_none() && !preprocessing.resized);
    let mut target_forms = vec![];
    let mut convert = |part: &NamedSamples| -> Result<PreparedPart> {
        let given = inputs_by_name(spec, &part.inputs)?;
        let dims = spec.dims(&preprocessing.input);
        // A single input may be reshaped, resized and scaled; several inputs are not changed.
        let inputs = match (&given[..], &dims[..]) {
            ([one], [dims]) => {
                if checks_shape {
                    check_shape(&one.dims(), &preprocessing.input)?;
                }
                vec![one.preprocessed(&preprocessing, dims)?]
            }
            (several, _) => several.iter().map(|source| source.raw()).collect(),
        };
        let wanted = spec.target_names(&loss_source);
        let targets =
            spec.targets(&losses, &wanted, &targets_by_name(spec, part, &wanted)?, classes)?;
        target_forms = targets.iter().map(|target| target.form.clone()).collect();
        let targets = targets.into_iter().map(|target| target.values).collect();
        let output_weights = weights_by_name(&part.output_weights, &wanted)?;
        Ok(PreparedPart {
            inputs,
            targets,
            sample_weight: part.sample_weight.clone(),
            output_weights,
        })
    };
    let optional =
        |part: &Option<NamedSamples>,
         convert: &mut dyn FnMut(&NamedSamples) -> Result<PreparedPart>| {
            part.as_ref().map(convert).transpose()
        };
    let train = convert(&loaded.train).with_context(named)?;
    let validation = optional(&loaded.validation, &mut convert).with_context(named)?;
    let test = optional(&loaded.test, &mut convert).with_context(named)?;
    let evaluated = loaded.test.as_ref().unwrap_or(&loaded.train);
    let labels = labels_of(evaluated, &preprocessing);
    let raw_inputs = evaluated.inputs[0].1.clone();
    let raw_dims = match &loaded.train.inputs[..] {
        [(_, x)] => x.dims(),
        _ => vec![],
    };
    let trained_on =
        spec.preprocessing.as_ref().is_some_and(|preprocessing| preprocessing.was_trained_on(name));
    let (name, notices) = (name.into(), loaded.notices);
    let objective = LossSpec { source: loss_source, losses, target_forms };
    Ok(PreparedData {
        train,
        validation,
        test,
        labels,
        name,
        raw_inputs,
        preprocessing,
        objective,
        notices,
        raw_dims,
        trained_on,
    })
}
