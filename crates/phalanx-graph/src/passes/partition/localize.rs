//! The last step of model parallelism: dimensions and attributes of parts instead of whole values.

use super::super::{Rewriter, checked, use_counts};
use crate::error::Result;
use crate::functions::layout::iota;
use crate::geometry::ConvGeom;
use crate::graph::{Graph, Node, NodeId};
use crate::ops::{Binary, ModelOp, Op, PartsOp};
use crate::step::Step;
use crate::types::{DType, ModelSpace, Type};

/// Rewrites a step that [`partition`](super::partition) has divided among `parts` devices.
pub fn localize(step: Step, parts: usize) -> Result<Step> {
    let (live, uses) = (step.live(), use_counts(&step));
    let mut l = Localizer { parts, r: Rewriter::new(&step) };
    l.params(&step.graph);
    for id in step.graph.ids().filter(|id| live[id.index()]) {
        let node = step.graph.node(id);
        l.r.graph.set_layer(node.layer);
        let inputs: Vec<NodeId> = node.inputs.iter().map(|x| l.r.get(*x)).collect();
        let only_use = |x: NodeId| uses[x.index()] == 1;
        let new = l.node(&step.graph, node, &inputs, only_use)?;
        l.r.map[id.index()] = Some(new);
    }
    checked("localize", l.r.finish(step))
}

struct Localizer {
    parts: usize,
    r: Rewriter,
}

impl Localizer {
    fn graph(&mut self) -> &mut Graph {
        &mut self.r.graph
    }

    /// The type of a part.
    fn part(&self, ty: &Type) -> Type {
        let mut part = ty.clone().with_model(ModelSpace::Mirrored);
        if let ModelSpace::Partitioned(axis) = ty.model {
            part.dims[axis] /= self.parts;
        }
        part
    }

    /// Partitioned parameters have the dimensions of their parts.
    fn params(&mut self, graph: &Graph) {
        for (i, spec) in graph.params().iter().enumerate() {
            if let Some(axis) = spec.partition_axis {
                let mut spec = spec.clone();
                spec.dims[axis] /= self.parts;
                self.graph().set_param(crate::ParamId(i as u32), spec);
            }
        }
    }

    fn node(
        &mut self,
        old: &Graph,
        node: &Node,
        x: &[NodeId],
        only_use: impl Fn(NodeId) -> bool,
    ) -> Result<NodeId> {
        let ty = self.part(&node.ty);
        match &node.op {
            Op::Model(op) => self.conversion(old, *op, node, x[0], only_use),
            Op::Gather if old.ty(node.inputs[0]).model == ModelSpace::Partitioned(0) => {
                self.gather(x[0], x[1])
            }
            Op::Param { .. } | Op::Feed { .. } => {
                Ok(self.graph().push_typed(node.op.clone(), x.to_vec(), ty))
            }
            op => {
                let op = self.local(op, x, &ty);
                self.graph().push(op, x)
            }
        }
    }

    /// The op with the dimensions of parts.
    fn local(&self, op: &Op, x: &[NodeId], ty: &Type) -> Op {
        let channels = |x: NodeId| self.r.graph.ty(x).last();
        let geom = |geom: &ConvGeom, input: usize, output: usize| {
            let mut geom = *geom;
            (geom.input[2], geom.output[2]) = (input, output);
            geom
        };
        match op {
            Op::Reshape { .. } => Op::Reshape { dims: ty.dims.clone() },
            Op::Broadcast { .. } => Op::Broadcast { dims: ty.dims.clone() },
            Op::Conv(g, e) => Op::Conv(geom(g, channels(x[0]), ty.last()), *e),
            Op::ConvGradInput(g) => Op::ConvGradInput(geom(g, ty.last(), channels(x[0]))),
            Op::ConvGradKernel(g) => Op::ConvGradKernel(geom(g, channels(x[0]), channels(x[1]))),
            Op::Pool(kind, g) => Op::Pool(*kind, geom(g, ty.last(), ty.last())),
            Op::PoolGrad(kind, g) => Op::PoolGrad(*kind, geom(g, ty.last(), ty.last())),
            Op::Dropout { rate, key, noise } => {
                let size = |(noise, d): (&usize, &usize)| if *noise == 1 { 1 } else { *d };
                let noise = noise.iter().zip(&ty.dims).map(size).collect();
                Op::Dropout { rate: *rate, key: *key, noise }
            }
            other => other.clone(),
        }
    }

    fn conversion(
        &mut self,
        old: &Graph,
        op: ModelOp,
        node: &Node,
        x: NodeId,
        only_use: impl Fn(NodeId) -> bool,
    ) -> Result<NodeId> {
        let parts = self.parts;
        let parts = match op {
            ModelOp::AllReduce(kind) => PartsOp::AllReduce(kind),
            ModelOp::AllGather { axis } => PartsOp::AllGather { axis, parts },
            ModelOp::Slice { axis } => {
                let whole = old.node(node.inputs[0]);
                let operand = |i: usize| self.r.get(whole.inputs[i]);
                let last = axis + 1 == whole.ty.dims.len();
                match whole.op {
                    // Only the part is computed.
                    Op::GatherGrad { .. } if axis == 0 && only_use(node.inputs[0]) => {
                        let (index, dy) = (operand(0), operand(1));
                        return self.gather_grad(index, dy, whole.ty.dims[0]);
                    }
                    Op::OneHot { depth } if last => {
                        let labels = operand(0);
                        return self.one_hot(labels, depth);
                    }
                    _ => PartsOp::Slice { axis, parts },
                }
            }
        };
        self.graph().push(Op::Parts(parts), &[x])
    }

    /// The numbers of this device's part of `count` classes or words.
    fn numbers(&mut self, count: usize) -> Result<NodeId> {
        let all = iota(self.graph(), count)?;
        let take = PartsOp::Slice { axis: 0, parts: self.parts };
        self.graph().push(Op::Parts(take), &[all])
    }

    /// The positions of words in this device's part of a table of `words` words, and 1 for those that it holds; others have
    /// position zero.
    fn positions(&mut self, index: NodeId, words: usize) -> Result<(NodeId, NodeId)> {
        let numbers = self.numbers(words)?;
        let held = words / self.parts;
        let g = self.graph();
        let first = g.push(Op::Slice { axis: 0, start: 0, len: 1 }, &[numbers])?;
        let first = g.reshape(first, &[])?;
        let word = g.cast(index, DType::F32)?;
        let at = g.sub(word, first)?;
        let (zero, end) = (g.scalar(0.0), g.scalar(held as f64));
        let from = g.binary(Binary::Ge, at, zero)?;
        let beyond = g.binary(Binary::Ge, at, end)?;
        let inside = g.sub(from, beyond)?;
        let at = g.select(inside, at, zero)?;
        // An index without a word gives NaN, as in a table that is whole.
        let (all, nan) = (g.scalar(words as f64), g.scalar(f64::NAN));
        let (above, beyond) = (g.binary(Binary::Ge, word, zero)?, g.binary(Binary::Ge, word, all)?);
        let known = g.sub(above, beyond)?;
        let inside = g.select(known, inside, nan)?;
        Ok((g.cast(at, DType::I32)?, inside))
    }

    /// A lookup in a table whose words are divided: zero for words of other devices.
    fn gather(&mut self, table: NodeId, index: NodeId) -> Result<NodeId> {
        let words = self.r.graph.ty(table).dims[0] * self.parts;
        let (at, inside) = self.positions(index, words)?;
        let g = self.graph();
        let found = g.push(Op::Gather, &[table, at])?;
        let inside = per_vector(g, inside)?;
        g.mul(found, inside)
    }

    /// Its derivative: vectors of words that other devices hold add nothing.
    fn gather_grad(&mut self, index: NodeId, dy: NodeId, words: usize) -> Result<NodeId> {
        let vocab = words / self.parts;
        let (at, inside) = self.positions(index, words)?;
        let g = self.graph();
        let inside = per_vector(g, inside)?;
        let dy = g.mul(dy, inside)?;
        g.push(Op::GatherGrad { vocab }, &[at, dy])
    }

    /// This device's part of one-hot labels.
    fn one_hot(&mut self, labels: NodeId, depth: usize) -> Result<NodeId> {
        let numbers = self.numbers(depth)?;
        let g = self.graph();
        let labels = g.cast(labels, DType::F32)?;
        let labels = per_vector(g, labels)?;
        g.binary(Binary::Eq, labels, numbers)
    }
}

/// A number for each vector, with an axis of size one for the vector.
fn per_vector(g: &mut Graph, x: NodeId) -> Result<NodeId> {
    let mut dims = g.ty(x).dims.clone();
    dims.push(1);
    g.reshape(x, &dims)
}
