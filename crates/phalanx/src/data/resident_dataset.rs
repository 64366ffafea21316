//! Datasets whose samples are all in memory. Devices that hold a copy are sent row indices instead of
//! rows.

use super::{Dataset, External, ExternalArray, ExternalElements, Samples};
use crate::error::Result;
use phalanx_exec::{AffineAugment, Column, ColumnData, ImageShape};
use phalanx_graph::{DType, Data, Tensor};
use std::sync::{Arc, Weak};

/// A dataset whose samples are all in memory.
pub trait InMemory: Dataset {
    /// The samples.
    fn table(&self) -> Table;

    /// Like [`Dataset::epoch`], but yields sample indices.
    fn index_batches(
        &self,
        seed: u64,
        epoch: u64,
        start: usize,
    ) -> Result<Box<dyn IndexBatches + '_>>;
}

/// The batches of one epoch as sample indices.
pub trait IndexBatches {
    /// Fills the next batch. Returns false at the end and then leaves `batch` unchanged.
    fn next(&mut self, batch: &mut IndexBatch) -> Result<bool>;
}

/// One global batch as sample indices.
#[derive(Clone, Debug, Default)]
pub struct IndexBatch {
    /// Indices of the samples.
    pub rows: Vec<u32>,
    /// Augmentation of each sample's image; empty without augmentation.
    pub augments: Vec<AffineAugment>,
}

/// All samples of a dataset, in columns.
#[derive(Clone, Debug)]
pub struct Table {
    /// One column per input of the model.
    pub inputs: Vec<Samples>,
    /// Image shape of the first input, if it is augmented.
    pub image: Option<ImageShape>,
    /// One column per output of the model.
    pub targets: Vec<Arc<Tensor>>,
    /// Sample weights; `None` means that all are 1.
    pub weights: Option<Arc<Vec<f32>>>,
    /// The weights of each output, in place of `weights`; empty if all outputs have those.
    pub output_weights: Vec<Arc<Tensor>>,
}

/// Identifies the data of a table without keeping it alive.
#[derive(Clone, Debug)]
pub(crate) struct TableIdentity(Vec<IdentityPart>);

#[derive(Clone, Debug)]
enum IdentityPart {
    Tensor(Weak<Tensor>),
    Bytes(Weak<Vec<u8>>, f32),
    Floats(Weak<Vec<f32>>),
    External(Weak<dyn ExternalArray>, DType),
    Image(ImageShape),
}

impl IdentityPart {
    fn is_dropped(&self) -> bool {
        match self {
            IdentityPart::Tensor(t) => t.strong_count() == 0,
            IdentityPart::Bytes(b, _) => b.strong_count() == 0,
            IdentityPart::Floats(f) => f.strong_count() == 0,
            IdentityPart::External(array, _) => array.strong_count() == 0,
            IdentityPart::Image(_) => false,
        }
    }

    fn same(&self, other: &IdentityPart) -> bool {
        match (self, other) {
            (IdentityPart::Tensor(a), IdentityPart::Tensor(b)) => a.ptr_eq(b),
            (IdentityPart::Bytes(a, x), IdentityPart::Bytes(b, y)) => a.ptr_eq(b) && x == y,
            (IdentityPart::Floats(a), IdentityPart::Floats(b)) => a.ptr_eq(b),
            (IdentityPart::External(a, x), IdentityPart::External(b, y)) => a.ptr_eq(b) && x == y,
            (IdentityPart::Image(a), IdentityPart::Image(b)) => a == b,
            _ => false,
        }
    }
}

impl TableIdentity {
    /// Whether any of the data has been dropped.
    pub fn is_dropped(&self) -> bool {
        self.0.iter().any(IdentityPart::is_dropped)
    }

    pub fn same(&self, other: &TableIdentity) -> bool {
        let each = || self.0.iter().zip(&other.0);
        self.0.len() == other.0.len() && !self.is_dropped() && each().all(|(a, b)| a.same(b))
    }
}

impl Table {
    /// The samples of a dataset. External memory of types that devices do not read is copied.
    pub fn new<'a>(
        inputs: impl IntoIterator<Item = &'a Samples>,
        targets: &[Arc<Tensor>],
    ) -> Table {
        let readable = |external: &External| {
            matches!(
                (external.elements(), external.dtype()),
                (ExternalElements::F32(_) | ExternalElements::U8(_), DType::F32)
                    | (ExternalElements::I32(_), DType::I32)
            )
        };
        let input = |samples: &Samples| match samples {
            Samples::External(external) if !readable(external) => samples.to_tensor().into(),
            samples => samples.clone(),
        };
        let inputs = inputs.into_iter().map(input).collect();
        Table {
            inputs,
            image: None,
            targets: targets.to_vec(),
            weights: None,
            output_weights: vec![],
        }
    }

    /// Number of samples.
    pub fn rows(&self) -> usize {
        self.inputs.first().map_or(0, Samples::rows)
    }

    pub(crate) fn identity(&self) -> TableIdentity {
        let mut parts = vec![];
        for samples in &self.inputs {
            match samples {
                Samples::Tensor(t) => parts.push(IdentityPart::Tensor(Arc::downgrade(t))),
                Samples::Text(t) => parts.push(IdentityPart::Tensor(Arc::downgrade(t.numbers()))),
                Samples::Pixels(p) => {
                    let (bytes, offset) = p.shared();
                    parts.push(IdentityPart::Bytes(Arc::downgrade(bytes), p.divisor()));
                    parts.extend(offset.map(|o| IdentityPart::Floats(Arc::downgrade(o))));
                }
                Samples::External(e) => {
                    parts.push(IdentityPart::External(Arc::downgrade(e.array()), e.dtype()));
                }
            }
        }
        parts.extend(self.targets.iter().map(|t| IdentityPart::Tensor(Arc::downgrade(t))));
        let tensors = self.output_weights.iter();
        parts.extend(tensors.map(|t| IdentityPart::Tensor(Arc::downgrade(t))));
        parts.extend(self.weights.iter().map(|w| IdentityPart::Floats(Arc::downgrade(w))));
        parts.extend(self.image.map(IdentityPart::Image));
        TableIdentity(parts)
    }

    /// The columns in the order of a step's feeds. `ones` serves as weights if the table has none.
    pub(crate) fn columns<'a>(&'a self, ones: &'a [f32]) -> Vec<Column<'a>> {
        let tensor = |t: &'a Tensor| match t.data() {
            Data::F32(v) => ColumnData::F32(v),
            Data::I32(v) => ColumnData::I32(v),
        };
        let input = |(i, samples): (usize, &'a Samples)| {
            let data = match samples {
                Samples::Tensor(t) => tensor(t),
                Samples::Text(t) => tensor(t.numbers()),
                Samples::Pixels(p) => {
                    let (bytes, offset) = p.shared();
                    let offset = offset.map(|o| &o[..]);
                    ColumnData::Bytes { bytes, divisor: p.divisor(), offset }
                }
                Samples::External(e) => match (e.elements(), e.dtype()) {
                    (ExternalElements::F32(values), DType::F32) => ColumnData::F32(values),
                    (ExternalElements::I32(values), DType::I32) => ColumnData::I32(values),
                    (ExternalElements::U8(bytes), DType::F32) => {
                        ColumnData::Bytes { bytes, divisor: 1.0, offset: None }
                    }
                    _ => unreachable!("Table::new converts other types"),
                },
            };
            Column { data, row_len: samples.row_len(), image: self.image.filter(|_| i == 0) }
        };
        let target =
            |t: &'a Arc<Tensor>| Column { data: tensor(t), row_len: t.row_len(), image: None };
        let weights = self.weights.as_ref().map_or(ones, |w| &w[..]);
        let shared = Column { data: ColumnData::F32(weights), row_len: 1, image: None };
        let shared = self.output_weights.is_empty().then_some(shared);
        let inputs = self.inputs.iter().enumerate().map(input);
        let tensors = self.targets.iter().chain(&self.output_weights);
        inputs.chain(tensors.map(target)).chain(shared).collect()
    }
}
