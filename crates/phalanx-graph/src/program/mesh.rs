//! The devices and workers of a program, and how they share the rows of a batch.

use super::Sharding;
use std::ops::Range;

/// Total workers of a mesh with [`Mesh::fixed`] shards; 1, 2, 4 or 8 devices share them.
pub const SHARDS: usize = 8;

/// The devices and workers that a program is compiled for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mesh {
    /// Number of replicas, each of which has its own rows of the batch: one device, or `model` devices that share its
    /// rows and divide its work.
    pub devices: usize,
    /// Workers per device.
    pub workers: usize,
    /// Devices of a replica.
    pub model: usize,
    /// Whether rows are always split into [`SHARDS`] shards and sums are trees over them, so that
    /// results do not depend on the number of devices.
    pub fixed: bool,
    /// How the training state is divided among the devices' memories.
    pub sharding: Sharding,
}

impl Mesh {
    /// A mesh of `devices` with `workers` each.
    pub const fn new(devices: usize, workers: usize) -> Mesh {
        Mesh { devices, workers, model: 1, fixed: false, sharding: Sharding::NONE }
    }

    /// A fixed mesh of [`SHARDS`] workers over `devices`; `None` unless `devices` divides them.
    pub fn fixed(devices: usize) -> Option<Mesh> {
        let divides = devices > 0 && SHARDS.is_multiple_of(devices);
        divides.then(|| Mesh { fixed: true, ..Mesh::new(devices, SHARDS / devices) })
    }

    /// The same mesh with a sharded training state.
    pub const fn sharded(self, sharding: Sharding) -> Mesh {
        Mesh { sharding, ..self }
    }

    /// The same mesh with `model` devices for each replica.
    pub const fn with_model(self, model: usize) -> Mesh {
        Mesh { model, ..self }
    }

    /// Number of workers that have different rows.
    pub fn len(&self) -> usize {
        self.devices * self.workers
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The rows of worker `worker` of device `device`. The batch is split as evenly as possible, first
    /// over devices, then over a device's workers; a fixed mesh splits it over all workers at once.
    pub fn rows(&self, rows: usize, device: usize, worker: usize) -> Range<usize> {
        if self.fixed {
            return split_range(0..rows, self.len(), device * self.workers + worker);
        }
        split_range(self.device_rows(rows, device), self.workers, worker)
    }

    /// The rows of a device.
    pub fn device_rows(&self, rows: usize, device: usize) -> Range<usize> {
        if self.fixed {
            let last = self.rows(rows, device, self.workers - 1);
            return self.rows(rows, device, 0).start..last.end;
        }
        split_range(0..rows, self.devices, device)
    }

    /// The rows of consecutive devices.
    pub fn rows_of(&self, rows: usize, devices: Range<usize>) -> Range<usize> {
        if devices.is_empty() {
            return 0..0;
        }
        let last = self.device_rows(rows, devices.end - 1);
        self.device_rows(rows, devices.start).start..last.end
    }

    /// The maximum number of rows of a device; the first devices get the remainder.
    pub fn max_device_rows(&self, rows: usize) -> usize {
        self.device_rows(rows, 0).len()
    }

    /// The maximum number of rows of a worker.
    pub fn max_rows(&self, rows: usize) -> usize {
        rows.div_ceil(self.devices).div_ceil(self.workers)
    }
}

/// Part `i` of `n` of a range. The first parts are one longer if the range does not divide evenly.
pub fn split_range(range: Range<usize>, n: usize, i: usize) -> Range<usize> {
    let (len, start) = (range.len(), range.start);
    let (each, extra) = (len / n, len % n);
    let begin = start + i * each + i.min(extra);
    begin..begin + each + usize::from(i < extra)
}
