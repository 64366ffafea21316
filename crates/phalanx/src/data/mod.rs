//! What `fit`, `evaluate` and `predict` consume: global batches, one after the other.

mod affine;
mod arrays;
mod digest;
mod flow;
mod folder;
mod generator;
mod in_memory;
mod kept_images;
mod labels;
mod pipeline;
mod prefetch;
mod resize;
mod samples;

pub use affine::FillMode;
pub use arrays::{Arrays, Columns};
pub use digest::Digest;
pub(crate) use digest::{comparable, shown_digest};
pub use flow::{ImageFlow, Images, Subset};
pub use folder::{ClassMode, ColorMode, FromDirectory, ImageFolder, read as read_image};
pub use generator::{ImageDataGenerator, ZoomRange};
pub(crate) use in_memory::Identity;
pub use in_memory::{InMemory, Picked, Picks, Table};
pub use kept_images::KeptImages;
pub use labels::{LabelBinarizer, to_categorical};
pub use pipeline::{Cardinality, Element, Pipeline};
pub use prefetch::Prefetch;
pub use samples::{Pixels, Samples};

use crate::error::Result;
use crate::model::Source;
pub use phalanx_graph::process_group::LocalShard;
use phalanx_graph::{DType, Data, Tensor};
use std::ops::Range;
use std::sync::Arc;

/// One global batch on the host, or a worker's rows of it where there are several.
///
/// The tensors have room for the largest batch, and floats are written to the same buffers from one
/// batch to the next; only the first [`held`](HostBatch::held) rows count.
#[derive(Clone, Debug, Default)]
pub struct HostBatch {
    /// Samples in this batch, over all workers.
    pub rows: usize,
    /// Which of them are here, where not all are.
    pub own: Option<Range<usize>>,
    /// One tensor per input of the model.
    pub inputs: Vec<Tensor>,
    /// One tensor per output of the model; none when there is nothing to compare with.
    pub targets: Vec<Tensor>,
    /// One weight per sample.
    pub sample_weight: Vec<f32>,
}

impl HostBatch {
    /// Samples that are here.
    pub fn held(&self) -> usize {
        self.own.as_ref().map_or(self.rows, Range::len)
    }
}

/// Samples in batches, epoch after epoch. `fit`, `evaluate` and `predict` take whatever implements it.
///
/// ```
/// use phalanx::data::{Epoch, HostBatch, Share};
/// use phalanx::prelude::*;
///
/// /// Ten batches of four samples, made as they are asked for.
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
///         _share: Option<&Share>,
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
    /// Samples of one epoch, where known.
    fn len(&self) -> Option<usize>;

    /// Whether there is nothing in it, as far as is known.
    fn is_empty(&self) -> bool {
        self.len() == Some(0)
    }

    /// Batches of one epoch, where known.
    fn batches(&self) -> Option<usize>;

    /// Samples of the largest batch.
    fn batch_size(&self) -> usize;

    /// Whether an epoch leaves out batches at no cost, so that threads can take turns at it.
    fn skips(&self) -> bool {
        false
    }

    /// Whether the samples' order changes with the epoch, where known: a run is not continued with the
    /// other order.
    fn shuffles(&self) -> Option<bool> {
        None
    }

    /// A fingerprint of the samples in their order, with labels and weights: workers, and a run that is
    /// continued, see by it that they have the same. 0 where none is made.
    fn digest(&self) -> u64 {
        0
    }

    /// A fingerprint of what is done to samples anew in every epoch, which a run that is continued may do in
    /// another way. 0 where nothing is done, or nothing is known.
    fn augmentation_digest(&self) -> u64 {
        0
    }

    /// The same samples, where all of them lie in memory: devices may keep them.
    fn in_memory(&self) -> Option<&dyn InMemory> {
        None
    }

    /// Starts an epoch at its batch `start`. The order depends on `seed` and `epoch` alone, so a
    /// run may be resumed anywhere. A worker with a share of every batch needs no more than that; a
    /// dataset that makes all rows all the same says so by leaving [`HostBatch::own`] empty.
    fn epoch_of(
        &self,
        seed: u64,
        epoch: u64,
        start: usize,
        share: Option<&LocalShard>,
    ) -> Result<Box<dyn Epoch + '_>>;

    /// As [`epoch_of`](Dataset::epoch_of), all rows of every batch.
    fn epoch(&self, seed: u64, epoch: u64, start: usize) -> Result<Box<dyn Epoch + '_>> {
        self.epoch_of(seed, epoch, start, None)
    }

    /// How `fit` and its like take it: as it is, unless it says otherwise.
    fn source(self) -> Result<Source>
    where
        Self: Sized + 'static,
    {
        Ok(Source::Dataset(Arc::new(self)))
    }
}

/// A dataset that others hold too.
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

    fn shuffles(&self) -> Option<bool> {
        (**self).shuffles()
    }

    fn digest(&self) -> u64 {
        (**self).digest()
    }

    fn in_memory(&self) -> Option<&dyn InMemory> {
        (**self).in_memory()
    }

    fn epoch_of(
        &self,
        seed: u64,
        epoch: u64,
        start: usize,
        share: Option<&LocalShard>,
    ) -> Result<Box<dyn Epoch + '_>> {
        (**self).epoch_of(seed, epoch, start, share)
    }
}

/// The part of the positions of a batch that a share has, and which of its rows they are.
fn own_positions(
    share: Option<&LocalShard>,
    positions: Range<usize>,
) -> (Range<usize>, Option<Range<usize>>) {
    let Some(share) = share else { return (positions, None) };
    let own = share.rows(positions.len());
    (positions.start + own.start..positions.start + own.end, Some(own))
}

/// The batches of one epoch.
pub trait Epoch {
    /// Fills the next batch; false at the end, when `batch` is left as it was.
    fn next(&mut self, batch: &mut HostBatch) -> Result<bool>;

    /// Leaves out the next batches, as far as there are that many.
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

/// Where the next batch of an epoch lies, from `at` on; nothing at the end.
fn next_batch(at: &mut usize, end: usize, batch: usize) -> Option<std::ops::Range<usize>> {
    let positions = *at..end.min(at.saturating_add(batch));
    *at = positions.end.max(*at);
    (!positions.is_empty()).then_some(positions)
}

/// Makes `slots` hold one tensor of `batch` rows for each of the columns, keeping those that fit.
/// A column is its type and its dimensions, the sample first.
fn make_room<'a>(
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
