//! Batches prepared ahead of time on background threads.

use super::{Dataset, Epoch, HostBatch, InMemory, LocalShard};
use crate::error::{Error, Result};
use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, Sender, SyncSender, channel, sync_channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Default number of batches prepared ahead.
const DEFAULT_AHEAD: usize = 4;

/// A dataset whose batches background threads prepare while the model trains.
///
/// The batches and their order are those of the inner dataset, for any number of threads. An error in a
/// thread ends the epoch with that error. Dropping an epoch ends its threads.
///
/// ```
/// # use phalanx::data::{Arrays, Dataset, HostBatch, Prefetch};
/// # use phalanx::Tensor;
/// # use std::sync::Arc;
/// let data = Prefetch::new(Arc::new(Arrays::new(Tensor::zeros([100, 4]), ())?)).ahead(8);
/// let mut batch = HostBatch::default();
/// let mut epoch = data.epoch(0, 0, 0)?;
/// while epoch.next(&mut batch)? {}
/// println!("waited {:?} for data", data.waited());
/// # Ok::<(), phalanx::Error>(())
/// ```
pub struct Prefetch {
    inner: Arc<dyn Dataset>,
    ahead: usize,
    workers: usize,
    /// Nanoseconds that callers have spent waiting for a batch.
    waited: AtomicU64,
}

impl Prefetch {
    /// Prefetches up to four batches on one thread.
    pub fn new(inner: Arc<dyn Dataset>) -> Prefetch {
        Prefetch { inner, ahead: DEFAULT_AHEAD, workers: 1, waited: AtomicU64::new(0) }
    }

    /// Sets how many batches may be ready at a time, at least one per thread.
    pub fn ahead(mut self, batches: usize) -> Prefetch {
        self.ahead = batches.clamp(1, 1 << 16);
        self
    }

    /// Sets the number of threads. A dataset that cannot skip batches cheaply uses one.
    pub fn workers(mut self, threads: usize) -> Prefetch {
        self.workers = threads.clamp(1, 256);
        self
    }

    /// Time that callers have spent waiting for batches, over all epochs.
    pub fn waited(&self) -> Duration {
        Duration::from_nanos(self.waited.load(Ordering::Relaxed))
    }
}

impl Dataset for Prefetch {
    fn len(&self) -> Option<usize> {
        self.inner.len()
    }

    fn batches(&self) -> Option<usize> {
        self.inner.batches()
    }

    fn batch_size(&self) -> usize {
        self.inner.batch_size()
    }

    fn is_repeatable(&self) -> bool {
        self.inner.is_repeatable()
    }

    fn shuffles(&self) -> Option<bool> {
        self.inner.shuffles()
    }

    fn digest(&self) -> u64 {
        self.inner.digest()
    }

    fn augmentation_digest(&self) -> u64 {
        self.inner.augmentation_digest()
    }

    fn in_memory(&self) -> Option<&dyn InMemory> {
        self.inner.in_memory()
    }

    fn epoch_of(
        &self,
        seed: u64,
        epoch: u64,
        start: usize,
        shard: Option<&LocalShard>,
    ) -> Result<Box<dyn Epoch + '_>> {
        let threads = if self.inner.skips() { self.workers } else { 1 };
        let mut prefetch =
            PrefetchEpoch { workers: vec![], next_worker: 0, done: false, waited: &self.waited };
        for index in 0..threads {
            let (full, ready) = sync_channel(self.ahead.div_ceil(threads));
            let (empty, used) = channel();
            let inner = self.inner.clone();
            let (start, shard) = (start.saturating_add(index), shard.cloned());
            let work = move || {
                let run = || {
                    let epoch = inner.epoch_of(seed, epoch, start, shard.as_ref())?;
                    fill(epoch, threads, &full, &used)
                };
                let error = match catch_unwind(AssertUnwindSafe(run)) {
                    Ok(Ok(())) => return,
                    Ok(Err(error)) => error,
                    Err(panic) => Error::config("prefetch", panic_text(&*panic)),
                };
                // The receiver is gone if the epoch was dropped.
                let _ = full.send(Err(error));
            };
            let name = format!("phalanx-data-{index}");
            let thread = std::thread::Builder::new().name(name).spawn(work);
            let thread =
                thread.map_err(|e| Error::config("prefetch", format!("starting a thread: {e}")))?;
            prefetch.workers.push(Worker { ready: Some(ready), empty, thread: Some(thread) });
        }
        Ok(Box::new(prefetch))
    }
}

/// The message of a panic.
pub(super) fn panic_text(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().copied();
    let text = text.or_else(|| panic.downcast_ref::<String>().map(String::as_str));
    format!("a thread that prepares data panicked: {}", text.unwrap_or("no reason given"))
}

/// Produces every `threads`-th batch until the data ends or the receiver is gone.
fn fill(
    mut epoch: Box<dyn Epoch + '_>,
    threads: usize,
    full: &SyncSender<Result<HostBatch>>,
    used: &Receiver<HostBatch>,
) -> Result<()> {
    loop {
        let mut batch = used.try_recv().unwrap_or_default();
        if !epoch.next(&mut batch)? || full.send(Ok(batch)).is_err() {
            return Ok(());
        }
        if threads > 1 {
            epoch.skip(threads - 1)?;
        }
    }
}

struct Worker {
    /// Taken when the epoch is dropped, which ends the thread.
    ready: Option<Receiver<Result<HostBatch>>>,
    empty: Sender<HostBatch>,
    thread: Option<JoinHandle<()>>,
}

struct PrefetchEpoch<'a> {
    workers: Vec<Worker>,
    next_worker: usize,
    done: bool,
    waited: &'a AtomicU64,
}

impl Epoch for PrefetchEpoch<'_> {
    fn next(&mut self, batch: &mut HostBatch) -> Result<bool> {
        if self.done {
            return Ok(false);
        }
        let worker = &self.workers[self.next_worker];
        let started = Instant::now();
        let received = worker.ready.as_ref().and_then(|ready| ready.recv().ok());
        let waited = u64::try_from(started.elapsed().as_nanos()).unwrap_or(u64::MAX);
        self.waited.fetch_add(waited, Ordering::Relaxed);
        match received {
            Some(Ok(next)) => {
                // A thread that has ended does not need the buffers.
                let _ = worker.empty.send(std::mem::replace(batch, next));
                self.next_worker = (self.next_worker + 1) % self.workers.len();
                Ok(true)
            }
            Some(Err(error)) => {
                self.done = true;
                Err(error)
            }
            None => {
                self.done = true;
                Ok(false)
            }
        }
    }
}

impl Drop for PrefetchEpoch<'_> {
    fn drop(&mut self) {
        self.workers.iter_mut().for_each(|worker| worker.ready = None);
        for worker in &mut self.workers {
            if let Some(thread) = worker.thread.take() {
                // The thread catches panics and sends them as errors.
                let _ = thread.join();
            }
        }
    }
}
