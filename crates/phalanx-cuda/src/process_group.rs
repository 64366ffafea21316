//! An executor's place among those of other processes. Sums are added by the GPUs themselves; what is
//! exchanged here is the little that the host knows: bits that processes raise, and rows that were fetched.

use crate::executor::as_bytes;
use phalanx_graph::exec::ExecError;
use phalanx_graph::process_group::{Cluster, PeerError, ProcessGroup, all_gather, check_equal};
use phalanx_graph::program::{Instr, Mesh, Program};
use phalanx_graph::{ParamSpec, Scope};
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

/// Other processes, and what this one and they have raised.
pub(crate) struct PeerGroup {
    pub cluster: Cluster,
    /// The step under way, for messages.
    step: u64,
    /// What this process raises with the next step, and what any did in the last.
    own_flags: u64,
    flags: u64,
}

/// What GPUs of several processes find each other by, as NCCL makes it.
pub(crate) type NcclId = [u8; 128];

/// Says who is gone, where that shows without asking anyone.
pub(crate) type LivenessProbe = Arc<dyn Fn() -> Option<PeerError> + Send + Sync>;

/// How long GPUs of other processes are waited for where nobody says.
const DEFAULT_TIMEOUT: Duration = Duration::from_secs(60);

/// The places of this process' GPUs among those of all.
#[derive(Clone)]
pub(crate) struct RankAssignment {
    pub id: NcclId,
    /// Of the first that is here.
    pub first: usize,
    pub total: usize,
    pub lost_peer: LivenessProbe,
    /// How long the others are waited for.
    pub timeout: Duration,
}

impl RankAssignment {
    /// Places for so many GPUs; the first process makes what all find each other by.
    pub fn exchange(
        peers: &Arc<dyn ProcessGroup>,
        gpus: usize,
        make_id: impl FnOnce() -> Result<NcclId, ExecError>,
    ) -> Result<RankAssignment, ExecError> {
        let mut mine = (gpus as u64).to_le_bytes().to_vec();
        if peers.rank() == 0 {
            mine.extend(make_id()?);
        }
        let all = all_gather(&**peers, &mine).map_err(|peer| ExecError::Peer { step: 0, peer })?;
        let malformed = |rank: usize, bytes: usize| {
            let message = format!("expected its number of GPUs, received {bytes} bytes");
            ExecError::Peer { step: 0, peer: PeerError { name: peers.name(rank), message } }
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

/// GPUs of another process that were waited for in vain; [`PeerGroup::explain`] finds out whose.
pub(crate) fn peer_timeout(message: String) -> ExecError {
    ExecError::Peer { step: 0, peer: PeerError { name: "another worker".into(), message } }
}

/// Whether processes tell each other something in every run of a program: in those that update, and
/// those that add.
fn needs_exchange(program: &Program) -> bool {
    let adds = |i: &Instr| {
        matches!(i, Instr::AllReduce { scope: Scope::All, .. } | Instr::ReplicaMean { .. })
    };
    program.update().is_some() || program.instrs().iter().any(adds)
}

impl PeerGroup {
    pub fn new(cluster: Cluster) -> PeerGroup {
        PeerGroup { cluster, step: 0, own_flags: 0, flags: 0 }
    }

    pub fn set_flags(&mut self, bits: u64) {
        self.own_flags = bits;
    }

    pub fn flags(&self) -> u64 {
        self.flags
    }

    pub fn set_step(&mut self, step: u64) {
        self.step = step;
        self.cluster.peers.set_step(step);
    }

    fn peer_error(&self, peer: PeerError) -> ExecError {
        ExecError::Peer { step: self.step, peer }
    }

    /// An error of a machine: where it waited in vain for GPUs of another process, with that one's name.
    pub fn explain(&self, error: ExecError) -> ExecError {
        match error {
            ExecError::Peer { peer, .. } => {
                self.peer_error(self.cluster.peers.diagnose(peer.message))
            }
            other => other,
        }
    }

    /// Waits until all processes are here.
    pub fn barrier(&self) -> Result<(), ExecError> {
        let size = self.cluster.peers.size();
        let mut nothing: Vec<&mut [u8]> = (0..size).map(|_| &mut [][..]).collect();
        let met = self.cluster.peers.exchange(&vec![&[][..]; size], &mut nothing);
        met.map_err(|peer| self.peer_error(peer))
    }

    /// Tells the others what this process raises, and learns what they do.
    pub fn exchange_flags(&mut self, program: &Program) -> Result<(), ExecError> {
        if !needs_exchange(program) {
            return Ok(());
        }
        let peers = &self.cluster.peers;
        let mine = std::mem::take(&mut self.own_flags).to_le_bytes();
        let mut all = vec![[0; 8]; peers.size()];
        let mut into: Vec<&mut [u8]> = all.iter_mut().map(|b| &mut b[..]).collect();
        peers
            .exchange(&vec![&mine[..]; peers.size()], &mut into)
            .map_err(|peer| self.peer_error(peer))?;
        all[peers.rank()] = mine;
        self.flags = all.into_iter().map(u64::from_le_bytes).fold(0, |all, bits| all | bits);
        Ok(())
    }

    /// All rows of a fetch, given those of this process; a row has so many numbers.
    pub fn gather_rows(
        &self,
        mesh: Mesh,
        rows: usize,
        width: usize,
        own: &[f32],
    ) -> Result<Vec<f32>, ExecError> {
        let peers = &self.cluster.peers;
        let range = |rank: usize| -> Range<usize> {
            let rows = mesh.rows_of(rows, self.cluster.devices_of(rank));
            rows.start * width..rows.end * width
        };
        let mut parts: Vec<Vec<u8>> =
            (0..peers.size()).map(|rank| vec![0; range(rank).len() * 4]).collect();
        let mine = as_bytes(own);
        let mut into: Vec<&mut [u8]> = parts.iter_mut().map(Vec::as_mut_slice).collect();
        peers
            .exchange(&vec![mine; peers.size()], &mut into)
            .map_err(|peer| self.peer_error(peer))?;
        parts[peers.rank()].copy_from_slice(mine);
        Ok(parts.iter().flat_map(|bytes| crate::executor::floats(bytes)).collect())
    }

    /// Fails where other processes hold other bits.
    pub fn check_consistency(
        &self,
        params: &[ParamSpec],
        digests: impl Iterator<Item = u64>,
    ) -> Result<(), ExecError> {
        check_equal(&*self.cluster.peers, params, digests)
    }
}
