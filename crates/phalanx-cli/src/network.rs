//! The networks by name: sizes, and how each is compiled in the tutorials.

use anyhow::{Result, bail};
use clap::ValueEnum;
use clap::builder::{EnumValueParser, PossibleValue, StringValueParser, TypedValueParser};
use phalanx::prelude::*;
use std::ffi::OsStr;
use std::path::{Path, PathBuf};

/// The networks that come with Phalanx.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Network {
    /// Two hidden layers of 256 on flat samples
    MnistMlp,
    /// One convolution and two dense layers on small images
    MnistCnn,
    /// MiniGoogLeNet on 32x32 images
    Minigooglenet,
    /// ResNet50 on images of 32x32 and more
    Resnet50,
    /// ResNet20 on small images
    Resnet20,
    /// VGG11 on images of 32x32 and more
    Vgg11,
}

/// Classes of a network where no data say how many.
pub const USUAL_CLASSES: usize = 10;
/// Samples per replica where a model file says nothing of it.
pub const USUAL_BATCH: usize = 32;

/// What MODEL can be: a network by name, or a file that describes one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Choice {
    /// One that comes with Phalanx.
    Network(Network),
    /// One of the user's own.
    File(PathBuf),
}

impl Choice {
    /// What a name or path stands for.
    pub fn of(path: &Path) -> Choice {
        let named = path.to_str().and_then(|name| Network::from_str(name, false).ok());
        named.map_or_else(|| Choice::File(path.into()), Choice::Network)
    }
}

/// Reads a [`Choice`]: names first; what has a dot or a slash, or is there, is a file.
#[derive(Clone)]
pub struct ChoiceParser;

impl TypedValueParser for ChoiceParser {
    type Value = Choice;

    fn parse_ref(
        &self,
        command: &clap::Command,
        argument: Option<&clap::Arg>,
        value: &OsStr,
    ) -> Result<Choice, clap::Error> {
        let named = EnumValueParser::<Network>::new().parse_ref(command, argument, value);
        let text = value.to_string_lossy();
        let path = PathBuf::from(value);
        match named {
            Ok(network) => Ok(Choice::Network(network)),
            Err(_) if text.contains(['.', '/']) || path.exists() => Ok(Choice::File(path)),
            Err(error) => Err(error),
        }
    }

    fn possible_values(&self) -> Option<Box<dyn Iterator<Item = PossibleValue> + '_>> {
        Some(Box::new(Network::value_variants().iter().filter_map(Network::to_possible_value)))
    }
}

/// Reads what `--data` names: any text; completions offer the datasets there are.
#[derive(Clone)]
pub struct DataParser;

impl TypedValueParser for DataParser {
    type Value = String;

    fn parse_ref(
        &self,
        command: &clap::Command,
        argument: Option<&clap::Arg>,
        value: &OsStr,
    ) -> Result<String, clap::Error> {
        StringValueParser::new().parse_ref(command, argument, value)
    }

    fn possible_values(&self) -> Option<Box<dyn Iterator<Item = PossibleValue> + '_>> {
        Some(Box::new(datasets::NAMES.iter().map(PossibleValue::new)))
    }
}

impl Network {
    /// Its name, as on the command line.
    pub fn name(self) -> String {
        self.to_possible_value().map_or(String::new(), |value| value.get_name().into())
    }

    /// The network of a name, as on the command line or as the library calls the model.
    pub fn by_name(name: &str) -> Option<Network> {
        let plain = |name: &str| name.replace(['-', '_'], "");
        let same = |network: &&Network| plain(&network.name()) == plain(name);
        Network::value_variants().iter().find(same).copied()
    }

    /// The sample it is usually run on.
    pub fn usual_input(self) -> Vec<usize> {
        match self {
            Network::MnistMlp | Network::MnistCnn => vec![28, 28, 1],
            Network::Minigooglenet | Network::Resnet20 | Network::Vgg11 => vec![32, 32, 3],
            Network::Resnet50 => vec![224, 224, 3],
        }
    }

    /// Samples of these dimensions as the model takes them.
    pub fn dims(self, input: &[usize]) -> Vec<usize> {
        match self.least_side() {
            None => vec![input.iter().product()],
            Some(_) => input.to_vec(),
        }
    }

    /// Samples per replica it is usually run with.
    pub fn usual_batch(self) -> usize {
        match self {
            Network::MnistMlp | Network::Resnet20 => 32,
            Network::MnistCnn | Network::Minigooglenet | Network::Vgg11 => 64,
            Network::Resnet50 => 8,
        }
    }

    /// The shortest side of an image it takes; none where samples are flat.
    pub fn least_side(self) -> Option<usize> {
        match self {
            Network::MnistMlp => None,
            Network::MnistCnn | Network::Resnet20 => Some(4),
            Network::Minigooglenet => Some(31),
            Network::Resnet50 | Network::Vgg11 => Some(32),
        }
    }

    /// Whether its tutorial feeds images as their bytes, less the mean of the training images,
    /// rather than as numbers from 0 to 1.
    pub fn centred(self) -> bool {
        self.usual_input().last() == Some(&3)
    }

    /// Whether its outputs are logits rather than probabilities.
    pub fn logits(self) -> bool {
        self == Network::MnistMlp
    }

    /// Builds it for samples of these dimensions and so many classes.
    pub fn build(self, input: &[usize], classes: usize) -> Result<Model> {
        let cells = input.iter().try_fold(1usize, |n, d| n.checked_mul(*d));
        let image = || match *input {
            [height, width, channels] => Ok([height, width, channels]),
            _ => bail!("{}: expected [height, width, channels], received {input:?}", self.name()),
        };
        let Some(cells) = cells else { bail!("{}: {input:?} is too large", self.name()) };
        Ok(match self {
            Network::MnistMlp => applications::mnist_mlp(cells, classes)?,
            Network::MnistCnn => applications::mnist_cnn(image()?, classes)?,
            Network::Minigooglenet => applications::mini_googlenet(image()?, Some(classes))?,
            Network::Resnet50 => applications::resnet50(image()?, Some(classes))?,
            Network::Resnet20 => applications::resnet20(image()?, Some(classes))?,
            Network::Vgg11 => applications::vgg11(image()?, Some(classes))?,
        })
    }

    /// How it is compiled, with its own optimizer.
    pub fn compile(self, strategy: impl Into<MultiWorkerMirroredStrategy>) -> Compile {
        self.compile_with(self.optimizer(), strategy)
    }

    /// How it is compiled, with another optimizer.
    pub fn compile_with(
        self,
        optimizer: Box<dyn Optimizer>,
        strategy: impl Into<MultiWorkerMirroredStrategy>,
    ) -> Compile {
        let loss = SparseCategoricalCrossentropy::default().from_logits(self.logits());
        Compile::new(optimizer).loss(loss).metrics(["accuracy"]).strategy(strategy)
    }

    /// Its optimizer in the tutorials.
    pub fn optimizer(self) -> Box<dyn Optimizer> {
        match self {
            Network::MnistMlp | Network::MnistCnn | Network::Resnet20 => Box::new(Adam::default()),
            Network::Minigooglenet | Network::Resnet50 => Box::new(SGD::new(5e-3).momentum(0.9)),
            Network::Vgg11 => Box::new(SGD::new(0.01).momentum(0.9)),
        }
    }

    /// The share of the training data its tutorial holds back to validate on; the others look at
    /// the test split.
    pub fn validation_share(self) -> Option<f64> {
        (self == Network::MnistMlp).then_some(1.0 / 6.0)
    }
}
