//! Updates of whole weights.
//!
//! Most optimizers treat every element of a weight alike, and their formula is a tape. Some need a norm or a mean of the
//! weight, a product of matrices, or formulas that differ by weight. They append nodes to the graph of the training
//! step instead. The gradients are reduced before, so that every replica computes the same numbers.

use super::Optimizer;
use crate::error::Result;
use phalanx_graph::ops::{Instr, Unary};
use phalanx_graph::update::{RuleBuilder, SlotInit};
use phalanx_graph::{Graph, NodeId};

/// A weight that is trained.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TrainedWeight {
    /// Keras' path, such as `dense/kernel`.
    pub path: String,
    /// Its dimensions.
    pub dims: Vec<usize>,
}

/// A variable that an optimizer keeps for a weight.
#[derive(Clone, Debug, PartialEq)]
pub struct WeightSlot {
    /// Keras' name of the slot.
    pub name: String,
    /// Its dimensions, which may differ from those of the weight.
    pub dims: Vec<usize>,
    /// Its initial value.
    pub init: SlotInit,
    /// Whether it only stands in Keras' list of variables.
    pub unused: bool,
}

impl WeightSlot {
    /// A slot that starts at zero.
    pub(super) fn zeros(name: &str, dims: &[usize]) -> WeightSlot {
        let init = SlotInit::Value(0.0);
        WeightSlot { name: name.into(), dims: dims.to_vec(), init, unused: false }
    }
}

/// What the update of a weight computes with.
#[derive(Debug)]
pub struct WeightUpdate<'a> {
    /// The graph of the training step.
    pub graph: &'a mut Graph,
    /// The weight, after its decay.
    pub weight: NodeId,
    /// Its gradient, reduced and clipped.
    pub gradient: NodeId,
    /// The slots.
    pub slots: Vec<NodeId>,
    /// The scalars of the step ([`Optimizer::step_scalars`]).
    pub scalars: Vec<NodeId>,
}

impl WeightUpdate<'_> {
    /// `√Σx²`
    pub fn norm(&mut self, x: NodeId) -> Result<NodeId> {
        let sum = sum_of_squares(self.graph, x)?;
        Ok(self.graph.unary(Unary::Sqrt, sum)?)
    }

    /// `√(mean of x²)`
    pub fn root_mean_square(&mut self, x: NodeId) -> Result<NodeId> {
        let sum = sum_of_squares(self.graph, x)?;
        let count = self.graph.ty(x).len().max(1);
        let mean = self.graph.scale(sum, 1.0 / count as f64)?;
        Ok(self.graph.unary(Unary::Sqrt, mean)?)
    }

    /// `a * keep + b * (1 - keep)`: a moving average.
    pub fn blend(&mut self, keep: f64, a: NodeId, b: NodeId) -> Result<NodeId> {
        let a = self.graph.scale(a, keep)?;
        let b = self.graph.scale(b, 1.0 - keep)?;
        Ok(self.graph.add(a, b)?)
    }

    /// The formula of an optimizer that is a tape.
    pub(super) fn run_tape<O: Optimizer + ?Sized>(
        &mut self,
        optimizer: &O,
    ) -> Result<(NodeId, Vec<NodeId>)> {
        let mut b = RuleBuilder::new(optimizer.slots(), self.scalars.len());
        let (weight, gradient) = (b.weight(), b.gradient());
        let (weight, slots) = optimizer.step(&mut b, weight, gradient);
        let tape = b.finish(optimizer.class_name(), None, weight, &slots).tape;
        let mut inputs = vec![self.weight, self.gradient];
        inputs.extend(self.slots.iter().chain(&self.scalars));
        let (mut registers, g) = (vec![], &mut *self.graph);
        for instr in &tape.instrs {
            let at = |r: &u16| registers[usize::from(*r)];
            let node = match instr {
                Instr::Input(i) => inputs[usize::from(*i)],
                Instr::Const(bits) => g.scalar(f64::from_bits(*bits)),
                Instr::Unary(u, x) => g.unary(*u, at(x))?,
                Instr::Binary(b, l, r) => g.binary(*b, at(l), at(r))?,
                Instr::Select(c, a, b) => g.select(at(c), at(a), at(b))?,
            };
            registers.push(node);
        }
        let dims = g.ty(self.weight).dims.clone();
        let mut outputs = vec![];
        for register in &tape.outputs {
            let node = registers[usize::from(*register)];
            // A result that no element decides is a scalar.
            outputs.push(match g.ty(node).dims == dims {
                true => node,
                false => {
                    let zeros = g.fill(0.0, &dims);
                    g.add(zeros, node)?
                }
            });
        }
        let slots = outputs.split_off(1);
        Ok((outputs[0], slots))
    }
}

/// `Σx²`, a scalar.
pub(crate) fn sum_of_squares(g: &mut Graph, x: NodeId) -> Result<NodeId> {
    let squares = g.unary(Unary::Square, x)?;
    sum(g, squares)
}

/// The sum of all elements of a mirrored value, a scalar.
pub(crate) fn sum(g: &mut Graph, x: NodeId) -> Result<NodeId> {
    let axes: Vec<usize> = (0..g.ty(x).dims.len()).collect();
    if axes.is_empty() {
        return Ok(x);
    }
    let sum = g.sum_axes(x, &axes)?;
    Ok(g.reshape(sum, &[])?)
}
