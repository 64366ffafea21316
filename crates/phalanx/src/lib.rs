//! Deep learning with the vocabulary of Keras. A model is described once, compiled once into a static step
//! program, and trained in lockstep on all available devices.
//!
//! ```no_run
//! use phalanx::prelude::*;
//!
//! fn main() -> Result<()> {
//!     let digits = datasets::load("glyphs")?; // generated: no files, no network
//!     let mut model = Sequential::new()
//!         .add(Input::new([28, 28, 1]))
//!         .add(Flatten::new())
//!         .add(Dense::new(64).activation("relu"))
//!         .add(Dense::new(10).activation("softmax"))
//!         .build()?;
//!     model.compile(
//!         Compile::new("adam")
//!             .loss("sparse_categorical_crossentropy")
//!             .metrics(["accuracy"])
//!             .strategy(MirroredStrategy::cpus(2)?),
//!     )?;
//!     model.fit(digits.train, Fit::new().epochs(3))?;
//!     println!("{}", model.evaluate(digits.test)?);
//!     model.save("digits.keras")
//! }
//! ```
//!
//! # Where to look
//!
//! | topic | module |
//! |---|---|
//! | everything that a training program needs | [`prelude`] |
//! | `Sequential`, `Model`, `compile`, `fit`, `evaluate`, `predict` | [`model`] |
//! | layers | [`layers`] |
//! | custom layers, losses, metrics and activations | [`custom`] |
//! | losses, metrics, optimizers, learning rate schedules | [`losses`], [`metrics`], [`optimizers`], [`schedules`] |
//! | steps with several models, losses and optimizers | [`train_step`] |
//! | arrays, image folders, augmentation, pipelines | [`data`] |
//! | MNIST, CIFAR and your own `.npz` and `.csv` files | [`datasets`] |
//! | checkpoints, early stopping, logs | [`callbacks`] |
//! | `.keras`, `.h5` and `.safetensors` files | [`saving`] |
//! | devices of this machine, other machines | [`strategy`], [`workers`] |
//! | ready-made networks | [`applications`] |
//! | training curves, confusion matrices, graphs of a model | [`plots`] |
//!
//! # Features
//!
//! | feature | adds | without it |
//! |---|---|---|
//! | `cuda` | NVIDIA GPUs, whose libraries are loaded at run time | a GPU cannot be named |
//! | `datasets` | downloads of the datasets by name | files that are in place are read |
//! | `images` | JPEG and PNG files | [`ImageFolder`](data::ImageFolder) and [`read_image`](data::read_image) fail |
//! | `plots` | [`plots`] | its functions fail |
//! | `mpi` | several machines with CPU devices, over the system's MPI library | only workers with GPUs can join, by rendezvous |
//!
//! The first four are default features. What fails says so, and names the feature:
//! [`Error::MissingFeature`]. Without default features there remain models on CPUs, arrays, tables and
//! model files.
//!
//! The repository has a guide (`docs/guide.md`) and a description of the internals (`docs/architecture/overview.md`).
#![deny(missing_docs)]

pub mod activations;
pub mod applications;
pub mod by_name;
pub mod callbacks;

mod config;
pub mod constraints;
pub mod custom;
pub mod data;
pub mod datasets;
pub mod error;
pub mod feature_space;
pub mod history;
pub mod initializers;
mod json_float;
pub mod layer;
pub mod layers;
pub mod losses;
mod memory;
pub mod metrics;
pub mod model;
pub mod ops;
pub mod optimizers;
#[cfg(feature = "plots")]
pub mod plots;
#[cfg(not(feature = "plots"))]
#[path = "no_plots.rs"]
pub mod plots;
pub mod progress;
mod registry;
pub mod regularizers;
pub mod saving;
pub mod schedules;
mod signal;
pub mod strategy;
pub mod train_step;
pub mod workers;

pub use error::{Error, Result};
pub use phalanx_cpu::simd::Isa;
pub use phalanx_cpu::{available_memory, cores, free_memory, physical_memory, usable_cores};
pub use phalanx_distributed::{ProcessGroup, launch};
pub use phalanx_exec::ExecError;
pub use phalanx_graph::profile::{Line, Profile};
pub use phalanx_graph::program::Program;
pub use phalanx_graph::rng::Stream;
pub use phalanx_graph::text;
pub use phalanx_graph::{DType, Data, Tensor};

/// Compiles and runs the programs in the README.
#[cfg(doctest)]
#[doc = include_str!("../../../README.md")]
struct Readme;

/// Everything that a training program needs, in one import.
pub mod prelude {
    #[cfg(feature = "datasets")]
    pub use crate::callbacks::RemoteMonitor;
    pub use crate::callbacks::{
        Action, BackupAndRestore, CSVLogger, Callback, CallbackList, EarlyStopping, JsonLines,
        LambdaCallback, LearningRateScheduler, ModelCheckpoint, ReduceLROnPlateau, SwapEMAWeights,
        TensorBoard, TerminateOnNaN, View,
    };
    pub use crate::constraints::Constraint;
    pub use crate::data::{
        Arrays, Buckets, Dataset, FromDirectory, ImageDataGenerator, ImageFolder, LabelBinarizer,
        PaddedBatch, Pipeline, Prefetch, Samples, Subset, Text, to_categorical,
    };
    pub use crate::error::{Error, Result};
    pub use crate::history::History;
    pub use crate::initializers::Initializer;
    pub use crate::layer::{Layer, LayerExt, LayerHandle};
    pub use crate::layers::OutputMode;
    pub use crate::layers::classes::*;
    pub use crate::losses::classes::*;
    pub use crate::losses::{Loss, LossExt, Reduction};
    pub use crate::metrics::Metric;
    pub use crate::metrics::classes::*;
    pub use crate::model::{
        Apply, BatchWeights, Compile, Fit, Inference, Input, Logs, Model, Sequential, Shape,
        StepKind, Symbol, Symbols,
    };
    pub use crate::optimizers::classes::*;
    pub use crate::optimizers::{Optimizer, OptimizerExt, OptimizerMap};
    pub use crate::regularizers::Regularizer;
    pub use crate::saving::{Load, latest_checkpoint, load_model};
    pub use crate::schedules::{
        CosineDecay, CosineDecayRestarts, ExponentialDecay, InverseTimeDecay, LearningRate,
        LearningRateSchedule, PiecewiseConstantDecay, PolynomialDecay,
    };
    pub use crate::strategy::{
        DataParallel, DeviceKind, DeviceMesh, LayoutMap, MirroredStrategy, ModelParallel, Policy,
        Recompute, Shard, list_physical_devices, set_visible_devices,
    };
    pub use crate::workers::MultiWorkerMirroredStrategy;
    pub use crate::{Data, Tensor, applications, datasets};
}
