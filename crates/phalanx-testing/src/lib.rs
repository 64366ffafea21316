//! Tests that every executor must pass, all against the f64 reference: single ops, random graphs, complete
//! training steps and user errors. The tests of an executor implement [`Lab`], which creates executors, and
//! call [`executor_tests!`].

pub mod cases;
pub mod errors;
pub mod harness;
mod lab;
#[path = "../../phalanx-graph/tests/networks/mod.rs"]
pub mod networks;
pub mod ops;
pub mod peers;
pub mod random;
pub mod simulate;
pub mod steps;
pub mod train;

pub use lab::{Lab, Tolerances};
pub use phalanx_needs::needs;
