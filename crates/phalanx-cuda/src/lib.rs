//! Executor for NVIDIA GPUs. The crate links no CUDA library: it loads the driver and the libraries
//! when a GPU is requested, so it also builds and runs on machines without them.
#![deny(missing_docs)]

mod algorithms;
mod backend;
mod bytes;
mod cache;
mod collectives;
mod cublas;
mod cudnn;
mod device;
#[cfg(feature = "emulator")]
pub mod emulator;
mod executor;
mod fallback;
mod gpu;
mod inputs;
mod launch;
mod lower;
mod lowering_context;
mod nvrtc;
mod ops;
mod plan;
mod resident_dataset;
mod schedule;
mod tape;
mod work_item;

pub use backend::{CudaBackend, driver_version, joined_executor};
pub use cache::folder as cache_folder;
pub use plan::memory_plan;
