//! Barriers: which instructions wait for other workers, and the order that needs the fewest.

use super::aliasing::{View, last_axis_rows};
use super::buckets::Buckets;
use super::linear::{LinearInstr, Target};
use super::sharded_dense::ShardedDense;
use crate::graph::{Graph, NodeId};
use crate::ops::{Op, PartsOp};
use crate::step::Step;
use crate::types::Scope;

/// Inserts a barrier between any two instructions: workers read what the others wrote, and buffers
/// of dead values are reused.
pub(super) fn barrier_after_each(instrs: Vec<LinearInstr>) -> Vec<LinearInstr> {
    let mut out = Vec::with_capacity(2 * instrs.len());
    for instr in instrs {
        if !out.is_empty() {
            out.push(LinearInstr::Barrier(Scope::Device));
        }
        out.push(instr);
    }
    out
}

/// Whether an op reads what the other devices of the replica hold.
pub(super) fn exchanges_parts(op: &Op) -> bool {
    matches!(op, Op::Parts(PartsOp::AllReduce(_) | PartsOp::AllGather { .. }))
}

/// Orders the nodes so that each collective comes after everything that does not depend on it: the
/// collectives of parallel branches then share a barrier.
pub(super) fn order_minimizing_barriers(g: &Graph, mut ids: Vec<NodeId>) -> Vec<NodeId> {
    let mut order = Vec::with_capacity(ids.len());
    let mut pending = vec![false; g.nodes().len()];
    while !ids.is_empty() {
        let mut waiting = vec![];
        let mut collectives = vec![];
        for id in ids {
            let node = g.node(id);
            let blocked = node.inputs.iter().any(|x| pending[x.index()]);
            let collective = matches!(node.op, Op::AllReduce { .. } | Op::ReplicaMean)
                || exchanges_parts(&node.op);
            pending[id.index()] = blocked || collective;
            match (blocked, collective) {
                (true, _) => waiting.push(id),
                (false, true) => collectives.push(id),
                (false, false) => order.push(id),
            }
        }
        collectives.iter().chain(&waiting).for_each(|id| pending[id.index()] = false);
        order.extend(collectives);
        ids = waiting;
    }
    order
}

/// Emits the instructions of nodes, with the barriers that they need.
pub(super) struct Emitter<'a> {
    g: &'a Graph,
    views: &'a [View],
    sharded: &'a ShardedDense,
    pub instrs: Vec<LinearInstr>,
    /// Position in `instrs` at which each node is complete.
    done: Vec<usize>,
    /// Position after the last barrier over a device, and over all workers.
    device_barrier: usize,
    all_barrier: usize,
}

impl<'a> Emitter<'a> {
    pub fn new(g: &'a Graph, views: &'a [View], sharded: &'a ShardedDense) -> Emitter<'a> {
        let done = vec![0; g.nodes().len()];
        Emitter { g, views, sharded, instrs: vec![], done, device_barrier: 0, all_barrier: 0 }
    }

    pub fn barrier(&mut self, scope: Scope) {
        self.instrs.push(LinearInstr::Barrier(scope));
        self.device_barrier = self.instrs.len();
        if scope == Scope::All {
            self.all_barrier = self.instrs.len();
        }
    }

    /// Emits a barrier over the scope, unless there is already one after position `produced`.
    fn wait_for(&mut self, scope: Scope, produced: usize) {
        let last = match scope {
            Scope::Device => self.device_barrier,
            Scope::All => self.all_barrier,
        };
        if produced >= last {
            self.barrier(scope);
        }
    }

    /// Emits a barrier over the device, unless all its workers are known to have completed the node's rows.
    fn wait_for_rows(&mut self, id: NodeId) {
        if !matches!(self.g.node(self.views[id.index()].root).op, Op::Feed { .. }) {
            self.wait_for(Scope::Device, self.done[id.index()]);
        }
    }

    /// Emits a product with a sharded kernel. Other workers read its operand and its result.
    fn sharded_product(&mut self, id: NodeId) {
        let node = self.g.node(id);
        self.wait_for_rows(node.inputs[0]);
        self.instrs.push(LinearInstr::Compute { id, sharded: true });
        self.barrier(Scope::Device);
        if let Op::Dot(_) = node.op {
            self.instrs.push(LinearInstr::ReduceScatter(id));
        }
    }

    /// Inserts the reduction of every bucket as soon as all workers have its gradients.
    pub fn reduce_buckets(&mut self, step: &Step, buckets: &Buckets) {
        let mut ready = vec![];
        for range in &buckets.ranges {
            let nodes = buckets.order[range.clone()].iter().filter_map(|i| step.gradients[*i].node);
            let done = |id: NodeId| match self.sharded.is_gradient(id) {
                true => self.g.node(id).inputs.iter().map(|x| self.done[x.index()]).max(),
                false => Some(self.done[id.index()]),
            };
            // Buckets are reduced in order.
            let before = ready.last().copied().unwrap_or(0);
            ready.push(nodes.filter_map(done).fold(before, usize::max));
        }
        for (bucket, at) in ready.into_iter().enumerate().rev() {
            let barrier = || LinearInstr::Barrier(Scope::All);
            let reduction = [barrier(), LinearInstr::ReduceGradients { bucket }, barrier()];
            self.instrs.splice(at..at, reduction);
        }
    }

    /// Emits the instructions that compute a node.
    pub fn node(&mut self, id: NodeId) {
        let node = self.g.node(id);
        let v = self.views[id.index()];
        let is_view_of = |x: NodeId, root: NodeId| self.views[x.index()].root == root;
        match node.op {
            Op::Feed { .. } | Op::Param { .. } => {}
            _ if self.sharded.is_product(id) => self.sharded_product(id),
            Op::AllReduce { scope } => {
                self.wait_for(scope, self.done[node.inputs[0].index()]);
                self.instrs.push(LinearInstr::AllReduce(id));
            }
            Op::ReplicaMean => {
                self.wait_for(Scope::All, self.done[node.inputs[0].index()]);
                self.instrs.push(LinearInstr::ReplicaMean(id));
            }
            ref op if exchanges_parts(op) => {
                self.wait_for(Scope::All, self.done[node.inputs[0].index()]);
                self.instrs.push(LinearInstr::ExchangeParts(id));
            }
            Op::Reshape { .. } if v.root == id => {
                self.instrs.push(LinearInstr::Copy { from: node.inputs[0], to: Target::Node(id) });
            }
            Op::Reshape { .. } => {}
            Op::Slice { .. } if v.root != id => {}
            Op::Concat { axis } if last_axis_rows(&node.ty, axis) => {
                let mut offset = 0;
                let mut copies = vec![];
                for x in &node.inputs {
                    let width = self.g.ty(*x).last();
                    if !(is_view_of(*x, id) && self.views[x.index()].offset == offset) {
                        let to = Target::Slice { of: id, offset, width };
                        copies.push(LinearInstr::Copy { from: *x, to });
                    }
                    offset += width;
                }
                self.instrs.extend(copies);
            }
            _ => self.instrs.push(LinearInstr::Compute { id, sharded: false }),
        }
        self.done[id.index()] = self.instrs.len();
    }
}
