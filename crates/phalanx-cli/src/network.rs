//! The networks by name: sizes, data, and how each is compiled in the tutorials.

use crate::args::{Network, Where};
use anyhow::{Context, Result, bail};
use phalanx::data::Samples;
use phalanx::prelude::*;

/// A network's usual sizes.
pub struct Usual {
    /// Dimensions of one sample.
    pub input: &'static [usize],
    /// Samples per replica.
    pub batch: usize,
}

/// Data in the form a network takes.
pub struct Prepared {
    /// To train on.
    pub train: (Samples, Tensor),
    /// To test on.
    pub test: (Samples, Tensor),
    /// To show: the test images as they are.
    pub pictures: Samples,
}

impl Network {
    /// What the network is usually run with.
    pub fn usual(self) -> Usual {
        let (input, batch): (&[usize], usize) = match self {
            Network::MnistMlp => (&[784], 32),
            Network::MnistCnn => (&[28, 28, 1], 64),
            Network::Minigooglenet => (&[32, 32, 3], 64),
            Network::Resnet50 => (&[224, 224, 3], 8),
        };
        Usual { input, batch }
    }

    /// Builds it for ten classes.
    pub fn build(self) -> Result<Model> {
        Ok(match self {
            Network::MnistMlp => applications::mnist_mlp(10)?,
            Network::MnistCnn => applications::mnist_cnn(10)?,
            Network::Minigooglenet => applications::mini_googlenet(3, Some(10))?,
            Network::Resnet50 => applications::resnet50([224, 224, 3], Some(10))?,
        })
    }

    /// Builds and compiles it with its own optimizer.
    pub fn compiled(self, place: &Where) -> Result<Model> {
        self.compile(self.build()?, place)
    }

    /// Compiles a network like this one with its own optimizer.
    pub fn compile(self, mut model: Model, place: &Where) -> Result<Model> {
        model.compile(
            Compile::new(self.optimizer())
                .loss(self.loss())
                .metrics(["accuracy"])
                .strategy(place.strategy()?),
        )?;
        Ok(model)
    }

    /// Its optimizer in the tutorials.
    pub fn optimizer(self) -> Box<dyn Optimizer> {
        match self {
            Network::MnistMlp | Network::MnistCnn => Box::new(Adam::default()),
            Network::Minigooglenet | Network::Resnet50 => Box::new(SGD::new(5e-3).momentum(0.9)),
        }
    }

    /// Its loss for class numbers.
    pub fn loss(self) -> Box<dyn Loss> {
        let logits = self == Network::MnistMlp;
        Box::new(SparseCategoricalCrossentropy::default().from_logits(logits))
    }

    /// The share of the training data its tutorial holds back to validate on; the others look at
    /// the test split.
    pub fn validation_share(self) -> Option<f64> {
        (self == Network::MnistMlp).then_some(1.0 / 6.0)
    }

    /// Loads a dataset in the shape the network takes. Colour images keep their bytes' range and
    /// lose the mean of the training images, as in the tutorial.
    pub fn load(self, name: &str) -> Result<Prepared> {
        let split = datasets::load(name)?;
        let pictures = split.test.0.clone();
        let shaped = |(x, y): (Samples, Tensor)| -> Result<(Samples, Tensor)> {
            let input = self.usual().input;
            let dims = x.dims().to_vec();
            if x.row_len() != input.iter().product::<usize>() {
                bail!("--data {name}: expected images of {input:?}, received {:?}", &dims[1..]);
            }
            let mut wanted = vec![x.rows()];
            wanted.extend(input);
            Ok((x.reshape(wanted).context("reshaping images")?, y))
        };
        let (mut train, mut test) = (shaped(split.train)?, shaped(split.test)?);
        if let Some(most) = train.1.i32().and_then(|y| y.iter().max()).filter(|y| **y > 9) {
            bail!("--data {name}: expected labels 0 to 9, received {most}");
        }
        if self.usual().input.last() == Some(&3) {
            let mean = train.0.clone().raw().mean();
            train.0 = train.0.raw().subtract(&mean)?;
            test.0 = test.0.raw().subtract(&mean)?;
        }
        Ok(Prepared { train, test, pictures })
    }
}

impl Where {
    /// The strategy these arguments ask for.
    pub fn strategy(&self) -> Result<MirroredStrategy> {
        let strategy = if !self.devices.is_empty() {
            MirroredStrategy::with_devices(&self.devices)?
        } else if let Some(n) = self.gpus {
            let found = list_physical_devices(DeviceKind::Gpu).len();
            if n == 0 || n > found {
                let has = if found == 0 {
                    "no GPU was found".into()
                } else {
                    format!("expected 1 to {found}")
                };
                bail!("--gpus: {has}, received {n}; --replicas N trains on N CPU devices");
            }
            MirroredStrategy::with_devices((0..n).map(|i| format!("gpu:{i}")))?
        } else if let Some(n) = self.replicas {
            MirroredStrategy::cpus(n).with_context(|| format!("--replicas {n}"))?
        } else {
            MirroredStrategy::new()
        };
        Ok(strategy.threads(self.threads))
    }
}
