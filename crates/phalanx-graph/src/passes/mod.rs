//! Compiler passes. Each takes a step and returns an optimized one that computes the same.

mod align;
mod epilogue;
mod fuse;
mod partition;
mod precision;
mod recompute;
mod simplify;

pub use align::align_products;
pub use epilogue::fuse_epilogues;
pub use fuse::fuse_elementwise;
pub use partition::{localize, partition};
pub use precision::store_narrow;
pub use recompute::recompute;
pub use simplify::simplify;

use crate::error::Result;
use crate::graph::{Graph, NodeId};
use crate::ops::Op;
use crate::step::Step;

/// All passes between autodiff and mixed precision.
pub fn optimize(step: Step) -> Result<Step> {
    let step = checked("simplify", simplify(remove_gradient_stops(step)))?;
    checked("fuse_elementwise", fuse_elementwise(step))
}

/// Removes conversions to the own type, which matter to autodiff only.
fn remove_gradient_stops(step: Step) -> Step {
    let live = step.live();
    let mut r = Rewriter::new(&step);
    for id in step.graph.ids().filter(|id| live[id.index()]) {
        let node = step.graph.node(id);
        let inputs: Vec<NodeId> = node.inputs.iter().map(|x| r.get(*x)).collect();
        r.map[id.index()] = Some(match &node.op {
            Op::Cast { dtype } if r.graph.ty(inputs[0]).dtype == *dtype => inputs[0],
            op => {
                r.graph.set_layer(node.layer);
                r.graph.push_typed(op.clone(), inputs, node.ty.clone())
            }
        });
    }
    r.finish(step)
}

/// Verifies the result of a pass in debug builds.
pub fn checked(pass: &str, step: Step) -> Result<Step> {
    if cfg!(debug_assertions) {
        step.verify(pass)?;
    }
    Ok(step)
}

/// Number of uses of each node, roots included.
fn use_counts(step: &Step) -> Vec<u32> {
    let live = step.live();
    let mut uses = vec![0; live.len()];
    for id in step.graph.ids().filter(|id| live[id.index()]) {
        step.graph.node(id).inputs.iter().for_each(|x| uses[x.index()] += 1);
    }
    step.roots().for_each(|r| uses[r.index()] += 1);
    uses
}

/// A graph being rewritten node by node.
struct Rewriter {
    graph: Graph,
    map: Vec<Option<NodeId>>,
}

impl Rewriter {
    fn new(step: &Step) -> Rewriter {
        let map = vec![None; step.graph.nodes().len()];
        Rewriter { graph: Graph::like(&step.graph), map }
    }

    /// The new node that replaces an old one.
    fn get(&self, old: NodeId) -> NodeId {
        self.map[old.index()].expect("operands are rewritten before their users")
    }

    fn finish(self, step: Step) -> Step {
        let map = self.map;
        step.with_graph(self.graph, |old| map[old.index()].expect("roots are live"))
    }
}
