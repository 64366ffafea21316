//! Translation of instructions over graph nodes into instructions over values.

use super::Planner;
use crate::error::{GraphError, Result};
use crate::graph::{NodeId, ParamId};
use crate::lower::{BufferKind, LinearInstr, Target};
use crate::ops::{Epilogue, Op};
use crate::program::{Instr, Location, Value, ValueId, WeightGroup};
use crate::types::{DType, Space, Type};
use std::collections::HashMap;

/// Translates instructions and numbers values in order of appearance.
pub(super) struct Writer<'a, 'b> {
    p: &'b Planner<'a>,
    offsets: &'b [usize],
    /// Offset of the partial product of each sharded product.
    partial_products: HashMap<NodeId, usize>,
    weight_groups: &'b [WeightGroup],
    /// The group of weights that is complete.
    group: Option<usize>,
    pub values: Vec<Value>,
    known: HashMap<(NodeId, Option<usize>), ValueId>,
}

impl<'a, 'b> Writer<'a, 'b> {
    pub fn new(
        p: &'b Planner<'a>,
        offsets: &'b [usize],
        partial_products: HashMap<NodeId, usize>,
        weight_groups: &'b [WeightGroup],
    ) -> Writer<'a, 'b> {
        let (values, known, group) = (vec![], HashMap::new(), None);
        Writer { p, offsets, partial_products, weight_groups, group, values, known }
    }

    /// The place of a weight in the current group, if it is one that is gathered.
    fn gathered(&self, id: ParamId) -> Option<Location> {
        let group = self.group?;
        let weights = &self.weight_groups[group].weights;
        let (_, offset) = weights.iter().find(|(weight, _)| *weight == id)?;
        Some(Location::Gathered { group, offset: *offset })
    }

    fn add(&mut self, value: Value) -> ValueId {
        self.values.push(value);
        ValueId(self.values.len() as u32 - 1)
    }

    fn location(&self, root: NodeId) -> Location {
        match self.p.step.graph.node(root).op {
            Op::Feed { id } => Location::Feed(id),
            Op::Param { id } => self.gathered(id).unwrap_or(Location::Param(id)),
            _ => {
                let offset = self.offsets[self.p.buffer[root.index()].index()];
                match self.p.lowered.kinds[root.index()] {
                    BufferKind::Arena => Location::Arena(offset),
                    BufferKind::Shared => Location::Shared(offset),
                    BufferKind::Device => Location::Device(offset),
                    BufferKind::Gradient(p) => Location::Gradient(p),
                }
            }
        }
    }

    /// The value of a node.
    pub fn value(&mut self, id: NodeId) -> ValueId {
        let view = self.p.lowered.views[id.index()];
        let is_weight = matches!(self.p.step.graph.node(view.root).op, Op::Param { .. });
        let key = (id, self.group.filter(|_| is_weight));
        if let Some(v) = self.known.get(&key) {
            return *v;
        }
        let ty = self.p.step.graph.ty(id).clone();
        let location = self.location(view.root);
        let new = self.add(Value { ty, location, offset: view.offset, ld: view.ld });
        self.known.insert(key, new);
        new
    }

    /// The gradient buffer of a parameter.
    fn gradient(&mut self, p: ParamId) -> ValueId {
        let dims = self.p.step.graph.params()[p.index()].dims.clone();
        let ty = Type::new(DType::F32, Space::Partial, dims);
        let ld = ty.last();
        self.add(Value { ty, location: Location::Gradient(p), offset: 0, ld })
    }

    /// This worker's partial product of a sharded product.
    fn partial_product(&mut self, id: NodeId) -> ValueId {
        let ty = self.p.step.graph.ty(id).clone();
        let (location, ld) = (Location::Shared(self.partial_products[&id]), ty.last());
        self.add(Value { ty, location, offset: 0, ld })
    }

    fn compute(&mut self, id: NodeId) -> Result<Instr> {
        let node = self.p.step.graph.node(id);
        if matches!(node.op, Op::Unary(_) | Op::Binary(_) | Op::Select) {
            let text = format!("{} left unfused", node.op.name());
            return Err(GraphError::internal("plan", text));
        }
        let inputs = node.inputs.iter().map(|x| self.value(*x)).collect();
        let output = self.value(id);
        Ok(Instr::Compute {
            op: node.op.clone(),
            inputs,
            output,
            layer: node.layer,
            sharded: false,
        })
    }

    fn sharded_product(&mut self, id: NodeId) -> Instr {
        let node = self.p.step.graph.node(id);
        let inputs = node.inputs[..2].iter().map(|x| self.value(*x)).collect();
        let (op, output) = match node.op {
            // The epilogue follows the sum over the workers.
            Op::Dot(_) => (Op::Dot(Epilogue::default()), self.partial_product(id)),
            _ => (node.op.clone(), self.value(id)),
        };
        Instr::Compute { op, inputs, output, layer: node.layer, sharded: true }
    }

    fn reduce_scatter(&mut self, id: NodeId) -> Result<Instr> {
        let node = self.p.step.graph.node(id);
        let Op::Dot(epilogue) = node.op else {
            return Err(GraphError::internal("plan", "dot expected"));
        };
        let bias = node.inputs.get(2).map(|b| self.value(*b));
        let (input, output) = (self.partial_product(id), self.value(id));
        Ok(Instr::ReduceScatter { input, bias, relu: epilogue.relu, output, layer: node.layer })
    }

    fn copy(&mut self, from: NodeId, to: Target) -> Instr {
        let input = self.value(from);
        let output = match to {
            Target::Node(id) => self.value(id),
            Target::Slice { of, offset, width } => {
                let mut ty = self.p.step.graph.ty(of).clone();
                let ld = ty.last();
                *ty.dims.last_mut().expect("a channel axis") = width;
                let location = self.location(of);
                self.add(Value { ty, location, offset, ld })
            }
            Target::Gradient(p) => self.gradient(p),
        };
        Instr::Copy { input, output }
    }

    /// Translates one instruction.
    pub fn instr(&mut self, instr: &LinearInstr) -> Result<Instr> {
        let g = &self.p.step.graph;
        Ok(match instr {
            LinearInstr::Compute { id, sharded: false } => self.compute(*id)?,
            LinearInstr::Compute { id, sharded: true } => self.sharded_product(*id),
            LinearInstr::ReduceScatter(id) => self.reduce_scatter(*id)?,
            LinearInstr::Copy { from, to } => self.copy(*from, *to),
            LinearInstr::Zero(p) => {
                let output = self.gradient(*p);
                let dims = g.params()[p.index()].dims.clone();
                let op = Op::Const { bits: 0f64.to_bits(), dims };
                Instr::Compute { op, inputs: vec![], output, layer: 0, sharded: false }
            }
            LinearInstr::Barrier(scope) => Instr::Barrier(*scope),
            LinearInstr::AllReduce(id) => {
                let Op::AllReduce { scope } = g.node(*id).op else {
                    return Err(GraphError::internal("plan", "all_reduce expected"));
                };
                let input = self.value(g.node(*id).inputs[0]);
                Instr::AllReduce { scope, input, output: self.value(*id) }
            }
            LinearInstr::ExchangeParts(id) => {
                let node = g.node(*id);
                let Op::Parts(op) = node.op else {
                    return Err(GraphError::internal("plan", "parts expected"));
                };
                let (input, layer) = (self.value(node.inputs[0]), node.layer);
                Instr::ExchangeParts { op, input, output: self.value(*id), layer }
            }
            LinearInstr::ReplicaMean(id) => {
                let input = self.value(g.node(*id).inputs[0]);
                Instr::ReplicaMean { input, output: self.value(*id) }
            }
            LinearInstr::ShardedGradKernel { param, x, dy } => {
                Instr::ShardedGradKernel { param: *param, x: self.value(*x), dy: self.value(*dy) }
            }
            LinearInstr::GatherWeights { group } => {
                self.group = Some(*group);
                Instr::GatherWeights { group: *group }
            }
            LinearInstr::ReduceGradients { bucket } => Instr::ReduceGradients { bucket: *bucket },
            LinearInstr::Update => Instr::Update,
            LinearInstr::Assign { param, node } => {
                Instr::Assign { param: *param, value: self.value(*node) }
            }
            LinearInstr::Fetch { index, node } => {
                Instr::Fetch { index: *index, value: self.value(*node) }
            }
        })
    }
}
