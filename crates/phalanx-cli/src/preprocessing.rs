//! The preprocessing of a model's inputs, as recorded in its files.

use crate::args::Rescale;
use crate::data::{MAX_CLASSES, numbered_classes};
use crate::network::Network;
use anyhow::{Context, Result, bail};
use phalanx::applications::InputMode;
use phalanx::data::{Pixels, Samples};
use phalanx::datasets::TableEncoding;
use phalanx::prelude::*;
use phalanx::saving::read_metadata;
use phalanx::text::{brief, shown};
use serde::{Deserialize, Serialize};
use std::path::Path;

/// The key of an [`Preprocessing`] in a file.
const KEY: &str = "origin";

/// Maximum number of elements of a sample: an image of 4096 by 4096 with four channels.
const MAX_SAMPLE_LEN: usize = 1 << 26;
/// Maximum length of a class name, in bytes.
const MAX_CLASS_NAME_BYTES: usize = 1000;

/// How inputs are scaled.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Scale {
    /// Bytes from 0 to 1; other numbers unchanged.
    #[default]
    Unit,
    /// Unchanged, bytes from 0 to 255.
    Bytes,
    /// As ImageNet weights of ResNet and VGG expect: BGR channels, minus the mean of each channel.
    Imagenet,
    /// As ImageNet weights of DenseNet expect: from 0 to 1, minus the mean and divided by the deviation of each channel.
    ImagenetTorch,
    /// By a factor and an offset, for bytes and floats.
    Rescale(Rescale),
}

impl Scale {
    /// The scale that the ImageNet weights of a network expect.
    pub fn of_imagenet(network: Network) -> Scale {
        match network.application().map(|app| app.input_mode()) {
            Some(InputMode::Tf) => Scale::Rescale(Rescale { divisor: 127.5, offset: -1.0 }),
            Some(InputMode::Torch) => Scale::ImagenetTorch,
            Some(InputMode::Raw) => Scale::Bytes,
            Some(InputMode::Caffe) | None => Scale::Imagenet,
        }
    }
}

/// The data and preprocessing of a model: enough to rebuild a network by name and to preprocess its inputs as in training.
///
/// Serialised as JSON into the metadata of the model's files.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Preprocessing {
    /// The network's name; `None` for a model from a file.
    pub network: Option<String>,
    /// The data that it was trained on.
    pub data: String,
    /// Dimensions of a sample; empty for a model with several inputs.
    pub input: Vec<usize>,
    /// Class names in index order; empty if the model is not a classifier.
    pub classes: Vec<String>,
    /// The mean of the training samples' bytes, subtracted from every sample.
    pub mean: Option<Vec<f32>>,
    /// How inputs are scaled.
    #[serde(default)]
    pub scale: Scale,
    /// The fraction of the rows that was held out for testing.
    #[serde(default)]
    pub test_split: Option<f64>,
    /// The encoding of a table's columns.
    #[serde(default)]
    pub table: Option<TableEncoding>,
    /// Whether arrays were resized on request.
    #[serde(default)]
    pub resized: bool,
}

/// Fails if a sample of these dimensions exceeds [`MAX_SAMPLE_LEN`].
pub fn check_sample_size(dims: &[usize]) -> Result<()> {
    let elements = dims.iter().try_fold(1usize, |n, d| n.checked_mul(*d));
    if elements.is_none_or(|elements| elements > MAX_SAMPLE_LEN) {
        bail!("expected samples of at most {MAX_SAMPLE_LEN} numbers, received {dims:?}");
    }
    Ok(())
}

impl Preprocessing {
    /// The default of a network: ten classes, or a thousand with ImageNet weights.
    pub fn default_for(network: Network, has_imagenet_weights: bool) -> Preprocessing {
        let (count, scale) = match has_imagenet_weights {
            true => (1000, Scale::of_imagenet(network)),
            false if network.subtracts_mean() || network.has_own_preprocessing() => {
                (network.default_classes(), Scale::Bytes)
            }
            false => (network.default_classes(), Scale::Unit),
        };
        let preprocessing = Preprocessing::for_model_file(
            "glyphs",
            network.default_input(),
            numbered_classes(count),
        );
        Preprocessing { scale, ..preprocessing }.with_network(Some(network))
    }

    /// The default of a model from a file: inputs are fed as Keras would feed them.
    pub fn for_model_file(data: &str, input: Vec<usize>, classes: Vec<String>) -> Preprocessing {
        Preprocessing {
            network: None,
            data: data.into(),
            input,
            classes,
            mean: None,
            scale: Scale::Bytes,
            test_split: None,
            table: None,
            resized: false,
        }
    }

    /// The same for a network by name.
    pub fn with_network(self, network: Option<Network>) -> Preprocessing {
        Preprocessing { network: network.map(Network::name), ..self }
    }

    /// Reads the record in a file, if any.
    pub fn read(path: &Path) -> Result<Option<Preprocessing>> {
        let metadata = read_metadata(path)?;
        let Some(text) = metadata.get(KEY) else { return Ok(None) };
        let file = shown(path.display());
        let preprocessing: Preprocessing = serde_json::from_str(text)
            .with_context(|| format!("{file}: its origin cannot be read"))?;
        if let Some(name) =
            preprocessing.network.as_ref().filter(|name| Network::by_name(name).is_none())
        {
            bail!("{file}: unknown network '{}'", shown(brief(name)));
        }
        let elements = preprocessing.input.iter().try_fold(1usize, |n, d| n.checked_mul(*d));
        let elements = elements.filter(|elements| (1..=MAX_SAMPLE_LEN).contains(elements));
        let min_classes = usize::from(preprocessing.network.is_some());
        if elements.is_none() || !(min_classes..=MAX_CLASSES).contains(&preprocessing.classes.len())
        {
            let (input, classes) = (&preprocessing.input, preprocessing.classes.len());
            bail!("{file}: its origin has {classes} classes of {input:?}");
        }
        if preprocessing.mean.as_ref().is_some_and(|mean| Some(mean.len()) != elements) {
            bail!("{file}: expected a mean of the input's size");
        }
        if let Some(name) =
            preprocessing.classes.iter().find(|name| name.len() > MAX_CLASS_NAME_BYTES)
        {
            let received = shown(brief(name));
            bail!(
                "{file}: expected names of at most {MAX_CLASS_NAME_BYTES} bytes, received '{received}'"
            );
        }
        Ok(Some(preprocessing))
    }

    /// Whether the model was trained on data of this name. Paths are compared after canonicalization.
    pub fn was_trained_on(&self, name: &str) -> bool {
        let canonical = |path: &str| std::fs::canonicalize(path).ok();
        self.data == name || canonical(name).is_some_and(|path| Some(path) == canonical(&self.data))
    }

    /// The same with the requested scaling, if any.
    pub fn rescaled(self, requested: Option<Rescale>) -> Preprocessing {
        match requested {
            Some(rescale) => Preprocessing { scale: Scale::Rescale(rescale), mean: None, ..self },
            None => self,
        }
    }

    /// The network, if it is one by name.
    pub fn network(&self) -> Option<Network> {
        Network::by_name(self.network.as_deref()?)
    }

    /// Records this in the metadata of a model, which is saved with its files.
    pub fn store_in(&self, model: &Model) -> Result<()> {
        model.set_metadata(KEY, serde_json::to_string(self)?);
        Ok(())
    }

    /// Whether inputs are scaled or centered.
    pub fn is_scaled(&self) -> bool {
        self.mean.is_some() || self.scale != Scale::Bytes
    }

    /// Describes the scaling. `bytes` tells whether inputs are stored as bytes.
    pub fn describe_scaling(&self, bytes: bool) -> String {
        match (&self.mean, self.scale) {
            (Some(_), _) => "less the mean of the training inputs".into(),
            (None, Scale::Unit) if bytes => "bytes divided by 255".into(),
            (None, Scale::Bytes) if bytes => "bytes as they are, 0 to 255".into(),
            (None, Scale::Unit | Scale::Bytes) => "as they are".into(),
            (None, Scale::Imagenet) => {
                "as ImageNet's weights take them: blue first, less the mean of each channel".into()
            }
            (None, Scale::ImagenetTorch) => {
                "as ImageNet's weights take them: less the mean, divided by the deviation of each channel".into()
            }
            (None, Scale::Rescale(Rescale { divisor, offset })) => match offset {
                0.0 => format!("divided by {divisor}"),
                _ => format!("divided by {divisor}, then {offset:+}"),
            },
        }
    }

    /// Resizes, reshapes and scales samples to the dimensions of the input.
    pub fn apply(&self, samples: &Samples) -> Result<Samples> {
        let mut samples = samples.clone();
        // Grayscale images may lack the channel axis.
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
        if samples.dims().is_empty() || samples.row_len() != self.input.iter().product::<usize>() {
            let received = samples.dims().get(1..).unwrap_or_default();
            bail!("expected samples of {:?}, received {received:?}", self.input);
        }
        let dims = [&[samples.rows()], &self.input[..]].concat();
        let shaped = samples.reshape(dims).context("reshaping samples")?;
        match (&self.mean, self.scale) {
            (Some(mean), _) => {
                Ok(shaped.raw().subtract(&Tensor::new(self.input.clone(), mean.clone())?)?)
            }
            (None, Scale::Unit) => Ok(match shaped {
                Samples::Pixels(_) => shaped.rescale(255.0, 0.0),
                numbers => numbers,
            }),
            (None, Scale::Bytes) => Ok(shaped.raw()),
            (None, Scale::Rescale(Rescale { divisor, offset })) => {
                Ok(shaped.rescale(divisor, offset))
            }
            (None, Scale::Imagenet) => imagenet(shaped),
            (None, Scale::ImagenetTorch) => {
                Ok(InputMode::Torch.apply(&shaped.raw().to_tensor())?.into())
            }
        }
    }
}

/// Preprocesses images for ImageNet weights. Bytes are converted only when a batch is made.
fn imagenet(samples: Samples) -> Result<Samples> {
    let pixels = match samples.raw() {
        Samples::Pixels(pixels) => pixels,
        other @ (Samples::Tensor(_) | Samples::External(_)) => {
            return Ok(applications::resnet50_preprocess(&other.to_tensor())?.into());
        }
        Samples::Text(_) => bail!("expected images, received strings"),
    };
    let dims = Samples::from(pixels.clone()).dims().to_vec();
    // A black image preprocessed is the negative mean.
    let black = applications::resnet50_preprocess(&Tensor::zeros(dims[1..].to_vec()))?;
    let mean = black.f32().unwrap_or_default().iter().map(|v| -v).collect::<Vec<f32>>();
    let bgr = pixels.bytes().as_chunks().0.iter().flat_map(|&[r, g, b]| [b, g, r]);
    let swapped = Pixels::new(dims.clone(), bgr.collect(), 1.0).context("three channels")?;
    Ok(Samples::from(swapped).subtract(&Tensor::new(dims[1..].to_vec(), mean)?)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn imagenet_images_are_preprocessed_as_by_the_library() {
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
