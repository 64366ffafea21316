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
pub(crate) struct Among {
    pub cluster: Cluster,
    /// The step under way, for messages.
    step: u64,
    /// What this process raises with the next step, and what any did in the last.
    raise: u64,
    raised: u64,
}

/// What GPUs of several processes find each other by, as NCCL makes it.
pub(crate) type Id = [u8; 128];

/// Says who is gone, where that shows without asking anyone.
pub(crate) type Gone = Arc<dyn Fn() -> Option<PeerError> + Send + Sync>;

/// How long GPUs of other processes are waited for where nobody says.
const LIMIT: Duration = Duration::from_secs(60);

/// The places of this process' GPUs among those of all.
#[derive(Clone)]
pub(crate) struct Seats {
    pub id: Id,
    /// Of the first that is here.
    pub first: usize,
    pub all: usize,
    pub gone: Gone,
    /// How long the others are waited for.
    pub limit: Duration,
}

impl Seats {
    /// Places for so many GPUs; the first process makes what all find each other by.
    pub fn take(
        peers: &Arc<dyn ProcessGroup>,
        gpus: usize,
        make: impl FnOnce() -> Result<Id, ExecError>,
    ) -> Result<Seats, ExecError> {
        let mut mine = (gpus as u64).to_le_bytes().to_vec();
        if peers.rank() == 0 {
            mine.extend(make()?);
        }
        let all = all_gather(&**peers, &mine).map_err(|peer| ExecError::Peer { step: 0, peer })?;
        let odd = |rank: usize, bytes: usize| {
            let message = format!("expected its number of GPUs, received {bytes} bytes");
            ExecError::Peer { step: 0, peer: PeerError { name: peers.name(rank), message } }
        };
        let mut counts = vec![];
        for (rank, bytes) in all.iter().enumerate() {
            let count = bytes.first_chunk().map(|count| u64::from_le_bytes(*count) as usize);
            counts.push(count.ok_or_else(|| odd(rank, bytes.len()))?);
        }
        let id = all[0].get(8..).and_then(|id| id.try_into().ok());
        let all_peers = peers.clone();
        Ok(Seats {
            id: id.ok_or_else(|| odd(0, all[0].len()))?,
            first: counts[..peers.rank()].iter().sum(),
            all: counts.iter().sum(),
            gone: Arc::new(move || all_peers.lost_peer()),
            limit: peers.timeout().unwrap_or(LIMIT),
        })
    }
}

/// GPUs of another process that were waited for in vain; [`Among::explain`] finds out whose.
pub(crate) fn in_vain(message: String) -> ExecError {
    ExecError::Peer { step: 0, peer: PeerError { name: "another worker".into(), message } }
}

/// Whether processes tell each other something in every run of a program: in those that update, and
/// those that add.
fn meets(program: &Program) -> bool {
    let adds = |i: &Instr| {
        matches!(i, Instr::AllReduce { scope: Scope::All, .. } | Instr::ReplicaMean { .. })
    };
    program.update().is_some() || program.instrs().iter().any(adds)
}

impl Among {
    pub fn new(cluster: Cluster) -> Among {
        Among { cluster, step: 0, raise: 0, raised: 0 }
    }

    pub fn raise(&mut self, bits: u64) {
        self.raise = bits;
    }

    pub fn raised(&self) -> u64 {
        self.raised
    }

    pub fn working_on(&mut self, step: u64) {
        self.step = step;
        self.cluster.peers.set_step(step);
    }

    fn lost(&self, peer: PeerError) -> ExecError {
        ExecError::Peer { step: self.step, peer }
    }

    /// An error of a machine: where it waited in vain for GPUs of another process, with that one's name.
    pub fn explain(&self, error: ExecError) -> ExecError {
        match error {
            ExecError::Peer { peer, .. } => self.lost(self.cluster.peers.diagnose(peer.message)),
            other => other,
        }
    }

    /// Waits until all processes are here.
    pub fn meet(&self) -> Result<(), ExecError> {
        let size = self.cluster.peers.size();
        let mut nothing: Vec<&mut [u8]> = (0..size).map(|_| &mut [][..]).collect();
        let met = self.cluster.peers.exchange(&vec![&[][..]; size], &mut nothing);
        met.map_err(|peer| self.lost(peer))
    }

    /// Tells the others what this process raises, and learns what they do.
    pub fn tell(&mut self, program: &Program) -> Result<(), ExecError> {
        if !meets(program) {
            return Ok(());
        }
        let peers = &self.cluster.peers;
        let mine = std::mem::take(&mut self.raise).to_le_bytes();
        let mut all = vec![[0; 8]; peers.size()];
        let mut into: Vec<&mut [u8]> = all.iter_mut().map(|b| &mut b[..]).collect();
        peers
            .exchange(&vec![&mine[..]; peers.size()], &mut into)
            .map_err(|peer| self.lost(peer))?;
        all[peers.rank()] = mine;
        self.raised = all.into_iter().map(u64::from_le_bytes).fold(0, |all, bits| all | bits);
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
        peers.exchange(&vec![mine; peers.size()], &mut into).map_err(|peer| self.lost(peer))?;
        parts[peers.rank()].copy_from_slice(mine);
        Ok(parts.iter().flat_map(|bytes| crate::executor::floats(bytes)).collect())
    }

    /// Fails where other processes hold other bits.
    pub fn check_same(
        &self,
        params: &[ParamSpec],
        digests: impl Iterator<Item = u64>,
    ) -> Result<(), ExecError> {
        check_equal(&*self.cluster.peers, params, digests)
    }
}
