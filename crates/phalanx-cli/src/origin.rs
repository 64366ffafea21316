//! What files say of how their model was made and fed.

use crate::data::{MOST_CLASSES, numbered};
use crate::network::{Network, USUAL_CLASSES};
use anyhow::{Context, Result, bail};
use phalanx::data::{Pixels, Samples};
use phalanx::prelude::*;
use phalanx::saving::read_metadata;
use serde::{Deserialize, Serialize};
use std::path::Path;

/// The key of an [`Origin`] in a file.
const KEY: &str = "origin";

/// Numbers of a sample, more than any of a network here.
const MOST_CELLS: usize = 1 << 28;

/// How the bytes of images become numbers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Scale {
    /// From 0 to 1.
    #[default]
    Unit,
    /// As they are.
    Bytes,
    /// As ResNet50's ImageNet weights want them: blue first, less the mean of each channel.
    Imagenet,
}

/// What a model was made for: enough to build a network again and to feed it as it was trained.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Origin {
    /// The network's name; none for a model that a file described.
    pub network: Option<String>,
    /// What it was trained on.
    pub data: String,
    /// Dimensions of a sample.
    pub input: Vec<usize>,
    /// Names of the classes, in the order of their numbers.
    pub classes: Vec<String>,
    /// The mean of the training samples' bytes, taken from every sample.
    pub mean: Option<Vec<f32>>,
    /// What is done to images.
    #[serde(default)]
    pub scale: Scale,
}

impl Origin {
    /// A network as it usually is, for ten classes; of a thousand with ImageNet's weights.
    pub fn usual(network: Network, of_imagenet: bool) -> Origin {
        let (count, scale) = match of_imagenet {
            true => (1000, Scale::Imagenet),
            false if network.centred() => (USUAL_CLASSES, Scale::Bytes),
            false => (USUAL_CLASSES, Scale::Unit),
        };
        let origin = Origin::unnamed("glyphs", network.usual_input(), numbered(count));
        Origin { scale, ..origin }.named(Some(network))
    }

    /// For the model of a file.
    pub fn unnamed(data: &str, input: Vec<usize>, classes: Vec<String>) -> Origin {
        let (mean, scale) = (None, Scale::Unit);
        Origin { network: None, data: data.into(), input, classes, mean, scale }
    }

    /// For a network by name.
    pub fn named(self, network: Option<Network>) -> Origin {
        Origin { network: network.map(Network::name), ..self }
    }

    /// What a file says of itself, if anything.
    pub fn read(path: &Path) -> Result<Option<Origin>> {
        let notes = read_metadata(path)?;
        let Some(text) = notes.get(KEY) else { return Ok(None) };
        let shown = path.display();
        let origin: Origin = serde_json::from_str(text)
            .with_context(|| format!("{shown}: its origin cannot be read"))?;
        if let Some(name) = origin.network.as_ref().filter(|name| Network::by_name(name).is_none())
        {
            bail!("{shown}: unknown network '{name}'");
        }
        let cells = origin.input.iter().try_fold(1usize, |n, d| n.checked_mul(*d));
        let cells = cells.filter(|cells| (1..=MOST_CELLS).contains(cells));
        if cells.is_none() || !(1..=MOST_CLASSES).contains(&origin.classes.len()) {
            let (input, classes) = (&origin.input, origin.classes.len());
            bail!("{shown}: its origin has {classes} classes of {input:?}");
        }
        if origin.mean.as_ref().is_some_and(|mean| Some(mean.len()) != cells) {
            bail!("{shown}: expected a mean of the input's size");
        }
        Ok(Some(origin))
    }

    /// The network, where it is one by name.
    pub fn network(&self) -> Option<Network> {
        Network::by_name(self.network.as_deref()?)
    }

    /// Lets a model's files say what this says.
    pub fn note(&self, model: &Model) -> Result<()> {
        model.set_metadata(KEY, serde_json::to_string(self)?);
        Ok(())
    }

    /// Samples in the input's dimensions: resized, reshaped and scaled.
    pub fn shape(&self, samples: &Samples) -> Result<Samples> {
        let mut samples = samples.clone();
        // Grey images come with or without their one channel.
        if let (&[n, height, width], [_, _, 1]) = (samples.dims(), &self.input[..]) {
            samples = samples.reshape([n, height, width, 1]).context("one channel")?;
        }
        if let (&[_, height, width, from], &[to_height, to_width, to]) =
            (samples.dims(), &self.input[..])
            && (height, width) != (to_height, to_width)
            && from == to
        {
            samples = samples.resize(to_height, to_width)?;
        }
        if samples.row_len() != self.input.iter().product::<usize>() {
            let received = &samples.dims()[1..];
            bail!("expected samples of {:?}, received {received:?}", self.input);
        }
        let dims = [&[samples.rows()], &self.input[..]].concat();
        let shaped = samples.reshape(dims).context("reshaping samples")?;
        match (&self.mean, self.scale) {
            (Some(mean), _) => {
                Ok(shaped.raw().subtract(&Tensor::new(self.input.clone(), mean.clone())?)?)
            }
            (None, Scale::Unit) => Ok(shaped),
            (None, Scale::Bytes) => Ok(shaped.raw()),
            (None, Scale::Imagenet) => imagenet(shaped),
        }
    }
}

/// Images as ImageNet's weights want them; bytes stay bytes until they are fed.
fn imagenet(samples: Samples) -> Result<Samples> {
    let pixels = match samples.raw() {
        Samples::Pixels(pixels) => pixels,
        Samples::Tensor(tensor) => return Ok(applications::resnet50_preprocess(&tensor)?.into()),
    };
    let dims = Samples::from(pixels.clone()).dims().to_vec();
    // Black becomes what is taken from every image.
    let black = applications::resnet50_preprocess(&Tensor::zeros(dims[1..].to_vec()))?;
    let mean = black.f32().unwrap_or_default().iter().map(|v| -v).collect::<Vec<f32>>();
    let blue_first = pixels.bytes().as_chunks().0.iter().flat_map(|&[r, g, b]| [b, g, r]);
    let swapped = Pixels::new(dims.clone(), blue_first.collect(), 1.0).context("three channels")?;
    Ok(Samples::from(swapped).subtract(&Tensor::new(dims[1..].to_vec(), mean)?)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn imagenet_images_are_fed_as_the_library_prepares_them() {
        let bytes: Vec<u8> = (0..2 * 12).map(|i| (i * 10) as u8).collect();
        let floats = bytes.iter().map(|b| f32::from(*b)).collect::<Vec<f32>>();
        let images = Samples::from(Pixels::new([2, 2, 2, 3], bytes, 255.0).unwrap());
        let plain = Tensor::new([2, 2, 2, 3], floats).unwrap();
        let expected = applications::resnet50_preprocess(&plain).unwrap();
        let fed = imagenet(images).unwrap().to_tensor();
        for (a, b) in fed.f32().unwrap().iter().zip(expected.f32().unwrap()) {
            assert!((a - b).abs() < 1e-4, "{a} {b}");
        }
    }
}
