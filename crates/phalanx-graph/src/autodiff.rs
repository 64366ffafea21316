//! Reverse-mode automatic differentiation, from graph to graph.

use crate::error::Result;
use crate::graph::{Graph, NodeId};
use crate::ops::Backward;

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
        let cotangents = op.derivative(g, &b)?;
        for ((x, dx), wanted) in inputs.iter().zip(cotangents).zip(wanted) {
            if let (Some(dx), true) = (dx, wanted) {
                accumulate(g, &mut cotangent, *x, dx)?;
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
    term: NodeId,
) -> Result<()> {
    cotangent[node.index()] = Some(match cotangent[node.index()] {
        None => term,
        Some(sum) => g.add(sum, term)?,
    });
    Ok(())
}
