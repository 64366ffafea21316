//! The ranks of the GPUs of several processes.

use crate::error::{Error, PeerError, Result};
use crate::group::{ProcessGroup, all_gather};
use std::sync::Arc;
use std::time::Duration;

/// The NCCL unique id by which GPUs of several processes find each other.
pub type NcclId = [u8; 128];

/// Returns a peer that is known to be lost, without communicating.
pub type LivenessProbe = Arc<dyn Fn() -> Option<PeerError> + Send + Sync>;

/// Timeout for GPUs of other processes if the process group sets none.
const DEFAULT_TIMEOUT: Duration = Duration::from_secs(60);

/// The ranks of this process' GPUs among those of all processes.
#[derive(Clone)]
pub struct RankAssignment {
    /// The id of the group.
    pub id: NcclId,
    /// Rank of the first GPU of this process.
    pub first: usize,
    /// Number of GPUs of all processes.
    pub total: usize,
    /// The probe for lost processes.
    pub lost_peer: LivenessProbe,
    /// How long to wait for the other processes.
    pub timeout: Duration,
}

impl RankAssignment {
    /// Assigns ranks to `gpus` GPUs of this process. The first process creates the id and sends it
    /// to the others.
    ///
    /// # Errors
    /// The id cannot be created, or a process was lost.
    pub fn exchange(
        peers: &Arc<dyn ProcessGroup>,
        gpus: usize,
        make_id: impl FnOnce() -> Result<NcclId>,
    ) -> Result<RankAssignment> {
        let mut mine = (gpus as u64).to_le_bytes().to_vec();
        if peers.rank() == 0 {
            mine.extend(make_id()?);
        }
        let all = all_gather(&**peers, &mine)?;
        let malformed = |rank: usize, bytes: usize| {
            let message = format!("expected its number of GPUs, received {bytes} bytes");
            Error::Peer(PeerError { name: peers.name(rank), message })
        };
        let mut counts = vec![];
        for (rank, bytes) in all.iter().enumerate() {
            let count = bytes.first_chunk().map(|count| u64::from_le_bytes(*count) as usize);
            counts.push(count.ok_or_else(|| malformed(rank, bytes.len()))?);
        }
        let id = all[0].get(8..).and_then(|id| id.try_into().ok());
        let all_peers = peers.clone();
        Ok(RankAssignment {
            id: id.ok_or_else(|| malformed(0, all[0].len()))?,
            first: counts[..peers.rank()].iter().sum(),
            total: counts.iter().sum(),
            lost_peer: Arc::new(move || all_peers.lost_peer()),
            timeout: peers.timeout().unwrap_or(DEFAULT_TIMEOUT),
        })
    }
}
