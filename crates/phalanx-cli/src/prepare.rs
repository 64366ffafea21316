//! Data in the form a model takes.

use crate::args::Size;
use crate::data::{self, Loaded, Reading};
use crate::feed::Feed;
use crate::model_file::ModelFile;
use crate::network::Network;
use crate::origin::{Origin, Scale, check_sample};
use crate::subject::{Kind, Subject};
use anyhow::{Context, Result, bail};
use phalanx::prelude::*;
use phalanx::text::shown;

/// Data in the form a model takes.
pub struct Prepared {
    /// To train on.
    pub train: (Feed, Tensor),
    /// To test on.
    pub test: (Feed, Tensor),
    /// The test samples' class numbers.
    pub labels: Tensor,
    /// Their name or path.
    pub name: String,
    /// To show: the test images as they are.
    pub pictures: Feed,
    /// What was done to them.
    pub origin: Origin,
}

/// Loads a dataset for a model that was trained before.
pub fn load(
    subject: &Subject,
    origin: &Origin,
    name: &str,
    workers: &MultiWorkerMirroredStrategy,
) -> Result<Prepared> {
    let reading = Reading::sized(&origin.input, None, false);
    let loaded = data::load(name, reading.by(workers.num_workers()))?;
    if loaded.classes.len() > origin.classes.len() {
        let (most, received) = (origin.classes.len(), loaded.classes.len());
        bail!("--data {}: expected at most {most} classes, received {received}", shown(name));
    }
    finish(subject, origin.clone(), name, loaded)
}

/// Loads a dataset and fits it and the model to each other: a network's input becomes a sample and its
/// outputs the classes; a file's model has its own, and images are brought to its size.
pub fn prepare(
    subject: &Subject,
    name: &str,
    size: Option<Size>,
    grey: bool,
    workers: &MultiWorkerMirroredStrategy,
) -> Result<Prepared> {
    let reading = match &subject.kind {
        Kind::Network(network) => Reading::of(&network.usual_input(), size, grey),
        Kind::File(file) => Reading::sized(&file.image(), size, grey),
    };
    let loaded = data::load(name, reading.by(workers.num_workers()))?;
    if loaded.classes.len() < 2 {
        let received = data::list(&loaded.classes);
        bail!("--data {}: expected two classes or more, received {received}", shown(name));
    }
    let origin = match &subject.kind {
        Kind::Network(network) => for_network(*network, subject, &loaded, size, workers),
        Kind::File(file) => for_file(file, subject, &loaded, size),
    };
    let origin = origin.with_context(|| format!("--data {}", shown(name)))?;
    finish(subject, Origin { data: name.into(), ..origin }, name, loaded)
}

fn finish(subject: &Subject, origin: Origin, name: &str, loaded: Loaded) -> Result<Prepared> {
    let named = || format!("--data {}", shown(name));
    let (train, test) = (loaded.train, loaded.test);
    check_sample(&origin.input).with_context(named)?;
    Ok(Prepared {
        name: name.into(),
        train: (
            train.0.fed(subject, &origin).with_context(named)?,
            subject.targets(&train.1).with_context(named)?,
        ),
        pictures: test.0.clone(),
        test: (
            test.0.fed(subject, &origin).with_context(named)?,
            subject.targets(&test.1).with_context(named)?,
        ),
        labels: test.1,
        origin,
    })
}

/// A network's origin. With weights of a file, images are scaled as those want them.
fn for_network(
    network: Network,
    subject: &Subject,
    loaded: &Loaded,
    size: Option<Size>,
    workers: &MultiWorkerMirroredStrategy,
) -> Result<Origin> {
    let input = input(network, loaded, size)?;
    let origin = Origin::unnamed("", input, loaded.classes.clone()).named(Some(network));
    if let Some(before) = subject.origin.as_ref().filter(|before| before.input == origin.input) {
        return Ok(Origin { mean: before.mean.clone(), scale: before.scale, ..origin });
    }
    if subject.of_imagenet() {
        if origin.input.last() != Some(&3) {
            let received = &origin.input;
            bail!("ImageNet's weights take images [height, width, 3], received {received:?}");
        }
        return Ok(Origin { scale: Scale::Imagenet, ..origin });
    }
    if !network.centred() {
        return Ok(origin);
    }
    let origin = Origin { scale: Scale::Bytes, ..origin };
    let mean = loaded.train.0.mean(&origin, workers)?;
    Ok(Origin { mean: Some(mean), ..origin })
}

/// The origin of a file's model, which is fed as it was before.
fn for_file(
    file: &ModelFile,
    subject: &Subject,
    loaded: &Loaded,
    size: Option<Size>,
) -> Result<Origin> {
    let mut own = loaded.train.0.dims();
    if let (Some(size), true) = (size, loaded.images) {
        own[..2].copy_from_slice(&[size.height, size.width]);
    }
    let input = file.input_for(&own, loaded.images);
    if let (Some(size), &[height, width, ..]) = (size, &input[..])
        && (size.height, size.width) != (height, width)
    {
        let Size { height: h, width: w } = size;
        bail!("--image-size: expected {height}x{width}, as the model takes, received {h}x{w}");
    }
    let origin = Origin::unnamed("", input, file.class_names(loaded.classes.clone())?);
    let cells = |origin: &Origin| origin.input.iter().product::<usize>();
    Ok(match &subject.origin {
        Some(before) if cells(before) == cells(&origin) => {
            Origin { mean: before.mean.clone(), scale: before.scale, ..origin }
        }
        _ => origin,
    })
}

/// The dimensions of a network's input for these samples.
fn input(network: Network, loaded: &Loaded, size: Option<Size>) -> Result<Vec<usize>> {
    let own = &loaded.train.0.dims()[..];
    let usual = network.usual_input();
    let image = match *own {
        [height, width] if loaded.images => Some([height, width, 1]),
        [height, width, channels] if loaded.images => Some([height, width, channels]),
        _ => None,
    };
    let sized = |[height, width, channels]: [usize; 3]| match size {
        Some(size) => [size.height, size.width, channels],
        None => [height, width, channels],
    };
    match (network.least_side(), image.map(sized)) {
        (None, Some(image)) => Ok(image.to_vec()),
        (None, None) => Ok(own.to_vec()),
        (Some(least), Some(image)) if image[0].min(image[1]) >= least => Ok(image.to_vec()),
        (Some(least), Some(_)) if size.is_some() => {
            bail!("--image-size: {} takes sides of {least} and more", network.name())
        }
        (Some(_), Some(image)) => Ok(vec![usual[0], usual[1], image[2]]),
        // Flat rows of pixels, as in tables of digits.
        (Some(_), None) if own.iter().product::<usize>() == usual.iter().product::<usize>() => {
            Ok(usual)
        }
        (Some(_), None) => bail!(
            "{} takes images [height, width, channels], received {own:?}; mnist-mlp takes any",
            network.name()
        ),
    }
}
