//! Batches of images on their way through an [`ImageDataGenerator`].

use super::affine::{Mover, Size};
use super::arrays::SHUFFLE;
use super::generator::image_size;
use super::{
    Columns, Dataset, Digest, Epoch, HostBatch, ImageDataGenerator, InMemory, LocalShard, Picked,
    Picks, Prefetch, Samples, Table, make_room, next_batch, own_positions,
};
use crate::error::{Error, Result};
use crate::model::Source;
use phalanx_graph::rng::{Stream, permutation};
use phalanx_graph::{DType, Data, Tensor};
use std::ops::Range;
use std::sync::Arc;

/// The random stream of distortions; layers count theirs from 1.
const AUGMENT: u32 = 0xFFFF_0003;

/// Images that are read one at a time: from memory, or from files.
pub trait Images: Send + Sync {
    /// Number of images, height, width, channels.
    fn dims(&self) -> Vec<usize>;

    /// Writes an image to `to`, row by row, channels last.
    ///
    /// # Errors
    /// One that names the image where it cannot be read.
    fn read(&self, row: usize, to: &mut [f32]) -> Result<()>;

    /// A fingerprint of the images: of their names where they are files. 0 where none is made.
    fn digest(&self) -> u64 {
        0
    }

    /// All of them, where they lie in memory.
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

/// Which part of the samples a flow shows, where the generator has a `validation_split`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Subset {
    /// All but the first share.
    Training,
    /// The first share.
    Validation,
}

/// A dataset of distorted images: what [`ImageDataGenerator::flow`] gives. `fit` prepares its
/// batches on other threads.
#[derive(Clone)]
pub struct ImageFlow {
    generator: ImageDataGenerator,
    images: Arc<dyn Images>,
    size: Size,
    /// The dimensions of a sample as it is handed over.
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

    /// Whether every epoch has an order of its own.
    pub fn shuffle(mut self, shuffle: bool) -> ImageFlow {
        self.shuffle = shuffle;
        self
    }

    /// Whether a last batch that is not full is left out.
    pub fn drop_remainder(mut self, drop_remainder: bool) -> ImageFlow {
        self.drop_remainder = drop_remainder;
        self
    }

    /// Threads that prepare batches for `fit`; one for images in memory, one per core for files.
    pub fn workers(mut self, workers: usize) -> ImageFlow {
        self.workers = workers;
        self
    }

    /// One of the two parts of the generator's `validation_split`.
    pub fn subset(self, subset: Subset) -> Result<ImageFlow> {
        let n = self.rows.len();
        let held = (n as f64 * self.generator.validation_split) as usize;
        let rows = match subset {
            Subset::Validation => self.rows[..held].to_vec(),
            Subset::Training => self.rows[held..].to_vec(),
        };
        self.with_rows(rows)
    }

    /// The samples of a range, of those that are shown.
    pub fn slice_rows(self, range: Range<usize>) -> Result<ImageFlow> {
        match self.rows.get(range.clone()).map(<[u32]>::to_vec) {
            Some(rows) if !rows.is_empty() => self.with_rows(rows),
            _ => {
                let expected = format!("a range within 0..{}", self.rows.len());
                Err(Error::argument("flow", "slice_rows", expected, format!("{range:?}")))
            }
        }
    }

    /// Hands samples over in other dimensions, of as many numbers: flat, for a network that takes rows.
    pub fn reshape(mut self, shape: impl Into<Vec<usize>>) -> Result<ImageFlow> {
        let shape = shape.into();
        if shape.iter().try_fold(1usize, |n, d| n.checked_mul(*d)) != Some(self.size.len()) {
            let expected = format!("dimensions of {} numbers", self.size.len());
            return Err(Error::argument("flow", "reshape", expected, format!("{shape:?}")));
        }
        self.shape = shape;
        Ok(self)
    }

    /// Shows only these samples.
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
        let one_after_another = |pair: &[u32]| pair[1] == pair[0] + 1;
        match (self.images.samples(), self.rows.first()) {
            // As arrays of the same samples would have it.
            (Some(samples), Some(first)) if self.rows.windows(2).all(one_after_another) => {
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

    /// Batches are made ahead, on as many threads as it was given.
    fn source(self) -> Result<Source> {
        let workers = self.workers;
        let ahead = Prefetch::new(Arc::new(self)).workers(workers).ahead(2 + 2 * workers);
        Ok(Source::Dataset(Arc::new(ahead)))
    }

    fn in_memory(&self) -> Option<&dyn InMemory> {
        let floats = self.images.samples().is_some_and(|s| s.dtype() == DType::F32);
        let floats = floats && self.shape.len() == 3;
        (floats && self.generator.frame(self.size).is_some()).then_some(self)
    }

    fn epoch_of(
        &self,
        seed: u64,
        epoch: u64,
        start: usize,
        share: Option<&LocalShard>,
    ) -> Result<Box<dyn Epoch + '_>> {
        let epoch = self.begin(seed, epoch, start)?;
        Ok(Box::new(FlowEpoch { share: share.cloned(), ..epoch }))
    }
}

impl InMemory for ImageFlow {
    fn table(&self) -> Table {
        let inputs = self.images.samples().cloned().into_iter().collect();
        let frame = self.generator.frame(self.size);
        Table { inputs, frame, targets: self.targets.clone(), weights: None }
    }

    fn picks(&self, seed: u64, epoch: u64, start: usize) -> Result<Box<dyn Picks + '_>> {
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
        let (mover, image) = (Mover::default(), vec![0.0; self.size.len()]);
        Ok(FlowEpoch { flow: self, share: None, seed, epoch, order, at, mover, image })
    }
}

struct FlowEpoch<'a> {
    flow: &'a ImageFlow,
    /// The rows of every batch that are wanted; all where nothing is said.
    share: Option<LocalShard>,
    seed: u64,
    epoch: u64,
    order: Option<Vec<u32>>,
    at: usize,
    mover: Mover,
    image: Vec<f32>,
}

impl Epoch for FlowEpoch<'_> {
    fn next(&mut self, batch: &mut HostBatch) -> Result<bool> {
        let flow = self.flow;
        let Some(positions) = next_batch(&mut self.at, self.flow.end(), self.flow.batch) else {
            return Ok(false);
        };
        batch.rows = positions.len();
        let share = self.share.as_ref();
        let (positions, own) = own_positions(share, positions);
        batch.own = own;
        let room = flow.batch_size();
        let room = share.map_or(room, |share| share.rows(room).len().max(1));
        let dims = [&[room], &flow.shape[..]].concat();
        make_room(&mut batch.inputs, [(DType::F32, &dims[..])].into_iter(), room);
        let columns = flow.targets.iter().map(|t| (t.dtype(), t.dims()));
        make_room(&mut batch.targets, columns, room);
        batch.sample_weight.clear();
        batch.sample_weight.resize(batch.held(), 1.0);
        let images = batch.inputs[0].f32_mut().unwrap_or_default();
        for (to, position) in images.chunks_exact_mut(flow.size.len()).zip(positions.clone()) {
            let row = self.row(position);
            flow.images.read(row, &mut self.image)?;
            let mut random = self.random(row);
            flow.generator.change(&mut random, &mut self.mover, flow.size, &self.image, to)?;
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

impl Picks for FlowEpoch<'_> {
    fn next(&mut self, picked: &mut Picked) -> Result<bool> {
        let Some(positions) = next_batch(&mut self.at, self.flow.end(), self.flow.batch) else {
            return Ok(false);
        };
        picked.rows.clear();
        picked.motions.clear();
        for position in positions {
            let row = self.row(position);
            picked.rows.push(row as u32);
            let motion = self.flow.generator.motion(&mut self.random(row), self.flow.size);
            picked.motions.push(motion);
        }
        Ok(true)
    }
}

impl FlowEpoch<'_> {
    /// What decides how a sample is distorted.
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
