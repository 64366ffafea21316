//! Elementwise fusion: each chain of elementwise ops over the same elements becomes one tape. A result that only
//! elementwise ops read, and that costs less to compute than to write and read, is computed again in each of their tapes.
//!
//! After this pass there are no unary, binary or select nodes: executors run tapes only.

use super::{Rewriter, use_counts};
use crate::graph::{Graph, Node, NodeId};
use crate::ops::elementwise::access;
use crate::ops::{Access, Binary, Instr, Op, Tape, Unary};
use crate::step::Step;

/// Maximum length of a fused tape: the registers of longer tapes would exceed the L1 cache.
const MAX_INSTRS: usize = 32;

/// Maximum cost of a result that is computed again instead of stored, in additions.
const MAX_RECOMPUTED: usize = 12;

/// Rewrites the step with tapes in place of elementwise nodes.
pub fn fuse_elementwise(step: Step) -> Step {
    merge_tapes(fuse_nodes(step))
}

/// Inlines tapes of which the result is read by one other tape only, however many of its instructions read it.
fn merge_tapes(step: Step) -> Step {
    let (live, uses) = (step.live(), use_counts(&step));
    let mut r = Rewriter::new(&step);
    for id in step.graph.ids().filter(|id| live[id.index()]) {
        let node = step.graph.node(id);
        let inputs: Vec<NodeId> = node.inputs.iter().map(|x| r.get(*x)).collect();
        let (op, inputs) = match &node.op {
            Op::Fused(tape) => {
                let absorb: Vec<bool> = node.inputs.iter().map(|x| uses[x.index()] == 1).collect();
                merge(&r.graph, tape, &inputs, &absorb, &node.ty)
            }
            op => (op.clone(), inputs),
        };
        r.graph.set_layer(node.layer);
        r.map[id.index()] = Some(r.graph.push_typed(op, inputs, node.ty.clone()));
    }
    super::simplify(r.finish(step))
}

/// A tape with the tapes of absorbed operands inlined.
fn merge(
    g: &Graph,
    tape: &Tape,
    inputs: &[NodeId],
    absorb: &[bool],
    ty: &crate::Type,
) -> (Op, Vec<NodeId>) {
    let mut t = Builder::new(g, ty);
    let mut budget = MAX_INSTRS.saturating_sub(tape.instrs.len());
    let mut absorbed = vec![None; inputs.len()];
    for (i, x) in inputs.iter().enumerate().filter(|(i, _)| absorb[*i]) {
        match &g.node(*x).op {
            Op::Fused(inner) if g.ty(*x) == ty && inner.instrs.len() <= budget => {
                budget -= inner.instrs.len();
                absorbed[i] = Some(t.inline(inner, &g.node(*x).inputs));
            }
            _ => {}
        }
    }
    let last = t.replay(tape, |t, i| absorbed[i].unwrap_or_else(|| t.operand(inputs[i])));
    t.tape.outputs = vec![last];
    (Op::Fused(t.tape), t.operands)
}

/// Rewrites the step with a tape for each chain of nodes.
fn fuse_nodes(step: Step) -> Step {
    let (live, uses) = (step.live(), use_counts(&step));
    let elementwise_users = only_elementwise_users(&step, &live);
    let mut r = Rewriter::new(&step);
    for id in step.graph.ids().filter(|id| live[id.index()]) {
        let node = step.graph.node(id);
        let inputs: Vec<NodeId> = node.inputs.iter().map(|x| r.get(*x)).collect();
        let absorbed = |x: &NodeId| {
            let may_repeat = elementwise_users[x.index()] && recomputable(r.graph.node(r.get(*x)));
            uses[x.index()] == 1 || may_repeat
        };
        let absorb: Vec<bool> = node.inputs.iter().map(absorbed).collect();
        let (op, inputs) = match node.op {
            Op::Unary(_) | Op::Binary(_) | Op::Select => {
                fuse(&r.graph, &node.op, &inputs, &absorb, &node.ty)
            }
            _ => (node.op.clone(), inputs),
        };
        r.graph.set_layer(node.layer);
        r.map[id.index()] = Some(r.graph.push_typed(op, inputs, node.ty.clone()));
    }
    super::simplify(r.finish(step))
}

fn is_elementwise(op: &Op) -> bool {
    matches!(op, Op::Unary(_) | Op::Binary(_) | Op::Select)
}

/// Whether all that reads a node is elementwise and of the node's type: the node need not be stored.
fn only_elementwise_users(step: &Step, live: &[bool]) -> Vec<bool> {
    let g = &step.graph;
    let mut only = vec![true; live.len()];
    for id in g.ids().filter(|id| live[id.index()]) {
        let node = g.node(id);
        for x in &node.inputs {
            only[x.index()] &= is_elementwise(&node.op) && g.ty(*x) == &node.ty;
        }
    }
    step.roots().for_each(|root| only[root.index()] = false);
    only
}

/// Whether reading a node's operand and computing the node again is cheaper than storing its result.
fn recomputable(node: &Node) -> bool {
    let Op::Fused(tape) = &node.op else { return false };
    let full = tape.inputs.iter().filter(|how| **how == Access::Full).count();
    let cost = tape.instrs.iter().map(cost).try_fold(0, |sum, cost| Some(sum + cost?));
    full == 1 && cost.is_some_and(|cost| cost <= MAX_RECOMPUTED)
}

/// The cost of an instruction in additions, if it is not one of many operations.
fn cost(instr: &Instr) -> Option<usize> {
    match instr {
        Instr::Input(_) | Instr::Const(_) => Some(0),
        Instr::Select(..) => Some(1),
        Instr::Unary(Unary::Neg | Unary::Abs | Unary::Sign | Unary::Square | Unary::Relu, _) => {
            Some(1)
        }
        Instr::Unary(Unary::Exp | Unary::Sigmoid, _) => Some(8),
        Instr::Unary(..) | Instr::Binary(Binary::Div | Binary::Pow, ..) => None,
        Instr::Binary(..) => Some(1),
    }
}

/// The tape of an op, with the tapes of absorbed operands inlined.
fn fuse(
    g: &Graph,
    op: &Op,
    inputs: &[NodeId],
    absorb: &[bool],
    ty: &crate::Type,
) -> (Op, Vec<NodeId>) {
    let mut t = Builder::new(g, ty);
    let mut budget = MAX_INSTRS;
    let mut regs = Vec::with_capacity(inputs.len());
    let is_const = |x: &NodeId| matches!(g.node(*x).op, Op::Const { .. });
    // A tape of constants only would have no elements to iterate over, so it reads them as operands.
    let all_const = inputs.iter().all(is_const);
    for (x, absorb) in inputs.iter().zip(absorb) {
        let reg = match &g.node(*x).op {
            Op::Const { bits, dims } if dims.is_empty() && !all_const => {
                t.push(Instr::Const(*bits))
            }
            Op::Fused(inner) if *absorb && g.ty(*x) == ty && inner.instrs.len() < budget => {
                budget -= inner.instrs.len();
                t.inline(inner, &g.node(*x).inputs)
            }
            _ => t.operand(*x),
        };
        regs.push(reg);
    }
    let last = t.push(match op {
        Op::Unary(u) => Instr::Unary(*u, regs[0]),
        Op::Binary(b) => Instr::Binary(*b, regs[0], regs[1]),
        Op::Select => Instr::Select(regs[0], regs[1], regs[2]),
        other => unreachable!("{} is not elementwise", other.name()),
    });
    t.tape.outputs = vec![last];
    (Op::Fused(t.tape), t.operands)
}

struct Builder<'a> {
    g: &'a Graph,
    ty: &'a crate::Type,
    tape: Tape,
    operands: Vec<NodeId>,
}

impl<'a> Builder<'a> {
    fn new(g: &'a Graph, ty: &'a crate::Type) -> Builder<'a> {
        let tape = Tape { inputs: vec![], instrs: vec![], outputs: vec![] };
        Builder { g, ty, tape, operands: vec![] }
    }

    fn push(&mut self, instr: Instr) -> u16 {
        // A value that is read or computed twice needs only one register.
        if let Some(i) = self.tape.instrs.iter().position(|k| *k == instr) {
            return i as u16;
        }
        self.tape.instrs.push(instr);
        self.tape.instrs.len() as u16 - 1
    }

    fn operand(&mut self, x: NodeId) -> u16 {
        let i = self.operands.iter().position(|o| *o == x).unwrap_or_else(|| {
            let how = access(self.ty, self.g.ty(x)).expect("checked when the node was built");
            self.operands.push(x);
            self.tape.inputs.push(how);
            self.operands.len() - 1
        });
        self.push(Instr::Input(i as u16))
    }

    fn inline(&mut self, inner: &Tape, operands: &[NodeId]) -> u16 {
        self.replay(inner, |t, i| t.operand(operands[i]))
    }

    /// Appends the instructions of a tape, whose operands are in the registers that `read` returns.
    fn replay(&mut self, inner: &Tape, mut read: impl FnMut(&mut Self, usize) -> u16) -> u16 {
        let mut map: Vec<u16> = Vec::with_capacity(inner.instrs.len());
        for instr in &inner.instrs {
            let at = |r: u16| map[r as usize];
            let reg = match *instr {
                Instr::Input(i) => read(self, i as usize),
                Instr::Const(bits) => self.push(Instr::Const(bits)),
                Instr::Unary(u, a) => self.push(Instr::Unary(u, at(a))),
                Instr::Binary(b, l, r) => self.push(Instr::Binary(b, at(l), at(r))),
                Instr::Select(c, a, b) => self.push(Instr::Select(at(c), at(a), at(b))),
            };
            map.push(reg);
        }
        map[inner.outputs[0] as usize]
    }
}
