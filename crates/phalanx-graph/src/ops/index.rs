//! Ops with integer operands or results: embeddings, one-hot, arg-max and counting.

use super::{Backward, Cotangents, Op, need_index, need_rows, need_values, operand};
use crate::error::Result;
use crate::graph::Graph;
use crate::types::{DType, Space, Type};

/// Shape rule of `Gather`.
pub fn infer_gather(table: &Type, index: &Type) -> Result<Type> {
    need_index("gather", index)?;
    match table.dims[..] {
        [_, d] if table.space == Space::Mirrored && table.dtype == DType::F32 => {
            let mut dims = index.dims.clone();
            dims.push(d);
            Ok(Type::rows(dims))
        }
        _ => Err(operand("gather", "a table [vocabulary, width]", table)),
    }
}

/// Shape rule of `GatherGrad`; operands `index, dy`.
pub fn infer_gather_grad(vocab: usize, index: &Type, dy: &Type) -> Result<Type> {
    need_index("gather_grad", index)?;
    need_rows("gather_grad", dy)?;
    match &dy.dims[..] {
        [lead @ .., d] if *lead == index.dims[..] => {
            Ok(Type::new(DType::F32, Space::Partial, [vocab, *d]))
        }
        _ => Err(operand("gather_grad", format!("a vector for each of {index}"), dy)),
    }
}

/// Shape rule of `OneHot`.
pub fn infer_one_hot(depth: usize, index: &Type) -> Result<Type> {
    if index.space == Space::Partial || index.dtype != DType::I32 {
        return Err(operand("one_hot", "integers", index));
    }
    let mut dims = index.dims.clone();
    dims.push(depth);
    Ok(Type::new(DType::F32, index.space, dims))
}

/// Shape rule of `ArgMax`.
pub fn infer_arg_max(x: &Type) -> Result<Type> {
    need_values("arg_max", x)?;
    match &x.dims[..] {
        [lead @ .., n] if *n > 0 => Ok(Type::new(DType::I32, x.space, lead)),
        _ => Err(operand("arg_max", "a last axis", x)),
    }
}

/// Shape rule of `ArgSort`.
pub fn infer_arg_sort(x: &Type) -> Result<Type> {
    need_values("arg_sort", x)?;
    match x.dims.last() {
        Some(n) if i32::try_from(*n).is_ok() => Ok(Type { dtype: DType::I32, ..x.clone() }),
        _ => Err(operand("arg_sort", "a last axis of less than 2³¹ elements", x)),
    }
}

/// Shape rule of `InTopK`; operands `scores, labels`.
pub fn infer_in_top_k(k: usize, scores: &Type, labels: &Type) -> Result<Type> {
    need_index("in_top_k labels", labels)?;
    need_rows("in_top_k", scores)?;
    match &scores.dims[..] {
        [lead @ .., n] if *lead == labels.dims[..] && *n > 0 && k > 0 => {
            Ok(Type::rows(labels.dims.clone()))
        }
        _ => Err(operand("in_top_k", format!("scores for each of {labels}, k above 0"), scores)),
    }
}

/// Shape rule of `ThresholdCounts`; operands `score, label, weight`.
pub fn infer_threshold_counts(n: usize, x: &[&Type]) -> Result<Type> {
    for t in x {
        need_rows("threshold_counts", t)?;
        if t.dims != x[0].dims {
            return Err(operand("threshold_counts", format!("the shape of {}", x[0]), t));
        }
    }
    if n < 2 {
        return Err(operand("threshold_counts", "two thresholds or more", x[0]));
    }
    Ok(Type::new(DType::F32, Space::Partial, [2, n]))
}

/// Each lookup of a table row adds its `dy` to that row.
pub fn gather_derivative(g: &mut Graph, b: &Backward<'_>) -> Cotangents {
    let vocab = g.ty(b.inputs[0]).dims[0];
    let d = g.push(Op::GatherGrad { vocab }, &[b.inputs[1], b.dy])?;
    Ok(vec![Some(d), None])
}

/// A row of the table adds up the vectors of its uses, so each of them has that row's derivative.
pub fn gather_grad_derivative(g: &mut Graph, b: &Backward<'_>) -> Cotangents {
    let d = g.push(Op::Gather, &[b.dy, b.inputs[0]])?;
    Ok(vec![None, Some(d)])
}
