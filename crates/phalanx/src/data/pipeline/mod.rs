//! Pipelines with the words of `tf.data`.

mod cache;
mod parallel;
mod steps;

use super::{Columns, Dataset, Epoch, HostBatch, Samples};
use crate::error::{Error, Result};
use crate::model::{IntoDataset, Source};
use phalanx_graph::Tensor;
use std::path::PathBuf;
use std::sync::Arc;

/// What flows through a pipeline: the tensors of a sample, or of a batch of them, in order: input,
/// target, sample weight.
pub type Element = Vec<Tensor>;

/// How many elements there are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cardinality {
    /// So many.
    Known(usize),
    /// Only running it tells.
    Unknown,
    /// No end of them.
    Infinite,
}

/// Which pass over the data this is; all randomness follows from it.
#[derive(Clone, Copy)]
struct Pass {
    seed: u64,
    epoch: u64,
    /// Tells apart repetitions within an epoch and steps of the same kind.
    path: u32,
}

impl Pass {
    /// The first pass of a run: what is kept must not depend on where a run was taken up.
    fn first(self) -> Pass {
        Pass { epoch: 0, ..self }
    }

    fn inner(self, step: usize) -> Pass {
        let path = self.path.wrapping_mul(31).wrapping_add(step as u32).wrapping_add(1);
        Pass { path, ..self }
    }
}

/// A step of a pipeline.
trait Step: Send + Sync {
    fn cardinality(&self) -> Cardinality;

    fn open(&self, pass: Pass) -> Result<Box<dyn Elements>>;
}

/// The elements of one pass.
trait Elements: Send {
    fn next(&mut self) -> Result<Option<Element>>;

    fn skip(&mut self, elements: usize) -> Result<()> {
        for _ in 0..elements {
            if self.next()?.is_none() {
                break;
            }
        }
        Ok(())
    }
}

/// Samples on their way to the model: `Pipeline::from_tensor_slices((x, y)).shuffle(1000)…`.
///
/// The order is the same whatever the number of threads, and depends on the run's seed and the
/// epoch alone. Clones share the steps.
///
/// ```
/// use phalanx::data::{Cardinality, Pipeline};
/// use phalanx::Tensor;
///
/// let (x, y) = (Tensor::zeros([100, 4]), Tensor::zeros([100, 1]));
/// let train = Pipeline::from_tensor_slices((x, y))?
///     .shuffle(100)?
///     .map(|mut sample| {
///         sample[0].f32_mut().unwrap_or_default().iter_mut().for_each(|v| *v += 1.0);
///         Ok(sample)
///     })
///     .batch(32, false)?
///     .prefetch(2);
/// assert_eq!(train.cardinality(), Cardinality::Known(4));
/// # Ok::<(), phalanx::Error>(())
/// ```
#[derive(Clone)]
pub struct Pipeline {
    step: Arc<dyn Step>,
    /// Samples of the largest batch, once there are batches.
    batch: Option<usize>,
    /// Samples of an epoch, where known.
    rows: Option<usize>,
}

impl Pipeline {
    /// The rows of tensors or images of equal length: `x`, `(x, y)` or `(x, y, sample_weight)`.
    pub fn from_tensor_slices(columns: impl Into<Columns>) -> Result<Pipeline> {
        let columns: Vec<Samples> = columns.into().into_samples();
        let wrong = |expected: &str, received: String| {
            Err(Error::argument("from_tensor_slices", "tensors", expected, received))
        };
        let Some(rows) = columns.first().map(Samples::rows) else {
            return wrong("at least one", "none".into());
        };
        if let Some(bad) = columns.iter().find(|c| c.dims().is_empty() || c.rows() != rows) {
            return wrong(&format!("{rows} rows in each"), format!("{:?}", bad.dims()));
        }
        let step = Arc::new(steps::Slices { columns, rows });
        Ok(Pipeline { step, batch: None, rows: Some(rows) })
    }

    /// The number of elements, as far as it is known.
    pub fn cardinality(&self) -> Cardinality {
        self.step.cardinality()
    }

    /// Changes every element, on as many threads as there are cores; the order stays.
    pub fn map(self, f: impl Fn(Element) -> Result<Element> + Send + Sync + 'static) -> Pipeline {
        self.map_parallel(crate::usable_cores(), f)
    }

    /// [`map`](Self::map) with a number of threads, `num_parallel_calls` of `tf.data`.
    pub fn map_parallel(
        mut self,
        num_parallel_calls: usize,
        f: impl Fn(Element) -> Result<Element> + Send + Sync + 'static,
    ) -> Pipeline {
        let threads = num_parallel_calls.clamp(1, 256);
        self.step = Arc::new(parallel::Map { inner: self.step, f: Arc::new(f), threads });
        self
    }

    /// Keeps the elements that `f` says yes to.
    pub fn filter(self, f: impl Fn(&Element) -> Result<bool> + Send + Sync + 'static) -> Pipeline {
        let step = Arc::new(steps::Filter { inner: self.step, f: Arc::new(f) });
        Pipeline { step, batch: self.batch, rows: None }
    }

    /// Takes elements at random from a buffer of that many; another order every epoch.
    pub fn shuffle(mut self, buffer_size: usize) -> Result<Pipeline> {
        if buffer_size == 0 {
            return Err(Error::argument("shuffle", "buffer_size", "at least 1", buffer_size));
        }
        self.step = Arc::new(steps::Shuffle { inner: self.step, buffer: buffer_size });
        Ok(self)
    }

    /// Joins so many elements to a batch; `drop_remainder` leaves out a last one that is not full.
    pub fn batch(self, batch_size: usize, drop_remainder: bool) -> Result<Pipeline> {
        if batch_size == 0 {
            return Err(Error::argument("batch", "batch_size", "at least 1", batch_size));
        }
        let full = |n: usize| if drop_remainder { n - n % batch_size } else { n };
        let rows = self.rows.filter(|_| self.batch.is_none()).map(full);
        let step = Arc::new(steps::Batch { inner: self.step, size: batch_size, drop_remainder });
        Ok(Pipeline { step, batch: Some(batch_size), rows })
    }

    /// Keeps the elements of the first whole pass in memory, and gives those from then on.
    pub fn cache(mut self) -> Pipeline {
        self.step = Arc::new(cache::InMemory::new(self.step));
        self
    }

    /// Keeps the elements of the first whole pass in a file, which is used where it is there.
    pub fn cache_file(mut self, path: impl Into<PathBuf>) -> Pipeline {
        self.step = Arc::new(cache::InFile { inner: self.step, path: path.into() });
        self
    }

    /// Prepares so many elements ahead, on a thread of its own.
    pub fn prefetch(mut self, buffer_size: usize) -> Pipeline {
        let ahead = buffer_size.clamp(1, 1 << 16);
        self.step = Arc::new(parallel::Ahead { inner: self.step, ahead });
        self
    }

    /// The data `count` times over; endless without one.
    pub fn repeat(self, count: impl Into<Option<usize>>) -> Pipeline {
        let count = count.into();
        let rows = count.and_then(|count| self.rows?.checked_mul(count));
        let step = Arc::new(steps::Repeat { inner: self.step, count });
        Pipeline { step, batch: self.batch, rows }
    }

    /// The first elements, at most so many.
    pub fn take(self, count: usize) -> Pipeline {
        let rows = self.after(|rows, size| rows.min(count.saturating_mul(size)));
        let step = Arc::new(steps::Take { inner: self.step, count });
        Pipeline { step, batch: self.batch, rows }
    }

    /// All but the first elements.
    pub fn skip(self, count: usize) -> Pipeline {
        let rows = self.after(|rows, size| rows.saturating_sub(count.saturating_mul(size)));
        let step = Arc::new(steps::Skip { inner: self.step, count });
        Pipeline { step, batch: self.batch, rows }
    }

    /// Elements of both side by side, until one ends.
    pub fn zip(self, other: Pipeline) -> Pipeline {
        let rows = self.rows.zip(other.rows).map(|(a, b)| a.min(b));
        let rows = rows.filter(|_| self.batch == other.batch);
        let step = Arc::new(steps::Zip { inner: [self.step, other.step] });
        Pipeline { step, batch: self.batch, rows }
    }

    /// Puts each element's number, an integer scalar, before its tensors.
    pub fn enumerate(mut self) -> Pipeline {
        self.step = Arc::new(steps::Enumerate { inner: self.step });
        self
    }

    /// The elements of an epoch, one after the other.
    pub fn elements(
        &self,
        seed: u64,
        epoch: u64,
    ) -> Result<impl Iterator<Item = Result<Element>> + use<>> {
        let mut elements = self.step.open(Pass { seed, epoch, path: 0 })?;
        let mut failed = false;
        Ok(std::iter::from_fn(move || {
            if failed {
                return None;
            }
            let next = elements.next();
            failed = next.is_err();
            next.transpose()
        }))
    }

    /// Samples left of an epoch; batches that repeat may be short in the middle.
    fn after(&self, change: impl Fn(usize, usize) -> usize) -> Option<usize> {
        let size = self.batch.unwrap_or(1);
        let whole = match self.cardinality() {
            Cardinality::Known(n) => self.rows.filter(|rows| rows.div_ceil(size) == n),
            _ => None,
        };
        whole.map(|rows| change(rows, size))
    }
}

impl IntoDataset for Pipeline {
    fn into_source(self) -> Result<Source> {
        Ok(Source::Dataset(Arc::new(self)))
    }
}

impl IntoDataset for &Pipeline {
    fn into_source(self) -> Result<Source> {
        self.clone().into_source()
    }
}

impl Dataset for Pipeline {
    fn len(&self) -> Option<usize> {
        self.rows
    }

    fn batches(&self) -> Option<usize> {
        match self.cardinality() {
            Cardinality::Known(n) => Some(n),
            Cardinality::Unknown | Cardinality::Infinite => None,
        }
    }

    fn batch_size(&self) -> usize {
        self.batch.unwrap_or(1)
    }

    fn epoch(&self, seed: u64, epoch: u64, start: usize) -> Result<Box<dyn Epoch + '_>> {
        if self.batch.is_none() {
            let (expected, received) = ("batch(n) before training", "single samples");
            return Err(Error::argument("Pipeline", "batch", expected, received));
        }
        let mut elements = self.step.open(Pass { seed, epoch, path: 0 })?;
        elements.skip(start)?;
        Ok(Box::new(PipelineEpoch { elements, at: start }))
    }
}

struct PipelineEpoch {
    elements: Box<dyn Elements>,
    at: usize,
}

impl Epoch for PipelineEpoch {
    fn next(&mut self, batch: &mut HostBatch) -> Result<bool> {
        let Some(element) = self.elements.next()? else { return Ok(false) };
        let at = self.at;
        self.at += 1;
        let wrong = |expected: String, received: String| {
            Err(Error::argument("Pipeline", format!("batch {at}"), expected, received))
        };
        if element.is_empty() || element.len() > 3 {
            return wrong("x, (x, y) or (x, y, sample_weight)".into(), element.len().to_string());
        }
        let rows = element[0].rows();
        if let Some(bad) = element.iter().find(|t| t.dims().is_empty() || t.rows() != rows) {
            return wrong(format!("{rows} rows in each tensor"), format!("{:?}", bad.dims()));
        }
        let mut tensors = element.into_iter();
        batch.rows = rows;
        batch.inputs = tensors.by_ref().take(1).collect();
        batch.targets = tensors.by_ref().take(1).collect();
        batch.sample_weight = match tensors.next() {
            None => vec![1.0; rows],
            Some(weights) => match weights.f32() {
                Some(values) if values.len() == rows => values.to_vec(),
                _ => {
                    let received = format!("{} {:?}", weights.dtype(), weights.dims());
                    return wrong("one float as weight per sample".into(), received);
                }
            },
        };
        Ok(true)
    }

    fn skip(&mut self, batches: usize) -> Result<()> {
        self.at = self.at.saturating_add(batches);
        self.elements.skip(batches)
    }
}

#[cfg(test)]
mod tests;
