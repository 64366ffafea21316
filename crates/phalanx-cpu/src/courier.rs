//! A thread that adds up finished gradients over all processes while the workers go on computing.

use crate::between::sum;
use phalanx_graph::process_group::{PeerError, ProcessGroup};
use std::any::Any;
use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;

/// Floats that nobody else touches before they are added up.
struct Parcel(*mut f32, usize);

// SAFETY: whoever hands it over leaves the floats alone until the courier is idle, which it is not while
// a parcel waits or is in hand.
unsafe impl Send for Parcel {}

#[derive(Default)]
struct Desk {
    parcels: VecDeque<Parcel>,
    busy: bool,
    closed: bool,
    /// The first thing that went wrong; nothing is done behind it.
    failed: Option<PeerError>,
}

#[derive(Default)]
struct Shared {
    desk: Mutex<Desk>,
    changed: Condvar,
}

impl Shared {
    fn desk(&self) -> MutexGuard<'_, Desk> {
        self.desk.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until something holds.
    fn until(&self, holds: impl Fn(&Desk) -> bool) -> MutexGuard<'_, Desk> {
        let wait = self.changed.wait_while(self.desk(), |desk| !holds(desk));
        wait.unwrap_or_else(PoisonError::into_inner)
    }
}

/// Adds up parcels, one after the other in the order they come.
pub(crate) struct Courier {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

impl Courier {
    /// Starts the thread; `tree` says how sums are added up.
    pub fn start(peers: Arc<dyn ProcessGroup>, tree: bool) -> std::io::Result<Courier> {
        let shared = Arc::new(Shared::default());
        let mine = shared.clone();
        let work = move || deliver(&mine, &*peers, tree);
        let thread = std::thread::Builder::new().name("phalanx-courier".into()).spawn(work)?;
        Ok(Courier { shared, thread: Some(thread) })
    }

    /// Takes floats to add up over all processes, in place; leaves them alone where something went
    /// wrong before.
    ///
    /// # Safety
    /// They are there, and nobody else's, until [`idle`](Self::idle) returns or this is dropped.
    pub unsafe fn take(&self, first: *mut f32, len: usize) {
        let mut desk = self.shared.desk();
        if desk.failed.is_none() {
            desk.parcels.push_back(Parcel(first, len));
            self.shared.changed.notify_all();
        }
    }

    /// Waits until all that was taken is added up, or given up: the thread has no floats in hand then,
    /// whatever the answer.
    pub fn idle(&self) -> Result<(), PeerError> {
        let done = |desk: &Desk| desk.parcels.is_empty() && !desk.busy;
        self.shared.until(done).failed.clone().map_or(Ok(()), Err)
    }
}

fn deliver(shared: &Shared, peers: &dyn ProcessGroup, tree: bool) {
    let mut room = vec![];
    loop {
        let mut desk = shared.until(|desk| desk.closed || !desk.parcels.is_empty());
        if desk.closed {
            return;
        }
        let Some(Parcel(first, len)) = desk.parcels.pop_front() else { continue };
        desk.busy = true;
        drop(desk);
        // SAFETY: the contract of `take`.
        let values = unsafe { std::slice::from_raw_parts_mut(first, len) };
        let work = AssertUnwindSafe(|| sum(peers, tree, values, &mut room));
        let result = catch_unwind(work).unwrap_or_else(|panic| Err(panicked(peers, &*panic)));
        let mut desk = shared.desk();
        desk.busy = false;
        if let Err(error) = result {
            desk.parcels.clear();
            desk.failed = Some(error);
        }
        drop(desk);
        shared.changed.notify_all();
    }
}

/// A panic on the way, as an error of this process: whoever waits must hear of it.
fn panicked(peers: &dyn ProcessGroup, panic: &(dyn Any + Send)) -> PeerError {
    let text = panic.downcast_ref::<&str>().copied();
    let text = text.or_else(|| panic.downcast_ref::<String>().map(String::as_str));
    let message = format!("adding up gradients panicked: {}", text.unwrap_or("no reason given"));
    PeerError { name: peers.name(peers.rank()), message }
}

impl Drop for Courier {
    fn drop(&mut self) {
        self.shared.desk().closed = true;
        self.shared.changed.notify_all();
        if let Some(thread) = self.thread.take() {
            // Panics were caught inside the thread, and an exchange has an end.
            let _ = thread.join();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::sync::mpsc::channel;
    use std::time::Duration;

    /// Two processes, the other of which makes this one panic.
    struct Breaking;

    impl ProcessGroup for Breaking {
        fn rank(&self) -> usize {
            1
        }

        fn size(&self) -> usize {
            2
        }

        fn name(&self, rank: usize) -> String {
            format!("rank {rank} (here)")
        }

        fn exchange(&self, _: &[&[u8]], _: &mut [&mut [u8]]) -> Result<(), PeerError> {
            panic!("no way out");
        }
    }

    #[test]
    fn a_panic_on_the_way_does_not_leave_idle_waiting() {
        let (said, heard) = channel();
        std::thread::spawn(move || {
            // Dropped behind the thread: on the way out nobody holds the floats any more.
            let mut values = [1f32; 8];
            let courier = Courier::start(Arc::new(Breaking), false).unwrap();
            for _ in 0..2 {
                // SAFETY: the floats outlive the wait for `idle`.
                unsafe { courier.take(values.as_mut_ptr(), values.len()) };
                said.send(courier.idle()).unwrap();
            }
        });
        for _ in 0..2 {
            let error = heard.recv_timeout(Duration::from_secs(20)).unwrap().unwrap_err();
            let words = "rank 1 (here): adding up gradients panicked: no way out";
            assert_eq!(error.to_string(), words);
        }
    }

    /// The other process counts exchanges, and is slow to fail in each.
    struct Failing(Arc<AtomicUsize>);

    impl ProcessGroup for Failing {
        fn rank(&self) -> usize {
            0
        }

        fn size(&self) -> usize {
            2
        }

        fn name(&self, rank: usize) -> String {
            format!("rank {rank}")
        }

        fn exchange(&self, _: &[&[u8]], _: &mut [&mut [u8]]) -> Result<(), PeerError> {
            self.0.fetch_add(1, Ordering::SeqCst);
            std::thread::sleep(Duration::from_millis(50));
            Err(PeerError { name: "rank 1".into(), message: "gone".into() })
        }
    }

    #[test]
    fn floats_taken_after_a_failure_are_free_once_idle_returns() {
        let exchanges = Arc::new(AtomicUsize::new(0));
        let courier = Courier::start(Arc::new(Failing(exchanges.clone())), false).unwrap();
        for _ in 0..3 {
            let mut values = vec![1f32; 64];
            // SAFETY: the floats outlive the wait for `idle`, and go right behind it.
            unsafe { courier.take(values.as_mut_ptr(), values.len()) };
            assert_eq!(courier.idle().unwrap_err().to_string(), "rank 1: gone");
            let desk = courier.shared.desk();
            assert!(desk.parcels.is_empty() && !desk.busy, "the thread has floats that are gone");
        }
        drop(courier);
        assert_eq!(exchanges.load(Ordering::SeqCst), 1, "nothing is sent behind a failure");
    }
}
