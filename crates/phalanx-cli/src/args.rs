//! The command line as plain data.

use crate::network::{Choice, ChoiceParser, DataParser};
use clap::builder::RangedU64ValueParser;
use clap::{Args as ClapArgs, Parser, Subcommand, ValueEnum};
use phalanx::prelude::DeviceKind;
use serde::{Deserialize, Serialize};
use std::path::PathBuf;

/// What `--data` takes, for every command's help.
const DATA_HELP: &str = "glyphs (generated), mnist, fashion-mnist, cifar-10, cifar-100, a directory with \
                         one sub-directory of images per class, an .npz (x, y; or x_train, y_train; with them \
                         x_val, y_val, x_test, y_test and sample_weight; x_NAME, y_NAME for several inputs or \
                         outputs) or a .csv (a line of names, the label in the last column)";

/// Deep learning in lockstep on every device you have.
#[derive(Debug, Parser)]
#[command(version, about = "Deep learning in lockstep on every device you have")]
#[command(propagate_version = true)]
#[command(after_help = "Exit codes: 0 done, 1 failed (one line on standard error says why), \
                        2 arguments not understood, 75 ended by SIGINT, SIGTERM or SIGUSR1 after its step, \
                        the run saved where it has a --checkpoint-dir (130: by a second signal, \
                        at once), 76 another worker was lost: start again with --resume, \
                        141 a training whose output was closed.")]
pub struct Args {
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
}

/// The subcommands.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Train a network and evaluate it on the test rows
    #[command(allow_negative_numbers = true)]
    #[command(after_help = "Examples:
  phalanx train mnist-mlp                            # on generated glyphs, no files needed
  phalanx train mnist-mlp --data mnist --epochs 2 --replicas 2
  phalanx train mnist-cnn --data mnist --epochs 12 --schedule steps --log-dir logs --checkpoint-dir ckpt
  phalanx train minigooglenet --data cifar-10 --gpus 1 --epochs 70 --output plot.png
  phalanx train mnist-cnn --data flowers/ --image-size 64 --save flowers.safetensors
  phalanx train model.keras --data mnist --rescale --save trained.keras      # described in Python, read by it
  phalanx train model.keras --data houses.csv --label price --categories one-hot --test-split 0.2
  phalanx train resnet50 --weights resnet50_notop.h5 --data flowers/ --image-size 224
  phalanx train mnist-cnn --checkpoint-dir ckpt --checkpoint-every 100 --resume     # begins or goes on
  phalanx train --config run.toml --epochs 20        # what the command line says comes first
  mpirun -n 4 --bind-to none phalanx train minigooglenet --data cifar-10 --global-batch-size 256 \\
      --checkpoint-dir ckpt --resume                 # several machines (built with --features mpi)

A run.toml has the names of the flags as keys:
  model = \"mnist-cnn\"
  data = \"mnist\"
  epochs = 12
  augment = [\"shift\", \"zoom\"]
  no-shuffle = true

All rows of your own data train, unless --validation-split, --test-split or arrays such as x_test say otherwise. On a named dataset \
mnist-mlp validates on the last sixth of the training rows, the others on the test rows, as in their tutorials. A model file gets \
data as Keras would feed them: bytes count from 0 to 255 unless --rescale says otherwise. The header says all of it. \
Epochs in files count from 1.")]
    Train(Box<Train>),
    /// Evaluate a saved model on the test split of a dataset
    #[command(after_help = "Examples:
  phalanx evaluate ckpt                              # the newest checkpoint in it that is whole
  phalanx evaluate model.keras --data mnist
  phalanx evaluate resnet50.h5 --model resnet50 --data photos/
  phalanx evaluate flowers.safetensors --data flowers/ --confusion matrix.png --samples samples.png")]
    Evaluate(Evaluate),
    /// Name the class of images, or run a network over an array
    #[command(after_help = "Examples:
  phalanx predict flowers.safetensors rose.jpg tulip.png --top 3
  phalanx predict mnist.safetensors --input x.npy --output y.npy
  phalanx predict model.keras --input x.npz --output y.npz      # arrays named after inputs and outputs
  phalanx predict houses.keras --input new.csv --output y.npy   # columns as in the table it was trained on")]
    Predict(Predict),
    /// Measure training or inference speed on synthetic data
    #[command(after_help = "Examples:
  phalanx bench mnist-cnn --batch-size 256
  phalanx bench minigooglenet --replicas 2 --batch-size 32 --json
  phalanx bench model.keras --inference
  phalanx bench minigooglenet --profile              # where the time goes
  phalanx bench minigooglenet --inference --batch-size 1
  phalanx bench minigooglenet --data cifar-10 --augment shift,flip    # do images come fast enough?
  phalanx bench mnist-mlp --width 1024 --depth 8 --json")]
    Bench(Bench),
    /// Show a network's layers, its compiled program and memory plan, or its picture
    #[command(after_help = "Examples:
  phalanx inspect minigooglenet
  phalanx inspect model.keras                        # what the file holds
  phalanx inspect ckpt                               # what its newest checkpoint that is whole holds
  phalanx inspect minigooglenet --picture model.svg
  phalanx inspect mnist-mlp --program --batch-size 32 --replicas 2")]
    Inspect(Inspect),
    /// Write a model file in another format
    #[command(after_help = "The names say the formats: .keras and .h5 hold whole models, \
                            .weights.h5 and .safetensors weights.
Example:
  phalanx convert model.h5 model.keras")]
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
    /// List, fetch or describe datasets
    #[command(after_help = "Examples:
  phalanx data list
  phalanx data fetch cifar-10
  phalanx data info flowers/")]
    Data {
        /// What to do; without it, list
        #[command(subcommand)]
        what: Option<DataCommand>,
    },
    /// List the devices of this machine, and which of them train uses
    Devices {
        /// Print one JSON object
        #[arg(long)]
        json: bool,
    },
    /// Look for NVIDIA's libraries and at what else training depends on; fails where train would
    Doctor,
    /// Show what training takes of a device's memory, and the largest batch that fits
    #[command(after_help = "Examples:
  phalanx plan resnet50 --batch-size 64 --device gpu
  phalanx plan minigooglenet --device gpu --memory 16GiB
  phalanx plan resnet50 --device gpu --precision mixed_bfloat16
  phalanx plan model.keras --devices gpu:0,gpu:1 --batch-size 256

No GPU is needed or touched. A replica's part of the batch counts, as in train.")]
    Plan(Plan),
    /// Print a completion script for a shell
    #[command(after_help = "Example:
  phalanx completions bash > /etc/bash_completion.d/phalanx")]
    Completions {
        /// The shell
        shell: clap_complete::Shell,
    },
}

/// `phalanx data`.
#[derive(Debug, Subcommand)]
pub enum DataCommand {
    /// List the datasets and where their files are
    List,
    /// Fetch the files of a dataset, unless they are here
    Fetch {
        /// mnist, fashion-mnist, cifar-10, cifar-100
        #[arg(value_parser = DataParser, hide_possible_values = true)]
        name: String,
    },
    /// Describe a dataset or files of your own: samples, shape, classes
    Info {
        #[arg(help = DATA_HELP, value_parser = DataParser, hide_possible_values = true)]
        data: String,
    },
}

/// Where to run.
#[derive(Clone, Debug, Default, ClapArgs)]
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
    #[arg(long, value_parser = RangedU64ValueParser::<usize>::new().range(1..))]
    pub threads: Option<usize>,
    /// Seconds that a worker waits for the others, where mpirun or another launcher started several
    #[arg(long, default_value_t = 60, value_parser = clap::value_parser!(u64).range(1..=86_400))]
    pub collective_timeout: u64,
    /// How GPUs store activations; CPU devices always use 32-bit floats
    #[arg(long, default_value = "float32")]
    pub precision: PrecisionArg,
}

/// How activations are stored.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum PrecisionArg {
    /// 32-bit floats, whose products may be rounded for the tensor cores
    #[default]
    Float32,
    /// Keras' policy: 16 bits with the range of 32-bit floats; weights stay 32-bit
    #[value(name = "mixed_bfloat16", alias = "bf16")]
    MixedBfloat16,
    /// Keras' policy: 16-bit floats with more digits and less range; the loss is scaled, on any device
    #[value(name = "mixed_float16", alias = "f16")]
    MixedFloat16,
}

/// How many samples make a step.
#[derive(Clone, Copy, Debug, ClapArgs)]
pub struct Batch {
    /// Samples per replica and step (default: the network's own)
    #[arg(long, conflicts_with = "global_batch_size")]
    pub batch_size: Option<usize>,
    /// Samples per step over all replicas
    #[arg(long)]
    pub global_batch_size: Option<usize>,
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
    /// Not at all
    None,
}

/// Height and width of images, as in `64` or `48x64`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Size {
    /// Pixels from top to bottom.
    pub height: usize,
    /// Pixels from left to right.
    pub width: usize,
}

impl std::str::FromStr for Size {
    type Err = String;

    fn from_str(text: &str) -> Result<Size, String> {
        let (height, width) = text.split_once('x').unwrap_or((text, text));
        let side = |text: &str| text.parse().ok().filter(|n| (1..=4096).contains(n));
        match (side(height), side(width)) {
            (Some(height), Some(width)) => Ok(Size { height, width }),
            _ => Err("expected sides of 1 to 4096, as in 64 or 48x64".into()),
        }
    }
}

/// A factor and an offset for inputs, as in `1/255` or `1/127.5,-1`.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Rescale {
    /// What inputs are divided by.
    pub divisor: f32,
    /// What is then added.
    #[serde(default)]
    pub offset: f32,
}

impl std::str::FromStr for Rescale {
    type Err = String;

    fn from_str(text: &str) -> Result<Rescale, String> {
        let number = |text: &str| text.trim().parse::<f64>().ok().filter(|v| v.is_finite());
        let (scale, offset) = text.split_once(',').unwrap_or((text, "0"));
        let (above, below) = scale.split_once('/').unwrap_or((scale, "1"));
        let divisor = number(above).zip(number(below)).map(|(above, below)| below / above);
        let divisor = divisor.map(|d| d as f32).filter(|d| d.is_finite() && *d != 0.0);
        match divisor.zip(number(offset)) {
            Some((divisor, offset)) => Ok(Rescale { divisor, offset: offset as f32 }),
            None => {
                Err("expected a factor and, if any, an offset, as in 1/255 or 1/127.5,-1".into())
            }
        }
    }
}

/// How words of a table become numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum CategoriesArg {
    /// A column of 0 and 1 for each word
    OneHot,
    /// The word's number in alphabetical order
    Index,
}

/// What becomes of missing values of a table.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum MissingArg {
    /// The mean of the column; a category of its own among words
    Mean,
    /// Zero; a category of its own among words
    Zero,
    /// The row is left out
    Drop,
}

/// How data are read, split and scaled.
#[derive(Clone, Debug, Default, ClapArgs)]
pub struct DataArgs {
    /// Hold back this share of the rows to test on: the last ones, of a directory the last of each class
    #[arg(long, value_name = "SHARE")]
    pub test_split: Option<f64>,
    /// Multiply all inputs by a factor and add an offset, as in --rescale=1/127.5,-1; alone it is 1/255. It is kept with what is trained
    #[arg(long, value_name = "FACTOR[,OFFSET]", num_args = 0..=1, require_equals = true, default_missing_value = "1/255")]
    pub rescale: Option<Rescale>,
    /// Columns of a .csv that the model learns to give, by name or by number from 0 (default: the last)
    #[arg(long, value_name = "COLUMN", value_delimiter = ',')]
    pub label: Vec<String>,
    /// The column of a .csv that weighs the samples' losses
    #[arg(long, value_name = "COLUMN")]
    pub sample_weight: Option<String>,
    /// How words in the input columns of a .csv become numbers
    #[arg(long, value_enum)]
    pub categories: Option<CategoriesArg>,
    /// What becomes of missing values in a .csv
    #[arg(long, value_enum)]
    pub missing: Option<MissingArg>,
    /// The .csv has no line of names
    #[arg(long)]
    pub no_header: bool,
    /// The loss of a model file, in the place of its own: mse, mae, binary_crossentropy and so on
    #[arg(long)]
    pub loss: Option<String>,
}

/// `phalanx train`.
#[derive(Clone, Debug, ClapArgs)]
pub struct Train {
    /// The network, or a file with a model: .keras, .h5 or .safetensors
    #[arg(value_parser = ChoiceParser, required_unless_present = "config")]
    pub model: Option<Choice>,
    /// Take arguments from this TOML file, whose keys are the names of the flags and `model`
    #[arg(long)]
    pub config: Option<PathBuf>,
    #[arg(long, default_value = "glyphs", help = DATA_HELP)]
    #[arg(value_parser = DataParser, hide_possible_values = true)]
    pub data: String,
    /// Bring images to this size, as in 64 or 48x64 (default: their own, or the network's)
    #[arg(long)]
    pub image_size: Option<Size>,
    /// Read the images of a directory in shades of grey
    #[arg(long)]
    pub grayscale: bool,
    /// Reading, splits and scale
    #[command(flatten)]
    pub reading: DataArgs,
    /// Hold back this share of the training rows to validate on: the last ones, as Keras does; of a directory the last of each class
    #[arg(long, value_name = "SHARE")]
    pub validation_split: Option<f64>,
    /// Where to run
    #[command(flatten)]
    pub place: Where,
    /// Samples of a step
    #[command(flatten)]
    pub batch: Batch,
    /// Passes over the data
    #[arg(long, default_value_t = 2)]
    pub epochs: usize,
    /// Steps per epoch (default: all the data); where the data have fewer, they start again
    #[arg(long)]
    pub steps_per_epoch: Option<usize>,
    /// Optimizer: sgd, adam, adamw, rmsprop, adagrad, nadam, lion (default: the model's own)
    #[arg(long)]
    pub optimizer: Option<String>,
    /// Learning rate (default: the optimizer's own; minigooglenet 0.1 for 256 samples per replica, less for fewer)
    #[arg(long)]
    pub lr: Option<f64>,
    /// Momentum of sgd
    #[arg(long)]
    pub momentum: Option<f64>,
    /// How the learning rate changes (default: poly for minigooglenet, else constant)
    #[arg(long, value_enum)]
    pub schedule: Option<Schedule>,
    /// Distort training images: shift,flip,rotate,zoom (default: shift,flip for minigooglenet)
    #[arg(long, value_enum, value_delimiter = ',')]
    pub augment: Vec<Augment>,
    /// Draw loss and accuracy into this .png or .svg
    #[arg(long, short = 'o')]
    pub output: Option<PathBuf>,
    /// Save the run here after every epoch: to resume it, and as weights to evaluate or predict with
    #[arg(long)]
    pub checkpoint_dir: Option<PathBuf>,
    /// Save every so many steps too
    #[arg(long, requires = "checkpoint_dir", value_parser = clap::value_parser!(u64).range(1..))]
    pub checkpoint_every: Option<u64>,
    /// Checkpoints to keep, the newest
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u64).range(1..))]
    pub keep: u64,
    /// Continue the run in --checkpoint-dir, where there is one, as if it had never ended
    #[arg(long, requires = "checkpoint_dir")]
    pub resume: bool,
    /// The same bits on 1, 2, 4 or 8 replicas, which share eight threads whatever --threads says; costs
    /// some speed, and batch statistics are those of the whole batch
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
    /// Start from the weights of this file; for resnet50 it may be one of the official ImageNet files,
    /// with or without top
    #[arg(long)]
    pub weights: Option<PathBuf>,
    /// Save at the end: the model into .keras or .h5, its weights into .weights.h5 or .safetensors
    #[arg(long)]
    pub save: Option<PathBuf>,
    /// Seed of weights, shuffling and dropout
    #[arg(long, default_value_t = 0)]
    pub seed: u64,
    /// Keep the order of the data
    #[arg(long)]
    pub no_shuffle: bool,
    /// Do not measure one replica alone (about a second) to tell how well several scale
    #[arg(long)]
    pub no_scaling: bool,
    /// 0 nothing, 1 a live bar, 2 a line per epoch
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u8).range(0..=2))]
    pub verbose: u8,
}

impl Train {
    /// The same run on a worker that writes no files and prints nothing.
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

/// `phalanx evaluate`.
#[derive(Debug, ClapArgs)]
pub struct Evaluate {
    /// A file with a model or weights, or a directory of checkpoints, of which the newest whole one is taken
    pub file: PathBuf,
    /// The network, or file with a model, that weights belong to (default: what the file says)
    #[arg(long, value_parser = ChoiceParser)]
    pub model: Option<Choice>,
    /// Weights for the network or model that FILE then names
    #[arg(long, conflicts_with = "model")]
    pub weights: Option<PathBuf>,
    /// The data, as train takes them (default: what the network was trained on)
    #[arg(long, value_parser = DataParser, hide_possible_values = true)]
    pub data: Option<String>,
    /// Reading, splits and scale
    #[command(flatten)]
    pub reading: DataArgs,
    /// Where to run
    #[command(flatten)]
    pub place: Where,
    /// Samples of a step
    #[command(flatten)]
    pub batch: Batch,
    /// Draw the confusion matrix into this .png or .svg
    #[arg(long)]
    pub confusion: Option<PathBuf>,
    /// Draw samples with their predictions into this .png or .svg
    #[arg(long)]
    pub samples: Option<PathBuf>,
}

/// `phalanx predict`.
#[derive(Debug, ClapArgs)]
pub struct Predict {
    /// A file with a model or weights, or a directory of checkpoints, of which the newest whole one is taken
    pub file: PathBuf,
    /// Images, JPEG or PNG; brought to the network's size and colours
    #[arg(required_unless_present = "input", conflicts_with = "input")]
    pub images: Vec<PathBuf>,
    /// Samples instead: a .npy, an .npz with arrays named after the inputs, or a .csv like that of training
    #[arg(long, requires = "output")]
    pub input: Option<PathBuf>,
    /// Multiply all inputs by a factor and add an offset, as train does (default: as the model was trained)
    #[arg(long, value_name = "FACTOR[,OFFSET]", num_args = 0..=1, require_equals = true, default_missing_value = "1/255")]
    pub rescale: Option<Rescale>,
    /// Write the outputs for --input to this .npy, or to an .npz with arrays named after the outputs
    #[arg(long, short = 'o', requires = "input")]
    pub output: Option<PathBuf>,
    /// Classes shown of each image, the likeliest first
    #[arg(long, default_value_t = 1)]
    pub top: usize,
    /// The network, or file with a model, that weights belong to (default: what the file says)
    #[arg(long, value_parser = ChoiceParser)]
    pub model: Option<Choice>,
    /// Where to run
    #[command(flatten)]
    pub place: Where,
}

/// `phalanx bench`.
#[derive(Debug, ClapArgs)]
pub struct Bench {
    /// The network, or a file with a model
    #[arg(value_parser = ChoiceParser)]
    pub model: Choice,
    /// Samples of a step
    #[command(flatten)]
    pub batch: Batch,
    /// Where to run
    #[command(flatten)]
    pub place: Where,
    /// Steps of each of the three windows (default: about a second's worth)
    #[arg(long)]
    pub steps: Option<usize>,
    /// Measure inference instead of training
    #[arg(long)]
    pub inference: bool,
    /// Show time, FLOP/s and bytes of every kind of op and of the slowest instructions
    #[arg(long)]
    pub profile: bool,
    /// Also feed training from a dataset, and measure how fast its batches are made
    #[arg(long, conflicts_with = "inference")]
    #[arg(value_parser = DataParser, hide_possible_values = true)]
    pub data: Option<String>,
    /// Distort those images: shift,flip,rotate,zoom
    #[arg(long, value_enum, value_delimiter = ',', requires = "data")]
    pub augment: Vec<Augment>,
    /// Units of each hidden layer (mnist-mlp)
    #[arg(long)]
    pub width: Option<usize>,
    /// Hidden layers (mnist-mlp)
    #[arg(long)]
    pub depth: Option<usize>,
    /// Print one JSON object
    #[arg(long)]
    pub json: bool,
}

/// `phalanx inspect`.
#[derive(Debug, ClapArgs)]
pub struct Inspect {
    /// The network, a file with a model, or a directory of checkpoints, of which the newest whole one is taken
    #[arg(value_parser = ChoiceParser)]
    pub model: Choice,
    /// Print the compiled training program instead of the layers
    #[arg(long)]
    pub program: bool,
    /// Draw the layers into this .png or .svg
    #[arg(long)]
    pub picture: Option<PathBuf>,
    /// Samples of a step
    #[command(flatten)]
    pub batch: Batch,
    /// Where it would run
    #[command(flatten)]
    pub place: Where,
}

/// A number of bytes, as in `16GiB` or `24GB`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bytes(pub usize);

impl std::str::FromStr for Bytes {
    type Err = String;

    fn from_str(text: &str) -> Result<Bytes, String> {
        const MOST: f64 = (1u64 << 50) as f64;
        let digits = text.find(|c: char| c != '.' && !c.is_ascii_digit()).unwrap_or(text.len());
        let (number, unit) = text.split_at(digits);
        let unit = unit.trim().to_lowercase();
        let (letter, base) = match unit.strip_suffix("ib") {
            Some(letter) => (letter, 1024.0f64),
            None => (unit.strip_suffix('b').unwrap_or(&unit), 1000.0),
        };
        let power = ["", "k", "m", "g", "t"].iter().position(|l| *l == letter && !unit.is_empty());
        let scale = power.filter(|p| *p > 0 || base == 1000.0).map(|p| base.powi(p as i32));
        let bytes = number.parse::<f64>().ok().zip(scale).map(|(n, scale)| n * scale);
        match bytes.filter(|b| (1.0..=MOST).contains(b)) {
            Some(bytes) => Ok(Bytes(bytes as usize)),
            None => Err("expected a unit and up to 1024TiB, as in 16GiB or 24GB".into()),
        }
    }
}

/// Reads `cpu` or `gpu`.
fn device_kind(text: &str) -> Result<DeviceKind, String> {
    match text {
        "cpu" => Ok(DeviceKind::Cpu),
        "gpu" => Ok(DeviceKind::Gpu),
        _ => Err("expected cpu or gpu".into()),
    }
}

/// `phalanx plan`.
#[derive(Debug, ClapArgs)]
pub struct Plan {
    /// The network, or a file with a model
    #[arg(value_parser = ChoiceParser)]
    pub model: Choice,
    /// Samples of a step
    #[command(flatten)]
    pub batch: Batch,
    /// Plan for one device of this kind: cpu or gpu (default: what train uses)
    #[arg(long, value_parser = device_kind, conflicts_with = "devices")]
    pub device: Option<DeviceKind>,
    /// Plan for these devices, such as gpu:0,gpu:1, whether this machine has them or not
    #[arg(long, value_delimiter = ',')]
    pub devices: Vec<String>,
    /// Worker threads of each CPU device (default: the cores, shared out)
    #[arg(long, value_parser = RangedU64ValueParser::<usize>::new().range(1..))]
    pub threads: Option<usize>,
    /// How GPUs store activations; CPU devices always use 32-bit floats
    #[arg(long, default_value = "float32")]
    pub precision: PrecisionArg,
    /// Memory of each GPU, or of the machine with its CPU devices, such as 16GiB: also find the largest
    /// batch that fits
    #[arg(long)]
    pub memory: Option<Bytes>,
    /// Print one JSON object
    #[arg(long)]
    pub json: bool,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn factors_may_be_fractions() {
        let rescale = |text: &str| text.parse::<Rescale>().ok().map(|r| (r.divisor, r.offset));
        assert_eq!(rescale("1/255"), Some((255.0, 0.0)));
        assert_eq!(rescale("1/127.5,-1"), Some((127.5, -1.0)));
        assert_eq!(rescale("2"), Some((0.5, 0.0)));
        for bad in ["", "0", "1/0", "nan", "1/255,inf", "a", "1//2", "1e-60"] {
            assert_eq!(rescale(bad), None, "{bad}");
        }
    }

    #[test]
    fn bytes_have_units() {
        let bytes = |text: &str| text.parse::<Bytes>().ok().map(|b| b.0);
        assert_eq!(bytes("16GiB"), Some(16 << 30));
        assert_eq!(bytes("24GB"), Some(24_000_000_000));
        assert_eq!(bytes("1.5 mib"), Some(3 << 19));
        assert_eq!(bytes("100B"), Some(100));
        // Sixteen of what?
        for bad in ["16", "", "GiB", "0", "0.1B", "-1GiB", "16XB", "1ib", "1e99", "99999TiB", "nan"]
        {
            assert_eq!(bytes(bad), None, "{bad}");
        }
    }
}
