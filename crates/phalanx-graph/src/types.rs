//! Types of values: element type, *space* (how workers share the value) and dimensions.

use crate::error::{GraphError, Result};
use std::fmt;

/// Maximum number of axes of a value, without the batch; kernels have fixed-size arrays of this length.
pub const MAX_RANK: usize = 16;

/// Maximum number of elements of a value (or of a row): more than any machine holds, and small enough
/// that sums of their sizes in bytes do not overflow.
pub const MAX_ELEMENTS: usize = usize::MAX >> 16;

/// The number of elements of a value with these dimensions; `usize::MAX` on overflow.
pub fn count(dims: &[usize]) -> usize {
    let all = dims.iter().try_fold(1usize, |n, d| n.checked_mul(*d));
    all.unwrap_or(if dims.contains(&0) { 0 } else { usize::MAX })
}

/// Element type of a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum DType {
    /// 32-bit float: activations, weights, gradients.
    F32,
    /// 64-bit float: sums of batch statistics, where cancellation would cost precision.
    F64,
    /// 32-bit integer: class labels and token ids.
    I32,
    /// bfloat16, the upper half of a 32-bit float: activations in mixed precision.
    Bf16,
    /// IEEE 754 16-bit float.
    F16,
}

impl DType {
    /// Bytes of one element.
    pub fn bytes(self) -> usize {
        match self {
            DType::F32 | DType::I32 => 4,
            DType::F64 => 8,
            DType::Bf16 | DType::F16 => 2,
        }
    }
}

impl fmt::Display for DType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            DType::F32 => "f32",
            DType::F64 => "f64",
            DType::I32 => "i32",
            DType::Bf16 => "bf16",
            DType::F16 => "f16",
        })
    }
}

/// How the workers of the mesh share a value. The verifier uses it to prove that every sum over the
/// batch passes through a collective before it is used as a reduced value.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Space {
    /// One entry per sample; every worker holds its own rows. `dims` excludes the batch.
    Rows,
    /// Every worker holds a partial sum over its rows, which a collective must reduce.
    Partial,
    /// Equal on all workers of one device, different between devices (per-replica statistics).
    Device,
    /// Equal everywhere: weights, constants, scalars, reduced sums.
    Mirrored,
}

impl fmt::Display for Space {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Space::Rows => "rows",
            Space::Partial => "partial",
            Space::Device => "device",
            Space::Mirrored => "mirrored",
        })
    }
}

/// How the devices of a replica share a value: those along the model axis of a mesh. The verifier uses it to prove that
/// no device computes with a part of a sum, or with a part of a value where all of it is needed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum ModelSpace {
    /// Equal on all devices of the replica.
    #[default]
    Mirrored,
    /// Every device holds an addend of a sum.
    Partial,
    /// Every device holds a candidate for a maximum.
    PartialMax,
    /// Every device holds an equal part along this axis. The dimensions of the type are those of the whole.
    Partitioned(usize),
}

/// The workers that a collective spans.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Scope {
    /// The workers of one device, that is, one replica.
    Device,
    /// Every worker of every device.
    All,
}

impl fmt::Display for Scope {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Scope::Device => "device",
            Scope::All => "all",
        })
    }
}

/// The type of a value.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Type {
    /// Element type.
    pub dtype: DType,
    /// How the workers share it.
    pub space: Space,
    /// Dimensions; for [`Space::Rows`] the dimensions of one row, without the batch.
    pub dims: Vec<usize>,
    /// How the devices of a replica share it.
    pub model: ModelSpace,
}

impl Type {
    /// A type from its parts.
    pub fn new(dtype: DType, space: Space, dims: impl Into<Vec<usize>>) -> Type {
        Type { dtype, space, dims: dims.into(), model: ModelSpace::Mirrored }
    }

    /// Float rows, the input of most layers.
    pub fn rows(dims: impl Into<Vec<usize>>) -> Type {
        Type::new(DType::F32, Space::Rows, dims)
    }

    /// A mirrored float value.
    pub fn mirrored(dims: impl Into<Vec<usize>>) -> Type {
        Type::new(DType::F32, Space::Mirrored, dims)
    }

    /// The same type, shared by the devices of a replica like this.
    pub fn with_model(self, model: ModelSpace) -> Type {
        Type { model, ..self }
    }

    /// Fails if the type has more than [`MAX_RANK`] axes or [`MAX_ELEMENTS`] elements.
    pub fn check_limits(&self) -> Result<()> {
        if self.dims.len() > MAX_RANK {
            let received = format!("{}, {}", self.dims.len(), self.shape_text());
            return Err(GraphError::mismatch("axes", format!("at most {MAX_RANK}"), received));
        }
        let len = self.dims.iter().try_fold(1usize, |n, d| n.checked_mul(*d));
        if len.is_none_or(|n| n > MAX_ELEMENTS) {
            let expected = format!("at most {MAX_ELEMENTS} elements");
            return Err(GraphError::mismatch("size", expected, self.shape_text()));
        }
        Ok(())
    }

    /// Number of elements (per row, for rows); `usize::MAX` on overflow.
    pub fn len(&self) -> usize {
        count(&self.dims)
    }

    /// Whether there are no elements.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Whether the value has one entry per sample.
    pub fn is_rows(&self) -> bool {
        self.space == Space::Rows
    }

    /// The last dimension, 1 for scalars.
    pub fn last(&self) -> usize {
        self.dims.last().copied().unwrap_or(1)
    }

    /// The shape as Keras prints it, `(None, 28, 28, 1)` for rows.
    pub fn shape_text(&self) -> String {
        let mut parts: Vec<String> = self.dims.iter().map(|d| d.to_string()).collect();
        if self.is_rows() {
            parts.insert(0, "None".into());
        }
        match parts.len() {
            1 => format!("({},)", parts[0]),
            _ => format!("({})", parts.join(", ")),
        }
    }
}

impl fmt::Display for Type {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let dim = |(axis, dim): (usize, &usize)| match self.model {
            ModelSpace::Partitioned(own) if own == axis => format!("{dim}/model"),
            _ => dim.to_string(),
        };
        let dims: Vec<String> = self.dims.iter().enumerate().map(dim).collect();
        let model = match self.model {
            ModelSpace::Mirrored | ModelSpace::Partitioned(_) => "",
            ModelSpace::Partial => " partial(model)",
            ModelSpace::PartialMax => " partial_max(model)",
        };
        write!(f, "{}{model} {}[{}]", self.space, self.dtype, dims.join(","))
    }
}
