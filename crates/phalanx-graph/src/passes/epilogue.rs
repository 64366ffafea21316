//! Forward fusion, before autodiff: bias and ReLU into the preceding product, ReLU into batch
//! normalisation. The derivative rules support these forms, so the backward pass is fused too.

use super::{Rewriter, use_counts};
use crate::graph::{Graph, NodeId};
use crate::ops::{BatchNormAttrs, Binary, Epilogue, Op, Unary};
use crate::step::Step;

/// Rewrites `product + bias` and `relu(product)` into epilogues where the product has no other use.
pub fn fuse_epilogues(step: Step) -> Step {
    let (live, uses) = (step.live(), use_counts(&step));
    let mut r = Rewriter::new(&step);
    for id in step.graph.ids().filter(|id| live[id.index()]) {
        let node = step.graph.node(id);
        let inputs: Vec<NodeId> = node.inputs.iter().map(|x| r.get(*x)).collect();
        let single = |i: usize| uses[node.inputs[i].index()] == 1;
        let fused = match node.op {
            Op::Binary(Binary::Add) if single(0) => add_bias(&r.graph, inputs[0], inputs[1]),
            Op::Unary(Unary::Relu) if single(0) => add_relu(&r.graph, inputs[0]),
            _ => None,
        };
        let (op, inputs) = fused.unwrap_or_else(|| (node.op.clone(), inputs));
        r.graph.set_layer(node.layer);
        r.map[id.index()] = Some(r.graph.push_typed(op, inputs, node.ty.clone()));
    }
    // Removes the fused products, which are now dead.
    super::simplify(r.finish(step))
}

fn add_bias(g: &Graph, product: NodeId, bias: NodeId) -> Option<(Op, Vec<NodeId>)> {
    let node = g.node(product);
    let plain = Epilogue::default();
    let with = Epilogue { bias: true, relu: false };
    let op = match node.op {
        Op::Dot(e) if e == plain => Op::Dot(with),
        Op::Conv(geom, e) if e == plain => Op::Conv(geom, with),
        _ => return None,
    };
    let ty = g.ty(bias);
    let fits = matches!(g.node(bias).op, Op::Param { .. }) && ty.dims == [node.ty.last()];
    fits.then(|| (op, vec![node.inputs[0], node.inputs[1], bias]))
}

fn add_relu(g: &Graph, product: NodeId) -> Option<(Op, Vec<NodeId>)> {
    let node = g.node(product);
    let op = match node.op {
        Op::Dot(e) if !e.relu => Op::Dot(Epilogue { relu: true, ..e }),
        Op::Conv(geom, e) if !e.relu => Op::Conv(geom, Epilogue { relu: true, ..e }),
        Op::BatchNorm(a) if !a.relu => Op::BatchNorm(BatchNormAttrs { relu: true, ..a }),
        _ => return None,
    };
    Some((op, node.inputs.clone()))
}
