//! The memory blocks and library workspaces of a GPU.

use super::streams::REDUCE_STREAM;
use super::transfers::Staging;
use super::{CapturedStep, Gpu};
use crate::launch::{Block, Ptr};
use crate::plan::WORKSPACES;
use phalanx_cuda_driver::driver::{self, DeviceBuffer, Failure, Result, Stream, cu};
use phalanx_exec::ExecError;
use std::collections::BTreeMap;

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

/// The memory of a GPU.
pub(super) struct Memory {
    /// By replica.
    pub blocks: BTreeMap<(usize, Block), DeviceBuffer>,
    /// By stream.
    pub workspaces: Vec<DeviceBuffer>,
    /// Outgrown workspaces, each with the number of steps at that time: those steps may still use
    /// it.
    retired: Vec<(usize, DeviceBuffer)>,
}

impl Memory {
    pub fn new() -> Memory {
        let workspaces = (0..=REDUCE_STREAM).map(|_| DeviceBuffer::default()).collect();
        Memory { blocks: BTreeMap::new(), workspaces, retired: vec![] }
    }

    /// The address on the GPU.
    pub fn address(&self, at: Ptr) -> Result<u64> {
        let block = self.blocks.get(&(at.replica, at.block));
        let block = block.ok_or_else(|| Failure(format!("{at} has no memory")))?;
        if at.offset >= block.bytes() {
            return Err(Failure(format!(
                "{at} lies past the end of its block, {} bytes",
                block.bytes()
            )));
        }
        Ok(block.at() + at.offset as u64)
    }

    /// The start of a block that has memory.
    pub fn block(&self, replica: usize, block: Block) -> u64 {
        self.blocks[&(replica, block)].at()
    }

    /// Grows a block to at least `bytes`. Returns whether it was relocated. Content that outlives a
    /// step is preserved. Other blocks are freed before the new allocation, so that the GPU need
    /// not hold both.
    pub fn grow(
        &mut self,
        replica: usize,
        block: Block,
        bytes: usize,
        stream: &Stream,
    ) -> Result<bool> {
        let old = self.blocks.get(&(replica, block)).map_or(0, DeviceBuffer::bytes);
        if bytes <= old {
            return Ok(false);
        }
        stream.synchronize()?;
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
            cu!(cuMemcpyDtoDAsync_v2(new.at(), old.at(), old.bytes(), stream.0))?;
            stream.synchronize()?;
        }
        self.blocks.insert((replica, block), new);
        Ok(moved)
    }

    /// Frees workspaces that no step uses any more. No capture may be in progress.
    pub fn free_retired(&mut self, steps: &[Option<CapturedStep>]) {
        self.retired.retain(|(used_by, _)| steps[..*used_by].iter().any(Option::is_some));
    }

    /// Frees everything.
    pub fn clear(&mut self) {
        self.blocks.clear();
        self.workspaces.clear();
        self.retired.clear();
    }
}

impl Gpu {
    /// Grows a stream's workspace to at least `bytes`. Steps captured with the old workspace keep
    /// it.
    pub(super) fn grow_workspace(
        &mut self,
        stream: usize,
        bytes: usize,
    ) -> std::result::Result<(), ExecError> {
        if self.memory.workspaces[stream].bytes() < bytes {
            let new = DeviceBuffer::new(bytes);
            let new = new.map_err(|e| self.allocation_error(e, bytes, WORKSPACES))?;
            let old = std::mem::replace(&mut self.memory.workspaces[stream], new);
            self.memory.retired.push((self.steps.len(), old));
            self.memory.free_retired(&self.steps);
        }
        Ok(())
    }

    /// The error for a failed allocation. The available memory includes what this GPU's steps
    /// already hold.
    pub(super) fn allocation_error(&self, e: Failure, wanted: usize, purpose: &str) -> ExecError {
        // Pinned memory is host memory.
        if !e.0.contains("OUT_OF_MEMORY") || e.0.contains("cuMemHostAlloc") {
            return self.device_error(e);
        }
        let free = driver::memory().map_or(0, |(free, _)| free);
        let Memory { blocks, workspaces, .. } = &self.memory;
        let staged = self.transfers.staging.iter().flat_map(Staging::buffers);
        let buffers = blocks.values().chain(workspaces).chain(staged);
        let held: usize = buffers.map(DeviceBuffer::bytes).sum();
        let available = Some(free + held);
        let purpose = format!("{purpose} on {}", self.name);
        ExecError::Memory { wanted, purpose, available }
    }
}
