//! Elementwise fusion: each chain of elementwise ops over the same elements becomes one tape.
//!
//! After this pass there are no unary, binary or select nodes: executors run tapes only.

use super::{Rewriter, use_counts};
use crate::graph::{Graph, NodeId};
use crate::ops::elementwise::access;
use crate::ops::{Instr, Op, Tape};
use crate::step::Step;

/// Maximum length of a fused tape: the registers of longer tapes would exceed the L1 cache.
const MAX_INSTRS: usize = 32;

/// Rewrites the step with tapes in place of elementwise nodes.
pub fn fuse_elementwise(step: Step) -> Step {
    let (live, uses) = (step.live(), use_counts(&step));
    let mut r = Rewriter::new(&step);
    for id in step.graph.ids().filter(|id| live[id.index()]) {
        let node = step.graph.node(id);
        let inputs: Vec<NodeId> = node.inputs.iter().map(|x| r.get(*x)).collect();
        let absorb: Vec<bool> = node.inputs.iter().map(|x| uses[x.index()] == 1).collect();
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

/// The tape of an op, with the tapes of absorbed operands inlined.
fn fuse(
    g: &Graph,
    op: &Op,
    inputs: &[NodeId],
    absorb: &[bool],
    ty: &crate::Type,
) -> (Op, Vec<NodeId>) {
    let mut t = Builder {
        g,
        ty,
        tape: Tape { inputs: vec![], instrs: vec![], outputs: vec![] },
        operands: vec![],
    };
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

impl Builder<'_> {
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
        let mut map = Vec::with_capacity(inner.instrs.len());
        for instr in &inner.instrs {
            let at = |r: u16| map[r as usize];
            let new = match *instr {
                Instr::Input(i) => {
                    let reg = self.operand(operands[i as usize]);
                    map.push(reg);
                    continue;
                }
                Instr::Const(bits) => Instr::Const(bits),
                Instr::Unary(u, a) => Instr::Unary(u, at(a)),
                Instr::Binary(b, l, r) => Instr::Binary(b, at(l), at(r)),
                Instr::Select(c, a, b) => Instr::Select(at(c), at(a), at(b)),
            };
            let reg = self.push(new);
            map.push(reg);
        }
        map[inner.outputs[0] as usize]
    }
}
