//! What is between machines: several processes run one program, each with its share of the devices.
//!
//! An executor needs a single thing of them: to hand every other process some bytes and to receive some
//! from each. Sums are made from that where the numbers are, in the order of the ranks.

use crate::exec::ExecError;
use crate::graph::ParamSpec;
use crate::program::Mesh;
use crate::text::part;
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;
use thiserror::Error;

/// The other processes of a job. All of them make the same calls in the same order.
pub trait ProcessGroup: Send + Sync {
    /// This process' number, from 0: the chief's.
    fn rank(&self) -> usize;

    /// Processes in all.
    fn size(&self) -> usize;

    /// A process in words: its rank and its host.
    fn name(&self, rank: usize) -> String;

    /// How long an exchange waits, where it has a limit.
    fn timeout(&self) -> Option<Duration> {
        None
    }

    /// Says which step is under way, for messages.
    fn set_step(&self, _step: u64) {}

    /// Sends `outgoing[r]` to the process of rank `r` while `incoming[r]` is filled by it, and waits for
    /// both; sizes were agreed upon. This process' own entries are left alone.
    ///
    /// # Errors
    /// The process that could not be reached, or did not answer in time.
    fn exchange(&self, outgoing: &[&[u8]], incoming: &mut [&mut [u8]]) -> Result<(), PeerError>;

    /// A process that is gone, where that shows without asking anyone.
    fn lost_peer(&self) -> Option<PeerError> {
        None
    }

    /// Who does not answer, as far as that can be found out: asked by a process that waited for the others
    /// in vain in another way than [`exchange`](Peers::exchange), `message` says how. Nothing is exchanged
    /// any more after that.
    fn diagnose(&self, message: String) -> PeerError {
        self.lost_peer().unwrap_or(PeerError { name: "another worker".into(), message })
    }
}

/// A process that was lost.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("{}: {}", part(name), part(message))]
pub struct PeerError {
    /// Which, in words.
    pub name: String,
    /// What became of it.
    pub message: String,
}

/// Everyone's bytes by rank, of any size; this process' own among them.
pub fn all_gather(peers: &dyn ProcessGroup, mine: &[u8]) -> Result<Vec<Vec<u8>>, PeerError> {
    let (size, rank) = (peers.size(), peers.rank());
    let length = (mine.len() as u64).to_le_bytes();
    let mut lengths = vec![[0u8; 8]; size];
    let mut into: Vec<&mut [u8]> = lengths.iter_mut().map(|l| &mut l[..]).collect();
    peers.exchange(&vec![&length[..]; size], &mut into)?;
    lengths[rank] = length;
    let mut all: Vec<Vec<u8>> =
        lengths.iter().map(|l| vec![0; u64::from_le_bytes(*l) as usize]).collect();
    let mut into: Vec<&mut [u8]> = all.iter_mut().map(|v| &mut v[..]).collect();
    peers.exchange(&vec![mine; size], &mut into)?;
    all[rank].copy_from_slice(mine);
    Ok(all)
}

/// A word for bits that processes compare: FNV-1a, word by word.
pub fn digest(bits: impl Iterator<Item = u32>) -> u64 {
    bits.fold(0xcbf2_9ce4_8422_2325, |h, v| (h ^ u64::from(v)).wrapping_mul(0x0100_0000_01b3))
}

/// Fails where processes hold other bits; `digests` has a word for every parameter.
///
/// # Errors
/// The first parameter that differs, or a process that was lost.
pub fn check_equal(
    peers: &dyn ProcessGroup,
    params: &[ParamSpec],
    digests: impl Iterator<Item = u64>,
) -> Result<(), ExecError> {
    let mine: Vec<u8> = digests.flat_map(u64::to_le_bytes).collect();
    let all = all_gather(peers, &mine).map_err(|peer| ExecError::Peer { step: 0, peer })?;
    for (rank, other) in all.iter().enumerate() {
        let differs = |i: &usize| all[0].get(8 * i..8 * i + 8) != other.get(8 * i..8 * i + 8);
        if let Some(param) = (0..params.len()).find(differs) {
            return Err(ExecError::Drift {
                param: params[param].name.clone(),
                first: peers.name(0),
                second: peers.name(rank),
            });
        }
    }
    Ok(())
}

/// A process' place among others: who they are, and how many devices each of them has.
#[derive(Clone)]
pub struct Cluster {
    /// The processes.
    pub peers: Arc<dyn ProcessGroup>,
    /// Devices of each, by rank.
    pub devices: Vec<usize>,
}

impl Cluster {
    /// The devices of this process, which has `own` of them, among all.
    ///
    /// # Errors
    /// Tables that do not say that, or more devices than can be counted.
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

    /// All devices.
    pub fn all_devices(&self) -> usize {
        self.devices.iter().sum()
    }

    /// The devices of a process among all, in the order of the ranks.
    pub fn devices_of(&self, rank: usize) -> Range<usize> {
        let first = self.devices[..rank].iter().sum();
        first..first + self.devices[rank]
    }

    /// The devices of this process.
    pub fn own_devices(&self) -> Range<usize> {
        self.devices_of(self.peers.rank())
    }
}

/// Some of the devices of a mesh: a process' share of every batch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LocalShard {
    /// All devices.
    pub mesh: Mesh,
    /// Those of this process.
    pub devices: Range<usize>,
}

impl LocalShard {
    /// The share's rows of a batch.
    pub fn rows(&self, rows: usize) -> Range<usize> {
        self.mesh.rows_of(rows, self.devices.clone())
    }

    /// Whether it is all there is.
    pub fn is_whole(&self) -> bool {
        self.devices == (0..self.mesh.devices)
    }
}
