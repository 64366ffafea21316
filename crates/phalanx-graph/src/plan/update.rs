//! The optimizer's part of a program.

use crate::graph::ParamId;
use crate::lower::Lowered;
use crate::program::{GradientPlan, UpdatePlan, ValueId};
use crate::step::Step;
use std::collections::HashMap;

/// The values that gradients are read from: a partial gradient, or the operands of a sharded one.
#[derive(Default)]
pub(super) struct GradientValues {
    pub partial: HashMap<ParamId, ValueId>,
    pub operands: HashMap<ParamId, (ValueId, ValueId)>,
}

/// Plans the reduction of all gradients and the update.
pub(super) fn update_plan(
    step: &Step,
    lowered: &Lowered,
    values: &GradientValues,
) -> Option<UpdatePlan> {
    let rule = step.update.clone()?;
    let plan = |i: &usize| {
        let g = &step.gradients[*i];
        let dims = &step.graph.params()[g.param.index()].dims;
        GradientPlan {
            param: g.param,
            sharded: g.node.is_some_and(|n| lowered.sharded.is_gradient(n)),
            value: values.partial.get(&g.param).copied(),
            operands: values.operands.get(&g.param).copied(),
            granule: dims.last().copied().unwrap_or(1).max(1),
            l1: g.l1,
            l2: g.l2,
        }
    };
    let gradients = lowered.buckets.order.iter().map(plan).collect();
    let buckets = lowered.buckets.ranges.clone();
    Some(UpdatePlan { rule, gradients, buckets, loss_scale: step.loss_scale })
}
