//! A thread that reduces finished gradient buckets over all processes while the workers keep computing.

use super::exchange_layout::GroupLayout;
use super::exchanges::{all_reduce, gather_group, gather_parts, reduce_scatter};
use phalanx_distributed::{PeerError, ProcessGroup};
use std::any::Any;
use std::collections::VecDeque;
use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;

/// What the processes do with a bucket.
pub(crate) enum JobKind {
    /// Sum it; all processes get the sum.
    AllReduce,
    /// Sum it; each process gets the sum of its part. Runs of it are then copied to another buffer, if any.
    ReduceScatter(Option<(*mut f32, Arc<[CopyRange]>)>),
    /// Send each process's part to the others.
    AllGather,
    /// Gather a group of weights, of which each process holds a part, into another buffer.
    GatherWeights { weights: *const f32, to: *mut f32, layout: Arc<GroupLayout> },
}

/// Floats to copy from a bucket to another buffer.
#[derive(Clone, Copy, Debug)]
pub(crate) struct CopyRange {
    /// First float in the bucket.
    pub from: usize,
    /// First float in the other buffer.
    pub to: usize,
    pub len: usize,
}

/// Floats to work on in place: first element and length, and the part of each process. The thread has exclusive
/// access to them.
struct ReduceJob {
    kind: JobKind,
    floats: (*mut f32, usize),
    parts: Arc<[Range<usize>]>,
}

// SAFETY: the caller of `ReduceThread::submit` does not touch the floats before `wait` or `flush` reports the job as
// finished.
unsafe impl Send for ReduceJob {}

#[derive(Default)]
struct Queue {
    jobs: VecDeque<ReduceJob>,
    /// A job is in flight.
    busy: bool,
    /// Jobs submitted so far.
    submitted: u64,
    closed: bool,
    /// The first error. The thread does nothing after it.
    failed: Option<PeerError>,
}

#[derive(Default)]
struct Shared {
    queue: Mutex<Queue>,
    changed: Condvar,
}

impl Shared {
    fn queue(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until `condition` holds.
    fn wait_until(&self, condition: impl Fn(&Queue) -> bool) -> MutexGuard<'_, Queue> {
        let guard = self.changed.wait_while(self.queue(), |queue| !condition(queue));
        guard.unwrap_or_else(PoisonError::into_inner)
    }
}

/// Runs jobs one at a time, in the order of submission.
pub(crate) struct ReduceThread {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

impl ReduceThread {
    /// Starts the thread. `tree` selects summation as a tree instead of in rank order.
    pub fn start(peers: Arc<dyn ProcessGroup>, tree: bool) -> std::io::Result<ReduceThread> {
        let shared = Arc::new(Shared::default());
        let mine = shared.clone();
        let work = move || run(&mine, &*peers, tree);
        let thread = std::thread::Builder::new().name("phalanx-reduce".into()).spawn(work)?;
        Ok(ReduceThread { shared, thread: Some(thread) })
    }

    /// Queues a job on floats, a pointer and their number. Returns its number for [`wait_for`](Self::wait_for). Does nothing
    /// after an error.
    ///
    /// # Safety
    /// The floats, and those that the kind of the job names, are valid and not accessed by anyone else until [`flush`](Self::flush) returns, [`wait`](Self::wait)
    /// reports the job as finished, or the `ReduceThread` is dropped.
    pub unsafe fn submit(
        &self,
        kind: JobKind,
        floats: (*mut f32, usize),
        parts: Arc<[Range<usize>]>,
    ) -> u64 {
        let mut queue = self.shared.queue();
        if queue.failed.is_none() {
            queue.jobs.push_back(ReduceJob { kind, floats, parts });
            queue.submitted += 1;
            self.shared.changed.notify_all();
        }
        queue.submitted
    }

    /// Waits until the job of this number is finished, or an error has abandoned it.
    ///
    /// # Errors
    /// The first error of any job.
    pub fn wait_for(&self, job: u64) -> Result<(), PeerError> {
        let done = |queue: &Queue| {
            let unfinished = queue.jobs.len() + usize::from(queue.busy);
            queue.submitted - unfinished as u64 >= job || queue.failed.is_some()
        };
        self.shared.wait_until(done).failed.clone().map_or(Ok(()), Err)
    }

    /// Waits until every submitted job is finished or abandoned. Either way the thread no longer
    /// accesses any floats when this returns.
    ///
    /// # Errors
    /// The first error of any job.
    pub fn flush(&self) -> Result<(), PeerError> {
        self.wait(0)
    }

    /// Waits until at most `left` jobs are unfinished, or an error has abandoned them all.
    ///
    /// # Errors
    /// The first error of any job.
    pub fn wait(&self, left: usize) -> Result<(), PeerError> {
        let done = |queue: &Queue| queue.jobs.len() + usize::from(queue.busy) <= left;
        self.shared.wait_until(done).failed.clone().map_or(Ok(()), Err)
    }
}

fn run(shared: &Shared, peers: &dyn ProcessGroup, tree: bool) {
    let mut received = vec![];
    loop {
        let mut queue = shared.wait_until(|queue| queue.closed || !queue.jobs.is_empty());
        if queue.closed {
            return;
        }
        let Some(ReduceJob { kind, floats: (first, len), parts }) = queue.jobs.pop_front() else {
            continue;
        };
        queue.busy = true;
        drop(queue);
        // SAFETY: the contract of `submit`.
        let values = unsafe { std::slice::from_raw_parts_mut(first, len) };
        let work = AssertUnwindSafe(|| match &kind {
            JobKind::AllReduce => all_reduce(peers, tree, values, &parts, &mut received),
            JobKind::ReduceScatter(sums) => {
                reduce_scatter(peers, tree, values, &parts, &mut received)?;
                for (buffer, run) in
                    sums.iter().flat_map(|(buffer, runs)| runs.iter().map(move |r| (*buffer, r)))
                {
                    let from = &values[run.from..run.from + run.len];
                    // SAFETY: the contract of `submit`.
                    unsafe {
                        std::ptr::copy_nonoverlapping(from.as_ptr(), buffer.add(run.to), run.len)
                    };
                }
                Ok(())
            }
            JobKind::AllGather => gather_parts(peers, values, &parts, &mut received),
            // SAFETY: the contract of `submit`.
            JobKind::GatherWeights { weights, to, layout } => unsafe {
                gather_group(peers, (*weights, *to), layout, &mut received)
            },
        });
        let result = catch_unwind(work).unwrap_or_else(|panic| Err(panicked(peers, &*panic)));
        let mut queue = shared.queue();
        queue.busy = false;
        if let Err(error) = result {
            queue.jobs.clear();
            queue.failed = Some(error);
        }
        drop(queue);
        shared.changed.notify_all();
    }
}

/// Turns a panic of the thread into an error of this process, so that `flush` can report it.
fn panicked(peers: &dyn ProcessGroup, panic: &(dyn Any + Send)) -> PeerError {
    let text = panic.downcast_ref::<&str>().copied();
    let text = text.or_else(|| panic.downcast_ref::<String>().map(String::as_str));
    let message = format!("adding up gradients panicked: {}", text.unwrap_or("no reason given"));
    PeerError { name: peers.name(peers.rank()), message }
}

impl Drop for ReduceThread {
    fn drop(&mut self) {
        self.shared.queue().closed = true;
        self.shared.changed.notify_all();
        if let Some(thread) = self.thread.take() {
            // The thread catches panics, and every exchange ends eventually.
            let _ = thread.join();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::test_group::TestGroup;
    use super::*;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::sync::mpsc::channel;
    use std::time::Duration;

    #[test]
    fn a_panic_in_the_thread_does_not_leave_flush_waiting() {
        let (sender, receiver) = channel();
        std::thread::spawn(move || {
            // Declared before the thread, so dropped after it.
            let mut values = [1f32; 8];
            let exchange = |_: &[&[u8]], _: &mut [&mut [u8]]| panic!("no way out");
            let group = Arc::new(TestGroup { rank: 1, exchange });
            let thread = ReduceThread::start(group, false).unwrap();
            for _ in 0..2 {
                let floats = (values.as_mut_ptr(), values.len());
                // SAFETY: the floats outlive the call of `flush`.
                unsafe { thread.submit(JobKind::AllReduce, floats, [0..8, 8..8].into()) };
                sender.send(thread.flush()).unwrap();
            }
        });
        for _ in 0..2 {
            let error = receiver.recv_timeout(Duration::from_secs(20)).unwrap().unwrap_err();
            let expected = "rank 1 (here): adding up gradients panicked: no way out";
            assert_eq!(error.to_string(), expected);
        }
    }

    #[test]
    fn floats_submitted_after_a_failure_are_free_once_flush_returns() {
        let exchanges = Arc::new(AtomicUsize::new(0));
        let counted = exchanges.clone();
        let exchange = move |_: &[&[u8]], _: &mut [&mut [u8]]| {
            counted.fetch_add(1, Ordering::SeqCst);
            std::thread::sleep(Duration::from_millis(50));
            Err(PeerError { name: "rank 1".into(), message: "gone".into() })
        };
        let thread = ReduceThread::start(Arc::new(TestGroup { rank: 0, exchange }), false).unwrap();
        for _ in 0..3 {
            let mut values = vec![1f32; 64];
            let floats = (values.as_mut_ptr(), values.len());
            // SAFETY: the floats outlive the call of `flush` and are freed right after it.
            unsafe { thread.submit(JobKind::AllReduce, floats, [0..32, 32..64].into()) };
            assert_eq!(thread.flush().unwrap_err().to_string(), "rank 1: gone");
            let queue = thread.shared.queue();
            assert!(queue.jobs.is_empty() && !queue.busy, "the thread holds freed floats");
        }
        drop(thread);
        assert_eq!(exchanges.load(Ordering::SeqCst), 1, "nothing is sent after a failure");
    }
}
