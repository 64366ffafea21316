//! The graph: nodes in topological order, each applying one op with one result.

use crate::error::{GraphError, Result};
use crate::ops::Op;
use crate::text::shown;
use crate::types::{DType, ModelSpace, Space, Type, count};
use std::fmt;

/// A node of a graph.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct NodeId(pub u32);

/// A variable that persists across steps: a weight or a moving statistic.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ParamId(pub u32);

/// A value that the host supplies at every step.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct FeedId(pub u32);

impl NodeId {
    /// Position in the graph.
    pub fn index(self) -> usize {
        self.0 as usize
    }
}

impl ParamId {
    /// Position in the parameter table.
    pub fn index(self) -> usize {
        self.0 as usize
    }
}

impl FeedId {
    /// Position in the feed table.
    pub fn index(self) -> usize {
        self.0 as usize
    }
}

/// An entry of the parameter tables of graph, program and executor.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ParamSpec {
    /// Full name, `layer/kernel`.
    pub name: String,
    /// Dimensions.
    pub dims: Vec<usize>,
    /// Whether the optimizer updates it.
    pub trainable: bool,
    /// The axis along which the devices of a replica hold parts of it, if they do.
    pub partition_axis: Option<usize>,
}

impl ParamSpec {
    /// Number of elements; `usize::MAX` on overflow.
    pub fn len(&self) -> usize {
        count(&self.dims)
    }

    /// Whether it has no elements.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// A feed's name and type.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FeedSpec {
    /// Name, used in messages.
    pub name: String,
    /// Type: rows or mirrored.
    pub ty: Type,
}

/// One op applied to earlier nodes.
#[derive(Clone, Debug, PartialEq)]
pub struct Node {
    /// The op.
    pub op: Op,
    /// Its operands.
    pub inputs: Vec<NodeId>,
    /// Type of the result.
    pub ty: Type,
    /// The layer that created it, as an index into the graph's layer names.
    pub layer: u32,
}

/// A graph, under construction or between passes.
#[derive(Clone, Debug, Default)]
pub struct Graph {
    nodes: Vec<Node>,
    params: Vec<ParamSpec>,
    feeds: Vec<FeedSpec>,
    layers: Vec<String>,
    /// The layers whose results stay 32-bit floats in mixed precision.
    wide: Vec<u32>,
    current: u32,
    max_batch: MaxBatch,
}

/// The largest batch that a graph is built for.
#[derive(Clone, Copy, Debug)]
struct MaxBatch {
    rows: usize,
    /// Whether a shape depends on it.
    used: bool,
}

impl Default for MaxBatch {
    fn default() -> MaxBatch {
        MaxBatch { rows: 1, used: false }
    }
}

impl Graph {
    /// An empty graph.
    pub fn new() -> Graph {
        Graph { layers: vec![String::new()], ..Graph::default() }
    }

    /// A graph with the same tables and no nodes, for a rewriting pass to fill.
    pub fn like(other: &Graph) -> Graph {
        Graph {
            nodes: Vec::with_capacity(other.nodes.len()),
            params: other.params.clone(),
            feeds: other.feeds.clone(),
            layers: other.layers.clone(),
            wide: other.wide.clone(),
            current: 0,
            max_batch: other.max_batch,
        }
    }

    /// Sets the largest global batch that the graph is built for; 1 by default.
    pub fn set_max_batch(&mut self, rows: usize) {
        self.max_batch.rows = rows.max(1);
    }

    /// The largest global batch, for a shape that depends on it. The graph then serves no larger one.
    pub fn max_batch(&mut self) -> usize {
        self.max_batch.used = true;
        self.max_batch.rows
    }

    /// The largest global batch, if a shape depends on it.
    pub fn batch_limit(&self) -> Option<usize> {
        self.max_batch.used.then_some(self.max_batch.rows)
    }

    /// Sets the layer that subsequent nodes belong to and returns the previous one.
    pub fn enter(&mut self, layer: &str) -> String {
        let previous = self.layers[self.current as usize].clone();
        self.current = match self.layers.iter().position(|s| s == layer) {
            Some(i) => i as u32,
            None => {
                self.layers.push(layer.into());
                self.layers.len() as u32 - 1
            }
        };
        previous
    }

    /// Sets the layer by index, for passes that copy nodes.
    pub fn set_layer(&mut self, layer: u32) {
        self.current = layer;
    }

    /// Keeps the results of the current layer in 32 bits, whatever the policy of the program.
    pub fn keep_wide(&mut self) {
        if !self.wide.contains(&self.current) {
            self.wide.push(self.current);
        }
    }

    /// Whether mixed precision applies to a node: it belongs to a layer that is not kept in 32 bits.
    pub(crate) fn may_be_mixed(&self, node: &Node) -> bool {
        node.layer != 0 && !self.wide.contains(&node.layer)
    }

    /// The layer a node belongs to.
    pub fn layer_name(&self, id: NodeId) -> &str {
        &self.layers[self.nodes[id.index()].layer as usize]
    }

    /// The layer names that [`Node::layer`] indexes.
    pub fn layers(&self) -> &[String] {
        &self.layers
    }

    /// Appends a node after checking its operands and inferring its type.
    pub fn push(&mut self, op: Op, inputs: &[NodeId]) -> Result<NodeId> {
        let types: Vec<&Type> = inputs.iter().map(|i| &self.nodes[i.index()].ty).collect();
        let ty = op.infer(&types).map_err(|e| e.in_layer(&self.layers[self.current as usize]))?;
        Ok(self.push_typed(op, inputs.to_vec(), ty))
    }

    /// Appends a node of a known type, which `verify` checks later.
    pub fn push_typed(&mut self, op: Op, inputs: Vec<NodeId>, ty: Type) -> NodeId {
        let id = NodeId(self.nodes.len() as u32);
        debug_assert!(inputs.iter().all(|i| *i < id), "operands must come first");
        self.nodes.push(Node { op, inputs, ty, layer: self.current });
        id
    }

    /// Declares a parameter.
    pub fn add_param(&mut self, name: &str, dims: &[usize], trainable: bool) -> ParamId {
        self.params.push(ParamSpec {
            name: name.into(),
            dims: dims.to_vec(),
            trainable,
            partition_axis: None,
        });
        ParamId(self.params.len() as u32 - 1)
    }

    /// Divides a parameter among the devices of a replica, along an axis.
    pub fn partition(&mut self, id: ParamId, axis: usize) {
        self.params[id.index()].partition_axis = Some(axis);
    }

    /// Divides parameters along the axis of each entry, in their order.
    pub fn set_partition_axes(&mut self, axes: &[Option<usize>]) {
        self.params.iter_mut().zip(axes).for_each(|(spec, axis)| spec.partition_axis = *axis);
    }

    /// Replaces the specification of a parameter, for passes that change its dimensions.
    pub(crate) fn set_param(&mut self, id: ParamId, spec: ParamSpec) {
        self.params[id.index()] = spec;
    }

    /// Excludes a parameter from the optimizer's updates.
    pub fn freeze(&mut self, id: ParamId) {
        self.params[id.index()].trainable = false;
    }

    /// Declares a feed.
    pub fn add_feed(&mut self, name: &str, ty: Type) -> FeedId {
        self.feeds.push(FeedSpec { name: name.into(), ty });
        FeedId(self.feeds.len() as u32 - 1)
    }

    /// Reads a parameter.
    pub fn param(&mut self, id: ParamId) -> NodeId {
        let ty = Type::mirrored(self.params[id.index()].dims.clone());
        self.push_typed(Op::Param { id }, vec![], ty)
    }

    /// Reads a feed.
    pub fn feed(&mut self, id: FeedId) -> NodeId {
        let ty = self.feeds[id.index()].ty.clone();
        self.push_typed(Op::Feed { id }, vec![], ty)
    }

    /// A mirrored constant with all elements equal to `value`.
    pub fn fill(&mut self, value: f64, dims: &[usize]) -> NodeId {
        let op = Op::Const { bits: value.to_bits(), dims: dims.to_vec() };
        self.push_typed(op, vec![], Type::new(DType::F32, Space::Mirrored, dims.to_vec()))
    }

    /// A scalar constant.
    pub fn scalar(&mut self, value: f64) -> NodeId {
        self.fill(value, &[])
    }

    /// A node.
    pub fn node(&self, id: NodeId) -> &Node {
        &self.nodes[id.index()]
    }

    /// A node's type.
    pub fn ty(&self, id: NodeId) -> &Type {
        &self.nodes[id.index()].ty
    }

    /// All nodes in order.
    pub fn nodes(&self) -> &[Node] {
        &self.nodes
    }

    /// All node ids in order.
    pub fn ids(&self) -> impl DoubleEndedIterator<Item = NodeId> + use<> {
        (0..self.nodes.len() as u32).map(NodeId)
    }

    /// The parameter table.
    pub fn params(&self) -> &[ParamSpec] {
        &self.params
    }

    /// The feed table.
    pub fn feeds(&self) -> &[FeedSpec] {
        &self.feeds
    }

    /// Checks the order, operand counts, types and table indices of all nodes.
    pub fn verify(&self, pass: &str) -> Result<()> {
        let fail = |text: String| Err(GraphError::internal(pass, text));
        for p in &self.params {
            Type::mirrored(p.dims.clone()).check_limits().map_err(|e| e.in_layer(&p.name))?;
        }
        for f in &self.feeds {
            f.ty.check_limits().map_err(|e| e.in_layer(&f.name))?;
            if !matches!(f.ty.space, Space::Rows | Space::Mirrored) {
                return fail(format!("feed '{}' is {}, not rows or mirrored", f.name, f.ty));
            }
        }
        for id in self.ids() {
            let node = self.node(id);
            if node.inputs.iter().any(|i| *i >= id) {
                return fail(format!("%{} uses a later node", id.0));
            }
            if node.layer as usize >= self.layers.len() {
                return fail(format!("%{} belongs to no layer", id.0));
            }
            let types: Vec<&Type> = node.inputs.iter().map(|i| self.ty(*i)).collect();
            let missing = |what| GraphError::internal(pass, format!("%{} reads no {what}", id.0));
            let expected = match &node.op {
                Op::Param { .. } | Op::Feed { .. } if !node.inputs.is_empty() => {
                    return fail(format!("%{} {} has operands", id.0, node.op.name()));
                }
                Op::Param { id } => {
                    let spec = self.params.get(id.index()).ok_or_else(|| missing("parameter"))?;
                    let ty = Type::mirrored(spec.dims.clone());
                    // A pass divides it among the devices of a replica.
                    let parts = node.ty.model
                        == ModelSpace::Partitioned(spec.partition_axis.unwrap_or(usize::MAX));
                    if parts { ty.with_model(node.ty.model) } else { ty }
                }
                Op::Feed { id } => {
                    self.feeds.get(id.index()).ok_or_else(|| missing("feed"))?.ty.clone()
                }
                op => op.infer(&types).map_err(|e| {
                    GraphError::internal(pass, format!("%{} {}: {e}", id.0, op.name()))
                })?,
            };
            if expected != node.ty {
                return fail(format!("%{} is {}, its op gives {}", id.0, node.ty, expected));
            }
        }
        Ok(())
    }
}

/// One line per node: `%3 = dot(%0, %1) : rows f32[256]  ; dense`.
impl fmt::Display for Graph {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for id in self.ids() {
            let node = self.node(id);
            let args: Vec<String> = node.inputs.iter().map(|i| format!("%{}", i.0)).collect();
            let mut line = format!("%{} = {}({})", id.0, node.op, args.join(", "));
            match &node.op {
                Op::Param { id } => {
                    line += &format!(" \"{}\"", shown(&self.params[id.index()].name))
                }
                Op::Feed { id } => line += &format!(" \"{}\"", shown(&self.feeds[id.index()].name)),
                _ => {}
            }
            line += &format!(" : {}", node.ty);
            match self.layer_name(id) {
                "" => writeln!(f, "{line}")?,
                layer => writeln!(f, "{line}  ; {}", shown(layer))?,
            }
        }
        Ok(())
    }
}
