//! The replicas of several processes.

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

/// The processes of a job and the number of replicas of each.
#[derive(Clone)]
pub struct Cluster {
    /// The processes.
    pub peers: Arc<dyn ProcessGroup>,
    /// Number of replicas of each process, by rank.
    pub replicas: Vec<usize>,
}

impl Cluster {
    /// The indices of this process' `own` replicas among all replicas.
    ///
    /// # Errors
    /// The table of replicas does not match `own` or the number of processes, or the total overflows.
    pub fn check(&self, own: usize) -> Result<Range<usize>, ExecError> {
        let (rank, size) = (self.peers.rank(), self.peers.size());
        let all = self.replicas.iter().try_fold(0usize, |sum, n| sum.checked_add(*n));
        if size == self.replicas.len() && self.replicas.get(rank) == Some(&own) && all.is_some() {
            return Ok(self.replicas_of(rank));
        }
        let received = format!("{:?} replicas of {size} processes", self.replicas);
        let reason = format!("expected {own} replicas of process {rank}, received {received}");
        Err(ExecError::Program { name: "any".into(), reason })
    }

    /// The total number of replicas.
    pub fn all_replicas(&self) -> usize {
        self.replicas.iter().sum()
    }

    /// The indices of a process' replicas among all replicas, which are ordered by rank.
    pub fn replicas_of(&self, rank: usize) -> Range<usize> {
        let first = self.replicas[..rank].iter().sum();
        first..first + self.replicas[rank]
    }

    /// The indices of this process' replicas.
    pub fn own_replicas(&self) -> Range<usize> {
        self.replicas_of(self.peers.rank())
    }
}

/// The replicas of a mesh that belong to one process, which computes their rows of every batch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LocalShard {
    /// The mesh of all processes.
    pub mesh: Mesh,
    /// The replicas of this process.
    pub replicas: Range<usize>,
}

impl LocalShard {
    /// The rows of a batch that belong to the shard.
    pub fn rows(&self, rows: usize) -> Range<usize> {
        self.mesh.rows_of(rows, self.replicas.clone())
    }

    /// Whether the shard has all replicas.
    pub fn is_whole(&self) -> bool {
        self.replicas == (0..self.mesh.replicas)
    }
}
