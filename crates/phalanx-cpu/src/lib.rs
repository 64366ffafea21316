//! Runs step programs on CPU workers: kernels per instruction set, pinned threads, in-process
//! collectives; and a plain f64 evaluator that everything is checked against.
#![deny(missing_docs)]

mod between;
mod compute;
mod courier;
mod executor;
mod flush;
pub mod kernels;
mod lines;
mod memory;
mod pool;
pub mod reference;
pub mod simd;
mod slices;
mod update;
mod worker;

pub use between::overlaps;
pub use executor::{CpuExecutor, CpuOptions, memory_plan};
pub use memory::{available_memory, free_memory, physical_memory};
pub use pool::{bound_to_fewer, cores, share_cores, usable_cores};
