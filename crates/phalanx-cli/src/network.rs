//! The networks by name: input sizes, defaults, and the compile configuration of their tutorials.

use anyhow::{Result, bail};
use clap::ValueEnum;
use clap::builder::{EnumValueParser, PossibleValue, StringValueParser, TypedValueParser};
use phalanx::applications::{InputMode, VisionTransformer};
use phalanx::prelude::*;
use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::sync::LazyLock;

/// The networks that come with Phalanx.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Network {
    /// Two hidden layers of 256 on flat samples.
    MnistMlp,
    /// One convolution and two dense layers on small images.
    MnistCnn,
    /// MiniGoogLeNet on 32x32 images.
    Minigooglenet,
    /// ResNet20 on small images.
    Resnet20,
    /// VGG11 on images of 32x32 and more.
    Vgg11,
    /// A network of `keras.applications`, by its name.
    Application(&'static str),
    /// ViT-B/16 on images of 224x224.
    VitB16,
    /// A small vision transformer on images of 72x72.
    Vit,
    /// GPT-2 with 124 million parameters.
    Gpt2,
    /// Two bidirectional LSTMs on tokens.
    Lstm,
    /// One transformer block on tokens.
    Transformer,
    /// Two convolutions on tokens.
    Textcnn,
}

/// Every network.
static NETWORKS: LazyLock<Vec<Network>> = LazyLock::new(|| {
    use Network::*;
    let tutorials = [MnistMlp, MnistCnn, Minigooglenet, Resnet20, Vgg11];
    let applications = applications::names().map(Application);
    let transformers = [VitB16, Vit, Gpt2, Lstm, Transformer, Textcnn];
    tutorials.into_iter().chain(applications).chain(transformers).collect()
});

impl ValueEnum for Network {
    fn value_variants<'a>() -> &'a [Network] {
        &NETWORKS
    }

    fn to_possible_value(&self) -> Option<PossibleValue> {
        Some(PossibleValue::new(self.static_name()).help(self.about()))
    }
}

/// Tokens of the text networks.
const VOCABULARY: usize = 20_000;
/// Tokens of a text.
const TEXT_LENGTH: usize = 200;
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
        self.static_name().into()
    }

    fn static_name(self) -> &'static str {
        match self {
            Network::MnistMlp => "mnist-mlp",
            Network::MnistCnn => "mnist-cnn",
            Network::Minigooglenet => "minigooglenet",
            Network::Resnet20 => "resnet20",
            Network::Vgg11 => "vgg11",
            Network::Application(name) => name,
            Network::VitB16 => "vit-b16",
            Network::Vit => "vit",
            Network::Gpt2 => "gpt2",
            Network::Lstm => "lstm",
            Network::Transformer => "transformer",
            Network::Textcnn => "textcnn",
        }
    }

    fn about(self) -> &'static str {
        match self {
            Network::MnistMlp => "Two hidden layers of 256 on flat samples",
            Network::MnistCnn => "One convolution and two dense layers on small images",
            Network::Minigooglenet => "MiniGoogLeNet on 32x32 images",
            Network::Resnet20 => "ResNet20 on small images",
            Network::Vgg11 => "VGG11 on images of 32x32 and more",
            Network::Application(_) => "As in keras.applications, on images of 32x32 and more",
            Network::VitB16 => "Vision transformer ViT-B/16 on images of 224x224",
            Network::Vit => "Small vision transformer on images of 72x72",
            Network::Gpt2 => "GPT-2 with 124 million parameters on 1024 tokens",
            Network::Lstm => "Two bidirectional LSTMs on tokens below 20000",
            Network::Transformer => "One transformer block on tokens below 20000",
            Network::Textcnn => "Two convolutions on tokens below 20000",
        }
    }

    /// The network of `keras.applications`, if it is one.
    pub fn application(self) -> Option<applications::Application> {
        match self {
            Network::Application(name) => applications::Application::new(name).ok(),
            _ => None,
        }
    }

    /// Whether samples are sequences of tokens.
    pub fn takes_tokens(self) -> bool {
        matches!(self, Network::Gpt2 | Network::Lstm | Network::Transformer | Network::Textcnn)
    }

    /// Whether every sample has one class.
    pub fn classifies(self) -> bool {
        self != Network::Gpt2
    }

    /// The network with this name, as on the command line or as the library names the model.
    pub fn by_name(name: &str) -> Option<Network> {
        let plain = |name: &str| name.replace(['-', '_'], "").to_lowercase();
        let same = |network: &&Network| plain(&network.name()) == plain(name);
        Network::value_variants().iter().find(same).copied()
    }

    /// The default dimensions of a sample.
    pub fn default_input(self) -> Vec<usize> {
        match self {
            Network::MnistMlp | Network::MnistCnn => vec![28, 28, 1],
            Network::Minigooglenet | Network::Resnet20 | Network::Vgg11 => vec![32, 32, 3],
            Network::Application(_) => {
                self.application().map_or(vec![], |app| app.input().to_vec())
            }
            Network::VitB16 => vec![224, 224, 3],
            Network::Vit => vec![72, 72, 3],
            Network::Gpt2 => vec![applications::Gpt2::default().length],
            Network::Lstm | Network::Transformer | Network::Textcnn => vec![TEXT_LENGTH],
        }
    }

    /// The number of classes without data.
    pub fn default_classes(self) -> usize {
        if self.takes_tokens() { 2 } else { DEFAULT_CLASSES }
    }

    /// The dimensions of the output.
    pub fn output_dims(self, classes: usize) -> Vec<usize> {
        let gpt2 = applications::Gpt2::default();
        match self {
            Network::Gpt2 => vec![gpt2.length, gpt2.vocabulary],
            _ => vec![classes],
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
            Network::Lstm | Network::Transformer | Network::Textcnn => 32,
            Network::MnistCnn | Network::Minigooglenet | Network::Vgg11 | Network::Vit => 64,
            Network::Application(_) | Network::VitB16 => 8,
            Network::Gpt2 => 1,
        }
    }

    /// The minimum side of an image; `None` if samples are flat.
    pub fn min_side(self) -> Option<usize> {
        match self {
            Network::MnistMlp => None,
            Network::Gpt2 | Network::Lstm | Network::Transformer | Network::Textcnn => None,
            Network::MnistCnn | Network::Resnet20 => Some(4),
            Network::Minigooglenet => Some(31),
            Network::Application(_) | Network::Vgg11 => Some(32),
            Network::VitB16 => Some(224),
            Network::Vit => Some(72),
        }
    }

    /// Whether its tutorial feeds bytes minus the mean of the training images, rather than numbers from 0 to 1.
    pub fn subtracts_mean(self) -> bool {
        let transformer = matches!(self, Network::Vit | Network::VitB16);
        self.default_input().last() == Some(&3) && !transformer && !self.has_own_preprocessing()
    }

    /// Whether the network itself scales bytes.
    pub fn has_own_preprocessing(self) -> bool {
        self.application().is_some_and(|app| app.input_mode() == InputMode::Raw)
    }

    /// Whether the outputs are logits rather than probabilities.
    pub fn logits(self) -> bool {
        use Network::{Gpt2, Lstm, MnistMlp, Textcnn, Transformer, Vit, VitB16};
        matches!(self, MnistMlp | Vit | VitB16 | Gpt2 | Lstm | Transformer | Textcnn)
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
            Network::Resnet20 => applications::resnet20(image()?, Some(classes))?,
            Network::Vgg11 => applications::vgg11(image()?, Some(classes))?,
            Network::Application(name) => applications::Application::new(name)?
                .input_shape(image()?)
                .classes(classes)
                .build()?,
            Network::VitB16 | Network::Vit => {
                let sizes = match self {
                    Network::Vit => VisionTransformer::small(),
                    _ => VisionTransformer::default(),
                };
                VisionTransformer { image: image()?, classes, ..sizes }.build()?
            }
            Network::Gpt2 => applications::Gpt2::default().build()?,
            Network::Lstm => applications::text_lstm(VOCABULARY, elements, classes)?,
            Network::Transformer => applications::text_transformer(VOCABULARY, elements, classes)?,
            Network::Textcnn => applications::text_cnn(VOCABULARY, elements, classes)?,
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
            Network::Minigooglenet | Network::Application(_) => {
                Box::new(SGD::new(5e-3).momentum(0.9))
            }
            Network::Vgg11 => Box::new(SGD::new(0.01).momentum(0.9)),
            Network::VitB16
            | Network::Vit
            | Network::Gpt2
            | Network::Lstm
            | Network::Transformer
            | Network::Textcnn => Box::new(AdamW::new(3e-4).weight_decay(0.1)),
        }
    }

    /// The fraction of the training data that its tutorial validates on. The other tutorials use the test split.
    pub fn default_validation_split(self) -> Option<f64> {
        (self == Network::MnistMlp).then_some(1.0 / 6.0)
    }
}
