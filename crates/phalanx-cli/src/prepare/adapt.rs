//! The preprocessing that adapts data and model to each other.

use super::DataRequest;
use super::checks::inputs_by_name;
use crate::args::Size;
use crate::data::{LoadedData, numbered_classes};
use crate::model_file::ModelFile;
use crate::model_spec::ModelSpec;
use crate::network::Network;
use crate::preprocessing::{Preprocessing, Scale};
use crate::targets::class_numbers;
use anyhow::{Result, bail};
use phalanx::prelude::*;

/// The preprocessing for a network by name. Weights from a file keep the preprocessing they were trained with.
pub(super) fn network_preprocessing(
    network: Network,
    spec: &ModelSpec,
    loaded: &LoadedData,
    request: &DataRequest<'_>,
    workers: &MultiWorkerMirroredStrategy,
) -> Result<Preprocessing> {
    let ([(_, x)], [(_, y)]) = (&loaded.train.inputs[..], &loaded.train.targets[..]) else {
        bail!("expected one input and one target for {}, received several", network.name());
    };
    if !network.classifies() {
        bail!("{} predicts a token at every position; train it in a program", network.name());
    }
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
        return Ok(Preprocessing { scale: Scale::of_imagenet(network), ..preprocessing });
    }
    if network.has_own_preprocessing() {
        return Ok(preprocessing);
    }
    if !network.subtracts_mean() {
        return Ok(Preprocessing { scale: Scale::Unit, ..preprocessing });
    }
    let mean = x.mean(&preprocessing, workers)?;
    Ok(Preprocessing { mean: Some(mean), ..preprocessing })
}

/// The preprocessing for a model file: as recorded, or as Keras would feed it.
pub(super) fn file_preprocessing(
    file: &ModelFile,
    spec: &ModelSpec,
    loaded: &LoadedData,
    request: &DataRequest<'_>,
) -> Result<Preprocessing> {
    let scale = request.args.rescale.map(Scale::Rescale);
    inputs_by_name(spec, &loaded.train.inputs)?;
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
            bail!("--image-size: {} expects sides of at least {min}", network.name())
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
