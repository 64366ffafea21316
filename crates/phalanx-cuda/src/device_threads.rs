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
struct DeviceThread {
    /// Taken when it is time to go.
    jobs: Option<Sender<Job>>,
    done: Receiver<Outcome>,
    thread: Option<JoinHandle<()>>,
}

impl DeviceThread {
    fn new(number: usize) -> std::io::Result<DeviceThread> {
        let (jobs, queue) = channel::<Job>();
        let (outcomes, done) = channel();
        let body = move || {
            for job in queue {
                let outcome = catch_unwind(AssertUnwindSafe(|| job(number)));
                if outcomes.send(outcome).is_err() {
                    return;
                }
            }
        };
        let thread = thread::Builder::new().name(format!("gpu-{number}")).spawn(body)?;
        Ok(DeviceThread { jobs: Some(jobs), done, thread: Some(thread) })
    }
}

impl Drop for DeviceThread {
    fn drop(&mut self) {
        self.jobs = None;
        // It catches every panic.
        self.thread.take().map(JoinHandle::join);
    }
}

/// One thread for each of several; none for a single one, whose work is done by whoever asks for it.
pub(crate) struct ThreadPool {
    threads: Vec<DeviceThread>,
}

impl ThreadPool {
    pub fn new(count: usize) -> std::io::Result<ThreadPool> {
        let threads =
            if count > 1 { (0..count).map(DeviceThread::new).collect() } else { Ok(vec![]) };
        Ok(ThreadPool { threads: threads? })
    }

    /// Works on all at the same time, each on its thread, and waits. A panic is passed on.
    pub fn each<T: Send, R: Send>(
        &self,
        all: &mut [T],
        work: impl Fn(usize, &mut T) -> R + Sync,
    ) -> Vec<R> {
        if self.threads.is_empty() {
            return all.iter_mut().enumerate().map(|(i, one)| work(i, one)).collect();
        }
        assert_eq!(all.len(), self.threads.len(), "a thread for each");
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
        let mut outcomes: Vec<Outcome> = Vec::with_capacity(self.threads.len());
        let given = |thread: &&DeviceThread| {
            thread.jobs.as_ref().is_some_and(|jobs| jobs.send(job).is_ok())
        };
        let busy = self.threads.iter().filter(given).count();
        for thread in &self.threads {
            outcomes.extend(thread.done.recv());
        }
        assert!(busy == self.threads.len() && outcomes.len() == busy, "a GPU thread has ended");
        if let Some(panic) = outcomes.into_iter().find_map(Result::err) {
            resume_unwind(panic);
        }
    }
}

/// Where several wait until all have come, unless one says that it never will.
pub(crate) struct AbortableBarrier {
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

/// One of them does not come any more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Aborted;

impl AbortableBarrier {
    pub fn new(members: usize) -> AbortableBarrier {
        AbortableBarrier { members, state: Mutex::default(), changed: Condvar::new() }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(|e| e.into_inner())
    }

    /// Waits for everybody.
    pub fn wait(&self) -> Result<(), Aborted> {
        self.wait_for(Duration::MAX)
    }

    /// Waits for everybody, though not longer than this: then nobody waits any more.
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

    /// Lets nobody wait any more; whether this was the first to say so.
    pub fn abort(&self) -> bool {
        let first = !std::mem::replace(&mut self.state().aborted, true);
        self.changed.notify_all();
        first
    }

    pub fn is_aborted(&self) -> bool {
        self.state().aborted
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    #[test]
    fn each_has_its_thread_and_keeps_it() {
        let pool = ThreadPool::new(3).unwrap();
        let mut all = vec![1, 2, 3];
        let threads = |all: &mut [i32]| pool.each(all, |_, _| thread::current().id());
        let first = threads(&mut all);
        assert_eq!(first.iter().collect::<HashSet<_>>().len(), 3);
        assert!(!first.contains(&thread::current().id()));
        assert_eq!(threads(&mut all), first);
        let offset = 10;
        let doubled = pool.each(&mut all, |i, one| {
            *one *= 2;
            offset + i
        });
        assert_eq!((doubled, all), (vec![10, 11, 12], vec![2, 4, 6]));
    }

    #[test]
    fn a_single_one_needs_no_thread() {
        let pool = ThreadPool::new(1).unwrap();
        let here = pool.each(&mut [()], |_, ()| thread::current().id());
        assert_eq!(here, [thread::current().id()]);
    }

    #[test]
    fn they_work_at_the_same_time_and_a_panic_is_passed_on_when_all_are_done() {
        let pool = ThreadPool::new(3).unwrap();
        let barrier = AbortableBarrier::new(3);
        let mut finished = [false; 3];
        let run = AssertUnwindSafe(|| {
            pool.each(&mut finished, |i, finished| {
                barrier.wait().expect("all come");
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
        assert_eq!(pool.each(&mut [1, 2, 3], |_, one| *one), [1, 2, 3], "and the pool goes on");
    }

    #[test]
    fn nobody_waits_for_one_that_failed() {
        let pool = ThreadPool::new(3).unwrap();
        let barrier = AbortableBarrier::new(3);
        let waited = pool.each(&mut [(); 3], |i, ()| match i {
            1 => {
                thread::sleep(Duration::from_millis(20));
                assert!(barrier.abort() && !barrier.abort());
                Err(Aborted)
            }
            _ => barrier.wait(),
        });
        assert_eq!(waited, [Err(Aborted); 3]);
        assert!(barrier.is_aborted() && barrier.wait() == Err(Aborted));
    }

    #[test]
    fn a_wait_can_have_a_limit() {
        let barrier = AbortableBarrier::new(2);
        assert_eq!(barrier.wait_for(Duration::from_millis(20)), Err(Aborted));
        assert!(barrier.is_aborted() && barrier.wait() == Err(Aborted), "for good");
    }

    #[test]
    fn a_meeting_can_be_held_again() {
        let pool = ThreadPool::new(2).unwrap();
        let barrier = AbortableBarrier::new(2);
        let rounds = pool.each(&mut [(); 2], |_, ()| (0..1000).all(|_| barrier.wait().is_ok()));
        assert_eq!(rounds, [true, true]);
    }
}
