//! A host thread for each GPU, kept for as long as the executor lives; and where such threads wait for
//! one another.

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Condvar, Mutex, MutexGuard};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

/// What every thread is to do, with its number.
type Job = &'static (dyn Fn(usize) + Sync);

/// How it ended.
type Outcome = Result<(), Box<dyn Any + Send>>;

/// A thread.
struct Hand {
    /// Taken when it is time to go.
    jobs: Option<Sender<Job>>,
    done: Receiver<Outcome>,
    thread: Option<JoinHandle<()>>,
}

impl Hand {
    fn new(number: usize) -> std::io::Result<Hand> {
        let (jobs, orders) = channel::<Job>();
        let (report, done) = channel();
        let body = move || {
            for job in orders {
                let outcome = catch_unwind(AssertUnwindSafe(|| job(number)));
                if report.send(outcome).is_err() {
                    return;
                }
            }
        };
        let thread = thread::Builder::new().name(format!("gpu-{number}")).spawn(body)?;
        Ok(Hand { jobs: Some(jobs), done, thread: Some(thread) })
    }
}

impl Drop for Hand {
    fn drop(&mut self) {
        self.jobs = None;
        // It catches every panic.
        self.thread.take().map(JoinHandle::join);
    }
}

/// One thread for each of several; none for a single one, whose work is done by whoever asks for it.
pub(crate) struct Crew {
    hands: Vec<Hand>,
}

impl Crew {
    pub fn new(count: usize) -> std::io::Result<Crew> {
        let hands = if count > 1 { (0..count).map(Hand::new).collect() } else { Ok(vec![]) };
        Ok(Crew { hands: hands? })
    }

    /// Works on all at the same time, each on its thread, and waits. A panic is passed on.
    pub fn each<T: Send, R: Send>(
        &self,
        all: &mut [T],
        work: impl Fn(usize, &mut T) -> R + Sync,
    ) -> Vec<R> {
        if self.hands.is_empty() {
            return all.iter_mut().enumerate().map(|(i, one)| work(i, one)).collect();
        }
        assert_eq!(all.len(), self.hands.len(), "a thread for each");
        let slots: Vec<Mutex<(&mut T, Option<R>)>> =
            all.iter_mut().map(|one| Mutex::new((one, None))).collect();
        self.run(&|i| {
            let mut slot = slots[i].lock().unwrap_or_else(|e| e.into_inner());
            let result = work(i, slot.0);
            slot.1 = Some(result);
        });
        let result = |slot: Mutex<(&mut T, Option<R>)>| {
            let (_, result) = slot.into_inner().unwrap_or_else(|e| e.into_inner());
            result.expect("panics were passed on")
        };
        slots.into_iter().map(result).collect()
    }

    fn run(&self, job: &(dyn Fn(usize) + Sync)) {
        // SAFETY: only the lifetime is another. The threads let go of the job before they report, and
        // this waits for the report of each that was given it: nothing in between returns or panics. A
        // channel breaks only with its thread, which then has no job any more.
        let job = unsafe { std::mem::transmute::<&(dyn Fn(usize) + Sync), Job>(job) };
        let mut outcomes: Vec<Outcome> = Vec::with_capacity(self.hands.len());
        let given = |hand: &&Hand| hand.jobs.as_ref().is_some_and(|jobs| jobs.send(job).is_ok());
        let busy = self.hands.iter().filter(given).count();
        for hand in &self.hands {
            outcomes.extend(hand.done.recv());
        }
        assert!(busy == self.hands.len() && outcomes.len() == busy, "a thread of the crew is gone");
        if let Some(panic) = outcomes.into_iter().find_map(Result::err) {
            resume_unwind(panic);
        }
    }
}

/// Where several wait until all have come, unless one says that it never will.
pub(crate) struct Meeting {
    members: usize,
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    here: usize,
    round: u64,
    failed: bool,
}

/// One of them does not come any more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Failed;

impl Meeting {
    pub fn new(members: usize) -> Meeting {
        Meeting { members, state: Mutex::default(), changed: Condvar::new() }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(|e| e.into_inner())
    }

    /// Waits for everybody.
    pub fn wait(&self) -> Result<(), Failed> {
        self.wait_for(Duration::MAX)
    }

    /// Waits for everybody, though not longer than this: then nobody waits any more.
    pub fn wait_for(&self, limit: Duration) -> Result<(), Failed> {
        let began = Instant::now();
        let mut state = self.state();
        if state.failed {
            return Err(Failed);
        }
        let round = state.round;
        state.here += 1;
        if state.here == self.members {
            state.here = 0;
            state.round += 1;
            self.changed.notify_all();
            return Ok(());
        }
        while state.round == round {
            let left = limit.saturating_sub(began.elapsed());
            if left.is_zero() {
                state.failed = true;
                self.changed.notify_all();
            }
            if state.failed {
                return Err(Failed);
            }
            let waited = self.changed.wait_timeout(state, left);
            state = waited.unwrap_or_else(|e| e.into_inner()).0;
        }
        Ok(())
    }

    /// Lets nobody wait any more; whether this was the first to say so.
    pub fn fail(&self) -> bool {
        let first = !std::mem::replace(&mut self.state().failed, true);
        self.changed.notify_all();
        first
    }

    pub fn failed(&self) -> bool {
        self.state().failed
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    #[test]
    fn each_has_its_thread_and_keeps_it() {
        let crew = Crew::new(3).unwrap();
        let mut all = vec![1, 2, 3];
        let threads = |all: &mut [i32]| crew.each(all, |_, _| thread::current().id());
        let first = threads(&mut all);
        assert_eq!(first.iter().collect::<HashSet<_>>().len(), 3);
        assert!(!first.contains(&thread::current().id()));
        assert_eq!(threads(&mut all), first);
        let offset = 10;
        let doubled = crew.each(&mut all, |i, one| {
            *one *= 2;
            offset + i
        });
        assert_eq!((doubled, all), (vec![10, 11, 12], vec![2, 4, 6]));
    }

    #[test]
    fn a_single_one_needs_no_thread() {
        let crew = Crew::new(1).unwrap();
        let here = crew.each(&mut [()], |_, ()| thread::current().id());
        assert_eq!(here, [thread::current().id()]);
    }

    #[test]
    fn they_work_at_the_same_time_and_a_panic_is_passed_on_when_all_are_done() {
        let crew = Crew::new(3).unwrap();
        let meeting = Meeting::new(3);
        let mut finished = [false; 3];
        let run = AssertUnwindSafe(|| {
            crew.each(&mut finished, |i, finished| {
                meeting.wait().expect("all come");
                if i == 0 {
                    panic!("of the first");
                }
                thread::sleep(Duration::from_millis(20));
                *finished = true;
            })
        });
        let panic = catch_unwind(run).unwrap_err();
        assert_eq!(panic.downcast_ref::<&str>(), Some(&"of the first"));
        assert_eq!(finished, [false, true, true]);
        assert_eq!(crew.each(&mut [1, 2, 3], |_, one| *one), [1, 2, 3], "and the crew goes on");
    }

    #[test]
    fn nobody_waits_for_one_that_failed() {
        let crew = Crew::new(3).unwrap();
        let meeting = Meeting::new(3);
        let waited = crew.each(&mut [(); 3], |i, ()| match i {
            1 => {
                thread::sleep(Duration::from_millis(20));
                assert!(meeting.fail() && !meeting.fail());
                Err(Failed)
            }
            _ => meeting.wait(),
        });
        assert_eq!(waited, [Err(Failed); 3]);
        assert!(meeting.failed() && meeting.wait() == Err(Failed));
    }

    #[test]
    fn a_wait_can_have_a_limit() {
        let meeting = Meeting::new(2);
        assert_eq!(meeting.wait_for(Duration::from_millis(20)), Err(Failed));
        assert!(meeting.failed() && meeting.wait() == Err(Failed), "for good");
    }

    #[test]
    fn a_meeting_can_be_held_again() {
        let crew = Crew::new(2).unwrap();
        let meeting = Meeting::new(2);
        let rounds = crew.each(&mut [(); 2], |_, ()| (0..1000).all(|_| meeting.wait().is_ok()));
        assert_eq!(rounds, [true, true]);
    }
}
