//! Collectives. One worker holds all rows, so its sums are whole and its means are everyone's.

use super::Value;

/// The sum over one worker.
pub(super) fn all_reduce(x: &Value) -> Value {
    x.clone()
}

/// The mean over one device.
pub(super) fn replica_mean(x: &Value) -> Value {
    x.clone()
}
