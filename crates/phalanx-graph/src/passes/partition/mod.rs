//! Model parallelism: divides the work of a replica among its devices.
//!
//! The step that comes in computes on whole values; some of its parameters are marked as partitioned along an axis. [`partition`]
//! walks through the nodes, forward and backward pass alike, and lets each compute on the parts that its operands have, as
//! far as its axes permit (`ops/factors.rs`). Where they do not, it inserts a conversion: a sum, a gather, or the selection
//! of a part. Types then prove that no sum is forgotten or counted twice. [`localize`] replaces the dimensions of whole
//! values by those of parts; the executors see nothing else.

mod classes;
mod localize;

pub use localize::localize;

use super::checked;
use crate::error::{GraphError, Result};
use crate::graph::{Graph, Node, NodeId, ParamId};
use crate::ops::factors::{Factors, Label, is_linear_in};
use crate::ops::{Binary, Epilogue, ModelOp, Op, ReduceKind, Unary};
use crate::step::Step;
use crate::text::shown;
use crate::types::{ModelSpace, Type};
use std::collections::HashMap;

/// Divides a step among the `parts` devices of each replica.
pub fn partition(step: Step, parts: usize) -> Result<Step> {
    let mut p = Partitioner {
        parts,
        graph: Graph::like(&step.graph),
        map: vec![None; step.graph.nodes().len()],
        conversions: HashMap::new(),
    };
    p.check_cuts()?;
    let live = step.live();
    let deferring = sums_deferred(&step, &live);
    for id in step.graph.ids().filter(|id| live[id.index()]) {
        let node = step.graph.node(id);
        p.graph.set_layer(node.layer);
        let inputs = node.inputs.iter().map(|x| p.map[x.index()].expect("operands come first"));
        let inputs = inputs.collect::<Vec<_>>();
        let mut new = p.node(node, inputs)?;
        if p.model(new) == ModelSpace::Partial && !deferring[id.index()] {
            new = p.whole(new)?;
        }
        p.map[id.index()] = Some(new);
    }
    checked("partition", p.finish(step)?)
}

/// Whether the sum of a node over the model axis may wait: all its readers only add it to others, move its elements or
/// make it smaller.
fn sums_deferred(step: &Step, live: &[bool]) -> Vec<bool> {
    let waits = |op: &Op| {
        matches!(
            op,
            Op::Unary(Unary::Neg)
                | Op::Binary(Binary::Add | Binary::Sub)
                | Op::Reshape { .. }
                | Op::Transpose { .. }
                | Op::Slice { .. }
                | Op::Reduce { kind: ReduceKind::Sum, .. }
                | Op::SumRows
                | Op::AllReduce { .. }
        )
    };
    let mut deferred = vec![true; live.len()];
    for node in step.graph.ids().filter(|id| live[id.index()]).map(|id| step.graph.node(id)) {
        node.inputs.iter().for_each(|x| deferred[x.index()] &= waits(&node.op));
    }
    deferred
}

struct Partitioner {
    parts: usize,
    graph: Graph,
    /// The new node of each old one.
    map: Vec<Option<NodeId>>,
    /// Conversions that were inserted.
    conversions: HashMap<(NodeId, ModelOp), NodeId>,
}

/// A parallelism error about a parameter.
fn cut_error(name: &str, axis: usize, expected: String, received: String) -> GraphError {
    GraphError::mismatch(format!("axis {axis} of '{}'", shown(name)), expected, received)
}

impl Partitioner {
    /// Fails if a parameter cannot be divided evenly.
    fn check_cuts(&self) -> Result<()> {
        for spec in self.graph.params() {
            let Some(axis) = spec.partition_axis else { continue };
            let Some(dim) = spec.dims.get(axis) else {
                let expected = format!("one of its {} axes", spec.dims.len());
                return Err(cut_error(&spec.name, axis, expected, axis.to_string()));
            };
            if !dim.is_multiple_of(self.parts) {
                let expected = format!("a multiple of the model axis, {}", self.parts);
                return Err(cut_error(&spec.name, axis, expected, dim.to_string()));
            }
        }
        Ok(())
    }

    fn model(&self, id: NodeId) -> ModelSpace {
        self.graph.ty(id).model
    }

    /// Appends a conversion, unless there is one already.
    fn convert(&mut self, x: NodeId, op: ModelOp) -> Result<NodeId> {
        if let Some(known) = self.conversions.get(&(x, op)) {
            return Ok(*known);
        }
        let new = self.graph.push(Op::Model(op), &[x])?;
        self.conversions.insert((x, op), new);
        Ok(new)
    }

    /// The whole value.
    fn whole(&mut self, x: NodeId) -> Result<NodeId> {
        match self.model(x) {
            ModelSpace::Mirrored => Ok(x),
            ModelSpace::Partial => self.convert(x, ModelOp::AllReduce(ReduceKind::Sum)),
            ModelSpace::PartialMax => self.convert(x, ModelOp::AllReduce(ReduceKind::Max)),
            ModelSpace::Partitioned(axis) => {
                if let Some(param) = self.parameter(x) {
                    let name = shown(&self.graph.params()[param.index()].name);
                    let layer = self.graph.layer_name(x).to_string();
                    let expected = "an axis that its ops can work on in parts";
                    let received = format!("one that layer '{}' needs whole", shown(&layer));
                    let what = format!("axis {axis} of '{name}'");
                    return Err(GraphError::mismatch(what, expected, received));
                }
                self.convert(x, ModelOp::AllGather { axis })
            }
        }
    }

    /// The value as its user needs it.
    fn converted(&mut self, x: NodeId, wanted: ModelSpace) -> Result<NodeId> {
        if self.model(x) == wanted {
            return Ok(x);
        }
        let whole = match (self.model(x), wanted) {
            (ModelSpace::Partitioned(axis), _) => self.convert(x, ModelOp::AllGather { axis })?,
            _ => self.whole(x)?,
        };
        match wanted {
            ModelSpace::Partitioned(axis) => self.convert(whole, ModelOp::Slice { axis }),
            _ => Ok(whole),
        }
    }

    /// The partitioned parameter that a value is, apart from its shape.
    fn parameter(&self, mut x: NodeId) -> Option<ParamId> {
        loop {
            let node = self.graph.node(x);
            match node.op {
                Op::Param { id } => return Some(id),
                Op::Reshape { .. } | Op::Transpose { .. } | Op::Model(ModelOp::Slice { .. }) => {
                    x = node.inputs[0];
                }
                _ => return None,
            }
        }
    }

    /// Appends the new form of a node.
    fn node(&mut self, node: &Node, inputs: Vec<NodeId>) -> Result<NodeId> {
        if let Op::Param { id } = node.op {
            let axis = self.graph.params()[id.index()].partition_axis;
            let model = axis.map_or(ModelSpace::Mirrored, ModelSpace::Partitioned);
            return Ok(self.graph.push_typed(
                node.op.clone(),
                inputs,
                node.ty.clone().with_model(model),
            ));
        }
        if inputs.iter().all(|x| self.model(*x) == ModelSpace::Mirrored) {
            return Ok(self.graph.push_typed(node.op.clone(), inputs, node.ty.clone()));
        }
        if let Some(new) = self.over_classes(node, &inputs)? {
            return Ok(new);
        }
        let partial: Vec<bool> =
            inputs.iter().map(|x| self.model(*x) == ModelSpace::Partial).collect();
        if partial.contains(&true) {
            let others_whole = inputs
                .iter()
                .all(|x| matches!(self.model(*x), ModelSpace::Partial | ModelSpace::Mirrored));
            if others_whole && is_linear_in(&node.op, &partial) {
                return self.graph.push(node.op.clone(), &inputs);
            }
            let settled: Result<Vec<NodeId>> = inputs
                .iter()
                .map(
                    |x| if self.model(*x) == ModelSpace::Partial { self.whole(*x) } else { Ok(*x) },
                )
                .collect();
            return self.node(node, settled?);
        }
        self.over_parts(node, inputs)
    }

    /// Appends a node of which some operands are parts and the others whole.
    fn over_parts(&mut self, node: &Node, mut inputs: Vec<NodeId>) -> Result<NodeId> {
        let types: Vec<Type> = inputs.iter().map(|x| self.graph.ty(*x).clone()).collect();
        let factors = Factors::of(&node.op, &types.iter().collect::<Vec<_>>(), &node.ty);
        let label_of = |i: usize| match types[i].model {
            ModelSpace::Partitioned(axis) => factors.inputs[i][axis],
            _ => None,
        };
        let Some(label) = self.choose(node, &inputs, &factors, label_of) else {
            for x in &mut inputs {
                *x = self.whole(*x)?;
            }
            return Ok(self.graph.push_typed(node.op.clone(), inputs, node.ty.clone()));
        };
        for (i, x) in inputs.iter_mut().enumerate() {
            *x = match factors.inputs[i].iter().position(|l| *l == Some(label)) {
                Some(axis) => self.converted(*x, ModelSpace::Partitioned(axis))?,
                None => self.whole(*x)?,
            };
        }
        let summed = !factors.output.contains(&Some(label));
        match node.op {
            Op::Dot(e) | Op::Conv(_, e) if summed && e != Epilogue::default() => {
                self.epilogue_after_sum(&node.op, e, &inputs)
            }
            _ => {
                let new = self.graph.push(node.op.clone(), &inputs)?;
                if self.model(new) == ModelSpace::PartialMax { self.whole(new) } else { Ok(new) }
            }
        }
    }

    /// The label along which a node works on parts, if any: that of a weight, or else the first. Operands partitioned along other
    /// axes are gathered.
    fn choose(
        &self,
        node: &Node,
        inputs: &[NodeId],
        factors: &Factors,
        label_of: impl Fn(usize) -> Label,
    ) -> Option<u16> {
        let of_weight = (0..inputs.len()).filter(|i| self.parameter(inputs[*i]).is_some());
        let of_weight = of_weight.clone().find_map(&label_of);
        let label = of_weight.or_else(|| (0..inputs.len()).find_map(&label_of))?;
        let result = factors.output.iter().position(|l| *l == Some(label));
        let divides = |d: usize| d.is_multiple_of(self.parts) && d > 0;
        let fits = result.is_none_or(|axis| divides(node.ty.dims[axis]));
        let adds = result.is_some() || self.sums_along(&node.op);
        // A weight without a layout stays whole: its gradient would have to be gathered.
        let product =
            matches!(node.op, Op::Dot(_) | Op::DotGradInput | Op::Conv(..) | Op::ConvGradInput(_));
        let keeps = !product
            || inputs[1..].iter().zip(&factors.inputs[1..]).all(|(x, labels)| {
                let mirrored =
                    self.parameter(*x).is_some() && self.model(*x) == ModelSpace::Mirrored;
                !(mirrored && labels.len() > 1 && labels.contains(&Some(label)))
            });
        (fits && adds && (keeps || of_weight.is_some())).then_some(label)
    }

    /// Whether an op may be partitioned along an axis that its result lacks: it sums over it, or takes a maximum.
    fn sums_along(&self, op: &Op) -> bool {
        let plain = match op {
            Op::Dot(_) => Op::Dot(Epilogue::default()),
            Op::Conv(geom, _) => Op::Conv(*geom, Epilogue::default()),
            other => other.clone(),
        };
        crate::ops::factors::sums(&plain) || matches!(op, Op::Reduce { .. })
    }

    /// A product whose parts are summed before its bias and activation.
    fn epilogue_after_sum(&mut self, op: &Op, e: Epilogue, inputs: &[NodeId]) -> Result<NodeId> {
        let plain = match op {
            Op::Conv(geom, _) => Op::Conv(*geom, Epilogue::default()),
            _ => Op::Dot(Epilogue::default()),
        };
        let product = self.graph.push(plain, &inputs[..2])?;
        let mut y = self.whole(product)?;
        if e.bias {
            y = self.graph.add(y, inputs[2])?;
        }
        if e.relu { self.graph.relu(y) } else { Ok(y) }
    }

    /// The step with the new graph: the host and the update see whole values, and gradients are divided like their
    /// weights.
    fn finish(mut self, step: Step) -> Result<Step> {
        let of_param = |id: ParamId| {
            step.graph.params()[id.index()]
                .partition_axis
                .map_or(ModelSpace::Mirrored, ModelSpace::Partitioned)
        };
        let mut roots: Vec<(NodeId, ModelSpace)> = vec![];
        roots.extend(step.fetches.iter().map(|f| (f.node, ModelSpace::Mirrored)));
        roots.extend(step.assigns.iter().map(|(param, node)| (*node, of_param(*param))));
        let gradients = step.gradients.iter().filter_map(|g| Some((g.node?, of_param(g.param))));
        roots.extend(gradients);
        let mut found: Vec<NodeId> = vec![];
        for (node, wanted) in roots {
            let new = self.map[node.index()].expect("roots are live");
            self.graph.set_layer(step.graph.node(node).layer);
            found.push(self.converted(new, wanted)?);
        }
        let mut found = found.into_iter();
        let mut next = || found.next().expect("one for each root");
        let mut step = step;
        step.fetches.iter_mut().for_each(|f| f.node = next());
        step.assigns.iter_mut().for_each(|(_, node)| *node = next());
        step.gradients.iter_mut().filter(|g| g.node.is_some()).for_each(|g| g.node = Some(next()));
        step.graph = self.graph;
        Ok(step)
    }
}

#[cfg(test)]
mod tests;
