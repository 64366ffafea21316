//! placeholder

pub mod reference;
pub mod kernels;
pub mod simd;
