//! Arguments of `phalanx train`.

use super::{BatchArgs, DATA_HELP, DataArgs, DeviceArgs, Size};
use crate::network::{DataParser, ModelArg, ModelArgParser};
use clap::{Args as ClapArgs, ValueEnum};
use std::path::PathBuf;

/// The learning rate schedule.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Schedule {
    /// The same throughout
    Constant,
    /// Down to zero linearly, epoch by epoch
    Poly,
    /// Down to zero along a cosine, step by step
    Cosine,
    /// A tenth after 3 epochs, a hundredth after 7
    Steps,
}

/// An augmentation of training images.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Augment {
    /// By up to a tenth of the size, in each direction
    Shift,
    /// Left to right
    Flip,
    /// By up to 15 degrees
    Rotate,
    /// By up to a tenth
    Zoom,
    /// No augmentation
    None,
}

/// `phalanx train`.
#[derive(Clone, Debug, ClapArgs)]
pub struct Train {
    /// A network, or a model file: .keras, .h5 or .safetensors
    #[arg(value_parser = ModelArgParser, required_unless_present = "config")]
    pub model: Option<ModelArg>,
    /// Read arguments from this TOML file; its keys are the names of the flags and `model`
    #[arg(long)]
    pub config: Option<PathBuf>,
    #[arg(long, default_value = "glyphs", help = DATA_HELP)]
    #[arg(value_parser = DataParser, hide_possible_values = true)]
    pub data: String,
    /// Resize images to this size, as in 64 or 48x64 (default: their own, or the network's)
    #[arg(long)]
    pub image_size: Option<Size>,
    /// Read the images of a directory as grayscale
    #[arg(long)]
    pub grayscale: bool,
    /// Reading, splits and scale
    #[command(flatten)]
    pub data_args: DataArgs,
    /// Hold out this fraction of the training rows for validation: the last rows, as Keras does; in a directory the last of each class
    #[arg(long, value_name = "SHARE")]
    pub validation_split: Option<f64>,
    /// Devices
    #[command(flatten)]
    pub device_args: DeviceArgs,
    /// Samples per step
    #[command(flatten)]
    pub batch: BatchArgs,
    /// Passes over the data
    #[arg(long, default_value_t = 2)]
    pub epochs: usize,
    /// Steps per epoch (default: all the data); smaller data are repeated
    #[arg(long)]
    pub steps_per_epoch: Option<usize>,
    /// Optimizer: sgd, adam, adamw, rmsprop, adagrad, adadelta, adamax, nadam, ftrl, lion, lamb, adafactor, muon,
    /// schedulefreeadamw (default: the model's own)
    #[arg(long)]
    pub optimizer: Option<String>,
    /// Learning rate (default: the optimizer's own; minigooglenet 0.1 for 256 samples per replica, less for fewer)
    #[arg(long)]
    pub lr: Option<f64>,
    /// Multiply the learning rate by the number of replicas if the global batch grows with them (linear scaling)
    #[arg(long)]
    pub scale_lr: bool,
    /// Momentum of sgd
    #[arg(long)]
    pub momentum: Option<f64>,
    /// Learning rate schedule (default: poly for minigooglenet, otherwise constant)
    #[arg(long, value_enum)]
    pub schedule: Option<Schedule>,
    /// Augment training images: shift,flip,rotate,zoom (default: shift,flip for minigooglenet)
    #[arg(long, value_enum, value_delimiter = ',')]
    pub augment: Vec<Augment>,
    /// Plot loss and accuracy to this .png or .svg
    #[arg(long, short = 'o')]
    pub output: Option<PathBuf>,
    /// Save the run here after every epoch, to resume it, or as weights to evaluate or predict with
    #[arg(long)]
    pub checkpoint_dir: Option<PathBuf>,
    /// Also save every N steps
    #[arg(long, requires = "checkpoint_dir", value_parser = clap::value_parser!(u64).range(1..))]
    pub checkpoint_every: Option<u64>,
    /// Number of checkpoints to keep, newest first
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u64).range(1..))]
    pub keep: u64,
    /// Continue the run in --checkpoint-dir, if any, as if it had never ended
    #[arg(long, requires = "checkpoint_dir")]
    pub resume: bool,
    /// The same bits on 1, 2, 4 or 8 replicas, which share eight threads regardless of --threads; somewhat
    /// slower, and batch statistics are computed over the global batch
    #[arg(long)]
    pub deterministic: bool,
    /// Write TensorBoard logs here
    #[arg(long)]
    pub log_dir: Option<PathBuf>,
    /// Write a CSV line per epoch; - for standard output
    #[arg(long)]
    pub csv: Option<PathBuf>,
    /// Write a JSON object per epoch and one at the end; - for standard output
    #[arg(long)]
    pub json: Option<PathBuf>,
    /// Start from the weights in this file; for a network of keras.applications also `imagenet`, which downloads the
    /// official file, or such a file, with or without top
    #[arg(long, value_name = "FILE|imagenet")]
    pub weights: Option<PathBuf>,
    /// Save at the end: the model to .keras or .h5, its weights to .weights.h5 or .safetensors
    #[arg(long)]
    pub save: Option<PathBuf>,
    /// Seed for weights, shuffling and dropout
    #[arg(long, default_value_t = 0)]
    pub seed: u64,
    /// Keep the order of the data
    #[arg(long)]
    pub no_shuffle: bool,
    /// Skip the measurement of scaling efficiency, which runs one replica alone for about a second
    #[arg(long)]
    pub no_scaling: bool,
    /// 0: silent, 1: progress bar, 2: one line per epoch
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u8).range(0..=2))]
    pub verbose: u8,
}

impl Train {
    /// The same run for a worker that is not the chief: it writes no files and prints nothing.
    pub fn silent(&self) -> Train {
        Train {
            output: None,
            checkpoint_dir: None,
            checkpoint_every: None,
            resume: false,
            log_dir: None,
            csv: None,
            json: None,
            save: None,
            verbose: 0,
            ..self.clone()
        }
    }
}
