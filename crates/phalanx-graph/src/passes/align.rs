//! Pads long axes of products with zeros, because libraries multiply matrices several times as fast if the lengths of
//! their axes are multiples of 8. The classes of a language model are such an axis.

use super::Rewriter;
use crate::error::Result;
use crate::functions::layout::repeat_rows;
use crate::graph::{Graph, NodeId};
use crate::ops::{Contraction, Op};
use crate::step::Step;

/// The shortest axis that is padded: the padding is a small part of the work.
const MIN_LENGTH: usize = 512;

/// Rewrites products with padded operands. Parts of their results are read where they lie.
pub fn align_products(step: Step, alignment: usize) -> Result<Step> {
    if alignment <= 1 {
        return Ok(step);
    }
    let live = step.live();
    let mut r = Rewriter::new(&step);
    for id in step.graph.ids().filter(|id| live[id.index()]) {
        let node = step.graph.node(id);
        let inputs: Vec<NodeId> = node.inputs.iter().map(|x| r.get(*x)).collect();
        r.graph.set_layer(node.layer);
        r.map[id.index()] = Some(match &node.op {
            Op::MatMul(c) => padded_product(&mut r.graph, c, [inputs[0], inputs[1]], alignment)?,
            op => r.graph.push_typed(op.clone(), inputs, node.ty.clone()),
        });
    }
    Ok(r.finish(step))
}

fn padded_product(
    g: &mut Graph,
    c: &Contraction,
    mut inputs: [NodeId; 2],
    alignment: usize,
) -> Result<NodeId> {
    let labels: Vec<u8> = c.left.iter().chain(&c.right).copied().collect();
    let mut cuts = vec![];
    for label in labels {
        let Some(len) = length(g, c, inputs, label).filter(|len| len % alignment != 0) else {
            continue;
        };
        let axes = [&c.left, &c.right].map(|axes| axes.iter().position(|l| *l == label));
        if len < MIN_LENGTH || !axes.iter().zip(inputs).all(|(at, x)| is_cheap(g, x, *at)) {
            continue;
        }
        for (x, at) in inputs.iter_mut().zip(axes) {
            if let Some(axis) = at {
                *x = pad(g, *x, axis, len.next_multiple_of(alignment))?;
            }
        }
        cuts.extend(c.result.iter().position(|l| *l == label).map(|axis| (axis, len)));
    }
    let mut y = g.push(Op::MatMul(c.clone()), &inputs)?;
    for (axis, len) in cuts {
        y = g.push(Op::Slice { axis, start: 0, len }, &[y])?;
    }
    Ok(y)
}

/// The length of the axis with a label.
fn length(g: &Graph, c: &Contraction, [left, right]: [NodeId; 2], label: u8) -> Option<usize> {
    let of = |axes: &[u8], x| Some(g.ty(x).dims[axes.iter().position(|l| *l == label)?]);
    of(&c.left, left).or(of(&c.right, right))
}

/// Whether padding an axis costs little: an operand without samples is copied once, and what writes an operand with
/// samples leaves a gap after each vector.
fn is_cheap(g: &Graph, x: NodeId, axis: Option<usize>) -> bool {
    let ty = g.ty(x);
    axis.is_none_or(|axis| !ty.is_rows() || axis + 1 == ty.dims.len())
}

/// `x` with zeros after an axis.
fn pad(g: &mut Graph, x: NodeId, axis: usize, len: usize) -> Result<NodeId> {
    let ty = g.ty(x).clone();
    let gap = len - ty.dims[axis];
    if !ty.is_rows() {
        let (before, mut after) = (vec![0; ty.dims.len()], vec![0; ty.dims.len()]);
        after[axis] = gap;
        return g.push(Op::Pad { before, after }, &[x]);
    }
    let mut dims = ty.dims.clone();
    dims[axis] = gap;
    let zeros = g.fill(0.0, &dims);
    let like = g.push(Op::RowIndex, &[])?;
    let zeros = repeat_rows(g, zeros, like)?;
    g.push(Op::Concat { axis }, &[x, zeros])
}
