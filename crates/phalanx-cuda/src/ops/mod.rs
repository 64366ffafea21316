//! Ops as launches: which kernel, how many threads, which arguments.

mod norm;
mod pool;
mod update;

#[cfg(all(test, feature = "emulator"))]
pub(crate) mod lab;
