//! Instructions over graph nodes, before values are assigned to memory, and the readers of each node.

use crate::graph::{NodeId, ParamId};
use crate::step::Step;
use crate::types::Scope;

/// An instruction over graph nodes, before values are assigned to memory.
#[derive(Clone, Debug)]
pub(crate) enum LinearInstr {
    Compute {
        id: NodeId,
        /// Whether it is a product with this worker's rows of a dense kernel.
        sharded: bool,
    },
    /// Adds the partial products of all workers.
    ReduceScatter(NodeId),
    /// Copies `from` into `to`.
    Copy {
        from: NodeId,
        to: Target,
    },
    Barrier(Scope),
    AllReduce(NodeId),
    ReplicaMean(NodeId),
    /// Exchanges parts among the devices of a replica, before a barrier.
    ExchangeParts(NodeId),
    ShardedGradKernel {
        param: ParamId,
        x: NodeId,
        dy: NodeId,
    },
    /// Reduces the gradients of a bucket, between two barriers.
    ReduceGradients {
        bucket: usize,
    },
    /// Makes the weights of a group complete, and those of the group before it incomplete.
    GatherWeights {
        group: usize,
    },
    /// Zeroes the gradient of a parameter that affects the loss only through its penalty.
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

/// The destination of a copy.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Target {
    /// The node's own buffer.
    Node(NodeId),
    /// `width` channels of a concatenation, starting at `offset`.
    Slice { of: NodeId, offset: usize, width: usize },
    /// A parameter's gradient.
    Gradient(ParamId),
}

/// The memory block that a buffer belongs to.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum BufferKind {
    Arena,
    Shared,
    /// The block of rows that all workers of the device share.
    Device,
    Gradient(ParamId),
}

/// The readers of each node as `(reader, operand index)`, and the number of roots that refer to it.
pub(super) struct UseLists {
    pub nodes: Vec<Vec<(NodeId, usize)>>,
    pub roots: Vec<u32>,
}

/// The readers of all live nodes.
pub(super) fn use_lists(step: &Step, live: &[bool]) -> UseLists {
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
