//! Sums over several GPUs by NCCL: the few functions that are called, and the GPUs of this process that
//! add with each other.

use crate::crew::Meeting;
use crate::driver::{Context, Failure, Result, Stream};
use crate::launch::Elem;
use std::ffi::{CStr, c_char, c_int};
use std::ptr::null_mut;
use std::sync::{Arc, Mutex, MutexGuard};
use std::thread::{self, JoinHandle};

/// The library's functions, as `nccl.h` has them. All were looked for when it was opened.
#[allow(non_snake_case)]
mod sys {
    use crate::libs::{self, Lib};
    use cudarc::driver::sys::CUstream;
    use std::ffi::{c_char, c_int, c_void};
    use std::sync::OnceLock;

    /// A communicator.
    pub type Comm = *mut c_void;

    /// What the ranks find each other by.
    #[repr(C)]
    #[derive(Clone, Copy)]
    pub struct UniqueId(pub [c_char; 128]);

    macro_rules! functions {
        ($(fn $name:ident($($arg:ident: $ty:ty),*) -> $result:ty;)*) => {$(
            pub unsafe fn $name($($arg: $ty),*) -> $result {
                type Function = unsafe extern "C" fn($($ty),*) -> $result;
                static FOUND: OnceLock<Function> = OnceLock::new();
                let function = FOUND.get_or_init(|| {
                    let at = libs::find(Lib::Nccl).ok().and_then(|l| l.address(stringify!($name)));
                    // SAFETY: the library's function of that name has this type.
                    unsafe { std::mem::transmute(at.expect("looked for when opened")) }
                });
                // SAFETY: the caller's.
                unsafe { function($($arg),*) }
            }
        )*};
    }

    functions! {
        fn ncclGetUniqueId(id: *mut UniqueId) -> c_int;
        fn ncclCommInitRank(comm: *mut Comm, ranks: c_int, id: UniqueId, rank: c_int) -> c_int;
        fn ncclAllReduce(
            from: *const c_void, to: *mut c_void, count: usize, elem: c_int, op: c_int,
            comm: Comm, stream: CUstream
        ) -> c_int;
        fn ncclGroupStart() -> c_int;
        fn ncclGroupEnd() -> c_int;
        fn ncclCommGetAsyncError(comm: Comm, error: *mut c_int) -> c_int;
        fn ncclCommDestroy(comm: Comm) -> c_int;
        fn ncclCommAbort(comm: Comm) -> c_int;
        fn ncclGetErrorString(error: c_int) -> *const c_char;
        fn ncclGetLastError(comm: Comm) -> *const c_char;
    }
}

/// Adding, among the library's operations.
const SUM: c_int = 0;

fn number(elem: Elem) -> c_int {
    match elem {
        Elem::I32 => 2,
        Elem::F16 => 6,
        Elem::F32 => 7,
        Elem::F64 => 8,
        Elem::Bf16 => 9,
    }
}

/// The answer to a call as a result that names it.
fn check(what: &str, answer: c_int) -> Result<()> {
    let text = |at: *const c_char| match at.is_null() {
        true => String::new(),
        // SAFETY: the library hands out strings that end with zero and stay.
        false => unsafe { CStr::from_ptr(at) }.to_string_lossy().into_owned(),
    };
    if answer == 0 {
        return Ok(());
    }
    // SAFETY: asks for strings alone.
    let (reason, last) =
        unsafe { (text(sys::ncclGetErrorString(answer)), text(sys::ncclGetLastError(null_mut()))) };
    let last = if last.is_empty() { last } else { format!(": {last}") };
    Err(Failure(format!("{what}: {reason}{last} (NCCL_DEBUG=INFO says more)")))
}

macro_rules! nccl {
    ($call:ident($($arg:expr),* $(,)?)) => {
        // SAFETY: communicators that are alive, addresses of live memory.
        check(stringify!($call), unsafe { sys::$call($($arg),*) })
    };
}

/// Between the start and the end of a group all calls count as one.
fn grouped(calls: impl FnOnce() -> Result<()>) -> Result<()> {
    nccl!(ncclGroupStart())?;
    let called = calls();
    // Ended in any case, else the thread would be left inside.
    let ended = nccl!(ncclGroupEnd());
    called.and(ended)
}

#[derive(Clone, Copy)]
struct Comm(sys::Comm);

// SAFETY: one thread at a time calls the library with it: whoever has the lock, or took it out.
unsafe impl Send for Comm {}

impl Comm {
    fn raw(self) -> sys::Comm {
        self.0
    }
}

/// A GPU among those that add with each other.
struct Member {
    /// Held until the communicator is gone.
    context: Context,
    /// Nothing once it was given up. Locked while the library is at it.
    comm: Mutex<Option<Comm>>,
}

/// GPUs that add with each other. The last one that is dropped, with all captured steps gone before,
/// ends it.
struct Group {
    members: Vec<Member>,
    meeting: Meeting,
    /// Communicators on their way out.
    aborts: Mutex<Vec<JoinHandle<()>>>,
}

/// One GPU's part in a group.
pub(crate) struct Link {
    group: Arc<Group>,
    rank: usize,
}

/// An address to add from, one to add to, and the elements.
pub(crate) struct Sum {
    pub from: u64,
    pub to: u64,
    pub elem: Elem,
    pub len: usize,
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(|e| e.into_inner())
}

fn gone() -> Failure {
    Failure("the GPUs do not work together any more, since one of them failed".into())
}

impl Group {
    fn new(contexts: Vec<Context>) -> Result<Group> {
        let mut id = sys::UniqueId([0; 128]);
        nccl!(ncclGetUniqueId(&mut id))?;
        let mut comms = vec![null_mut(); contexts.len()];
        let ranks = contexts.len() as c_int;
        grouped(|| {
            let mut each = comms.iter_mut().zip(&contexts).zip(0..);
            each.try_for_each(|((comm, context), rank)| {
                context.enter()?;
                nccl!(ncclCommInitRank(comm, ranks, id, rank))
            })
        })?;
        let member = |(comm, context)| Member { context, comm: Mutex::new(Some(Comm(comm))) };
        let members: Vec<Member> = comms.into_iter().zip(contexts).map(member).collect();
        let meeting = Meeting::new(members.len());
        Ok(Group { members, meeting, aborts: Mutex::default() })
    }

    /// Stops what is under way on every GPU. A communicator that its own thread is using is left to it:
    /// the others' end shows there as an error, and that thread gives up as well. Each has a thread
    /// because the library first lets go of the GPU and then waits until no captured step is left.
    fn give_up(&self) {
        self.meeting.fail();
        for Member { context, comm } in &self.members {
            let Some(comm) = comm.try_lock().ok().and_then(|mut c| c.take()) else { continue };
            let Ok(context) = context.again() else { continue };
            let abort = move || {
                let aborted = context.enter().and_then(|()| nccl!(ncclCommAbort(comm.raw())));
                aborted.unwrap_or_else(|e| tracing::warn!("{e}"));
            };
            locked(&self.aborts).push(thread::spawn(abort));
        }
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        for abort in locked(&self.aborts).drain(..) {
            // It reports for itself.
            let _ = abort.join();
        }
        // Each waits for the others.
        thread::scope(|scope| {
            for Member { context, comm } in &self.members {
                let Some(comm) = locked(comm).take() else { continue };
                scope.spawn(move || {
                    let ended = context.enter().and_then(|()| nccl!(ncclCommDestroy(comm.raw())));
                    ended.unwrap_or_else(|e| tracing::warn!("{e}"));
                });
            }
        });
    }
}

/// Has the GPUs of these contexts add with each other: a link for each.
pub(crate) fn join(contexts: Vec<Context>) -> Result<Vec<Link>> {
    let ranks = 0..contexts.len();
    let group = Arc::new(Group::new(contexts)?);
    Ok(ranks.map(|rank| Link { group: group.clone(), rank }).collect())
}

impl Link {
    fn comm(&self) -> MutexGuard<'_, Option<Comm>> {
        locked(&self.group.members[self.rank].comm)
    }

    /// Adds over all GPUs, as one.
    pub fn reduce(&self, sums: &[Sum], stream: &Stream) -> Result<()> {
        let held = self.comm();
        let comm = held.ok_or_else(gone)?.raw();
        grouped(|| {
            sums.iter().try_for_each(|Sum { from, to, elem, len }| {
                let (from, to) = (*from as *const _, *to as *mut _);
                nccl!(ncclAllReduce(from, to, *len, number(*elem), SUM, comm, stream.0))
            })
        })
    }

    /// Does what the GPUs may wait for each other in. The first takes a lock for all of them: were it
    /// each for itself, one could wait inside for another that waits for the lock.
    pub fn together<L, T>(
        &self,
        lock: impl FnOnce() -> L,
        work: impl FnOnce() -> Result<T>,
    ) -> Result<T> {
        let held = (self.rank == 0).then(lock);
        self.group.meeting.wait().map_err(|_| gone())?;
        let done = work()?;
        self.group.meeting.wait().map_err(|_| gone())?;
        drop(held);
        Ok(done)
    }

    /// Fails where another GPU did, or the library by itself.
    pub fn check(&self) -> Result<()> {
        if self.group.meeting.failed() {
            return Err(gone());
        }
        let held = self.comm();
        let comm = held.ok_or_else(gone)?.raw();
        let mut error = 0;
        nccl!(ncclCommGetAsyncError(comm, &mut error))?;
        check("sum over GPUs", error)
    }

    pub fn give_up(&self) {
        self.group.give_up();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::libs::{self, Lib};

    #[test]
    fn errors_are_named_and_a_thread_is_not_left_inside_a_group() {
        if let Err(missing) = libs::find(Lib::Nccl) {
            return eprintln!("skipped: {missing}");
        }
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
            sys::ncclAllReduce(from, to, 1, number(Elem::F32), SUM, null_mut(), stream)
        };
        assert!(check("ncclAllReduce", refused).is_err());
    }
}
