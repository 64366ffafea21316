//! Several steps per launch: the host uploads the inputs of all of them beforehand.

use super::memory::Memory;
use super::{CapturedStep, Gpu, call_lock, capture_lock};
use crate::device::{ArgLists, StepId};
use crate::launch::Block;
use crate::resident_dataset::MAX_STEPS_PER_LAUNCH;
use phalanx_cuda_driver::driver::{Event, Failure, Graph, PinnedBuffer, Result, Stream, cu};

/// Maximum work items per launch. More gain nothing, and take long to capture.
const MAX_WORK_ITEMS_PER_LAUNCH: usize = 1024;

/// Step lists in transfer to the GPU.
pub(super) struct StepListUpload {
    /// Per replica.
    lists: Vec<PinnedBuffer>,
    /// Recorded after the transfer.
    arrived: Event,
}

impl StepListUpload {
    pub fn new() -> Result<StepListUpload> {
        Ok(StepListUpload { lists: vec![], arrived: Event::new()? })
    }

    /// Starts the transfer of the lists of all replicas.
    fn send(
        &mut self,
        lists: ArgLists,
        fill: &mut dyn FnMut(usize, &mut [u8]),
        memory: &Memory,
        stream: &Stream,
    ) -> Result<()> {
        self.arrived.synchronize()?;
        for replica in 0..lists.replicas {
            if self.lists.len() == replica {
                self.lists.push(PinnedBuffer::new(lists.bytes)?);
            } else if self.lists[replica].bytes() < lists.bytes {
                self.lists[replica] = PinnedBuffer::new(lists.bytes)?;
            }
            let list = &mut self.lists[replica].as_mut_slice()[..lists.bytes];
            fill(replica, list);
            let to = memory.block(replica, Block::StepList);
            cu!(cuMemcpyHtoDAsync_v2(to, list.as_ptr().cast(), lists.bytes, stream.0))?;
        }
        self.arrived.record(stream)
    }

    pub fn clear(&mut self) {
        self.lists.clear();
    }
}

impl CapturedStep {
    pub fn graph(&self) -> Result<&Graph> {
        self.graph.as_ref().ok_or_else(|| Failure("a step was not captured".into()))
    }

    /// Steps of this kind per launch.
    pub fn steps_per_launch(&self) -> usize {
        (MAX_WORK_ITEMS_PER_LAUNCH / self.ready.len().max(1)).clamp(1, MAX_STEPS_PER_LAUNCH)
    }
}

impl Gpu {
    pub(super) fn prepared(&self, step: StepId) -> Result<&CapturedStep> {
        let found = self.steps.get(step.0).and_then(Option::as_ref);
        found.ok_or_else(|| Failure(format!("there is no step {}", step.0)))
    }

    /// Captures a graph of several steps, if there is none yet. GPUs that reduce with each other
    /// would have to agree on the number.
    fn capture_many(&mut self, step: StepId) -> Result<()> {
        let prepared = self.prepared(step)?;
        let steps = prepared.steps_per_launch();
        if prepared.multi_step_graph.is_some() || steps < 2 || self.link.is_some() {
            return Ok(());
        }
        let _lock = capture_lock();
        self.context.enter()?;
        let graph = Graph::capture(self.streams.main(), || {
            (0..steps).try_for_each(|_| self.record(&prepared.ready, &prepared.slots))
        })?;
        if let Some(Some(prepared)) = self.steps.get_mut(step.0) {
            prepared.multi_step_graph = Some(graph);
        }
        Ok(())
    }

    pub(super) fn start_prepared_steps(
        &mut self,
        step: StepId,
        steps: usize,
        lists: ArgLists,
        fill: &mut dyn FnMut(usize, &mut [u8]),
    ) -> Result<()> {
        if steps >= self.prepared(step)?.steps_per_launch() {
            self.capture_many(step)?;
        }
        let _lock = self.enter()?;
        let list_upload = &mut self.transfers.list_upload;
        list_upload.send(lists, fill, &self.memory, self.streams.main())?;
        let (prepared, stream) = (self.prepared(step)?, self.streams.main());
        let mut left = steps;
        while let Some(many) =
            prepared.multi_step_graph.as_ref().filter(|_| left >= prepared.steps_per_launch())
        {
            many.launch(stream)?;
            left -= prepared.steps_per_launch();
        }
        let one = prepared.graph()?;
        (0..left).try_for_each(|_| one.launch(stream))?;
        self.streams.done.record(stream)
    }

    pub(super) fn drop_step(&mut self, step: StepId) {
        let _lock = call_lock();
        self.context.enter().ok();
        self.streams.main().synchronize().ok();
        if let Some(prepared) = self.steps.get_mut(step.0) {
            *prepared = None;
        }
        self.memory.free_retired(&self.steps);
    }

    pub(super) fn drop_block(&mut self, replica: usize, block: Block) {
        let _lock = call_lock();
        self.context.enter().ok();
        self.streams.main().synchronize().ok();
        self.memory.blocks.remove(&(replica, block));
    }
}
