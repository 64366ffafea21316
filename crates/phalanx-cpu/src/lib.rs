//! Runs step programs on CPU workers: kernels per instruction set, pinned threads and collectives. The
//! [`mod@reference`] module is a plain f64 evaluator that the tests compare everything with.
#![deny(missing_docs)]

mod backend;
mod collectives;
mod compute;
mod executor;
pub mod kernels;
mod memory;
mod optimized;
pub mod reference;
pub mod simd;
mod split_rules;
mod threads;
mod worker;

pub use backend::CpuBackend;
pub use executor::{CpuExecutor, CpuOptions, memory_plan};
pub use memory::{available_memory, free_memory, physical_memory};
pub use optimized::OPTIMIZED;
pub use threads::{cores, restricted_cores, share_cores, usable_cores};
