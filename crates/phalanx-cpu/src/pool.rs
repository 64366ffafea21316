//! The thread pool and its barriers. Each worker is one thread; the calling thread is worker 0.
//!
//! Workers wait by spinning briefly, then yielding, then sleeping. A step starts without a system call
//! if it follows the previous one closely, and an idle program costs nothing.

use std::cell::UnsafeCell;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::{self, JoinHandle, Thread};

/// Iterations of a wait loop that spin before the loop yields to other threads. With more workers than
/// cores, loops do not spin, because the awaited worker may need the core.
const SPINS: u32 = 20_000;
/// Iterations that yield before an idle worker goes to sleep.
const IDLE_YIELDS: u32 = 200;

/// State that the workers of an executor and their barriers share.
pub struct Team {
    /// Set when a worker fails, so that barriers release the others.
    broken: AtomicBool,
    /// Iterations that a wait spins before it yields.
    spins: u32,
}

impl Team {
    /// A team of `workers` workers.
    pub fn new(workers: usize) -> Arc<Team> {
        let spins = if workers > usable_cores() { 0 } else { SPINS };
        Arc::new(Team { broken: AtomicBool::new(false), spins })
    }

    /// One iteration of a wait loop.
    fn relax(&self, iterations: &mut u32) {
        *iterations = iterations.saturating_add(1);
        if *iterations < self.spins { std::hint::spin_loop() } else { thread::yield_now() }
    }
}

type Job = dyn Fn(usize) + Sync;

struct Shared {
    /// The job of the current round; valid while `pending` is above zero.
    job: UnsafeCell<Option<*const Job>>,
    round: AtomicU64,
    pending: AtomicUsize,
    stop: AtomicBool,
    failed: Mutex<Option<(usize, String)>>,
    team: Arc<Team>,
}

// SAFETY: `job` is written by the caller before it publishes a new round (release) and read by
// workers after they see the round (acquire). It is not written again before all have finished.
unsafe impl Sync for Shared {}
// SAFETY: the pointer inside is only used as described above.
unsafe impl Send for Shared {}

/// A fixed set of worker threads.
pub struct Pool {
    shared: Arc<Shared>,
    threads: Vec<JoinHandle<()>>,
    handles: Vec<Thread>,
    /// The core of each worker if workers are pinned, else empty. The caller belongs on the first.
    pinned: Vec<usize>,
}

impl Pool {
    /// Starts `workers` workers, pinned to cores if `pin` is set and there is a core for each.
    ///
    /// # Errors
    /// The system's error if it cannot start a thread.
    pub fn new(workers: usize, pin: bool, team: Arc<Team>) -> std::io::Result<Pool> {
        let shared = Arc::new(Shared {
            job: UnsafeCell::new(None),
            round: AtomicU64::new(0),
            pending: AtomicUsize::new(0),
            stop: AtomicBool::new(false),
            failed: Mutex::new(None),
            team,
        });
        let cores = if pin { cores() } else { vec![] };
        let pinned = if workers > 1 && cores.len() >= workers { cores } else { vec![] };
        // If a later thread fails to start, dropping the pool ends the earlier ones.
        let mut pool = Pool { shared, threads: vec![], handles: vec![], pinned };
        for index in 1..workers {
            let shared = pool.shared.clone();
            let core = pool.pinned.get(index).copied();
            let body = move || {
                if let Some(core) = core {
                    set_affinity(&[core]);
                }
                worker_loop(&shared, index);
            };
            let thread = thread::Builder::new().name(format!("phalanx-{index}")).spawn(body)?;
            pool.handles.push(thread.thread().clone());
            pool.threads.push(thread);
        }
        Ok(pool)
    }

    /// Runs `job(worker)` on every worker and waits for all. The caller is worker 0.
    ///
    /// # Errors
    /// The first worker that panicked in this or an earlier call, with its message.
    pub fn run(&self, job: &(dyn Fn(usize) + Sync)) -> Result<(), (usize, String)> {
        self.failure()?;
        if let Some(first) = self.pinned.first() {
            move_to_core(*first, &self.pinned);
        }
        let job: *const (dyn Fn(usize) + Sync) = job;
        // SAFETY: only the lifetime changes. No worker holds the job once `pending` is zero, and this
        // function waits for that before the borrow ends.
        let job = unsafe { std::mem::transmute::<*const (dyn Fn(usize) + Sync), *const Job>(job) };
        self.shared.pending.store(self.handles.len(), Ordering::Relaxed);
        // SAFETY: all workers have finished the previous round, so none reads the job.
        unsafe { *self.shared.job.get() = Some(job) };
        self.shared.round.fetch_add(1, Ordering::Release);
        self.handles.iter().for_each(Thread::unpark);
        run_job(&self.shared, 0, job);
        let mut iterations = 0;
        while self.shared.pending.load(Ordering::Acquire) > 0 {
            self.shared.team.relax(&mut iterations);
        }
        self.failure()
    }

    /// The first failure of this or any earlier round. Barriers no longer work once a worker has failed.
    fn failure(&self) -> Result<(), (usize, String)> {
        let failed = self.shared.failed.lock().unwrap_or_else(|e| e.into_inner());
        failed.clone().map_or(Ok(()), Err)
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        self.shared.stop.store(true, Ordering::Release);
        self.handles.iter().for_each(Thread::unpark);
        for t in self.threads.drain(..) {
            // A worker cannot panic outside a job, and panics of jobs are caught.
            let _ = t.join();
        }
    }
}

fn worker_loop(shared: &Shared, index: usize) {
    let mut seen = 0;
    loop {
        let mut iterations = 0;
        while shared.round.load(Ordering::Acquire) == seen {
            if shared.stop.load(Ordering::Acquire) {
                return;
            }
            shared.team.relax(&mut iterations);
            if iterations > shared.team.spins + IDLE_YIELDS {
                thread::park();
                iterations = 0;
            }
        }
        seen += 1;
        // SAFETY: the caller wrote the job before publishing the round.
        let job = unsafe { *shared.job.get() };
        run_job(shared, index, job.expect("a round has a job"));
        shared.pending.fetch_sub(1, Ordering::Release);
    }
}

/// Runs the job of one worker and records a panic.
fn run_job(shared: &Shared, index: usize, job: *const Job) {
    // SAFETY: the caller of `run` keeps the job alive until every worker is done.
    let job = unsafe { &*job };
    if let Err(cause) = catch_unwind(AssertUnwindSafe(|| job(index))) {
        let text = cause
            .downcast_ref::<String>()
            .cloned()
            .or_else(|| cause.downcast_ref::<&str>().map(|s| s.to_string()))
            .unwrap_or_else(|| "unknown panic".into());
        let mut failed = shared.failed.lock().unwrap_or_else(|e| e.into_inner());
        if text != BROKEN {
            failed.get_or_insert((index, text));
        }
        shared.team.broken.store(true, Ordering::Release);
    }
}

/// Panic message of workers that a barrier released because another worker failed.
const BROKEN: &str = "another worker failed";

/// A barrier for a fixed number of workers.
pub struct Barrier {
    workers: u32,
    arrived: AtomicU32,
    round: AtomicU32,
    team: Arc<Team>,
}

impl Barrier {
    /// A barrier for `workers` workers. It releases all of them if a worker of the team fails.
    pub fn new(workers: usize, team: Arc<Team>) -> Barrier {
        let workers = workers as u32;
        Barrier { workers, arrived: AtomicU32::new(0), round: AtomicU32::new(0), team }
    }

    /// Waits for all workers.
    ///
    /// # Panics
    /// If another worker failed. The pool turns this into an error.
    pub fn wait(&self) {
        if self.workers == 1 {
            return;
        }
        let round = self.round.load(Ordering::Acquire);
        if self.arrived.fetch_add(1, Ordering::AcqRel) + 1 == self.workers {
            self.arrived.store(0, Ordering::Relaxed);
            self.round.store(round.wrapping_add(1), Ordering::Release);
            return;
        }
        let mut iterations = 0;
        while self.round.load(Ordering::Acquire) == round {
            if iterations % 64 == 0 && self.team.broken.load(Ordering::Acquire) {
                // Not `panic!`: its hook would print a second failure.
                std::panic::resume_unwind(Box::new(BROKEN.to_string()));
            }
            self.team.relax(&mut iterations);
        }
    }
}

/// The cores that this process may use.
#[cfg(target_os = "linux")]
pub fn cores() -> Vec<usize> {
    // SAFETY: an all-zero cpu_set_t is a valid empty set, and the call writes at most its size.
    let set = unsafe {
        let mut set: libc::cpu_set_t = std::mem::zeroed();
        if libc::sched_getaffinity(0, size_of::<libc::cpu_set_t>(), &raw mut set) != 0 {
            return (0..thread::available_parallelism().map_or(1, usize::from)).collect();
        }
        set
    };
    // SAFETY: the index stays below the set's capacity.
    (0..libc::CPU_SETSIZE as usize).filter(|i| unsafe { libc::CPU_ISSET(*i, &set) }).collect()
}

/// The number of threads that can run at once: the process's cores, or fewer under a container's CPU quota.
pub fn usable_cores() -> usize {
    let quota = thread::available_parallelism().map_or(usize::MAX, usize::from);
    quota.min(cores().len()).max(1)
}

/// Whether threads are pinned to cores. They are not with `PHALANX_PIN=0`, nor under a CPU quota: several
/// containers may then share all cores, and each would pin its threads to the first.
pub(crate) fn pinning_enabled() -> bool {
    std::env::var("PHALANX_PIN").map_or(true, |v| v != "0") && usable_cores() >= cores().len()
}

/// Detects a launcher that restricts a process to a part of the cores although it is alone on its machine.
/// Returns the number of the process's cores and of the machine's cores.
pub fn restricted_cores(local_workers: usize) -> Option<(usize, usize)> {
    let (mine, all) = (cores().len(), online_cores());
    (local_workers == 1 && mine < all).then_some((mine, all))
}

/// Restricts this process to part `part` of `parts` of the machine's cores, if several processes share the
/// machine and the launcher has not restricted them already. Threads started afterwards inherit this.
pub fn share_cores(part: usize, parts: usize) {
    let cores = cores();
    // If the launcher restricts processes, each sees fewer cores than are online.
    if !pinning_enabled() || parts < 2 || cores.is_empty() || cores.len() < online_cores() {
        return;
    }
    let mine = phalanx_graph::program::split_range(0..cores.len(), parts, part % parts);
    match mine.is_empty() {
        false => set_affinity(&cores[mine]),
        true => set_affinity(&[cores[part % cores.len()]]),
    }
}

/// The number of cores of the machine.
fn online_cores() -> usize {
    #[cfg(unix)]
    // SAFETY: a plain query; unknown names return -1.
    return usize::try_from(unsafe { libc::sysconf(libc::_SC_NPROCESSORS_ONLN) }).unwrap_or(1);
    #[cfg(not(unix))]
    return 1;
}

/// The cores that this process may use.
#[cfg(not(target_os = "linux"))]
pub fn cores() -> Vec<usize> {
    (0..thread::available_parallelism().map_or(1, usize::from)).collect()
}

/// Restricts the calling thread to these cores. If the system refuses, the affinity stays unchanged.
#[cfg(target_os = "linux")]
fn set_affinity(cores: &[usize]) {
    // SAFETY: the set is initialised, and the cores come from the process's own mask.
    unsafe {
        let mut set: libc::cpu_set_t = std::mem::zeroed();
        cores.iter().for_each(|core| libc::CPU_SET(*core, &mut set));
        libc::sched_setaffinity(0, size_of::<libc::cpu_set_t>(), &raw const set);
    }
}

/// Moves the calling thread to `core` if it runs elsewhere, possibly on a pinned worker's core. The thread is
/// not pinned, because threads that the caller starts would inherit that.
#[cfg(target_os = "linux")]
fn move_to_core(core: usize, all: &[usize]) {
    // SAFETY: a plain query.
    let now = unsafe { libc::sched_getcpu() };
    if now >= 0 && now as usize != core {
        set_affinity(&[core]);
        set_affinity(all);
    }
}

#[cfg(not(target_os = "linux"))]
fn set_affinity(_cores: &[usize]) {}

#[cfg(not(target_os = "linux"))]
fn move_to_core(_core: usize, _all: &[usize]) {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_worker_runs_every_round() {
        let team = Team::new(4);
        let pool = Pool::new(4, false, team.clone()).unwrap();
        let barrier = Barrier::new(4, team);
        let total = AtomicUsize::new(0);
        // Miri is slow.
        for round in 1..=if cfg!(miri) { 5 } else { 200 } {
            let seen = Mutex::new(vec![]);
            pool.run(&|w| {
                total.fetch_add(1, Ordering::Relaxed);
                barrier.wait();
                assert_eq!(total.load(Ordering::Relaxed), 4 * round);
                barrier.wait();
                seen.lock().unwrap().push(w);
            })
            .unwrap();
            let mut seen = seen.into_inner().unwrap();
            seen.sort_unstable();
            assert_eq!(seen, [0, 1, 2, 3]);
        }
    }

    #[test]
    fn a_failing_worker_does_not_hang_the_others() {
        let team = Team::new(3);
        let pool = Pool::new(3, false, team.clone()).unwrap();
        let barrier = Barrier::new(3, team);
        let result = pool.run(&|w| {
            assert!(w != 1, "worker one gives up");
            barrier.wait();
        });
        let (worker, message) = result.unwrap_err();
        assert_eq!(worker, 1);
        assert!(message.contains("gives up"), "{message}");
        let later = pool.run(&|_| unreachable!("must not run again"));
        assert_eq!(later, Err((worker, message)), "a broken team stays broken");
    }

    /// A thread restricted to one core stands for a process that a launcher has restricted.
    #[test]
    #[cfg(target_os = "linux")]
    fn a_lone_process_restricted_to_few_cores_is_detected() {
        let restricted = thread::spawn(|| {
            set_affinity(&cores()[..1]);
            (usable_cores(), restricted_cores(1), restricted_cores(2))
        });
        let few = (online_cores() > 1).then(|| (1, online_cores()));
        assert_eq!(restricted.join().unwrap(), (1, few, None));
        assert!(usable_cores() <= cores().len());
    }
}
