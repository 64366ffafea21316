//! Communication between the hosts of a multi-process executor. The GPUs reduce among themselves;
//! the hosts exchange only flags and fetched rows.

use crate::bytes::as_bytes;
use phalanx_distributed::{PeerError, barrier};
use phalanx_exec::{Cluster, ExecError, ProcessFlags, check_equal};
use phalanx_graph::program::{Instr, Mesh, Program};
use phalanx_graph::{ParamSpec, Scope};
use std::ops::Range;

/// The processes of a cluster, with the flags that they exchange.
pub(crate) struct PeerGroup {
    pub cluster: Cluster,
    /// The step in flight, for error messages.
    step: u64,
    /// The flags that this process sends with the next step, and the union of all flags of the last
    /// step.
    own_flags: u64,
    flags: u64,
}

/// A timeout while waiting for GPUs of another process. [`PeerGroup::explain`] adds the name of
/// that process.
pub(crate) fn peer_timeout(message: String) -> ExecError {
    PeerError { name: "another worker".into(), message }.into()
}

/// Whether processes exchange flags in every run of a program: they do if it updates or reduces
/// over all replicas.
fn needs_exchange(program: &Program) -> bool {
    let reduces = |i: &Instr| {
        matches!(i, Instr::AllReduce { scope: Scope::All, .. } | Instr::ReplicaMean { .. })
    };
    program.update().is_some() || program.instrs().iter().any(reduces)
}

impl ProcessFlags for PeerGroup {
    fn set_flags(&mut self, bits: u64) {
        self.own_flags = bits;
    }

    fn flags(&self) -> u64 {
        self.flags
    }
}

impl PeerGroup {
    pub fn new(cluster: Cluster) -> PeerGroup {
        PeerGroup { cluster, step: 0, own_flags: 0, flags: 0 }
    }

    pub fn set_step(&mut self, step: u64) {
        self.step = step;
        self.cluster.peers.set_step(step);
    }

    fn peer_error(&self, peer: PeerError) -> ExecError {
        ExecError::Peer { step: self.step, peer }
    }

    /// Adds the name of the lost process to a device error that was caused by a timeout.
    pub fn explain(&self, error: ExecError) -> ExecError {
        match error {
            ExecError::Peer { peer, .. } => {
                self.peer_error(self.cluster.peers.diagnose(peer.message))
            }
            other => other,
        }
    }

    /// Waits until all processes have arrived.
    pub fn barrier(&self) -> Result<(), ExecError> {
        barrier(&*self.cluster.peers).map_err(|peer| self.peer_error(peer))
    }

    /// Sends the flags of this process to the others, and receives theirs.
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

    /// Gathers the rows of a fetch from all processes. `own` are the rows of this process, `width`
    /// the elements of a row.
    pub fn gather_rows(
        &self,
        mesh: Mesh,
        rows: usize,
        width: usize,
        own: &[f32],
    ) -> Result<Vec<f32>, ExecError> {
        let peers = &self.cluster.peers;
        let range = |rank: usize| -> Range<usize> {
            let rows = mesh.rows_of(rows, self.cluster.replicas_of(rank));
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
        Ok(parts.iter().flat_map(|bytes| crate::bytes::floats(bytes)).collect())
    }

    /// Fails if another process holds different bits.
    pub fn check_consistency(
        &self,
        params: &[ParamSpec],
        digests: impl Iterator<Item = u64>,
    ) -> Result<(), ExecError> {
        check_equal(&*self.cluster.peers, params, digests)
    }
}
