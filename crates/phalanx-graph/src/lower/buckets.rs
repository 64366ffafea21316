//! The order in which gradients are reduced, and the buckets that reduce several together.

use crate::graph::NodeId;
use crate::step::Step;
use std::ops::Range;

/// Approximate size of the buckets in which gradients are reduced.
const BUCKET_BYTES: usize = 4 << 20;

/// The gradients of a step in the order in which backward completes them: the last layers first. Their bucket can be
/// reduced while it continues.
pub(crate) struct Buckets {
    /// Indices into the step's gradients; gradients that no update needs are left out.
    pub order: Vec<usize>,
    /// Ranges of `order` that are reduced together.
    pub ranges: Vec<Range<usize>>,
}

impl Buckets {
    /// The buckets of a step; none without an update.
    pub fn of(step: &Step) -> Buckets {
        let all = step.gradients.iter().enumerate().filter(|_| step.update.is_some());
        let mut found: Vec<(Option<NodeId>, usize)> = all
            .filter(|(_, g)| g.node.is_some() || g.penalty_alone())
            .map(|(i, g)| (g.node, i))
            .collect();
        found.sort_by_key(|(node, _)| *node);
        let order: Vec<usize> = found.into_iter().map(|(_, i)| i).collect();
        let mut ranges = vec![];
        let (mut start, mut bytes) = (0, 0);
        for (at, i) in order.iter().enumerate() {
            let param = step.gradients[*i].param;
            bytes += step.graph.params()[param.index()].len() * 4;
            if bytes >= BUCKET_BYTES || at + 1 == order.len() {
                ranges.push(start..at + 1);
                (start, bytes) = (at + 1, 0);
            }
        }
        Buckets { order, ranges }
    }
}
