//! The memory blocks of a GPU.

use super::transfers::Staging;
use super::{Gpu, call_lock};
use crate::driver::{self, DeviceBuffer, Failure, Result, cu};
use crate::launch::{Block, Ptr};
use crate::plan::WORKSPACES;
use phalanx_graph::exec::ExecError;

/// Whether a block's content outlives a step.
fn outlives_step(block: Block) -> bool {
    match block {
        Block::Params
        | Block::Accumulated
        | Block::Slot(_)
        | Block::Counters
        | Block::Resident(_) => true,
        Block::Inputs
        | Block::Arena
        | Block::Shared
        | Block::Gradients
        | Block::Scratch
        | Block::Fetches
        | Block::StepList
        | Block::Results => false,
    }
}

impl Gpu {
    /// Grows a block to at least `bytes`. Returns whether it was relocated. Content that outlives a
    /// step is preserved. Other blocks are freed before the new allocation, so that the GPU need
    /// not hold both.
    pub(super) fn grow(&mut self, replica: usize, block: Block, bytes: usize) -> Result<bool> {
        let _lock = call_lock();
        self.context.enter()?;
        let old = self.blocks.get(&(replica, block)).map_or(0, DeviceBuffer::bytes);
        if bytes <= old {
            return Ok(false);
        }
        self.streams[0].synchronize()?;
        let moved = old > 0;
        if !outlives_step(block) && moved {
            self.blocks.remove(&(replica, block));
            let new = DeviceBuffer::new(bytes);
            let failed = new.as_ref().err().cloned();
            let held = new.or_else(|_| DeviceBuffer::new(old))?;
            self.blocks.insert((replica, block), held);
            return failed.map_or(Ok(true), Err);
        }
        let new = DeviceBuffer::new(bytes)?;
        if let Some(old) = self.blocks.get(&(replica, block)) {
            cu!(cuMemcpyDtoDAsync_v2(new.at(), old.at(), old.bytes(), self.streams[0].0))?;
            self.streams[0].synchronize()?;
        }
        self.blocks.insert((replica, block), new);
        Ok(moved)
    }

    /// Grows a stream's workspace to at least `bytes`. Steps captured with the old workspace keep
    /// it.
    pub(super) fn grow_workspace(
        &mut self,
        stream: usize,
        bytes: usize,
    ) -> std::result::Result<(), ExecError> {
        if self.workspaces[stream].bytes() < bytes {
            let new = DeviceBuffer::new(bytes);
            let new = new.map_err(|e| self.allocation_error(e, bytes, WORKSPACES))?;
            let old = std::mem::replace(&mut self.workspaces[stream], new);
            self.retired.push((self.steps.len(), old));
            self.free_retired();
        }
        Ok(())
    }

    /// Frees workspaces that no step uses any more. No capture may be in progress.
    pub(super) fn free_retired(&mut self) {
        let steps = &self.steps;
        self.retired.retain(|(used_by, _)| steps[..*used_by].iter().any(Option::is_some));
    }

    /// The error for a failed allocation. The available memory includes what this GPU's steps
    /// already hold.
    pub(super) fn allocation_error(&self, e: Failure, wanted: usize, purpose: &str) -> ExecError {
        // Pinned memory is host memory.
        if !e.0.contains("OUT_OF_MEMORY") || e.0.contains("cuMemHostAlloc") {
            return self.device_error(e);
        }
        let free = driver::memory().map_or(0, |(free, _)| free);
        let staged = self.staging.iter().flat_map(Staging::buffers);
        let held: usize = self
            .blocks
            .values()
            .chain(&self.workspaces)
            .chain(staged)
            .map(DeviceBuffer::bytes)
            .sum();
        let available = Some(free + held);
        let purpose = format!("{purpose} on {}", self.name);
        ExecError::Memory { wanted, purpose, available }
    }

    pub(super) fn copy_to_device(&mut self, at: Ptr, bytes: &[u8]) -> Result<()> {
        let _lock = call_lock();
        self.context.enter()?;
        self.streams[0].synchronize()?;
        cu!(cuMemcpyHtoD_v2(self.address(at)?, bytes.as_ptr().cast(), bytes.len()))
    }

    pub(super) fn copy_to_host(&self, at: Ptr, bytes: &mut [u8]) -> Result<()> {
        let _lock = call_lock();
        self.context.enter()?;
        self.streams[0].synchronize()?;
        cu!(cuMemcpyDtoH_v2(bytes.as_mut_ptr().cast(), self.address(at)?, bytes.len()))
    }
}
