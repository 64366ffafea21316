//! The order in which gradients are reduced, and the buckets that reduce several together.

use crate::graph::{NodeId, ParamId};
use crate::lower::Lowered;
use crate::program::{GradientPlan, UpdatePlan, ValueId};
use crate::step::Step;
use std::collections::HashMap;

/// Approximate size of the buckets in which gradients are reduced.
const BUCKET_BYTES: usize = 4 << 20;

/// Plans the reduction of all gradients and the update.
pub(super) fn update_plan(
    step: &Step,
    lowered: &Lowered,
    operands: &HashMap<ParamId, (ValueId, ValueId)>,
) -> Option<UpdatePlan> {
    let rule = step.update.clone()?;
    let mut found: Vec<(Option<NodeId>, GradientPlan)> = step
        .gradients
        .iter()
        .filter(|g| g.node.is_some() || g.penalty_alone())
        .map(|g| {
            let dims = &step.graph.params()[g.param.index()].dims;
            let plan = GradientPlan {
                param: g.param,
                sharded: g.node.is_some_and(|n| lowered.sharded.is_gradient(n)),
                operands: operands.get(&g.param).copied(),
                granule: dims.last().copied().unwrap_or(1).max(1),
                l1: g.l1,
                l2: g.l2,
            };
            (g.node, plan)
        })
        .collect();
    // Backward completes the last layers first: their bucket can be reduced while it continues.
    found.sort_by_key(|(node, _)| *node);
    let gradients: Vec<GradientPlan> = found.into_iter().map(|(_, g)| g).collect();
    let mut buckets = vec![];
    let (mut start, mut bytes) = (0, 0);
    for (i, g) in gradients.iter().enumerate() {
        bytes += step.graph.params()[g.param.index()].len() * 4;
        if bytes >= BUCKET_BYTES || i + 1 == gradients.len() {
            buckets.push(start..i + 1);
            (start, bytes) = (i + 1, 0);
        }
    }
    Some(UpdatePlan { rule, gradients, buckets, loss_scale: step.loss_scale })
}
