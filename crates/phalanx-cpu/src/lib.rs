//! placeholder

pub mod simd;
