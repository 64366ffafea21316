//! What a command shares with `main`: the other workers, which must learn how it ends.

use crate::args::DeviceArgs;
use anyhow::Result;
use phalanx::prelude::*;
use std::cell::OnceCell;

/// The state of a run of the command.
#[derive(Default)]
pub struct RunContext {
    strategy: OnceCell<MultiWorkerMirroredStrategy>,
}

impl RunContext {
    /// The strategy over all workers, if a launcher started several.
    pub fn worker_strategy(&self, args: &DeviceArgs) -> Result<MultiWorkerMirroredStrategy> {
        let strategy = args.worker_strategy()?;
        Ok(self.strategy.get_or_init(|| strategy).clone())
    }

    /// Terminates the other workers, because this one cannot continue.
    pub fn abort(&mut self, code: u8) {
        if let Some(strategy) = self.strategy.take() {
            strategy.abort(code);
        }
    }

    /// Disconnects from the other workers once all are ready.
    pub fn shutdown(&self) {
        if let Some(Err(error)) = self.strategy.get().map(|strategy| strategy.shutdown()) {
            tracing::warn!("at the end: {error}");
        }
    }
}
