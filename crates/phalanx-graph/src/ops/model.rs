//! Conversions between the ways in which the devices of a replica share a value.

use super::{ReduceKind, operand};
use crate::error::Result;
use crate::types::{DType, ModelSpace, Type};

/// A conversion of how the devices of a replica share a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ModelOp {
    /// Sums what the devices hold, or takes their maximum, in their order.
    Reduce(ReduceKind),
    /// Joins the parts along an axis.
    Gather {
        /// The axis.
        axis: usize,
    },
    /// Selects the part of each device along an axis.
    Part {
        /// The axis.
        axis: usize,
    },
}

/// The same on parts of known sizes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum PartsOp {
    /// Sums what the devices hold, or takes their maximum, in their order.
    Reduce(ReduceKind),
    /// Joins the parts along an axis.
    Join {
        /// The axis.
        axis: usize,
        /// Number of devices of a replica.
        parts: usize,
    },
    /// Selects the part of this device along an axis.
    Take {
        /// The axis.
        axis: usize,
        /// Number of devices of a replica.
        parts: usize,
    },
}

impl ModelOp {
    /// How the result is shared.
    pub fn result(self, x: &Type) -> Result<ModelSpace> {
        let fail = |expected: &str| Err(operand("model", expected, x));
        match (self, x.model) {
            (ModelOp::Reduce(ReduceKind::Sum), ModelSpace::Partial)
            | (ModelOp::Reduce(ReduceKind::Max), ModelSpace::PartialMax) => {
                Ok(ModelSpace::Mirrored)
            }
            (ModelOp::Reduce(ReduceKind::Sum), _) => fail("a partial sum over the model axis"),
            (ModelOp::Reduce(ReduceKind::Max), _) => fail("a partial maximum over the model axis"),
            (ModelOp::Gather { axis }, ModelSpace::Shard(cut)) if cut == axis => {
                Ok(ModelSpace::Mirrored)
            }
            (ModelOp::Gather { axis }, _) => fail(&format!("parts along axis {axis}")),
            (ModelOp::Part { axis }, ModelSpace::Mirrored) if axis < x.dims.len() => {
                Ok(ModelSpace::Shard(axis))
            }
            (ModelOp::Part { axis }, _) => fail(&format!("a whole value with axis {axis}")),
        }
    }
}

/// Shape rule of operations on parts.
pub fn infer_parts(op: PartsOp, x: &Type) -> Result<Type> {
    let mut ty = x.clone();
    match op {
        PartsOp::Reduce(_) if x.dtype == DType::I32 => Err(operand("parts", "floats", x)),
        PartsOp::Reduce(_) => Ok(ty),
        PartsOp::Join { axis, parts } => match ty.dims.get_mut(axis) {
            Some(d) => {
                *d = d.saturating_mul(parts);
                Ok(ty)
            }
            None => Err(operand("parts", format!("axis {axis}"), x)),
        },
        PartsOp::Take { axis, parts } => match ty.dims.get_mut(axis) {
            Some(d) if parts > 0 && d.is_multiple_of(parts) => {
                *d /= parts;
                Ok(ty)
            }
            _ => Err(operand("parts", format!("a multiple of {parts} on axis {axis}"), x)),
        },
    }
}
