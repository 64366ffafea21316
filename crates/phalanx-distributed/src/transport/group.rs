//! A process group over a transport.

use super::{DeviceTransport, Transport, max_piece};
use crate::error::{PeerError, Result};
use crate::group::{ProcessGroup, all_gather, barrier};
use crate::rank_assignment::{LivenessProbe, NcclId, RankAssignment};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

/// A process in its group, as determined by a rendezvous.
pub(crate) struct GroupMember {
    pub rank: usize,
    pub size: usize,
    /// Name of its host.
    pub host: String,
    /// The id by which all processes find each other.
    pub id: NcclId,
    /// How long to wait for the others.
    pub timeout: Duration,
    /// Returns the rank of a process that is known to be lost, if any.
    pub lost_peer: Box<dyn Fn() -> Option<usize> + Send + Sync>,
}

fn name(hosts: &OnceLock<Vec<String>>, rank: usize) -> String {
    let host = hosts.get().and_then(|hosts| hosts.get(rank));
    host.map_or_else(|| format!("rank {rank}"), |host| format!("rank {rank} ({host})"))
}

/// The processes of a job that communicate over a [`Transport`].
pub(crate) struct TransportGroup {
    rank: usize,
    size: usize,
    hosts: Arc<OnceLock<Vec<String>>>,
    timeout: Duration,
    lost_peer: LivenessProbe,
    /// Maximum bytes per process and transfer.
    piece: usize,
    /// Locked during an exchange, so that exchanges run one at a time.
    state: Mutex<ExchangeState>,
    /// Whether this process has left the group.
    left: AtomicBool,
}

struct ExchangeState {
    transport: Box<dyn Transport>,
    /// The first failure. Every later exchange fails with it.
    failed: Option<PeerError>,
}

/// The range of a message that one piece covers. An empty message still sends one piece, so that
/// the receiver knows that it was sent.
fn piece_range(len: usize, at: usize, piece: usize) -> std::ops::Range<usize> {
    at.min(len)..(at + piece).min(len)
}

impl TransportGroup {
    /// Connects the processes of a group through `device`. Returns once all processes have joined.
    pub fn join(
        transport: &dyn DeviceTransport,
        device: usize,
        member: GroupMember,
    ) -> Result<TransportGroup> {
        let GroupMember { rank, size, host, id, timeout, lost_peer } = member;
        let hosts = Arc::new(OnceLock::new());
        let known_hosts = hosts.clone();
        let lost_peer: LivenessProbe = Arc::new(move || {
            let rank = lost_peer()?;
            // All ranks but the first are connected to rank 0 only.
            let message = match rank {
                0 => "its connection is closed: it has ended, or lost another worker",
                _ => "its connection is closed",
            };
            Some(PeerError { name: name(&known_hosts, rank), message: message.into() })
        });
        let assignment =
            RankAssignment { id, first: rank, total: size, lost_peer: lost_peer.clone(), timeout };
        let transport = transport.connect(device, assignment)?;
        let state = Mutex::new(ExchangeState { transport, failed: None });
        let piece = max_piece(size);
        let left = AtomicBool::new(false);
        let group = TransportGroup { rank, size, hosts, timeout, lost_peer, piece, state, left };
        let all = all_gather(&group, host.as_bytes())?;
        let host = |name: &Vec<u8>| String::from_utf8_lossy(name).into_owned();
        group.hosts.get_or_init(|| all.iter().map(host).collect());
        Ok(group)
    }

    fn state(&self) -> MutexGuard<'_, ExchangeState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Exchanges messages piece by piece. Each pair of processes knows its number of pieces.
    fn exchange_pieces(
        &self,
        transport: &mut dyn Transport,
        outgoing: &[&[u8]],
        incoming: &mut [&mut [u8]],
    ) -> std::result::Result<(), String> {
        let others = || (0..self.size).filter(|rank| *rank != self.rank);
        let longest = others().map(|r| outgoing[r].len().max(incoming[r].len())).max().unwrap_or(0);
        for at in (0..longest.max(1)).step_by(self.piece) {
            let mut tokens = vec![[0]; self.size];
            let out = |rank: usize| match outgoing[rank].len() {
                _ if rank == self.rank => &[][..],
                0 if at == 0 => &[0][..],
                len => &outgoing[rank][piece_range(len, at, self.piece)],
            };
            let out: Vec<&[u8]> = (0..self.size).map(out).collect();
            let each = incoming.iter_mut().zip(&mut tokens).enumerate();
            let into = each.map(|(rank, (bytes, token))| match bytes.len() {
                _ if rank == self.rank => &mut [][..],
                0 if at == 0 => &mut token[..],
                len => &mut bytes[piece_range(len, at, self.piece)],
            });
            transport.exchange(&out, &mut into.collect::<Vec<_>>())?;
        }
        Ok(())
    }
}

impl ProcessGroup for TransportGroup {
    fn rank(&self) -> usize {
        self.rank
    }

    fn size(&self) -> usize {
        self.size
    }

    fn name(&self, rank: usize) -> String {
        name(&self.hosts, rank)
    }

    fn timeout(&self) -> Option<Duration> {
        Some(self.timeout)
    }

    fn exchange(
        &self,
        outgoing: &[&[u8]],
        incoming: &mut [&mut [u8]],
    ) -> std::result::Result<(), PeerError> {
        let mut state = self.state();
        if let Some(error) = &state.failed {
            return Err(error.clone());
        }
        let ExchangeState { transport, failed } = &mut *state;
        self.exchange_pieces(&mut **transport, outgoing, incoming).map_err(|message| {
            let error = (self.lost_peer)();
            let error = error.unwrap_or(PeerError { name: "another worker".into(), message });
            failed.insert(error).clone()
        })
    }

    /// Steps are named by the executor.
    fn set_step(&self, _step: u64) {}

    fn lost_peer(&self) -> Option<PeerError> {
        (self.lost_peer)()
    }

    /// A wait on a device does not look at the flag.
    fn watch(&self, _stop_requested: Arc<AtomicBool>) {}

    /// The other processes notice that the connection is closed.
    fn abort(&self, _code: u8) {
        self.left.store(true, Ordering::SeqCst);
    }

    fn shutdown(&self) -> std::result::Result<(), PeerError> {
        if self.left.swap(true, Ordering::SeqCst) {
            return Ok(());
        }
        barrier(self)
    }

    fn diagnose(&self, message: String) -> PeerError {
        let mut state = self.state();
        let error = || {
            let name = "another worker".into();
            self.lost_peer().unwrap_or(PeerError { name, message })
        };
        state.failed.get_or_insert_with(error).clone()
    }
}
