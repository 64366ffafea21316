//! Sharding of dense kernels that are large relative to the batch. Each worker of a device owns a shard
//! of such a kernel: some of its rows, which no other worker accesses.
//!
//! A worker multiplies all rows of the device by its shard. This gives a partial product, and the
//! partial products are added. It also computes its shard of the kernel's gradient over all rows of the
//! device, and the columns of the input's derivative that belong to its shard. Thus activations, which
//! are small, move between workers, and weights do not.

use super::linear::UseLists;
use crate::graph::{NodeId, ParamId};
use crate::ops::Op;
use crate::program::Options;
use crate::step::Step;

/// The dense kernels and products that are sharded.
pub(crate) struct ShardedDense {
    /// Sharded kernels and the nodes of their gradients.
    pub gradients: Vec<(ParamId, NodeId)>,
    /// Whether each node is a sharded product with such a kernel.
    pub products: Vec<bool>,
}

impl ShardedDense {
    pub fn is_gradient(&self, id: NodeId) -> bool {
        self.gradients.iter().any(|(_, n)| *n == id)
    }

    pub fn is_product(&self, id: NodeId) -> bool {
        self.products[id.index()]
    }

    /// Nodes whose rows are read or written by other workers.
    pub fn shared<'a>(&'a self, step: &'a Step) -> impl Iterator<Item = NodeId> + 'a {
        let g = &step.graph;
        let products = g.ids().filter(|id| self.is_product(*id)).flat_map(|id| {
            let result = (g.node(id).op == Op::DotGradInput).then_some(id);
            result.into_iter().chain([g.node(id).inputs[0]])
        });
        self.gradients.iter().flat_map(|(_, id)| g.node(*id).inputs.clone()).chain(products)
    }
}

/// Finds the kernels to shard, and the products with them among the nodes for which `body` holds.
pub(super) fn find_sharded_dense(
    step: &Step,
    uses: &UseLists,
    body: impl Fn(NodeId) -> bool,
    options: Options,
) -> ShardedDense {
    let g = &step.graph;
    let gradients = gradients(step, uses, options);
    let min_saved = options.split_rules.min_floats_saved_by_product;
    let mut products = vec![false; g.nodes().len()];
    for id in g.ids().filter(|id| body(*id)) {
        let node = g.node(id);
        let (Op::Dot(_) | Op::DotGradInput) = node.op else { continue };
        let Op::Param { id: kernel } = g.node(node.inputs[1]).op else { continue };
        let gradient = gradients.iter().find(|(p, _)| *p == kernel);
        products[id.index()] =
            gradient.is_some_and(|(_, n)| saved_floats(step, *n, options) >= min_saved);
    }
    ShardedDense { gradients, products }
}

/// Gradients of dense kernels that are cheaper to compute in shards than to reduce from full partial
/// sums.
fn gradients(step: &Step, uses: &UseLists, options: Options) -> Vec<(ParamId, NodeId)> {
    // A shard sums over a device's rows, and these depend on the number of devices.
    if options.mesh.workers < 2 || options.mesh.fixed {
        return vec![];
    }
    let min_saved = options.split_rules.min_floats_saved_by_gradient;
    let all = step.gradients.iter().filter_map(|grad| Some((grad.param, grad.node?)));
    all.filter(|(_, id)| {
        step.graph.node(*id).op == Op::DotGradKernel
            && uses.roots[id.index()] == 1
            && uses.nodes[id.index()].is_empty()
            && saved_floats(step, *id, options) >= min_saved
    })
    .collect()
}

/// Floats of a kernel that need not be transferred, minus the activations that must be: of its layer's
/// input and output a worker already has its own rows, and it needs its own columns only.
fn saved_floats(step: &Step, gradient: NodeId, options: Options) -> usize {
    let g = &step.graph;
    let node = g.node(gradient);
    let (k, n) = (node.ty.dims[0], node.ty.dims[1]);
    let Options { mesh, max_batch, .. } = options;
    let replica_rows = max_batch.div_ceil(mesh.replicas);
    let rows = replica_rows.saturating_mul(g.ty(node.inputs[0]).len() / k);
    (k * n).saturating_sub(rows.saturating_mul(k / mesh.workers + n))
}
