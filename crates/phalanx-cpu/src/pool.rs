//! The workers: one thread each, the caller being the first, and the barriers between them.
//!
//! Workers wait by spinning briefly, then yielding, then sleeping, so that a step starts without a
//! system call when steps follow closely and an idle program costs nothing.

use std::cell::UnsafeCell;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::{self, JoinHandle, Thread};

/// Turns of a waiting loop spent spinning, before yielding to other threads; none where there are
/// more workers than cores, since whoever is waited for needs the core.
const SPINS: u32 = 20_000;
/// Turns before an idle worker goes to sleep.
const IDLE_YIELDS: u32 = 200;

/// What the workers of an executor and their barriers share.
pub struct Team {
    /// Raised when a worker fails, so that barriers let the others out.
    broken: AtomicBool,
    /// Turns a wait spins before it yields.
    spins: u32,
}

impl Team {
    /// A team of so many workers.
    pub fn new(workers: usize) -> Arc<Team> {
        let spins = if workers > usable_cores() { 0 } else { SPINS };
        Arc::new(Team { broken: AtomicBool::new(false), spins })
    }

    /// One turn of a waiting loop.
    fn relax(&self, turns: &mut u32) {
        *turns = turns.saturating_add(1);
        if *turns < self.spins { std::hint::spin_loop() } else { thread::yield_now() }
    }
}

type Job = dyn Fn(usize) + Sync;

struct Shared {
    /// The job of the current round, valid while `pending` is above zero.
    job: UnsafeCell<Option<*const Job>>,
    round: AtomicU64,
    pending: AtomicUsize,
    stop: AtomicBool,
    failed: Mutex<Option<(usize, String)>>,
    team: Arc<Team>,
}

// SAFETY: `job` is written by the caller before it publishes a new round (release) and read by
// workers after they see the round (acquire); it is not written again before all have finished.
unsafe impl Sync for Shared {}
// SAFETY: the pointer inside is only used as described above.
unsafe impl Send for Shared {}

/// A fixed team of workers.
pub struct Pool {
    shared: Arc<Shared>,
    threads: Vec<JoinHandle<()>>,
    handles: Vec<Thread>,
    /// The cores, where workers are bound to them; the caller belongs on the first.
    bound: Vec<usize>,
}

impl Pool {
    /// Starts `workers`, pinned to cores when `pin` and there is a core for each.
    ///
    /// # Errors
    /// The system's reason when it starts no more threads.
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
        // Dropped half-made, the pool ends the threads it has.
        let bound = if workers > 1 && cores.len() >= workers { cores } else { vec![] };
        let mut pool = Pool { shared, threads: vec![], handles: vec![], bound };
        for index in 1..workers {
            let shared = pool.shared.clone();
            let core = pool.bound.get(index).copied();
            let body = move || {
                if let Some(core) = core {
                    bind(&[core]);
                }
                work(&shared, index);
            };
            let thread = thread::Builder::new().name(format!("phalanx-{index}")).spawn(body)?;
            pool.handles.push(thread.thread().clone());
            pool.threads.push(thread);
        }
        Ok(pool)
    }

    /// Runs `job(worker)` on every worker, the caller being worker 0, and waits for all.
    ///
    /// # Errors
    /// The first worker that ever panicked, with its message.
    pub fn run(&self, job: &(dyn Fn(usize) + Sync)) -> Result<(), (usize, String)> {
        self.failure()?;
        if let Some(first) = self.bound.first() {
            come_home(*first, &self.bound);
        }
        let job: *const (dyn Fn(usize) + Sync) = job;
        // SAFETY: only the lifetime changes: no worker holds the job once `pending` is zero, for
        // which this function waits before the borrow ends.
        let job = unsafe { std::mem::transmute::<*const (dyn Fn(usize) + Sync), *const Job>(job) };
        self.shared.pending.store(self.handles.len(), Ordering::Relaxed);
        // SAFETY: all workers finished the previous round, so nobody reads.
        unsafe { *self.shared.job.get() = Some(job) };
        self.shared.round.fetch_add(1, Ordering::Release);
        self.handles.iter().for_each(Thread::unpark);
        attempt(&self.shared, 0, job);
        let mut turns = 0;
        while self.shared.pending.load(Ordering::Acquire) > 0 {
            self.shared.team.relax(&mut turns);
        }
        self.failure()
    }

    /// What went wrong in this round or any before: barriers are of no use once a worker left.
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
            // A worker cannot panic outside a job, and those are caught.
            let _ = t.join();
        }
    }
}

fn work(shared: &Shared, index: usize) {
    let mut seen = 0;
    loop {
        let mut turns = 0;
        while shared.round.load(Ordering::Acquire) == seen {
            if shared.stop.load(Ordering::Acquire) {
                return;
            }
            shared.team.relax(&mut turns);
            if turns > shared.team.spins + IDLE_YIELDS {
                thread::park();
                turns = 0;
            }
        }
        seen += 1;
        // SAFETY: the caller wrote the job before publishing the round.
        let job = unsafe { *shared.job.get() };
        attempt(shared, index, job.expect("a round has a job"));
        shared.pending.fetch_sub(1, Ordering::Release);
    }
}

fn attempt(shared: &Shared, index: usize, job: *const Job) {
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

/// Message of workers that left a barrier because another failed.
const BROKEN: &str = "another worker failed";

/// A barrier for a fixed number of workers.
pub struct Barrier {
    workers: u32,
    arrived: AtomicU32,
    round: AtomicU32,
    team: Arc<Team>,
}

impl Barrier {
    /// A barrier that lets everyone out when a worker of the team fails.
    pub fn new(workers: usize, team: Arc<Team>) -> Barrier {
        let workers = workers as u32;
        Barrier { workers, arrived: AtomicU32::new(0), round: AtomicU32::new(0), team }
    }

    /// Waits for all workers.
    ///
    /// # Panics
    /// When another worker failed: the pool turns this into an error.
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
        let mut turns = 0;
        while self.round.load(Ordering::Acquire) == round {
            if turns % 64 == 0 && self.team.broken.load(Ordering::Acquire) {
                // Not `panic!`, whose hook would report a second failure.
                std::panic::resume_unwind(Box::new(BROKEN.to_string()));
            }
            self.team.relax(&mut turns);
        }
    }
}

/// The cores this process may use.
#[cfg(target_os = "linux")]
pub fn cores() -> Vec<usize> {
    // SAFETY: an all-zero cpu_set_t is a valid empty set, and the call fills it up to its size.
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

/// How many threads can run at once: its cores, or fewer where a container is given less time than that.
pub fn usable_cores() -> usize {
    let quota = thread::available_parallelism().map_or(usize::MAX, usize::from);
    quota.min(cores().len()).max(1)
}

/// Whether threads are bound to cores: not with `PHALANX_PIN=0`, nor where a quota of time lets several
/// containers share all cores, since every one of them would take the first.
pub(crate) fn pins() -> bool {
    std::env::var("PHALANX_PIN").map_or(true, |v| v != "0") && usable_cores() >= cores().len()
}

/// The cores of a process that is alone on its machine, and those of the machine, where a launcher has
/// bound it to fewer than there are.
pub fn bound_to_fewer(local_workers: usize) -> Option<(usize, usize)> {
    let (mine, all) = (cores().len(), online());
    (local_workers == 1 && mine < all).then_some((mine, all))
}

/// Takes this process' part of the cores of its machine, where several processes share it and nobody has
/// shared them out before. Threads started from now on stay there.
pub fn share_cores(part: usize, parts: usize) {
    let cores = cores();
    // A launcher that binds processes leaves each of them fewer than there are.
    if !pins() || parts < 2 || cores.is_empty() || cores.len() < online() {
        return;
    }
    let mine = phalanx_graph::program::split_range(0..cores.len(), parts, part % parts);
    match mine.is_empty() {
        false => bind(&cores[mine]),
        true => bind(&[cores[part % cores.len()]]),
    }
}

/// The cores of the machine.
fn online() -> usize {
    #[cfg(unix)]
    // SAFETY: a plain query; unknown names answer -1.
    return usize::try_from(unsafe { libc::sysconf(libc::_SC_NPROCESSORS_ONLN) }).unwrap_or(1);
    #[cfg(not(unix))]
    return 1;
}

/// The cores this process may use.
#[cfg(not(target_os = "linux"))]
pub fn cores() -> Vec<usize> {
    (0..thread::available_parallelism().map_or(1, usize::from)).collect()
}

/// Lets the calling thread run on these cores alone; where that is refused it merely roams.
#[cfg(target_os = "linux")]
fn bind(cores: &[usize]) {
    // SAFETY: the set is initialised and the cores came from the process' own mask.
    unsafe {
        let mut set: libc::cpu_set_t = std::mem::zeroed();
        cores.iter().for_each(|core| libc::CPU_SET(*core, &mut set));
        libc::sched_setaffinity(0, size_of::<libc::cpu_set_t>(), &raw const set);
    }
}

/// Moves the calling thread to its core if it runs elsewhere, on a core where a worker is bound. It
/// stays free to roam: threads that the caller starts must not inherit the binding.
#[cfg(target_os = "linux")]
fn come_home(core: usize, all: &[usize]) {
    // SAFETY: a plain query.
    let now = unsafe { libc::sched_getcpu() };
    if now >= 0 && now as usize != core {
        bind(&[core]);
        bind(all);
    }
}

#[cfg(not(target_os = "linux"))]
fn bind(_cores: &[usize]) {}

#[cfg(not(target_os = "linux"))]
fn come_home(_core: usize, _all: &[usize]) {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_worker_runs_every_round() {
        let team = Team::new(4);
        let pool = Pool::new(4, false, team.clone()).unwrap();
        let barrier = Barrier::new(4, team);
        let total = AtomicUsize::new(0);
        // Miri takes its time.
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

    /// A thread that is bound to one core stands for a process that a launcher has bound.
    #[test]
    #[cfg(target_os = "linux")]
    fn a_lone_process_that_is_bound_to_few_cores_is_noticed() {
        let bound = thread::spawn(|| {
            bind(&cores()[..1]);
            (usable_cores(), bound_to_fewer(1), bound_to_fewer(2))
        });
        let few = (online() > 1).then(|| (1, online()));
        assert_eq!(bound.join().unwrap(), (1, few, None));
        assert!(usable_cores() <= cores().len());
    }
}
