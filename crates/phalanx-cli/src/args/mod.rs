//! The command line as plain data.

mod data;
mod device;
mod model;
mod train;

pub use data::{
    CategoriesArg, DATA_HELP, DataArgs, DataCommand, MissingArg, Rescale, ShapeArgs, Size,
};
pub use device::{BatchArgs, Bytes, DeviceArgs, PrecisionArg, Rate, ShardArg};
pub use model::{Bench, Evaluate, Inspect, MeshPlanArgs, Plan, Predict};
pub use train::{Augment, Schedule, Train};

use clap::{Parser, Subcommand};
use std::path::PathBuf;

/// Deep learning in lockstep on every device you have.
#[derive(Debug, Parser)]
#[command(name = "phalanx", version, about = "Deep learning in lockstep on every device you have")]
#[command(propagate_version = true)]
#[command(
    after_help = "Exit codes: 0 success, 1 failure (one line on standard error gives the reason), \
                        2 invalid arguments, 75 stopped by SIGINT, SIGTERM or SIGUSR1 after the current step, \
                        with the run saved if it has a --checkpoint-dir (130: stopped at once, by a second signal), \
                        76 another worker was lost: start again with --resume, \
                        141 the output of train was closed."
)]
pub struct Args {
    /// The subcommand.
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
  phalanx train model.keras --data mnist --rescale --save trained.keras      # from Keras, and back to it
  phalanx train model.keras --data houses.csv --label price --categories one-hot --test-split 0.2
  phalanx train reviews.keras --data reviews.csv --label stars --save trained.keras   # a model that takes strings
  phalanx train efficientnet-b0 --weights imagenet --data flowers/ --image-size 224
  phalanx train resnet50 --weights resnet50_notop.h5 --data flowers/ --image-size 224
  phalanx train mnist-cnn --checkpoint-dir ckpt --checkpoint-every 100 --resume     # starts or continues
  phalanx train --config run.toml --epochs 20        # the command line takes precedence
  mpirun -n 4 --bind-to none phalanx train minigooglenet --data cifar-10 --global-batch-size 256 \\
      --checkpoint-dir ckpt --resume                 # several machines (built with --features mpi)

The keys of a run.toml are the names of the flags:
  model = \"mnist-cnn\"
  data = \"mnist\"
  epochs = 12
  augment = [\"shift\", \"zoom\"]
  no-shuffle = true

All rows of your own data are used for training unless --validation-split, --test-split or arrays such as x_test hold some out. \
On a named dataset, mnist-mlp validates on the last sixth of the training rows and the other networks on the test rows, as in \
their tutorials. A model file receives data as Keras would feed them: bytes range from 0 to 255 unless --rescale is given. \
The header reports all of this. Epochs in files count from 1.")]
    Train(Box<Train>),
    /// Evaluate a saved model on the test split of a dataset
    #[command(after_help = "Examples:
  phalanx evaluate ckpt                              # its newest intact checkpoint
  phalanx evaluate model.keras --data mnist
  phalanx evaluate resnet50.h5 --model resnet50 --data photos/
  phalanx evaluate flowers.safetensors --data flowers/ --confusion matrix.png --samples samples.png")]
    Evaluate(Evaluate),
    /// Classify images, or run a network on an array
    #[command(after_help = "Examples:
  phalanx predict flowers.safetensors rose.jpg tulip.png --top 3
  phalanx predict mnist.safetensors --input x.npy --output y.npy
  phalanx predict model.keras --input x.npz --output y.npz      # arrays named after inputs and outputs
  phalanx predict houses.keras --input new.csv --output y.npy   # columns as in the training table
  phalanx predict reviews.keras --input texts.csv --output y.npy   # columns of strings, named after the inputs")]
    Predict(Predict),
    /// Measure training or inference speed on synthetic data
    #[command(after_help = "Examples:
  phalanx bench mnist-cnn --batch-size 256
  phalanx bench minigooglenet --replicas 2 --batch-size 32 --json
  phalanx bench model.keras --inference
  phalanx bench sequences.keras --input-shape 128x3  # open sizes
  phalanx bench minigooglenet --profile              # where the time goes
  phalanx bench minigooglenet --inference --batch-size 1
  phalanx bench minigooglenet --data cifar-10 --augment shift,flip    # is input fast enough?
  phalanx bench mnist-mlp --width 1024 --depth 8 --json")]
    Bench(Bench),
    /// Show a network's layers, its compiled program and memory plan, or plot its layers
    #[command(after_help = "Examples:
  phalanx inspect minigooglenet
  phalanx inspect model.keras                        # the contents of the file
  phalanx inspect ckpt                               # the contents of its newest intact checkpoint
  phalanx inspect minigooglenet --picture model.svg
  phalanx inspect mnist-mlp --program --batch-size 32 --replicas 2")]
    Inspect(Inspect),
    /// Convert a model file to another format
    #[command(after_help = "The extensions select the formats: .keras and .h5 hold whole models, \
                            .weights.h5 and .safetensors hold weights.
Example:
  phalanx convert model.h5 model.keras")]
    Convert {
        /// The file to read
        from: PathBuf,
        /// The file to write
        to: PathBuf,
    },
    /// Show the differences between two model files of any format; fails if there are any
    Diff {
        /// The first file
        left: PathBuf,
        /// The second file
        right: PathBuf,
    },
    /// List, download or describe datasets
    #[command(after_help = "Examples:
  phalanx data list
  phalanx data fetch cifar-10
  phalanx data info flowers/")]
    Data {
        /// The action (default: list)
        #[command(subcommand)]
        command: Option<DataCommand>,
    },
    /// List the devices of this machine and those that train uses
    Devices {
        /// Print one JSON object
        #[arg(long)]
        json: bool,
    },
    /// Check NVIDIA's libraries and the other requirements of training; fails if train would
    Doctor,
    /// Show the device memory that training needs, and the largest batch that fits
    #[command(after_help = "Examples:
  phalanx plan resnet50 --batch-size 64 --device gpu
  phalanx plan minigooglenet --device gpu --memory 16GiB
  phalanx plan resnet50 --device gpu --precision mixed_bfloat16
  phalanx plan model.keras --devices gpu:0,gpu:1 --batch-size 256
  phalanx plan sequences.keras --input-shape 128x3   # open sizes
  phalanx plan gpt2 --device gpu --mesh data=2,model=4 --layout gpt2.toml --shard weights --global-batch-size 16
  phalanx plan gpt2 --device gpu --mesh auto --count 8 --layout gpt2.toml --memory 80GB --flops 400T --link 200GB/s,50GB/s

No GPU is needed or used. Memory depends on each replica's share of the batch, as in train.")]
    Plan(Plan),
    /// Print a completion script for a shell
    #[command(after_help = "Example:
  phalanx completions bash > /etc/bash_completion.d/phalanx")]
    Completions {
        /// The shell
        shell: clap_complete::Shell,
    },
}
