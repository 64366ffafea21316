//! The world of an MPI job: messages between all pairs of its processes, each with a limit to its wait.
//!
//! Messages go from process to process and not through MPI's own collectives, for two reasons: who is
//! missing is then known by name, and the order of a sum is ours. MPI carries every byte.

use crate::message::{Fault, Message};
use mpi::Threading;
use mpi::datatype::Equivalence;
use mpi::ffi;
use mpi::point_to_point::Source;
use mpi::raw::AsRaw;
use mpi::topology::{Communicator, SimpleCommunicator};
use phalanx_graph::process_group::{PeerError, Peers};
use phalanx_graph::text::shown;
use std::io::Write;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};

/// The most bytes of one message: MPI counts in 32 bits.
const MOST: usize = 1 << 30;
/// Turns of a wait without a pause: a millisecond or so.
const SPINS: u32 = 2_000;
/// Pause between two looks, once a wait takes longer. Merely to yield would be worse where others want the
/// core: it comes back when all of them have had their turn.
const PAUSE: Duration = Duration::from_micros(20);
/// How often a wait looks for alarms, and how long one waits for those of the others.
const LOOK: Duration = Duration::from_millis(100);
const GRACE: Duration = Duration::from_millis(1500);
/// How long messages that were given up may take to end.
const SETTLE: Duration = Duration::from_millis(200);
/// Tags that messages are numbered with, from 1 and in turn; every MPI has that many.
const TAGS: i32 = 32_767;
/// The tag of a process that leaves, so that nobody takes its message for data.
const LEAVE: i32 = 0;

static WORLD: OnceLock<Result<Arc<World>, String>> = OnceLock::new();
static LEFT: AtomicBool = AtomicBool::new(false);

/// All processes of the job.
struct World {
    comm: SimpleCommunicator,
    /// For workers that have waited too long.
    alarm: SimpleCommunicator,
    rank: usize,
    hosts: Vec<String>,
    timeout: Duration,
    /// Exit code of a process that lost others.
    code: i32,
    /// Turns of a wait without a pause: none where processes share cores.
    spins: u32,
    /// One exchange at a time; every call into the library is made under this lock.
    turn: Mutex<Turn>,
    /// The job is being ended: whoever holds the lock gives it up.
    ending: AtomicBool,
    /// The step under way, for messages.
    step: AtomicU64,
    /// Raised where this process was asked to end.
    asked: OnceLock<Arc<AtomicBool>>,
    /// By rank, who has raised an alarm.
    raised: Mutex<Vec<bool>>,
}

#[derive(Default)]
struct Turn {
    /// Exchanges so far.
    count: i32,
    /// The first thing that went wrong; nothing is exchanged behind it.
    failed: Option<PeerError>,
}

// SAFETY: the communicator is a handle; the library was started for calls from any one thread at a time,
// and every call but those of `start`, which comes first, is made under `turn`.
unsafe impl Send for World {}
// SAFETY: as above.
unsafe impl Sync for World {}

/// Starts MPI, once in a process: every exchange then waits at most `timeout`. Where the library itself does not
/// come back for so long, because a process is missing, this one, which is `name` so far, ends with `lost` as
/// its exit code.
///
/// # Errors
/// A library that cannot be called from threads, or that was started before.
pub fn join(name: &str, timeout: Duration, lost: u8) -> Result<Arc<dyn Peers>, String> {
    let world = WORLD.get_or_init(|| World::start(name, timeout, lost.into()).map(Arc::new));
    world.clone().map(|world| world as Arc<dyn Peers>)
}

/// Ends the process unless dropped in time: calls into MPI that wait for all others have no limit of
/// their own.
struct Guard(Arc<AtomicBool>);

impl Guard {
    fn new(timeout: Duration, code: i32, message: String) -> Guard {
        let done = Arc::new(AtomicBool::new(false));
        let seen = done.clone();
        std::thread::spawn(move || {
            let begin = Instant::now();
            while begin.elapsed() < timeout && !seen.load(Ordering::Relaxed) {
                std::thread::sleep(LOOK);
            }
            if !seen.load(Ordering::Relaxed) {
                say(format_args!("error: {message} for {} s", timeout.as_secs_f64()));
                // SAFETY: ends the process without running anything else.
                unsafe { libc::_exit(code) };
            }
        });
        Guard(done)
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Writes a line in one piece: those of several workers meet on one terminal.
fn say(words: std::fmt::Arguments<'_>) {
    // Nobody is there to hear that nothing can be said.
    let _ = std::io::stderr().write_all(format!("{}\n", shown(words)).as_bytes());
}

/// This process' rank, and its name, once it has joined.
pub fn name() -> Option<(usize, String)> {
    let world = WORLD.get()?.as_ref().ok()?;
    Some((world.rank, world.name(world.rank)))
}

/// Lets a process that is asked to end by this flag say whom it waits for.
pub fn watch(asked: Arc<AtomicBool>) {
    if let Some(Ok(world)) = WORLD.get() {
        // The first flag stays.
        let _ = world.asked.set(asked);
    }
}

/// Ends all processes of the job at once, this one with them.
pub fn abort(code: i32) {
    if let Some(Ok(world)) = WORLD.get()
        && !LEFT.load(Ordering::SeqCst)
    {
        world.ending.store(true, Ordering::SeqCst);
        // Where the lock does not come free in time, this process ends without it.
        end_soon(code);
        world.end(world.turn(), code);
    }
}

/// Ends this process a little later: where the launcher cannot be reached, the library waits for it.
fn end_soon(code: i32) {
    std::thread::spawn(move || {
        std::thread::sleep(GRACE);
        // SAFETY: ends the process without running anything else.
        unsafe { libc::_exit(code) };
    });
}

/// Leaves the job, once all others are ready to; where they are not in time, or others were lost before,
/// the job is ended.
pub fn leave() {
    let Some(Ok(world)) = WORLD.get() else { return };
    if LEFT.load(Ordering::SeqCst) {
        return;
    }
    let size = world.hosts.len();
    let mut nothing: Vec<&mut [u8]> = (0..size).map(|_| &mut [][..]).collect();
    if let Err(error) = world.exchange_as(Some(LEAVE), &vec![&[][..]; size], &mut nothing) {
        say(format_args!("error: {}: at the end: {error}", world.name(world.rank)));
        return abort(world.code);
    }
    let _turn = world.turn();
    if !LEFT.swap(true, Ordering::SeqCst) {
        let message = format!("{}: at the end: the others do not leave", world.name(world.rank));
        let _guard = Guard::new(world.timeout, world.code, message);
        // SAFETY: started in this process, and nothing is under way.
        unsafe { ffi::MPI_Finalize() };
    }
}

/// The same where the process ends by itself.
extern "C" fn at_exit() {
    leave();
}

impl World {
    fn start(name: &str, timeout: Duration, code: i32) -> Result<World, String> {
        let message = format!("{name}: not all workers have come");
        let _guard = Guard::new(timeout, code, message);
        let started = mpi::initialize_with_threading(Threading::Serialized);
        let (universe, threading) = started.ok_or("MPI was started before")?;
        if threading < Threading::Serialized {
            return Err(format!("the MPI library cannot be called from threads ({threading:?})"));
        }
        let (comm, alarm) = (universe.world().duplicate(), universe.world().duplicate());
        // Left by `leave`, not where this goes out of scope.
        std::mem::forget(universe);
        // SAFETY: the communicator is valid; errors come back as codes from now on.
        unsafe {
            ffi::MPI_Comm_set_errhandler(comm.as_raw(), ffi::RSMPI_ERRORS_RETURN);
            ffi::MPI_Comm_set_errhandler(alarm.as_raw(), ffi::RSMPI_ERRORS_RETURN);
        }
        let (rank, size) = (comm.rank() as usize, comm.size() as usize);
        let host = mpi::environment::processor_name().map_err(|e| e.to_string())?;
        let hosts = vec!["?".to_string(); size];
        let raised = Mutex::new(vec![false; size]);
        let mut world = World {
            comm,
            alarm,
            rank,
            hosts,
            timeout,
            code,
            spins: 0,
            turn: Mutex::default(),
            ending: AtomicBool::new(false),
            step: AtomicU64::new(0),
            asked: OnceLock::new(),
            raised,
        };
        let all = phalanx_graph::process_group::gather(&world, host.as_bytes());
        let all = all.map_err(|e| format!("while meeting the others: {e}"))?;
        world.hosts = all.iter().map(|name| String::from_utf8_lossy(name).into_owned()).collect();
        let here = world.hosts.iter().filter(|name| **name == host).count();
        // SAFETY: a plain query; unknown names answer -1.
        let cores = unsafe { libc::sysconf(libc::_SC_NPROCESSORS_ONLN) };
        world.spins = if here as i64 <= cores { SPINS } else { 0 };
        // SAFETY: a function of this library, which is never unloaded.
        unsafe { libc::atexit(at_exit) };
        Ok(world)
    }

    fn names(&self, ranks: &[usize]) -> String {
        ranks.iter().map(|r| self.name(*r)).collect::<Vec<_>>().join(", ")
    }

    fn lost(&self, ranks: &[usize], message: String) -> PeerError {
        let others = self.hosts.len() - 1;
        let name = match ranks.len() {
            0 => "another worker".into(),
            n if n == others && n > 1 => {
                format!("all others (is {} cut off?)", self.name(self.rank))
            }
            _ => self.names(ranks),
        };
        PeerError { name, message }
    }

    fn turn(&self) -> MutexGuard<'_, Turn> {
        self.turn.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Ends the job with the lock in hand; returns where it has been left already.
    fn end(&self, _turn: MutexGuard<'_, Turn>, code: i32) {
        if !LEFT.swap(true, Ordering::SeqCst) {
            self.comm.abort(code);
        }
    }

    /// What a fault of a message means.
    fn fault(&self, message: &Message, fault: &Fault) -> PeerError {
        let words = match fault {
            Fault::Size(came) => {
                let came = came.map_or("more".into(), |bytes| bytes.to_string());
                format!("expected {} bytes, received {came}", message.bytes)
            }
            Fault::Code(code) => format!("MPI reports error {code}"),
        };
        self.lost(&[message.rank], words)
    }

    /// Whether a process has left, or is about to.
    fn leaves(&self, rank: usize) -> bool {
        let mut flag = 0;
        // SAFETY: a plain query that takes no message.
        unsafe {
            let mut status: ffi::MPI_Status = std::mem::zeroed();
            let comm = self.comm.as_raw();
            ffi::MPI_Iprobe(rank as i32, LEAVE, comm, &mut flag, &mut status);
        }
        flag != 0
    }

    /// Gives up what is under way: takes back what can be, and lets the rest end. Where something does
    /// not, its bytes would have to stay for ever: this process then goes no further than to say why, and
    /// ends the job.
    fn give_up(&self, mut turn: MutexGuard<'_, Turn>, pending: &mut Vec<Message>, why: &PeerError) {
        turn.failed = Some(why.clone());
        pending.iter_mut().for_each(Message::cancel);
        let since = Instant::now();
        while !pending.is_empty() && since.elapsed() < SETTLE {
            // One that ended badly has ended too.
            pending.retain_mut(|message| matches!(message.done(), Ok(false)));
            std::thread::sleep(PAUSE);
        }
        if pending.is_empty() {
            return;
        }
        if self.ending.load(Ordering::SeqCst) {
            drop(turn);
            // Another thread ends this process, and says why.
            loop {
                std::thread::park();
            }
        }
        let step = self.step.load(Ordering::Relaxed);
        say(format_args!("error: {}: step {step}: {why}", self.name(self.rank)));
        end_soon(self.code);
        self.end(turn, self.code);
        // The library ends the process, or what was started above does.
        loop {
            std::thread::park();
        }
    }

    /// Waits until all messages have gone or come.
    fn wait(&self, leaving: bool, pending: &mut Vec<Message>) -> Result<(), PeerError> {
        let (begin, mut turns, mut looked) = (Instant::now(), 0u32, Instant::now());
        let (mut told, mut left) = (false, None);
        loop {
            let mut failed = None;
            pending.retain_mut(|message| match message.done() {
                Ok(done) => !done,
                Err(fault) => {
                    failed = Some(self.fault(message, &fault));
                    false
                }
            });
            if let Some(error) = failed {
                return Err(error);
            }
            if pending.is_empty() {
                return Ok(());
            }
            turns = turns.saturating_add(1);
            match turns < self.spins {
                true => std::hint::spin_loop(),
                false => std::thread::sleep(PAUSE),
            }
            if !turns.is_multiple_of(64) || looked.elapsed() < LOOK {
                continue;
            }
            looked = Instant::now();
            if self.ending.load(Ordering::SeqCst) {
                return Err(self.lost(&ranks(pending), "the job is being ended".into()));
            }
            let leaver = |rank: &usize| !leaving && self.leaves(*rank);
            match (left, ranks(pending).into_iter().find(leaver)) {
                // What it sent before may still be on its way.
                (None, Some(_)) => left = Some(Instant::now()),
                (Some(since), Some(rank)) if since.elapsed() > GRACE => {
                    return Err(self.lost(&[rank], "it left before the others were done".into()));
                }
                _ => {}
            }
            if begin.elapsed() > self.timeout || self.alarms().contains(&true) {
                let waited = begin.elapsed().as_secs_f64();
                return Err(self.silent(pending, format!("no answer for {waited:.1} s")));
            }
            if !told && self.asked.get().is_some_and(|asked| asked.load(Ordering::Relaxed)) {
                told = true;
                let (step, others) =
                    (self.step.load(Ordering::Relaxed), self.names(&ranks(pending)));
                let me = self.name(self.rank);
                say(format_args!(
                    "warning: {me}: asked to end at step {step}, waiting for {others}"
                ));
            }
        }
    }

    /// By rank, who has raised an alarm so far.
    fn alarms(&self) -> Vec<bool> {
        let mut raised = self.raised.lock().unwrap_or_else(PoisonError::into_inner);
        while let Some((message, _)) = self.alarm.any_process().immediate_matched_probe_with_tag(0)
        {
            let (_, status) = message.matched_receive::<u8>();
            raised[status.source_rank() as usize] = true;
        }
        raised.clone()
    }

    /// Finds out who does not answer: all that wait in vain raise an alarm, so those that raise none are
    /// the ones that all wait for.
    fn silent(&self, pending: &[Message], message: String) -> PeerError {
        static ALARM: [u8; 1] = [0];
        let (comm, kind) = (self.alarm.as_raw(), u8::equivalent_datatype().as_raw());
        for rank in (0..self.hosts.len()).filter(|r| *r != self.rank) {
            // SAFETY: the byte lives for ever; nobody waits for the request, which MPI is left with.
            unsafe {
                let mut request = ffi::RSMPI_REQUEST_NULL;
                let from = ALARM.as_ptr().cast();
                ffi::MPI_Isend(from, 1, kind, rank as i32, 0, comm, &mut request);
            }
        }
        let since = Instant::now();
        let silent = loop {
            let alarms = self.alarms();
            let silent: Vec<usize> =
                (0..alarms.len()).filter(|r| !alarms[*r] && *r != self.rank).collect();
            if silent.is_empty() || since.elapsed() > GRACE {
                break silent;
            }
            std::thread::sleep(PAUSE);
        };
        let who = if silent.is_empty() { ranks(pending) } else { silent };
        self.lost(&who, message)
    }
}

/// The processes that messages are expected from; where all have come, those they go to.
fn ranks(pending: &[Message]) -> Vec<usize> {
    let mut ranks: Vec<usize> = pending.iter().filter(|m| m.incoming).map(|m| m.rank).collect();
    if ranks.is_empty() {
        ranks = pending.iter().map(|m| m.rank).collect();
    }
    ranks.dedup();
    ranks
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

    fn timeout(&self) -> Option<Duration> {
        Some(self.timeout)
    }

    fn working_on(&self, step: u64) {
        self.step.store(step, Ordering::Relaxed);
    }

    fn exchange(&self, outgoing: &[&[u8]], incoming: &mut [&mut [u8]]) -> Result<(), PeerError> {
        self.exchange_as(None, outgoing, incoming)
    }

    fn missing(&self, message: String) -> PeerError {
        let mut turn = self.turn();
        if let Some(error) = &turn.failed {
            return error.clone();
        }
        let error = self.silent(&[], message);
        turn.failed = Some(error.clone());
        error
    }
}

impl World {
    /// An exchange under a tag of its own, or the next number.
    fn exchange_as(
        &self,
        tag: Option<i32>,
        outgoing: &[&[u8]],
        incoming: &mut [&mut [u8]],
    ) -> Result<(), PeerError> {
        let mut turn = self.turn();
        if let Some(error) = &turn.failed {
            return Err(error.clone());
        }
        turn.count = turn.count % TAGS + 1;
        let (number, mut pending) = (tag.unwrap_or(turn.count), vec![]);
        let done = self.post(number, outgoing, incoming, &mut pending);
        let done = done.and_then(|()| self.wait(tag == Some(LEAVE), &mut pending));
        if let Err(error) = &done {
            self.give_up(turn, &mut pending, error);
        }
        done
    }

    /// Starts all messages of an exchange. Their bytes are borrowed for longer than they are under way:
    /// `exchange_as` comes back when all have ended, or not at all.
    fn post(
        &self,
        tag: i32,
        outgoing: &[&[u8]],
        incoming: &mut [&mut [u8]],
        pending: &mut Vec<Message>,
    ) -> Result<(), PeerError> {
        let (comm, kind) = (self.comm.as_raw(), u8::equivalent_datatype().as_raw());
        let mut add = |rank: usize, incoming: bool, code: i32, bytes: i32, request| {
            let message = Message { rank, incoming, bytes: bytes as usize, request };
            if code != ffi::MPI_SUCCESS as i32 {
                return Err(self.fault(&message, &Fault::Code(code)));
            }
            pending.push(message);
            Ok(())
        };
        // SAFETY: the null request is a valid value to be replaced.
        let null = unsafe { ffi::RSMPI_REQUEST_NULL };
        let others = |rank: &usize| *rank != self.rank;
        for (rank, bytes) in incoming.iter_mut().enumerate().filter(|(r, _)| others(r)) {
            for piece in pieces(bytes.len()) {
                let (part, mut request) = (&mut bytes[piece], null);
                let (to, count) = (part.as_mut_ptr().cast(), part.len() as i32);
                // SAFETY: the bytes are borrowed for as long as the message is under way, as said above.
                let code = unsafe {
                    ffi::MPI_Irecv(to, count, kind, rank as i32, tag, comm, &mut request)
                };
                add(rank, true, code, count, request)?;
            }
        }
        for (rank, bytes) in outgoing.iter().enumerate().filter(|(r, _)| others(r)) {
            for piece in pieces(bytes.len()) {
                let (part, mut request) = (&bytes[piece], null);
                let (from, count) = (part.as_ptr().cast(), part.len() as i32);
                // SAFETY: as above.
                let code = unsafe {
                    ffi::MPI_Isend(from, count, kind, rank as i32, tag, comm, &mut request)
                };
                add(rank, false, code, count, request)?;
            }
        }
        Ok(())
    }
}

/// A message's bytes in pieces that MPI can count; at least one.
fn pieces(len: usize) -> impl Iterator<Item = std::ops::Range<usize>> {
    (0..len.max(1)).step_by(MOST).map(move |at| at..len.min(at + MOST))
}
