//! Pipelines with the words of `tf.data`.

mod cache;
mod generator;
mod parallel;
mod part_file;
mod pass;
mod steps;

use super::{Columns, Dataset, Digest, Epoch, HostBatch, LocalShard, Samples};
use crate::error::{Error, Result};
use crate::model::{IntoDataset, Source};
use pass::{Item, Part, Pass};
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

/// A step of a pipeline.
trait Step: Send + Sync {
    fn cardinality(&self) -> Cardinality;

    fn open(&self, pass: Pass) -> Result<Box<dyn Elements>>;
}

/// The elements of one pass.
trait Elements: Send {
    fn next(&mut self) -> Result<Option<Item>>;

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
/// With several workers each makes the samples of its own rows only, of the same batches as one process
/// would make: what is mapped before the last `batch` is mapped by one worker, and caches keep what
/// their worker has made. What has to see everything runs in full on every worker: `filter` and the steps
/// before it, `from_generator`, those between either and `batch` (how many samples there are is not known), a `map`, `zip` or
/// `enumerate` of whole batches and what is before it, and what is repeated without end before it is shuffled.
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
    /// Whether the order depends on the seed.
    shuffled: bool,
    known: Known,
}

/// What can be said of a pipeline's elements: the tensors they come from and the steps they take. Functions
/// cannot be told apart.
#[derive(Clone, Default)]
struct Known {
    sources: Vec<Samples>,
    steps: String,
}

impl Known {
    fn then(mut self, step: std::fmt::Arguments<'_>) -> Known {
        self.steps += &format!(".{step}");
        self
    }
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
        let known = Known { sources: columns.clone(), steps: String::new() };
        let step = Arc::new(steps::Slices { columns, rows });
        Ok(Pipeline { step, batch: None, rows: Some(rows), shuffled: false, known })
    }

    /// What a program makes, one element after the other, for data of any size: `open` starts every
    /// pass anew, and nothing is kept but what later steps ask for. An element is `[x]`, `[x, y]` or
    /// `[x, y, sample_weight]`, each without the dimension of the batch.
    ///
    /// How many there are is not known until they end; [`assert_cardinality`](Self::assert_cardinality)
    /// says it. A run continued in the middle of an epoch makes the elements before its place once
    /// more, and drops them. An error ends the pass, with the element's number.
    ///
    /// ```
    /// use phalanx::prelude::*;
    /// use std::io::{BufRead, BufReader};
    ///
    /// # std::fs::write(std::env::temp_dir().join("phalanx-doc.csv"), "1,2\n3,6\n5,10\n")?;
    /// # let path = std::env::temp_dir().join("phalanx-doc.csv");
    /// let lines = Pipeline::from_generator(move || {
    ///     let file = BufReader::new(std::fs::File::open(&path)?);
    ///     Ok(file.lines().map(|line| {
    ///         let line = line?;
    ///         let number = |text: &str| text.parse::<f32>().map_err(|e| Error::config("line", e));
    ///         let (x, y) = line.split_once(',').unwrap_or((&line, "0"));
    ///         Ok(vec![Tensor::new([1], vec![number(x)?])?, Tensor::new([1], vec![number(y)?])?])
    ///     }))
    /// });
    /// let train = lines.shuffle(1000)?.batch(2, false)?.prefetch(2);
    /// let mut model = Sequential::new().add(Input::new([1])).add(Dense::new(1)).build()?;
    /// model.compile(Compile::new("adam").loss("mse"))?;
    /// model.fit(train, Fit::new().epochs(2).verbose(0))?;
    /// # Ok::<(), phalanx::Error>(())
    /// ```
    pub fn from_generator<I>(open: impl Fn() -> Result<I> + Send + Sync + 'static) -> Pipeline
    where
        I: Iterator<Item = Result<Element>> + Send + 'static,
    {
        let open = move || open().map(|iter| Box::new(iter) as generator::Iter);
        let step = Arc::new(generator::Generator { open: Arc::new(open) });
        let known = Known::default().then(format_args!("from_generator"));
        Pipeline { step, batch: None, rows: None, shuffled: false, known }
    }

    /// Says how many elements there are where only running it would tell: an epoch then has known
    /// steps, and of several workers each maps its own rows only. A pass with more or fewer is an error.
    pub fn assert_cardinality(self, count: usize) -> Pipeline {
        let rows = self.rows.or(self.batch.is_none().then_some(count));
        let step = Arc::new(generator::AssertCardinality { inner: self.step, count });
        Pipeline { step, rows, ..self }
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
        self.known = self.known.then(format_args!("map"));
        self
    }

    /// Keeps the elements that `f` says yes to.
    pub fn filter(self, f: impl Fn(&Element) -> Result<bool> + Send + Sync + 'static) -> Pipeline {
        let step = Arc::new(steps::Filter { inner: self.step, f: Arc::new(f) });
        let known = self.known.then(format_args!("filter"));
        Pipeline { step, rows: None, known, ..self }
    }

    /// Takes elements at random from a buffer of that many; another order every epoch.
    pub fn shuffle(mut self, buffer_size: usize) -> Result<Pipeline> {
        if buffer_size == 0 {
            return Err(Error::argument("shuffle", "buffer_size", "at least 1", buffer_size));
        }
        self.step = Arc::new(steps::Shuffle { inner: self.step, buffer: buffer_size });
        self.shuffled = true;
        self.known = self.known.then(format_args!("shuffle({buffer_size})"));
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
        let known = self.known.then(format_args!("batch({batch_size}, {drop_remainder})"));
        Ok(Pipeline { step, batch: Some(batch_size), rows, known, ..self })
    }

    /// Keeps the elements of the first pass in memory, and gives those from then on.
    pub fn cache(mut self) -> Pipeline {
        self.step = Arc::new(cache::Cache::in_memory(self.step, self.shuffled));
        self.known = self.known.then(format_args!("cache"));
        self
    }

    /// Keeps the elements of the first whole pass in a file, which is used where it is there.
    ///
    /// With several workers, each keeps what it has made in a file of its own beside it
    /// (`PATH.rows-0-1-of-2` where the first of two replicas is its), unless there is one of a single
    /// process, which serves all of them. A worker's file that was made for another number of elements, or with another
    /// seed where that decides their order, is made again.
    pub fn cache_file(mut self, path: impl Into<PathBuf>) -> Pipeline {
        self.step = Arc::new(cache::InFile::new(self.step, path.into(), self.shuffled));
        // A file that is there counts, whatever would be made in its place.
        self.known = Known::default().then(format_args!("cache_file"));
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
        let known = self.known.then(format_args!("repeat({count:?})"));
        Pipeline { step, rows, known, ..self }
    }

    /// The first elements, at most so many.
    pub fn take(self, count: usize) -> Pipeline {
        let rows = self.after(|rows, size| rows.min(count.saturating_mul(size)));
        let step = Arc::new(steps::Take { inner: self.step, count });
        let known = self.known.then(format_args!("take({count})"));
        Pipeline { step, rows, known, ..self }
    }

    /// All but the first elements.
    pub fn skip(self, count: usize) -> Pipeline {
        let rows = self.after(|rows, size| rows.saturating_sub(count.saturating_mul(size)));
        let step = Arc::new(steps::Skip { inner: self.step, count });
        let known = self.known.then(format_args!("skip({count})"));
        Pipeline { step, rows, known, ..self }
    }

    /// Elements of both side by side, until one ends.
    pub fn zip(self, other: Pipeline) -> Pipeline {
        let rows = self.rows.zip(other.rows).map(|(a, b)| a.min(b));
        let rows = rows.filter(|_| self.batch == other.batch);
        let shuffled = self.shuffled || other.shuffled;
        let mut known = self.known.then(format_args!("zip({})", other.known.steps));
        known.sources.extend(other.known.sources);
        let step = Arc::new(steps::Zip { inner: [self.step, other.step] });
        Pipeline { step, batch: self.batch, rows, shuffled, known }
    }

    /// Puts each element's number, an integer scalar, before its tensors.
    pub fn enumerate(mut self) -> Pipeline {
        self.step = Arc::new(steps::Enumerate { inner: self.step });
        self.known = self.known.then(format_args!("enumerate"));
        self
    }

    /// The elements of an epoch, one after the other.
    pub fn elements(
        &self,
        seed: u64,
        epoch: u64,
    ) -> Result<impl Iterator<Item = Result<Element>> + use<>> {
        let mut elements = self.step.open(Pass::new(seed, epoch, None))?;
        let mut failed = false;
        Ok(std::iter::from_fn(move || {
            if failed {
                return None;
            }
            let next = elements.next();
            failed = next.is_err();
            next.map(|item| item.and_then(Item::made)).transpose()
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

    fn digest(&self) -> u64 {
        let mut digest = Digest::default();
        self.known.sources.iter().for_each(|source| digest.samples(source));
        digest.bytes(self.known.steps.as_bytes());
        digest.end()
    }

    fn epoch_of(
        &self,
        seed: u64,
        epoch: u64,
        start: usize,
        share: Option<&LocalShard>,
    ) -> Result<Box<dyn Epoch + '_>> {
        if self.batch.is_none() {
            let (expected, received) = ("batch(n) before training", "single samples");
            return Err(Error::argument("Pipeline", "batch", expected, received));
        }
        let mut elements = self.step.open(Pass::new(seed, epoch, share))?;
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
        let Some(item) = self.elements.next()? else { return Ok(false) };
        let at = self.at;
        self.at += 1;
        let wrong = |expected: String, received: String| {
            Err(Error::argument("Pipeline", format!("batch {at}"), expected, received))
        };
        let (element, part) = match item {
            Item::Made(element) => (element, None),
            Item::Part(Part { element, rows, own }) => (element, Some((rows, own))),
            Item::LeftOut => return wrong("every batch".into(), "one that was left out".into()),
        };
        if element.is_empty() || element.len() > 3 {
            return wrong("x, (x, y) or (x, y, sample_weight)".into(), element.len().to_string());
        }
        let here = element[0].rows();
        if let Some(bad) = element.iter().find(|t| t.dims().is_empty() || t.rows() != here) {
            return wrong(format!("{here} rows in each tensor"), format!("{:?}", bad.dims()));
        }
        (batch.rows, batch.own) = part.map_or((here, None), |(rows, own)| (rows, Some(own)));
        let held = batch.held();
        let mut tensors = element.into_iter();
        batch.inputs = tensors.by_ref().take(1).collect();
        batch.targets = tensors.by_ref().take(1).collect();
        batch.sample_weight = match tensors.next() {
            None => vec![1.0; held],
            Some(weights) => match weights.f32() {
                Some(values) if values.len() == here => values[..held].to_vec(),
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
