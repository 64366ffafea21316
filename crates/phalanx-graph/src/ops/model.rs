//! Conversions between the ways in which the devices of a replica share a value.

use super::{ReduceKind, operand};
use crate::error::Result;
use crate::types::{DType, ModelSpace, Type};

/// A conversion of how the devices of a replica share a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ModelOp {
    /// Sums what the devices hold, or takes their maximum, in their order.
    AllReduce(ReduceKind),
    /// Joins the parts along an axis.
    AllGather {
        /// The axis.
        axis: usize,
    },
    /// Selects the part of each device along an axis.
    Slice {
        /// The axis.
        axis: usize,
    },
}

/// The same on parts of known sizes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum PartsOp {
    /// Sums what the devices hold, or takes their maximum, in their order.
    AllReduce(ReduceKind),
    /// Joins the parts along an axis.
    AllGather {
        /// The axis.
        axis: usize,
        /// Number of devices of a replica.
        parts: usize,
    },
    /// Selects the part of this device along an axis.
    Slice {
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
            (ModelOp::AllReduce(ReduceKind::Sum), ModelSpace::Partial)
            | (ModelOp::AllReduce(ReduceKind::Max), ModelSpace::PartialMax) => {
                Ok(ModelSpace::Mirrored)
            }
            (ModelOp::AllReduce(ReduceKind::Sum), _) => fail("a partial sum over the model axis"),
            (ModelOp::AllReduce(ReduceKind::Max), _) => {
                fail("a partial maximum over the model axis")
            }
            (ModelOp::AllGather { axis }, ModelSpace::Partitioned(own)) if own == axis => {
                Ok(ModelSpace::Mirrored)
            }
            (ModelOp::AllGather { axis }, _) => fail(&format!("parts along axis {axis}")),
            (ModelOp::Slice { axis }, ModelSpace::Mirrored) if axis < x.dims.len() => {
                Ok(ModelSpace::Partitioned(axis))
            }
            (ModelOp::Slice { axis }, _) => fail(&format!("a whole value with axis {axis}")),
        }
    }
}

/// Shape rule of operations on parts.
pub fn infer_parts(op: PartsOp, x: &Type) -> Result<Type> {
    let mut ty = x.clone();
    match op {
        PartsOp::AllReduce(_) if x.dtype == DType::I32 => Err(operand("parts", "floats", x)),
        PartsOp::AllReduce(_) => Ok(ty),
        PartsOp::AllGather { axis, parts } => match ty.dims.get_mut(axis) {
            Some(d) => {
                *d = d.saturating_mul(parts);
                Ok(ty)
            }
            None => Err(operand("parts", format!("axis {axis}"), x)),
        },
        PartsOp::Slice { axis, parts } => match ty.dims.get_mut(axis) {
            Some(d) if parts > 0 && d.is_multiple_of(parts) => {
                *d /= parts;
                Ok(ty)
            }
            _ => Err(operand("parts", format!("a multiple of {parts} on axis {axis}"), x)),
        },
    }
}
