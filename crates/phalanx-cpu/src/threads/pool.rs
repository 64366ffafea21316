//! The thread pool. Each worker is one thread; the calling thread is worker 0.
//!
//! Workers wait by spinning briefly, then yielding, then sleeping. A step starts without a system call
//! if it follows the previous one closely, and an idle program costs nothing.

use super::barrier::{BROKEN, Team};
use super::pinning::{cores, move_to_core, set_affinity};
use std::cell::UnsafeCell;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::{self, JoinHandle, Thread};

/// Iterations that yield before an idle worker goes to sleep.
const IDLE_YIELDS: u32 = 200;

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
pub(crate) struct Pool {
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::threads::Barrier;

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
}
