//! A group of two processes whose exchanges a test makes up.

use phalanx_distributed::{PeerError, ProcessGroup};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

/// One of two processes. `E` is its exchange.
pub(crate) struct TestGroup<E> {
    pub rank: usize,
    pub exchange: E,
}

impl<E> ProcessGroup for TestGroup<E>
where
    E: Fn(&[&[u8]], &mut [&mut [u8]]) -> Result<(), PeerError> + Send + Sync,
{
    fn rank(&self) -> usize {
        self.rank
    }

    fn size(&self) -> usize {
        2
    }

    fn name(&self, rank: usize) -> String {
        format!("rank {rank} (here)")
    }

    fn timeout(&self) -> Option<Duration> {
        None
    }

    fn set_step(&self, _step: u64) {}

    fn exchange(&self, outgoing: &[&[u8]], incoming: &mut [&mut [u8]]) -> Result<(), PeerError> {
        (self.exchange)(outgoing, incoming)
    }

    fn lost_peer(&self) -> Option<PeerError> {
        None
    }

    fn watch(&self, _stop_requested: Arc<AtomicBool>) {}

    fn shutdown(&self) -> Result<(), PeerError> {
        Ok(())
    }

    fn abort(&self, _code: u8) {}
}
