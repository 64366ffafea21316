//! Runs step programs on NVIDIA GPUs. Nothing here is linked: the driver and its libraries are
//! looked for when a GPU is asked for, and a machine without them loses nothing.
#![deny(missing_docs)]

mod autotune;
mod cache;
mod cublas;
mod cudnn;
mod cx;
mod driver;
mod fallback;
mod gpu;
#[cfg(feature = "emulator")]
mod emulator;
mod inputs;
mod launch;
pub mod libs;
mod machine;
mod nvrtc;
mod ops;
mod schedule;
mod tape;
mod task;
