//! Runs step programs on NVIDIA GPUs. Nothing here is linked: the driver and its libraries are
//! looked for when a GPU is asked for, and a machine without them loses nothing.
#![deny(missing_docs)]

mod cx;
mod inputs;
mod launch;
mod machine;
mod ops;
mod tape;
mod task;
