//! Datasets: the global batches that `fit`, `evaluate` and `predict` consume.

mod affine;
mod arrays;
mod digest;
mod external;
mod flow;
mod folder;
mod generator;
mod image_cache;
mod image_file;
mod labels;
mod pipeline;
mod prefetch;
mod resident_dataset;
mod resize;
mod samples;
mod text;

pub use affine::FillMode;
pub use arrays::{Arrays, Columns};
pub use digest::Digest;
pub(crate) use digest::{format_digest, same_scheme};
pub use external::{External, ExternalArray, ExternalElements};
pub use flow::{ImageFlow, Images, Subset};
pub use folder::{ClassMode, ColorMode, FromDirectory, ImageFolder};
pub use generator::{ImageDataGenerator, ZoomRange};
pub use image_cache::ImageCache;
pub use image_file::read_image;
pub use labels::{LabelBinarizer, to_categorical};
pub use pipeline::{Buckets, Cardinality, Element, PaddedBatch, Pipeline};
pub use prefetch::Prefetch;
pub(crate) use resident_dataset::TableIdentity;
pub use resident_dataset::{InMemory, IndexBatch, IndexBatches, Table};
pub use samples::{Pixels, Samples};
pub use text::Text;

use crate::error::Result;
use crate::model::Source;
pub use phalanx_exec::LocalShard;
use phalanx_graph::{DType, Data, Tensor};
use std::ops::Range;
use std::sync::Arc;

/// One global batch on the host, or this worker's rows of it if several workers train.
///
/// The tensors have room for the largest batch, and float buffers are reused from batch to batch. Only
/// the first [`local_len`](HostBatch::local_len) rows are valid.
#[derive(Clone, Debug, Default)]
pub struct HostBatch {
    /// Samples in this batch, summed over all workers.
    pub rows: usize,
    /// Rows of the batch that this process holds; `None` means all of them.
    pub local: Option<Range<usize>>,
    /// One tensor per input of the model. That of an input of strings has the numbers of its strings.
    pub inputs: Vec<Tensor>,
    /// The strings of each input of strings; `None` for numbers. Inputs beyond the end of the list are numbers.
    pub strings: Vec<Option<Arc<Vec<String>>>>,
    /// One tensor per output of the model; empty without targets.
    pub targets: Vec<Tensor>,
    /// One weight per sample.
    pub sample_weight: Vec<f32>,
    /// Whether the data have weights. Without any, all of `sample_weight` are 1. Only the sum of a loss that is one number
    /// for the whole batch depends on it, as in Keras.
    pub weighted: bool,
    /// The weights of each output of the model, in place of `sample_weight`: a float for each sample or for each of its
    /// positions. Empty if all outputs have `sample_weight`.
    pub output_weights: Vec<Tensor>,
}

impl HostBatch {
    /// Number of rows that this process holds.
    pub fn local_len(&self) -> usize {
        self.local.as_ref().map_or(self.rows, Range::len)
    }
}

/// A source of batches, epoch after epoch. `fit`, `evaluate` and `predict` accept any implementation.
///
/// ```
/// use phalanx::data::{Epoch, HostBatch, LocalShard};
/// use phalanx::prelude::*;
///
/// /// Ten batches of four samples, produced on demand.
/// struct Squares;
///
/// impl Dataset for Squares {
///     fn len(&self) -> Option<usize> {
///         Some(40)
///     }
///     fn batches(&self) -> Option<usize> {
///         Some(10)
///     }
///     fn batch_size(&self) -> usize {
///         4
///     }
///     fn epoch_of(
///         &self,
///         _seed: u64,
///         _epoch: u64,
///         start: usize,
///         _shard: Option<&LocalShard>,
///     ) -> Result<Box<dyn Epoch + '_>> {
///         Ok(Box::new(SquaresEpoch(start)))
///     }
/// }
///
/// struct SquaresEpoch(usize);
///
/// impl Epoch for SquaresEpoch {
///     fn next(&mut self, batch: &mut HostBatch) -> Result<bool> {
///         if self.0 == 10 {
///             return Ok(false);
///         }
///         let x: Vec<f32> = (0..4).map(|i| (4 * self.0 + i) as f32 / 40.0).collect();
///         let y: Vec<f32> = x.iter().map(|x| x * x).collect();
///         batch.rows = 4;
///         batch.inputs = vec![Tensor::new([4, 1], x)?];
///         batch.targets = vec![Tensor::new([4, 1], y)?];
///         batch.sample_weight = vec![1.0; 4];
///         self.0 += 1;
///         Ok(true)
///     }
/// }
///
/// let mut model = Sequential::new().add(Input::new([1])).add(Dense::new(1)).build()?;
/// model.compile(Compile::new("adam").loss("mse"))?;
/// model.fit(Squares, Fit::new().epochs(2).verbose(0))?;
/// assert_eq!(model.predict(Squares)?.dims(), [40, 1]);
/// # Ok::<(), phalanx::Error>(())
/// ```
pub trait Dataset: Send + Sync {
    /// Samples per epoch, if known.
    fn len(&self) -> Option<usize>;

    /// Whether the dataset is known to be empty.
    fn is_empty(&self) -> bool {
        self.len() == Some(0)
    }

    /// Batches per epoch, if known.
    fn batches(&self) -> Option<usize>;

    /// Samples in the largest batch.
    fn batch_size(&self) -> usize;

    /// Whether an epoch can skip batches without producing them, so that several threads can interleave.
    fn skips(&self) -> bool {
        false
    }

    /// Whether an epoch can be started again. The batches of a dataset that reads something only once, such as another
    /// program's output, are then lost.
    fn is_repeatable(&self) -> bool {
        true
    }

    /// Whether the order of the samples changes from epoch to epoch, if known. A resumed run must use
    /// the same setting.
    fn shuffles(&self) -> Option<bool> {
        None
    }

    /// Fingerprint of the samples in order, including labels and weights. Workers and resumed runs
    /// compare it to detect different data. 0 means that there is no fingerprint.
    fn digest(&self) -> u64 {
        0
    }

    /// Fingerprint of the augmentation that is drawn again in every epoch. A resumed run may change it.
    /// 0 means none or unknown.
    fn augmentation_digest(&self) -> u64 {
        0
    }

    /// The dataset as one whose samples are all in memory, if they are. Devices may then hold a copy.
    fn in_memory(&self) -> Option<&dyn InMemory> {
        None
    }

    /// Starts an epoch at batch `start`. The order depends only on `seed` and `epoch`, so a run can
    /// resume at any batch. With a `shard`, only that worker's rows of every batch are needed; a dataset
    /// that produces all rows anyway leaves [`HostBatch::local`] empty.
    fn epoch_of(
        &self,
        seed: u64,
        epoch: u64,
        start: usize,
        shard: Option<&LocalShard>,
    ) -> Result<Box<dyn Epoch + '_>>;

    /// [`epoch_of`](Dataset::epoch_of) with all rows of every batch.
    fn epoch(&self, seed: u64, epoch: u64, start: usize) -> Result<Box<dyn Epoch + '_>> {
        self.epoch_of(seed, epoch, start, None)
    }

    /// Converts the dataset for `fit`, `evaluate` and `predict`.
    fn source(self) -> Result<Source>
    where
        Self: Sized + 'static,
    {
        Ok(Source::Dataset(Arc::new(self)))
    }
}

/// Shared ownership of a dataset.
impl<D: Dataset + ?Sized> Dataset for Arc<D> {
    fn len(&self) -> Option<usize> {
        (**self).len()
    }

    fn is_empty(&self) -> bool {
        (**self).is_empty()
    }

    fn batches(&self) -> Option<usize> {
        (**self).batches()
    }

    fn batch_size(&self) -> usize {
        (**self).batch_size()
    }

    fn skips(&self) -> bool {
        (**self).skips()
    }

    fn is_repeatable(&self) -> bool {
        (**self).is_repeatable()
    }

    fn shuffles(&self) -> Option<bool> {
        (**self).shuffles()
    }

    fn digest(&self) -> u64 {
        (**self).digest()
    }

    fn augmentation_digest(&self) -> u64 {
        (**self).augmentation_digest()
    }

    fn in_memory(&self) -> Option<&dyn InMemory> {
        (**self).in_memory()
    }

    fn epoch_of(
        &self,
        seed: u64,
        epoch: u64,
        start: usize,
        shard: Option<&LocalShard>,
    ) -> Result<Box<dyn Epoch + '_>> {
        (**self).epoch_of(seed, epoch, start, shard)
    }
}

/// Restricts the positions of a batch to those of a shard. Also returns the rows of the batch that these
/// are.
fn local_positions(
    shard: Option<&LocalShard>,
    positions: Range<usize>,
) -> (Range<usize>, Option<Range<usize>>) {
    let Some(shard) = shard else { return (positions, None) };
    let local = shard.rows(positions.len());
    (positions.start + local.start..positions.start + local.end, Some(local))
}

/// The batches of one epoch.
pub trait Epoch {
    /// Fills the next batch. Returns false at the end and then leaves `batch` unchanged.
    fn next(&mut self, batch: &mut HostBatch) -> Result<bool>;

    /// Skips up to `batches` batches.
    fn skip(&mut self, batches: usize) -> Result<()> {
        let mut unseen = HostBatch::default();
        for _ in 0..batches {
            if !self.next(&mut unseen)? {
                break;
            }
        }
        Ok(())
    }
}

/// Returns the positions of the next batch and advances `at`; `None` at the end.
fn next_batch(at: &mut usize, end: usize, batch: usize) -> Option<std::ops::Range<usize>> {
    let positions = *at..end.min(at.saturating_add(batch));
    *at = positions.end.max(*at);
    (!positions.is_empty()).then_some(positions)
}

/// Makes `slots` hold one tensor of `batch` rows per column, and reuses tensors that already fit. A
/// column is given by its type and its dimensions, batch dimension first.
fn reserve_slots<'a>(
    slots: &mut Vec<Tensor>,
    columns: impl ExactSizeIterator<Item = (DType, &'a [usize])>,
    batch: usize,
) {
    slots.truncate(columns.len());
    for (i, (dtype, dims)) in columns.enumerate() {
        let fits = |slot: &Tensor| {
            slot.dtype() == dtype && slot.rows() == batch && slot.dims().get(1..) == dims.get(1..)
        };
        match slots.get_mut(i) {
            Some(slot) if fits(slot) => {}
            Some(slot) => *slot = zeros(dtype, dims, batch),
            None => slots.push(zeros(dtype, dims, batch)),
        }
    }
}

/// Zeros of a type and row shape.
fn zeros(dtype: DType, dims: &[usize], rows: usize) -> Tensor {
    let mut dims = dims.to_vec();
    dims[0] = rows;
    let len = dims.iter().product();
    let data: Data = match dtype {
        DType::I32 => vec![0i32; len].into(),
        _ => vec![0f32; len].into(),
    };
    Tensor::new(dims, data).expect("the length is the product of the dimensions")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::Error;

    /// A dataset that answers every question in another way than by default.
    struct Unusual;

    impl Dataset for Unusual {
        fn len(&self) -> Option<usize> {
            None
        }

        fn is_empty(&self) -> bool {
            true
        }

        fn batches(&self) -> Option<usize> {
            Some(3)
        }

        fn batch_size(&self) -> usize {
            5
        }

        fn skips(&self) -> bool {
            true
        }

        fn is_repeatable(&self) -> bool {
            false
        }

        fn shuffles(&self) -> Option<bool> {
            Some(true)
        }

        fn digest(&self) -> u64 {
            7
        }

        fn augmentation_digest(&self) -> u64 {
            8
        }

        fn epoch_of(
            &self,
            _: u64,
            _: u64,
            _: usize,
            _: Option<&LocalShard>,
        ) -> Result<Box<dyn Epoch + '_>> {
            Err(Error::argument("data", "epoch", "none", "one"))
        }
    }

    fn answers(data: &impl Dataset) -> String {
        let sizes = (data.len(), data.is_empty(), data.batches(), data.batch_size());
        let order = (data.skips(), data.is_repeatable(), data.shuffles());
        format!("{sizes:?} {order:?} {} {}", data.digest(), data.augmentation_digest())
    }

    #[test]
    fn a_shared_dataset_answers_as_the_dataset() {
        assert_eq!(answers(&Arc::new(Unusual)), answers(&Unusual));
        assert_eq!(answers(&(Arc::new(Unusual) as Arc<dyn Dataset>)), answers(&Unusual));
    }
}
