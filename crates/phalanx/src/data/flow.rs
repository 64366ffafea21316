//! Batches of images augmented by an [`ImageDataGenerator`].

use super::affine::{AffineTransformer, Size};
use super::arrays::SHUFFLE;
use super::generator::image_size;
use super::{
    Columns, Dataset, Digest, Epoch, HostBatch, ImageDataGenerator, InMemory, IndexBatch,
    IndexBatches, LocalShard, Prefetch, Samples, Table, local_positions, next_batch, reserve_slots,
};
use crate::error::{Error, Result};
use crate::model::Source;
use phalanx_graph::rng::{Stream, permutation};
use phalanx_graph::{DType, Data, Tensor};
use std::ops::Range;
use std::sync::Arc;

/// Random stream of augmentation. Layers number theirs from 1.
const AUGMENT: u32 = 0xFFFF_0003;

/// Images that are read one at a time, from memory or from files.
pub trait Images: Send + Sync {
    /// Number of images, height, width, channels.
    fn dims(&self) -> Vec<usize>;

    /// Writes an image to `to`, row by row, channels last.
    ///
    /// # Errors
    /// An image that cannot be read; the error names it.
    fn read(&self, row: usize, to: &mut [f32]) -> Result<()>;

    /// Fingerprint of the images, or of their names if they are files. 0 means that there is none.
    fn digest(&self) -> u64 {
        0
    }

    /// All images, if they are in memory.
    fn samples(&self) -> Option<&Samples> {
        None
    }
}

impl Images for Samples {
    fn dims(&self) -> Vec<usize> {
        Samples::dims(self).to_vec()
    }

    fn read(&self, row: usize, to: &mut [f32]) -> Result<()> {
        self.read_row(row, to);
        Ok(())
    }

    fn digest(&self) -> u64 {
        let mut digest = Digest::default();
        digest.samples(self);
        digest.end()
    }

    fn samples(&self) -> Option<&Samples> {
        Some(self)
    }
}

/// A subset of the samples according to the generator's `validation_split`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Subset {
    /// All samples after the validation subset.
    Training,
    /// The first `validation_split` of the samples.
    Validation,
}

/// A dataset of augmented images, created by [`ImageDataGenerator::flow`]. `fit` prepares its batches on
/// background threads.
#[derive(Clone)]
pub struct ImageFlow {
    generator: ImageDataGenerator,
    images: Arc<dyn Images>,
    size: Size,
    /// Dimensions of a sample in a batch.
    shape: Vec<usize>,
    targets: Vec<Arc<Tensor>>,
    rows: Arc<Vec<u32>>,
    batch: usize,
    shuffle: bool,
    drop_remainder: bool,
    workers: usize,
}

impl ImageFlow {
    pub(super) fn new(
        generator: ImageDataGenerator,
        images: Arc<dyn Images>,
        y: Columns,
        batch: usize,
    ) -> Result<ImageFlow> {
        let dims = images.dims();
        let size = image_size(&dims)?;
        generator.check(size)?;
        let n = dims[0];
        if batch == 0 {
            return Err(Error::argument("flow", "batch_size", "at least 1", batch));
        }
        if n == 0 || u32::try_from(n).is_err() {
            return Err(Error::argument("flow", "x", "1 to 2³² - 1 images", n));
        }
        let targets = y.tensors();
        for (i, target) in targets.iter().enumerate() {
            if target.dims().is_empty() || target.rows() != n {
                let received = format!("{:?}", target.dims());
                return Err(Error::argument(
                    "flow",
                    format!("y[{i}]"),
                    format!("{n} rows"),
                    received,
                ));
            }
        }
        let rows = Arc::new((0..n as u32).collect());
        let (shuffle, drop_remainder) = (true, false);
        Ok(ImageFlow {
            generator,
            images,
            size,
            shape: dims[1..].to_vec(),
            targets,
            rows,
            batch,
            shuffle,
            drop_remainder,
            workers: 1,
        })
    }

    /// Whether to shuffle in every epoch.
    pub fn shuffle(mut self, shuffle: bool) -> ImageFlow {
        self.shuffle = shuffle;
        self
    }

    /// Whether to drop the last batch if it is not full.
    pub fn drop_remainder(mut self, drop_remainder: bool) -> ImageFlow {
        self.drop_remainder = drop_remainder;
        self
    }

    /// Sets the number of threads that prepare batches for `fit`. The default is one for images in
    /// memory, and one per core for files.
    pub fn workers(mut self, workers: usize) -> ImageFlow {
        self.workers = workers;
        self
    }

    /// Restricts the flow to a subset of the generator's `validation_split`.
    pub fn subset(self, subset: Subset) -> Result<ImageFlow> {
        let n = self.rows.len();
        let validation = (n as f64 * self.generator.validation_split) as usize;
        let rows = match subset {
            Subset::Validation => self.rows[..validation].to_vec(),
            Subset::Training => self.rows[validation..].to_vec(),
        };
        self.with_rows(rows)
    }

    /// A range of the samples shown.
    pub fn slice_rows(self, range: Range<usize>) -> Result<ImageFlow> {
        match self.rows.get(range.clone()).map(<[u32]>::to_vec) {
            Some(rows) if !rows.is_empty() => self.with_rows(rows),
            _ => {
                let expected = format!("a range within 0..{}", self.rows.len());
                Err(Error::argument("flow", "slice_rows", expected, format!("{range:?}")))
            }
        }
    }

    /// Changes the dimensions of a sample in batches, for example to flat rows. The number of elements
    /// must stay the same.
    pub fn reshape(mut self, shape: impl Into<Vec<usize>>) -> Result<ImageFlow> {
        let shape = shape.into();
        if shape.iter().try_fold(1usize, |n, d| n.checked_mul(*d)) != Some(self.size.len()) {
            let expected = format!("dimensions of {} numbers", self.size.len());
            return Err(Error::argument("flow", "reshape", expected, format!("{shape:?}")));
        }
        self.shape = shape;
        Ok(self)
    }

    /// Restricts the flow to these samples.
    pub(super) fn with_rows(mut self, rows: Vec<u32>) -> Result<ImageFlow> {
        if rows.is_empty() {
            let received = format!("none with {}", self.generator.validation_split);
            let expected = "a validation_split that leaves samples";
            return Err(Error::argument("flow", "subset", expected, received));
        }
        self.rows = Arc::new(rows);
        Ok(self)
    }

    fn end(&self) -> usize {
        let n = self.rows.len();
        if self.drop_remainder { n - n % self.batch } else { n }
    }
}

impl Dataset for ImageFlow {
    fn len(&self) -> Option<usize> {
        Some(self.end())
    }

    fn batches(&self) -> Option<usize> {
        Some(self.end().div_ceil(self.batch))
    }

    fn batch_size(&self) -> usize {
        self.batch.min(self.rows.len())
    }

    fn skips(&self) -> bool {
        true
    }

    fn shuffles(&self) -> Option<bool> {
        Some(self.shuffle)
    }

    fn digest(&self) -> u64 {
        let mut digest = Digest::default();
        let contiguous = |pair: &[u32]| pair[1] == pair[0] + 1;
        match (self.images.samples(), self.rows.first()) {
            // Equal to the digest of arrays of the same samples.
            (Some(samples), Some(first)) if self.rows.windows(2).all(contiguous) => {
                let rows = *first as usize..*first as usize + self.rows.len();
                digest.rows(samples, rows.clone());
                self.targets.iter().for_each(|t| digest.rows_of_tensor(t, rows.clone()));
            }
            _ => {
                digest.word(self.images.digest());
                self.targets.iter().for_each(|target| digest.tensor(target));
                self.rows.iter().for_each(|row| digest.word(u64::from(*row)));
            }
        }
        digest.end()
    }

    fn augmentation_digest(&self) -> u64 {
        let mut digest = Digest::default();
        digest.bytes(format!("{:?}", self.generator).as_bytes());
        digest.end()
    }

    /// Prefetches batches on the configured number of threads.
    fn source(self) -> Result<Source> {
        let workers = self.workers;
        let ahead = Prefetch::new(Arc::new(self)).workers(workers).ahead(2 + 2 * workers);
        Ok(Source::Dataset(Arc::new(ahead)))
    }

    fn in_memory(&self) -> Option<&dyn InMemory> {
        let floats = self.images.samples().is_some_and(|s| s.dtype() == DType::F32);
        let floats = floats && self.shape.len() == 3;
        (floats && self.generator.image_shape(self.size).is_some()).then_some(self)
    }

    fn epoch_of(
        &self,
        seed: u64,
        epoch: u64,
        start: usize,
        shard: Option<&LocalShard>,
    ) -> Result<Box<dyn Epoch + '_>> {
        let epoch = self.begin(seed, epoch, start)?;
        Ok(Box::new(FlowEpoch { shard: shard.cloned(), ..epoch }))
    }
}

impl InMemory for ImageFlow {
    fn table(&self) -> Table {
        let image = self.generator.image_shape(self.size);
        Table { image, ..Table::new(self.images.samples(), &self.targets) }
    }

    fn index_batches(
        &self,
        seed: u64,
        epoch: u64,
        start: usize,
    ) -> Result<Box<dyn IndexBatches + '_>> {
        Ok(Box::new(self.begin(seed, epoch, start)?))
    }
}

impl ImageFlow {
    fn begin(&self, seed: u64, epoch: u64, start: usize) -> Result<FlowEpoch<'_>> {
        let n = self.rows.len();
        if self.end() == 0 {
            let expected = format!("at least one batch of {}", self.batch);
            return Err(Error::argument("flow", "drop_remainder", expected, format!("{n} images")));
        }
        let order = self.shuffle.then(|| permutation(n, seed, epoch, SHUFFLE));
        let at = start.saturating_mul(self.batch);
        let (transformer, image) = (AffineTransformer::default(), vec![0.0; self.size.len()]);
        Ok(FlowEpoch { flow: self, shard: None, seed, epoch, order, at, transformer, image })
    }
}

struct FlowEpoch<'a> {
    flow: &'a ImageFlow,
    /// The rows of every batch to produce; `None` means all.
    shard: Option<LocalShard>,
    seed: u64,
    epoch: u64,
    order: Option<Vec<u32>>,
    at: usize,
    transformer: AffineTransformer,
    image: Vec<f32>,
}

impl Epoch for FlowEpoch<'_> {
    fn next(&mut self, batch: &mut HostBatch) -> Result<bool> {
        let flow = self.flow;
        let Some(positions) = next_batch(&mut self.at, self.flow.end(), self.flow.batch) else {
            return Ok(false);
        };
        batch.rows = positions.len();
        let shard = self.shard.as_ref();
        let (positions, local) = local_positions(shard, positions);
        batch.local = local;
        let room = flow.batch_size();
        let room = shard.map_or(room, |shard| shard.rows(room).len().max(1));
        let dims = [&[room], &flow.shape[..]].concat();
        reserve_slots(&mut batch.inputs, [(DType::F32, &dims[..])].into_iter(), room);
        let columns = flow.targets.iter().map(|t| (t.dtype(), t.dims()));
        reserve_slots(&mut batch.targets, columns, room);
        batch.weighted = false;
        batch.sample_weight.clear();
        batch.output_weights.clear();
        batch.sample_weight.resize(batch.local_len(), 1.0);
        let images = batch.inputs[0].f32_mut().unwrap_or_default();
        for (to, position) in images.chunks_exact_mut(flow.size.len()).zip(positions.clone()) {
            let row = self.row(position);
            flow.images.read(row, &mut self.image)?;
            let mut random = self.random(row);
            flow.generator.augment(
                &mut random,
                &mut self.transformer,
                flow.size,
                &self.image,
                to,
            )?;
        }
        for (slot, target) in batch.targets.iter_mut().zip(&flow.targets) {
            for (i, position) in positions.clone().enumerate() {
                copy_row(target, self.row(position), slot, i);
            }
        }
        Ok(true)
    }

    fn skip(&mut self, batches: usize) -> Result<()> {
        self.at = self.at.saturating_add(batches.saturating_mul(self.flow.batch));
        Ok(())
    }
}

impl IndexBatches for FlowEpoch<'_> {
    fn next(&mut self, batch: &mut IndexBatch) -> Result<bool> {
        let Some(positions) = next_batch(&mut self.at, self.flow.end(), self.flow.batch) else {
            return Ok(false);
        };
        batch.rows.clear();
        batch.augments.clear();
        for position in positions {
            let row = self.row(position);
            batch.rows.push(row as u32);
            let augment = self.flow.generator.affine_augment(&mut self.random(row), self.flow.size);
            batch.augments.push(augment);
        }
        Ok(true)
    }
}

impl FlowEpoch<'_> {
    /// The random stream of a sample's augmentation.
    fn random(&self, row: usize) -> Stream {
        Stream::new(self.seed, self.epoch, AUGMENT, row as u32)
    }

    /// The sample at a position of the epoch.
    fn row(&self, position: usize) -> usize {
        let at = self.order.as_ref().map_or(position, |order| order[position] as usize);
        self.flow.rows[at] as usize
    }
}

/// Copies a row to a slot of the same type and row shape.
fn copy_row(from: &Tensor, row: usize, slot: &mut Tensor, to: usize) {
    let width = from.row_len();
    let (from_part, to_part) = (row * width..(row + 1) * width, to * width..(to + 1) * width);
    match from.data() {
        Data::F32(values) => {
            if let Some(slot) = slot.f32_mut() {
                slot[to_part].copy_from_slice(&values[from_part]);
            }
        }
        Data::I32(values) => {
            if let Some(slot) = slot.i32_mut() {
                slot[to_part].copy_from_slice(&values[from_part]);
            }
        }
    }
}
