//! The ways in which the workers of a device share its work.

use super::Mesh;

/// How the work of a device is split among its workers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Split {
    /// Each worker has its own rows of the batch and its own memory.
    Rows,
    /// All workers share one memory and process all rows of the device, each its own lines of every
    /// value (the first axis after the rows), with a barrier after every instruction.
    Spatial,
}

/// When the workers of a device share work in another way than by rows. What pays off depends on the
/// executor, so its backend sets the numbers. A device of one worker never shares work.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SplitRules {
    /// A step that only computes is split spatially if a worker would have fewer rows than this.
    pub min_rows_per_worker: usize,
    /// Minimum number of floats that sharding the gradient of a dense kernel must save;
    /// `usize::MAX` for never.
    pub min_floats_saved_by_gradient: usize,
    /// The same for a product with a kernel whose gradient is sharded.
    pub min_floats_saved_by_product: usize,
}

impl SplitRules {
    /// Workers only share rows.
    pub const NONE: SplitRules = SplitRules {
        min_rows_per_worker: 0,
        min_floats_saved_by_gradient: usize::MAX,
        min_floats_saved_by_product: usize::MAX,
    };

    /// The split of a step that only computes, for a global batch of `rows`.
    pub fn split(self, mesh: Mesh, rows: usize) -> Split {
        let replica_rows = rows.div_ceil(mesh.replicas.max(1));
        let few_rows = replica_rows < mesh.workers.saturating_mul(self.min_rows_per_worker);
        if mesh.workers > 1 && few_rows { Split::Spatial } else { Split::Rows }
    }
}
