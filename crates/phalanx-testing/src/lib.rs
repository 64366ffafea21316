//! Tests that every executor has to pass: single ops, random graphs, whole training steps and what
//! users get wrong, all against the f64 reference. An executor's own tests say how one is made (a
//! [`Lab`]) and call [`executor_tests!`].

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
