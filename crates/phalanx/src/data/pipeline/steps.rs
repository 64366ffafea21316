//! The steps of a pipeline that need no thread.

use super::{Cardinality, Element, Elements, Pass, Step};
use crate::data::Samples;
use crate::error::{Error, Result};
use phalanx_graph::rng::Stream;
use phalanx_graph::{Data, Tensor};
use std::sync::Arc;

/// The random stream of shuffled pipelines; layers count theirs from 1.
const PIPELINE: u32 = 0xFFFF_0004;

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

impl<F: FnMut() -> Result<Option<Element>> + Send> Elements for Made<F> {
    fn next(&mut self) -> Result<Option<Element>> {
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

    fn open(&self, _: Pass) -> Open {
        Ok(Box::new(SlicesElements { columns: self.columns.clone(), rows: self.rows, at: 0 }))
    }
}

struct SlicesElements {
    columns: Vec<Samples>,
    rows: usize,
    at: usize,
}

impl Elements for SlicesElements {
    fn next(&mut self) -> Result<Option<Element>> {
        if self.at >= self.rows {
            return Ok(None);
        }
        let at = self.at;
        self.at += 1;
        Ok(Some(self.columns.iter().map(|column| row(column, at)).collect()))
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
        let (mut inner, f, mut at) = (self.inner.open(pass)?, self.f.clone(), 0u64);
        Ok(Box::new(Made(move || {
            while let Some(element) = inner.next()? {
                let keep = f(&element)
                    .map_err(|e| Error::config("filter", format!("element {at}: {e}")))?;
                at += 1;
                if keep {
                    return Ok(Some(element));
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
        let mut inner = self.inner.open(pass.inner(0))?;
        let mut random = Stream::new(pass.seed, pass.epoch, PIPELINE, pass.path);
        let (mut held, size, mut ended) = (Vec::new(), self.buffer, false);
        Ok(Box::new(Made(move || {
            while !ended && held.len() < size {
                match inner.next()? {
                    Some(element) => held.push(element),
                    None => ended = true,
                }
            }
            if held.is_empty() {
                return Ok(None);
            }
            let at = random.below(held.len() as u64) as usize;
            Ok(Some(held.swap_remove(at)))
        })))
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
        let inner = self.inner.open(pass)?;
        let (size, drop_remainder) = (self.size, self.drop_remainder);
        Ok(Box::new(BatchElements { inner, size, drop_remainder, at: 0 }))
    }
}

struct BatchElements {
    inner: Box<dyn Elements>,
    size: usize,
    drop_remainder: bool,
    at: usize,
}

impl Elements for BatchElements {
    fn next(&mut self) -> Result<Option<Element>> {
        let mut samples: Vec<Element> = Vec::new();
        while samples.len() < self.size {
            match self.inner.next()? {
                Some(sample) => samples.push(sample),
                None => break,
            }
        }
        let full = samples.len() == self.size;
        if samples.is_empty() || (self.drop_remainder && !full) {
            return Ok(None);
        }
        let first = self.at;
        self.at += samples.len();
        stack(&samples, first).map(Some)
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
        let mut any = true;
        Ok(Box::new(Made(move || {
            loop {
                if let Some(elements) = &mut inner {
                    if let Some(element) = elements.next()? {
                        any = true;
                        return Ok(Some(element));
                    }
                    inner = None;
                }
                // Data of no elements does not become more by being repeated.
                if !any || count.is_some_and(|count| round >= count) {
                    return Ok(None);
                }
                any = false;
                inner = Some(step.open(pass.inner(round))?);
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
        let mut inner = self.inner.open(pass)?;
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
        let (mut a, mut b) = (a.open(pass.inner(0))?, b.open(pass.inner(1))?);
        Ok(Box::new(Made(move || match (a.next()?, b.next()?) {
            (Some(mut a), Some(b)) => {
                a.extend(b);
                Ok(Some(a))
            }
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
        Ok(Box::new(EnumerateElements { inner: self.inner.open(pass)?, at: 0 }))
    }
}

struct EnumerateElements {
    inner: Box<dyn Elements>,
    at: usize,
}

impl Elements for EnumerateElements {
    fn next(&mut self) -> Result<Option<Element>> {
        let Some(mut element) = self.inner.next()? else { return Ok(None) };
        let at = i32::try_from(self.at)
            .map_err(|_| Error::argument("enumerate", "elements", "fewer than 2³¹", self.at))?;
        self.at += 1;
        element.insert(0, Tensor::new([], vec![at]).expect("one element makes a scalar"));
        Ok(Some(element))
    }

    fn skip(&mut self, elements: usize) -> Result<()> {
        self.at = self.at.saturating_add(elements);
        self.inner.skip(elements)
    }
}
