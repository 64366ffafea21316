//! The devices and workers of a program, and how they share the rows of a batch.

use super::Sharding;
use std::ops::Range;

/// Total workers of a mesh with [`Mesh::fixed`] shards; 1, 2, 4 or 8 replicas share them.
pub const SHARDS: usize = 8;

/// The devices and workers that a program is compiled for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mesh {
    /// Number of replicas, each with its own rows of the batch.
    pub replicas: usize,
    /// Workers per device.
    pub workers: usize,
    /// Devices of a replica, which share its rows and divide its work.
    pub devices_per_replica: usize,
    /// Whether rows are always split into [`SHARDS`] shards and sums are trees over them, so that
    /// results do not depend on the number of replicas.
    pub fixed: bool,
    /// How the training state is divided among the devices' memories.
    pub sharding: Sharding,
}

impl Mesh {
    /// A mesh of `replicas` of one device with `workers` each.
    pub const fn new(replicas: usize, workers: usize) -> Mesh {
        Mesh { replicas, workers, devices_per_replica: 1, fixed: false, sharding: Sharding::NONE }
    }

    /// A fixed mesh of [`SHARDS`] workers over `replicas`; `None` unless `replicas` divides them.
    pub fn fixed(replicas: usize) -> Option<Mesh> {
        let divides = replicas > 0 && SHARDS.is_multiple_of(replicas);
        divides.then(|| Mesh { fixed: true, ..Mesh::new(replicas, SHARDS / replicas) })
    }

    /// The same mesh with a sharded training state.
    pub const fn sharded(self, sharding: Sharding) -> Mesh {
        Mesh { sharding, ..self }
    }

    /// The same mesh with several devices for each replica.
    pub const fn with_devices_per_replica(self, devices_per_replica: usize) -> Mesh {
        Mesh { devices_per_replica, ..self }
    }

    /// Number of workers that have different rows.
    pub fn len(&self) -> usize {
        self.replicas * self.workers
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The rows of worker `worker` of replica `replica`. The batch is split as evenly as possible, first
    /// over replicas, then over a replica's workers; a fixed mesh splits it over all workers at once.
    pub fn rows(&self, rows: usize, replica: usize, worker: usize) -> Range<usize> {
        if self.fixed {
            return split_range(0..rows, self.len(), replica * self.workers + worker);
        }
        split_range(self.replica_rows(rows, replica), self.workers, worker)
    }

    /// The rows of a replica.
    pub fn replica_rows(&self, rows: usize, replica: usize) -> Range<usize> {
        if self.fixed {
            let last = self.rows(rows, replica, self.workers - 1);
            return self.rows(rows, replica, 0).start..last.end;
        }
        split_range(0..rows, self.replicas, replica)
    }

    /// The rows of consecutive replicas.
    pub fn rows_of(&self, rows: usize, replicas: Range<usize>) -> Range<usize> {
        if replicas.is_empty() {
            return 0..0;
        }
        let last = self.replica_rows(rows, replicas.end - 1);
        self.replica_rows(rows, replicas.start).start..last.end
    }

    /// The maximum number of rows of a replica; the first replicas get the remainder.
    pub fn max_replica_rows(&self, rows: usize) -> usize {
        self.replica_rows(rows, 0).len()
    }

    /// The maximum number of rows of a worker.
    pub fn max_rows(&self, rows: usize) -> usize {
        rows.div_ceil(self.replicas).div_ceil(self.workers)
    }
}

/// Part `i` of `n` of a range. The first parts are one longer if the range does not divide evenly.
pub fn split_range(range: Range<usize>, n: usize, i: usize) -> Range<usize> {
    let (len, start) = (range.len(), range.start);
    let (each, extra) = (len / n, len % n);
    let begin = start + i * each + i.min(extra);
    begin..begin + each + usize::from(i < extra)
}
