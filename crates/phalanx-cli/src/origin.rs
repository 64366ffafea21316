//! What files say of how their model was made and fed.

use crate::args::Rescale;
use crate::data::{MOST_CLASSES, numbered};
use crate::network::{Network, USUAL_CLASSES};
use anyhow::{Context, Result, bail};
use phalanx::data::{Pixels, Samples};
use phalanx::datasets::TableEncoding;
use phalanx::prelude::*;
use phalanx::saving::read_metadata;
use phalanx::text::{brief, shown};
use serde::{Deserialize, Serialize};
use std::path::Path;

/// The key of an [`Origin`] in a file.
const KEY: &str = "origin";

/// Numbers of a sample: an image of 4096 by 4096 in four channels.
const MOST_CELLS: usize = 1 << 26;
/// Bytes of a class' name.
const MOST_NAME: usize = 1000;

/// How inputs become numbers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Scale {
    /// Bytes from 0 to 1; other numbers as they are.
    #[default]
    Unit,
    /// As they are, bytes from 0 to 255.
    Bytes,
    /// As ResNet50's ImageNet weights want them: blue first, less the mean of each channel.
    Imagenet,
    /// By a factor and an offset, bytes or not.
    Rescale(Rescale),
}

/// What a model was made for: enough to build a network again and to feed it as it was trained.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Origin {
    /// The network's name; none for a model that a file described.
    pub network: Option<String>,
    /// What it was trained on.
    pub data: String,
    /// Dimensions of a sample; empty for a model with several inputs.
    pub input: Vec<usize>,
    /// Names of the classes, in the order of their numbers; empty for a model that does not tell classes apart.
    pub classes: Vec<String>,
    /// The mean of the training samples' bytes, taken from every sample.
    pub mean: Option<Vec<f32>>,
    /// What is done to inputs.
    #[serde(default)]
    pub scale: Scale,
    /// The share of the rows that was held back to test on.
    #[serde(default)]
    pub test_split: Option<f64>,
    /// How the columns of a table became numbers.
    #[serde(default)]
    pub table: Option<TableEncoding>,
    /// Whether arrays were brought to another size as asked.
    #[serde(default)]
    pub resized: bool,
}

/// Fails where a sample of these dimensions is larger than any that a model is fed.
pub fn check_sample(dims: &[usize]) -> Result<()> {
    let cells = dims.iter().try_fold(1usize, |n, d| n.checked_mul(*d));
    if cells.is_none_or(|cells| cells > MOST_CELLS) {
        bail!("expected samples of at most {MOST_CELLS} numbers, received {dims:?}");
    }
    Ok(())
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

    /// For the model of a file, which is fed as Keras would feed it.
    pub fn unnamed(data: &str, input: Vec<usize>, classes: Vec<String>) -> Origin {
        Origin {
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

    /// For a network by name.
    pub fn named(self, network: Option<Network>) -> Origin {
        Origin { network: network.map(Network::name), ..self }
    }

    /// What a file says of itself, if anything.
    pub fn read(path: &Path) -> Result<Option<Origin>> {
        let notes = read_metadata(path)?;
        let Some(text) = notes.get(KEY) else { return Ok(None) };
        let file = shown(path.display());
        let origin: Origin = serde_json::from_str(text)
            .with_context(|| format!("{file}: its origin cannot be read"))?;
        if let Some(name) = origin.network.as_ref().filter(|name| Network::by_name(name).is_none())
        {
            bail!("{file}: unknown network '{}'", shown(brief(name)));
        }
        let cells = origin.input.iter().try_fold(1usize, |n, d| n.checked_mul(*d));
        let cells = cells.filter(|cells| (1..=MOST_CELLS).contains(cells));
        let least = usize::from(origin.network.is_some());
        if cells.is_none() || !(least..=MOST_CLASSES).contains(&origin.classes.len()) {
            let (input, classes) = (&origin.input, origin.classes.len());
            bail!("{file}: its origin has {classes} classes of {input:?}");
        }
        if origin.mean.as_ref().is_some_and(|mean| Some(mean.len()) != cells) {
            bail!("{file}: expected a mean of the input's size");
        }
        if let Some(name) = origin.classes.iter().find(|name| name.len() > MOST_NAME) {
            let received = shown(brief(name));
            bail!("{file}: expected names of at most {MOST_NAME} bytes, received '{received}'");
        }
        Ok(Some(origin))
    }

    /// Whether it was trained on data of this name, however a path is spelled.
    pub fn is_of(&self, name: &str) -> bool {
        let whole = |path: &str| std::fs::canonicalize(path).ok();
        self.data == name || whole(name).is_some_and(|path| Some(path) == whole(&self.data))
    }

    /// The same with inputs scaled as asked, if anything was asked.
    pub fn rescaled(self, asked: Option<Rescale>) -> Origin {
        match asked {
            Some(rescale) => Origin { scale: Scale::Rescale(rescale), mean: None, ..self },
            None => self,
        }
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

    /// Whether inputs are fed in another way than as they are.
    pub fn is_scaled(&self) -> bool {
        self.mean.is_some() || self.scale != Scale::Bytes
    }

    /// What is done to inputs, in words; `bytes` says whether they are kept as such.
    pub fn scaling(&self, bytes: bool) -> String {
        match (&self.mean, self.scale) {
            (Some(_), _) => "less the mean of the training inputs".into(),
            (None, Scale::Unit) if bytes => "bytes divided by 255".into(),
            (None, Scale::Bytes) if bytes => "bytes as they are, 0 to 255".into(),
            (None, Scale::Unit | Scale::Bytes) => "as they are".into(),
            (None, Scale::Imagenet) => {
                "as ImageNet's weights take them: blue first, less the mean of each channel".into()
            }
            (None, Scale::Rescale(Rescale { divisor, offset })) => match offset {
                0.0 => format!("divided by {divisor}"),
                _ => format!("divided by {divisor}, then {offset:+}"),
            },
        }
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
