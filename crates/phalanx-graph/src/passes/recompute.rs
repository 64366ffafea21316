//! Recomputation: less memory for more arithmetic.
//!
//! The forward pass is split into segments. Only what crosses from one segment to the next is kept for the backward pass;
//! when that reaches a segment, the nodes of the segment are computed again. Random numbers are counted, so the copies have
//! the bits of the originals. Results of collectives are kept: they are small, and workers would have to meet again.

use super::{Rewriter, checked};
use crate::error::Result;
use crate::graph::NodeId;
use crate::ops::{Op, PartsOp};
use crate::step::Step;

/// Splits the forward pass into `segments`, for batches of up to `rows` rows per worker. A step without a backward pass stays
/// as it is.
pub fn recompute(step: Step, segments: usize, rows: usize) -> Result<Step> {
    let plan = Plan::of(&step, segments, rows);
    if plan.repeated.iter().all(|r| !r) {
        return Ok(step);
    }
    let mut r = Rewriter::new(&step);
    let mut copies: Vec<Option<NodeId>> = vec![None; step.graph.nodes().len()];
    for id in step.graph.ids().filter(|id| plan.live[id.index()]) {
        let node = step.graph.node(id);
        let backward = !plan.forward[id.index()];
        let inputs: Vec<NodeId> = node
            .inputs
            .iter()
            .map(|x| match backward && plan.repeated[x.index()] {
                true => copy(&step, &plan, &mut r, &mut copies, *x),
                false => r.get(*x),
            })
            .collect();
        r.graph.set_layer(node.layer);
        r.map[id.index()] = Some(r.graph.push_typed(node.op.clone(), inputs, node.ty.clone()));
    }
    checked("recompute", r.finish(step))
}

/// Computes a node again, and those that it needs.
fn copy(
    step: &Step,
    plan: &Plan,
    r: &mut Rewriter,
    copies: &mut [Option<NodeId>],
    id: NodeId,
) -> NodeId {
    // The operands come first; a stack instead of recursion, because chains can be long.
    let mut stack = vec![id];
    while let Some(top) = stack.last().copied() {
        let needs = |x: &&NodeId| plan.repeated[x.index()] && copies[x.index()].is_none();
        let node = step.graph.node(top);
        if let Some(missing) = node.inputs.iter().find(needs) {
            stack.push(*missing);
            continue;
        }
        stack.pop();
        if copies[top.index()].is_none() {
            let inputs = node.inputs.iter().map(|x| copies[x.index()].unwrap_or_else(|| r.get(*x)));
            let inputs = inputs.collect();
            r.graph.set_layer(node.layer);
            copies[top.index()] =
                Some(r.graph.push_typed(node.op.clone(), inputs, node.ty.clone()));
        }
    }
    copies[id.index()].expect("it was on the stack")
}

/// Which nodes are computed again.
struct Plan {
    live: Vec<bool>,
    /// Nodes that losses, metrics or assignments need; the others are the backward pass.
    forward: Vec<bool>,
    /// Forward nodes that the backward pass computes again if it needs them.
    repeated: Vec<bool>,
}

impl Plan {
    fn of(step: &Step, segments: usize, rows: usize) -> Plan {
        let live = step.live();
        let forward = forward_nodes(step);
        let keeps = kept(step, &live, &forward, segments.max(1), rows);
        let repeated = step
            .graph
            .ids()
            .map(|id| {
                let i = id.index();
                live[i] && forward[i] && !keeps[i] && may_repeat(&step.graph.node(id).op)
            })
            .collect();
        Plan { live, forward, repeated }
    }
}

/// Whether an op can be computed again without other workers. Feeds and weights are there anyway.
fn may_repeat(op: &Op) -> bool {
    !matches!(
        op,
        Op::Feed { .. }
            | Op::Param { .. }
            | Op::AllReduce { .. }
            | Op::ReplicaMean
            | Op::Model(_)
            | Op::Parts(PartsOp::AllReduce(_) | PartsOp::AllGather { .. })
    )
}

/// The nodes that fetches and assignments depend on.
fn forward_nodes(step: &Step) -> Vec<bool> {
    let mut forward = vec![false; step.graph.nodes().len()];
    let fetches = step.fetches.iter().map(|f| f.node);
    for root in fetches.chain(step.assigns.iter().map(|(_, node)| *node)) {
        forward[root.index()] = true;
    }
    // Operands come before their users, so a walk from the last node reaches them all.
    for id in step.graph.ids().rev() {
        if forward[id.index()] {
            step.graph.node(id).inputs.iter().for_each(|x| forward[x.index()] = true);
        }
    }
    forward
}

/// The forward nodes that cross from one segment to the next. Segments hold about equally much of what the backward pass
/// reads, and end where the least crosses.
fn kept(step: &Step, live: &[bool], forward: &[bool], segments: usize, rows: usize) -> Vec<bool> {
    let g = &step.graph;
    let bytes = |id: NodeId| {
        let ty = g.ty(id);
        ty.len() * ty.dtype.bytes() * if ty.is_rows() { rows } else { 1 }
    };
    let order: Vec<NodeId> = g.ids().filter(|id| live[id.index()] && forward[id.index()]).collect();
    let mut saved = vec![false; live.len()];
    let mut last_use = vec![0; live.len()];
    let mut position = vec![0; live.len()];
    for (at, id) in order.iter().enumerate() {
        position[id.index()] = at;
        g.node(*id).inputs.iter().for_each(|x| last_use[x.index()] = at);
    }
    for id in g.ids().filter(|id| live[id.index()] && !forward[id.index()]) {
        g.node(id).inputs.iter().for_each(|x| saved[x.index()] |= may_repeat(&g.node(*x).op));
    }
    // Bytes that cross each position, and that the backward pass reads of what comes before it. A node crosses the
    // positions after it, up to its last reader.
    let mut starts_and_ends = vec![0i128; order.len() + 2];
    let mut before = vec![0usize; order.len() + 1];
    for (at, id) in order.iter().enumerate() {
        let size = if may_repeat(&g.node(*id).op) { bytes(*id) } else { 0 };
        starts_and_ends[at + 1] += size as i128;
        starts_and_ends[last_use[id.index()].max(at) + 1] -= size as i128;
        before[at + 1] = before[at].saturating_add(if saved[id.index()] { size } else { 0 });
    }
    let mut sum = 0;
    let crossing: Vec<i128> = starts_and_ends
        .iter()
        .map(|change| {
            sum += change;
            sum
        })
        .collect();
    let total = before[order.len()];
    let mut boundaries = vec![];
    for i in 1..segments {
        // Around an even division, by half a segment to either side.
        let (from, to) = (
            total / segments * i - total / segments / 2,
            total / segments * i + total / segments / 2,
        );
        let last = boundaries.last().copied().unwrap_or(0);
        let near = (last + 1..order.len()).filter(|at| before[*at] >= from && before[*at] <= to);
        if let Some(at) = near.min_by_key(|at| (crossing[*at], *at)) {
            boundaries.push(at);
        }
    }
    let mut keeps = vec![false; live.len()];
    for id in &order {
        let at = position[id.index()];
        let crosses = boundaries.iter().any(|b| at < *b && last_use[id.index()] >= *b);
        keeps[id.index()] = crosses;
    }
    // The last segment is not computed again: the backward pass begins with it.
    let begin = boundaries.last().copied().unwrap_or(0);
    order.iter().filter(|id| position[id.index()] >= begin).for_each(|id| keeps[id.index()] = true);
    keeps
}
