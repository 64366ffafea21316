//! All-reduce across GPUs with NCCL: the bindings in use, and the group of GPUs that reduce with
//! each other, in this process and in others.

use super::sys;
use crate::barrier::AbortableBarrier;
use crate::error::PeerError;
use crate::rank_assignment::{LivenessProbe, NcclId, RankAssignment};
use phalanx_cuda_driver::driver::{Context, Event, Failure, Result, Stream};
use std::ffi::{CStr, c_char, c_int};
use std::ptr::null_mut;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, TryLockError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

/// Milliseconds after which a call on a communicator is assumed to be blocked.
const COMM_LOCK_TIMEOUT_MS: usize = 200;

/// How often a wait checks for timeouts and lost peers.
const POLL_INTERVAL: Duration = Duration::from_millis(100);

/// How long messages of a lost process may still be in transit.
const LOST_PEER_GRACE: Duration = Duration::from_secs(1);

/// How long processes wait for each other when they shut down.
const SHUTDOWN_TIMEOUT: Duration = Duration::from_secs(5);

/// `ncclSum`.
const OP_SUM: c_int = 0;

/// `ncclUint8`.
const TYPE_BYTE: c_int = 1;

/// The type of a reduced element, as NCCL numbers it (`ncclDataType_t`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DataType {
    /// 32-bit integers.
    I32 = 2,
    /// 16-bit floats.
    F16 = 6,
    /// 32-bit floats.
    F32 = 7,
    /// 64-bit floats.
    F64 = 8,
    /// 16-bit floats with the range of 32-bit floats.
    Bf16 = 9,
}

/// Converts a return code to a result that names the call.
fn check(what: &str, answer: c_int) -> Result<()> {
    let text = |at: *const c_char| match at.is_null() {
        true => String::new(),
        // SAFETY: the library returns zero-terminated strings with static lifetime.
        false => unsafe { CStr::from_ptr(at) }.to_string_lossy().into_owned(),
    };
    if answer == 0 {
        return Ok(());
    }
    // SAFETY: only queries strings.
    let (reason, last) =
        unsafe { (text(sys::ncclGetErrorString(answer)), text(sys::ncclGetLastError(null_mut()))) };
    let last = if last.is_empty() { last } else { format!(": {last}") };
    Err(Failure(format!("{what}: {reason}{last} (set NCCL_DEBUG=INFO for details)")))
}

macro_rules! nccl {
    ($call:ident($($arg:expr),* $(,)?)) => {
        // SAFETY: communicators that are alive, addresses of live memory.
        check(stringify!($call), unsafe { sys::$call($($arg),*) })
    };
}

/// Runs calls as one group, which NCCL executes as a single operation.
fn grouped(calls: impl FnOnce() -> Result<()>) -> Result<()> {
    nccl!(ncclGroupStart())?;
    let called = calls();
    // Always end the group; otherwise the thread would stay inside it.
    let ended = nccl!(ncclGroupEnd());
    called.and(ended)
}

#[derive(Clone, Copy)]
struct Comm(sys::Comm);

// SAFETY: one thread at a time calls the library with it: the one that holds the lock, or that took
// it out.
unsafe impl Send for Comm {}
// SAFETY: as above; aborting is allowed concurrently with another call.
unsafe impl Sync for Comm {}

impl Comm {
    fn handle(self) -> sys::Comm {
        self.0
    }
}

/// A GPU of a group.
struct Member {
    /// Held until the communicator is destroyed.
    context: Context,
    /// `None` once aborted. Locked during calls of the library.
    comm: Mutex<Option<Comm>>,
    /// The same communicator, to abort it while another thread is blocked in the library.
    abort_comm: Comm,
    aborted: AtomicBool,
}

impl Member {
    fn new(context: Context, comm: Comm) -> Member {
        let aborted = AtomicBool::new(false);
        Member { context, comm: Mutex::new(Some(comm)), abort_comm: comm, aborted }
    }

    /// Whether this is the first call to abort it.
    fn first_to_abort(&self) -> bool {
        !self.aborted.swap(true, Ordering::SeqCst)
    }
}

/// GPUs that reduce with each other. The group ends with its last link, after all captured steps
/// were dropped.
struct Group {
    members: Vec<Member>,
    barrier: AbortableBarrier,
    /// Threads that abort communicators.
    aborts: Mutex<Vec<JoinHandle<()>>>,
    /// With other processes: the probe for lost ones, and how long to wait for them.
    remote: Option<(LivenessProbe, Duration)>,
    /// Why GPUs of another process are considered lost.
    lost: OnceLock<String>,
}

/// A GPU's membership in a group.
pub struct Membership {
    group: Arc<Group>,
    rank: usize,
}

/// Source and destination addresses of an all-reduce, and its elements.
pub struct Reduction {
    /// Address of the local addend.
    pub from: u64,
    /// Address of the sum.
    pub to: u64,
    /// Type of the elements.
    pub elem: DataType,
    /// Number of elements.
    pub len: usize,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(|e| e.into_inner())
}

/// Takes a communicator out, unless a thread is blocked in the library with it.
fn take_comm(comm: &Mutex<Option<Comm>>) -> Option<Comm> {
    for _ in 0..COMM_LOCK_TIMEOUT_MS {
        match comm.try_lock() {
            Ok(mut comm) => return comm.take(),
            Err(TryLockError::Poisoned(e)) => return e.into_inner().take(),
            Err(TryLockError::WouldBlock) => thread::sleep(Duration::from_millis(1)),
        }
    }
    None
}

fn aborted() -> Failure {
    Failure("the group of GPUs was aborted because one of them failed".into())
}

/// Creates an id by which the ranks of a group find each other.
pub fn make_id() -> Result<NcclId> {
    let mut id = sys::UniqueId([0; 128]);
    nccl!(ncclGetUniqueId(&mut id))?;
    Ok(id.0.map(|byte| byte as u8))
}

/// Creates communicators for these GPUs: the ranks from `first` on, of `ranks` in total. Returns
/// once all ranks have joined.
fn connect(contexts: &[Context], id: NcclId, first: usize, ranks: usize) -> Result<Vec<Comm>> {
    let id = sys::UniqueId(id.map(|byte| byte as c_char));
    let mut comms = vec![null_mut(); contexts.len()];
    grouped(|| {
        let mut each = comms.iter_mut().zip(contexts).zip(first as c_int..);
        each.try_for_each(|((comm, context), rank)| {
            context.enter()?;
            nccl!(ncclCommInitRank(comm, ranks as c_int, id, rank))
        })
    })?;
    Ok(comms.into_iter().map(Comm).collect())
}

/// Runs a call on its own thread, and abandons the thread after `limit`.
fn with_timeout<T: Send + 'static>(
    limit: Duration,
    call: impl FnOnce() -> T + Send + 'static,
) -> Option<T> {
    let (send, answer) = channel();
    // The receiver may be gone.
    thread::spawn(move || drop(send.send(call())));
    answer.recv_timeout(limit).ok()
}

/// Like [`with_timeout`], for calls that wait for other processes: also gives up once one of them
/// is lost.
fn unless_peer_lost<T: Send + 'static>(
    limit: Duration,
    lost_peer: &LivenessProbe,
    call: impl FnOnce() -> T + Send + 'static,
) -> std::result::Result<T, JoinError> {
    let (send, answer) = channel();
    // The receiver may be gone.
    thread::spawn(move || drop(send.send(call())));
    let (began, mut lost_since) = (Instant::now(), None);
    loop {
        let left = limit.saturating_sub(began.elapsed());
        match answer.recv_timeout(left.min(POLL_INTERVAL)) {
            Ok(answer) => return Ok(answer),
            Err(RecvTimeoutError::Timeout) if left > POLL_INTERVAL => {}
            Err(_) => return Err(JoinError::Timeout(no_answer(began.elapsed()))),
        }
        if let Some(peer) = lost_beyond_grace(lost_peer, &mut lost_since) {
            return Err(JoinError::PeerLost(peer));
        }
    }
}

/// Returns a peer that has been lost for longer than the grace period. Its last messages may be in
/// transit until then.
fn lost_beyond_grace(
    lost_peer: &LivenessProbe,
    lost_since: &mut Option<Instant>,
) -> Option<PeerError> {
    let peer = lost_peer()?;
    (lost_since.get_or_insert_with(Instant::now).elapsed() > LOST_PEER_GRACE).then_some(peer)
}

fn no_answer(waited: Duration) -> String {
    format!("no answer for {:.1} s", waited.as_secs_f64())
}

/// Why GPUs cannot form a group.
pub enum JoinError {
    /// A call of this process failed.
    Local(Failure),
    /// Other processes do not join in time.
    Timeout(String),
    /// One of them is lost.
    PeerLost(PeerError),
}

impl From<Failure> for JoinError {
    fn from(failure: Failure) -> JoinError {
        JoinError::Local(failure)
    }
}

impl Group {
    fn new(
        contexts: Vec<Context>,
        assignment: Option<RankAssignment>,
    ) -> std::result::Result<Group, JoinError> {
        let (contexts, comms, remote) = match assignment {
            None => {
                let comms = connect(&contexts, make_id()?, 0, contexts.len())?;
                (contexts, comms, None)
            }
            Some(RankAssignment { id, first, total, lost_peer, timeout }) => {
                let (contexts, comms) = unless_peer_lost(timeout, &lost_peer, move || {
                    let comms = connect(&contexts, id, first, total);
                    (contexts, comms)
                })?;
                (contexts, comms?, Some((lost_peer, timeout)))
            }
        };
        let each = contexts.into_iter().zip(comms);
        let members: Vec<Member> = each.map(|(context, comm)| Member::new(context, comm)).collect();
        let barrier = AbortableBarrier::new(members.len());
        Ok(Group { members, barrier, aborts: Mutex::default(), remote, lost: OnceLock::new() })
    }

    /// Records that other processes do not respond.
    fn record_loss(&self, message: String) -> Failure {
        Failure(self.lost.get_or_init(|| message).clone())
    }

    /// Aborts all operations on every GPU. A communicator is skipped while its own thread is
    /// blocked in the library: that thread then sees the abort of the others as an error, and
    /// aborts as well.
    fn abort(&self) {
        self.barrier.abort();
        self.abort_comms(false);
    }

    /// Aborts communicators; with `force`, also those with a thread blocked in the library. Each
    /// abort has its own thread, because the library first releases the GPU and then waits until no
    /// captured step is left.
    fn abort_comms(&self, force: bool) {
        for member in &self.members {
            let is_free = take_comm(&member.comm).is_some();
            if !(is_free || force) || !member.first_to_abort() {
                continue;
            }
            let Ok(context) = member.context.try_clone() else { continue };
            let comm = member.abort_comm;
            let abort = move || {
                let aborted = context.enter().and_then(|()| nccl!(ncclCommAbort(comm.handle())));
                aborted.unwrap_or_else(|e| tracing::warn!("{e}"));
            };
            lock(&self.aborts).push(thread::spawn(abort));
        }
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        // Each abort waits for the others; not for long if those are other processes, which may
        // have ended.
        let limit = if self.remote.is_some() { SHUTDOWN_TIMEOUT } else { Duration::MAX };
        for abort in lock(&self.aborts).drain(..) {
            // The thread reports errors itself.
            with_timeout(limit, move || drop(abort.join()));
        }
        let mut destroys = vec![];
        for Member { context, comm, aborted, .. } in self.members.drain(..) {
            let Some(comm) = lock(&comm).take().filter(|_| !aborted.into_inner()) else {
                continue;
            };
            let destroy = move || {
                let ended = context.enter().and_then(|()| nccl!(ncclCommDestroy(comm.handle())));
                ended.unwrap_or_else(|e| tracing::warn!("{e}"));
            };
            destroys.push(thread::spawn(move || with_timeout(limit, destroy)));
        }
        for destroy in destroys {
            // As above.
            let _ = destroy.join();
        }
    }
}

/// Forms a group of the GPUs of these contexts, and those of other processes. Returns a link for
/// each GPU.
pub fn join(
    contexts: Vec<Context>,
    assignment: Option<RankAssignment>,
) -> std::result::Result<Vec<Membership>, JoinError> {
    let ranks = 0..contexts.len();
    let group = Arc::new(Group::new(contexts, assignment)?);
    Ok(ranks.map(|rank| Membership { group: group.clone(), rank }).collect())
}

impl Membership {
    /// The communicator and its lock. Fails if it was aborted.
    fn comm(&self) -> Result<(MutexGuard<'_, Option<Comm>>, sys::Comm)> {
        let member = &self.group.members[self.rank];
        let held = lock(&member.comm);
        let comm =
            held.filter(|_| !member.aborted.load(Ordering::SeqCst)).ok_or_else(aborted)?.handle();
        Ok((held, comm))
    }

    /// Runs all-reduces over all GPUs as one operation.
    pub fn reduce(&self, reductions: &[Reduction], stream: &Stream) -> Result<()> {
        let (_held, comm) = self.comm()?;
        grouped(|| {
            reductions.iter().try_for_each(|Reduction { from, to, elem, len }| {
                let (from, to) = (*from as *const _, *to as *mut _);
                nccl!(ncclAllReduce(from, to, *len, *elem as c_int, OP_SUM, comm, stream.0))
            })
        })?;
        // An abort in the meantime may have skipped this communicator.
        if self.group.barrier.is_aborted() { Err(aborted()) } else { Ok(()) }
    }

    /// Sends and receives bytes as one operation. `sent` and `received` are the rank, the address
    /// and the length of each message that is not empty. The first call connects the GPUs.
    pub fn send_receive(
        &self,
        sent: &[(usize, u64, usize)],
        received: &[(usize, u64, usize)],
        stream: &Stream,
    ) -> Result<()> {
        let (_held, comm) = self.comm()?;
        grouped(|| {
            sent.iter().try_for_each(|(rank, at, len)| {
                nccl!(ncclSend(*at as *const _, *len, TYPE_BYTE, *rank as c_int, comm, stream.0))
            })?;
            received.iter().try_for_each(|(rank, at, len)| {
                nccl!(ncclRecv(*at as *mut _, *len, TYPE_BYTE, *rank as c_int, comm, stream.0))
            })
        })
    }

    /// Runs work in which the GPUs wait for each other. The first rank takes the lock for all: with
    /// one lock each, a GPU could wait inside for another that waits for its lock.
    pub fn run_all<L, T>(
        &self,
        lock: impl FnOnce() -> L,
        work: impl FnOnce() -> Result<T>,
    ) -> Result<T> {
        let held = (self.rank == 0).then(lock);
        self.group.barrier.wait().map_err(|_| aborted())?;
        let done = self.with_watchdog(work)?;
        self.group.barrier.wait().map_err(|_| aborted())?;
        drop(held);
        Ok(done)
    }

    /// Fails if another GPU failed, or the library reports an error.
    pub fn check(&self) -> Result<()> {
        if self.group.barrier.is_aborted() {
            return Err(aborted());
        }
        let (_held, comm) = self.comm()?;
        let mut error = 0;
        nccl!(ncclCommGetAsyncError(comm, &mut error))?;
        check("sum over GPUs", error).map_err(|failure| match &self.group.remote {
            Some(_) => self.group.record_loss(failure.0),
            None => failure,
        })
    }

    /// Runs a call that may wait for other processes forever. After the timeout, another thread
    /// aborts the group.
    pub fn with_watchdog<T>(&self, call: impl FnOnce() -> T) -> T {
        let Some((_, limit)) = self.group.remote else { return call() };
        let (done, ended) = channel::<()>();
        let group = self.group.clone();
        thread::spawn(move || {
            // A wait that polls reaches its own limit first.
            if ended.recv_timeout(limit + LOST_PEER_GRACE) == Err(RecvTimeoutError::Timeout) {
                group.record_loss(no_answer(limit));
                group.barrier.abort();
                group.abort_comms(true);
            }
        });
        let result = call();
        drop(done);
        result
    }

    /// Waits for an event. Fails if another GPU fails first, or those of other processes do not
    /// respond.
    pub fn wait(&self, event: &Event) -> Result<()> {
        let (began, mut last_poll, mut lost_since) = (Instant::now(), Instant::now(), None);
        while !event.state()? {
            self.check()?;
            if last_poll.elapsed() > POLL_INTERVAL {
                last_poll = Instant::now();
                self.check_peers(began, &mut lost_since)?;
            }
            thread::yield_now();
        }
        self.check()
    }

    /// Fails if other processes do not respond in time, or one has been lost for longer than the
    /// grace period.
    fn check_peers(&self, since: Instant, lost_since: &mut Option<Instant>) -> Result<()> {
        let Some((lost_peer, limit)) = &self.group.remote else { return Ok(()) };
        if since.elapsed() > *limit {
            return Err(self.group.record_loss(no_answer(since.elapsed())));
        }
        match lost_beyond_grace(lost_peer, lost_since) {
            Some(peer) => Err(self.group.record_loss(peer.to_string())),
            None => Ok(()),
        }
    }

    /// Why GPUs of another process are considered lost, if they are.
    pub fn lost(&self) -> Option<&str> {
        self.group.lost.get().map(String::as_str)
    }

    /// Aborts the group on all GPUs.
    pub fn abort(&self) {
        self.group.abort();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waiting_for_a_communicator_in_use_times_out() {
        let comm = Mutex::new(Some(Comm(null_mut())));
        let held = lock(&comm);
        thread::scope(|scope| {
            assert!(scope.spawn(|| take_comm(&comm)).join().expect("no panic").is_none());
            let waits = scope.spawn(|| take_comm(&comm));
            drop(held);
            assert!(waits.join().expect("no panic").is_some());
        });
        assert!(take_comm(&comm).is_none());
    }

    #[test]
    fn blocked_calls_are_abandoned() {
        let (stop, stopped) = channel::<()>();
        let waits = move || stopped.recv().is_err();
        assert_eq!(with_timeout(Duration::from_millis(20), waits), None);
        drop(stop);
        assert_eq!(with_timeout(Duration::MAX, || 7), Some(7));
    }

    #[test]
    fn a_worker_lost_while_gpus_connect_is_named_long_before_the_timeout() {
        let limit = Duration::from_secs(60);
        let lost = || PeerError { name: "rank 2".into(), message: "is gone".into() };
        let (began, somebody, nobody): (_, LivenessProbe, LivenessProbe) =
            (Instant::now(), Arc::new(move || Some(lost())), Arc::new(|| None));
        let (stop, stopped) = channel::<()>();
        let error = unless_peer_lost(limit, &somebody, move || stopped.recv().is_err());
        assert!(matches!(error, Err(JoinError::PeerLost(peer)) if peer == lost()));
        assert!(
            began.elapsed() > LOST_PEER_GRACE && began.elapsed() < limit / 4,
            "{:?}",
            began.elapsed()
        );
        drop(stop);
        // It may have sent its last message just before.
        let late = || {
            thread::sleep(3 * POLL_INTERVAL);
            7
        };
        assert!(matches!(unless_peer_lost(limit, &somebody, late), Ok(7)));
        let (_stop, stopped) = channel::<()>();
        let error = unless_peer_lost(2 * POLL_INTERVAL, &nobody, move || stopped.recv().is_err());
        assert!(
            matches!(error, Err(JoinError::Timeout(words)) if words.starts_with("no answer for 0."))
        );
    }

    #[phalanx_needs::needs(nccl)]
    #[test]
    fn ids_are_unique() {
        assert_ne!(make_id().unwrap(), make_id().unwrap());
    }

    #[phalanx_needs::needs(nccl)]
    #[test]
    fn errors_name_the_call_and_end_the_group() {
        assert_eq!(check("nothing", 0), Ok(()));
        let text = check("ncclAllReduce", 4).unwrap_err().0;
        assert!(text.starts_with("ncclAllReduce: invalid argument"), "{text}");
        for _ in 0..2 {
            let inside = grouped(|| check("inside", 5)).unwrap_err().0;
            assert!(inside.starts_with("inside: invalid usage"), "{inside}");
            assert_eq!(grouped(|| Ok(())), Ok(()));
        }
        // SAFETY: a null communicator is refused.
        let refused = unsafe {
            let (from, to, stream) = (std::ptr::null(), null_mut(), null_mut());
            sys::ncclAllReduce(from, to, 1, DataType::F32 as c_int, OP_SUM, null_mut(), stream)
        };
        assert!(check("ncclAllReduce", refused).is_err());
    }
}
