//! Transports of bytes between processes: MPI, or NCCL through the processes' GPUs.

mod group;
#[cfg(feature = "mpi")]
pub mod mpi;
#[cfg(feature = "nccl")]
pub mod nccl;

pub(crate) use group::{GroupMember, TransportGroup};

use crate::error::Result;
use crate::rank_assignment::{NcclId, RankAssignment};

/// Sends bytes between processes. An implementation knows its own rank.
pub trait Transport: Send {
    /// Sends `outgoing` to each rank while receiving `incoming` from it. Both sides know the sizes,
    /// which are at most one piece ([`max_piece`]). Empty messages are not sent.
    ///
    /// # Errors
    /// Why the messages did not arrive.
    fn exchange(
        &mut self,
        outgoing: &[&[u8]],
        incoming: &mut [&mut [u8]],
    ) -> std::result::Result<(), String>;
}

/// Connects processes through their devices, for processes that reach each other in no other way.
pub trait DeviceTransport: Send + Sync {
    /// Creates the id by which the processes find each other. The first process calls it.
    ///
    /// # Errors
    /// A library is missing.
    fn create_id(&self) -> Result<NcclId>;

    /// Connects this process, through one of its devices, with those of the other ranks in `assignment`. Returns
    /// once all have joined.
    ///
    /// # Errors
    /// A library is missing, the device is unusable, or processes do not join in time.
    fn connect(&self, device: usize, assignment: RankAssignment) -> Result<Box<dyn Transport>>;
}

/// Bytes staged at once in each direction, for all processes together.
const STAGING_BYTES: usize = 16 << 20;
/// Bounds for the bytes sent to one process at once.
const MAX_PIECE_BYTES: usize = 1 << 20;
const MIN_PIECE_BYTES: usize = 4 << 10;

/// Maximum bytes per process and transfer in a group of `size` processes.
pub fn max_piece(size: usize) -> usize {
    (STAGING_BYTES / size).clamp(MIN_PIECE_BYTES, MAX_PIECE_BYTES)
}
