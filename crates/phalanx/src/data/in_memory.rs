//! Samples that all lie in memory: devices that can keep them are handed rows by number.

use super::{Dataset, Samples};
use crate::error::Result;
use phalanx_graph::Data;
use phalanx_graph::Tensor;
use phalanx_graph::resident::{AffineAugment, Column, ColumnData, ImageShape};
use std::sync::{Arc, Weak};

/// A dataset whose samples all lie in memory.
pub trait InMemory: Dataset {
    /// The samples.
    fn table(&self) -> Table;

    /// As [`Dataset::epoch`], in numbers of samples.
    fn picks(&self, seed: u64, epoch: u64, start: usize) -> Result<Box<dyn Picks + '_>>;
}

/// The batches of one epoch, as numbers of samples.
pub trait Picks {
    /// Fills the next batch; false at the end, when `picked` is left as it was.
    fn next(&mut self, picked: &mut Picked) -> Result<bool>;
}

/// One global batch.
#[derive(Clone, Debug, Default)]
pub struct Picked {
    /// The samples.
    pub rows: Vec<u32>,
    /// How the images of each are moved; none where they are not.
    pub motions: Vec<AffineAugment>,
}

/// All samples, in columns.
#[derive(Clone, Debug)]
pub struct Table {
    /// One for each input of the model.
    pub inputs: Vec<Samples>,
    /// What the images of the first are, where they are moved.
    pub frame: Option<ImageShape>,
    /// One for each output of the model.
    pub targets: Vec<Arc<Tensor>>,
    /// The samples' weights; all weigh one where there are none.
    pub weights: Option<Arc<Vec<f32>>>,
}

/// What tells the samples of one table from those of another, and whether they are still there.
#[derive(Clone, Debug)]
pub(crate) struct Identity(Vec<Part>);

#[derive(Clone, Debug)]
enum Part {
    Tensor(Weak<Tensor>),
    Bytes(Weak<Vec<u8>>, f32),
    Floats(Weak<Vec<f32>>),
    Frame(ImageShape),
}

impl Part {
    fn gone(&self) -> bool {
        match self {
            Part::Tensor(t) => t.strong_count() == 0,
            Part::Bytes(b, _) => b.strong_count() == 0,
            Part::Floats(f) => f.strong_count() == 0,
            Part::Frame(_) => false,
        }
    }

    fn same(&self, other: &Part) -> bool {
        match (self, other) {
            (Part::Tensor(a), Part::Tensor(b)) => a.ptr_eq(b),
            (Part::Bytes(a, x), Part::Bytes(b, y)) => a.ptr_eq(b) && x == y,
            (Part::Floats(a), Part::Floats(b)) => a.ptr_eq(b),
            (Part::Frame(a), Part::Frame(b)) => a == b,
            _ => false,
        }
    }
}

impl Identity {
    /// Whether nobody has some of the samples any more.
    pub fn gone(&self) -> bool {
        self.0.iter().any(Part::gone)
    }

    pub fn same(&self, other: &Identity) -> bool {
        let each = || self.0.iter().zip(&other.0);
        self.0.len() == other.0.len() && !self.gone() && each().all(|(a, b)| a.same(b))
    }
}

impl Table {
    /// Number of samples.
    pub fn rows(&self) -> usize {
        self.inputs.first().map_or(0, Samples::rows)
    }

    pub(crate) fn identity(&self) -> Identity {
        let mut parts = vec![];
        for samples in &self.inputs {
            match samples {
                Samples::Tensor(t) => parts.push(Part::Tensor(Arc::downgrade(t))),
                Samples::Pixels(p) => {
                    let (bytes, offset) = p.shared();
                    parts.push(Part::Bytes(Arc::downgrade(bytes), p.divisor()));
                    parts.extend(offset.map(|o| Part::Floats(Arc::downgrade(o))));
                }
            }
        }
        parts.extend(self.targets.iter().map(|t| Part::Tensor(Arc::downgrade(t))));
        parts.extend(self.weights.iter().map(|w| Part::Floats(Arc::downgrade(w))));
        parts.extend(self.frame.map(Part::Frame));
        Identity(parts)
    }

    /// The columns in the order of a step's feeds; `ones` are the weights where there are none.
    pub(crate) fn columns<'a>(&'a self, ones: &'a [f32]) -> Vec<Column<'a>> {
        let tensor = |t: &'a Tensor| match t.data() {
            Data::F32(v) => ColumnData::F32(v),
            Data::I32(v) => ColumnData::I32(v),
        };
        let input = |(i, samples): (usize, &'a Samples)| {
            let cells = match samples {
                Samples::Tensor(t) => tensor(t),
                Samples::Pixels(p) => {
                    let (bytes, offset) = p.shared();
                    let offset = offset.map(|o| &o[..]);
                    ColumnData::Bytes { bytes, divisor: p.divisor(), offset }
                }
            };
            Column { data: cells, row_len: samples.row_len(), image: self.frame.filter(|_| i == 0) }
        };
        let target =
            |t: &'a Arc<Tensor>| Column { data: tensor(t), row_len: t.row_len(), image: None };
        let weights = self.weights.as_ref().map_or(ones, |w| &w[..]);
        let weights = Column { data: ColumnData::F32(weights), row_len: 1, image: None };
        let inputs = self.inputs.iter().enumerate().map(input);
        inputs.chain(self.targets.iter().map(target)).chain([weights]).collect()
    }
}
