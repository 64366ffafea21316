//! Gathering of weights that the memory domains have divided: groups of weights are complete on a domain only while
//! instructions read them.

use super::aliasing::View;
use super::linear::LinearInstr;
use crate::graph::{NodeId, ParamId};
use crate::ops::Op;
use crate::program::Sharding;
use crate::step::Step;

/// Approximate size of a group.
const GROUP_BYTES: usize = 4 << 20;

/// Inserts an instruction that gathers a group of weights before the first one that reads any of them. Returns the groups.
/// Only one is complete at a time, so a weight that is read again later is gathered again.
pub(super) fn gather_weights(
    step: &Step,
    views: &[View],
    instrs: Vec<LinearInstr>,
    sharding: Sharding,
) -> (Vec<LinearInstr>, Vec<Vec<ParamId>>) {
    if !sharding.gathers_weights() {
        return (instrs, vec![]);
    }
    let bytes = |params: &[ParamId]| -> usize {
        params.iter().map(|id| step.graph.params()[id.index()].len() * 4).sum()
    };
    let (mut out, mut groups): (Vec<LinearInstr>, Vec<Vec<ParamId>>) = (vec![], vec![]);
    for instr in instrs {
        let read = divided_weights(step, views, &instr, sharding);
        let missing =
            |group: &Vec<ParamId>| read.iter().filter(|id| !group.contains(id)).copied().collect();
        let missing: Vec<ParamId> = groups.last().map_or_else(|| read.clone(), missing);
        if !missing.is_empty() {
            match groups.last_mut() {
                Some(group) if bytes(group) + bytes(&missing) <= GROUP_BYTES => {
                    group.extend(missing)
                }
                _ => {
                    out.push(LinearInstr::GatherWeights { group: groups.len() });
                    groups.push(read);
                }
            }
        }
        out.push(instr);
    }
    (out, groups)
}

/// The weights that an instruction reads and of which a domain holds only a part.
fn divided_weights(
    step: &Step,
    views: &[View],
    instr: &LinearInstr,
    sharding: Sharding,
) -> Vec<ParamId> {
    let g = &step.graph;
    let divided = |node: &NodeId| match g.node(views[node.index()].root).op {
        Op::Param { id } => Some(id).filter(|id| sharding.divides_weight(&g.params()[id.index()])),
        _ => None,
    };
    let mut found: Vec<ParamId> = match instr {
        LinearInstr::Compute { id, .. }
        | LinearInstr::ReduceScatter(id)
        | LinearInstr::ExchangeParts(id) => g.node(*id).inputs.iter().filter_map(divided).collect(),
        LinearInstr::Copy { from: node, .. }
        | LinearInstr::Assign { node, .. }
        | LinearInstr::Fetch { node, .. } => divided(node).into_iter().collect(),
        LinearInstr::Barrier(_)
        | LinearInstr::AllReduce(_)
        | LinearInstr::ReplicaMean(_)
        | LinearInstr::ShardedGradKernel { .. }
        | LinearInstr::ReduceGradients { .. }
        | LinearInstr::GatherWeights { .. }
        | LinearInstr::Zero(_)
        | LinearInstr::Update => vec![],
    };
    found.sort();
    found.dedup();
    found
}
