//! Process groups: several processes run one program, each on its shard of the devices.
//!
//! Executors need a single primitive, an all-to-all exchange of bytes. Reductions are built on top of it
//! by the executor, in the order of the ranks.

use crate::exec::ExecError;
use crate::graph::ParamSpec;
use crate::program::Mesh;
use crate::text::part;
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;
use thiserror::Error;

/// The processes of a job. All of them must make the same calls in the same order.
pub trait ProcessGroup: Send + Sync {
    /// The rank of this process; rank 0 is the chief.
    fn rank(&self) -> usize;

    /// The number of processes.
    fn size(&self) -> usize;

    /// A description of a process: its rank and host.
    fn name(&self, rank: usize) -> String;

    /// The time limit of an exchange, if any.
    fn timeout(&self) -> Option<Duration> {
        None
    }

    /// Sets the step in flight, for messages.
    fn set_step(&self, _step: u64) {}

    /// Sends `outgoing[r]` to rank `r`, receives `incoming[r]` from it, and waits for both. Both sides
    /// must agree on the sizes. The entries of this process itself are ignored.
    ///
    /// # Errors
    /// The process that could not be reached or did not answer in time.
    fn exchange(&self, outgoing: &[&[u8]], incoming: &mut [&mut [u8]]) -> Result<(), PeerError>;

    /// A process that is already known to be lost, if any. Does not communicate.
    fn lost_peer(&self) -> Option<PeerError> {
        None
    }

    /// Finds out which process does not answer, as far as possible. Call it if waiting for the others
    /// failed outside of [`exchange`](ProcessGroup::exchange); `message` describes the failure. No further
    /// exchange is possible afterwards.
    fn diagnose(&self, message: String) -> PeerError {
        self.lost_peer().unwrap_or(PeerError { name: "another worker".into(), message })
    }
}

/// The loss of a process.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("{}: {}", part(name), part(message))]
pub struct PeerError {
    /// Description of the process.
    pub name: String,
    /// The cause.
    pub message: String,
}

/// The bytes of every process, by rank and of any size, including those of this process.
pub fn all_gather(group: &dyn ProcessGroup, mine: &[u8]) -> Result<Vec<Vec<u8>>, PeerError> {
    let (size, rank) = (group.size(), group.rank());
    let length = (mine.len() as u64).to_le_bytes();
    let mut lengths = vec![[0u8; 8]; size];
    let mut into: Vec<&mut [u8]> = lengths.iter_mut().map(|l| &mut l[..]).collect();
    group.exchange(&vec![&length[..]; size], &mut into)?;
    lengths[rank] = length;
    let mut all: Vec<Vec<u8>> =
        lengths.iter().map(|l| vec![0; u64::from_le_bytes(*l) as usize]).collect();
    let mut into: Vec<&mut [u8]> = all.iter_mut().map(|v| &mut v[..]).collect();
    group.exchange(&vec![mine; size], &mut into)?;
    all[rank].copy_from_slice(mine);
    Ok(all)
}

/// A digest of parameter bits, which processes compare: FNV-1a over 32-bit words.
pub fn digest(bits: impl Iterator<Item = u32>) -> u64 {
    bits.fold(0xcbf2_9ce4_8422_2325, |h, v| (h ^ u64::from(v)).wrapping_mul(0x0100_0000_01b3))
}

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
    let all = all_gather(group, &mine).map_err(|peer| ExecError::Peer { step: 0, peer })?;
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
