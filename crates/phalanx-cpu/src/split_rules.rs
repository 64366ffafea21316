//! The rules by which the workers of a CPU device share work other than by rows.
//!
//! The numbers weigh barriers against data that move between the caches of cores. They follow from
//! the measurements in `docs/performance.md` and do not depend on the machine, so that a model has
//! the same program, and the same results, on any machine with as many workers.

use phalanx_graph::program::SplitRules;

/// The rules of CPU devices.
pub(crate) const SPLIT_RULES: SplitRules = SplitRules {
    // A worker without a row of its own would be idle.
    min_rows_per_worker: 1,
    // A sharded gradient needs no further barrier, so any saving pays off.
    min_floats_saved_by_gradient: 1,
    // 16 KiB, which pay for the two barriers around a sharded product.
    min_floats_saved_by_product: 4096,
};
