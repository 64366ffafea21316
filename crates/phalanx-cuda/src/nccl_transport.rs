//! A process group over NCCL, for processes that reach each other only through their GPUs. Messages
//! are staged in device memory and sent over a separate communicator with one GPU per process. The
//! all-reduces of a step may be in flight on their own communicator at the same time: all processes
//! start both in the same order, and a GPU can run both at once.

use crate::driver::{Context, DeviceBuffer, Event, Failure, Result, Stream, cu};
use crate::libs::{self, Lib};
use crate::nccl::{self, JoinError, Link};
use crate::process_group::{LivenessProbe, RankAssignment};
use phalanx_graph::exec::ExecError;
use phalanx_graph::process_group::{PeerError, ProcessGroup, all_gather};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

/// Bytes staged at once in each direction, for all processes together.
const STAGING_BYTES: usize = 16 << 20;
/// Bounds for the bytes sent to one process at once.
const MAX_PIECE_BYTES: usize = 1 << 20;
const MIN_PIECE_BYTES: usize = 4 << 10;

/// Maximum bytes per process and transfer in a group of `size` processes.
fn piece(size: usize) -> usize {
    (STAGING_BYTES / size).clamp(MIN_PIECE_BYTES, MAX_PIECE_BYTES)
}

/// Sends bytes between processes. An implementation knows its own rank.
pub(crate) trait Transport: Send {
    /// Sends `outgoing` to each rank while receiving `incoming` from it. Both sides know the sizes,
    /// which are at most one piece. Empty messages are not sent.
    fn exchange(
        &mut self,
        outgoing: &[&[u8]],
        incoming: &mut [&mut [u8]],
    ) -> std::result::Result<(), String>;
}

/// A process in its group, as determined by a rendezvous.
pub struct RankInfo {
    /// Rank of this process.
    pub rank: usize,
    /// Number of processes.
    pub size: usize,
    /// Name of its host.
    pub host: String,
    /// The id by which all processes find each other: [`nccl_id`] of rank 0.
    pub id: [u8; 128],
    /// How long to wait for the others.
    pub timeout: Duration,
    /// Returns the rank of a process that is known to be lost, if any.
    pub lost_peer: Box<dyn Fn() -> Option<usize> + Send + Sync>,
}

/// Creates an id by which processes find each other.
///
/// # Errors
/// A library is missing.
pub fn nccl_id() -> std::result::Result<[u8; 128], ExecError> {
    #[cfg(feature = "emulator")]
    if crate::emulator::installed().is_some() {
        return Ok(crate::emulator::make_id());
    }
    let found = libs::find(Lib::Driver).and_then(|_| libs::find(Lib::Nccl));
    let made = found.map_err(|e| Failure(e.to_string())).and_then(|_| nccl::make_id());
    made.map_err(|e| failed(0, e))
}

/// Connects the processes of a group through GPU `gpu`. Returns once all processes have joined.
///
/// # Errors
/// A library is missing, the GPU is unusable, or processes do not join in time.
pub fn nccl_process_group(
    gpu: usize,
    info: RankInfo,
) -> std::result::Result<Arc<dyn ProcessGroup>, ExecError> {
    let RankInfo { rank, size, host, id, timeout, lost_peer } = info;
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
    let transport = transport(gpu, assignment)?;
    let piece = piece(size);
    let state = Mutex::new(ExchangeState { transport, failed: None });
    let peers = NcclPeers { rank, size, hosts, timeout, lost_peer, piece, state };
    let all =
        all_gather(&peers, host.as_bytes()).map_err(|peer| ExecError::Peer { step: 0, peer })?;
    let host = |name: &Vec<u8>| String::from_utf8_lossy(name).into_owned();
    peers.hosts.get_or_init(|| all.iter().map(host).collect());
    Ok(Arc::new(peers))
}

fn transport(
    gpu: usize,
    assignment: RankAssignment,
) -> std::result::Result<Box<dyn Transport>, ExecError> {
    #[cfg(feature = "emulator")]
    if crate::emulator::installed().is_some() {
        return Ok(crate::emulator::transport(&assignment));
    }
    let size = assignment.total;
    let transport = NcclTransport::new(gpu, assignment).map_err(|error| match error {
        JoinError::Local(failure) => failed(gpu, failure),
        JoinError::Timeout(message) => {
            let name = format!("some of {size} workers");
            ExecError::Peer { step: 0, peer: PeerError { name, message } }
        }
        JoinError::PeerLost(peer) => ExecError::Peer { step: 0, peer },
    })?;
    Ok(Box::new(transport))
}

fn failed(gpu: usize, failure: Failure) -> ExecError {
    ExecError::Device { device: format!("gpu:{gpu}"), message: failure.0 }
}

fn name(hosts: &OnceLock<Vec<String>>, rank: usize) -> String {
    let host = hosts.get().and_then(|hosts| hosts.get(rank));
    host.map_or_else(|| format!("rank {rank}"), |host| format!("rank {rank} ({host})"))
}

/// The transport over NCCL.
struct NcclTransport {
    link: Link,
    outgoing: DeviceBuffer,
    incoming: DeviceBuffer,
    /// Bytes reserved for each rank.
    piece: usize,
    done: Event,
    stream: Stream,
    /// Whether NCCL has connected the GPUs.
    connected: bool,
    /// Dropped last, because the other fields depend on it.
    context: Context,
}

impl NcclTransport {
    fn new(
        gpu: usize,
        assignment: RankAssignment,
    ) -> std::result::Result<NcclTransport, JoinError> {
        for lib in [Lib::Driver, Lib::Nccl] {
            libs::find(lib).map_err(|e| Failure(e.to_string()))?;
        }
        let context = Context::new(gpu)?;
        let piece = piece(assignment.total);
        let bytes = piece * assignment.total;
        let mut links = nccl::join(vec![context.try_clone()?], Some(assignment))?;
        context.enter()?;
        let (outgoing, incoming) = (DeviceBuffer::new(bytes)?, DeviceBuffer::new(bytes)?);
        // The buffers are zeroed on the default stream, which other streams do not wait for.
        cu!(cuStreamSynchronize(std::ptr::null_mut()))?;
        Ok(NcclTransport {
            link: links.remove(0),
            outgoing,
            incoming,
            piece,
            done: Event::new()?,
            stream: Stream::new()?,
            connected: false,
            context,
        })
    }

    fn send_receive(&mut self, outgoing: &[&[u8]], incoming: &mut [&mut [u8]]) -> Result<()> {
        self.context.enter()?;
        let (stream, piece) = (&self.stream, self.piece);
        let at = |buffer: &DeviceBuffer, rank: usize| buffer.at() + (rank * piece) as u64;
        let (mut sent, mut received) = (vec![], vec![]);
        for (rank, bytes) in outgoing.iter().enumerate().filter(|(_, b)| !b.is_empty()) {
            let to = at(&self.outgoing, rank);
            cu!(cuMemcpyHtoDAsync_v2(to, bytes.as_ptr().cast(), bytes.len(), stream.0))?;
            sent.push((rank, to, bytes.len()));
        }
        for (rank, bytes) in incoming.iter().enumerate().filter(|(_, b)| !b.is_empty()) {
            received.push((rank, at(&self.incoming, rank), bytes.len()));
        }
        match self.connected {
            true => self.link.send_receive(&sent, &received, stream)?,
            false => {
                self.link.with_watchdog(|| self.link.send_receive(&sent, &received, stream))?
            }
        }
        self.connected = true;
        self.done.record(stream)?;
        self.link.wait(&self.done)?;
        for (rank, from, len) in received {
            let to = incoming[rank].as_mut_ptr().cast();
            cu!(cuMemcpyDtoHAsync_v2(to, from, len, stream.0))?;
        }
        stream.synchronize()
    }
}

impl Transport for NcclTransport {
    fn exchange(
        &mut self,
        outgoing: &[&[u8]],
        incoming: &mut [&mut [u8]],
    ) -> std::result::Result<(), String> {
        self.send_receive(outgoing, incoming).map_err(|failure| {
            self.link.abort();
            failure.0
        })
    }
}

impl Drop for NcclTransport {
    fn drop(&mut self) {
        self.context.enter().ok();
    }
}

/// The processes of the job.
struct NcclPeers {
    rank: usize,
    size: usize,
    hosts: Arc<OnceLock<Vec<String>>>,
    timeout: Duration,
    lost_peer: LivenessProbe,
    /// Maximum bytes per process and transfer.
    piece: usize,
    /// Locked during an exchange, so that exchanges run one at a time.
    state: Mutex<ExchangeState>,
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

impl NcclPeers {
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

impl ProcessGroup for NcclPeers {
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

    fn lost_peer(&self) -> Option<PeerError> {
        (self.lost_peer)()
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
