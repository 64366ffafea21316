//! From graph to instructions: who shares whose buffer, in which order, with which barriers.

mod aliasing;
mod sharded_dense;

pub(crate) use self::aliasing::{View, needs_own_buffer, reads_strided, writes_strided};
pub(crate) use self::sharded_dense::ShardedDense;

use self::aliasing::{last_axis_rows, views};
use self::sharded_dense::find_sharded_dense;
use crate::error::Result;
use crate::graph::{Graph, NodeId, ParamId};
use crate::ops::Op;
use crate::program::{Options, Split};
use crate::step::Step;
use crate::types::{Scope, Space};

/// An instruction over graph nodes, before values have places.
#[derive(Clone, Debug)]
pub(crate) enum LinearInstr {
    Compute(NodeId),
    /// This worker's share of a product with a kernel in slices.
    Product(NodeId),
    /// Adds up the parts of such a product.
    AddSlices(NodeId),
    /// Copies `from` into the place of `to` (a view or the node itself).
    Copy {
        from: NodeId,
        to: Target,
    },
    Barrier(Scope),
    AllReduce(NodeId),
    ReplicaMean(NodeId),
    SlicedGradient {
        param: ParamId,
        x: NodeId,
        dy: NodeId,
    },
    /// Clears the gradient of a parameter that only its penalty moves.
    Zero(ParamId),
    Update,
    Assign {
        param: ParamId,
        node: NodeId,
    },
    Fetch {
        index: usize,
        node: NodeId,
    },
}

/// What a copy fills.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Target {
    /// The node's own buffer.
    Node(NodeId),
    /// Channels of a concatenation, from this offset on.
    Slice { of: NodeId, offset: usize, width: usize },
    /// A parameter's gradient.
    Gradient(ParamId),
}

/// A buffer's home when it is not the arena.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum BufferKind {
    Arena,
    Shared,
    /// With the rows of the device's other workers.
    Device,
    Gradient(ParamId),
}

/// The lowered step.
pub(crate) struct Lowered {
    pub views: Vec<View>,
    pub homes: Vec<BufferKind>,
    pub drafts: Vec<LinearInstr>,
    pub slices: ShardedDense,
    pub split: Split,
}

/// Orders the step's nodes into instructions.
pub(crate) fn lower(step: &Step, options: Options) -> Result<Lowered> {
    let live = step.live();
    let users = use_lists(step, &live);
    let views = views(step, &live, &users);
    let tail = post_update_nodes(step, &live);
    let body = |id: NodeId| live[id.index()] && !tail[id.index()];
    let slices = find_sharded_dense(step, &users, body, options);
    let homes = buffer_kinds(step, &live, &views, &users, &slices);
    let drafts = order(step, &live, &tail, &views, &homes, &slices);
    let split = split(&drafts, options);
    let drafts = if split == Split::Spatial { barrier_after_each(drafts) } else { drafts };
    Ok(Lowered { views, homes, drafts, slices, split })
}

/// Steps that only compute can be shared line by line.
fn split(drafts: &[LinearInstr], options: Options) -> Split {
    let plain = |d: &LinearInstr| {
        matches!(d, LinearInstr::Compute(_) | LinearInstr::Copy { .. } | LinearInstr::Fetch { .. })
    };
    match Split::of(options.mesh, options.max_batch) {
        Split::Spatial if drafts.iter().all(plain) => Split::Spatial,
        _ => Split::Rows,
    }
}

/// A barrier between any two instructions: what one worker wrote the others read, and a buffer that
/// nobody needs any more is soon another's.
fn barrier_after_each(drafts: Vec<LinearInstr>) -> Vec<LinearInstr> {
    let mut out = Vec::with_capacity(2 * drafts.len());
    for draft in drafts {
        if !out.is_empty() {
            out.push(LinearInstr::Barrier(Scope::Device));
        }
        out.push(draft);
    }
    out
}

/// Who reads each node: `(reader, operand index)`; roots count as readers without a node.
struct UseLists {
    nodes: Vec<Vec<(NodeId, usize)>>,
    roots: Vec<u32>,
}

fn use_lists(step: &Step, live: &[bool]) -> UseLists {
    let mut nodes = vec![vec![]; live.len()];
    for id in step.graph.ids().filter(|id| live[id.index()]) {
        for (i, x) in step.graph.node(id).inputs.iter().enumerate() {
            nodes[x.index()].push((id, i));
        }
    }
    let mut roots = vec![0; live.len()];
    step.roots().for_each(|r| roots[r.index()] += 1);
    UseLists { nodes, roots }
}

/// Buffers that others read stay in the shared block or in that of the device; gradients go straight
/// to their buffer.
fn buffer_kinds(
    step: &Step,
    live: &[bool],
    views: &[View],
    users: &UseLists,
    slices: &ShardedDense,
) -> Vec<BufferKind> {
    let g = &step.graph;
    let mut homes = vec![BufferKind::Arena; g.nodes().len()];
    for id in g.ids().filter(|id| live[id.index()]) {
        if let Op::AllReduce { .. } | Op::ReplicaMean = g.node(id).op {
            homes[views[g.node(id).inputs[0].index()].root.index()] = BufferKind::Shared;
        }
    }
    for id in slices.shared(step) {
        homes[views[id.index()].root.index()] = BufferKind::Device;
    }
    for grad in &step.gradients {
        let Some(node) = grad.node.filter(|n| !slices.is_gradient(*n)) else { continue };
        let v = views[node.index()];
        let root = g.node(v.root);
        let whole = v.offset == 0 && root.ty.len() == g.ty(node).len();
        let plain = root.ty.space == Space::Partial && homes[v.root.index()] == BufferKind::Arena;
        // The buffer must serve this gradient alone: every reader of the root leads here.
        let mut at = v.root;
        let mut alone = whole && plain;
        while alone && at != node {
            alone = users.roots[at.index()] == 0 && users.nodes[at.index()].len() == 1;
            at = users.nodes[at.index()].first().map_or(node, |(u, _)| *u);
        }
        alone &= users.roots[node.index()] == 1 && users.nodes[node.index()].is_empty();
        if alone {
            homes[v.root.index()] = BufferKind::Gradient(grad.param);
        }
    }
    homes
}

/// Nodes that nothing but mirrored fetches and assignments wait for, behind a collective: they run
/// once at the end, behind one barrier.
fn post_update_nodes(step: &Step, live: &[bool]) -> Vec<bool> {
    let g = &step.graph;
    let mut body = vec![false; live.len()];
    step.gradients.iter().filter_map(|x| x.node).for_each(|n| body[n.index()] = true);
    for f in step.fetches.iter().filter(|f| g.ty(f.node).is_rows()) {
        body[f.node.index()] = true;
    }
    for id in g.ids().rev() {
        if body[id.index()] {
            g.node(id).inputs.iter().for_each(|x| body[x.index()] = true);
        }
    }
    let mut tail = vec![false; live.len()];
    for id in g.ids().filter(|id| live[id.index()] && !body[id.index()]) {
        let node = g.node(id);
        let collective = matches!(node.op, Op::AllReduce { .. } | Op::ReplicaMean);
        tail[id.index()] = collective || node.inputs.iter().any(|x| tail[x.index()]);
    }
    tail
}

/// The order of computation: a collective stands behind everything that does not need its result,
/// so that the collectives of parallel branches share a barrier.
fn order_minimizing_barriers(g: &Graph, mut ids: Vec<NodeId>) -> Vec<NodeId> {
    let mut order = Vec::with_capacity(ids.len());
    let mut late = vec![false; g.nodes().len()];
    while !ids.is_empty() {
        let mut waiting = vec![];
        let mut collectives = vec![];
        for id in ids {
            let node = g.node(id);
            let held = node.inputs.iter().any(|x| late[x.index()]);
            let collective = matches!(node.op, Op::AllReduce { .. } | Op::ReplicaMean);
            late[id.index()] = held || collective;
            match (held, collective) {
                (true, _) => waiting.push(id),
                (false, true) => collectives.push(id),
                (false, false) => order.push(id),
            }
        }
        collectives.iter().chain(&waiting).for_each(|id| late[id.index()] = false);
        order.extend(collectives);
        ids = waiting;
    }
    order
}

struct Emitter<'a> {
    g: &'a Graph,
    views: &'a [View],
    slices: &'a ShardedDense,
    drafts: Vec<LinearInstr>,
    /// Where in `drafts` each node was finished.
    done: Vec<usize>,
    /// Position of the last barrier over a device, and over all.
    device_barrier: usize,
    all_barrier: usize,
}

impl Emitter<'_> {
    fn barrier(&mut self, scope: Scope) {
        self.drafts.push(LinearInstr::Barrier(scope));
        self.device_barrier = self.drafts.len();
        if scope == Scope::All {
            self.all_barrier = self.drafts.len();
        }
    }

    /// A barrier over the scope, unless one stands behind `produced` already.
    fn wait_for(&mut self, scope: Scope, produced: usize) {
        let last = match scope {
            Scope::Device => self.device_barrier,
            Scope::All => self.all_barrier,
        };
        if produced >= last {
            self.barrier(scope);
        }
    }

    /// A barrier over the device, unless all its workers have finished the node's rows for sure.
    fn wait_for_rows(&mut self, id: NodeId) {
        if !matches!(self.g.node(self.views[id.index()].root).op, Op::Feed { .. }) {
            self.wait_for(Scope::Device, self.done[id.index()]);
        }
    }

    /// A product with a kernel in slices, whose operand and result are others' as well.
    fn product(&mut self, id: NodeId) {
        let node = self.g.node(id);
        self.wait_for_rows(node.inputs[0]);
        self.drafts.push(LinearInstr::Product(id));
        self.barrier(Scope::Device);
        if let Op::Dot(_) = node.op {
            self.drafts.push(LinearInstr::AddSlices(id));
        }
    }

    fn node(&mut self, id: NodeId) {
        let node = self.g.node(id);
        let v = self.views[id.index()];
        let inside = |x: NodeId, root: NodeId| self.views[x.index()].root == root;
        match node.op {
            Op::Feed { .. } | Op::Param { .. } => {}
            _ if self.slices.is_product(id) => self.product(id),
            Op::AllReduce { scope } => {
                self.wait_for(scope, self.done[node.inputs[0].index()]);
                self.drafts.push(LinearInstr::AllReduce(id));
            }
            Op::ReplicaMean => {
                self.wait_for(Scope::All, self.done[node.inputs[0].index()]);
                self.drafts.push(LinearInstr::ReplicaMean(id));
            }
            Op::Reshape { .. } if v.root == id => {
                self.drafts.push(LinearInstr::Copy { from: node.inputs[0], to: Target::Node(id) });
            }
            Op::Reshape { .. } => {}
            Op::Slice { .. } if v.root != id => {}
            Op::Concat { axis } if last_axis_rows(&node.ty, axis) => {
                let mut offset = 0;
                let mut copies = vec![];
                for x in &node.inputs {
                    let width = self.g.ty(*x).last();
                    if !(inside(*x, id) && self.views[x.index()].offset == offset) {
                        let to = Target::Slice { of: id, offset, width };
                        copies.push(LinearInstr::Copy { from: *x, to });
                    }
                    offset += width;
                }
                self.drafts.extend(copies);
            }
            _ => self.drafts.push(LinearInstr::Compute(id)),
        }
        self.done[id.index()] = self.drafts.len();
    }
}

/// Whether an instruction reads a weight that the update writes.
fn reads_trained(step: &Step, views: &[View], draft: &LinearInstr) -> bool {
    let trained = |id: &NodeId| match step.graph.node(views[id.index()].root).op {
        Op::Param { id } => step.gradients.iter().any(|g| g.param == id),
        _ => false,
    };
    match draft {
        LinearInstr::Compute(id) | LinearInstr::Product(id) | LinearInstr::AddSlices(id) => {
            step.graph.node(*id).inputs.iter().any(trained)
        }
        LinearInstr::Copy { from, .. } => trained(from),
        LinearInstr::Fetch { node, .. } => trained(node),
        // Collectives read shared blocks, slices of gradients read activations.
        LinearInstr::AllReduce(_)
        | LinearInstr::ReplicaMean(_)
        | LinearInstr::SlicedGradient { .. } => false,
        LinearInstr::Barrier(_)
        | LinearInstr::Zero(_)
        | LinearInstr::Update
        | LinearInstr::Assign { .. } => false,
    }
}

/// Whether a node is the loss scale, which is fetched as the update leaves it.
fn is_scale(step: &Step, node: NodeId) -> bool {
    let state = step.loss_scale.map(|s| Op::Param { id: s.state });
    state.is_some_and(|state| step.graph.node(node).op == state)
}

fn order(
    step: &Step,
    live: &[bool],
    tail: &[bool],
    views: &[View],
    homes: &[BufferKind],
    slices: &ShardedDense,
) -> Vec<LinearInstr> {
    let g = &step.graph;
    let mut e = Emitter {
        g,
        views,
        slices,
        drafts: vec![],
        done: vec![0; live.len()],
        device_barrier: 0,
        all_barrier: 0,
    };
    let body = |id: &NodeId| live[id.index()] && !tail[id.index()] && !slices.is_gradient(*id);
    for id in order_minimizing_barriers(g, g.ids().filter(body).collect()) {
        e.node(id);
    }
    for grad in &step.gradients {
        if grad.penalty_alone() {
            e.drafts.push(LinearInstr::Zero(grad.param));
        }
        let Some(node) = grad.node.filter(|n| !slices.is_gradient(*n)) else { continue };
        if homes[views[node.index()].root.index()] != BufferKind::Gradient(grad.param) {
            e.drafts.push(LinearInstr::Copy { from: node, to: Target::Gradient(grad.param) });
        }
    }
    if step.update.is_some() {
        e.barrier(Scope::All);
    }
    let behind = e.drafts.len();
    for id in g.ids().filter(|id| tail[id.index()]) {
        e.node(id);
    }
    let fetches = step.fetches.iter().enumerate();
    let (late, early): (Vec<_>, Vec<_>) = fetches.partition(|(_, f)| is_scale(step, f.node));
    for (index, f) in early {
        e.drafts.push(LinearInstr::Fetch { index, node: f.node });
    }
    if !slices.gradients.is_empty() && g.ids().any(|id| tail[id.index()] && g.ty(id).is_rows()) {
        // Slices look into other workers' rows, which must have come to rest.
        e.barrier(Scope::Device);
    }
    for (param, id) in &slices.gradients {
        let inputs = &g.node(*id).inputs;
        e.drafts.push(LinearInstr::SlicedGradient { param: *param, x: inputs[0], dy: inputs[1] });
    }
    if step.update.is_some() {
        if e.drafts[behind..].iter().any(|d| reads_trained(step, views, d)) {
            // Others write their slices of the weights as soon as they reach the update.
            e.barrier(Scope::Device);
        }
        e.drafts.push(LinearInstr::Update);
    }
    for (index, f) in late {
        e.drafts.push(LinearInstr::Fetch { index, node: f.node });
    }
    if !step.assigns.is_empty() {
        // Others may still be reading the old values.
        e.barrier(Scope::Device);
    }
    for (param, node) in &step.assigns {
        e.drafts.push(LinearInstr::Assign { param: *param, node: *node });
    }
    e.drafts
}
