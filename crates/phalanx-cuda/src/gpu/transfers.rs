//! Transfers of a step's inputs to the GPU, and of its fetches back.

use super::{Gpu, working};
use crate::device::{MAX_STAGED_STEPS, StepId};
use crate::driver::{DeviceBuffer, Event, PinnedBuffer, Result, cu};
use crate::inputs::INPUT_BYTES;
use crate::launch::Block;

/// A staging area for feeds.
pub(super) struct Staging {
    /// Per replica.
    host: Vec<PinnedBuffer>,
    device: Vec<DeviceBuffer>,
    bytes: usize,
    /// Recorded after the feeds have arrived on the GPU.
    arrived: Event,
    /// Recorded after the step has consumed them.
    taken: Event,
}

impl Staging {
    pub fn new() -> Result<Staging> {
        let (host, device, bytes) = (vec![], vec![], 0);
        Ok(Staging { host, device, bytes, arrived: Event::new()?, taken: Event::new()? })
    }

    /// The device memory that it holds.
    pub fn buffers(&self) -> &[DeviceBuffer] {
        &self.device
    }
}

/// A staging area for heads.
pub(super) struct Head {
    host: PinnedBuffer,
    /// Recorded after all replicas have received it.
    taken: Event,
}

impl Head {
    pub fn new() -> Result<Head> {
        Ok(Head { host: PinnedBuffer::new(INPUT_BYTES)?, taken: Event::new()? })
    }
}

impl Gpu {
    pub(super) fn stage_feeds(
        &mut self,
        replicas: usize,
        bytes: usize,
        fill: &mut dyn FnMut(usize, &mut [u8]),
    ) -> Result<()> {
        let _working = working();
        self.context.enter()?;
        let place = &mut self.staging[self.next % MAX_STAGED_STEPS];
        // The previous content must have arrived before it is overwritten.
        place.arrived.synchronize()?;
        self.copies.wait(&place.taken)?;
        place.bytes = bytes;
        for replica in 0..replicas {
            if place.host.get(replica).is_none_or(|host| host.bytes() < bytes) {
                place.taken.synchronize()?;
                // Free the old buffers first. Either both buffers exist, or neither.
                place.host.truncate(replica);
                place.device.truncate(replica);
                let (host, device) = (PinnedBuffer::new(bytes)?, DeviceBuffer::new(bytes)?);
                place.host.push(host);
                place.device.push(device);
            }
            let host = &mut place.host[replica].as_mut_slice()[..bytes];
            fill(replica, host);
            if bytes > 0 {
                let (to, from) = (place.device[replica].at(), host.as_ptr().cast());
                cu!(cuMemcpyHtoDAsync_v2(to, from, bytes, self.copies.0))?;
            }
        }
        place.arrived.record(&self.copies)
    }

    pub(super) fn start_step(&mut self, step: StepId, head: &[u8]) -> Result<()> {
        let _working = working();
        self.context.enter()?;
        let stream = &self.streams[0];
        let at = self.next % MAX_STAGED_STEPS;
        self.next += 1;
        let (place, sent) = (&self.staging[at], &mut self.heads[at]);
        sent.taken.synchronize()?;
        sent.host.as_mut_slice()[..head.len()].copy_from_slice(head);
        stream.wait(&place.arrived)?;
        for (replica, feeds) in place.device.iter().enumerate() {
            let to = self.blocks[&(replica, Block::Inputs)].at();
            let from = sent.host.as_slice().as_ptr().cast();
            cu!(cuMemcpyHtoDAsync_v2(to, from, head.len(), stream.0))?;
            if place.bytes > 0 {
                let behind = to + INPUT_BYTES as u64;
                cu!(cuMemcpyDtoDAsync_v2(behind, feeds.at(), place.bytes, stream.0))?;
            }
        }
        place.taken.record(stream)?;
        sent.taken.record(stream)?;
        self.prepared(step)?.graph()?.launch(stream)?;
        self.done.record(stream)
    }

    pub(super) fn finish_steps(&mut self, from: Block, fetches: &mut [&mut [u8]]) -> Result<()> {
        let _working = working();
        self.context.enter()?;
        let stream = &self.streams[0];
        for (replica, bytes) in fetches.iter().enumerate() {
            if self.fetched.len() == replica {
                self.fetched.push(PinnedBuffer::new(bytes.len())?);
            } else if self.fetched[replica].bytes() < bytes.len() {
                self.fetched[replica] = PinnedBuffer::new(bytes.len())?;
            }
            if !bytes.is_empty() {
                let from = self.blocks[&(replica, from)].at();
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
}
