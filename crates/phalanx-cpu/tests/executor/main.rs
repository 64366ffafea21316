//! The executor against the reference evaluator: single ops, whole training steps, random graphs.

#[path = "../cases/mod.rs"]
mod cases;
mod errors;
mod harness;
#[path = "../../../phalanx-graph/tests/networks/mod.rs"]
mod networks;
mod ops;
mod random;
mod simulate;
mod train;
