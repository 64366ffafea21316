//! Ops over an axis of classes or words that is partitioned: softmax, crossentropy and lookups, in terms of sums and maxima over
//! the model axis.

use super::Partitioner;
use crate::error::Result;
use crate::functions::layout::repeat_rows;
use crate::graph::{Node, NodeId};
use crate::ops::{ModelOp, Op, ReduceKind, Unary};
use crate::types::ModelSpace;

/// The maximum of a partitioned last axis, and the sum of the exponentials of what remains without it.
struct SoftmaxParts {
    /// `exp(x - max)`.
    exp: NodeId,
    /// `x - max`.
    shifted: NodeId,
    /// The sum of `exp` over all classes.
    sum: NodeId,
}

impl Partitioner {
    /// Appends the new form of a node that needs a partitioned axis whole, if one computes on parts.
    pub(super) fn over_classes(
        &mut self,
        node: &Node,
        inputs: &[NodeId],
    ) -> Result<Option<NodeId>> {
        let cut_last = |p: &Partitioner| {
            let last = p.graph.ty(inputs[0]).dims.len().checked_sub(1);
            last.is_some_and(|axis| p.model(inputs[0]) == ModelSpace::Partitioned(axis))
        };
        match node.op {
            Op::Dropout { .. } => self.dropout(node, inputs[0]),
            Op::Softmax if cut_last(self) => {
                let parts = self.softmax_parts(inputs[0])?;
                self.graph.div(parts.exp, parts.sum).map(Some)
            }
            Op::SoftmaxGrad if cut_last(self) => {
                let y = inputs[0];
                let dy = self.converted(inputs[1], self.model(y))?;
                let product = self.graph.mul(dy, y)?;
                let sum = self.reduce_last(product, ReduceKind::Sum)?;
                let centred = self.graph.sub(dy, sum)?;
                self.graph.mul(y, centred).map(Some)
            }
            Op::LogSoftmax if cut_last(self) => {
                let parts = self.softmax_parts(inputs[0])?;
                let log = self.graph.unary(Unary::Log, parts.sum)?;
                self.graph.sub(parts.shifted, log).map(Some)
            }
            Op::SparseXent if cut_last(self) => {
                let labels = self.whole(inputs[1])?;
                self.sparse_xent(inputs[0], labels).map(Some)
            }
            Op::SparseXentGrad if cut_last(self) => {
                let (labels, dy) = (self.whole(inputs[1])?, self.whole(inputs[2])?);
                self.sparse_xent_grad(inputs[0], labels, dy).map(Some)
            }
            _ => Ok(None),
        }
    }

    /// Dropout of a part: the mask of the whole value, of which each device takes its part.
    fn dropout(&mut self, node: &Node, x: NodeId) -> Result<Option<NodeId>> {
        let (Op::Dropout { noise, .. }, ModelSpace::Partitioned(axis)) = (&node.op, self.model(x))
        else {
            return Ok(None);
        };
        if noise[axis] == 1 && node.ty.dims[axis] > 1 || !node.ty.is_rows() {
            return Ok(None);
        }
        let ones = self.graph.fill(1.0, &node.ty.dims);
        let like = self.graph.push(Op::RowIndex, &[])?;
        let ones = repeat_rows(&mut self.graph, ones, like)?;
        let mask = self.graph.push(node.op.clone(), &[ones])?;
        let mask = self.convert(mask, ModelOp::Slice { axis })?;
        self.graph.mul(x, mask).map(Some)
    }

    fn reduce_last(&mut self, x: NodeId, kind: ReduceKind) -> Result<NodeId> {
        let axis = self.graph.ty(x).dims.len() - 1;
        let part = self.graph.push(Op::Reduce { kind, axes: vec![axis] }, &[x])?;
        self.convert(part, ModelOp::AllReduce(kind))
    }

    fn softmax_parts(&mut self, x: NodeId) -> Result<SoftmaxParts> {
        let max = self.reduce_last(x, ReduceKind::Max)?;
        let shifted = self.graph.sub(x, max)?;
        let exp = self.graph.unary(Unary::Exp, shifted)?;
        let sum = self.reduce_last(exp, ReduceKind::Sum)?;
        Ok(SoftmaxParts { exp, shifted, sum })
    }

    /// This device's part of one-hot labels.
    fn hot_part(&mut self, logits: NodeId, labels: NodeId) -> Result<NodeId> {
        let axis = self.graph.ty(logits).dims.len() - 1;
        let depth = self.graph.ty(logits).last();
        let hot = self.graph.push(Op::OneHot { depth }, &[labels])?;
        self.convert(hot, ModelOp::Slice { axis })
    }

    /// `log Σ exp(x - max) - (x[label] - max)`.
    fn sparse_xent(&mut self, logits: NodeId, labels: NodeId) -> Result<NodeId> {
        let parts = self.softmax_parts(logits)?;
        let hot = self.hot_part(logits, labels)?;
        let picked = self.graph.mul(hot, parts.shifted)?;
        let picked = self.reduce_last(picked, ReduceKind::Sum)?;
        let log = self.graph.unary(Unary::Log, parts.sum)?;
        let loss = self.graph.sub(log, picked)?;
        let dims = self.graph.ty(labels).dims.clone();
        self.graph.reshape(loss, &dims)
    }

    /// `(softmax(x) - onehot(label)) · dy`.
    fn sparse_xent_grad(&mut self, logits: NodeId, labels: NodeId, dy: NodeId) -> Result<NodeId> {
        let parts = self.softmax_parts(logits)?;
        let hot = self.hot_part(logits, labels)?;
        let softmax = self.graph.div(parts.exp, parts.sum)?;
        let slope = self.graph.sub(softmax, hot)?;
        let mut dims = self.graph.ty(dy).dims.clone();
        dims.push(1);
        let dy = self.graph.reshape(dy, &dims)?;
        self.graph.mul(slope, dy)
    }
}
