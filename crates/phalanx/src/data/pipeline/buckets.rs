//! Batches of samples of similar length.

use super::epoch_context::{EpochContext, Item, PartialBatch, rows_of};
use super::padding::Padding;
use super::{Cardinality, Element, Elements, Pipeline, PipelineStep};
use crate::data::LocalShard;
use crate::error::{Error, Result};
use crate::model::Shape;
use std::sync::Arc;

const OWNER: &str = "bucket_by_sequence_length";

type LengthFunction = dyn Fn(&Element) -> Result<usize> + Send + Sync;

/// The arguments of [`Pipeline::bucket_by_sequence_length`].
#[derive(Clone)]
pub struct Buckets {
    length: Arc<LengthFunction>,
    boundaries: Vec<usize>,
    batch_sizes: Vec<usize>,
    padding: Padding,
    pad_to_boundary: bool,
    drop_remainder: bool,
}

impl Buckets {
    /// Buckets of the lengths below each boundary, and one for the other lengths, each with its batch size. A length that
    /// is a boundary belongs to the next bucket. The length of an element is that of the first axis of its first tensor.
    pub fn new(
        bucket_boundaries: impl Into<Vec<usize>>,
        bucket_batch_sizes: impl Into<Vec<usize>>,
    ) -> Buckets {
        Buckets {
            length: Arc::new(first_axis),
            boundaries: bucket_boundaries.into(),
            batch_sizes: bucket_batch_sizes.into(),
            padding: Padding::default(),
            pad_to_boundary: false,
            drop_remainder: false,
        }
    }

    /// Sets the function that returns the length of an element.
    pub fn element_length_func(
        mut self,
        length: impl Fn(&Element) -> Result<usize> + Send + Sync + 'static,
    ) -> Buckets {
        self.length = Arc::new(length);
        self
    }

    /// Sets the shape of the padded samples, as [`PaddedBatch::padded_shapes`](super::PaddedBatch::padded_shapes) does.
    pub fn padded_shapes<S: Into<Shape>>(mut self, shapes: impl IntoIterator<Item = S>) -> Buckets {
        self.padding.shapes = Some(shapes.into_iter().map(Into::into).collect());
        self
    }

    /// Sets the number to pad with, for each tensor of an element. The default is 0.
    pub fn padding_values(mut self, values: impl Into<Vec<f32>>) -> Buckets {
        self.padding.values = values.into();
        self
    }

    /// Pads open sizes to one less than the bucket's boundary, the largest length of the bucket, instead of the largest
    /// sample of each batch. The batches then have as many shapes as there are boundaries. Elements beyond the last
    /// boundary are errors.
    pub fn pad_to_bucket_boundary(mut self, pad: bool) -> Buckets {
        self.pad_to_boundary = pad;
        self
    }

    /// Drops the last batch of each bucket if it is not full.
    pub fn drop_remainder(mut self, drop_remainder: bool) -> Buckets {
        self.drop_remainder = drop_remainder;
        self
    }

    fn check(&self) -> Result<()> {
        let wrong = |argument: &str, expected: &str, received: &[usize]| {
            Err(Error::argument(OWNER, argument, expected, format!("{received:?}")))
        };
        let ascending = self.boundaries.is_sorted_by(|a, b| a < b);
        if self.boundaries.first().is_none_or(|first| *first == 0) || !ascending {
            return wrong("bucket_boundaries", "ascending lengths above 0", &self.boundaries);
        }
        let count = self.boundaries.len() + 1;
        if self.batch_sizes.len() != count || self.batch_sizes.contains(&0) {
            let expected = format!("{count} sizes of at least 1, one more than boundaries");
            return wrong("bucket_batch_sizes", &expected, &self.batch_sizes);
        }
        Ok(())
    }

    /// The size of open axes in a bucket, if it does not depend on the samples.
    fn open_size(&self, bucket: usize) -> Option<usize> {
        let boundary = self.boundaries.get(bucket).filter(|_| self.pad_to_boundary);
        boundary.map(|boundary| boundary - 1)
    }
}

fn first_axis(element: &Element) -> Result<usize> {
    let length = element.first().and_then(|tensor| tensor.dims().first());
    let wrong = || Error::argument(OWNER, "element", "a tensor with an axis first", "none");
    length.copied().ok_or_else(wrong)
}

impl Pipeline {
    /// Combines elements of similar length into padded batches. A batch comes when its bucket is full; at the end come the
    /// remaining elements, the shortest first.
    ///
    /// With several workers, each sees every element.
    ///
    /// ```
    /// use phalanx::data::Buckets;
    /// use phalanx::prelude::*;
    ///
    /// let sequence = |steps: usize| vec![Tensor::new([steps], vec![7; steps]).unwrap()];
    /// let data = Pipeline::from_elements([2, 6, 3, 1].map(sequence).to_vec())?;
    /// let batches = data.bucket_by_sequence_length(Buckets::new([4], [2, 1]))?;
    /// let shapes: Vec<Vec<usize>> = batches
    ///     .elements(0, 0)?
    ///     .map(|batch| Ok(batch?[0].dims().to_vec()))
    ///     .collect::<Result<_>>()?;
    /// assert_eq!(shapes, [[1, 6], [2, 3], [1, 1]]);
    /// # Ok::<(), phalanx::Error>(())
    /// ```
    ///
    /// # Errors
    /// If the boundaries do not ascend or there is not one batch size more than boundaries.
    pub fn bucket_by_sequence_length(self, buckets: Buckets) -> Result<Pipeline> {
        buckets.check()?;
        let largest = buckets.batch_sizes.iter().copied().max();
        let rows = self.rows.filter(|_| self.batch.is_none() && !buckets.drop_remainder);
        let provenance = self.provenance.then(format_args!(
            "{OWNER}({:?}, {:?}, {:?}, {}, {})",
            buckets.boundaries,
            buckets.batch_sizes,
            buckets.padding,
            buckets.pad_to_boundary,
            buckets.drop_remainder
        ));
        let step = Arc::new(BucketStep { inner: self.step, buckets });
        let text = self.text.after("bucket_by_sequence_length");
        Ok(Pipeline { step, batch: largest, rows, provenance, text, ..self })
    }
}

struct BucketStep {
    inner: Arc<dyn PipelineStep>,
    buckets: Buckets,
}

impl PipelineStep for BucketStep {
    fn cardinality(&self) -> Cardinality {
        match self.inner.cardinality() {
            Cardinality::Known(0) => Cardinality::Known(0),
            Cardinality::Infinite => Cardinality::Infinite,
            _ => Cardinality::Unknown,
        }
    }

    fn open(&self, context: EpochContext) -> Result<Box<dyn Elements>> {
        let shard = context.shard.clone().filter(|_| context.slices_batches);
        let buckets = self.buckets.clone();
        let waiting = buckets.batch_sizes.iter().map(|_| vec![]).collect();
        let inner = self.inner.open(context.all())?;
        Ok(Box::new(BucketElements { inner, buckets, shard, waiting, at: 0, ended: false }))
    }
}

struct BucketElements {
    inner: Box<dyn Elements>,
    buckets: Buckets,
    /// The rows of every batch to produce; `None` means all.
    shard: Option<Arc<LocalShard>>,
    /// The elements of each bucket that are not in a batch yet, with their indices.
    waiting: Vec<Vec<(usize, Item)>>,
    at: usize,
    ended: bool,
}

impl Elements for BucketElements {
    fn next(&mut self) -> Result<Option<Item>> {
        while !self.ended {
            let Some(element) = self.inner.next()?.and_then(Item::full) else {
                self.ended = true;
                break;
            };
            let at = self.at;
            self.at += 1;
            let length = (self.buckets.length)(&element)
                .map_err(|e| Error::config(OWNER, format!("element {at}: {e}")))?;
            let bucket = self.buckets.boundaries.partition_point(|boundary| *boundary <= length);
            if self.buckets.pad_to_boundary && bucket == self.buckets.boundaries.len() {
                let expected = format!("a length below {}", self.buckets.boundaries[bucket - 1]);
                return Err(Error::argument(OWNER, format!("element {at}"), expected, length));
            }
            self.waiting[bucket].push((at, Item::Full(element)));
            if self.waiting[bucket].len() == self.buckets.batch_sizes[bucket] {
                return self.batch(bucket);
            }
        }
        match self.waiting.iter().position(|waiting| !waiting.is_empty()) {
            Some(bucket) if !self.buckets.drop_remainder => self.batch(bucket),
            _ => Ok(None),
        }
    }
}

impl BucketElements {
    /// Makes a batch of all elements of a bucket.
    fn batch(&mut self, bucket: usize) -> Result<Option<Item>> {
        let (indices, items): (Vec<usize>, Vec<Item>) =
            std::mem::take(&mut self.waiting[bucket]).into_iter().unzip();
        let rows = items.len();
        let (local, made) = match &self.shard {
            Some(shard) => rows_of(shard, rows),
            None => (0..rows, 0..rows),
        };
        let open = self.buckets.open_size(bucket);
        let stacked = self.buckets.padding.stack(&items, made, open, |row| indices[row])?;
        Ok(Some(match (stacked, &self.shard) {
            (None, _) => Item::Skipped,
            (Some(element), None) => Item::Full(element),
            (Some(element), Some(_)) => Item::Partial(PartialBatch { element, rows, local }),
        }))
    }
}
