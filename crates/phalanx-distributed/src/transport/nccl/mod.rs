//! NCCL: all-reduces of GPUs ([`communicator`](Membership)), and a transport for processes that reach each other only
//! through their GPUs. Messages are staged in device memory and sent over a separate communicator with one GPU per
//! process. The all-reduces of a step may be in flight on their own communicator at the same time: all processes
//! start both in the same order, and a GPU can run both at once.

mod communicator;
mod sys;

pub use communicator::{DataType, JoinError, Membership, Reduction, join, make_id};

use super::{DeviceTransport, Transport, max_piece};
use crate::error::{Error, PeerError};
use crate::rank_assignment::{NcclId, RankAssignment};
use phalanx_cuda_driver::driver::{Context, DeviceBuffer, Event, Failure, Result, Stream, cu};
use phalanx_cuda_driver::libs::{self, Lib};

/// The transport over NCCL.
pub struct Nccl;

impl DeviceTransport for Nccl {
    fn create_id(&self) -> crate::Result<NcclId> {
        let found = libs::find(Lib::Driver).and_then(|_| libs::find(Lib::Nccl));
        let made = found.map_err(|e| Failure(e.to_string())).and_then(|_| make_id());
        made.map_err(|e| failed(0, e))
    }

    fn connect(
        &self,
        device: usize,
        assignment: RankAssignment,
    ) -> crate::Result<Box<dyn Transport>> {
        let size = assignment.total;
        let transport = NcclTransport::new(device, assignment).map_err(|error| match error {
            JoinError::Local(failure) => failed(device, failure),
            JoinError::Timeout(message) => {
                Error::Peer(PeerError { name: format!("some of {size} workers"), message })
            }
            JoinError::PeerLost(peer) => Error::Peer(peer),
        })?;
        Ok(Box::new(transport))
    }
}

fn failed(gpu: usize, failure: Failure) -> Error {
    Error::Device { device: format!("gpu:{gpu}"), message: failure.0 }
}

/// A process that communicates through a GPU.
struct NcclTransport {
    link: Membership,
    outgoing: DeviceBuffer,
    incoming: DeviceBuffer,
    /// Bytes reserved for each rank.
    piece: usize,
    done: Event,
    stream: Stream,
    /// Whether NCCL has connected the GPUs.
    connected: bool,
    /// Dropped last, because the other fields depend on it.
    context: Context,
}

impl NcclTransport {
    fn new(
        gpu: usize,
        assignment: RankAssignment,
    ) -> std::result::Result<NcclTransport, JoinError> {
        for lib in [Lib::Driver, Lib::Nccl] {
            libs::find(lib).map_err(|e| Failure(e.to_string()))?;
        }
        let context = Context::new(gpu)?;
        let piece = max_piece(assignment.total);
        let bytes = piece * assignment.total;
        let mut links = join(vec![context.try_clone()?], Some(assignment))?;
        context.enter()?;
        let (outgoing, incoming) = (DeviceBuffer::new(bytes)?, DeviceBuffer::new(bytes)?);
        // The buffers are zeroed on the default stream, which other streams do not wait for.
        cu!(cuStreamSynchronize(std::ptr::null_mut()))?;
        Ok(NcclTransport {
            link: links.remove(0),
            outgoing,
            incoming,
            piece,
            done: Event::new()?,
            stream: Stream::new()?,
            connected: false,
            context,
        })
    }

    fn send_receive(&mut self, outgoing: &[&[u8]], incoming: &mut [&mut [u8]]) -> Result<()> {
        self.context.enter()?;
        let (stream, piece) = (&self.stream, self.piece);
        let at = |buffer: &DeviceBuffer, rank: usize| buffer.at() + (rank * piece) as u64;
        let (mut sent, mut received) = (vec![], vec![]);
        for (rank, bytes) in outgoing.iter().enumerate().filter(|(_, b)| !b.is_empty()) {
            let to = at(&self.outgoing, rank);
            cu!(cuMemcpyHtoDAsync_v2(to, bytes.as_ptr().cast(), bytes.len(), stream.0))?;
            sent.push((rank, to, bytes.len()));
        }
        for (rank, bytes) in incoming.iter().enumerate().filter(|(_, b)| !b.is_empty()) {
            received.push((rank, at(&self.incoming, rank), bytes.len()));
        }
        match self.connected {
            true => self.link.send_receive(&sent, &received, stream)?,
            false => {
                self.link.with_watchdog(|| self.link.send_receive(&sent, &received, stream))?
            }
        }
        self.connected = true;
        self.done.record(stream)?;
        self.link.wait(&self.done)?;
        for (rank, from, len) in received {
            let to = incoming[rank].as_mut_ptr().cast();
            cu!(cuMemcpyDtoHAsync_v2(to, from, len, stream.0))?;
        }
        stream.synchronize()
    }
}

impl Transport for NcclTransport {
    fn exchange(
        &mut self,
        outgoing: &[&[u8]],
        incoming: &mut [&mut [u8]],
    ) -> std::result::Result<(), String> {
        self.send_receive(outgoing, incoming).map_err(|failure| {
            self.link.abort();
            failure.0
        })
    }
}

impl Drop for NcclTransport {
    fn drop(&mut self) {
        self.context.enter().ok();
    }
}
