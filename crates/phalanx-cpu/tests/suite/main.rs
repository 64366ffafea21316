//! The tests of the executor, in one program so that they link once.
//! `cargo test --test suite gradcheck::` runs one module.

mod executor;
mod functions;
mod gradcheck;
mod model_axis;
mod processes;
mod recompute;
mod sharding;
