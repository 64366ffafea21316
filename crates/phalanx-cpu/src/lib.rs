//! Runs step programs on CPU workers: kernels per instruction set, pinned threads and collectives. The
//! [`mod@reference`] module is a plain f64 evaluator that the tests compare everything with.
#![deny(missing_docs)]

mod collectives;
mod compute;
mod executor;
pub mod kernels;
mod memory;
pub mod reference;
pub mod simd;
mod threads;
mod worker;

pub use collectives::process_collectives::overlap_enabled;
pub use executor::{CpuExecutor, CpuOptions, memory_plan};
pub use memory::{available_memory, free_memory, physical_memory};
pub use threads::{cores, restricted_cores, share_cores, usable_cores};

/// Whether the kernels are compiled with optimisation. Without it they are about forty times slower.
pub const OPTIMIZED: bool = !matches!(env!("PHALANX_CPU_OPT_LEVEL").as_bytes(), b"0");

#[cfg(test)]
mod tests {
    /// The workspace's tests and programs run at full speed and without a warning.
    #[test]
    fn a_development_build_of_the_workspace_has_optimised_kernels() {
        assert!(std::hint::black_box(super::OPTIMIZED), "{}", env!("PHALANX_CPU_OPT_LEVEL"));
    }
}
