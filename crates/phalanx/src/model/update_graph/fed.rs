//! The numbers that the host feeds to an update.

use super::members;
use crate::error::Result;
use crate::optimizers::Optimizer;
use phalanx_exec::Accumulate;
use phalanx_graph::{Graph, NodeId, Type};

/// The numbers that the host feeds to every step before the optimizers' own: how much of the accumulated gradients is
/// kept, the weight of this batch, what their sum is multiplied by, whether it is applied, and whether this is the first
/// update.
const NUMBERS: usize = 5;

/// The numbers that the host feeds to update number `update`. `rate` gives the learning rate of each member.
pub(crate) fn numbers(
    optimizer: &dyn Optimizer,
    accumulate: Option<Accumulate>,
    update: u64,
    rate: impl Fn(&dyn Optimizer) -> f64,
) -> Vec<f32> {
    let flag = |set: bool| f32::from(u8::from(set));
    let mut out = match accumulate {
        None => vec![0.0, 1.0, 1.0, 1.0],
        Some(a) => vec![flag(!a.first), a.weight, a.apply.unwrap_or(0.0), flag(a.apply.is_some())],
    };
    out.push(flag(update <= 1));
    for member in members(optimizer) {
        let rate = rate(member);
        let own = member.step_scalars(rate, update);
        let all = [rate].into_iter().chain(own).chain(member.common().average_scalars(update));
        out.extend(all.map(|s| s as f32));
    }
    out
}

/// The nodes of the fed numbers.
pub(crate) struct Fed {
    pub(super) keep: NodeId,
    pub(super) weight: NodeId,
    pub(super) mean: NodeId,
    pub(super) apply: NodeId,
    pub(super) first: NodeId,
    pub(super) members: Vec<MemberNumbers>,
}

/// The fed numbers of one optimizer.
pub(super) struct MemberNumbers {
    pub(super) rate: NodeId,
    pub(super) own: Vec<NodeId>,
    pub(super) average: Vec<NodeId>,
}

impl Fed {
    /// The nodes in the order of [`numbers`]; `next` gives one after the other.
    pub fn new(optimizer: &dyn Optimizer, mut next: impl FnMut() -> Result<NodeId>) -> Result<Fed> {
        let mut shared = [NodeId(0); NUMBERS];
        for node in &mut shared {
            *node = next()?;
        }
        let [keep, weight, mean, apply, first] = shared;
        let mut all = vec![];
        for member in members(optimizer) {
            let rate = next()?;
            let (own, average) = (member.step_scalars(0.0, 1), member.common().average_scalars(1));
            let own = own.iter().map(|_| next()).collect::<Result<_>>()?;
            let average = average.iter().map(|_| next()).collect::<Result<_>>()?;
            all.push(MemberNumbers { rate, own, average });
        }
        Ok(Fed { keep, weight, mean, apply, first, members: all })
    }

    /// Each number as a feed of its own.
    pub(super) fn declare(g: &mut Graph, optimizer: &dyn Optimizer) -> Result<Fed> {
        let mut count = 0;
        Fed::new(optimizer, || {
            let id = g.add_feed(&format!("update_{count}"), Type::mirrored([]));
            count += 1;
            Ok(g.feed(id))
        })
    }
}
