//! The steps of a pipeline that need no thread.

use super::pass::{Item, Part, Pass, rows_of};
use super::{Cardinality, Element, Elements, Step};
use crate::data::{LocalShard, Samples};
use crate::error::{Error, Result};
use phalanx_graph::rng::Stream;
use phalanx_graph::{Data, Tensor};
use std::sync::Arc;

/// The random stream of shuffled pipelines; layers count theirs from 1.
const PIPELINE: u32 = 0xFFFF_0004;

/// Shuffled elements up to which a worker finds out which ones it needs, with a byte for each; of more
/// it makes all.
const MOST_PLANNED: usize = 1 << 28;

type Inner = Arc<dyn Step>;
type Open = Result<Box<dyn Elements>>;

impl Cardinality {
    fn map(self, f: impl Fn(usize) -> usize) -> Cardinality {
        match self {
            Cardinality::Known(n) => Cardinality::Known(f(n)),
            other => other,
        }
    }
}

/// Elements made by a closure.
struct Made<F>(F);

impl<F: FnMut() -> Result<Option<Item>> + Send> Elements for Made<F> {
    fn next(&mut self) -> Result<Option<Item>> {
        (self.0)()
    }
}

/// Rows of tensors.
pub(super) struct Slices {
    pub columns: Vec<Samples>,
    pub rows: usize,
}

impl Step for Slices {
    fn cardinality(&self) -> Cardinality {
        Cardinality::Known(self.rows)
    }

    fn open(&self, pass: Pass) -> Open {
        let columns = self.columns.clone();
        Ok(Box::new(SlicesElements { columns, rows: self.rows, pass, at: 0 }))
    }
}

struct SlicesElements {
    columns: Vec<Samples>,
    rows: usize,
    pass: Pass,
    at: usize,
}

impl Elements for SlicesElements {
    fn next(&mut self) -> Result<Option<Item>> {
        if self.at >= self.rows {
            return Ok(None);
        }
        let at = self.at;
        self.at += 1;
        if !self.pass.wants(at) {
            return Ok(Some(Item::LeftOut));
        }
        let element = self.columns.iter().map(|column| row(column, at)).collect();
        Ok(Some(Item::Made(element)))
    }

    fn skip(&mut self, elements: usize) -> Result<()> {
        self.at = self.at.saturating_add(elements);
        Ok(())
    }
}

/// One row as a tensor of its own.
fn row(column: &Samples, at: usize) -> Tensor {
    let width = column.row_len();
    let data: Data = match column {
        Samples::Tensor(tensor) => match tensor.data() {
            Data::F32(v) => v[at * width..(at + 1) * width].to_vec().into(),
            Data::I32(v) => v[at * width..(at + 1) * width].to_vec().into(),
        },
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

impl Step for Filter {
    fn cardinality(&self) -> Cardinality {
        match self.inner.cardinality() {
            Cardinality::Known(0) => Cardinality::Known(0),
            Cardinality::Infinite => Cardinality::Infinite,
            _ => Cardinality::Unknown,
        }
    }

    fn open(&self, pass: Pass) -> Open {
        let (mut inner, f, mut at) = (self.inner.open(pass.all())?, self.f.clone(), 0u64);
        Ok(Box::new(Made(move || {
            while let Some(element) = inner.next()?.and_then(Item::made) {
                let keep = f(&element)
                    .map_err(|e| Error::config("filter", format!("element {at}: {e}")))?;
                at += 1;
                if keep {
                    return Ok(Some(Item::Made(element)));
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

impl Step for Shuffle {
    fn cardinality(&self) -> Cardinality {
        self.inner.cardinality()
    }

    fn open(&self, pass: Pass) -> Open {
        let random = Stream::new(pass.seed, pass.epoch, PIPELINE, pass.path);
        let mut inner = self.inner.open(self.before(pass, random.clone()))?;
        let mut buffer = Buffer { held: vec![], size: self.buffer, ended: false, random };
        Ok(Box::new(Made(move || buffer.next(|| inner.next()))))
    }
}

impl Shuffle {
    /// The pass of the step before: what is needed of it follows from the numbers that will be drawn, as
    /// far as there are so many that their end is known.
    fn before(&self, pass: Pass, random: Stream) -> Pass {
        let before = Pass { wanted: None, ..pass.clone() }.inner(0);
        let (Cardinality::Known(n @ ..=MOST_PLANNED), Some(wanted)) =
            (self.inner.cardinality(), pass.wanted)
        else {
            return before;
        };
        let mut buffer = Buffer { held: vec![], size: self.buffer, ended: false, random };
        let (mut needed, mut numbers, mut at) = (vec![false; n], 0..n, 0);
        while let Ok(Some(number)) = buffer.next(|| Ok(numbers.next())) {
            needed[number] = wanted(at);
            at += 1;
        }
        before.with_wanted(move |at| needed.get(at).copied().unwrap_or(false))
    }
}

/// What is shuffled next, or the numbers in its place.
struct Buffer<T> {
    held: Vec<T>,
    size: usize,
    ended: bool,
    random: Stream,
}

impl<T> Buffer<T> {
    fn next(&mut self, mut more: impl FnMut() -> Result<Option<T>>) -> Result<Option<T>> {
        while !self.ended && self.held.len() < self.size {
            match more()? {
                Some(item) => self.held.push(item),
                None => self.ended = true,
            }
        }
        if self.held.is_empty() {
            return Ok(None);
        }
        let at = self.random.below(self.held.len() as u64) as usize;
        Ok(Some(self.held.swap_remove(at)))
    }
}

pub(super) struct Batch {
    pub inner: Inner,
    pub size: usize,
    pub drop_remainder: bool,
}

impl Step for Batch {
    fn cardinality(&self) -> Cardinality {
        let batches = |n: usize| {
            if self.drop_remainder { n / self.size } else { n.div_ceil(self.size) }
        };
        self.inner.cardinality().map(batches)
    }

    fn open(&self, pass: Pass) -> Open {
        let share = pass.share.clone().filter(|_| pass.cut);
        let inner = self.inner.open(self.before(pass, share.clone()))?;
        let (size, drop_remainder) = (self.size, self.drop_remainder);
        Ok(Box::new(BatchElements { inner, size, drop_remainder, share, at: 0 }))
    }
}

impl Batch {
    /// The pass of the step before: of every batch the rows that are needed, as far as it is known how many
    /// the last one has.
    fn before(&self, pass: Pass, share: Option<Arc<LocalShard>>) -> Pass {
        let end = match self.inner.cardinality() {
            Cardinality::Known(n) => Some(n),
            Cardinality::Infinite => Some(usize::MAX),
            Cardinality::Unknown => None,
        };
        let everything = share.is_none() && pass.wanted.is_none();
        let Some(end) = end.filter(|_| !everything) else { return pass.all() };
        let (size, batches, drop_remainder) = (self.size, pass.wanted.clone(), self.drop_remainder);
        pass.uncut().with_wanted(move |at| {
            let (batch, row) = (at / size, at % size);
            let rows = end.saturating_sub(at - row).min(size);
            batches.as_ref().is_none_or(|wanted| wanted(batch))
                && (rows == size || !drop_remainder)
                && share.as_ref().is_none_or(|share| rows_of(share, rows).1.contains(&row))
        })
    }
}

struct BatchElements {
    inner: Box<dyn Elements>,
    size: usize,
    drop_remainder: bool,
    /// The rows of every batch that are made; all where nothing is said.
    share: Option<Arc<LocalShard>>,
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
        let (own, made) = match &self.share {
            Some(share) => rows_of(share, rows),
            None => (0..rows, 0..rows),
        };
        let start = made.start;
        let samples: Option<Vec<Element>> = items.drain(made).map(Item::made).collect();
        let Some(samples) = samples else { return Ok(Some(Item::LeftOut)) };
        let element = stack(&samples, first + start)?;
        Ok(Some(match self.share {
            Some(_) => Item::Part(Part { element, rows, own }),
            None => Item::Made(element),
        }))
    }

    fn skip(&mut self, elements: usize) -> Result<()> {
        let samples = elements.saturating_mul(self.size);
        self.at = self.at.saturating_add(samples);
        self.inner.skip(samples)
    }
}

/// Samples of equal shapes as one element with a dimension more.
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

impl Step for Repeat {
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

    fn open(&self, pass: Pass) -> Open {
        let (step, count, mut round) = (self.inner.clone(), self.count, 0);
        let mut inner: Option<Box<dyn Elements>> = None;
        let (mut any, mut done) = (true, 0);
        Ok(Box::new(Made(move || {
            loop {
                if let Some(elements) = &mut inner {
                    if let Some(element) = elements.next()? {
                        any = true;
                        done += 1;
                        return Ok(Some(element));
                    }
                    inner = None;
                }
                // Data of no elements does not become more by being repeated.
                if !any || count.is_some_and(|count| round >= count) {
                    return Ok(None);
                }
                any = false;
                let pass = pass.clone().inner(round);
                inner = Some(step.open(pass.renumbered(move |at| at.checked_add(done)))?);
                round += 1;
            }
        })))
    }
}

pub(super) struct Take {
    pub inner: Inner,
    pub count: usize,
}

impl Step for Take {
    fn cardinality(&self) -> Cardinality {
        match self.inner.cardinality() {
            Cardinality::Infinite => Cardinality::Known(self.count),
            other => other.map(|n| n.min(self.count)),
        }
    }

    fn open(&self, pass: Pass) -> Open {
        let (mut inner, mut left) = (self.inner.open(pass)?, self.count);
        Ok(Box::new(Made(move || {
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

impl Step for Skip {
    fn cardinality(&self) -> Cardinality {
        self.inner.cardinality().map(|n| n.saturating_sub(self.count))
    }

    fn open(&self, pass: Pass) -> Open {
        let count = self.count;
        let mut inner = self.inner.open(pass.renumbered(move |at| at.checked_sub(count)))?;
        inner.skip(self.count)?;
        Ok(inner)
    }
}

pub(super) struct Zip {
    pub inner: [Inner; 2],
}

impl Step for Zip {
    fn cardinality(&self) -> Cardinality {
        let [a, b] = &self.inner;
        match (a.cardinality(), b.cardinality()) {
            (Cardinality::Infinite, other) | (other, Cardinality::Infinite) => other,
            (Cardinality::Known(a), Cardinality::Known(b)) => Cardinality::Known(a.min(b)),
            _ => Cardinality::Unknown,
        }
    }

    fn open(&self, pass: Pass) -> Open {
        let [a, b] = &self.inner;
        let pass = pass.uncut();
        let (mut a, mut b) = (a.open(pass.clone().inner(0))?, b.open(pass.inner(1))?);
        Ok(Box::new(Made(move || match (a.next()?, b.next()?) {
            (Some(Item::Made(mut a)), Some(Item::Made(b))) => {
                a.extend(b);
                Ok(Some(Item::Made(a)))
            }
            (Some(_), Some(_)) => Ok(Some(Item::LeftOut)),
            _ => Ok(None),
        })))
    }
}

pub(super) struct Enumerate {
    pub inner: Inner,
}

impl Step for Enumerate {
    fn cardinality(&self) -> Cardinality {
        self.inner.cardinality()
    }

    fn open(&self, pass: Pass) -> Open {
        Ok(Box::new(EnumerateElements { inner: self.inner.open(pass.uncut())?, at: 0 }))
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
        let Item::Made(mut element) = item else { return Ok(Some(item)) };
        element.insert(0, Tensor::new([], vec![at]).expect("one element makes a scalar"));
        Ok(Some(Item::Made(element)))
    }

    fn skip(&mut self, elements: usize) -> Result<()> {
        self.at = self.at.saturating_add(elements);
        self.inner.skip(elements)
    }
}
