//! The executor against the reference evaluator: single ops, whole training steps, random graphs.

// `gradcheck` needs parts that are of no use here.
#[allow(dead_code)]
#[path = "../cases/mod.rs"]
mod cases;
mod errors;
mod harness;
#[path = "../../../phalanx-graph/tests/networks/mod.rs"]
mod networks;
mod ops;
mod random;
mod simulate;
mod steps;
mod train;
