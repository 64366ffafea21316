//! Processes that reach each other through their GPUs alone: what they tell each other is staged through
//! device memory and carried by NCCL, on a communicator of its own with one GPU of each process. The sums
//! of a step may be under way meanwhile on theirs: all processes start both in the same order, and a GPU
//! has room for both at once.

use crate::among::{Gone, Seats};
use crate::driver::{Context, DeviceBuffer, Event, Failure, Result, Stream, cu};
use crate::libs::{self, Lib};
use crate::nccl::{self, Link, Refusal};
use phalanx_graph::exec::ExecError;
use phalanx_graph::process_group::{PeerError, ProcessGroup, all_gather};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

/// Bytes that are staged at once, for all processes together, each way.
const STAGED: usize = 16 << 20;
/// Most and fewest of them for one process.
const PIECES: (usize, usize) = (1 << 20, 4 << 10);

/// Most bytes for one of so many processes at once.
fn piece(size: usize) -> usize {
    (STAGED / size).clamp(PIECES.1, PIECES.0)
}

/// Carries bytes between processes; each knows its rank.
pub(crate) trait Carrier: Send {
    /// Hands `outgoing` to each rank while `incoming` comes from it; sizes were agreed upon, and are at
    /// most a piece. Empty ones are not carried.
    fn carry(
        &mut self,
        outgoing: &[&[u8]],
        incoming: &mut [&mut [u8]],
    ) -> std::result::Result<(), String>;
}

/// A process' place, as some rendezvous found it.
pub struct Place {
    /// Its number.
    pub rank: usize,
    /// Processes in all.
    pub size: usize,
    /// The name of its host.
    pub host: String,
    /// What all find each other by: [`meeting_id`] of the first.
    pub id: [u8; 128],
    /// How long the others are waited for.
    pub timeout: Duration,
    /// The rank of a process that is gone, where that shows.
    pub gone: Box<dyn Fn() -> Option<usize> + Send + Sync>,
}

/// What processes find each other by.
///
/// # Errors
/// A library that is missing.
pub fn meeting_id() -> std::result::Result<[u8; 128], ExecError> {
    #[cfg(feature = "emulator")]
    if crate::emulator::pretended().is_some() {
        return Ok(crate::emulator::make_id());
    }
    let found = libs::find(Lib::Driver).and_then(|_| libs::find(Lib::Nccl));
    let made = found.map_err(|e| Failure(e.to_string())).and_then(|_| nccl::make_id());
    made.map_err(|e| failed(0, e))
}

/// The other processes, reached through GPU `gpu`. Comes back when all have come.
///
/// # Errors
/// A library that is missing, a GPU that cannot be used, or processes that do not come.
pub fn peers_by_gpu(
    gpu: usize,
    place: Place,
) -> std::result::Result<Arc<dyn ProcessGroup>, ExecError> {
    let Place { rank, size, host, id, timeout, gone } = place;
    let hosts = Arc::new(OnceLock::new());
    let known = hosts.clone();
    let gone: Gone = Arc::new(move || {
        let rank = gone()?;
        // Everybody but the first is connected with that one alone.
        let message = match rank {
            0 => "its connection is closed: it has ended, or lost another worker",
            _ => "its connection is closed",
        };
        Some(PeerError { name: name(&known, rank), message: message.into() })
    });
    let seats = Seats { id, first: rank, all: size, gone: gone.clone(), limit: timeout };
    let carrier = carrier(gpu, seats)?;
    let piece = piece(size);
    let turn = Mutex::new(Turn { carrier, failed: None });
    let control = Control { rank, size, hosts, timeout, gone, piece, turn };
    let all =
        all_gather(&control, host.as_bytes()).map_err(|peer| ExecError::Peer { step: 0, peer })?;
    let host = |name: &Vec<u8>| String::from_utf8_lossy(name).into_owned();
    control.hosts.get_or_init(|| all.iter().map(host).collect());
    Ok(Arc::new(control))
}

fn carrier(gpu: usize, seats: Seats) -> std::result::Result<Box<dyn Carrier>, ExecError> {
    #[cfg(feature = "emulator")]
    if crate::emulator::pretended().is_some() {
        return Ok(crate::emulator::carrier(&seats));
    }
    let size = seats.all;
    let carried = ByGpu::new(gpu, seats).map_err(|refusal| match refusal {
        Refusal::Here(failure) => failed(gpu, failure),
        Refusal::Others(message) => {
            let name = format!("some of {size} workers");
            ExecError::Peer { step: 0, peer: PeerError { name, message } }
        }
        Refusal::Gone(peer) => ExecError::Peer { step: 0, peer },
    })?;
    Ok(Box::new(carried))
}

fn failed(gpu: usize, failure: Failure) -> ExecError {
    ExecError::Device { device: format!("gpu:{gpu}"), message: failure.0 }
}

fn name(hosts: &OnceLock<Vec<String>>, rank: usize) -> String {
    let host = hosts.get().and_then(|hosts| hosts.get(rank));
    host.map_or_else(|| format!("rank {rank}"), |host| format!("rank {rank} ({host})"))
}

/// By way of NCCL.
struct ByGpu {
    link: Link,
    outgoing: DeviceBuffer,
    incoming: DeviceBuffer,
    /// Bytes for each rank.
    piece: usize,
    passed: Event,
    stream: Stream,
    /// Whether the GPUs are connected.
    connected: bool,
    /// Dropped last: the rest belongs to it.
    context: Context,
}

impl ByGpu {
    fn new(gpu: usize, seats: Seats) -> std::result::Result<ByGpu, Refusal> {
        for lib in [Lib::Driver, Lib::Nccl] {
            libs::find(lib).map_err(|e| Failure(e.to_string()))?;
        }
        let context = Context::new(gpu)?;
        let piece = piece(seats.all);
        let room = piece * seats.all;
        let mut links = nccl::join(vec![context.again()?], Some(seats))?;
        context.enter()?;
        let (outgoing, incoming) = (DeviceBuffer::new(room)?, DeviceBuffer::new(room)?);
        // They are filled with zero behind the back of other streams.
        cu!(cuStreamSynchronize(std::ptr::null_mut()))?;
        Ok(ByGpu {
            link: links.remove(0),
            outgoing,
            incoming,
            piece,
            passed: Event::new()?,
            stream: Stream::new()?,
            connected: false,
            context,
        })
    }

    fn pass(&mut self, outgoing: &[&[u8]], incoming: &mut [&mut [u8]]) -> Result<()> {
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
            true => self.link.swap(&sent, &received, stream)?,
            false => self.link.watched(|| self.link.swap(&sent, &received, stream))?,
        }
        self.connected = true;
        self.passed.record(stream)?;
        self.link.wait(&self.passed)?;
        for (rank, from, len) in received {
            let to = incoming[rank].as_mut_ptr().cast();
            cu!(cuMemcpyDtoHAsync_v2(to, from, len, stream.0))?;
        }
        stream.synchronize()
    }
}

impl Carrier for ByGpu {
    fn carry(
        &mut self,
        outgoing: &[&[u8]],
        incoming: &mut [&mut [u8]],
    ) -> std::result::Result<(), String> {
        self.pass(outgoing, incoming).map_err(|failure| {
            self.link.give_up();
            failure.0
        })
    }
}

impl Drop for ByGpu {
    fn drop(&mut self) {
        self.context.enter().ok();
    }
}

/// All processes of the job.
struct Control {
    rank: usize,
    size: usize,
    hosts: Arc<OnceLock<Vec<String>>>,
    timeout: Duration,
    gone: Gone,
    /// Most bytes for one process at once.
    piece: usize,
    /// One exchange at a time.
    turn: Mutex<Turn>,
}

struct Turn {
    carrier: Box<dyn Carrier>,
    /// The first thing that went wrong; nothing is exchanged behind it.
    failed: Option<PeerError>,
}

/// What one piece of an exchange has of some bytes; a message without bytes has one all the same, so
/// that whoever receives it knows that it was sent.
fn part(len: usize, at: usize, piece: usize) -> std::ops::Range<usize> {
    at.min(len)..(at + piece).min(len)
}

impl Control {
    fn turn(&self) -> MutexGuard<'_, Turn> {
        self.turn.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// An exchange, piece by piece. How many there are is for each two processes to know.
    fn pieces(
        &self,
        carrier: &mut dyn Carrier,
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
                len => &outgoing[rank][part(len, at, self.piece)],
            };
            let out: Vec<&[u8]> = (0..self.size).map(out).collect();
            let each = incoming.iter_mut().zip(&mut tokens).enumerate();
            let into = each.map(|(rank, (bytes, token))| match bytes.len() {
                _ if rank == self.rank => &mut [][..],
                0 if at == 0 => &mut token[..],
                len => &mut bytes[part(len, at, self.piece)],
            });
            carrier.carry(&out, &mut into.collect::<Vec<_>>())?;
        }
        Ok(())
    }
}

impl ProcessGroup for Control {
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
        let mut turn = self.turn();
        if let Some(error) = &turn.failed {
            return Err(error.clone());
        }
        let Turn { carrier, failed } = &mut *turn;
        self.pieces(&mut **carrier, outgoing, incoming).map_err(|message| {
            let error = (self.gone)();
            let error = error.unwrap_or(PeerError { name: "another worker".into(), message });
            failed.insert(error).clone()
        })
    }

    fn lost_peer(&self) -> Option<PeerError> {
        (self.gone)()
    }

    fn diagnose(&self, message: String) -> PeerError {
        let mut turn = self.turn();
        let error = || {
            let name = "another worker".into();
            self.lost_peer().unwrap_or(PeerError { name, message })
        };
        turn.failed.get_or_insert_with(error).clone()
    }
}
