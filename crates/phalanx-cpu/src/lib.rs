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

/// Whether the kernels are compiled with optimisation; without it they are some forty times slower.
pub const OPTIMIZED: bool = !matches!(env!("PHALANX_CPU_OPT_LEVEL").as_bytes(), b"0");

#[cfg(test)]
mod tests {
    /// Tests and programs of this workspace run at full speed, and are not warned.
    #[test]
    fn a_development_build_of_the_workspace_has_optimised_kernels() {
        assert!(std::hint::black_box(super::OPTIMIZED), "{}", env!("PHALANX_CPU_OPT_LEVEL"));
    }
}
