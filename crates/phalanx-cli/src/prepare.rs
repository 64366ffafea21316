//! Data in the form a network takes, and what to remember of it with the weights.

use crate::args::Size;
use crate::data::{self, Loaded, MOST_CLASSES, Reading};
use crate::network::Network;
use anyhow::{Context, Result, bail};
use phalanx::data::Samples;
use phalanx::prelude::*;
use phalanx::saving::read_metadata;
use serde::{Deserialize, Serialize};
use std::path::Path;

/// The key of an [`Origin`] in a weights file.
const KEY: &str = "origin";

/// Numbers of a sample, more than any of a network here.
const MOST_CELLS: usize = 1 << 28;

/// What a network was made for: enough to build it again and to feed it as it was trained.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Origin {
    /// Its name.
    network: String,
    /// What it was trained on.
    pub data: String,
    /// Dimensions of a sample.
    pub input: Vec<usize>,
    /// Names of the classes, in the order of their numbers.
    pub classes: Vec<String>,
    /// The mean of the training samples, taken from every sample of a centred network.
    mean: Option<Vec<f32>>,
}

/// Data in the form a network takes.
pub struct Prepared {
    /// To train on.
    pub train: (Samples, Tensor),
    /// To test on.
    pub test: (Samples, Tensor),
    /// Their name or path.
    pub name: String,
    /// To show: the test images as they are.
    pub pictures: Samples,
    /// What was done to them.
    pub origin: Origin,
}

impl Origin {
    /// A network as it usually is, for ten classes.
    pub fn usual(network: Network) -> Origin {
        let classes = (0..10).map(|class| class.to_string()).collect();
        let (data, input) = ("glyphs".into(), network.usual_input());
        Origin { network: network.name(), data, input, classes, mean: None }
    }

    /// What a weights file says of itself; `wanted` where it says nothing.
    pub fn read(path: &Path, wanted: Option<Network>) -> Result<Option<Origin>> {
        let notes = read_metadata(path)?;
        let Some(text) = notes.get(KEY) else {
            let named = notes.get("model").and_then(|name| Network::by_name(name));
            if wanted.or(named).is_none() {
                bail!("{}: does not say its network; add --model", path.display());
            }
            return Ok(None);
        };
        let origin: Origin = serde_json::from_str(text)
            .with_context(|| format!("{}: its origin cannot be read", path.display()))?;
        let network = origin.network().with_context(|| path.display().to_string())?;
        if let Some(other) = wanted.filter(|wanted| *wanted != network) {
            let (own, other) = (network.name(), other.name());
            bail!("--model: expected {own}, as {} says, received {other}", path.display());
        }
        let cells = origin.input.iter().try_fold(1usize, |n, d| n.checked_mul(*d));
        let cells = cells.filter(|cells| (1..=MOST_CELLS).contains(cells));
        if cells.is_none() || !(1..=MOST_CLASSES).contains(&origin.classes.len()) {
            let (input, classes) = (&origin.input, origin.classes.len());
            bail!("{}: its origin has {classes} classes of {input:?}", path.display());
        }
        if origin.mean.as_ref().is_some_and(|mean| Some(mean.len()) != cells) {
            bail!("{}: expected a mean of the input's size", path.display());
        }
        Ok(Some(origin))
    }

    /// The network a file without an origin belongs to.
    pub fn network_of(path: &Path, wanted: Option<Network>) -> Result<Network> {
        let named = || Network::by_name(read_metadata(path).ok()?.get("model")?);
        wanted.or_else(named).context("--model: expected a network")
    }

    /// The network.
    pub fn network(&self) -> Result<Network> {
        Network::by_name(&self.network)
            .with_context(|| format!("unknown network '{}'", self.network))
    }

    /// Builds the network; its weights files will say what this says.
    pub fn build(&self) -> Result<Model> {
        let model = self.network()?.build(&self.input, self.classes.len())?;
        model.set_metadata(KEY, serde_json::to_string(self)?);
        Ok(model)
    }

    /// Samples as the network takes them: resized, reshaped and centred.
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
        let network = self.network()?;
        let dims: Vec<usize> = [&[samples.rows()], &network.dims(&self.input)[..]].concat();
        let shaped = samples.reshape(dims).context("reshaping samples")?;
        match &self.mean {
            Some(mean) => {
                let mean = Tensor::new(network.dims(&self.input), mean.clone())?;
                Ok(shaped.raw().subtract(&mean)?)
            }
            None if network.centred() => Ok(shaped.raw()),
            None => Ok(shaped),
        }
    }

    /// Loads a dataset for a network trained before.
    pub fn load(&self, name: &str) -> Result<Prepared> {
        let loaded = data::load(name, Reading::like(&self.input, self.network()?))?;
        if loaded.classes.len() > self.classes.len() {
            let (most, received) = (self.classes.len(), loaded.classes.len());
            bail!("--data {name}: expected at most {most} classes, received {received}");
        }
        self.clone().finish(name, loaded)
    }

    fn finish(self, name: &str, loaded: Loaded) -> Result<Prepared> {
        let named = || format!("--data {name}");
        let (train, test) = (loaded.train, loaded.test);
        Ok(Prepared {
            name: name.into(),
            train: (self.shape(&train.0).with_context(named)?, train.1),
            pictures: test.0.clone(),
            test: (self.shape(&test.0).with_context(named)?, test.1),
            origin: self,
        })
    }
}

/// Loads a dataset and fits the network to it: its input is a sample, its outputs are the classes.
/// Images that are too small for the network are brought to its usual size.
pub fn prepare(network: Network, name: &str, size: Option<Size>, grey: bool) -> Result<Prepared> {
    let loaded = data::load(name, Reading::of(network, size, grey))?;
    let input = input(network, &loaded, size).with_context(|| format!("--data {name}"))?;
    let classes = loaded.classes.clone();
    if classes.len() < 2 {
        bail!("--data {name}: expected two classes or more, received {classes:?}");
    }
    let mut origin =
        Origin { network: network.name(), data: name.into(), input, classes, mean: None };
    if network.centred() {
        let mean = origin.shape(&loaded.train.0)?.mean();
        origin.mean = Some(mean.f32().unwrap_or_default().to_vec());
    }
    origin.finish(name, loaded)
}

/// The dimensions of a network's input for these samples.
fn input(network: Network, loaded: &Loaded, size: Option<Size>) -> Result<Vec<usize>> {
    let own = &loaded.train.0.dims()[1..];
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
