//! Batches of the training data, across its end if an epoch has more steps than the data has batches.

use crate::data::{Dataset, Epoch, HostBatch, LocalShard};
use crate::error::Result;
use crate::model::run_state::Position;
use crate::model::session::Session;

/// A position in the training data.
pub(super) struct DataCursor<'a> {
    data: &'a dyn Dataset,
    seed: u64,
    /// A worker's rows of every batch, if there are several workers.
    shard: Option<LocalShard>,
    epoch: Box<dyn Epoch + 'a>,
}

impl<'a> DataCursor<'a> {
    pub fn new(data: &'a dyn Dataset, session: &Session, at: &Position) -> Result<DataCursor<'a>> {
        let (seed, shard) = (session.state.seed, session.workers.shard_if_several());
        let epoch = data.epoch_of(seed, at.pass, at.taken, shard.as_ref())?;
        Ok(DataCursor { data, seed, shard, epoch })
    }

    /// Reads the next batch. If `endless`, the data starts again at its end.
    pub fn next(
        &mut self,
        batch: &mut HostBatch,
        at: &mut Position,
        endless: bool,
    ) -> Result<bool> {
        let mut found = self.epoch.next(batch)?;
        if !found && endless {
            (at.pass, at.taken) = (at.pass + 1, 0);
            self.epoch = self.data.epoch_of(self.seed, at.pass, 0, self.shard.as_ref())?;
            found = self.epoch.next(batch)?;
        }
        at.taken += usize::from(found);
        Ok(found)
    }
}
