//! The context of a command: the other workers, which must learn how it ends.

use crate::args::DeviceArgs;
use anyhow::Result;
use phalanx::ProcessGroup;
use phalanx::prelude::*;
use std::cell::OnceCell;
use std::sync::Arc;

/// The state of a run of the command.
#[derive(Default)]
pub struct RunContext {
    /// The other workers, once this one has joined them.
    group: OnceCell<Arc<dyn ProcessGroup>>,
}

impl RunContext {
    /// The strategy over all workers, if a launcher started several.
    pub fn worker_strategy(&self, args: &DeviceArgs) -> Result<MultiWorkerMirroredStrategy> {
        let (local, peers) = args.connect()?;
        let Some(peers) = peers else { return Ok(local.into()) };
        // Kept first: if the workers do not agree, all must end.
        let peers = self.group.get_or_init(|| peers).clone();
        Ok(MultiWorkerMirroredStrategy::with_peers(local, peers)?)
    }

    /// Ends the job, because this worker cannot continue.
    pub fn abort(&self, code: u8) {
        if let Some(group) = self.group.get() {
            group.abort(code);
        }
    }

    /// Disconnects from the other workers once all are ready, unless the job was ended. The process ends next, so
    /// nothing else is freed.
    pub fn end(self) {
        if let Some(Err(error)) = self.group.get().map(|group| group.shutdown()) {
            tracing::warn!("at the end: {error}");
        }
        std::mem::forget(self);
    }
}
