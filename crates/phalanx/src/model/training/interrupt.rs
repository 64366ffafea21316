//! Requests to stop a run.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// Asks a run to stop after the current step. Request it from a signal handler or another thread.
///
/// A run with it ends with [`Error::Interrupted`](crate::Error::Interrupted), after `BackupAndRestore`
/// has saved the run.
#[derive(Clone, Debug, Default)]
pub struct Interrupt(Arc<AtomicBool>);

impl Interrupt {
    /// An interrupt that is not requested.
    pub fn new() -> Interrupt {
        Interrupt::default()
    }

    /// The flag itself, for signal handlers.
    pub fn flag(&self) -> Arc<AtomicBool> {
        self.0.clone()
    }

    /// Asks the run to stop.
    pub fn request(&self) {
        self.0.store(true, Ordering::Relaxed);
    }

    /// Whether the run was asked to stop.
    pub fn is_requested(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }
}
