//! Runs step programs on NVIDIA GPUs. Nothing here is linked: the driver and its libraries are
//! looked for when a GPU is asked for, and a machine without them loses nothing.
#![deny(missing_docs)]

mod among;
mod autotune;
mod cache;
mod control;
mod crew;
mod cublas;
mod cudnn;
mod cx;
mod devices;
mod driver;
#[cfg(feature = "emulator")]
pub mod emulator;
mod executor;
mod fallback;
mod gpu;
mod inputs;
mod kept;
mod launch;
pub mod libs;
mod lower;
mod machine;
mod nccl;
mod nvrtc;
mod ops;
mod plan;
mod schedule;
mod stations;
mod tape;
mod task;

pub use cache::folder as cache_folder;
pub use control::{Place, meeting_id, peers_by_gpu};
pub use devices::{
    GpuInfo, GpuPlace, REUSE_DELAY, driver_version, executor, executor_among, gpus, joined_executor,
};
pub use plan::memory_plan;
