//! From graph to instructions: who shares whose buffer, in which order, with which barriers.

mod slices;
mod views;

pub(crate) use self::slices::Slices;
pub(crate) use self::views::{View, needs_own_buffer, reads_strided, writes_strided};

use self::slices::slices;
use self::views::{last_axis_rows, views};
use crate::error::Result;
use crate::graph::{Graph, NodeId, ParamId};
use crate::ops::Op;
use crate::program::{Options, Split};
use crate::step::Step;
use crate::types::{Scope, Space};

/// An instruction over graph nodes, before values have places.
#[derive(Clone, Debug)]
pub(crate) enum Draft {
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
pub(crate) enum Home {
    Arena,
    Shared,
    /// With the rows of the device's other workers.
    Device,
    Gradient(ParamId),
}

/// The lowered step.
pub(crate) struct Lowered {
    pub views: Vec<View>,
    pub homes: Vec<Home>,
    pub drafts: Vec<Draft>,
    pub slices: Slices,
    pub split: Split,
}

/// Orders the step's nodes into instructions.
pub(crate) fn lower(step: &Step, options: Options) -> Result<Lowered> {
    let live = step.live();
    let users = users(step, &live);
    let views = views(step, &live, &users);
    let tail = tail(step, &live);
    let body = |id: NodeId| live[id.index()] && !tail[id.index()];
    let slices = slices(step, &users, body, options);
    let homes = homes(step, &live, &views, &users, &slices);
    let drafts = order(step, &live, &tail, &views, &homes, &slices);
    let split = split(&drafts, options);
    let drafts = if split == Split::Lines { wait_everywhere(drafts) } else { drafts };
    Ok(Lowered { views, homes, drafts, slices, split })
}

/// Steps that only compute can be shared line by line.
fn split(drafts: &[Draft], options: Options) -> Split {
    let plain =
        |d: &Draft| matches!(d, Draft::Compute(_) | Draft::Copy { .. } | Draft::Fetch { .. });
    match Split::of(options.mesh, options.max_batch) {
        Split::Lines if drafts.iter().all(plain) => Split::Lines,
        _ => Split::Rows,
    }
}

/// A barrier between any two instructions: what one worker wrote the others read, and a buffer that
/// nobody needs any more is soon another's.
fn wait_everywhere(drafts: Vec<Draft>) -> Vec<Draft> {
    let mut out = Vec::with_capacity(2 * drafts.len());
    for draft in drafts {
        if !out.is_empty() {
            out.push(Draft::Barrier(Scope::Device));
        }
        out.push(draft);
    }
    out
}

/// Who reads each node: `(reader, operand index)`; roots count as readers without a node.
struct Users {
    nodes: Vec<Vec<(NodeId, usize)>>,
    roots: Vec<u32>,
}

fn users(step: &Step, live: &[bool]) -> Users {
    let mut nodes = vec![vec![]; live.len()];
    for id in step.graph.ids().filter(|id| live[id.index()]) {
        for (i, x) in step.graph.node(id).inputs.iter().enumerate() {
            nodes[x.index()].push((id, i));
        }
    }
    let mut roots = vec![0; live.len()];
    step.roots().for_each(|r| roots[r.index()] += 1);
    Users { nodes, roots }
}

/// Buffers that others read stay in the shared block or in that of the device; gradients go straight
/// to their buffer.
fn homes(step: &Step, live: &[bool], views: &[View], users: &Users, slices: &Slices) -> Vec<Home> {
    let g = &step.graph;
    let mut homes = vec![Home::Arena; g.nodes().len()];
    for id in g.ids().filter(|id| live[id.index()]) {
        if let Op::AllReduce { .. } | Op::ReplicaMean = g.node(id).op {
            homes[views[g.node(id).inputs[0].index()].root.index()] = Home::Shared;
        }
    }
    for id in slices.shared(step) {
        homes[views[id.index()].root.index()] = Home::Device;
    }
    for grad in &step.gradients {
        let Some(node) = grad.node.filter(|n| !slices.is_gradient(*n)) else { continue };
        let v = views[node.index()];
        let root = g.node(v.root);
        let whole = v.offset == 0 && root.ty.len() == g.ty(node).len();
        let plain = root.ty.space == Space::Partial && homes[v.root.index()] == Home::Arena;
        // The buffer must serve this gradient alone: every reader of the root leads here.
        let mut at = v.root;
        let mut alone = whole && plain;
        while alone && at != node {
            alone = users.roots[at.index()] == 0 && users.nodes[at.index()].len() == 1;
            at = users.nodes[at.index()].first().map_or(node, |(u, _)| *u);
        }
        alone &= users.roots[node.index()] == 1 && users.nodes[node.index()].is_empty();
        if alone {
            homes[v.root.index()] = Home::Gradient(grad.param);
        }
    }
    homes
}

/// Nodes that nothing but mirrored fetches and assignments wait for, behind a collective: they run
/// once at the end, behind one barrier.
fn tail(step: &Step, live: &[bool]) -> Vec<bool> {
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
fn few_waits(g: &Graph, mut ids: Vec<NodeId>) -> Vec<NodeId> {
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
    slices: &'a Slices,
    drafts: Vec<Draft>,
    /// Where in `drafts` each node was finished.
    done: Vec<usize>,
    /// Position of the last barrier over a device, and over all.
    device_barrier: usize,
    all_barrier: usize,
}

impl Emitter<'_> {
    fn barrier(&mut self, scope: Scope) {
        self.drafts.push(Draft::Barrier(scope));
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
        self.drafts.push(Draft::Product(id));
        self.barrier(Scope::Device);
        if let Op::Dot(_) = node.op {
            self.drafts.push(Draft::AddSlices(id));
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
                self.drafts.push(Draft::AllReduce(id));
            }
            Op::ReplicaMean => {
                self.wait_for(Scope::All, self.done[node.inputs[0].index()]);
                self.drafts.push(Draft::ReplicaMean(id));
            }
            Op::Reshape { .. } if v.root == id => {
                self.drafts.push(Draft::Copy { from: node.inputs[0], to: Target::Node(id) });
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
                        copies.push(Draft::Copy { from: *x, to });
                    }
                    offset += width;
                }
                self.drafts.extend(copies);
            }
            _ => self.drafts.push(Draft::Compute(id)),
        }
        self.done[id.index()] = self.drafts.len();
    }
}

/// Whether an instruction reads a weight that the update writes.
fn reads_trained(step: &Step, views: &[View], draft: &Draft) -> bool {
    let trained = |id: &NodeId| match step.graph.node(views[id.index()].root).op {
        Op::Param { id } => step.gradients.iter().any(|g| g.param == id),
        _ => false,
    };
    match draft {
        Draft::Compute(id) | Draft::Product(id) | Draft::AddSlices(id) => {
            step.graph.node(*id).inputs.iter().any(trained)
        }
        Draft::Copy { from, .. } => trained(from),
        Draft::Fetch { node, .. } => trained(node),
        // Collectives read shared blocks, slices of gradients read activations.
        Draft::AllReduce(_) | Draft::ReplicaMean(_) | Draft::SlicedGradient { .. } => false,
        Draft::Barrier(_) | Draft::Zero(_) | Draft::Update | Draft::Assign { .. } => false,
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
    homes: &[Home],
    slices: &Slices,
) -> Vec<Draft> {
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
    for id in few_waits(g, g.ids().filter(body).collect()) {
        e.node(id);
    }
    for grad in &step.gradients {
        if grad.penalty_alone() {
            e.drafts.push(Draft::Zero(grad.param));
        }
        let Some(node) = grad.node.filter(|n| !slices.is_gradient(*n)) else { continue };
        if homes[views[node.index()].root.index()] != Home::Gradient(grad.param) {
            e.drafts.push(Draft::Copy { from: node, to: Target::Gradient(grad.param) });
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
        e.drafts.push(Draft::Fetch { index, node: f.node });
    }
    if !slices.gradients.is_empty() && g.ids().any(|id| tail[id.index()] && g.ty(id).is_rows()) {
        // Slices look into other workers' rows, which must have come to rest.
        e.barrier(Scope::Device);
    }
    for (param, id) in &slices.gradients {
        let inputs = &g.node(*id).inputs;
        e.drafts.push(Draft::SlicedGradient { param: *param, x: inputs[0], dy: inputs[1] });
    }
    if step.update.is_some() {
        if e.drafts[behind..].iter().any(|d| reads_trained(step, views, d)) {
            // Others write their slices of the weights as soon as they reach the update.
            e.barrier(Scope::Device);
        }
        e.drafts.push(Draft::Update);
    }
    for (index, f) in late {
        e.drafts.push(Draft::Fetch { index, node: f.node });
    }
    if !step.assigns.is_empty() {
        // Others may still be reading the old values.
        e.barrier(Scope::Device);
    }
    for (param, node) in &step.assigns {
        e.drafts.push(Draft::Assign { param: *param, node: *node });
    }
    e.drafts
}
