//! The forms in which layers return categories: indices, one-hot and multi-hot rows, counts.

use crate::error::{Error, Result};
use crate::layer::{Elements, RowType};
use crate::memory;
use crate::model::Shape;
use phalanx_graph::Tensor;
use serde::{Deserialize, Deserializer, Serialize, Serializer, de};

/// The form of a layer's output.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum OutputMode {
    /// The index of every element.
    #[default]
    Int,
    /// For every element a row with a one at its index. A last axis of one element is replaced.
    OneHot,
    /// For every sample a row with ones at the indices of its elements.
    #[serde(alias = "binary")]
    MultiHot,
    /// For every sample the number of times that each index occurs.
    Count,
    /// The counts, weighted by how rare a term is.
    #[serde(alias = "tf-idf")]
    TfIdf,
}

impl OutputMode {
    /// Keras' name.
    pub(super) fn name(self) -> &'static str {
        match self {
            OutputMode::Int => "int",
            OutputMode::OneHot => "one_hot",
            OutputMode::MultiHot => "multi_hot",
            OutputMode::Count => "count",
            OutputMode::TfIdf => "tf_idf",
        }
    }

    /// Fails unless the mode is one of `known`.
    pub(super) fn check(self, owner: &str, known: &[OutputMode]) -> Result<()> {
        if known.contains(&self) {
            return Ok(());
        }
        let names: Vec<&str> = known.iter().map(|mode| mode.name()).collect();
        let expected = format!("one of {}", names.join(", "));
        Err(Error::argument(owner, "output_mode", expected, self.name()))
    }

    /// The type of the output for samples of these sizes and `depth` categories.
    pub(super) fn output_type(
        self,
        owner: &str,
        sizes: &[Option<usize>],
        depth: impl FnOnce() -> Result<usize>,
    ) -> Result<RowType> {
        let lead = match (self, sizes) {
            (OutputMode::Int, _) => return Ok(RowType::new(Elements::Integers, sizes)),
            (OutputMode::OneHot, [lead @ .., Some(1)]) => lead,
            (OutputMode::OneHot, all) => all,
            (_, [_]) => &[],
            (_, other) => {
                let expected = format!("samples of (n) for output_mode {}", self.name());
                return Err(Error::argument(owner, "input", expected, Shape::from(other)));
            }
        };
        let ty = RowType::new(Elements::Floats, &[lead, &[Some(depth()?)]].concat()[..]);
        ty.ty().check_limits().map_err(|_| {
            Error::argument(owner, "output", "a size that can be counted", &ty.shape)
        })?;
        Ok(ty)
    }

    /// Encodes the indices of some rows, whose samples have `ty` in this mode. `rows` yields the indices of each row;
    /// those outside of the categories are left out.
    pub(super) fn encode<I: IntoIterator<Item = i64>>(
        self,
        owner: &str,
        ty: &RowType,
        rows: impl ExactSizeIterator<Item = Result<I>>,
    ) -> Result<Tensor> {
        let row = ty.dims();
        let width = row.iter().product::<usize>();
        let dims = [&[rows.len()], &row[..]].concat();
        let count = rows.len().checked_mul(width);
        let too_large = || {
            let expected = "an output that fits into memory";
            Error::argument(owner, "output", expected, format!("{dims:?}"))
        };
        if self == OutputMode::Int {
            let mut all: Vec<i32> = count.and_then(memory::reserve).ok_or_else(too_large)?;
            for row in rows {
                all.extend(row?.into_iter().map(|index| index as i32));
            }
            return Ok(Tensor::new(dims, all)?);
        }
        let mut all: Vec<f32> = count.and_then(memory::reserve).ok_or_else(too_large)?;
        let depth = row.last().copied().unwrap_or(1);
        for row in rows {
            let start = all.len();
            all.resize(start + width, 0.0);
            for (element, index) in row?.into_iter().enumerate() {
                let Some(index) = usize::try_from(index).ok().filter(|i| *i < depth) else {
                    continue;
                };
                match self {
                    OutputMode::OneHot => all[start + element * depth + index] = 1.0,
                    OutputMode::MultiHot => all[start + index] = 1.0,
                    _ => all[start + index] += 1.0,
                }
            }
        }
        Ok(Tensor::new(dims, all)?)
    }
}

/// A key of Keras that must be false: sparse and ragged values are not supported.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct AlwaysFalse;

impl Serialize for AlwaysFalse {
    fn serialize<S: Serializer>(&self, s: S) -> std::result::Result<S::Ok, S::Error> {
        s.serialize_bool(false)
    }
}

impl<'de> Deserialize<'de> for AlwaysFalse {
    fn deserialize<D: Deserializer<'de>>(d: D) -> std::result::Result<AlwaysFalse, D::Error> {
        match Option::<bool>::deserialize(d)? {
            None | Some(false) => Ok(AlwaysFalse),
            Some(true) => Err(de::Error::custom("not supported: expected false, received true")),
        }
    }
}
