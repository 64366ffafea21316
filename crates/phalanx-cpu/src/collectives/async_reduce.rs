//! A thread that all-reduces finished gradient buckets over all processes while the workers keep computing.

use super::process_collectives::all_reduce;
use phalanx_distributed::{PeerError, ProcessGroup};
use std::any::Any;
use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;

/// Floats to reduce in place: first element and length. The thread has exclusive access to them.
struct Bucket(*mut f32, usize);

// SAFETY: the caller of `ReduceThread::submit` does not touch the floats before `flush` returns, and
// `flush` waits until no bucket is queued or in flight.
unsafe impl Send for Bucket {}

#[derive(Default)]
struct Queue {
    buckets: VecDeque<Bucket>,
    /// A bucket is in flight.
    busy: bool,
    closed: bool,
    /// The first error. The thread reduces nothing after it.
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

/// Reduces buckets one at a time, in the order of submission.
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

    /// Queues floats to be summed over all processes, in place. Does nothing after an error.
    ///
    /// # Safety
    /// The floats are valid and not accessed by anyone else until [`flush`](Self::flush) returns or the
    /// `ReduceThread` is dropped.
    pub unsafe fn submit(&self, first: *mut f32, len: usize) {
        let mut queue = self.shared.queue();
        if queue.failed.is_none() {
            queue.buckets.push_back(Bucket(first, len));
            self.shared.changed.notify_all();
        }
    }

    /// Waits until every submitted bucket is reduced or abandoned. Either way the thread no longer
    /// accesses any floats when this returns.
    ///
    /// # Errors
    /// The first error of any bucket.
    pub fn flush(&self) -> Result<(), PeerError> {
        let done = |queue: &Queue| queue.buckets.is_empty() && !queue.busy;
        self.shared.wait_until(done).failed.clone().map_or(Ok(()), Err)
    }
}

fn run(shared: &Shared, peers: &dyn ProcessGroup, tree: bool) {
    let mut received = vec![];
    loop {
        let mut queue = shared.wait_until(|queue| queue.closed || !queue.buckets.is_empty());
        if queue.closed {
            return;
        }
        let Some(Bucket(first, len)) = queue.buckets.pop_front() else { continue };
        queue.busy = true;
        drop(queue);
        // SAFETY: the contract of `submit`.
        let values = unsafe { std::slice::from_raw_parts_mut(first, len) };
        let work = AssertUnwindSafe(|| all_reduce(peers, tree, values, &mut received));
        let result = catch_unwind(work).unwrap_or_else(|panic| Err(panicked(peers, &*panic)));
        let mut queue = shared.queue();
        queue.busy = false;
        if let Err(error) = result {
            queue.buckets.clear();
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
                // SAFETY: the floats outlive the call of `flush`.
                unsafe { thread.submit(values.as_mut_ptr(), values.len()) };
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
            // SAFETY: the floats outlive the call of `flush` and are freed right after it.
            unsafe { thread.submit(values.as_mut_ptr(), values.len()) };
            assert_eq!(thread.flush().unwrap_err().to_string(), "rank 1: gone");
            let queue = thread.shared.queue();
            assert!(queue.buckets.is_empty() && !queue.busy, "the thread holds freed floats");
        }
        drop(thread);
        assert_eq!(exchanges.load(Ordering::SeqCst), 1, "nothing is sent after a failure");
    }
}
