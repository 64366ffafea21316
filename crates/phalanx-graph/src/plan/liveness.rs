//! Live ranges of buffers, and reuse of a buffer by the result that reads it last.

use super::Planner;
use crate::graph::NodeId;
use crate::lower::{BufferKind, LinearInstr, Target};
use crate::ops::{Access, Op};
use crate::types::Scope;

/// Activations up to this size stay in a GPU's cache, so reuse of their memory would gain nothing.
const MIN_REUSE_BYTES: usize = 16 << 20;

/// The first and last instruction that use a buffer, and its size.
#[derive(Clone, Copy, Debug)]
pub(super) struct LiveRange {
    pub start: usize,
    pub end: usize,
    pub bytes: usize,
}

impl Planner<'_> {
    fn touch(&mut self, id: NodeId, at: usize) {
        let root = self.root(id);
        if !self.buffered(root) {
            return;
        }
        let bytes = self.bytes(root);
        let range =
            self.live_ranges[root.index()].get_or_insert(LiveRange { start: at, end: at, bytes });
        range.end = range.end.max(at);
    }

    /// Computes the first and last use of every buffer.
    pub(super) fn compute_live_ranges(&mut self) {
        for (at, instr) in self.lowered.instrs.iter().enumerate() {
            match instr {
                LinearInstr::Compute { id, .. }
                | LinearInstr::ReduceScatter(id)
                | LinearInstr::AllReduce(id)
                | LinearInstr::ReplicaMean(id) => {
                    let inputs = self.step.graph.node(*id).inputs.clone();
                    inputs.into_iter().for_each(|x| self.touch(x, at));
                    self.touch(*id, at);
                }
                LinearInstr::ExchangeParts(id) => {
                    // The other devices of the replica read the operand up to the next barrier.
                    let barrier = |i: &LinearInstr| matches!(i, LinearInstr::Barrier(Scope::All));
                    let rest = &self.lowered.instrs[at..];
                    let read = at + rest.iter().position(barrier).unwrap_or(rest.len());
                    self.touch(self.step.graph.node(*id).inputs[0], read);
                    self.touch(*id, at);
                }
                LinearInstr::Copy { from, to } => {
                    self.touch(*from, at);
                    match to {
                        Target::Node(id) | Target::Slice { of: id, .. } => self.touch(*id, at),
                        Target::Gradient(_) => {}
                    }
                }
                LinearInstr::ShardedGradKernel { x, dy, .. } => {
                    self.touch(*x, at);
                    self.touch(*dy, at);
                }
                LinearInstr::ReduceGradients { bucket } => {
                    // Other workers read the gradients up to the barrier after it.
                    for (_, node) in self.lowered.bucket_gradients(self.step, *bucket) {
                        self.touch(node, at + 1);
                    }
                }
                LinearInstr::Assign { node, .. } | LinearInstr::Fetch { node, .. } => {
                    self.touch(*node, at)
                }
                LinearInstr::Barrier(_)
                | LinearInstr::GatherWeights { .. }
                | LinearInstr::Zero(_)
                | LinearInstr::Update => {}
            }
        }
    }

    /// Lets an elementwise result reuse the buffer of an operand that it is the last reader of.
    pub(super) fn reuse_in_place(&mut self) {
        for (at, instr) in self.lowered.instrs.iter().enumerate() {
            let LinearInstr::Compute { id, .. } = instr else { continue };
            let node = self.step.graph.node(*id);
            let in_arena =
                self.root(*id) == *id && self.lowered.kinds[id.index()] == BufferKind::Arena;
            if !in_arena {
                continue;
            }
            let full = |i: usize| match &node.op {
                Op::Fused(tape) => tape.inputs[i] == Access::Full,
                Op::Dropout { .. } => true,
                _ => false,
            };
            let donor = node.inputs.iter().enumerate().find_map(|(i, x)| {
                let v = self.lowered.views[x.index()];
                let buffer = self.buffer[v.root.index()];
                let fits = full(i)
                    && self.step.graph.ty(*x) == &node.ty
                    && v.offset == 0
                    && v.ld == node.ty.last()
                    && self.buffered(v.root)
                    && self.lowered.kinds[v.root.index()] == BufferKind::Arena
                    && self.step.graph.ty(v.root).len() == node.ty.len();
                (fits && self.live_ranges[buffer.index()]?.end == at).then_some(buffer)
            });
            let (Some(donor), Some(mine)) = (donor, self.live_ranges[id.index()]) else { continue };
            self.buffer[id.index()] = donor;
            self.live_ranges[id.index()] = None;
            if let Some(range) = &mut self.live_ranges[donor.index()] {
                range.end = mine.end;
            }
        }
    }

    /// Extends every live range by `instructions`, or to the end of the program if all values together
    /// are small.
    pub(super) fn delay_reuse(&mut self, instructions: usize) {
        let all: usize = self.live_ranges.iter().flatten().map(|range| range.bytes).sum();
        let instructions = match instructions > 0 && all <= MIN_REUSE_BYTES {
            true => self.lowered.instrs.len(),
            false => instructions,
        };
        self.live_ranges.iter_mut().flatten().for_each(|range| range.end += instructions);
    }
}
