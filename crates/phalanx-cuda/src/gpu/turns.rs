//! Steps that are started together: the host says beforehand what each of them is told.

use super::{Gpu, Prepared, capturing, working};
use crate::driver::{Event, Failure, Graph, PinnedBuffer, Result, cu};
use crate::kept::MOST_TURNS;
use crate::launch::Block;
use crate::machine::{Lists, StepId};

/// Most works of steps that are launched together: more gain nothing, and take long to make ready.
const MOST_WORKS: usize = 1024;

/// Lists on their way to the GPU.
pub(super) struct Sent {
    /// By replica.
    lists: Vec<PinnedBuffer>,
    /// Passed once they are there.
    arrived: Event,
}

impl Sent {
    pub fn new() -> Result<Sent> {
        Ok(Sent { lists: vec![], arrived: Event::new()? })
    }

    pub fn clear(&mut self) {
        self.lists.clear();
    }
}

impl Prepared {
    pub fn graph(&self) -> Result<&Graph> {
        self.graph.as_ref().ok_or_else(|| Failure("a step was not captured".into()))
    }

    /// How many of this step are launched together.
    pub fn together(&self) -> usize {
        (MOST_WORKS / self.ready.len().max(1)).clamp(1, MOST_TURNS)
    }
}

impl Gpu {
    pub(super) fn prepared(&self, step: StepId) -> Result<&Prepared> {
        let found = self.steps.get(step.0).and_then(Option::as_ref);
        found.ok_or_else(|| Failure(format!("there is no step {}", step.0)))
    }

    /// Captures as many of a step as are launched together, once. GPUs that add with each other would
    /// have to agree on it.
    fn capture_many(&mut self, step: StepId) -> Result<()> {
        let prepared = self.prepared(step)?;
        let turns = prepared.together();
        if prepared.many.is_some() || turns < 2 || self.link.is_some() {
            return Ok(());
        }
        let _capturing = capturing();
        self.context.enter()?;
        let graph = Graph::capture(&self.streams[0], || {
            (0..turns).try_for_each(|_| self.record(&prepared.ready, &prepared.placed))
        })?;
        if let Some(Some(prepared)) = self.steps.get_mut(step.0) {
            prepared.many = Some(graph);
        }
        Ok(())
    }

    fn send_lists(&mut self, lists: Lists, fill: &mut dyn FnMut(usize, &mut [u8])) -> Result<()> {
        let stream = &self.streams[0];
        self.sent.arrived.synchronize()?;
        for replica in 0..lists.replicas {
            let pinned = &mut self.sent.lists;
            if pinned.len() == replica {
                pinned.push(PinnedBuffer::new(lists.bytes)?);
            } else if pinned[replica].bytes() < lists.bytes {
                pinned[replica] = PinnedBuffer::new(lists.bytes)?;
            }
            let list = &mut pinned[replica].as_mut_slice()[..lists.bytes];
            fill(replica, list);
            let to = self.blocks[&(replica, Block::List)].at();
            cu!(cuMemcpyHtoDAsync_v2(to, list.as_ptr().cast(), lists.bytes, stream.0))?;
        }
        self.sent.arrived.record(stream)
    }

    pub(super) fn start_list(
        &mut self,
        step: StepId,
        turns: usize,
        lists: Lists,
        fill: &mut dyn FnMut(usize, &mut [u8]),
    ) -> Result<()> {
        if turns >= self.prepared(step)?.together() {
            self.capture_many(step)?;
        }
        let _working = working();
        self.context.enter()?;
        self.send_lists(lists, fill)?;
        let (prepared, stream) = (self.prepared(step)?, &self.streams[0]);
        let mut left = turns;
        while let Some(many) = prepared.many.as_ref().filter(|_| left >= prepared.together()) {
            many.launch(stream)?;
            left -= prepared.together();
        }
        let one = prepared.graph()?;
        (0..left).try_for_each(|_| one.launch(stream))?;
        self.done.record(stream)
    }

    pub(super) fn drop_step(&mut self, step: StepId) {
        let _working = working();
        self.context.enter().ok();
        self.streams[0].synchronize().ok();
        if let Some(prepared) = self.steps.get_mut(step.0) {
            *prepared = None;
        }
        self.free_retired();
    }

    pub(super) fn drop_block(&mut self, replica: usize, block: Block) {
        let _working = working();
        self.context.enter().ok();
        self.streams[0].synchronize().ok();
        self.blocks.remove(&(replica, block));
    }
}
