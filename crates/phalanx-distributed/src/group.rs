//! The processes of a job, and collectives that need nothing but an exchange of bytes.

use crate::error::PeerError;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

/// The processes of a job. All of them must make the same calls in the same order.
pub trait ProcessGroup: Send + Sync {
    /// The rank of this process; rank 0 is the chief.
    fn rank(&self) -> usize;

    /// The number of processes.
    fn size(&self) -> usize;

    /// A description of a process: its rank and host.
    fn name(&self, rank: usize) -> String;

    /// The time limit of an exchange, if any.
    fn timeout(&self) -> Option<Duration>;

    /// Sets the step in flight, for messages.
    fn set_step(&self, step: u64);

    /// Sends `outgoing[r]` to rank `r`, receives `incoming[r]` from it, and waits for both. Both sides
    /// must agree on the sizes. The entries of this process itself are ignored.
    ///
    /// # Errors
    /// The process that could not be reached or did not answer in time.
    fn exchange(&self, outgoing: &[&[u8]], incoming: &mut [&mut [u8]]) -> Result<(), PeerError>;

    /// A process that is already known to be lost, if any. Does not communicate.
    fn lost_peer(&self) -> Option<PeerError>;

    /// Finds out which process does not answer, as far as possible. Call it if waiting for the others
    /// failed outside of [`exchange`](ProcessGroup::exchange); `message` describes the failure. No further
    /// exchange is possible afterwards.
    fn diagnose(&self, message: String) -> PeerError {
        self.lost_peer().unwrap_or(PeerError { name: "another worker".into(), message })
    }

    /// Lets a process that waits for the others say so once this flag asks it to stop, if the group can.
    fn watch(&self, stop_requested: Arc<AtomicBool>);

    /// Leaves the group once all processes are ready; the last call of a process. Does nothing once it has left or
    /// aborted.
    ///
    /// # Errors
    /// A process that is not ready in time.
    fn shutdown(&self) -> Result<(), PeerError>;

    /// Ends the job for a process that cannot continue. A group that can terminate the other processes does so
    /// at once, with this exit code; otherwise they notice that the connection is closed.
    fn abort(&self, code: u8);
}

/// Waits until all processes have arrived.
pub fn barrier(group: &dyn ProcessGroup) -> Result<(), PeerError> {
    let mut nothing: Vec<&mut [u8]> = (0..group.size()).map(|_| &mut [][..]).collect();
    group.exchange(&vec![&[][..]; group.size()], &mut nothing)
}

/// The bytes of every process, by rank and of any size, including those of this process.
pub fn all_gather(group: &dyn ProcessGroup, mine: &[u8]) -> Result<Vec<Vec<u8>>, PeerError> {
    let (size, rank) = (group.size(), group.rank());
    let length = (mine.len() as u64).to_le_bytes();
    let mut lengths = vec![[0u8; 8]; size];
    let mut into: Vec<&mut [u8]> = lengths.iter_mut().map(|l| &mut l[..]).collect();
    group.exchange(&vec![&length[..]; size], &mut into)?;
    lengths[rank] = length;
    let mut all: Vec<Vec<u8>> =
        lengths.iter().map(|l| vec![0; u64::from_le_bytes(*l) as usize]).collect();
    let mut into: Vec<&mut [u8]> = all.iter_mut().map(|v| &mut v[..]).collect();
    group.exchange(&vec![mine; size], &mut into)?;
    all[rank].copy_from_slice(mine);
    Ok(all)
}

/// A digest of parameter bits, which processes compare: FNV-1a over 32-bit words.
pub fn digest(bits: impl Iterator<Item = u32>) -> u64 {
    bits.fold(0xcbf2_9ce4_8422_2325, |h, v| (h ^ u64::from(v)).wrapping_mul(0x0100_0000_01b3))
}
