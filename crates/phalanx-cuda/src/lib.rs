//! Runs step programs on NVIDIA GPUs. Nothing here is linked: the driver and its libraries are
//! looked for when a GPU is asked for, and a machine without them loses nothing.
#![deny(missing_docs)]

mod autotune;
mod cache;
mod cublas;
mod cudnn;
mod cx;
mod driver;
#[cfg(feature = "emulator")]
mod emulator;
mod fallback;
mod gpu;
mod inputs;
mod launch;
pub mod libs;
mod machine;
mod nvrtc;
mod ops;
mod schedule;
mod task;
