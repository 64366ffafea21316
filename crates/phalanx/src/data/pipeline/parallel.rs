//! Pipeline steps that run on background threads.

use super::epoch_context::{EpochContext, Item};
use super::{Cardinality, Element, Elements, PipelineStep};
use crate::data::prefetch::panic_text;
use crate::error::{Error, Result};
use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread::JoinHandle;

/// Maximum number of elements per map thread that are taken or finished but not yet returned.
const MAX_IN_FLIGHT: usize = 4;
/// Maximum number of elements that a map scans ahead for needed ones.
const MAX_LOOKAHEAD: usize = 4096;

pub(super) type Function = dyn Fn(Element) -> Result<Element> + Send + Sync;

pub(super) struct Map {
    pub inner: Arc<dyn PipelineStep>,
    pub f: Arc<Function>,
    pub threads: usize,
}

impl PipelineStep for Map {
    fn cardinality(&self) -> Cardinality {
        self.inner.cardinality()
    }

    fn open(&self, context: EpochContext) -> Result<Box<dyn Elements>> {
        let context = context.with_full_batches();
        let inner = self.inner.open(context.clone())?;
        let workers = (0..self.threads).map(|_| Worker::new(self.f.clone()));
        let workers = workers.collect::<Result<_>>()?;
        let queue = VecDeque::new();
        Ok(Box::new(MapElements {
            inner,
            workers,
            context,
            at: 0,
            queue,
            sent: 0,
            received: 0,
            end: None,
        }))
    }
}

/// A thread that applies a function to the elements it receives, in order.
struct Worker {
    /// Taken to end the thread.
    jobs: Option<SyncSender<(usize, Element)>>,
    done: Option<Receiver<Result<Element>>>,
    thread: Option<JoinHandle<()>>,
}

impl Worker {
    fn new(f: Arc<Function>) -> Result<Worker> {
        let (jobs, todo) = sync_channel::<(usize, Element)>(MAX_IN_FLIGHT);
        let (out, done) = sync_channel(MAX_IN_FLIGHT);
        let work = move || {
            for (at, element) in todo {
                let result = match catch_unwind(AssertUnwindSafe(|| f(element))) {
                    Ok(result) => {
                        result.map_err(|e| Error::config("map", format!("element {at}: {e}")))
                    }
                    Err(panic) => {
                        let message = format!("element {at}: {}", panic_text(&*panic));
                        Err(Error::config("map", message))
                    }
                };
                if out.send(result).is_err() {
                    return;
                }
            }
        };
        let thread = start(work)?;
        Ok(Worker { jobs: Some(jobs), done: Some(done), thread: Some(thread) })
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        (self.jobs, self.done) = (None, None);
        if let Some(thread) = self.thread.take() {
            // The thread catches panics.
            let _ = thread.join();
        }
    }
}

fn start(work: impl FnOnce() + Send + 'static) -> Result<JoinHandle<()>> {
    let thread = std::thread::Builder::new().name("phalanx-map".into()).spawn(work);
    thread.map_err(|e| Error::config("Pipeline", format!("starting a thread: {e}")))
}

struct MapElements {
    inner: Box<dyn Elements>,
    workers: Vec<Worker>,
    context: EpochContext,
    /// Index of the next element to take.
    at: usize,
    /// For each element taken but not yet returned: whether a thread has it. The others are skipped.
    queue: VecDeque<bool>,
    sent: usize,
    received: usize,
    /// Why no more elements are sent: the data ended, or failed.
    end: Option<Option<Error>>,
}

impl Elements for MapElements {
    fn next(&mut self) -> Result<Option<Item>> {
        self.look_ahead();
        self.front()
    }

    fn skip(&mut self, elements: usize) -> Result<()> {
        // Skipped elements need not be mapped.
        let begun = self.queue.len().min(elements);
        for _ in 0..begun {
            self.front()?;
        }
        self.at = self.at.saturating_add(elements - begun);
        self.inner.skip(elements - begun)
    }
}

impl MapElements {
    /// Returns the first element of the queue, or the reason why there is none.
    fn front(&mut self) -> Result<Option<Item>> {
        match self.queue.pop_front() {
            Some(true) => {}
            Some(false) => return Ok(Some(Item::Skipped)),
            None => return self.end.as_mut().and_then(Option::take).map_or(Ok(None), Err),
        }
        let done = self.workers[self.received % self.workers.len()].done.as_ref();
        self.received += 1;
        match done.and_then(|done| done.recv().ok()) {
            Some(result) => result.map(|element| Some(Item::Full(element))),
            None => Err(Error::config("map", "a thread ended before its work did")),
        }
    }

    /// Keeps the threads busy.
    fn look_ahead(&mut self) {
        let threads = self.workers.len();
        while self.end.is_none()
            && self.sent - self.received < MAX_IN_FLIGHT * threads
            && self.queue.len() < MAX_LOOKAHEAD
        {
            let at = self.at;
            match self.inner.next() {
                Ok(Some(Item::Full(element))) if self.context.wants(at) => {
                    if let Some(jobs) = &self.workers[self.sent % threads].jobs {
                        // The thread runs until `done` is dropped.
                        let _ = jobs.send((at, element));
                    }
                    self.sent += 1;
                    self.queue.push_back(true);
                }
                Ok(Some(_)) => self.queue.push_back(false),
                Ok(None) => self.end = Some(None),
                Err(error) => self.end = Some(Some(error)),
            }
            self.at += 1;
        }
    }
}

pub(super) struct PrefetchStep {
    pub inner: Arc<dyn PipelineStep>,
    pub ahead: usize,
}

impl PipelineStep for PrefetchStep {
    fn cardinality(&self) -> Cardinality {
        self.inner.cardinality()
    }

    fn open(&self, context: EpochContext) -> Result<Box<dyn Elements>> {
        let inner = self.inner.open(context)?;
        Ok(Box::new(PrefetchElements { inner: Some(inner), ahead: self.ahead, running: None }))
    }
}

/// Starts its thread at the first `next`, so that a skip before it stays cheap.
struct PrefetchElements {
    inner: Option<Box<dyn Elements>>,
    ahead: usize,
    running: Option<Running>,
}

struct Running {
    /// Taken to end the thread.
    ready: Option<Receiver<Result<Item>>>,
    thread: Option<JoinHandle<()>>,
}

impl Elements for PrefetchElements {
    fn next(&mut self) -> Result<Option<Item>> {
        if let Some(mut inner) = self.inner.take() {
            let (full, ready) = sync_channel(self.ahead);
            let work = move || {
                loop {
                    let result = match catch_unwind(AssertUnwindSafe(|| inner.next())) {
                        Ok(result) => result.transpose(),
                        Err(p) => Some(Err(Error::config("prefetch", panic_text(&*p)))),
                    };
                    let Some(result) = result else { return };
                    let failed = result.is_err();
                    if full.send(result).is_err() || failed {
                        return;
                    }
                }
            };
            self.running = Some(Running { ready: Some(ready), thread: Some(start(work)?) });
        }
        let ready = self.running.as_ref().and_then(|running| running.ready.as_ref());
        ready.and_then(|ready| ready.recv().ok()).transpose()
    }

    fn skip(&mut self, elements: usize) -> Result<()> {
        if let Some(inner) = &mut self.inner {
            return inner.skip(elements);
        }
        for _ in 0..elements {
            if self.next()?.is_none() {
                break;
            }
        }
        Ok(())
    }
}

impl Drop for PrefetchElements {
    fn drop(&mut self) {
        let Some(running) = &mut self.running else { return };
        running.ready = None;
        if let Some(thread) = running.thread.take() {
            // The thread catches panics.
            let _ = thread.join();
        }
    }
}
