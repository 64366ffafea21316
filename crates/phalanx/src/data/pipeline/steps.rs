//! Pipeline steps that run on the calling thread.

use super::epoch_context::{EpochContext, Item, PartialBatch, rows_of};
use super::padding::Padding;
use super::{Cardinality, Element, Elements, PipelineStep};
use crate::data::{LocalShard, Samples};
use crate::error::{Error, Result};
use phalanx_graph::rng::Stream;
use phalanx_graph::{Data, Tensor};
use std::sync::Arc;

/// Random stream of shuffled pipelines. Layers number theirs from 1.
const PIPELINE: u32 = 0xFFFF_0004;

/// Maximum number of shuffled elements for which a worker computes the ones it needs, at one byte each.
/// Beyond this it produces all elements.
const MAX_PLANNED_ELEMENTS: usize = 1 << 28;

type Inner = Arc<dyn PipelineStep>;
type Open = Result<Box<dyn Elements>>;

impl Cardinality {
    fn map(self, f: impl Fn(usize) -> usize) -> Cardinality {
        match self {
            Cardinality::Known(n) => Cardinality::Known(f(n)),
            other => other,
        }
    }
}

/// Elements produced by a closure.
struct FromFn<F>(F);

impl<F: FnMut() -> Result<Option<Item>> + Send> Elements for FromFn<F> {
    fn next(&mut self) -> Result<Option<Item>> {
        (self.0)()
    }
}

/// Rows of tensors.
pub(super) struct Slices {
    pub columns: Vec<Samples>,
    pub rows: usize,
}

impl PipelineStep for Slices {
    fn cardinality(&self) -> Cardinality {
        Cardinality::Known(self.rows)
    }

    fn open(&self, context: EpochContext) -> Open {
        let columns = self.columns.clone();
        Ok(Box::new(SlicesElements { columns, rows: self.rows, context, at: 0 }))
    }
}

struct SlicesElements {
    columns: Vec<Samples>,
    rows: usize,
    context: EpochContext,
    at: usize,
}

impl Elements for SlicesElements {
    fn next(&mut self) -> Result<Option<Item>> {
        if self.at >= self.rows {
            return Ok(None);
        }
        let at = self.at;
        self.at += 1;
        if !self.context.wants(at) {
            return Ok(Some(Item::Skipped));
        }
        let element = self.columns.iter().map(|column| row(column, at)).collect();
        Ok(Some(Item::Full(element)))
    }

    fn skip(&mut self, elements: usize) -> Result<()> {
        self.at = self.at.saturating_add(elements);
        Ok(())
    }
}

/// One row as a tensor.
fn row(column: &Samples, at: usize) -> Tensor {
    let width = column.row_len();
    let copy = |tensor: &Tensor| -> Data {
        match tensor.data() {
            Data::F32(v) => v[at * width..(at + 1) * width].to_vec().into(),
            Data::I32(v) => v[at * width..(at + 1) * width].to_vec().into(),
        }
    };
    let data: Data = match column {
        Samples::Tensor(tensor) => copy(tensor),
        Samples::Text(text) => copy(text.numbers()),
        Samples::External(external) => copy(&external.copy_rows(at, 1)),
        Samples::Pixels(_) => {
            let mut values = vec![0f32; width];
            column.read_row(at, &mut values);
            values.into()
        }
    };
    Tensor::new(&column.dims()[1..], data).expect("a row has its elements")
}

type Predicate = dyn Fn(&Element) -> Result<bool> + Send + Sync;

pub(super) struct Filter {
    pub inner: Inner,
    pub f: Arc<Predicate>,
}

impl PipelineStep for Filter {
    fn cardinality(&self) -> Cardinality {
        match self.inner.cardinality() {
            Cardinality::Known(0) => Cardinality::Known(0),
            Cardinality::Infinite => Cardinality::Infinite,
            _ => Cardinality::Unknown,
        }
    }

    fn open(&self, context: EpochContext) -> Open {
        let (mut inner, f, mut at) = (self.inner.open(context.all())?, self.f.clone(), 0u64);
        Ok(Box::new(FromFn(move || {
            while let Some(element) = inner.next()?.and_then(Item::full) {
                let keep = f(&element)
                    .map_err(|e| Error::config("filter", format!("element {at}: {e}")))?;
                at += 1;
                if keep {
                    return Ok(Some(Item::Full(element)));
                }
            }
            Ok(None)
        })))
    }
}

pub(super) struct Shuffle {
    pub inner: Inner,
    pub buffer: usize,
}

impl PipelineStep for Shuffle {
    fn cardinality(&self) -> Cardinality {
        self.inner.cardinality()
    }

    fn open(&self, context: EpochContext) -> Open {
        let random = Stream::new(context.seed, context.epoch, PIPELINE, context.path);
        let mut inner = self.inner.open(self.upstream(context, random.clone()))?;
        let mut buffer = Buffer { items: vec![], size: self.buffer, ended: false, random };
        Ok(Box::new(FromFn(move || buffer.next(|| inner.next()))))
    }
}

impl Shuffle {
    /// The context of the previous step. The random numbers to be drawn determine which elements are
    /// needed, provided that the number of elements is known and not too large.
    fn upstream(&self, context: EpochContext, random: Stream) -> EpochContext {
        let before = EpochContext { wanted: None, ..context.clone() }.inner(0);
        let (Cardinality::Known(n @ ..=MAX_PLANNED_ELEMENTS), Some(wanted)) =
            (self.inner.cardinality(), context.wanted)
        else {
            return before;
        };
        let mut buffer = Buffer { items: vec![], size: self.buffer, ended: false, random };
        let (mut needed, mut numbers, mut at) = (vec![false; n], 0..n, 0);
        while let Ok(Some(number)) = buffer.next(|| Ok(numbers.next())) {
            needed[number] = wanted(at);
            at += 1;
        }
        before.with_wanted(move |at| needed.get(at).copied().unwrap_or(false))
    }
}

/// The shuffle buffer, of elements or of their indices.
struct Buffer<T> {
    items: Vec<T>,
    size: usize,
    ended: bool,
    random: Stream,
}

impl<T> Buffer<T> {
    fn next(&mut self, mut more: impl FnMut() -> Result<Option<T>>) -> Result<Option<T>> {
        while !self.ended && self.items.len() < self.size {
            match more()? {
                Some(item) => self.items.push(item),
                None => self.ended = true,
            }
        }
        if self.items.is_empty() {
            return Ok(None);
        }
        let at = self.random.below(self.items.len() as u64) as usize;
        Ok(Some(self.items.swap_remove(at)))
    }
}

pub(super) struct Batch {
    pub inner: Inner,
    pub size: usize,
    pub drop_remainder: bool,
    /// Without it, all samples must have one shape.
    pub padding: Option<Arc<Padding>>,
}

impl PipelineStep for Batch {
    fn cardinality(&self) -> Cardinality {
        let batches = |n: usize| {
            if self.drop_remainder { n / self.size } else { n.div_ceil(self.size) }
        };
        self.inner.cardinality().map(batches)
    }

    fn open(&self, context: EpochContext) -> Open {
        let shard = context.shard.clone().filter(|_| context.slices_batches);
        let inner = self.inner.open(self.upstream(context, shard.clone()))?;
        let (size, drop_remainder, padding) =
            (self.size, self.drop_remainder, self.padding.clone());
        Ok(Box::new(BatchElements { inner, size, drop_remainder, padding, shard, at: 0 }))
    }
}

impl Batch {
    /// The context of the previous step: the needed rows of every batch, if the size of the last batch
    /// is known and no padding depends on the other rows.
    fn upstream(&self, context: EpochContext, shard: Option<Arc<LocalShard>>) -> EpochContext {
        let end = match self.inner.cardinality() {
            Cardinality::Known(n) => Some(n),
            Cardinality::Infinite => Some(usize::MAX),
            Cardinality::Unknown => None,
        };
        let padded = self.padding.as_ref().is_some_and(|padding| !padding.is_fixed());
        let everything = padded || (shard.is_none() && context.wanted.is_none());
        let Some(end) = end.filter(|_| !everything) else { return context.all() };
        let (size, batches, drop_remainder) =
            (self.size, context.wanted.clone(), self.drop_remainder);
        context.with_full_batches().with_wanted(move |at| {
            let (batch, row) = (at / size, at % size);
            let rows = end.saturating_sub(at - row).min(size);
            batches.as_ref().is_none_or(|wanted| wanted(batch))
                && (rows == size || !drop_remainder)
                && shard.as_ref().is_none_or(|shard| rows_of(shard, rows).1.contains(&row))
        })
    }
}

struct BatchElements {
    inner: Box<dyn Elements>,
    size: usize,
    drop_remainder: bool,
    padding: Option<Arc<Padding>>,
    /// The rows of every batch to produce; `None` means all.
    shard: Option<Arc<LocalShard>>,
    at: usize,
}

impl Elements for BatchElements {
    fn next(&mut self) -> Result<Option<Item>> {
        let mut items: Vec<Item> = Vec::new();
        while items.len() < self.size {
            match self.inner.next()? {
                Some(item) => items.push(item),
                None => break,
            }
        }
        let (rows, first) = (items.len(), self.at);
        if rows == 0 || (self.drop_remainder && rows < self.size) {
            return Ok(None);
        }
        self.at += rows;
        let (local, made) = match &self.shard {
            Some(shard) => rows_of(shard, rows),
            None => (0..rows, 0..rows),
        };
        let element = match &self.padding {
            Some(padding) => padding.stack(&items, made, None, |row| first + row)?,
            None => {
                let start = made.start;
                let samples: Option<Vec<Element>> = items.drain(made).map(Item::full).collect();
                samples.map(|samples| stack(&samples, first + start)).transpose()?
            }
        };
        let Some(element) = element else { return Ok(Some(Item::Skipped)) };
        Ok(Some(match self.shard {
            Some(_) => Item::Partial(PartialBatch { element, rows, local }),
            None => Item::Full(element),
        }))
    }

    fn skip(&mut self, elements: usize) -> Result<()> {
        let samples = elements.saturating_mul(self.size);
        self.at = self.at.saturating_add(samples);
        self.inner.skip(samples)
    }
}

/// Stacks samples of equal shapes into one element with a batch dimension.
fn stack(samples: &[Element], first: usize) -> Result<Element> {
    let shape = |sample: &Element| -> Vec<_> {
        sample.iter().map(|t| (t.dtype(), t.dims().to_vec())).collect()
    };
    let wanted = shape(&samples[0]);
    if let Some(bad) = samples.iter().position(|sample| shape(sample) != wanted) {
        let expected = format!("shapes as in element {first}: {wanted:?}");
        let received = format!("{:?}", shape(&samples[bad]));
        let argument = format!("element {}", first + bad);
        return Err(Error::argument("batch", argument, expected, received));
    }
    let join = |i: usize| {
        let mut dims = vec![samples.len()];
        dims.extend(samples[0][i].dims());
        let data: Data = match samples[0][i].data() {
            Data::F32(_) => {
                let rows = samples.iter().filter_map(|s| s[i].f32());
                rows.collect::<Vec<_>>().concat().into()
            }
            Data::I32(_) => {
                let rows = samples.iter().filter_map(|s| s[i].i32());
                rows.collect::<Vec<_>>().concat().into()
            }
        };
        Tensor::new(dims, data).map_err(|_| Error::config("batch", "samples of unequal size"))
    };
    (0..wanted.len()).map(join).collect()
}

pub(super) struct Repeat {
    pub inner: Inner,
    pub count: Option<usize>,
}

impl PipelineStep for Repeat {
    fn cardinality(&self) -> Cardinality {
        match (self.inner.cardinality(), self.count) {
            (Cardinality::Known(0), _) | (_, Some(0)) => Cardinality::Known(0),
            (Cardinality::Known(n), Some(count)) => {
                n.checked_mul(count).map_or(Cardinality::Unknown, Cardinality::Known)
            }
            (Cardinality::Unknown, Some(_)) => Cardinality::Unknown,
            (Cardinality::Infinite, _) | (_, None) => Cardinality::Infinite,
        }
    }

    fn open(&self, context: EpochContext) -> Open {
        let (step, count, mut round) = (self.inner.clone(), self.count, 0);
        let mut inner: Option<Box<dyn Elements>> = None;
        let (mut any, mut done) = (true, 0);
        Ok(Box::new(FromFn(move || {
            loop {
                if let Some(elements) = &mut inner {
                    if let Some(element) = elements.next()? {
                        any = true;
                        done += 1;
                        return Ok(Some(element));
                    }
                    inner = None;
                }
                // Repeating no elements yields no elements.
                if !any || count.is_some_and(|count| round >= count) {
                    return Ok(None);
                }
                any = false;
                let context = context.clone().inner(round);
                inner = Some(step.open(context.renumbered(move |at| at.checked_add(done)))?);
                round += 1;
            }
        })))
    }
}

pub(super) struct Take {
    pub inner: Inner,
    pub count: usize,
}

impl PipelineStep for Take {
    fn cardinality(&self) -> Cardinality {
        match self.inner.cardinality() {
            Cardinality::Infinite => Cardinality::Known(self.count),
            other => other.map(|n| n.min(self.count)),
        }
    }

    fn open(&self, context: EpochContext) -> Open {
        let (mut inner, mut left) = (self.inner.open(context)?, self.count);
        Ok(Box::new(FromFn(move || {
            if left == 0 {
                return Ok(None);
            }
            left -= 1;
            inner.next()
        })))
    }
}

pub(super) struct Skip {
    pub inner: Inner,
    pub count: usize,
}

impl PipelineStep for Skip {
    fn cardinality(&self) -> Cardinality {
        self.inner.cardinality().map(|n| n.saturating_sub(self.count))
    }

    fn open(&self, context: EpochContext) -> Open {
        let count = self.count;
        let mut inner = self.inner.open(context.renumbered(move |at| at.checked_sub(count)))?;
        inner.skip(self.count)?;
        Ok(inner)
    }
}

pub(super) struct Zip {
    pub inner: [Inner; 2],
}

impl PipelineStep for Zip {
    fn cardinality(&self) -> Cardinality {
        let [a, b] = &self.inner;
        match (a.cardinality(), b.cardinality()) {
            (Cardinality::Infinite, other) | (other, Cardinality::Infinite) => other,
            (Cardinality::Known(a), Cardinality::Known(b)) => Cardinality::Known(a.min(b)),
            _ => Cardinality::Unknown,
        }
    }

    fn open(&self, context: EpochContext) -> Open {
        let [a, b] = &self.inner;
        let context = context.with_full_batches();
        let (mut a, mut b) = (a.open(context.clone().inner(0))?, b.open(context.inner(1))?);
        Ok(Box::new(FromFn(move || match (a.next()?, b.next()?) {
            (Some(Item::Full(mut a)), Some(Item::Full(b))) => {
                a.extend(b);
                Ok(Some(Item::Full(a)))
            }
            (Some(_), Some(_)) => Ok(Some(Item::Skipped)),
            _ => Ok(None),
        })))
    }
}

pub(super) struct Enumerate {
    pub inner: Inner,
}

impl PipelineStep for Enumerate {
    fn cardinality(&self) -> Cardinality {
        self.inner.cardinality()
    }

    fn open(&self, context: EpochContext) -> Open {
        Ok(Box::new(EnumerateElements {
            inner: self.inner.open(context.with_full_batches())?,
            at: 0,
        }))
    }
}

struct EnumerateElements {
    inner: Box<dyn Elements>,
    at: usize,
}

impl Elements for EnumerateElements {
    fn next(&mut self) -> Result<Option<Item>> {
        let Some(item) = self.inner.next()? else { return Ok(None) };
        let at = i32::try_from(self.at)
            .map_err(|_| Error::argument("enumerate", "elements", "fewer than 2³¹", self.at))?;
        self.at += 1;
        let Item::Full(mut element) = item else { return Ok(Some(item)) };
        element.insert(0, Tensor::new([], vec![at]).expect("one element makes a scalar"));
        Ok(Some(Item::Full(element)))
    }

    fn skip(&mut self, elements: usize) -> Result<()> {
        self.at = self.at.saturating_add(elements);
        self.inner.skip(elements)
    }
}
