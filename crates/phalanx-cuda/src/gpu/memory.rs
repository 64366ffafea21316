//! A GPU's blocks of memory.

use super::{Gpu, working};
use crate::driver::{self, DeviceBuffer, Failure, Result, cu};
use crate::launch::{Block, Ptr};
use phalanx_graph::exec::ExecError;

/// Whether a block's bytes mean something between two steps.
fn lasts(block: Block) -> bool {
    match block {
        Block::Params | Block::Gathered | Block::Slot(_) | Block::Counters | Block::Kept(_) => true,
        Block::Inputs
        | Block::Arena
        | Block::Shared
        | Block::Gradients
        | Block::Scratch
        | Block::Fetches
        | Block::List
        | Block::Results => false,
    }
}

impl Gpu {
    /// Gives a block at least so many bytes; whether it moved. What outlives a step survives; of the rest the
    /// old bytes are given up first, so that the GPU need not hold both.
    pub(super) fn grow(&mut self, replica: usize, block: Block, bytes: usize) -> Result<bool> {
        let _working = working();
        self.context.enter()?;
        let old = self.blocks.get(&(replica, block)).map_or(0, DeviceBuffer::bytes);
        if bytes <= old {
            return Ok(false);
        }
        self.streams[0].synchronize()?;
        let moved = old > 0;
        if !lasts(block) && moved {
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

    /// An allocation that failed. `besides` are bytes that are needed on top of all blocks.
    pub(super) fn refused(
        &self,
        e: Failure,
        wanted: usize,
        purpose: &str,
        besides: usize,
    ) -> ExecError {
        if !e.0.contains("OUT_OF_MEMORY") {
            return self.failed(e);
        }
        let free = driver::memory().map_or(0, |(free, _)| free);
        let held: usize = self.blocks.values().map(DeviceBuffer::bytes).sum();
        let available = Some((free + held).saturating_sub(besides));
        let purpose = format!("{purpose} on {}", self.name);
        ExecError::Memory { wanted, purpose, available }
    }

    pub(super) fn copy_in(&mut self, at: Ptr, bytes: &[u8]) -> Result<()> {
        let _working = working();
        self.context.enter()?;
        self.streams[0].synchronize()?;
        cu!(cuMemcpyHtoD_v2(self.address(at)?, bytes.as_ptr().cast(), bytes.len()))
    }

    pub(super) fn copy_out(&self, at: Ptr, bytes: &mut [u8]) -> Result<()> {
        let _working = working();
        self.context.enter()?;
        self.streams[0].synchronize()?;
        cu!(cuMemcpyDtoH_v2(bytes.as_mut_ptr().cast(), self.address(at)?, bytes.len()))
    }
}
