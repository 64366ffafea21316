//! The processes of an MPI job. Every pair of them exchanges messages, and every wait has a limit.
//!
//! Collectives are built from point-to-point messages instead of MPI's own collectives for two reasons: a
//! missing process can be named, and the order of a sum is fixed. MPI carries every byte.

use super::alarms::{ALARM_GRACE, Alarms};
use super::exit::{ExitTimer, eprint_line, exit_after_grace};
use super::message::{Fault, Message};
use crate::error::PeerError;
use crate::group::{ProcessGroup, all_gather};
use mpi::Threading;
use mpi::datatype::Equivalence;
use mpi::ffi;
use mpi::raw::AsRaw;
use mpi::topology::{Communicator, SimpleCommunicator};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};

/// The maximum size of one message. MPI counts in 32 bits.
const MAX_MESSAGE_BYTES: usize = 1 << 30;
/// The number of polls before a wait starts to sleep, about a millisecond.
const SPIN_POLLS: u32 = 2_000;
/// The pause between two polls of a longer wait. Yielding instead would be worse if other threads want the
/// core: the thread would run again only after all of them.
pub(super) const POLL_INTERVAL: Duration = Duration::from_micros(20);
/// How often a wait checks for alarms.
const ALARM_CHECK_INTERVAL: Duration = Duration::from_millis(100);
/// The time limit for cancelled messages to complete.
const CANCEL_TIMEOUT: Duration = Duration::from_millis(200);
/// The number of tags. Exchanges are numbered from 1, cyclically; every MPI supports this many.
const TAGS: i32 = 32_767;
/// The tag of the final exchange, so that its messages are not taken for data.
const SHUTDOWN_TAG: i32 = 0;

/// MPI can be initialised once per process, and must be finalised before the process exits.
static WORLD: OnceLock<Result<Arc<World>, String>> = OnceLock::new();

/// All processes of the job.
struct World {
    comm: SimpleCommunicator,
    alarms: Alarms,
    rank: usize,
    hosts: Vec<String>,
    timeout: Duration,
    /// Exit code of a process that lost a peer.
    code: i32,
    /// The number of polls before a wait sleeps; 0 if processes share cores.
    spins: u32,
    /// Serialises exchanges. Every call into the library is made under this lock.
    state: Mutex<ExchangeState>,
    /// The job is being aborted: the holder of the lock must release it.
    aborting: AtomicBool,
    /// Whether this process has left the job.
    shut_down: AtomicBool,
    /// The current step, for error messages.
    step: AtomicU64,
    /// Set if this process was asked to stop.
    stop_requested: OnceLock<Arc<AtomicBool>>,
}

#[derive(Default)]
struct ExchangeState {
    /// The number of exchanges so far.
    count: i32,
    /// The first error. No further exchange is made after it.
    failed: Option<PeerError>,
}

// SAFETY: the communicator is a handle. The library was initialised for calls from one thread at a time,
// and every call is made under `state`, except those of `start`, which run first.
unsafe impl Send for World {}
// SAFETY: as above.
unsafe impl Sync for World {}

/// Initialises MPI, once per process. Every exchange then waits at most `timeout`. If a call of the library
/// itself does not return within `timeout` because a process is missing, this process exits with the code
/// `lost`. `name` identifies it in messages until all have joined.
///
/// # Errors
/// A library that does not support calls from threads, or that was already initialised.
pub fn join(name: &str, timeout: Duration, lost: u8) -> Result<Arc<dyn ProcessGroup>, String> {
    let world = WORLD.get_or_init(|| World::start(name, timeout, lost.into()).map(Arc::new));
    world.clone().map(|world| world as Arc<dyn ProcessGroup>)
}

/// Shuts down when the process exits.
extern "C" fn at_exit() {
    if let Some(Ok(world)) = WORLD.get() {
        world.leave();
    }
}

impl World {
    fn start(name: &str, timeout: Duration, code: i32) -> Result<World, String> {
        let message = format!("{name}: not all workers have joined");
        let _guard = ExitTimer::new(timeout, code, message);
        let started = mpi::initialize_with_threading(Threading::Serialized);
        let (universe, threading) = started.ok_or("MPI was already initialised")?;
        if threading < Threading::Serialized {
            return Err(format!("the MPI library cannot be called from threads ({threading:?})"));
        }
        let (comm, alarm) = (universe.world().duplicate(), universe.world().duplicate());
        // Finalised by `leave`, not when this goes out of scope.
        std::mem::forget(universe);
        // SAFETY: the communicators are valid; errors are returned as codes from now on.
        unsafe {
            ffi::MPI_Comm_set_errhandler(comm.as_raw(), ffi::RSMPI_ERRORS_RETURN);
            ffi::MPI_Comm_set_errhandler(alarm.as_raw(), ffi::RSMPI_ERRORS_RETURN);
        }
        let (rank, size) = (comm.rank() as usize, comm.size() as usize);
        let host = mpi::environment::processor_name().map_err(|e| e.to_string())?;
        let hosts = vec!["?".to_string(); size];
        let mut world = World {
            comm,
            alarms: Alarms::new(alarm, rank, size),
            rank,
            hosts,
            timeout,
            code,
            spins: 0,
            state: Mutex::default(),
            aborting: AtomicBool::new(false),
            shut_down: AtomicBool::new(false),
            step: AtomicU64::new(0),
            stop_requested: OnceLock::new(),
        };
        let all = all_gather(&world, host.as_bytes());
        let all = all.map_err(|e| format!("while joining the others: {e}"))?;
        world.hosts = all.iter().map(|name| String::from_utf8_lossy(name).into_owned()).collect();
        let here = world.hosts.iter().filter(|name| **name == host).count();
        // SAFETY: a plain query; unknown names return -1.
        let cores = unsafe { libc::sysconf(libc::_SC_NPROCESSORS_ONLN) };
        world.spins = if here as i64 <= cores { SPIN_POLLS } else { 0 };
        // SAFETY: a function of this library, which is never unloaded.
        unsafe { libc::atexit(at_exit) };
        Ok(world)
    }

    fn names(&self, ranks: &[usize]) -> String {
        ranks.iter().map(|r| self.name(*r)).collect::<Vec<_>>().join(", ")
    }

    fn peer_error(&self, ranks: &[usize], message: String) -> PeerError {
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

    fn state(&self) -> MutexGuard<'_, ExchangeState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Aborts the job while holding the lock; returns if it has been left already.
    fn end(&self, _state: MutexGuard<'_, ExchangeState>, code: i32) {
        if !self.shut_down.swap(true, Ordering::SeqCst) {
            self.comm.abort(code);
        }
    }

    /// Terminates all processes of the job at once, including this one.
    fn abort_job(&self, code: i32) {
        if self.shut_down.load(Ordering::SeqCst) {
            return;
        }
        self.aborting.store(true, Ordering::SeqCst);
        // If the lock is not released in time, this process exits without it.
        exit_after_grace(code);
        self.end(self.state(), code);
    }

    /// Leaves the job once all other processes are ready. If they are not ready in time, or a process was lost
    /// before, the job is aborted.
    fn leave(&self) {
        if self.shut_down.load(Ordering::SeqCst) {
            return;
        }
        let size = self.hosts.len();
        let mut nothing: Vec<&mut [u8]> = (0..size).map(|_| &mut [][..]).collect();
        let left = self.exchange_as(Some(SHUTDOWN_TAG), &vec![&[][..]; size], &mut nothing);
        if let Err(error) = left {
            eprint_line(format_args!("error: {}: at the end: {error}", self.name(self.rank)));
            return self.abort_job(self.code);
        }
        let _state = self.state();
        if !self.shut_down.swap(true, Ordering::SeqCst) {
            let message = format!("{}: at the end: the others do not leave", self.name(self.rank));
            let _guard = ExitTimer::new(self.timeout, self.code, message);
            // SAFETY: initialised in this process, and no message is in flight.
            unsafe { ffi::MPI_Finalize() };
        }
    }

    /// The error for a failed message.
    fn fault_error(&self, message: &Message, fault: &Fault) -> PeerError {
        let text = match fault {
            Fault::Size(received) => {
                let received = received.map_or("more".into(), |bytes| bytes.to_string());
                format!("expected {} bytes, received {received}", message.bytes)
            }
            Fault::Code(code) => format!("MPI reports error {code}"),
        };
        self.peer_error(&[message.rank], text)
    }

    /// Whether a process has started to shut down.
    fn is_shutting_down(&self, rank: usize) -> bool {
        let mut flag = 0;
        // SAFETY: a plain query that takes no message.
        unsafe {
            let mut status: ffi::MPI_Status = std::mem::zeroed();
            let comm = self.comm.as_raw();
            ffi::MPI_Iprobe(rank as i32, SHUTDOWN_TAG, comm, &mut flag, &mut status);
        }
        flag != 0
    }

    /// Abandons an exchange: cancels what can be cancelled and waits for the rest to complete. If a message
    /// does not complete, its bytes would have to stay borrowed for ever, so this process reports the reason
    /// and aborts the job.
    fn abandon(
        &self,
        mut state: MutexGuard<'_, ExchangeState>,
        pending: &mut Vec<Message>,
        why: &PeerError,
    ) {
        state.failed = Some(why.clone());
        pending.iter_mut().for_each(Message::cancel);
        let since = Instant::now();
        while !pending.is_empty() && since.elapsed() < CANCEL_TIMEOUT {
            // A failed message is complete too.
            pending.retain_mut(|message| matches!(message.is_complete(), Ok(false)));
            std::thread::sleep(POLL_INTERVAL);
        }
        if pending.is_empty() {
            return;
        }
        if self.aborting.load(Ordering::SeqCst) {
            drop(state);
            // Another thread exits this process and reports the reason.
            loop {
                std::thread::park();
            }
        }
        let step = self.step.load(Ordering::Relaxed);
        eprint_line(format_args!("error: {}: step {step}: {why}", self.name(self.rank)));
        exit_after_grace(self.code);
        self.end(state, self.code);
        // The library exits the process, or the thread started above does.
        loop {
            std::thread::park();
        }
    }

    /// Waits until all messages are sent or received.
    fn wait(&self, shutting_down: bool, pending: &mut Vec<Message>) -> Result<(), PeerError> {
        let (begin, mut polls, mut last_check) = (Instant::now(), 0u32, Instant::now());
        let (mut reported, mut left_since) = (false, None);
        loop {
            let mut failed = None;
            pending.retain_mut(|message| match message.is_complete() {
                Ok(done) => !done,
                Err(fault) => {
                    failed = Some(self.fault_error(message, &fault));
                    false
                }
            });
            if let Some(error) = failed {
                return Err(error);
            }
            if pending.is_empty() {
                return Ok(());
            }
            polls = polls.saturating_add(1);
            match polls < self.spins {
                true => std::hint::spin_loop(),
                false => std::thread::sleep(POLL_INTERVAL),
            }
            if !polls.is_multiple_of(64) || last_check.elapsed() < ALARM_CHECK_INTERVAL {
                continue;
            }
            last_check = Instant::now();
            if self.aborting.load(Ordering::SeqCst) {
                return Err(self.peer_error(&ranks(pending), "the job is being aborted".into()));
            }
            let leaver = |rank: &usize| !shutting_down && self.is_shutting_down(*rank);
            match (left_since, ranks(pending).into_iter().find(leaver)) {
                // Messages that it sent earlier may still be in flight.
                (None, Some(_)) => left_since = Some(Instant::now()),
                (Some(since), Some(rank)) if since.elapsed() > ALARM_GRACE => {
                    return Err(self.peer_error(
                        &[rank],
                        "it exited before the other processes finished".into(),
                    ));
                }
                _ => {}
            }
            if begin.elapsed() > self.timeout || self.alarms.poll().contains(&true) {
                let waited = begin.elapsed().as_secs_f64();
                return Err(self.find_silent(pending, format!("no answer for {waited:.1} s")));
            }
            if !reported
                && self.stop_requested.get().is_some_and(|flag| flag.load(Ordering::Relaxed))
            {
                reported = true;
                let (step, others) =
                    (self.step.load(Ordering::Relaxed), self.names(&ranks(pending)));
                let me = self.name(self.rank);
                eprint_line(format_args!(
                    "warning: {me}: asked to stop at step {step}, waiting for {others}"
                ));
            }
        }
    }

    /// Finds out which processes do not answer. Every process that times out raises an alarm, so the ones
    /// without an alarm are those that all others wait for.
    fn find_silent(&self, pending: &[Message], message: String) -> PeerError {
        let silent = self.alarms.raise_and_wait();
        let who = if silent.is_empty() { ranks(pending) } else { silent };
        self.peer_error(&who, message)
    }
}

/// The processes from which messages are pending; if all were received, those to which messages are pending.
fn ranks(pending: &[Message]) -> Vec<usize> {
    let mut ranks: Vec<usize> = pending.iter().filter(|m| m.incoming).map(|m| m.rank).collect();
    if ranks.is_empty() {
        ranks = pending.iter().map(|m| m.rank).collect();
    }
    ranks.dedup();
    ranks
}

impl ProcessGroup for World {
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

    fn set_step(&self, step: u64) {
        self.step.store(step, Ordering::Relaxed);
    }

    fn exchange(&self, outgoing: &[&[u8]], incoming: &mut [&mut [u8]]) -> Result<(), PeerError> {
        self.exchange_as(None, outgoing, incoming)
    }

    /// Only a failed exchange tells.
    fn lost_peer(&self) -> Option<PeerError> {
        None
    }

    fn diagnose(&self, message: String) -> PeerError {
        let mut state = self.state();
        if let Some(error) = &state.failed {
            return error.clone();
        }
        let error = self.find_silent(&[], message);
        state.failed = Some(error.clone());
        error
    }

    fn watch(&self, stop_requested: Arc<AtomicBool>) {
        // Only the first flag is kept.
        let _ = self.stop_requested.set(stop_requested);
    }

    /// A failure is printed, and aborts the job.
    fn shutdown(&self) -> Result<(), PeerError> {
        self.leave();
        Ok(())
    }

    fn abort(&self, code: u8) {
        self.abort_job(code.into());
    }
}

impl World {
    /// An exchange with the given tag, or with the next number.
    fn exchange_as(
        &self,
        tag: Option<i32>,
        outgoing: &[&[u8]],
        incoming: &mut [&mut [u8]],
    ) -> Result<(), PeerError> {
        let mut state = self.state();
        if let Some(error) = &state.failed {
            return Err(error.clone());
        }
        state.count = state.count % TAGS + 1;
        let (number, mut pending) = (tag.unwrap_or(state.count), vec![]);
        let done = self.post(number, outgoing, incoming, &mut pending);
        let done = done.and_then(|()| self.wait(tag == Some(SHUTDOWN_TAG), &mut pending));
        if let Err(error) = &done {
            self.abandon(state, &mut pending, error);
        }
        done
    }

    /// Starts all messages of an exchange. Their bytes are borrowed for longer than the messages are in flight:
    /// `exchange_as` returns when all are complete, or not at all.
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
                return Err(self.fault_error(&message, &Fault::Code(code)));
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
                // SAFETY: the bytes are borrowed for as long as the message is in flight, as stated
                // above.
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

/// Splits a message into pieces that MPI can count; at least one.
fn pieces(len: usize) -> impl Iterator<Item = std::ops::Range<usize>> {
    (0..len.max(1)).step_by(MAX_MESSAGE_BYTES).map(move |at| at..len.min(at + MAX_MESSAGE_BYTES))
}
