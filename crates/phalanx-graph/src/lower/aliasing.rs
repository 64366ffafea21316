//! Buffer aliasing: which nodes are views into the buffer of another node.

use super::linear::UseLists;
use crate::graph::{Graph, NodeId};
use crate::ops::{Access, Op};
use crate::step::Step;
use crate::types::Type;

/// The location of a node's elements: in the buffer of `root`, starting `offset` elements in, with
/// `ld` elements from one pixel to the next.
#[derive(Clone, Copy, Debug)]
pub(crate) struct View {
    pub root: NodeId,
    pub offset: usize,
    pub ld: usize,
}

/// Whether the op's kernel accepts this operand with any stride between pixels.
pub(crate) fn reads_strided(op: &Op, operand: usize) -> bool {
    match op {
        Op::Fused(tape) => tape.inputs[operand] == Access::Full,
        Op::Dot(_) | Op::Conv(..) => operand == 0,
        Op::DotGradInput | Op::ConvGradInput(_) => operand == 0,
        Op::DotGradKernel | Op::ConvGradKernel(_) | Op::MatMul(_) => true,
        Op::Pool(..) | Op::PoolGrad(..) | Op::Moments | Op::ArgMax => true,
        Op::SparseXent | Op::SparseXentGrad => operand == 0,
        Op::BatchNorm(_) => operand == 0,
        Op::BatchNormGradSums(_) | Op::BatchNormGradInput(_) => operand < 2,
        Op::Recurrent(_) => operand == 0,
        Op::RecurrentGrad(attrs, more) => operand >= attrs.grad_operands(*more).first,
        _ => false,
    }
}

/// Whether the op's kernel can write its result with any stride between pixels.
pub(crate) fn writes_strided(op: &Op) -> bool {
    matches!(
        op,
        Op::Fused(_)
            | Op::Dot(_)
            | Op::DotGradInput
            | Op::MatMul(_)
            | Op::Conv(..)
            | Op::ConvGradInput(_)
            | Op::Pool(..)
            | Op::PoolGrad(..)
            | Op::BatchNorm(_)
            | Op::BatchNormGradInput(_)
            | Op::SparseXentGrad
    )
}

/// Whether a kernel takes operands and result as slices that include the gaps between pixels. They
/// must not share a buffer then, not even in disjoint channels.
pub(crate) fn needs_own_buffer(op: &Op) -> bool {
    matches!(op, Op::Dot(_) | Op::DotGradInput | Op::Conv(..) | Op::ConvGradInput(_))
}

pub(super) fn last_axis_rows(ty: &Type, axis: usize) -> bool {
    ty.is_rows() && axis + 1 == ty.dims.len()
}

/// Whether a reader accepts its operand with any stride between pixels. A concatenation of channels
/// does: if necessary it copies pixel by pixel.
fn reader_accepts_stride(g: &Graph, (reader, operand): (NodeId, usize)) -> bool {
    let node = g.node(reader);
    match node.op {
        Op::Concat { axis } => last_axis_rows(&node.ty, axis),
        _ => reads_strided(&node.op, operand),
    }
}

/// Decides which nodes are views into another node's buffer: reshapes, channel slices, and the operands
/// of a concatenation, whose producers then write directly into their channels of it.
pub(super) fn views(step: &Step, live: &[bool], uses: &UseLists) -> Vec<View> {
    let g = &step.graph;
    let strided_ok = |id: NodeId| {
        uses.roots[id.index()] == 0
            && uses.nodes[id.index()].iter().all(|u| reader_accepts_stride(g, *u))
    };
    let mut concat_views: Vec<Option<View>> = vec![None; g.nodes().len()];
    for id in g.ids().filter(|id| live[id.index()]) {
        let node = g.node(id);
        let Op::Concat { axis } = node.op else { continue };
        if !last_axis_rows(&node.ty, axis) {
            continue;
        }
        let mut offset = 0;
        let mut parts = vec![];
        for x in &node.inputs {
            parts.push((*x, offset));
            offset += g.ty(*x).last();
        }
        // In topological order, so that the operands of a part are decided before the part itself,
        // regardless of their order in the concatenation.
        parts.sort_by_key(|(x, _)| *x);
        for (x, offset) in parts {
            let op = &g.node(x).op;
            // An operand that occurs twice aliases its first occurrence and is copied to the second.
            let unassigned = concat_views[x.index()].is_none();
            let shares_buffer = |i: &NodeId| concat_views[i.index()].is_some_and(|v| v.root == id);
            let disjoint = !(needs_own_buffer(op) && g.node(x).inputs.iter().any(shares_buffer));
            if unassigned && disjoint && strided_ok(x) && writes_strided(op) {
                concat_views[x.index()] = Some(View { root: id, offset, ld: node.ty.last() });
            }
        }
    }

    let mut views: Vec<View> = Vec::with_capacity(g.nodes().len());
    for id in g.ids() {
        let node = g.node(id);
        let own = View { root: id, offset: 0, ld: node.ty.last() };
        let view = match node.op {
            _ if !live[id.index()] => own,
            Op::Reshape { .. } => {
                let x = node.inputs[0];
                let v: View = views[x.index()];
                let contiguous = v.ld == g.ty(x).last();
                if contiguous { View { ld: node.ty.last(), ..v } } else { own }
            }
            Op::Slice { axis, start, .. } if last_axis_rows(&node.ty, axis) && strided_ok(id) => {
                let v: View = views[node.inputs[0].index()];
                View { offset: v.offset + start, ..v }
            }
            _ => own,
        };
        views.push(concat_views[id.index()].unwrap_or(view));
    }
    views
}
