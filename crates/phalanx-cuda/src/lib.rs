//! Executor for NVIDIA GPUs. The crate links no CUDA library: it loads the driver and the libraries
//! when a GPU is requested, so it also builds and runs on machines without them.
#![deny(missing_docs)]

mod autotune;
mod cache;
mod cublas;
mod cudnn;
mod device;
mod device_group;
mod device_threads;
mod devices;
mod driver;
#[cfg(feature = "emulator")]
pub mod emulator;
mod executor;
mod fallback;
mod gpu;
mod inputs;
mod launch;
pub mod libs;
mod lower;
mod lowering_context;
mod nccl;
mod nccl_transport;
mod nvrtc;
mod ops;
mod plan;
mod process_group;
mod resident_dataset;
mod schedule;
mod tape;
mod work_item;

pub use cache::folder as cache_folder;
pub use devices::{
    GpuInfo, GpuPlacement, REUSE_DELAY, cluster_executor, driver_version, executor, gpus,
    joined_executor,
};
pub use nccl_transport::{RankInfo, nccl_id, nccl_process_group};
pub use plan::memory_plan;
