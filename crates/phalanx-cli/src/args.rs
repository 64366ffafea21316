//! The command line as plain data.

use clap::{Args as ClapArgs, Parser, Subcommand, ValueEnum};

/// Deep learning in lockstep on every device you have.
#[derive(Debug, Parser)]
#[command(version, about, propagate_version = true)]
pub struct Args {
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
}

/// The subcommands.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Train a network and evaluate it on the test split
    #[command(after_help = "Examples:
  phalanx train mnist-mlp                      # on generated glyphs, no files needed
  phalanx train mnist-mlp --data mnist --epochs 2 --replicas 2
  phalanx train mnist-cnn --lr 0.001 --batch-size 64")]
    Train(Train),
    /// Measure training or inference speed on synthetic data
    Bench(Bench),
    /// Show a network's layers, or its compiled program and memory plan
    #[command(after_help = "Examples:
  phalanx inspect minigooglenet
  phalanx inspect mnist-mlp --program --batch-size 32 --replicas 2")]
    Inspect(Inspect),
    /// List the devices of this machine
    Devices,
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
    #[arg(long, value_delimiter = ',', conflicts_with = "replicas")]
    pub devices: Vec<String>,
    /// Number of logical CPU devices to mirror the model on
    #[arg(long)]
    pub replicas: Option<usize>,
    /// Worker threads of each CPU device (default: the cores, shared out)
    #[arg(long, default_value_t = 0)]
    pub threads: usize,
}

/// `phalanx train`.
#[derive(Debug, ClapArgs)]
pub struct Train {
    /// The network
    pub model: Network,
    /// glyphs (generated), mnist or fashion-mnist
    #[arg(long, default_value = "glyphs")]
    pub data: String,
    /// Where to run
    #[command(flatten)]
    pub place: Where,
    /// Samples per replica and step
    #[arg(long, default_value_t = 32, conflicts_with = "global_batch_size")]
    pub batch_size: usize,
    /// Samples per step over all replicas
    #[arg(long)]
    pub global_batch_size: Option<usize>,
    /// Passes over the data
    #[arg(long, default_value_t = 2)]
    pub epochs: usize,
    /// Steps per epoch (default: all the data)
    #[arg(long)]
    pub steps_per_epoch: Option<usize>,
    /// Optimizer (default: the network's own)
    #[arg(long)]
    pub optimizer: Option<String>,
    /// Learning rate (default: the optimizer's own)
    #[arg(long)]
    pub lr: Option<f64>,
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

/// `phalanx inspect`.
#[derive(Debug, ClapArgs)]
pub struct Inspect {
    /// The network
    pub model: Network,
    /// Print the compiled training program instead of the layers
    #[arg(long)]
    pub program: bool,
    /// Samples per step over all replicas (default: the network's own)
    #[arg(long)]
    pub batch_size: Option<usize>,
    /// Where it would run
    #[command(flatten)]
    pub place: Where,
}
