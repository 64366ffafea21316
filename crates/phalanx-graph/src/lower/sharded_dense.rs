//! Dense kernels that are large against the batch: each worker of a device has a slice of such a
//! kernel to itself, some of its rows, and no other touches them.
//!
//! It multiplies all rows of the device with its slice, which gives a part of every sum; the parts
//! are added up. It makes its slice of the gradient over all rows of the device, and the columns of
//! the input's derivative that belong to its slice. So activations travel between workers, which are
//! small, and weights do not.

use super::UseLists;
use crate::graph::{NodeId, ParamId};
use crate::ops::Op;
use crate::program::Options;
use crate::step::Step;

/// Floats that must be spared by sharing a product, for the two barriers it costs.
const MIN_SAVED_FLOATS: usize = 4096;

/// What is computed in slices.
pub(crate) struct ShardedDense {
    /// Kernels and their gradients.
    pub gradients: Vec<(ParamId, NodeId)>,
    /// Which nodes are products with such a kernel that the workers share.
    pub products: Vec<bool>,
}

impl ShardedDense {
    pub fn is_gradient(&self, id: NodeId) -> bool {
        self.gradients.iter().any(|(_, n)| *n == id)
    }

    pub fn is_product(&self, id: NodeId) -> bool {
        self.products[id.index()]
    }

    /// Nodes whose rows other workers read or write.
    pub fn shared<'a>(&'a self, step: &'a Step) -> impl Iterator<Item = NodeId> + 'a {
        let g = &step.graph;
        let products = g.ids().filter(|id| self.is_product(*id)).flat_map(|id| {
            let made = (g.node(id).op == Op::DotGradInput).then_some(id);
            made.into_iter().chain([g.node(id).inputs[0]])
        });
        self.gradients.iter().flat_map(|(_, id)| g.node(*id).inputs.clone()).chain(products)
    }
}

/// Finds the kernels, and the products with them among the nodes of the body.
pub(super) fn find_sharded_dense(
    step: &Step,
    users: &UseLists,
    body: impl Fn(NodeId) -> bool,
    options: Options,
) -> ShardedDense {
    let g = &step.graph;
    let gradients = gradients(step, users, options);
    let mut products = vec![false; g.nodes().len()];
    for id in g.ids().filter(|id| body(*id)) {
        let node = g.node(id);
        let (Op::Dot(_) | Op::DotGradInput) = node.op else { continue };
        let Op::Param { id: kernel } = g.node(node.inputs[1]).op else { continue };
        let gradient = gradients.iter().find(|(p, _)| *p == kernel);
        products[id.index()] =
            gradient.is_some_and(|(_, n)| saved_floats(step, *n, options) >= MIN_SAVED_FLOATS);
    }
    ShardedDense { gradients, products }
}

/// Gradients of dense kernels that are cheaper to compute in slices than to add up as whole partial
/// sums.
fn gradients(step: &Step, users: &UseLists, options: Options) -> Vec<(ParamId, NodeId)> {
    // A slice sums over a device's rows, which depend on the number of devices.
    if options.mesh.workers < 2 || options.mesh.fixed {
        return vec![];
    }
    let all = step.gradients.iter().filter_map(|grad| Some((grad.param, grad.node?)));
    all.filter(|(_, id)| {
        step.graph.node(*id).op == Op::DotGradKernel
            && users.roots[id.index()] == 1
            && users.nodes[id.index()].is_empty()
            && saved_floats(step, *id, options) > 0
    })
    .collect()
}

/// Floats of a kernel that need not travel, less those of its layer's input and output that must: of these a
/// worker has its share already, and needs its columns only.
fn saved_floats(step: &Step, gradient: NodeId, options: Options) -> usize {
    let g = &step.graph;
    let node = g.node(gradient);
    let (k, n) = (node.ty.dims[0], node.ty.dims[1]);
    let Options { mesh, max_batch, .. } = options;
    let device_rows = max_batch.div_ceil(mesh.devices);
    let rows = device_rows.saturating_mul(g.ty(node.inputs[0]).len() / k);
    (k * n).saturating_sub(rows.saturating_mul(k / mesh.workers + n))
}
