//! The command line as plain data.

use clap::{Args as ClapArgs, Parser, Subcommand, ValueEnum};
use std::path::PathBuf;

/// Deep learning in lockstep on every device you have.
#[derive(Debug, Parser)]
#[command(version, about = "Deep learning in lockstep on every device you have")]
#[command(propagate_version = true)]
#[command(after_help = "Exit codes: 0 done, 1 failed (one line on standard error says why), \
                        2 arguments not understood.")]
pub struct Args {
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
}

/// The subcommands.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Train a network and evaluate it on the test split (mnist-mlp validates on the last sixth of
    /// the training data, the others on the test split, as in their tutorials)
    #[command(allow_negative_numbers = true)]
    #[command(after_help = "Examples:
  phalanx train mnist-mlp                            # on generated glyphs, no files needed
  phalanx train mnist-mlp --data mnist --epochs 2 --replicas 2
  phalanx train mnist-cnn --data mnist --epochs 12 --schedule steps --log-dir logs --checkpoint-dir ckpt
  phalanx train minigooglenet --data cifar-10 --augment shift,flip --schedule poly --output plot.png")]
    Train(Box<Train>),
    /// Evaluate saved weights on the test split of a dataset
    #[command(after_help = "Example:
  phalanx evaluate ckpt/ckpt-12.safetensors --model mnist-cnn --data mnist")]
    Evaluate(Evaluate),
    /// Measure training or inference speed on synthetic data
    Bench(Bench),
    /// Show a network's layers, its compiled program and memory plan, or its picture; or what a
    /// model file holds
    #[command(after_help = "Examples:
  phalanx inspect minigooglenet
  phalanx inspect model.keras
  phalanx inspect minigooglenet --picture model.svg
  phalanx inspect mnist-mlp --program --batch-size 32 --replicas 2")]
    Inspect(Inspect),
    /// Write a model file in another format
    #[command(
        after_help = "The names say the formats: .keras and .h5 hold whole models, .weights.h5 and \
                            .safetensors weights.
Example:
  phalanx convert model.h5 model.keras"
    )]
    Convert {
        /// The file to read
        from: PathBuf,
        /// The file to write
        to: PathBuf,
    },
    /// Show what differs between two model files, in any formats; fails where something does
    Diff {
        /// A file
        left: PathBuf,
        /// Another
        right: PathBuf,
    },
    /// List the datasets and where their files belong
    Data,
    /// List the devices of this machine
    Devices,
    /// Print a completion script for a shell
    Completions {
        /// The shell
        shell: clap_complete::Shell,
    },
}

/// The networks that come with Phalanx.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Network {
    /// Two hidden layers of 256 on 784 pixels
    MnistMlp,
    /// One convolution and two dense layers on 28x28 images
    MnistCnn,
    /// MiniGoogLeNet on 32x32 colour images
    Minigooglenet,
    /// ResNet50 on 224x224 colour images
    Resnet50,
}

/// Where to run.
#[derive(Clone, Debug, ClapArgs)]
pub struct Where {
    /// Devices to mirror the model on, such as cpu:0,cpu:1
    #[arg(long, value_delimiter = ',', conflicts_with_all = ["replicas", "gpus"])]
    pub devices: Vec<String>,
    /// Number of GPUs to mirror the model on
    #[arg(long, short = 'g', conflicts_with = "replicas")]
    pub gpus: Option<usize>,
    /// Number of logical CPU devices to mirror the model on
    #[arg(long)]
    pub replicas: Option<usize>,
    /// Worker threads of each CPU device (default: the cores, shared out)
    #[arg(long, default_value_t = 0, hide_default_value = true)]
    pub threads: usize,
}

/// How the learning rate changes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Schedule {
    /// Always the same
    Constant,
    /// Down to zero in a straight line, epoch by epoch
    Poly,
    /// Down to zero along a cosine, step by step
    Cosine,
    /// A tenth after 3 epochs, a hundredth after 7
    Steps,
}

/// How training images are distorted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Augment {
    /// Up to a tenth of the size, each way
    Shift,
    /// Left to right
    Flip,
    /// Up to 15 degrees
    Rotate,
    /// Up to a tenth
    Zoom,
}

/// `phalanx train`.
#[derive(Debug, ClapArgs)]
pub struct Train {
    /// The network
    pub model: Network,
    /// glyphs (generated), mnist, fashion-mnist, cifar-10 (all with ten classes)
    #[arg(long, default_value = "glyphs")]
    pub data: String,
    /// Where to run
    #[command(flatten)]
    pub place: Where,
    /// Samples per replica and step (default: the network's own)
    #[arg(long, conflicts_with = "global_batch_size")]
    pub batch_size: Option<usize>,
    /// Samples per step over all replicas
    #[arg(long)]
    pub global_batch_size: Option<usize>,
    /// Passes over the data
    #[arg(long, default_value_t = 2)]
    pub epochs: usize,
    /// Steps per epoch (default: all the data)
    #[arg(long)]
    pub steps_per_epoch: Option<usize>,
    /// Optimizer: sgd, adam, adamw, rmsprop, adagrad, nadam, lion (default: the network's own)
    #[arg(long)]
    pub optimizer: Option<String>,
    /// Learning rate (default: the optimizer's own)
    #[arg(long)]
    pub lr: Option<f64>,
    /// Momentum of sgd
    #[arg(long)]
    pub momentum: Option<f64>,
    /// How the learning rate changes
    #[arg(long, value_enum, default_value_t = Schedule::Constant)]
    pub schedule: Schedule,
    /// Distort training images: shift,flip,rotate,zoom
    #[arg(long, value_enum, value_delimiter = ',')]
    pub augment: Vec<Augment>,
    /// Draw loss and accuracy into this .png or .svg
    #[arg(long, short = 'o')]
    pub output: Option<PathBuf>,
    /// Save the weights here after every epoch
    #[arg(long)]
    pub checkpoint_dir: Option<PathBuf>,
    /// Save every so many steps instead
    #[arg(long, requires = "checkpoint_dir")]
    pub checkpoint_every: Option<u64>,
    /// Write TensorBoard logs here
    #[arg(long)]
    pub log_dir: Option<PathBuf>,
    /// Write a CSV line per epoch
    #[arg(long)]
    pub csv: Option<PathBuf>,
    /// Write a JSON object per epoch and one at the end; - for standard output
    #[arg(long)]
    pub json: Option<PathBuf>,
    /// Save the weights at the end
    #[arg(long)]
    pub save: Option<PathBuf>,
    /// Seed of weights, shuffling and dropout
    #[arg(long, default_value_t = 0)]
    pub seed: u64,
    /// Keep the order of the data
    #[arg(long)]
    pub no_shuffle: bool,
    /// 0 nothing, 1 a live bar, 2 a line per epoch
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u8).range(0..=2))]
    pub verbose: u8,
}

/// `phalanx evaluate`.
#[derive(Debug, ClapArgs)]
pub struct Evaluate {
    /// The weights
    pub file: PathBuf,
    /// The network they belong to
    #[arg(long, value_enum)]
    pub model: Network,
    /// glyphs (generated), mnist, fashion-mnist, cifar-10 (all with ten classes)
    #[arg(long, default_value = "glyphs")]
    pub data: String,
    /// Where to run
    #[command(flatten)]
    pub place: Where,
    /// Draw the confusion matrix into this .png or .svg
    #[arg(long)]
    pub confusion: Option<PathBuf>,
    /// Draw samples with their predictions into this .png or .svg
    #[arg(long)]
    pub samples: Option<PathBuf>,
}

/// `phalanx bench`.
#[derive(Debug, ClapArgs)]
pub struct Bench {
    /// The network
    pub model: Network,
    /// Samples per step over all replicas (default: the network's own)
    #[arg(long)]
    pub batch_size: Option<usize>,
    /// Where to run
    #[command(flatten)]
    pub place: Where,
    /// Steps of each of the three windows (default: about a second's worth)
    #[arg(long)]
    pub steps: Option<usize>,
    /// Measure inference instead of training
    #[arg(long)]
    pub inference: bool,
    /// Print one JSON object
    #[arg(long)]
    pub json: bool,
}

/// What to inspect.
#[derive(Clone, Debug)]
pub enum Subject {
    /// A network that comes with Phalanx
    Network(Network),
    /// A model file
    File(PathBuf),
}

impl std::str::FromStr for Subject {
    type Err = String;

    /// A name with a dot or a slash is a file's.
    fn from_str(text: &str) -> Result<Subject, String> {
        match Network::from_str(text, false) {
            Ok(network) => Ok(Subject::Network(network)),
            Err(_) if text.contains(['.', '/']) => Ok(Subject::File(text.into())),
            Err(_) => {
                let names = Network::value_variants().iter().filter_map(|n| n.to_possible_value());
                let names: Vec<String> = names.map(|n| n.get_name().to_string()).collect();
                Err(format!("expected a file or one of {}", names.join(", ")))
            }
        }
    }
}

/// `phalanx inspect`.
#[derive(Debug, ClapArgs)]
pub struct Inspect {
    /// The network (mnist-mlp, mnist-cnn, minigooglenet, resnet50) or a model file
    pub model: Subject,
    /// Print the compiled training program instead of the layers
    #[arg(long)]
    pub program: bool,
    /// Draw the layers into this .png or .svg
    #[arg(long)]
    pub picture: Option<PathBuf>,
    /// Samples per step over all replicas (default: the network's own)
    #[arg(long)]
    pub batch_size: Option<usize>,
    /// Where it would run
    #[command(flatten)]
    pub place: Where,
}
