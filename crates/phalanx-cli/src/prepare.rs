//! Data preprocessed for a model.

use crate::args::{DataArgs, Size};
use crate::data::{self, ImageOptions, LoadRequest, LoadedData, Part, numbered_classes};
use crate::model_file::{LossSource, ModelFile};
use crate::model_spec::{ModelKind, ModelSpec};
use crate::network::Network;
use crate::preprocessing::{Preprocessing, Scale, check_sample_size};
use crate::samples::SampleSource;
use crate::targets::{class_numbers, same_shape};
use anyhow::{Context, Result, bail};
use phalanx::data::{ImageFlow, Samples};
use phalanx::model::{IntoDataset, Source};
use phalanx::prelude::*;
use phalanx::text::shown;

/// Rows of preprocessed samples.
pub struct PreparedPart {
    /// The samples of each input, in the model's order.
    inputs: Vec<SampleSource>,
    /// The targets of each output, in the model's order.
    targets: Vec<Tensor>,
    sample_weight: Option<Vec<f32>>,
}

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
    /// Where the loss comes from.
    pub loss_source: LossSource,
    /// Keras' class names of the losses.
    pub losses: Vec<&'static str>,
    /// Descriptions of the targets of each output.
    pub target_forms: Vec<String>,
    /// Notes on how the rows were changed, for the header.
    pub notices: Vec<String>,
    /// The dimensions of a sample before preprocessing; empty for several inputs.
    pub raw_dims: Vec<usize>,
    /// Whether the model was trained on these data, as recorded in its file.
    pub trained_on: bool,
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

impl PreparedPart {
    /// Number of samples.
    pub fn rows(&self) -> usize {
        self.inputs.first().map_or(0, SampleSource::rows)
    }

    /// The only input.
    pub fn input(&self) -> Result<&SampleSource> {
        match &self.inputs[..] {
            [one] => Ok(one),
            several => bail!("expected a model with one input, received {}", several.len()),
        }
    }

    /// All samples in order.
    pub fn in_order(&self, batch: usize) -> Result<Source> {
        self.batches(false, batch)
    }

    /// All samples. `shuffle` applies to image files; `fit` shuffles arrays.
    pub fn batches(&self, shuffle: bool, batch: usize) -> Result<Source> {
        if let [SampleSource::Files(_)] = self.inputs[..] {
            let flow = self.flow(&ImageDataGenerator::new(), batch)?;
            return Ok(flow.shuffle(shuffle).into_source()?);
        }
        let samples = |source: &SampleSource| match source {
            SampleSource::Memory(samples) => Ok(samples.clone()),
            SampleSource::Files(_) => bail!("a directory of images is one input"),
        };
        let inputs = self.inputs.iter().map(samples).collect::<Result<Vec<Samples>>>()?;
        let arrays = Arrays::new(inputs, self.targets.clone())?.batch(batch)?;
        Ok(Source::Arrays(match &self.sample_weight {
            Some(weights) => arrays.sample_weight(weights)?,
            None => arrays,
        }))
    }

    /// Augmented images.
    pub fn flow(&self, augment: &ImageDataGenerator, batch: usize) -> Result<ImageFlow> {
        if self.sample_weight.is_some() {
            bail!("--augment: expected data without sample weights");
        }
        let [target] = &self.targets[..] else {
            bail!("--augment: expected one target, received {}", self.targets.len());
        };
        if target.dims().len() > 2 {
            let dims = &target.dims()[1..];
            bail!(
                "--augment: expected targets that do not depend on pixel positions, received {dims:?}"
            );
        }
        self.input()?.flow(augment, target, batch)
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
    let preprocessing = preprocessing.clone().rescaled(request.args.rescale);
    finish(spec, preprocessing, request, loaded)
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
    let (inputs, outputs) = spec.io_names();
    LoadRequest { name: request.name, image_options, args: request.args, inputs, outputs, table }
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
    let mut convert = |part: &Part| -> Result<PreparedPart> {
        let (input_names, output_names) = spec.io_names();
        let given = by_name("x", &part.inputs, &input_names)?;
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
        let given = by_name("y", &part.targets, &output_names)?;
        let targets = spec.targets(&losses, &given, classes)?;
        target_forms = targets.iter().map(|target| target.form.clone()).collect();
        let targets = targets.into_iter().map(|target| target.values).collect();
        Ok(PreparedPart { inputs, targets, sample_weight: part.sample_weight.clone() })
    };
    let optional = |part: &Option<Part>, convert: &mut dyn FnMut(&Part) -> Result<PreparedPart>| {
        part.as_ref().map(convert).transpose()
    };
    let train = convert(&loaded.train).with_context(named)?;
    let validation = optional(&loaded.validation, &mut convert).with_context(named)?;
    let test = optional(&loaded.test, &mut convert).with_context(named)?;
    let evaluated = loaded.test.as_ref().unwrap_or(&loaded.train);
    let labels = match &evaluated.targets[..] {
        [(_, y)] if !preprocessing.classes.is_empty() => {
            class_numbers(y).ok().and_then(|t| Some(t.values.i32()?.to_vec()))
        }
        _ => None,
    };
    let raw_inputs = evaluated.inputs[0].1.clone();
    let raw_dims = match &loaded.train.inputs[..] {
        [(_, x)] => x.dims(),
        _ => vec![],
    };
    let trained_on =
        spec.preprocessing.as_ref().is_some_and(|preprocessing| preprocessing.was_trained_on(name));
    let (name, notices) = (name.into(), loaded.notices);
    Ok(PreparedData {
        train,
        validation,
        test,
        labels,
        name,
        raw_inputs,
        preprocessing,
        loss_source,
        losses,
        target_forms,
        notices,
        raw_dims,
        trained_on,
    })
}

/// Checks that text targets have a classification loss, and that binary losses have targets from 0 to 1.
fn check_targets(
    spec: &ModelSpec,
    losses: &[&'static str],
    loaded: &LoadedData,
    loss_source: &LossSource,
) -> Result<()> {
    let ModelKind::File(file) = &spec.kind else { return Ok(()) };
    let inferred = matches!(loss_source, LossSource::Inferred { .. });
    let outputs = file.with_losses(losses);
    for (i, (name, y)) in loaded.train.targets.iter().enumerate() {
        let by_name = outputs.iter().find(|output| output.name == *name);
        let Some(output) = by_name.or(outputs.get(i)) else { continue };
        if loaded.text_targets.get(i) == Some(&true) {
            output.check_words()?;
        }
        if loaded.classes.is_none() {
            output.check_binary(y, inferred)?;
        }
    }
    Ok(())
}

/// Arrays in the model's order. A single array needs no name.
fn by_name<T: Clone>(role: &str, given: &[(String, T)], wanted: &[String]) -> Result<Vec<T>> {
    if let ([(name, one)], [only]) = (given, wanted)
        && (name.is_empty() || name == only)
    {
        return Ok(vec![one.clone()]);
    }
    let array_name = |name: &String| match name.is_empty() {
        true => role.to_string(),
        false => format!("{role}_{name}"),
    };
    let join = |names: Vec<String>| names.join(", ");
    let fail = || {
        let expected = join(wanted.iter().map(array_name).collect());
        let received = join(given.iter().map(|(name, _)| array_name(name)).collect());
        anyhow::anyhow!("expected {expected}, as the model names them, received {received}")
    };
    if given.len() != wanted.len() {
        return Err(fail());
    }
    let find =
        |name: &String| given.iter().find(|(given, _)| given == name).map(|(_, v)| v.clone());
    wanted.iter().map(|name| find(name).ok_or_else(fail)).collect()
}

/// The preprocessing for a network by name. Weights from a file keep the preprocessing they were trained with.
fn network_preprocessing(
    network: Network,
    spec: &ModelSpec,
    loaded: &LoadedData,
    request: &DataRequest<'_>,
    workers: &MultiWorkerMirroredStrategy,
) -> Result<Preprocessing> {
    let ([(_, x)], [(_, y)]) = (&loaded.train.inputs[..], &loaded.train.targets[..]) else {
        bail!("expected one input and one target for {}, received several", network.name());
    };
    let input = network_input(network, &x.dims(), loaded.images, request.size)?;
    let classes = match &loaded.classes {
        Some(classes) => classes.clone(),
        None => {
            let parts = [Some(&loaded.train), loaded.validation.as_ref(), loaded.test.as_ref()];
            let mut last_class = y.row_len().max(1) as i32 - 1;
            for part in parts.into_iter().flatten() {
                let labels = class_numbers(&part.targets[0].1)?.values;
                last_class = last_class
                    .max(labels.i32().unwrap_or_default().iter().copied().max().unwrap_or(0));
            }
            numbered_classes(last_class as usize + 1)
        }
    };
    if classes.len() < 2 {
        bail!("expected two classes or more, received {classes:?}");
    }
    let preprocessing =
        Preprocessing::for_model_file("", input, classes).with_network(Some(network));
    if request.args.rescale.is_some() {
        return Ok(preprocessing.rescaled(request.args.rescale));
    }
    if let Some(recorded) =
        spec.preprocessing.as_ref().filter(|recorded| recorded.input == preprocessing.input)
    {
        return Ok(Preprocessing {
            mean: recorded.mean.clone(),
            scale: recorded.scale,
            ..preprocessing
        });
    }
    if spec.has_imagenet_weights() {
        if preprocessing.input.last() != Some(&3) {
            let received = &preprocessing.input;
            bail!("ImageNet's weights take images [height, width, 3], received {received:?}");
        }
        return Ok(Preprocessing { scale: Scale::Imagenet, ..preprocessing });
    }
    if !network.subtracts_mean() {
        return Ok(Preprocessing { scale: Scale::Unit, ..preprocessing });
    }
    let mean = x.mean(&preprocessing, workers)?;
    Ok(Preprocessing { mean: Some(mean), ..preprocessing })
}

/// The preprocessing for a model file: as recorded, or as Keras would feed it.
fn file_preprocessing(
    file: &ModelFile,
    spec: &ModelSpec,
    loaded: &LoadedData,
    request: &DataRequest<'_>,
) -> Result<Preprocessing> {
    let scale = request.args.rescale.map(Scale::Rescale);
    by_name("x", &loaded.train.inputs, &spec.io_names().0)?;
    let [(_, x)] = &loaded.train.inputs[..] else {
        if request.args.rescale.is_some() || request.size.is_some() {
            bail!("--rescale and --image-size: expected a model with one input");
        }
        return Ok(Preprocessing::for_model_file("", vec![], vec![]));
    };
    let mut dims = x.dims();
    if let (Some(size), true) = (request.size, loaded.images) {
        dims[..2].copy_from_slice(&[size.height, size.width]);
    }
    let input = file.input_for(&dims, loaded.images);
    if let (Some(size), &[height, width, ..]) = (request.size, &input[..])
        && (size.height, size.width) != (height, width)
    {
        let Size { height: h, width: w } = size;
        bail!("--image-size: expected {height}x{width}, as the model takes, received {h}x{w}");
    }
    let preprocessing = Preprocessing::for_model_file("", input, vec![]);
    let elements = |preprocessing: &Preprocessing| preprocessing.input.iter().product::<usize>();
    Ok(match (&spec.preprocessing, scale) {
        (_, Some(scale)) => Preprocessing { scale, ..preprocessing },
        (Some(recorded), None) if elements(recorded) == elements(&preprocessing) => {
            Preprocessing { mean: recorded.mean.clone(), scale: recorded.scale, ..preprocessing }
        }
        _ => preprocessing,
    })
}

/// Checks that arrays have the model's input shape, up to axes of size one and flattening.
pub fn check_shape(dims: &[usize], input: &[usize]) -> Result<()> {
    let flat = [dims, input].iter().any(|dims| dims.len() == 1)
        && dims.iter().product::<usize>() == input.iter().product::<usize>();
    if same_shape(dims, input) || flat {
        return Ok(());
    }
    bail!("expected samples of {input:?}, received {dims:?}")
}

/// The input dimensions of a network for samples of dimensions `dims`.
fn network_input(
    network: Network,
    dims: &[usize],
    images: bool,
    size: Option<Size>,
) -> Result<Vec<usize>> {
    let default = network.default_input();
    let image = match *dims {
        [height, width] if images => Some([height, width, 1]),
        [height, width, channels] if images => Some([height, width, channels]),
        _ => None,
    };
    let sized = |[height, width, channels]: [usize; 3]| match size {
        Some(size) => [size.height, size.width, channels],
        None => [height, width, channels],
    };
    match (network.min_side(), image.map(sized)) {
        (None, Some(image)) => Ok(image.to_vec()),
        (None, None) => Ok(dims.to_vec()),
        (Some(min), Some(image)) if image[0].min(image[1]) >= min => Ok(image.to_vec()),
        (Some(min), Some(_)) if size.is_some() => {
            bail!("--image-size: {} takes sides of {min} and more", network.name())
        }
        (Some(_), Some(image)) => Ok(vec![default[0], default[1], image[2]]),
        // Flat rows of pixels, as in tables of digits.
        (Some(_), None) if dims.iter().product::<usize>() == default.iter().product::<usize>() => {
            Ok(default)
        }
        (Some(_), None) => bail!(
            "{} takes images [height, width, channels], received {dims:?}; mnist-mlp takes any",
            network.name()
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arrays_are_not_transposed_or_resized_to_fit() {
        assert!(check_shape(&[28, 28], &[28, 28, 1]).is_ok());
        assert!(check_shape(&[28, 28, 1], &[784]).is_ok());
        for other in [[4, 2], [3, 2], [2, 5]] {
            assert!(check_shape(&other, &[2, 4]).is_err(), "{other:?}");
        }
    }

    #[test]
    fn arrays_are_matched_by_name_and_a_single_one_needs_none() {
        let names = |names: &[&str]| names.iter().map(ToString::to_string).collect::<Vec<_>>();
        let given = [("b".to_string(), 2), ("a".to_string(), 1)];
        assert_eq!(by_name("x", &given, &names(&["a", "b"])).unwrap(), [1, 2]);
        assert_eq!(by_name("x", &[(String::new(), 7)], &names(&["a"])).unwrap(), [7]);
        let error = by_name("y", &given[..1], &names(&["a"])).unwrap_err().to_string();
        assert_eq!(error, "expected y_a, as the model names them, received y_b");
        assert!(by_name("y", &given, &names(&["a"])).is_err());
        assert!(by_name("y", &given, &names(&["a", "c"])).is_err());
    }
}
