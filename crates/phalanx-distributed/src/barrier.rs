//! A barrier for threads that stop waiting once one of them fails.

use std::sync::{Condvar, Mutex, MutexGuard};
use std::time::{Duration, Instant};

/// A barrier that any member can abort.
pub struct AbortableBarrier {
    members: usize,
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    arrived: usize,
    round: u64,
    aborted: bool,
}

/// A member aborted the barrier.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Aborted;

impl AbortableBarrier {
    /// A barrier for this many members.
    pub fn new(members: usize) -> AbortableBarrier {
        AbortableBarrier { members, state: Mutex::default(), changed: Condvar::new() }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(|e| e.into_inner())
    }

    /// Waits for all members.
    ///
    /// # Errors
    /// A member aborted the barrier.
    pub fn wait(&self) -> Result<(), Aborted> {
        self.wait_for(Duration::MAX)
    }

    /// Waits for all members for at most `limit`. A timeout aborts the barrier for all.
    ///
    /// # Errors
    /// A member aborted the barrier, or did not arrive in time.
    pub fn wait_for(&self, limit: Duration) -> Result<(), Aborted> {
        let began = Instant::now();
        let mut state = self.state();
        if state.aborted {
            return Err(Aborted);
        }
        let round = state.round;
        state.arrived += 1;
        if state.arrived == self.members {
            state.arrived = 0;
            state.round += 1;
            self.changed.notify_all();
            return Ok(());
        }
        while state.round == round {
            let left = limit.saturating_sub(began.elapsed());
            if left.is_zero() {
                state.aborted = true;
                self.changed.notify_all();
            }
            if state.aborted {
                return Err(Aborted);
            }
            let waited = self.changed.wait_timeout(state, left);
            state = waited.unwrap_or_else(|e| e.into_inner()).0;
        }
        Ok(())
    }

    /// Aborts the barrier for all members. Returns whether this was the first abort.
    pub fn abort(&self) -> bool {
        let first = !std::mem::replace(&mut self.state().aborted, true);
        self.changed.notify_all();
        first
    }

    /// Whether a member aborted the barrier.
    pub fn is_aborted(&self) -> bool {
        self.state().aborted
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wait_can_time_out() {
        let barrier = AbortableBarrier::new(2);
        assert_eq!(barrier.wait_for(Duration::from_millis(20)), Err(Aborted));
        assert!(barrier.is_aborted() && barrier.wait() == Err(Aborted), "for good");
    }
}
