//! Transfers of a step's inputs to the GPU, and of its fetches back.

use super::Gpu;
use super::memory::Memory;
use super::multi_step::StepListUpload;
use crate::device::{MAX_STAGED_STEPS, StepId};
use crate::inputs::INPUT_BYTES;
use crate::launch::{Block, Ptr};
use phalanx_cuda_driver::driver::{self, DeviceBuffer, Event, PinnedBuffer, Result, Stream, cu};

/// A staging area for feeds.
pub(super) struct Staging {
    /// Per replica.
    host: Vec<PinnedBuffer>,
    device: Vec<DeviceBuffer>,
    bytes: usize,
    /// Recorded after the feeds have arrived on the GPU.
    arrived: Event,
    /// Recorded after the step has consumed them.
    consumed: Event,
}

impl Staging {
    pub fn new() -> Result<Staging> {
        let (host, device, bytes) = (vec![], vec![], 0);
        Ok(Staging { host, device, bytes, arrived: Event::new()?, consumed: Event::new()? })
    }

    /// The device memory that it holds.
    pub fn buffers(&self) -> &[DeviceBuffer] {
        &self.device
    }
}

/// A staging area for heads.
pub(super) struct HeadStaging {
    host: PinnedBuffer,
    /// Recorded after all replicas have received it.
    consumed: Event,
}

impl HeadStaging {
    pub fn new() -> Result<HeadStaging> {
        Ok(HeadStaging { host: PinnedBuffer::new(INPUT_BYTES)?, consumed: Event::new()? })
    }
}

/// Everything in transfer between host and GPU.
pub(super) struct Transfers {
    pub staging: Vec<Staging>,
    heads: Vec<HeadStaging>,
    /// Index of the staging area to fill next.
    next: usize,
    pub list_upload: StepListUpload,
    fetched: Vec<PinnedBuffer>,
}

impl Transfers {
    pub fn new() -> Result<Transfers> {
        let staging = (0..MAX_STAGED_STEPS).map(|_| Staging::new()).collect::<Result<_>>()?;
        let heads = (0..MAX_STAGED_STEPS).map(|_| HeadStaging::new()).collect::<Result<_>>()?;
        let list_upload = StepListUpload::new()?;
        Ok(Transfers { staging, heads, next: 0, list_upload, fetched: vec![] })
    }

    /// Starts the transfer of the next step's feeds.
    pub fn stage(
        &mut self,
        replicas: usize,
        bytes: usize,
        fill: &mut dyn FnMut(usize, &mut [u8]),
        stream: &Stream,
    ) -> Result<()> {
        let staging = &mut self.staging[self.next % MAX_STAGED_STEPS];
        // The previous content must have arrived before it is overwritten.
        staging.arrived.synchronize()?;
        stream.wait(&staging.consumed)?;
        staging.bytes = bytes;
        for replica in 0..replicas {
            if staging.host.get(replica).is_none_or(|host| host.bytes() < bytes) {
                staging.consumed.synchronize()?;
                // Free the old buffers first. Either both buffers exist, or neither.
                staging.host.truncate(replica);
                staging.device.truncate(replica);
                let (host, device) = (PinnedBuffer::new(bytes)?, DeviceBuffer::new(bytes)?);
                staging.host.push(host);
                staging.device.push(device);
            }
            let host = &mut staging.host[replica].as_mut_slice()[..bytes];
            fill(replica, host);
            if bytes > 0 {
                let (to, from) = (staging.device[replica].at(), host.as_ptr().cast());
                cu!(cuMemcpyHtoDAsync_v2(to, from, bytes, stream.0))?;
            }
        }
        staging.arrived.record(stream)
    }

    /// Copies the staged feeds, and the head, to where the step reads them.
    fn send_inputs(&mut self, head: &[u8], memory: &Memory, stream: &Stream) -> Result<()> {
        let at = self.next % MAX_STAGED_STEPS;
        self.next += 1;
        let (staging, head_staging) = (&self.staging[at], &mut self.heads[at]);
        head_staging.consumed.synchronize()?;
        head_staging.host.as_mut_slice()[..head.len()].copy_from_slice(head);
        stream.wait(&staging.arrived)?;
        for (replica, feeds) in staging.device.iter().enumerate() {
            let to = memory.block(replica, Block::Inputs);
            let from = head_staging.host.as_slice().as_ptr().cast();
            cu!(cuMemcpyHtoDAsync_v2(to, from, head.len(), stream.0))?;
            if staging.bytes > 0 {
                let feeds_at = to + INPUT_BYTES as u64;
                cu!(cuMemcpyDtoDAsync_v2(feeds_at, feeds.at(), staging.bytes, stream.0))?;
            }
        }
        staging.consumed.record(stream)?;
        head_staging.consumed.record(stream)
    }

    /// Copies fetches from the block `from` of every replica, after all work in flight.
    pub fn fetch(
        &mut self,
        from: Block,
        fetches: &mut [&mut [u8]],
        memory: &Memory,
        stream: &Stream,
    ) -> Result<()> {
        for (replica, bytes) in fetches.iter().enumerate() {
            if self.fetched.len() == replica {
                self.fetched.push(PinnedBuffer::new(bytes.len())?);
            } else if self.fetched[replica].bytes() < bytes.len() {
                self.fetched[replica] = PinnedBuffer::new(bytes.len())?;
            }
            if !bytes.is_empty() {
                let from = memory.block(replica, from);
                let to = self.fetched[replica].as_mut_slice().as_mut_ptr().cast();
                cu!(cuMemcpyDtoHAsync_v2(to, from, bytes.len(), stream.0))?;
            }
        }
        stream.synchronize()?;
        for (to, from) in fetches.iter_mut().zip(&self.fetched) {
            to.copy_from_slice(&from.as_slice()[..to.len()]);
        }
        Ok(())
    }

    /// Frees all buffers.
    pub fn clear(&mut self) {
        self.staging.clear();
        self.heads.clear();
        self.list_upload.clear();
        self.fetched.clear();
    }
}

impl Gpu {
    pub(super) fn start_step(&mut self, step: StepId, head: &[u8]) -> Result<()> {
        let _lock = self.enter()?;
        self.transfers.send_inputs(head, &self.memory, self.streams.main())?;
        self.prepared(step)?.graph()?.launch(self.streams.main())?;
        self.streams.done.record(self.streams.main())
    }

    /// Copies a block's content from the host, after all work in flight.
    pub(super) fn copy_to_device(&mut self, at: Ptr, bytes: &[u8]) -> Result<()> {
        let _lock = self.enter()?;
        self.streams.main().synchronize()?;
        driver::copy_to_device(self.memory.address(at)?, bytes)
    }

    /// Copies a block's content to the host, after all work in flight.
    pub(super) fn copy_to_host(&self, at: Ptr, bytes: &mut [u8]) -> Result<()> {
        let _lock = self.enter()?;
        self.streams.main().synchronize()?;
        cu!(cuMemcpyDtoH_v2(bytes.as_mut_ptr().cast(), self.memory.address(at)?, bytes.len()))
    }
}
