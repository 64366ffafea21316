//! One host thread per GPU, which lives as long as the executor.

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::Mutex;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::{self, JoinHandle};

/// A job that every thread runs, called with the index of the thread.
type Job = &'static (dyn Fn(usize) + Sync);

/// The result of a job: `Err` is a panic.
type Outcome = Result<(), Box<dyn Any + Send>>;

/// A host thread that serves one GPU.
struct DeviceThread {
    /// `None` once the thread should end.
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
        // The thread catches every panic, so joining it cannot fail.
        self.thread.take().map(JoinHandle::join);
    }
}

/// One thread per GPU. A single GPU has none: the calling thread does its work.
pub(crate) struct ThreadPool {
    threads: Vec<DeviceThread>,
}

impl ThreadPool {
    pub fn new(count: usize) -> std::io::Result<ThreadPool> {
        let threads =
            if count > 1 { (0..count).map(DeviceThread::new).collect() } else { Ok(vec![]) };
        Ok(ThreadPool { threads: threads? })
    }

    /// Calls `work` for all items in parallel, each on its own thread, and waits. A panic is
    /// propagated.
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
        // SAFETY: this changes only the lifetime. A thread drops the job before it reports, and
        // this function waits for a report from each thread that received the job; nothing in
        // between returns or panics. A channel closes only with its thread, which then no longer
        // holds the job.
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

#[cfg(test)]
mod tests {
    use super::*;
    use phalanx_distributed::{AbortableBarrier, Aborted};
    use std::collections::HashSet;
    use std::time::Duration;

    #[test]
    fn each_item_keeps_its_thread() {
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
    fn a_single_item_runs_on_the_calling_thread() {
        let pool = ThreadPool::new(1).unwrap();
        let here = pool.each(&mut [()], |_, ()| thread::current().id());
        assert_eq!(here, [thread::current().id()]);
    }

    #[test]
    fn threads_run_in_parallel_and_propagate_a_panic_once_all_are_done() {
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
    fn an_abort_releases_all_waiters() {
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
    fn a_barrier_can_be_reused() {
        let pool = ThreadPool::new(2).unwrap();
        let barrier = AbortableBarrier::new(2);
        let rounds = pool.each(&mut [(); 2], |_, ()| (0..1000).all(|_| barrier.wait().is_ok()));
        assert_eq!(rounds, [true, true]);
    }
}
