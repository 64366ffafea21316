//! The devices of several processes.

use crate::error::ExecError;
use phalanx_distributed::{ProcessGroup, all_gather};
use phalanx_graph::{Mesh, ParamSpec};
use std::ops::Range;
use std::sync::Arc;

/// Fails unless all processes have the same `digests`, one for every parameter.
///
/// # Errors
/// The first parameter that differs, or the loss of a process.
pub fn check_equal(
    group: &dyn ProcessGroup,
    params: &[ParamSpec],
    digests: impl Iterator<Item = u64>,
) -> Result<(), ExecError> {
    let mine: Vec<u8> = digests.flat_map(u64::to_le_bytes).collect();
    let all = all_gather(group, &mine)?;
    for (rank, other) in all.iter().enumerate() {
        let differs = |i: &usize| all[0].get(8 * i..8 * i + 8) != other.get(8 * i..8 * i + 8);
        if let Some(param) = (0..params.len()).find(differs) {
            return Err(ExecError::Drift {
                param: params[param].name.clone(),
                first: group.name(0),
                second: group.name(rank),
            });
        }
    }
    Ok(())
}

/// The processes of a job and the number of devices of each.
#[derive(Clone)]
pub struct Cluster {
    /// The processes.
    pub peers: Arc<dyn ProcessGroup>,
    /// Number of devices of each process, by rank.
    pub devices: Vec<usize>,
}

impl Cluster {
    /// The indices of this process' `own` devices among all devices.
    ///
    /// # Errors
    /// The device table does not match `own` or the number of processes, or the total overflows.
    pub fn check(&self, own: usize) -> Result<Range<usize>, ExecError> {
        let (rank, size) = (self.peers.rank(), self.peers.size());
        let all = self.devices.iter().try_fold(0usize, |sum, n| sum.checked_add(*n));
        if size == self.devices.len() && self.devices.get(rank) == Some(&own) && all.is_some() {
            return Ok(self.devices_of(rank));
        }
        let received = format!("{:?} devices of {size} processes", self.devices);
        let reason = format!("expected {own} devices of process {rank}, received {received}");
        Err(ExecError::Program { name: "any".into(), reason })
    }

    /// The total number of devices.
    pub fn all_devices(&self) -> usize {
        self.devices.iter().sum()
    }

    /// The indices of a process' devices among all devices, which are ordered by rank.
    pub fn devices_of(&self, rank: usize) -> Range<usize> {
        let first = self.devices[..rank].iter().sum();
        first..first + self.devices[rank]
    }

    /// The indices of this process' devices.
    pub fn own_devices(&self) -> Range<usize> {
        self.devices_of(self.peers.rank())
    }
}

/// The devices of a mesh that belong to one process, which processes their rows of every batch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LocalShard {
    /// The mesh of all processes.
    pub mesh: Mesh,
    /// The devices of this process.
    pub devices: Range<usize>,
}

impl LocalShard {
    /// The rows of a batch that belong to the shard.
    pub fn rows(&self, rows: usize) -> Range<usize> {
        self.mesh.rows_of(rows, self.devices.clone())
    }

    /// Whether the shard has all devices.
    pub fn is_whole(&self) -> bool {
        self.devices == (0..self.mesh.devices)
    }
}
