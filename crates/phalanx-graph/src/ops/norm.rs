//! Batch normalisation in training: moments, statistics, normalisation and derivative.
//!
//! `moments` gives partial sums, which an `all_reduce` reduces over a device or over all workers. The scope
//! of that collective selects per-replica or synchronised statistics.

use super::{Backward, BatchNormAttrs, Cotangents, Op, need_reduced, need_rows, operand};
use crate::error::Result;
use crate::graph::Graph;
use crate::types::{DType, Scope, Space, Type};

/// Shape rule of `Moments`.
pub fn infer_moments(x: &Type) -> Result<Type> {
    need_rows("moments", x)?;
    match x.dims.last() {
        Some(c) => Ok(Type::new(DType::F64, Space::Partial, [2, *c])),
        None => Err(operand("moments", "a channel axis", x)),
    }
}

/// Shape rule of `BatchStats`.
pub fn infer_stats(scope: Scope, sums: &Type) -> Result<Type> {
    let space = match scope {
        Scope::Device => Space::Device,
        Scope::All => Space::Mirrored,
    };
    if sums.dtype == DType::F64 && sums.space == space && sums.dims.len() == 2 && sums.dims[0] == 2
    {
        Ok(Type { dtype: DType::F32, ..sums.clone() })
    } else {
        Err(operand("batch_stats", format!("{space} f64 moments [2, channels]"), sums))
    }
}

fn need_batch_norm(x: &Type, stats: &Type, gamma: &Type, beta: &Type) -> Result<()> {
    need_rows("batch_norm", x)?;
    let Some(c) = x.dims.last() else {
        return Err(operand("batch_norm", "a channel axis", x));
    };
    need_reduced("batch_norm statistics", &[2, *c], stats)?;
    need_reduced("batch_norm gamma", &[*c], gamma)?;
    need_reduced("batch_norm beta", &[*c], beta)
}

/// Shape rule of `BatchNorm`.
pub fn infer_batch_norm(x: &[&Type]) -> Result<Type> {
    need_batch_norm(x[0], x[1], x[2], x[3])?;
    Ok(x[0].clone())
}

/// Shape rule of `BatchNormGradSums`; operands `dy, x, stats, gamma, beta`.
pub fn infer_grad_sums(x: &[&Type]) -> Result<Type> {
    need_batch_norm(x[1], x[2], x[3], x[4])?;
    if x[0] != x[1] {
        return Err(operand("batch_norm_grad_sums", format!("like {}", x[1]), x[0]));
    }
    Ok(Type::new(DType::F32, Space::Partial, [2, x[0].last()]))
}

/// Shape rule of `BatchNormGradInput`; operands `dy, x, stats, gamma, beta, sums`.
pub fn infer_grad_input(x: &[&Type]) -> Result<Type> {
    infer_grad_sums(&x[..5])?;
    need_reduced("batch_norm sums", &[2, x[0].last()], x[5])?;
    Ok(x[0].clone())
}

/// With x̂ = (x - mean) / σ over the N elements of a channel:
/// `dbeta = Σ dy`, `dgamma = Σ dy·x̂`, `dx = gamma/σ · (dy - dbeta/N - x̂ · dgamma/N)`.
/// The sums in `dx` run over the scope of the statistics, the gradients of the weights over all workers.
pub fn derivative(attrs: &BatchNormAttrs, g: &mut Graph, b: &Backward<'_>) -> Cotangents {
    let [x, stats, gamma, beta] = b.inputs[..] else { unreachable!("checked by infer") };
    let sums = g.push(Op::BatchNormGradSums(*attrs), &[b.dy, x, stats, gamma, beta])?;
    let mut out = vec![None; 4];
    if b.wanted[0] {
        let reduced = g.push(Op::AllReduce { scope: attrs.scope }, &[sums])?;
        let op = Op::BatchNormGradInput(*attrs);
        out[0] = Some(g.push(op, &[b.dy, x, stats, gamma, beta, reduced])?);
    }
    let channels = g.ty(x).last();
    for (i, row) in [(2, 1), (3, 0)] {
        if b.wanted[i] {
            let part = g.push(Op::Slice { axis: 0, start: row, len: 1 }, &[sums])?;
            out[i] = Some(g.push(Op::Reshape { dims: vec![channels] }, &[part])?);
        }
    }
    Ok(out)
}
