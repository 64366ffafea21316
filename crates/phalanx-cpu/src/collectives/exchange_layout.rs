//! Layouts of what processes exchange: buckets of gradients, groups of weights, and when a bucket is sent.

use super::async_reduce::CopyRange;
use super::reduction::BUCKETS_IN_FLIGHT;
use crate::executor::FlatLayout;
use crate::worker::has_compute;
use phalanx_graph::ParamId;
use phalanx_graph::program::{
    GradientPlan, Instr, Location, Program, ShardLevel, WeightGroup, split_range,
};
use std::ops::Range;
use std::sync::Arc;

/// Some elements of a gradient, and where the processes' buffer has them.
pub(crate) struct Segment {
    pub elements: Range<usize>,
    offset: usize,
}

impl Segment {
    /// The position of an element.
    pub fn at(&self, element: usize) -> usize {
        self.offset + element - self.elements.start
    }

    /// The elements that also lie in `range`.
    pub fn overlap(&self, range: &Range<usize>) -> Range<usize> {
        let start = self.elements.start.max(range.start);
        start..self.elements.end.min(range.end).max(start)
    }
}

/// A bucket in the processes' buffer.
#[derive(Clone)]
pub(crate) struct BucketLayout {
    /// Its first float in the buffer.
    pub start: usize,
    /// The floats from there that each process sums, by rank; consecutive.
    pub parts: Arc<[Range<usize>]>,
    /// Whether the sums stay with the processes that compute them.
    pub scattered: bool,
    /// Where this process's sums belong in a state's `reduced` buffer.
    pub sums: Arc<[CopyRange]>,
}

impl BucketLayout {
    pub fn len(&self) -> usize {
        self.parts.last().map_or(0, |part| part.end)
    }
}

/// Where `ProcessCollectives::gradients` holds the gradients of an update plan.
#[derive(Default)]
pub(crate) struct GradientLayout {
    pub buckets: Vec<BucketLayout>,
    /// By gradient: its segments by rank if the state is sharded, or else a single one.
    pub segments: Vec<Vec<Segment>>,
    /// Floats of the buffer.
    pub len: usize,
}

impl GradientLayout {
    /// The layout for `size` processes, of which this is number `rank`; `owned` is its `reduced` buffer. The part of a
    /// process in a bucket is contiguous. Sharded gradients take turns in the same places.
    pub fn new(
        program: &Program,
        (rank, size): (usize, usize),
        owned: &FlatLayout,
    ) -> GradientLayout {
        let mut layout = GradientLayout::default();
        let Some(plan) = program.update() else { return layout };
        let sharding = program.options().mesh.sharding;
        let domains = if sharding.is_on() { sharding.domains } else { 1 };
        let len = |at: usize| program.params()[plan.gradients[at].param.index()].len();
        let longest = plan.buckets.iter().map(|bucket| bucket.clone().map(len).sum()).max();
        let (mut start, mut turn) = (0, 0);
        for bucket in &plan.buckets {
            if sharding.level >= ShardLevel::Gradients {
                start = turn % BUCKETS_IN_FLIGHT * longest.unwrap_or(0);
                turn += 1;
            }
            let (mut parts, mut sums, mut at_float) = (vec![], vec![], 0);
            layout.segments.extend(bucket.clone().map(|_| vec![]));
            for domain in 0..domains {
                let first = at_float;
                for at in bucket.clone() {
                    let param = plan.gradients[at].param;
                    let elements = sharding.owned(param, len(at), domain);
                    if domain == rank && !elements.is_empty() {
                        let to = owned.at(param, elements.start);
                        sums.push(CopyRange { from: at_float, to, len: elements.len() });
                    }
                    let offset = start + at_float;
                    at_float += elements.len();
                    layout.segments[at].push(Segment { elements, offset });
                }
                parts.push(first..at_float);
            }
            let scattered = sharding.is_on();
            if !scattered {
                parts = (0..size).map(|r| split_range(0..at_float, size, r)).collect();
            }
            let (parts, sums) = (parts.into(), sums.into());
            layout.buckets.push(BucketLayout { start, parts, scattered, sums });
            layout.len = layout.len.max(start + at_float);
            start += at_float;
        }
        layout
    }

    /// Floats that a process receives at a time from all `size` processes.
    pub fn largest_message(&self, size: usize) -> usize {
        let parts = self.buckets.iter().flat_map(|bucket| bucket.parts.iter());
        parts.map(|part| part.len()).max().unwrap_or(0) * size
    }

    /// The position of an element of gradient `at`.
    pub fn position(&self, at: usize, element: usize) -> usize {
        let holds = |s: &&Segment| s.elements.contains(&element);
        self.segments[at].iter().find(holds).map_or(0, |segment| segment.at(element))
    }
}

/// Where the parts of a group of weights come from and go to.
#[derive(Default)]
pub(crate) struct GroupLayout {
    /// What this process sends, from its part of all weights.
    pub sent: Vec<CopyRange>,
    /// What each process sends, by rank: `from` in its message, `to` in the buffer of the group.
    pub received: Vec<Vec<CopyRange>>,
}

impl GroupLayout {
    /// The layouts of a program's groups; `weights` is what this process, number `rank`, holds.
    pub fn of(program: &Program, rank: usize, weights: &FlatLayout) -> Vec<Arc<GroupLayout>> {
        let sharding = program.options().mesh.sharding;
        let layout = |group: &WeightGroup| {
            let mut layout = GroupLayout::default();
            for domain in 0..sharding.domains {
                let (mut runs, mut from) = (vec![], 0);
                for (id, offset) in &group.weights {
                    let held = sharding.held(*id, &program.params()[id.index()], domain);
                    if held.is_empty() {
                        continue;
                    }
                    runs.push(CopyRange { from, to: offset / 4 + held.start, len: held.len() });
                    if domain == rank {
                        let (at, to) = (weights.at(*id, held.start), from);
                        layout.sent.push(CopyRange { from: at, to, len: held.len() });
                    }
                    from += held.len();
                }
                layout.received.push(runs);
            }
            Arc::new(layout)
        };
        program.weight_groups().iter().map(layout).collect()
    }
}

/// Whether gradients are all-reduced during the backward pass. `PHALANX_OVERLAP=0` reduces all of them after
/// it.
pub fn overlap_enabled() -> bool {
    std::env::var("PHALANX_OVERLAP").map_or(true, |v| v != "0")
}

/// For each bucket of gradients, the instruction after which every worker has finished it. `None` if too
/// little computation follows to overlap with the all-reduce.
pub(crate) fn bucket_send_points(program: &Program) -> Vec<Option<usize>> {
    let Some(plan) = program.update() else { return vec![] };
    let reduced_early = program.options().mesh.sharding.level >= ShardLevel::Gradients;
    if reduced_early || !overlap_enabled() {
        return vec![None; plan.buckets.len()];
    }
    let writes = |instr: &Instr, param: ParamId| match instr {
        Instr::Compute { output, .. } | Instr::Copy { output, .. } => {
            program.value(*output).location == Location::Gradient(param)
        }
        _ => false,
    };
    let finished = |g: &GradientPlan| {
        let last = program.instrs().iter().rposition(|i| writes(i, g.param));
        last.filter(|_| !g.sharded)
    };
    let bucket = |range: &Range<usize>| {
        let all: Option<Vec<usize>> = plan.gradients[range.clone()].iter().map(finished).collect();
        let last = all?.into_iter().max()?;
        has_compute(&program.instrs()[last + 1..]).then_some(last)
    };
    let mut found: Vec<Option<usize>> = plan.buckets.iter().map(bucket).collect();
    // Every process sends its buckets in the same order.
    let mut before = 0;
    for at in &mut found {
        *at = at.map(|at| at.max(before));
        before = at.unwrap_or(before);
    }
    found
}
