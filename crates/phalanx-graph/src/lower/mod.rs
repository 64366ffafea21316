//! Lowering a graph to instructions: buffer aliasing, instruction order and barriers.

mod aliasing;
mod barriers;
mod buckets;
mod gather;
mod linear;
mod sharded_dense;

pub(crate) use self::aliasing::{View, needs_own_buffer, reads_strided, writes_strided};
pub(crate) use self::linear::{BufferKind, LinearInstr, Target};
pub(crate) use self::sharded_dense::ShardedDense;

use self::aliasing::views;
use self::barriers::{Emitter, barrier_after_each, order_minimizing_barriers};
use self::buckets::Buckets;
use self::gather::gather_weights;
use self::linear::{UseLists, use_lists};
use self::sharded_dense::find_sharded_dense;
use crate::error::Result;
use crate::graph::{NodeId, ParamId};
use crate::ops::Op;
use crate::program::{Options, ShardLevel, Split};
use crate::step::Step;
use crate::types::{Scope, Space};

/// The lowered step.
pub(crate) struct Lowered {
    pub views: Vec<View>,
    pub kinds: Vec<BufferKind>,
    pub instrs: Vec<LinearInstr>,
    pub sharded: ShardedDense,
    pub buckets: Buckets,
    /// The weights of each group that is gathered.
    pub gathered: Vec<Vec<ParamId>>,
    pub split: Split,
}

impl Lowered {
    /// The gradients of a bucket that the loss depends on.
    pub fn bucket_gradients<'a>(
        &'a self,
        step: &'a Step,
        bucket: usize,
    ) -> impl Iterator<Item = (ParamId, NodeId)> + 'a {
        let order = &self.buckets.order[self.buckets.ranges[bucket].clone()];
        order.iter().filter_map(|i| Some((step.gradients[*i].param, step.gradients[*i].node?)))
    }
}

/// Orders the step's nodes into instructions.
pub(crate) fn lower(step: &Step, options: Options) -> Result<Lowered> {
    let live = step.live();
    let uses = use_lists(step, &live);
    let views = views(step, &live, &uses);
    let deferred = deferred_nodes(step, &live);
    let body = |id: NodeId| live[id.index()] && !deferred[id.index()];
    let sharded = find_sharded_dense(step, &uses, body, options);
    let buckets = Buckets::of(step);
    let sharding = options.mesh.sharding;
    let placed = Placement {
        // Partial gradients die when their bucket is reduced.
        buckets: (sharding.level >= ShardLevel::Gradients).then_some(&buckets),
        // The workers that share a copy of the weights.
        owners: if sharding.is_on() { Scope::All } else { Scope::Device },
        views: &views,
        sharded: &sharded,
    };
    let kinds = placed.buffer_kinds(step, &live, &uses);
    let instrs = placed.order(step, &live, &deferred, &kinds);
    let (instrs, gathered) = gather_weights(step, &views, instrs, sharding);
    let split = choose_split(&instrs, options);
    let instrs = if split == Split::Spatial { barrier_after_each(instrs) } else { instrs };
    Ok(Lowered { views, kinds, instrs, sharded, buckets, gathered, split })
}

/// Spatial splitting supports only steps without collectives, updates and assignments.
fn choose_split(instrs: &[LinearInstr], options: Options) -> Split {
    let only_computes = |d: &LinearInstr| {
        matches!(
            d,
            LinearInstr::Compute { sharded: false, .. }
                | LinearInstr::Copy { .. }
                | LinearInstr::Fetch { .. }
        )
    };
    match options.inference_split() {
        Split::Spatial if instrs.iter().all(only_computes) => Split::Spatial,
        _ => Split::Rows,
    }
}

/// Nodes after a collective that only mirrored fetches and assignments depend on. They are deferred to
/// the end of the step, after a single barrier.
fn deferred_nodes(step: &Step, live: &[bool]) -> Vec<bool> {
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
    let mut deferred = vec![false; live.len()];
    for id in g.ids().filter(|id| live[id.index()] && !body[id.index()]) {
        let node = g.node(id);
        let collective = matches!(node.op, Op::AllReduce { .. } | Op::ReplicaMean);
        deferred[id.index()] = collective || node.inputs.iter().any(|x| deferred[x.index()]);
    }
    deferred
}

/// Whether an instruction reads a weight that the update writes.
fn reads_trained(step: &Step, views: &[View], instr: &LinearInstr) -> bool {
    let trained = |id: &NodeId| match step.graph.node(views[id.index()].root).op {
        Op::Param { id } => step.gradients.iter().any(|g| g.param == id),
        _ => false,
    };
    match instr {
        LinearInstr::Compute { id, .. }
        | LinearInstr::ReduceScatter(id)
        | LinearInstr::ExchangeParts(id) => step.graph.node(*id).inputs.iter().any(trained),
        LinearInstr::Copy { from, .. } => trained(from),
        LinearInstr::Fetch { node, .. } => trained(node),
        // Collectives read shared blocks, sharded gradients read activations.
        LinearInstr::AllReduce(_)
        | LinearInstr::ReplicaMean(_)
        | LinearInstr::ShardedGradKernel { .. }
        | LinearInstr::ReduceGradients { .. }
        | LinearInstr::GatherWeights { .. } => false,
        LinearInstr::Barrier(_)
        | LinearInstr::Zero(_)
        | LinearInstr::Update
        | LinearInstr::Assign { .. } => false,
    }
}

/// Whether a node is the loss scale, which is fetched after the update.
fn is_scale(step: &Step, node: NodeId) -> bool {
    let state = step.loss_scale.map(|s| Op::Param { id: s.state });
    state.is_some_and(|state| step.graph.node(node).op == state)
}

/// What decides where values lie and in which order they are computed.
struct Placement<'a> {
    views: &'a [View],
    sharded: &'a ShardedDense,
    /// The buckets that are reduced during the backward pass, if they are.
    buckets: Option<&'a Buckets>,
    owners: Scope,
}

impl Placement<'_> {
    /// Chooses the block of each buffer. Operands of collectives go to the shared block, rows that other
    /// workers access to the device's block, and gradients directly to their gradient buffer if possible.
    fn buffer_kinds(&self, step: &Step, live: &[bool], uses: &UseLists) -> Vec<BufferKind> {
        let (g, views, sharded) = (&step.graph, self.views, self.sharded);
        let mut kinds = vec![BufferKind::Arena; g.nodes().len()];
        for id in g.ids().filter(|id| live[id.index()]) {
            if let Op::AllReduce { .. } | Op::ReplicaMean = g.node(id).op {
                kinds[views[g.node(id).inputs[0].index()].root.index()] = BufferKind::Shared;
            }
        }
        for id in sharded.shared(step) {
            kinds[views[id.index()].root.index()] = BufferKind::Device;
        }
        for grad in step.gradients.iter().filter(|_| self.buckets.is_none()) {
            let Some(node) = grad.node.filter(|n| !sharded.is_gradient(*n)) else { continue };
            let v = views[node.index()];
            let root = g.node(v.root);
            let covers_root = v.offset == 0 && root.ty.len() == g.ty(node).len();
            let in_arena =
                root.ty.space == Space::Partial && kinds[v.root.index()] == BufferKind::Arena;
            // The buffer must hold this gradient only: every reader of the root must lead to `node`.
            let mut at = v.root;
            let mut exclusive = covers_root && in_arena;
            while exclusive && at != node {
                exclusive = uses.roots[at.index()] == 0 && uses.nodes[at.index()].len() == 1;
                at = uses.nodes[at.index()].first().map_or(node, |(u, _)| *u);
            }
            exclusive &= uses.roots[node.index()] == 1 && uses.nodes[node.index()].is_empty();
            if exclusive {
                kinds[v.root.index()] = BufferKind::Gradient(grad.param);
            }
        }
        kinds
    }

    /// Orders the step's nodes into instructions.
    fn order(
        &self,
        step: &Step,
        live: &[bool],
        deferred: &[bool],
        kinds: &[BufferKind],
    ) -> Vec<LinearInstr> {
        let Placement { views, sharded, owners, .. } = *self;
        let g = &step.graph;
        let mut emitter = Emitter::new(g, views, sharded);
        let body =
            |id: &NodeId| live[id.index()] && !deferred[id.index()] && !sharded.is_gradient(*id);
        for id in order_minimizing_barriers(g, g.ids().filter(body).collect()) {
            emitter.node(id);
        }
        if let Some(buckets) = self.buckets {
            emitter.reduce_buckets(step, buckets);
        }
        for grad in step.gradients.iter().filter(|_| self.buckets.is_none()) {
            if grad.penalty_alone() {
                emitter.instrs.push(LinearInstr::Zero(grad.param));
            }
            let Some(node) = grad.node.filter(|n| !sharded.is_gradient(*n)) else { continue };
            if kinds[views[node.index()].root.index()] != BufferKind::Gradient(grad.param) {
                emitter
                    .instrs
                    .push(LinearInstr::Copy { from: node, to: Target::Gradient(grad.param) });
            }
        }
        if step.update.is_some() {
            emitter.barrier(Scope::All);
        }
        let after_barrier = emitter.instrs.len();
        for id in g.ids().filter(|id| deferred[id.index()]) {
            emitter.node(id);
        }
        let fetches = step.fetches.iter().enumerate();
        let (late, early): (Vec<_>, Vec<_>) = fetches.partition(|(_, f)| is_scale(step, f.node));
        for (index, f) in early {
            emitter.instrs.push(LinearInstr::Fetch { index, node: f.node });
        }
        if self.buckets.is_none()
            && !sharded.gradients.is_empty()
            && g.ids().any(|id| deferred[id.index()] && g.ty(id).is_rows())
        {
            // Sharded gradients read other workers' rows, which must be complete.
            emitter.barrier(Scope::Device);
        }
        for (param, id) in sharded.gradients.iter().filter(|_| self.buckets.is_none()) {
            let inputs = &g.node(*id).inputs;
            emitter.instrs.push(LinearInstr::ShardedGradKernel {
                param: *param,
                x: inputs[0],
                dy: inputs[1],
            });
        }
        if step.update.is_some() {
            if emitter.instrs[after_barrier..].iter().any(|d| reads_trained(step, views, d)) {
                // Other workers write their slices of the weights as soon as they reach the update.
                emitter.barrier(owners);
            }
            emitter.instrs.push(LinearInstr::Update);
        }
        for (index, f) in late {
            emitter.instrs.push(LinearInstr::Fetch { index, node: f.node });
        }
        if !step.assigns.is_empty() {
            // Other workers may still read the old values.
            emitter.barrier(owners);
        }
        for (param, node) in &step.assigns {
            emitter.instrs.push(LinearInstr::Assign { param: *param, node: *node });
        }
        emitter.instrs
    }
}
