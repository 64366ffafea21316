//! Arguments of the commands that take a model and do not train it.

use super::device::device_kind;
use super::{
    Augment, BatchArgs, Bytes, DataArgs, DeviceArgs, PrecisionArg, Rate, Rescale, ShapeArgs,
    ShardArg,
};
use crate::mesh_args::MeshChoice;
use crate::network::{DataParser, ModelArg, ModelArgParser};
use clap::Args as ClapArgs;
use clap::builder::RangedU64ValueParser;
use phalanx::prelude::DeviceKind;
use std::path::PathBuf;

/// `phalanx evaluate`.
#[derive(Debug, ClapArgs)]
pub struct Evaluate {
    /// A model or weights file, or a checkpoint directory, whose newest intact checkpoint is used
    pub file: PathBuf,
    /// The network or model file that the weights belong to (default: as recorded in the file)
    #[arg(long, value_parser = ModelArgParser)]
    pub model: Option<ModelArg>,
    /// Weights to load; FILE then names the network or model
    #[arg(long, conflicts_with = "model")]
    pub weights: Option<PathBuf>,
    /// The data, as for train (default: the data that the network was trained on)
    #[arg(long, value_parser = DataParser, hide_possible_values = true)]
    pub data: Option<String>,
    /// Reading, splits and scale
    #[command(flatten)]
    pub data_args: DataArgs,
    /// Devices
    #[command(flatten)]
    pub device_args: DeviceArgs,
    /// Samples per step
    #[command(flatten)]
    pub batch: BatchArgs,
    /// Plot the confusion matrix to this .png or .svg
    #[arg(long)]
    pub confusion: Option<PathBuf>,
    /// Plot samples with their predictions to this .png or .svg
    #[arg(long)]
    pub samples: Option<PathBuf>,
}

/// `phalanx predict`.
#[derive(Debug, ClapArgs)]
pub struct Predict {
    /// A model or weights file, or a checkpoint directory, whose newest intact checkpoint is used
    pub file: PathBuf,
    /// Images, JPEG or PNG; converted to the network's size and color mode
    #[arg(required_unless_present = "input", conflicts_with = "input")]
    pub images: Vec<PathBuf>,
    /// Samples instead of images: a .npy, an .npz with arrays named after the inputs, or a .csv with the columns of the training table
    #[arg(long, requires = "output")]
    pub input: Option<PathBuf>,
    /// Multiply all inputs by a factor and add an offset, as train does (default: as the model was trained)
    #[arg(long, value_name = "FACTOR[,OFFSET]", num_args = 0..=1, require_equals = true, default_missing_value = "1/255")]
    pub rescale: Option<Rescale>,
    /// Write the outputs for --input to this .npy, or to an .npz with arrays named after the outputs
    #[arg(long, short = 'o', requires = "input")]
    pub output: Option<PathBuf>,
    /// Classes shown for each image, the most probable first
    #[arg(long, default_value_t = 1)]
    pub top: usize,
    /// The network or model file that the weights belong to (default: as recorded in the file)
    #[arg(long, value_parser = ModelArgParser)]
    pub model: Option<ModelArg>,
    /// Devices
    #[command(flatten)]
    pub device_args: DeviceArgs,
    /// Open sizes
    #[command(flatten)]
    pub shapes: ShapeArgs,
}

/// `phalanx bench`.
#[derive(Debug, ClapArgs)]
pub struct Bench {
    /// A network, or a model file
    #[arg(value_parser = ModelArgParser)]
    pub model: ModelArg,
    /// Samples per step
    #[command(flatten)]
    pub batch: BatchArgs,
    /// Devices
    #[command(flatten)]
    pub device_args: DeviceArgs,
    /// Steps in each of the three windows (default: about a second's worth)
    #[arg(long)]
    pub steps: Option<usize>,
    /// Measure inference instead of training
    #[arg(long)]
    pub inference: bool,
    /// Show time, FLOP/s and bytes of every op type and of the slowest instructions
    #[arg(long)]
    pub profile: bool,
    /// Also train on a dataset, and measure how fast its batches are produced
    #[arg(long, conflicts_with = "inference")]
    #[arg(value_parser = DataParser, hide_possible_values = true)]
    pub data: Option<String>,
    /// Augment the images of --data: shift,flip,rotate,zoom
    #[arg(long, value_enum, value_delimiter = ',', requires = "data")]
    pub augment: Vec<Augment>,
    /// Units of each hidden layer (mnist-mlp)
    #[arg(long)]
    pub width: Option<usize>,
    /// Number of hidden layers (mnist-mlp)
    #[arg(long)]
    pub depth: Option<usize>,
    /// Print one JSON object
    #[arg(long)]
    pub json: bool,
    /// Open sizes
    #[command(flatten)]
    pub shapes: ShapeArgs,
}

/// `phalanx inspect`.
#[derive(Debug, ClapArgs)]
pub struct Inspect {
    /// A network, a model file, or a checkpoint directory, whose newest intact checkpoint is used
    #[arg(value_parser = ModelArgParser)]
    pub model: ModelArg,
    /// Print the compiled training program instead of the layers
    #[arg(long)]
    pub program: bool,
    /// Plot the layers to this .png or .svg
    #[arg(long)]
    pub picture: Option<PathBuf>,
    /// Samples per step
    #[command(flatten)]
    pub batch: BatchArgs,
    /// Devices
    #[command(flatten)]
    pub device_args: DeviceArgs,
    /// Open sizes
    #[command(flatten)]
    pub shapes: ShapeArgs,
}

/// `phalanx plan`.
#[derive(Debug, ClapArgs)]
pub struct Plan {
    /// A network, or a model file
    #[arg(value_parser = ModelArgParser)]
    pub model: ModelArg,
    /// Samples per step
    #[command(flatten)]
    pub batch: BatchArgs,
    /// Plan for one device of this kind: cpu or gpu (default: the devices train uses)
    #[arg(long, value_parser = device_kind, conflicts_with = "devices")]
    pub device: Option<DeviceKind>,
    /// Plan for these devices, such as gpu:0,gpu:1, whether or not this machine has them
    #[arg(long, value_delimiter = ',')]
    pub devices: Vec<String>,
    /// Threads per CPU device (default: the cores, divided evenly)
    #[arg(long, value_parser = RangedU64ValueParser::<usize>::new().range(1..))]
    pub threads: Option<usize>,
    /// How GPUs store activations (default: as the model file says, else float32); CPU devices always use 32-bit floats
    #[arg(long)]
    pub precision: Option<PrecisionArg>,
    /// Memory of each GPU, or of the machine for CPU devices, such as 16GiB; also finds the largest
    /// batch that fits
    #[arg(long)]
    pub memory: Option<Bytes>,
    /// A mesh of devices, as for train, or auto: the fastest of all meshes of --count devices that fit
    #[command(flatten)]
    pub mesh: MeshPlanArgs,
    /// Print one JSON object
    #[arg(long)]
    pub json: bool,
    /// Open sizes
    #[command(flatten)]
    pub shapes: ShapeArgs,
}

/// A mesh to plan for.
#[derive(Clone, Debug, ClapArgs)]
pub struct MeshPlanArgs {
    /// Replicas, and the devices that divide the work of each, such as data=2,model=4; or auto, which compares all meshes
    /// of --count devices
    #[arg(long, conflicts_with = "devices")]
    pub mesh: Option<MeshChoice>,
    /// What the second axis of --mesh divides: TOML such as ".*/ffn_up/kernel" = ["-", "model"]
    #[arg(long, requires = "mesh")]
    pub layout: Option<PathBuf>,
    /// What the memories divide, instead of a copy for every replica
    #[arg(long)]
    pub shard: Option<ShardArg>,
    /// Processes that the CPU devices belong to
    #[arg(long, default_value_t = 1, value_parser = RangedU64ValueParser::<usize>::new().range(1..=1024))]
    pub workers: usize,
    /// Devices of --mesh auto
    #[arg(long, default_value_t = 8, value_parser = RangedU64ValueParser::<usize>::new().range(1..=1024))]
    pub count: usize,
    /// Operations per second of a device, such as 400T; with --link also predicts the time of a step
    #[arg(long)]
    pub flops: Option<Rate>,
    /// Bytes per second that a device sends to the others of its replica and to those of other replicas, such as
    /// 200GB/s,100Gbit/s
    #[arg(long, value_delimiter = ',', num_args = 1..=2, requires = "flops")]
    pub link: Vec<Rate>,
}
