//! Mixed precision: activations of layers are stored in 16 bits; losses, metrics, statistics, weights and
//! their gradients in 32 bits. Kernels load and store 16-bit numbers and compute in 32 bits.
//!
//! This pass runs last: it leaves the types of memory, which the shape rules of the ops do not accept.

use super::Rewriter;
use crate::graph::NodeId;
use crate::ops::{Op, recurrent};
use crate::program::Policy;
use crate::step::Step;
use crate::types::{DType, Type};
use std::collections::HashMap;

/// Rewrites the step with 16-bit activations, if the policy has a 16-bit type.
pub fn store_narrow(step: Step, policy: Policy) -> Step {
    let Some(narrow) = policy.narrow() else { return step };
    let stored = stored_types(&step, narrow);
    let live = step.live();
    let mut r = Rewriter::new(&step);
    let mut casts: HashMap<(NodeId, DType), NodeId> = HashMap::new();
    for id in step.graph.ids().filter(|id| live[id.index()]) {
        let node = step.graph.node(id);
        let mut inputs = vec![];
        for (i, x) in node.inputs.iter().enumerate() {
            let have = stored[x.index()].unwrap_or(step.graph.ty(*x).dtype);
            let want = required_type(&step, id, i, &stored, narrow).unwrap_or(have);
            let new = r.get(*x);
            inputs.push(if have == want {
                new
            } else {
                *casts.entry((*x, want)).or_insert_with(|| {
                    let ty = Type { dtype: want, ..step.graph.ty(*x).clone() };
                    r.graph.set_layer(node.layer);
                    r.graph.push_typed(Op::Cast { dtype: want }, vec![new], ty)
                })
            });
        }
        let ty = Type { dtype: stored[id.index()].unwrap_or(node.ty.dtype), ..node.ty.clone() };
        r.graph.set_layer(node.layer);
        r.map[id.index()] = Some(r.graph.push_typed(node.op.clone(), inputs, ty));
    }
    r.finish(step)
}

/// Whether a type is rows of 32-bit floats, which may be stored in 16 bits.
fn is_activation(ty: &Type) -> bool {
    ty.is_rows() && ty.dtype == DType::F32
}

/// Whether the op is a convolution: vendor libraries require operands and result of one type.
fn is_convolution(op: &Op) -> bool {
    matches!(op, Op::Conv(..) | Op::ConvGradInput(_))
}

/// Whether the result of the op may be stored in 16 bits.
fn may_be_narrow(op: &Op) -> bool {
    is_convolution(op)
        || matches!(
            op,
            Op::Fused(_)
                | Op::Dot(_)
                | Op::DotGradInput
                | Op::MatMul(_)
                | Op::Pool(..)
                | Op::PoolGrad(..)
                | Op::BatchNorm(_)
                | Op::BatchNormGradInput(_)
                | Op::Softmax
                | Op::SoftmaxGrad
                | Op::LayerNorm(_)
                | Op::LayerNormGrad(_)
                | Op::Dropout { .. }
                | Op::Concat { .. }
                | Op::Slice { .. }
                | Op::Stride { .. }
                | Op::Dilate { .. }
                | Op::Pad { .. }
                | Op::Transpose { .. }
                | Op::Reshape { .. }
        )
}

/// The 16-bit type for each node whose result is stored in 16 bits: activations in layers that nothing
/// outside of layers uses, and convolutions in layers.
fn stored_types(step: &Step, narrow: DType) -> Vec<Option<DType>> {
    let (g, live) = (&step.graph, step.live());
    let mut used_outside = vec![false; g.nodes().len()];
    step.roots().for_each(|r| used_outside[r.index()] = true);
    for id in g.ids().filter(|id| live[id.index()] && g.node(*id).layer == 0) {
        g.node(id).inputs.iter().for_each(|x| used_outside[x.index()] = true);
    }
    // Part of a result that is used outside, or another shape of it.
    for id in g.ids().rev().filter(|id| live[id.index()]) {
        let moves = matches!(g.node(id).op, Op::Slice { .. } | Op::Reshape { .. });
        if moves && used_outside[id.index()] {
            used_outside[g.node(id).inputs[0].index()] = true;
        }
    }
    let mut stored: Vec<Option<DType>> = g
        .ids()
        .map(|id| {
            let node = g.node(id);
            let mixed =
                g.may_be_mixed(node) && (!used_outside[id.index()] || is_convolution(&node.op));
            let wide = recurrent::is_state(g, &node.op, &node.inputs);
            (mixed && !wide && is_activation(&node.ty) && may_be_narrow(&node.op)).then_some(narrow)
        })
        .collect();
    // A result that would be read through conversions only is converted by the kernel that writes it. Readers come first:
    // what they are stored in decides in what they read.
    let mut converted: Vec<Option<bool>> = vec![None; stored.len()];
    step.roots().for_each(|root| converted[root.index()] = Some(false));
    for id in g.ids().rev().filter(|id| live[id.index()]) {
        let node = g.node(id);
        let is_narrow = |x: &NodeId| stored[x.index()].is_some() || converts(&g.node(*x).op);
        let may_convert = match node.op {
            // What writes its operands converts them.
            Op::Concat { .. } => node.inputs.iter().all(is_narrow),
            _ => converts(&node.op),
        };
        if converted[id.index()] == Some(true) && is_activation(&node.ty) && may_convert {
            stored[id.index()] = Some(narrow);
        }
        for (i, x) in node.inputs.iter().enumerate() {
            let narrows = required_type(step, id, i, &stored, narrow) == Some(narrow);
            converted[x.index()] = Some(narrows && converted[x.index()] != Some(false));
        }
    }
    stored
}

/// Whether the op's kernel writes 16-bit results of 32-bit operands.
fn converts(op: &Op) -> bool {
    matches!(op, Op::Fused(_) | Op::SparseXentGrad)
}

/// The type in which an op requires an operand to be stored; `None` if any type works.
fn required_type(
    step: &Step,
    id: NodeId,
    operand: usize,
    stored: &[Option<DType>],
    narrow: DType,
) -> Option<DType> {
    let node = step.graph.node(id);
    if let Op::MatMul(c) = &node.op {
        // Libraries require both operands in one type. Products without samples are small.
        let of_samples = c.sum_rows || node.ty.is_rows();
        let mixed = of_samples && step.graph.may_be_mixed(node);
        return Some(if mixed { narrow } else { DType::F32 });
    }
    if !is_activation(step.graph.ty(node.inputs[operand])) {
        return None;
    }
    let own = stored[id.index()].unwrap_or(DType::F32);
    let of = |i: usize| stored[node.inputs[i].index()].unwrap_or(DType::F32);
    match &node.op {
        // These load each operand by its own type.
        Op::Fused(_)
        | Op::SoftmaxGrad
        | Op::SumRows
        | Op::Reduce { .. }
        | Op::Moments
        | Op::Cast { .. } => None,
        Op::Dot(_) | Op::DotGradInput | Op::DotGradKernel | Op::ConvGradKernel(_)
            if step.graph.may_be_mixed(node) =>
        {
            Some(narrow)
        }
        Op::BatchNormGradSums(_) => Some(of(1)),
        op if may_be_narrow(op) => Some(own),
        _ => Some(DType::F32),
    }
}
