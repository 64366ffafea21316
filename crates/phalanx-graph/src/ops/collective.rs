//! Collectives: the only ops that combine data of different workers.

use super::{Backward, Cotangents, Op, operand};
use crate::error::Result;
use crate::graph::Graph;
use crate::types::{DType, Scope, Space, Type};

/// Shape rule of `AllReduce`.
pub fn infer_all_reduce(scope: Scope, x: &Type) -> Result<Type> {
    if x.space != Space::Partial {
        return Err(operand("all_reduce", "a partial sum", x));
    }
    let space = match scope {
        Scope::Device => Space::Device,
        Scope::All => Space::Mirrored,
    };
    Ok(Type { space, ..x.clone() })
}

/// Shape rule of `ReplicaMean`.
pub fn infer_replica_mean(x: &Type) -> Result<Type> {
    if x.space != Space::Device || x.dtype != DType::F32 {
        return Err(operand("replica_mean", "a per-device f32 value", x));
    }
    Ok(Type { space: Space::Mirrored, ..x.clone() })
}

/// Every worker uses the sum, so their cotangents are added too. The result is the cotangent of each partial sum.
pub fn all_reduce_derivative(op: &Op, g: &mut Graph, b: &Backward<'_>) -> Cotangents {
    Ok(vec![Some(g.push(op.clone(), &[b.dy])?)])
}
