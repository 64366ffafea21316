//! Reverse-mode automatic differentiation, from graph to graph.

use crate::error::Result;
use crate::graph::{Graph, NodeId};
use crate::ops::layout::slice_derivative;
use crate::ops::{Backward, Op};

/// Appends to `g` the gradients of `Σ seeds[i].1 · seeds[i].0` (summed over rows and elements) with
/// respect to each node of `wrt`. The gradient of a mirrored node is a partial sum. `None` means that
/// the seeds do not depend on the node.
pub fn gradients(
    g: &mut Graph,
    seeds: &[(NodeId, NodeId)],
    wrt: &[NodeId],
) -> Result<Vec<Option<NodeId>>> {
    let end = seeds.iter().map(|s| s.0.index() + 1).max().unwrap_or(0);
    let mut depends = vec![false; end];
    for id in wrt.iter().filter(|id| id.index() < end) {
        depends[id.index()] = true;
    }
    for i in 0..end {
        let node = &g.nodes()[i];
        depends[i] |= !node.op.is_flat() && node.inputs.iter().any(|x| depends[x.index()]);
    }

    let mut cotangent: Vec<Option<NodeId>> = vec![None; end];
    for (node, seed) in seeds {
        accumulate(g, &mut cotangent, *node, *seed)?;
    }
    let mut slices: Vec<Vec<Piece>> = vec![vec![]; end];
    for i in (0..end).rev() {
        let pieces = std::mem::take(&mut slices[i]);
        if !pieces.is_empty() {
            g.set_layer(g.nodes()[i].layer);
            let term = join(g, NodeId(i as u32), pieces)?;
            accumulate(g, &mut cotangent, NodeId(i as u32), term)?;
        }
        let Some(dy) = cotangent[i] else { continue };
        let node = &g.nodes()[i];
        let wanted: Vec<bool> = node.inputs.iter().map(|x| depends[x.index()]).collect();
        if !wanted.contains(&true) {
            continue;
        }
        let (op, inputs, layer) = (node.op.clone(), node.inputs.clone(), node.layer);
        g.set_layer(layer);
        if let Op::Slice { axis, start, .. } = op {
            slices[inputs[0].index()].push(Piece { axis, start, dy, slice: NodeId(i as u32) });
            continue;
        }
        let b = Backward { inputs: &inputs, y: NodeId(i as u32), dy, wanted: &wanted };
        let cotangents = op.derivative(g, &b)?;
        for ((x, dx), wanted) in inputs.iter().zip(cotangents).zip(wanted) {
            if let (Some(dx), true) = (dx, wanted) {
                accumulate(g, &mut cotangent, *x, dx)?;
            }
        }
    }
    g.set_layer(0);
    Ok(wrt.iter().map(|id| cotangent.get(id.index()).copied().flatten()).collect())
}

/// The cotangent of a slice.
#[derive(Clone, Copy)]
struct Piece {
    axis: usize,
    start: usize,
    dy: NodeId,
    slice: NodeId,
}

/// The cotangent of `x` from the cotangents of its slices. Slices that do not overlap are concatenated: padding each and
/// adding them up would cost a pass over `x` for every slice.
fn join(g: &mut Graph, x: NodeId, mut pieces: Vec<Piece>) -> Result<NodeId> {
    let axis = pieces[0].axis;
    pieces.sort_by_key(|piece| piece.start);
    let len = |g: &Graph, piece: &Piece| g.ty(piece.slice).dims[axis];
    let apart = pieces.iter().all(|piece| piece.axis == axis)
        && pieces.windows(2).all(|pair| pair[0].start + len(g, &pair[0]) <= pair[1].start);
    if pieces.len() == 1 || !apart {
        let mut sum = None;
        for Piece { axis, start, dy, slice } in pieces {
            let b = Backward { inputs: &[x], y: slice, dy, wanted: &[true] };
            let padded = slice_derivative(axis, start, g, &b)?.into_iter().flatten().next();
            sum = match (sum, padded) {
                (Some(sum), Some(padded)) => Some(g.add(sum, padded)?),
                (sum, padded) => sum.or(padded),
            };
        }
        return Ok(sum.expect("a value has a slice"));
    }
    let dims = g.ty(x).dims.clone();
    let pad = |g: &mut Graph, node: NodeId, before: usize, after: usize| {
        let ends = |n: usize| (0..dims.len()).map(|i| if i == axis { n } else { 0 }).collect();
        match (before, after) {
            (0, 0) => Ok(node),
            _ => g.push(Op::Pad { before: ends(before), after: ends(after) }, &[node]),
        }
    };
    let mut parts = vec![];
    for (i, piece) in pieces.iter().enumerate() {
        let end = pieces.get(i + 1).map_or(dims[axis], |next| next.start);
        let before = if i == 0 { piece.start } else { 0 };
        let after = end - piece.start - len(g, piece);
        parts.push(pad(g, piece.dy, before, after)?);
    }
    g.push(Op::Concat { axis }, &parts)
}

fn accumulate(
    g: &mut Graph,
    cotangent: &mut [Option<NodeId>],
    node: NodeId,
    term: NodeId,
) -> Result<()> {
    cotangent[node.index()] = Some(match cotangent[node.index()] {
        None => term,
        Some(sum) => g.add(sum, term)?,
    });
    Ok(())
}
