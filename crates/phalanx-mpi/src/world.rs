//! The world of an MPI job: messages between all pairs of its processes, each with a limit to its wait.
//!
//! Messages go from process to process and not through MPI's own collectives, for two reasons: who is
//! missing is then known by name, and the order of a sum is ours. MPI carries every byte.

use mpi::Threading;
use mpi::datatype::Equivalence;
use mpi::ffi;
use mpi::raw::AsRaw;
use mpi::topology::{Communicator, SimpleCommunicator};
use phalanx_graph::peers::{PeerError, Peers};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::{Duration, Instant};

/// The most bytes of one message: MPI counts in 32 bits.
const MOST: usize = 1 << 30;
/// Turns of a wait without a pause, and turns that merely let others run.
const SPINS: u32 = 2_000;
const YIELDS: u32 = 20_000;
/// Pause between two looks, once a wait takes longer.
const PAUSE: Duration = Duration::from_micros(50);
/// Tags that messages are numbered with, in turn; every MPI has that many.
const TAGS: i32 = 32_767;

static WORLD: OnceLock<Result<Arc<World>, String>> = OnceLock::new();
static LEFT: AtomicBool = AtomicBool::new(false);

/// All processes of the job.
struct World {
    comm: SimpleCommunicator,
    rank: usize,
    hosts: Vec<String>,
    timeout: Duration,
    /// Exchanges so far; one at a time.
    turn: Mutex<i32>,
}

// SAFETY: the communicator is a handle; the library was started for calls from any one thread at a time,
// and every call is made under `turn`.
unsafe impl Send for World {}
// SAFETY: as above.
unsafe impl Sync for World {}

/// Starts MPI, once in a process: every exchange then waits at most `timeout`.
///
/// # Errors
/// A library that cannot be called from threads, or that was started before.
pub fn join(timeout: Duration) -> Result<Arc<dyn Peers>, String> {
    let world = WORLD.get_or_init(|| World::start(timeout).map(Arc::new));
    world.clone().map(|world| world as Arc<dyn Peers>)
}

/// This process' rank, and its name, once it has joined.
pub fn name() -> Option<(usize, String)> {
    let world = WORLD.get()?.as_ref().ok()?;
    Some((world.rank, world.name(world.rank)))
}

/// Ends all processes of the job at once, this one with them.
pub fn abort(code: i32) {
    if let Some(Ok(world)) = WORLD.get()
        && !LEFT.swap(true, Ordering::SeqCst)
    {
        world.comm.abort(code);
    }
}

/// Leaves the job, once all others are ready to; where they are not in time, the job is ended.
pub fn leave() {
    let Some(Ok(world)) = WORLD.get() else { return };
    if LEFT.load(Ordering::SeqCst) {
        return;
    }
    let size = world.hosts.len();
    let mut nothing: Vec<&mut [u8]> = (0..size).map(|_| &mut [][..]).collect();
    if let Err(error) = world.exchange(&vec![&[][..]; size], &mut nothing) {
        eprintln!("error: {}: at the end: {error}", world.name(world.rank));
        return abort(1);
    }
    if !LEFT.swap(true, Ordering::SeqCst) {
        // SAFETY: started in this process, and nothing is under way.
        unsafe { ffi::MPI_Finalize() };
    }
}

/// The same where the process ends by itself.
extern "C" fn at_exit() {
    leave();
}

impl World {
    fn start(timeout: Duration) -> Result<World, String> {
        let started = mpi::initialize_with_threading(Threading::Serialized);
        let (universe, threading) = started.ok_or("MPI was started before")?;
        if threading < Threading::Serialized {
            return Err(format!("the MPI library cannot be called from threads ({threading:?})"));
        }
        let comm = universe.world().duplicate();
        // Left by `leave`, not where this goes out of scope.
        std::mem::forget(universe);
        // SAFETY: the communicator is valid; errors come back as codes from now on.
        unsafe { ffi::MPI_Comm_set_errhandler(comm.as_raw(), ffi::RSMPI_ERRORS_RETURN) };
        let (rank, size) = (comm.rank() as usize, comm.size() as usize);
        let host = mpi::environment::processor_name().map_err(|e| e.to_string())?;
        let hosts = vec!["?".to_string(); size];
        let mut world = World { comm, rank, hosts, timeout, turn: Mutex::new(0) };
        let all = phalanx_graph::peers::gather(&world, host.as_bytes());
        let all = all.map_err(|e| format!("while meeting the others: {e}"))?;
        world.hosts = all.iter().map(|name| String::from_utf8_lossy(name).into_owned()).collect();
        // SAFETY: a function of this library, which is never unloaded.
        unsafe { libc::atexit(at_exit) };
        Ok(world)
    }

    fn lost(&self, ranks: &[usize], message: &str) -> PeerError {
        let others = self.hosts.len() - 1;
        let name = match ranks {
            _ if ranks.len() == others && others > 1 => {
                format!("all others (is {} cut off?)", self.name(self.rank))
            }
            _ => ranks.iter().map(|r| self.name(*r)).collect::<Vec<_>>().join(", "),
        };
        PeerError { name, message: message.into() }
    }

    /// Waits until all messages have gone or come.
    fn wait(&self, pending: &mut Vec<Message>) -> Result<(), PeerError> {
        let (begin, mut turns) = (Instant::now(), 0u32);
        loop {
            let mut failed = None;
            pending.retain_mut(|message| match message.done() {
                Ok(done) => !done,
                Err(code) => {
                    failed = Some((message.rank, code));
                    true
                }
            });
            if let Some((rank, code)) = failed {
                return Err(self.lost(&[rank], &format!("MPI reports error {code}")));
            }
            if pending.is_empty() {
                return Ok(());
            }
            turns = turns.saturating_add(1);
            match turns {
                0..SPINS => std::hint::spin_loop(),
                SPINS..YIELDS => std::thread::yield_now(),
                _ => std::thread::sleep(PAUSE),
            }
            if turns.is_multiple_of(64) && begin.elapsed() > self.timeout {
                let mut missing: Vec<usize> =
                    pending.iter().filter(|m| m.incoming).map(|m| m.rank).collect();
                if missing.is_empty() {
                    missing = pending.iter().map(|m| m.rank).collect();
                }
                missing.dedup();
                let seconds = self.timeout.as_secs_f64();
                return Err(self.lost(&missing, &format!("no answer for {seconds} s")));
            }
        }
    }
}

/// A message under way. The caller of `exchange` keeps its bytes until it is done; where it never is,
/// no further call gives MPI the occasion to touch them.
struct Message {
    rank: usize,
    incoming: bool,
    request: ffi::MPI_Request,
}

impl Message {
    fn done(&mut self) -> Result<bool, i32> {
        let mut flag = 0;
        // SAFETY: the request is one under way.
        let code = unsafe { ffi::MPI_Test(&mut self.request, &mut flag, ffi::RSMPI_STATUS_IGNORE) };
        if code == ffi::MPI_SUCCESS as i32 { Ok(flag != 0) } else { Err(code) }
    }
}

impl Peers for World {
    fn rank(&self) -> usize {
        self.rank
    }

    fn size(&self) -> usize {
        self.hosts.len()
    }

    fn name(&self, rank: usize) -> String {
        format!("rank {rank} ({})", self.hosts[rank])
    }

    fn exchange(&self, outgoing: &[&[u8]], incoming: &mut [&mut [u8]]) -> Result<(), PeerError> {
        let mut turn = self.turn.lock().unwrap_or_else(PoisonError::into_inner);
        *turn = (*turn + 1) % TAGS;
        let (tag, comm, kind) = (*turn, self.comm.as_raw(), u8::equivalent_datatype().as_raw());
        let mut pending = vec![];
        let others = |rank: usize| rank != self.rank;
        let check = |code: i32, rank: usize| match code == ffi::MPI_SUCCESS as i32 {
            true => Ok(()),
            false => Err(self.lost(&[rank], &format!("MPI reports error {code}"))),
        };
        for (rank, bytes) in incoming.iter_mut().enumerate().filter(|(r, _)| others(*r)) {
            for piece in pieces(bytes.len()) {
                let part = &mut bytes[piece];
                // SAFETY: the null request is a valid value to be replaced.
                let mut request = unsafe { ffi::RSMPI_REQUEST_NULL };
                let (to, count) = (part.as_mut_ptr().cast(), part.len() as i32);
                // SAFETY: the bytes are borrowed until the wait below is over.
                let code = unsafe {
                    ffi::MPI_Irecv(to, count, kind, rank as i32, tag, comm, &mut request)
                };
                check(code, rank)?;
                pending.push(Message { rank, incoming: true, request });
            }
        }
        for (rank, bytes) in outgoing.iter().enumerate().filter(|(r, _)| others(*r)) {
            for piece in pieces(bytes.len()) {
                let part = &bytes[piece];
                // SAFETY: as above.
                let mut request = unsafe { ffi::RSMPI_REQUEST_NULL };
                let (from, count) = (part.as_ptr().cast(), part.len() as i32);
                // SAFETY: as above.
                let code = unsafe {
                    ffi::MPI_Isend(from, count, kind, rank as i32, tag, comm, &mut request)
                };
                check(code, rank)?;
                pending.push(Message { rank, incoming: false, request });
            }
        }
        self.wait(&mut pending)
    }
}

/// A message's bytes in pieces that MPI can count; at least one.
fn pieces(len: usize) -> impl Iterator<Item = std::ops::Range<usize>> {
    (0..len.max(1)).step_by(MOST).map(move |at| at..len.min(at + MOST))
}
