//! Runs step programs on CPU workers: kernels per instruction set, pinned threads and collectives. The
//! [`mod@reference`] module is a plain f64 evaluator that the tests compare everything with.
#![deny(missing_docs)]

mod async_reduce;
mod backend;
mod compute;
mod denormals;
mod executor;
pub mod kernels;
mod memory;
mod optimized;
mod pool;
mod process_collectives;
pub mod reference;
mod sharded_dense;
pub mod simd;
mod spatial_split;
mod update;
mod worker;

pub use backend::CpuBackend;
pub use executor::{CpuExecutor, CpuOptions, memory_plan};
pub use memory::{available_memory, free_memory, physical_memory};
pub use optimized::OPTIMIZED;
pub use pool::{cores, restricted_cores, share_cores, usable_cores};
