//! The networks by name: input sizes, defaults, and the compile configuration of their tutorials.

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

/// Number of classes of a network without data.
pub const DEFAULT_CLASSES: usize = 10;
/// Samples per replica for model files.
pub const DEFAULT_BATCH_SIZE: usize = 32;

/// A MODEL argument: a network by name, or a model file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ModelArg {
    /// A network that comes with Phalanx.
    Network(Network),
    /// A model file of the user.
    File(PathBuf),
}

impl ModelArg {
    /// A network if the path is the name of one, otherwise a file.
    pub fn from_path(path: &Path) -> ModelArg {
        let named = path.to_str().and_then(|name| Network::from_str(name, false).ok());
        named.map_or_else(|| ModelArg::File(path.into()), ModelArg::Network)
    }
}

/// Parses a [`ModelArg`]. Names take precedence; a value with a dot or slash, or an existing path, is a file.
#[derive(Clone)]
pub struct ModelArgParser;

impl TypedValueParser for ModelArgParser {
    type Value = ModelArg;

    fn parse_ref(
        &self,
        command: &clap::Command,
        argument: Option<&clap::Arg>,
        value: &OsStr,
    ) -> Result<ModelArg, clap::Error> {
        let named = EnumValueParser::<Network>::new().parse_ref(command, argument, value);
        let text = value.to_string_lossy();
        let path = PathBuf::from(value);
        match named {
            Ok(network) => Ok(ModelArg::Network(network)),
            Err(_) if text.contains(['.', '/']) || path.exists() => Ok(ModelArg::File(path)),
            Err(error) => Err(error),
        }
    }

    fn possible_values(&self) -> Option<Box<dyn Iterator<Item = PossibleValue> + '_>> {
        Some(Box::new(Network::value_variants().iter().filter_map(Network::to_possible_value)))
    }
}

/// Parses `--data`: any text. Shell completions offer the known datasets.
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
    /// The name on the command line.
    pub fn name(self) -> String {
        self.to_possible_value().map_or(String::new(), |value| value.get_name().into())
    }

    /// The network with this name, as on the command line or as the library names the model.
    pub fn by_name(name: &str) -> Option<Network> {
        let plain = |name: &str| name.replace(['-', '_'], "");
        let same = |network: &&Network| plain(&network.name()) == plain(name);
        Network::value_variants().iter().find(same).copied()
    }

    /// The default dimensions of a sample.
    pub fn default_input(self) -> Vec<usize> {
        match self {
            Network::MnistMlp | Network::MnistCnn => vec![28, 28, 1],
            Network::Minigooglenet | Network::Resnet20 | Network::Vgg11 => vec![32, 32, 3],
            Network::Resnet50 => vec![224, 224, 3],
        }
    }

    /// The dimensions of the model's input for samples of dimensions `input`.
    pub fn dims(self, input: &[usize]) -> Vec<usize> {
        match self.min_side() {
            None => vec![input.iter().product()],
            Some(_) => input.to_vec(),
        }
    }

    /// The default number of samples per replica.
    pub fn default_batch_size(self) -> usize {
        match self {
            Network::MnistMlp | Network::Resnet20 => 32,
            Network::MnistCnn | Network::Minigooglenet | Network::Vgg11 => 64,
            Network::Resnet50 => 8,
        }
    }

    /// The minimum side of an image; `None` if samples are flat.
    pub fn min_side(self) -> Option<usize> {
        match self {
            Network::MnistMlp => None,
            Network::MnistCnn | Network::Resnet20 => Some(4),
            Network::Minigooglenet => Some(31),
            Network::Resnet50 | Network::Vgg11 => Some(32),
        }
    }

    /// Whether its tutorial feeds bytes minus the mean of the training images, rather than numbers from 0 to 1.
    pub fn subtracts_mean(self) -> bool {
        self.default_input().last() == Some(&3)
    }

    /// Whether the outputs are logits rather than probabilities.
    pub fn logits(self) -> bool {
        self == Network::MnistMlp
    }

    /// Builds the model for samples of dimensions `input` and `classes` classes.
    pub fn build(self, input: &[usize], classes: usize) -> Result<Model> {
        let elements = input.iter().try_fold(1usize, |n, d| n.checked_mul(*d));
        let image = || match *input {
            [height, width, channels] => Ok([height, width, channels]),
            _ => bail!("{}: expected [height, width, channels], received {input:?}", self.name()),
        };
        let Some(elements) = elements else { bail!("{}: {input:?} is too large", self.name()) };
        Ok(match self {
            Network::MnistMlp => applications::mnist_mlp(elements, classes)?,
            Network::MnistCnn => applications::mnist_cnn(image()?, classes)?,
            Network::Minigooglenet => applications::mini_googlenet(image()?, Some(classes))?,
            Network::Resnet50 => applications::resnet50(image()?, Some(classes))?,
            Network::Resnet20 => applications::resnet20(image()?, Some(classes))?,
            Network::Vgg11 => applications::vgg11(image()?, Some(classes))?,
        })
    }

    /// The compile configuration with the network's own optimizer.
    pub fn compile(self, strategy: impl Into<MultiWorkerMirroredStrategy>) -> Compile {
        self.compile_with(self.optimizer(), strategy)
    }

    /// The compile configuration with another optimizer.
    pub fn compile_with(
        self,
        optimizer: Box<dyn Optimizer>,
        strategy: impl Into<MultiWorkerMirroredStrategy>,
    ) -> Compile {
        let loss = SparseCategoricalCrossentropy::default().from_logits(self.logits());
        Compile::new(optimizer).loss(loss).metrics(["accuracy"]).strategy(strategy)
    }

    /// The optimizer of its tutorial.
    pub fn optimizer(self) -> Box<dyn Optimizer> {
        match self {
            Network::MnistMlp | Network::MnistCnn | Network::Resnet20 => Box::new(Adam::default()),
            Network::Minigooglenet | Network::Resnet50 => Box::new(SGD::new(5e-3).momentum(0.9)),
            Network::Vgg11 => Box::new(SGD::new(0.01).momentum(0.9)),
        }
    }

    /// The fraction of the training data that its tutorial validates on. The other tutorials use the test split.
    pub fn default_validation_split(self) -> Option<f64> {
        (self == Network::MnistMlp).then_some(1.0 / 6.0)
    }
}
