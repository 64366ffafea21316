//! Constant folding, algebraic identities, common subexpression elimination and dead code elimination.

use super::Rewriter;
use crate::graph::{Graph, NodeId};
use crate::ops::{Binary, Op, Unary};
use crate::step::Step;
use std::collections::HashMap;

/// Rewrites the step without dead, repeated or constant computation.
pub fn simplify(step: Step) -> Step {
    let live = step.live();
    let mut r = Rewriter::new(&step);
    let mut seen: HashMap<(Op, Vec<NodeId>), NodeId> = HashMap::new();
    for id in step.graph.ids().filter(|id| live[id.index()]) {
        let node = step.graph.node(id);
        let inputs: Vec<NodeId> = node.inputs.iter().map(|x| r.get(*x)).collect();
        let new = match identity(&r.graph, &node.op, &inputs, &node.ty.dims) {
            Some(same) => same,
            None => {
                let op = fold(&r.graph, &node.op, &inputs).unwrap_or_else(|| node.op.clone());
                let inputs = if matches!(op, Op::Const { .. }) { vec![] } else { inputs };
                *seen.entry((op.clone(), inputs.clone())).or_insert_with(|| {
                    r.graph.set_layer(node.layer);
                    r.graph.push_typed(op, inputs, node.ty.clone())
                })
            }
        };
        r.map[id.index()] = Some(new);
    }
    remove_dead_nodes(r.finish(step))
}

/// Removes dead nodes.
fn remove_dead_nodes(step: Step) -> Step {
    let live = step.live();
    if live.iter().all(|l| *l) {
        return step;
    }
    let mut r = Rewriter::new(&step);
    for id in step.graph.ids().filter(|id| live[id.index()]) {
        let node = step.graph.node(id);
        let inputs = node.inputs.iter().map(|x| r.get(*x)).collect();
        r.graph.set_layer(node.layer);
        r.map[id.index()] = Some(r.graph.push_typed(node.op.clone(), inputs, node.ty.clone()));
    }
    r.finish(step)
}

fn constant(g: &Graph, id: NodeId) -> Option<f64> {
    match g.node(id).op {
        Op::Const { bits, .. } => Some(f64::from_bits(bits)),
        _ => None,
    }
}

/// The operand that an op leaves unchanged: `x + 0`, `x * 1`, a reshape to the same shape, etc.
fn identity(g: &Graph, op: &Op, x: &[NodeId], dims: &[usize]) -> Option<NodeId> {
    let dims_ok = |id: NodeId| (g.ty(id).dims == dims).then_some(id);
    // An operand can replace the result only if it has the same space.
    let space_ok = |id: NodeId, other: NodeId| {
        let (a, b) = (g.ty(id).space, g.ty(other).space);
        (a == b || b == crate::Space::Mirrored).then_some(id)
    };
    match op {
        Op::Binary(Binary::Add) if constant(g, x[1]) == Some(0.0) => dims_ok(space_ok(x[0], x[1])?),
        Op::Binary(Binary::Add) if constant(g, x[0]) == Some(0.0) => dims_ok(space_ok(x[1], x[0])?),
        Op::Binary(Binary::Sub) if constant(g, x[1]) == Some(0.0) => dims_ok(space_ok(x[0], x[1])?),
        Op::Binary(Binary::Mul) if constant(g, x[1]) == Some(1.0) => dims_ok(space_ok(x[0], x[1])?),
        Op::Binary(Binary::Mul) if constant(g, x[0]) == Some(1.0) => dims_ok(space_ok(x[1], x[0])?),
        Op::Binary(Binary::Div) if constant(g, x[1]) == Some(1.0) => dims_ok(space_ok(x[0], x[1])?),
        Op::Reshape { .. } | Op::Broadcast { .. } => dims_ok(x[0]),
        Op::Transpose { perm } if perm.iter().copied().eq(0..perm.len()) => Some(x[0]),
        Op::Transpose { perm } => match &g.node(x[0]).op {
            // A pair of inverse transposes, as between two layers with channels first.
            Op::Transpose { perm: first } if perm.iter().map(|p| first[*p]).eq(0..perm.len()) => {
                Some(g.node(x[0]).inputs[0])
            }
            _ => None,
        },
        Op::Unary(Unary::Neg) => match g.node(x[0]).op {
            Op::Unary(Unary::Neg) => Some(g.node(x[0]).inputs[0]),
            _ => None,
        },
        _ => None,
    }
}

/// The constant result of an op on constants.
fn fold(g: &Graph, op: &Op, x: &[NodeId]) -> Option<Op> {
    let value = match op {
        Op::Unary(u) => unary(*u, constant(g, x[0])?)?,
        Op::Binary(b) => binary(*b, constant(g, x[0])?, constant(g, x[1])?)?,
        Op::Reshape { .. } | Op::Broadcast { .. } => constant(g, x[0])?,
        _ => return None,
    };
    let dims = match op {
        Op::Reshape { dims } | Op::Broadcast { dims } => dims.clone(),
        Op::Binary(_) => {
            crate::ops::elementwise::broadcast_dims(&g.ty(x[0]).dims, &g.ty(x[1]).dims)?
        }
        _ => g.ty(x[0]).dims.clone(),
    };
    Some(Op::Const { bits: value.to_bits(), dims })
}

/// Folds functions that are accurate enough in f64; the others are left to the executor.
fn unary(u: Unary, x: f64) -> Option<f64> {
    Some(match u {
        Unary::Neg => -x,
        Unary::Abs => x.abs(),
        Unary::Recip => 1.0 / x,
        Unary::Square => x * x,
        Unary::Sqrt => x.sqrt(),
        Unary::Rsqrt => 1.0 / x.sqrt(),
        Unary::Exp => x.exp(),
        Unary::Log => x.ln(),
        Unary::Relu if x.is_nan() => x,
        Unary::Relu => x.max(0.0),
        Unary::Floor => x.floor(),
        Unary::Round => x.round_ties_even(),
        Unary::Sign
        | Unary::Expm1
        | Unary::Log1p
        | Unary::Tanh
        | Unary::Sigmoid
        | Unary::Erf
        | Unary::Sin
        | Unary::Cos
        | Unary::Atan => return None,
    })
}

fn binary(b: Binary, l: f64, r: f64) -> Option<f64> {
    Some(match b {
        Binary::Add => l + r,
        Binary::Sub => l - r,
        Binary::Mul => l * r,
        Binary::Div => l / r,
        // NaN propagates, unlike in `f64::max`.
        Binary::Max | Binary::Min if l.is_nan() || r.is_nan() => f64::NAN,
        Binary::Max => l.max(r),
        Binary::Min => l.min(r),
        Binary::Pow => l.powf(r),
        Binary::Rem => l % r,
        Binary::Gt | Binary::Ge | Binary::Eq => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::step::Fetch;
    use crate::types::Type;

    #[test]
    fn inverse_transposes_cancel() {
        let mut g = Graph::new();
        let feed = g.add_feed("x", Type::rows([2, 3, 4]));
        let x = g.feed(feed);
        let first = g.push(Op::Transpose { perm: vec![2, 0, 1] }, &[x]).unwrap();
        let back = g.push(Op::Transpose { perm: vec![1, 2, 0] }, &[first]).unwrap();
        let other = g.push(Op::Transpose { perm: vec![2, 0, 1] }, &[first]).unwrap();
        let y = g.unary(Unary::Tanh, back).unwrap();
        let mut step = Step::new("test", g);
        step.fetches = [y, other].map(|node| Fetch { name: "y".into(), node }).into();
        let step = simplify(step);
        let names: Vec<&str> = step.graph.nodes().iter().map(|n| n.op.name()).collect();
        assert_eq!(names, ["feed", "transpose", "transpose", "tanh"]);
        assert_eq!(step.graph.nodes()[3].inputs, [NodeId(0)]);
    }
}
