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

    fn is_repeatable(&self) -> bool {
        self.inner.is_repeatable()
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
        std::mem::swap(&mut batch.output_weights, &mut raw.output_weights);
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::data::{Arrays, Text};
    use crate::layers::TextVectorization;
    use crate::model::{Apply, Input, Model};

    /// The feeds of each batch of two rows, as worker `worker` of two sees them.
    fn feeds(vectorize: TextVectorization, worker: Option<usize>) -> Vec<(Vec<usize>, usize)> {
        let x = Input::new([1]).strings().symbol();
        let model = Model::new(&x, vectorize.apply(&x)).unwrap();
        let texts = Text::new([4, 1], ["a", "a b c", "b", "a a"]).unwrap();
        let arrays = Arrays::new(&texts, ()).unwrap().batch(2).unwrap();
        let staged = staged(Arc::new(arrays), &model.def);
        let mesh = phalanx_graph::Mesh::new(2, 1);
        let shard = worker.map(|worker| LocalShard { mesh, replicas: worker..worker + 1 });
        let mut epoch = staged.epoch_of(0, 0, 0, shard.as_ref()).unwrap();
        let (mut batch, mut all) = (HostBatch::default(), vec![]);
        while epoch.next(&mut batch).unwrap() {
            all.push((batch.inputs[0].dims().to_vec(), batch.local_len()));
        }
        all
    }

    #[test]
    fn workers_agree_on_the_length_of_a_batch_and_read_their_own_rows_if_it_is_fixed() {
        let open = || TextVectorization::new().vocabulary(["a", "b", "c"]);
        let all = feeds(open(), None);
        assert_eq!(all, [(vec![2, 3], 2), (vec![2, 2], 2)]);
        assert_eq!(feeds(open(), Some(0)), all);
        assert_eq!(feeds(open(), Some(1)), all);
        let fixed = feeds(open().output_sequence_length(4), Some(1));
        assert_eq!(fixed, [(vec![1, 4], 1), (vec![1, 4], 1)]);
    }
}
