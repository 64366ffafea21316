//! The networks by name, and how each is usually compiled.

use crate::args::{Network, Where};
use anyhow::Result;
use phalanx::prelude::*;

/// A network's usual sizes.
pub struct Usual {
    /// Dimensions of one sample.
    pub input: &'static [usize],
    /// Global batch.
    pub batch: usize,
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
}

impl Where {
    /// The strategy these arguments ask for.
    pub fn strategy(&self) -> Result<MirroredStrategy> {
        let strategy = if !self.devices.is_empty() {
            MirroredStrategy::with_devices(&self.devices)?
        } else if let Some(n) = self.replicas {
            MirroredStrategy::cpus(n)?
        } else {
            MirroredStrategy::new()
        };
        Ok(strategy.threads(self.threads))
    }
}
