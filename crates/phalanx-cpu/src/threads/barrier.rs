//! Barriers, and the state that workers share while they wait.

use super::pinning::usable_cores;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::thread;

/// Iterations of a wait loop that spin before the loop yields to other threads. With more workers than
/// cores, loops do not spin, because the awaited worker may need the core.
const SPINS: u32 = 20_000;

/// State that the workers of an executor and their barriers share.
pub(crate) struct Team {
    /// Set when a worker fails, so that barriers release the others.
    pub(super) broken: AtomicBool,
    /// Iterations that a wait spins before it yields.
    pub(super) spins: u32,
}

impl Team {
    /// A team of `workers` workers.
    pub fn new(workers: usize) -> Arc<Team> {
        let spins = if workers > usable_cores() { 0 } else { SPINS };
        Arc::new(Team { broken: AtomicBool::new(false), spins })
    }

    /// One iteration of a wait loop.
    pub(super) fn relax(&self, iterations: &mut u32) {
        *iterations = iterations.saturating_add(1);
        if *iterations < self.spins { std::hint::spin_loop() } else { thread::yield_now() }
    }
}

/// Panic message of workers that a barrier released because another worker failed.
pub(super) const BROKEN: &str = "another worker failed";

/// A barrier for a fixed number of workers.
pub(crate) struct Barrier {
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
