//! Input pipelines with the vocabulary of `tf.data`.

mod buckets;
mod cache;
mod epoch_context;
mod generator;
mod mixing;
mod padding;
mod parallel;
mod steps;
mod strings;
mod worker_cache_file;

pub use buckets::Buckets;
pub use padding::PaddedBatch;

use super::{Columns, Dataset, Digest, Epoch, HostBatch, LocalShard, Samples};
use crate::error::{Error, Result};
use crate::model::{IntoDataset, Source};
use epoch_context::{EpochContext, Item, PartialBatch};
use phalanx_graph::Tensor;
use std::path::PathBuf;
use std::sync::Arc;
use strings::PipelineText;

/// An element of a pipeline: the tensors of a sample or of a batch, in the order input, target, sample
/// weight.
pub type Element = Vec<Tensor>;

/// Number of elements of a pipeline.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cardinality {
    /// A known number.
    Known(usize),
    /// Unknown until the pipeline runs.
    Unknown,
    /// Infinite, as after `repeat` without a count.
    Infinite,
}

/// A step of a pipeline.
trait PipelineStep: Send + Sync {
    fn cardinality(&self) -> Cardinality;

    fn open(&self, context: EpochContext) -> Result<Box<dyn Elements>>;
}

/// The elements of one context.
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

/// An input pipeline: `Pipeline::from_tensor_slices((x, y)).shuffle(1000)…`.
///
/// The order is the same for any number of threads, and depends only on the seed of the run and the
/// epoch. Clones share the steps.
///
/// With several workers, each produces only the samples of its own rows, out of the same batches that
/// one process would produce. A `map` before the last `batch` runs on one worker per sample, and caches
/// hold what their worker has produced. Some steps must see every element and run in full on every
/// worker: `filter`, `bucket_by_sequence_length` and the steps before them; a `padded_batch` to sizes that
/// depend on the samples, and the steps before it; `from_generator`; the steps between either of them and
/// `batch`, because the number of samples is unknown; a `map`, `zip`, `enumerate`, `mix_up` or `cut_mix`
/// of full batches and the steps before it; and an infinite `repeat` before a `shuffle`.
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
    step: Arc<dyn PipelineStep>,
    /// Samples in the largest batch, once the pipeline is batched.
    batch: Option<usize>,
    /// Samples per epoch, if known.
    rows: Option<usize>,
    /// Whether the order depends on the seed.
    shuffled: bool,
    provenance: Provenance,
    text: PipelineText,
}

/// The source tensors and the steps applied, for the digest. Functions cannot be distinguished.
#[derive(Clone, Default)]
struct Provenance {
    sources: Vec<Samples>,
    steps: String,
}

impl Provenance {
    fn then(mut self, step: std::fmt::Arguments<'_>) -> Provenance {
        self.steps += &format!(".{step}");
        self
    }
}

impl Pipeline {
    /// Rows of tensors or images of equal length: `x`, `(x, y)` or `(x, y, sample_weight)`.
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
        if columns.iter().skip(1).any(|column| column.text().is_some()) {
            return wrong("strings only as the first", "others".into());
        }
        let text = match columns[0].text() {
            Some(text) => PipelineText::Strings(text.shared_strings().clone()),
            None => PipelineText::Numbers,
        };
        let provenance = Provenance { sources: columns.clone(), steps: String::new() };
        let step = Arc::new(steps::Slices { columns, rows });
        let (batch, rows, shuffled) = (None, Some(rows), false);
        Ok(Pipeline { step, batch, rows, shuffled, provenance, text })
    }

    /// Elements that are in memory, whose tensors may have different sizes: sequences of different lengths, for example.
    /// An element is `[x]`, `[x, y]` or `[x, y, sample_weight]`, each without the batch dimension. See
    /// [`padded_batch`](Self::padded_batch).
    ///
    /// # Errors
    /// If the elements differ in the number of their tensors.
    pub fn from_elements(elements: Vec<Element>) -> Result<Pipeline> {
        let tensors = elements.first().map_or(0, Vec::len);
        if let Some(at) = elements.iter().position(|e| e.len() != tensors || e.is_empty()) {
            let expected = format!("{} tensors", tensors.max(1));
            let (argument, received) = (format!("element {at}"), elements[at].len());
            return Err(Error::argument("from_elements", argument, expected, received));
        }
        let share = |element: Element| element.into_iter().map(Arc::new).collect();
        let elements: Vec<Vec<Arc<Tensor>>> = elements.into_iter().map(share).collect();
        let sources = elements.iter().flatten().cloned().map(Samples::Tensor).collect();
        let rows = Some(elements.len());
        let provenance =
            Provenance { sources, ..Provenance::default() }.then(format_args!("from_elements"));
        let step = Arc::new(generator::InMemoryElements { elements: Arc::new(elements) });
        let text = PipelineText::Numbers;
        Ok(Pipeline { step, batch: None, rows, shuffled: false, provenance, text })
    }

    /// Elements from an iterator, for data of any size. `open` is called for every pass, and nothing is
    /// stored unless a later step requires it. An element is `[x]`, `[x, y]` or `[x, y, sample_weight]`,
    /// each without the batch dimension.
    ///
    /// The number of elements is unknown until the iterator ends; set it with
    /// [`assert_cardinality`](Self::assert_cardinality). A run resumed in the middle of an epoch
    /// produces and drops the elements before that point. An error ends the pass and reports the index
    /// of the element.
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
        let provenance = Provenance::default().then(format_args!("from_generator"));
        let (batch, rows, shuffled) = (None, None, false);
        Pipeline { step, batch, rows, shuffled, provenance, text: PipelineText::Numbers }
    }

    /// Declares the number of elements if it is otherwise unknown. An epoch then has a known number of
    /// steps, and each of several workers maps only its own rows. A pass with more or fewer elements is
    /// an error.
    pub fn assert_cardinality(self, count: usize) -> Pipeline {
        let rows = self.rows.or(self.batch.is_none().then_some(count));
        let step = Arc::new(generator::AssertCardinality { inner: self.step, count });
        Pipeline { step, rows, ..self }
    }

    /// The number of elements, if known.
    pub fn cardinality(&self) -> Cardinality {
        self.step.cardinality()
    }

    /// Applies `f` to every element on one thread per core. The order is preserved.
    pub fn map(self, f: impl Fn(Element) -> Result<Element> + Send + Sync + 'static) -> Pipeline {
        self.map_parallel(crate::usable_cores(), f)
    }

    /// [`map`](Self::map) with a given number of threads, `num_parallel_calls` of `tf.data`.
    pub fn map_parallel(
        mut self,
        num_parallel_calls: usize,
        f: impl Fn(Element) -> Result<Element> + Send + Sync + 'static,
    ) -> Pipeline {
        let threads = num_parallel_calls.clamp(1, 256);
        self.text = self.text.after("map");
        self.step = Arc::new(parallel::Map { inner: self.step, f: Arc::new(f), threads });
        self.provenance = self.provenance.then(format_args!("map"));
        self
    }

    /// Keeps the elements for which `f` returns true.
    pub fn filter(self, f: impl Fn(&Element) -> Result<bool> + Send + Sync + 'static) -> Pipeline {
        let step = Arc::new(steps::Filter { inner: self.step, f: Arc::new(f) });
        let provenance = self.provenance.then(format_args!("filter"));
        Pipeline { step, rows: None, provenance, ..self }
    }

    /// Draws elements at random from a buffer of `buffer_size`, in a different order every epoch.
    pub fn shuffle(mut self, buffer_size: usize) -> Result<Pipeline> {
        if buffer_size == 0 {
            return Err(Error::argument("shuffle", "buffer_size", "at least 1", buffer_size));
        }
        self.step = Arc::new(steps::Shuffle { inner: self.step, buffer: buffer_size });
        self.shuffled = true;
        self.provenance = self.provenance.then(format_args!("shuffle({buffer_size})"));
        Ok(self)
    }

    /// Combines `batch_size` elements into a batch. `drop_remainder` drops the last batch if it is not
    /// full.
    pub fn batch(self, batch_size: usize, drop_remainder: bool) -> Result<Pipeline> {
        if batch_size == 0 {
            return Err(Error::argument("batch", "batch_size", "at least 1", batch_size));
        }
        let rows = self.rows_in_batches(batch_size, drop_remainder);
        let (inner, size, padding) = (self.step, batch_size, None);
        let step = Arc::new(steps::Batch { inner, size, drop_remainder, padding });
        let provenance =
            self.provenance.then(format_args!("batch({batch_size}, {drop_remainder})"));
        Ok(Pipeline { step, batch: Some(batch_size), rows, provenance, ..self })
    }

    /// Stores the elements of the first pass in memory and reuses them in later passes.
    pub fn cache(mut self) -> Pipeline {
        self.step = Arc::new(cache::Cache::in_memory(self.step, self.shuffled));
        self.provenance = self.provenance.then(format_args!("cache"));
        self
    }

    /// Stores the elements of the first complete pass in a file. An existing file is used as it is.
    ///
    /// With several workers, each stores its elements in a separate file next to it
    /// (`PATH.rows-0-1-of-2` for the worker with the first of two replicas). If a file of a single
    /// process exists, it serves all workers. A worker's file is recreated if it was made for another
    /// number of elements, or with another seed if the order depends on it.
    pub fn cache_file(mut self, path: impl Into<PathBuf>) -> Pipeline {
        self.step = Arc::new(cache::FileCache::new(self.step, path.into(), self.shuffled));
        self.text = self.text.after("cache_file");
        // An existing file is used regardless of the steps before it.
        self.provenance = Provenance::default().then(format_args!("cache_file"));
        self
    }

    /// Prepares up to `buffer_size` elements ahead on a background thread.
    pub fn prefetch(mut self, buffer_size: usize) -> Pipeline {
        let ahead = buffer_size.clamp(1, 1 << 16);
        self.step = Arc::new(parallel::PrefetchStep { inner: self.step, ahead });
        self
    }

    /// Repeats the data `count` times, or infinitely without a count.
    pub fn repeat(self, count: impl Into<Option<usize>>) -> Pipeline {
        let count = count.into();
        let rows = count.and_then(|count| self.rows?.checked_mul(count));
        let step = Arc::new(steps::Repeat { inner: self.step, count });
        let provenance = self.provenance.then(format_args!("repeat({count:?})"));
        Pipeline { step, rows, provenance, ..self }
    }

    /// At most the first `count` elements.
    pub fn take(self, count: usize) -> Pipeline {
        let rows = self.after(|rows, size| rows.min(count.saturating_mul(size)));
        let step = Arc::new(steps::Take { inner: self.step, count });
        let provenance = self.provenance.then(format_args!("take({count})"));
        Pipeline { step, rows, provenance, ..self }
    }

    /// All but the first `count` elements.
    pub fn skip(self, count: usize) -> Pipeline {
        let rows = self.after(|rows, size| rows.saturating_sub(count.saturating_mul(size)));
        let step = Arc::new(steps::Skip { inner: self.step, count });
        let provenance = self.provenance.then(format_args!("skip({count})"));
        Pipeline { step, rows, provenance, ..self }
    }

    /// Pairs the elements of both pipelines until one ends.
    pub fn zip(self, other: Pipeline) -> Pipeline {
        let rows = self.rows.zip(other.rows).map(|(a, b)| a.min(b));
        let rows = rows.filter(|_| self.batch == other.batch);
        let shuffled = self.shuffled || other.shuffled;
        let mut provenance = self.provenance.then(format_args!("zip({})", other.provenance.steps));
        provenance.sources.extend(other.provenance.sources);
        let step = Arc::new(steps::Zip { inner: [self.step, other.step] });
        let text = match other.text.after("zip") {
            PipelineText::Numbers => self.text,
            misused => misused,
        };
        Pipeline { step, batch: self.batch, rows, shuffled, provenance, text }
    }

    /// Prepends the index of each element as an integer scalar.
    pub fn enumerate(mut self) -> Pipeline {
        self.text = self.text.after("enumerate");
        self.step = Arc::new(steps::Enumerate { inner: self.step });
        self.provenance = self.provenance.then(format_args!("enumerate"));
        self
    }

    /// The elements of an epoch, one after the other.
    pub fn elements(
        &self,
        seed: u64,
        epoch: u64,
    ) -> Result<impl Iterator<Item = Result<Element>> + use<>> {
        self.text.check()?;
        let mut elements = self.step.open(EpochContext::new(seed, epoch, None))?;
        let mut failed = false;
        Ok(std::iter::from_fn(move || {
            if failed {
                return None;
            }
            let next = elements.next();
            failed = next.is_err();
            next.map(|item| item.and_then(Item::full)).transpose()
        }))
    }

    /// Samples left in an epoch. Repeated batches may be short in the middle.
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
        self.provenance.sources.iter().for_each(|source| digest.samples(source));
        digest.bytes(self.provenance.steps.as_bytes());
        digest.end()
    }

    fn epoch_of(
        &self,
        seed: u64,
        epoch: u64,
        start: usize,
        shard: Option<&LocalShard>,
    ) -> Result<Box<dyn Epoch + '_>> {
        if self.batch.is_none() {
            let (expected, received) = ("batch(n) before training", "single samples");
            return Err(Error::argument("Pipeline", "batch", expected, received));
        }
        self.text.check()?;
        let mut elements = self.step.open(EpochContext::new(seed, epoch, shard))?;
        elements.skip(start)?;
        let strings = match &self.text {
            PipelineText::Strings(strings) => Some(strings.clone()),
            PipelineText::Numbers | PipelineText::Misused(_) => None,
        };
        Ok(Box::new(PipelineEpoch { elements, at: start, strings }))
    }
}

struct PipelineEpoch {
    elements: Box<dyn Elements>,
    at: usize,
    /// The strings of the first tensor, if it holds the numbers of strings.
    strings: Option<Arc<Vec<String>>>,
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
            Item::Full(element) => (element, None),
            Item::Partial(PartialBatch { element, rows, local }) => (element, Some((rows, local))),
            Item::Skipped => return wrong("every batch".into(), "one that was left out".into()),
        };
        if element.is_empty() || element.len() > 3 {
            return wrong("x, (x, y) or (x, y, sample_weight)".into(), element.len().to_string());
        }
        let here = element[0].rows();
        if let Some(bad) = element.iter().find(|t| t.dims().is_empty() || t.rows() != here) {
            return wrong(format!("{here} rows in each tensor"), format!("{:?}", bad.dims()));
        }
        (batch.rows, batch.local) = part.map_or((here, None), |(rows, local)| (rows, Some(local)));
        let local_len = batch.local_len();
        let mut tensors = element.into_iter();
        batch.inputs = tensors.by_ref().take(1).collect();
        batch.strings = vec![self.strings.clone()];
        batch.targets = tensors.by_ref().take(1).collect();
        batch.sample_weight = vec![1.0; local_len];
        batch.weighted = false;
        batch.output_weights.clear();
        if let Some(weights) = tensors.next() {
            batch.weighted = true;
            match weights.f32() {
                Some(values) if weights.dims().len() == 1 => {
                    batch.sample_weight = values[..local_len].to_vec();
                }
                // Those of positions.
                Some(_) => batch.output_weights.push(weights),
                None => {
                    let received = format!("{} {:?}", weights.dtype(), weights.dims());
                    return wrong("floats as weights".into(), received);
                }
            }
        }
        Ok(true)
    }

    fn skip(&mut self, batches: usize) -> Result<()> {
        self.at = self.at.saturating_add(batches);
        self.elements.skip(batches)
    }
}

#[cfg(test)]
mod ragged_tests;
#[cfg(test)]
mod tests;
