//! A dataset after the host stage of a model.

use super::definition::Definition;
use super::host_stage::{HostStage, input_rows};
use crate::data::{Dataset, Epoch, HostBatch, LocalShard, Prefetch};
use crate::error::{Error, Result};
use phalanx_graph::Tensor;
use std::sync::Arc;

/// The batches of a dataset, whose inputs are the results of a model's host stage.
struct StagedDataset {
    inner: Arc<dyn Dataset>,
    def: Arc<Definition>,
}

/// Runs the host stage of a model on the batches of a dataset, ahead of time on as many threads as there are cores.
pub(super) fn staged(inner: Arc<dyn Dataset>, def: &Arc<Definition>) -> Arc<dyn Dataset> {
    let staged = StagedDataset { inner, def: def.clone() };
    Arc::new(Prefetch::new(Arc::new(staged)).workers(crate::usable_cores()))
}

impl Dataset for StagedDataset {
    fn len(&self) -> Option<usize> {
        self.inner.len()
    }

    fn batches(&self) -> Option<usize> {
        self.inner.batches()
    }

    fn batch_size(&self) -> usize {
        self.inner.batch_size()
    }

    fn skips(&self) -> bool {
        self.inner.skips()
    }

    fn shuffles(&self) -> Option<bool> {
        self.inner.shuffles()
    }

    fn digest(&self) -> u64 {
        self.inner.digest()
    }

    fn augmentation_digest(&self) -> u64 {
        self.inner.augmentation_digest()
    }

    fn epoch_of(
        &self,
        seed: u64,
        epoch: u64,
        start: usize,
        shard: Option<&LocalShard>,
    ) -> Result<Box<dyn Epoch + '_>> {
        // An open size is that of the whole batch, so every worker needs all rows.
        let shard = shard.filter(|_| !self.def.is_open());
        let inner = self.inner.epoch_of(seed, epoch, start, shard)?;
        Ok(Box::new(StagedEpoch { inner, def: &self.def, raw: HostBatch::default() }))
    }
}

struct StagedEpoch<'a> {
    inner: Box<dyn Epoch + 'a>,
    def: &'a Definition,
    /// A batch before the stage, whose buffers are reused.
    raw: HostBatch,
}

impl Epoch for StagedEpoch<'_> {
    fn next(&mut self, batch: &mut HostBatch) -> Result<bool> {
        if !self.inner.next(&mut self.raw)? {
            return Ok(false);
        }
        let stage = self.def.host.as_ref();
        let raw = &mut self.raw;
        (batch.rows, batch.local) = (raw.rows, raw.local.clone());
        std::mem::swap(&mut batch.targets, &mut raw.targets);
        std::mem::swap(&mut batch.sample_weight, &mut raw.sample_weight);
        batch.strings.clear();
        batch.inputs = match stage {
            Some(stage) => run(stage, self.def, raw)?,
            None => std::mem::take(&mut raw.inputs),
        };
        Ok(true)
    }

    fn skip(&mut self, batches: usize) -> Result<()> {
        self.inner.skip(batches)
    }
}

/// Runs a stage on a batch.
fn run(stage: &HostStage, def: &Definition, raw: &HostBatch) -> Result<Vec<Tensor>> {
    let expected = def.inputs.len();
    if raw.inputs.len() != expected {
        let owner = format!("model '{}'", def.name);
        return Err(Error::argument(owner, "inputs", expected.to_string(), raw.inputs.len()));
    }
    let rows = raw.local_len();
    let input = |i: usize| {
        let strings = raw.strings.get(i).cloned().flatten();
        let tensor = &raw.inputs[i];
        if tensor.dims().is_empty() || tensor.rows() < rows {
            let owner = format!("model '{}'", def.name);
            let what = format!("input '{}'", def.input_name(i));
            let received = format!("{:?}", tensor.dims());
            return Err(Error::argument(owner, what, format!("{rows} rows"), received));
        }
        input_rows(def, i, tensor.slice_rows(0..rows), strings)
    };
    stage.run((0..expected).map(input).collect::<Result<_>>()?)
}
