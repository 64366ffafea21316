//! Reverse-mode differentiation, graph to graph.

use crate::error::Result;
use crate::graph::{Graph, NodeId};
use crate::ops::Backward;

/// Appends to `g` the derivatives of `Σ seeds[i].1 · seeds[i].0` (summed over rows and elements)
/// by each node of `wrt`. A derivative by a mirrored node comes out as a partial sum; `None` means
/// that the node has no influence.
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
        depends[i] |= g.nodes()[i].inputs.iter().any(|x| depends[x.index()]);
    }

    let mut cotangent: Vec<Option<NodeId>> = vec![None; end];
    for (node, seed) in seeds {
        accumulate(g, &mut cotangent, *node, *seed)?;
    }
    for i in (0..end).rev() {
        let Some(dy) = cotangent[i] else { continue };
        let node = &g.nodes()[i];
        let wanted: Vec<bool> = node.inputs.iter().map(|x| depends[x.index()]).collect();
        if !wanted.contains(&true) {
            continue;
        }
        let (op, inputs, scope) = (node.op.clone(), node.inputs.clone(), node.scope);
        g.set_scope(scope);
        let b = Backward { inputs: &inputs, y: NodeId(i as u32), dy, wanted: &wanted };
        let parts = op.derivative(g, &b)?;
        for ((x, part), wanted) in inputs.iter().zip(parts).zip(wanted) {
            if let (Some(part), true) = (part, wanted) {
                accumulate(g, &mut cotangent, *x, part)?;
            }
        }
    }
    g.set_scope(0);
    Ok(wrt.iter().map(|id| cotangent.get(id.index()).copied().flatten()).collect())
}

fn accumulate(
    g: &mut Graph,
    cotangent: &mut [Option<NodeId>],
    node: NodeId,
    part: NodeId,
) -> Result<()> {
    cotangent[node.index()] = Some(match cotangent[node.index()] {
        None => part,
        Some(sum) => g.add(sum, part)?,
    });
    Ok(())
}
