//! Lowering of ops to work items: special cases first, then the launches of all other ops.

use super::Lowering;
use super::batching::CopyOp;
use crate::launch::Block;
use crate::ops;
use crate::ops::depthwise::is_depthwise;
use crate::tape;
use crate::work_item::{Pass, Task};
use phalanx_graph::Op;
use phalanx_graph::program::{Location, ValueId};

impl Lowering<'_> {
    pub(super) fn label(&self, op: &Op, layer: u32) -> String {
        format!("{} {}", op.name(), self.request.program.layers()[layer as usize])
    }

    pub(super) fn compute(
        &mut self,
        replica: usize,
        op: &Op,
        x: &[ValueId],
        y: ValueId,
        layer: u32,
    ) {
        let label = self.label(op, layer);
        if self.request.replicas[replica].rows == 0 && self.without_rows(replica, &label, x, y) {
            return;
        }
        match op {
            Op::Conv(geom, e) if is_depthwise(geom) => {
                self.depthwise_conv(replica, label, geom, *e, x, y);
            }
            Op::ConvGradInput(geom) if is_depthwise(geom) => {
                self.depthwise_grad_input(replica, label, geom, x, y);
            }
            Op::ConvGradKernel(geom) if is_depthwise(geom) => {
                self.depthwise_grad_filter(replica, label, geom, x, y);
            }
            Op::Conv(geom, e) => self.conv(replica, label, geom, *e, x, y),
            Op::ConvGradInput(geom) => {
                self.conv_pass(replica, label, Pass::GradInput, geom, x, y);
            }
            Op::ConvGradKernel(geom) => self.conv_grad_kernel(replica, label, geom, x, y),
            Op::Dot(e) => self.dot(replica, label, *e, x, y),
            Op::DotGradInput => self.dot_grad_input(replica, label, x, y),
            Op::DotGradKernel => {
                let task = self.dot_grad_kernel(replica, x[0], x[1], y);
                self.work(replica, label, vec![task], x, &[y]);
            }
            Op::MatMul(c) => self.matmul(replica, label, c, x, y),
            Op::Moments
            | Op::BatchStats { .. }
            | Op::BatchNorm(_)
            | Op::BatchNormGradSums(_)
            | Op::BatchNormGradInput(_) => self.norm(replica, label, op, x, y),
            Op::Reduce { .. } if self.request.facts.column_sums.contains_key(&self.at) => {
                let sums = self.request.facts.column_sums[&self.at];
                let (from, to) = (self.operand(replica, x[0]), self.operand(replica, sums));
                let sizes = [from.pixels(), from.last(), from.ld];
                let (mut cx, _) = self.cx(replica);
                let from = (from.ptr, from.elem);
                let launch = ops::reduce::column_sums(&mut cx, from, sizes, to.ptr);
                self.launches(replica, label, vec![launch], x, &[sums]);
            }
            Op::Fused(tape) => {
                let x = self.request.facts.uncast(x);
                if self.is_small(y) {
                    return self.defer_tape(replica, tape, &x, y);
                }
                let (mut cx, tapes) = self.cx(replica);
                let launches = tape::fused(&mut cx, tapes, tape, &x, y);
                self.launches(replica, label, launches, &x, &[y]);
            }
            Op::SumRows if self.sum_rows(replica, x[0], y) => {}
            Op::Slice { axis, start, .. } if self.is_stable_slice(replica, *axis, x[0]) => {
                self.slice_in_place(replica, *axis, *start, x[0], y);
            }
            _ => {
                let (mut cx, tapes) = self.cx(replica);
                let launches = ops::compute(&mut cx, tapes, op, x, y);
                self.launches(replica, label, launches, x, &[y]);
            }
        }
    }

    /// Handles a replica without rows: there is nothing to compute, and sums over rows are zero.
    /// Returns whether that was all.
    pub(super) fn without_rows(
        &mut self,
        replica: usize,
        label: &str,
        x: &[ValueId],
        y: ValueId,
    ) -> bool {
        let is_rows = |id: &ValueId| self.request.program.value(*id).ty.is_rows();
        let facts = self.request.facts;
        let sums = [
            (!is_rows(&y)).then_some(y),
            facts.column_sums.get(&self.at).copied(),
            facts.fused_column_sums.get(&y).copied(),
            facts.fused_stats.get(&y).map(|f| f.stats),
        ];
        if !is_rows(&y) && !x.iter().any(is_rows) {
            return false;
        }
        for sum in sums.into_iter().flatten() {
            let clear = Task::Clear(self.operand(replica, sum).span());
            self.work(replica, label.into(), vec![clear], &[], &[sum]);
        }
        true
    }

    /// Whether a value has no row axis and few elements.
    pub(super) fn is_small(&self, y: ValueId) -> bool {
        let ty = &self.request.program.value(y).ty;
        !ty.is_rows() && ty.len() <= tape::MAX_GROUPED_LEN
    }

    /// Whether a slice of a value along an axis is contiguous, and the value stays in place for the
    /// whole step.
    pub(super) fn is_stable_slice(&mut self, replica: usize, axis: usize, x: ValueId) -> bool {
        let v = self.request.program.value(x);
        let leading: usize = v.ty.dims[..axis].iter().product();
        let block = self.operand(replica, x).ptr.block;
        !v.ty.is_rows()
            && leading == 1
            && matches!(block, Block::Shared | Block::Inputs | Block::Scratch)
    }

    /// Reads a slice in place. Only slices that are gradients of weights are copied, later.
    pub(super) fn slice_in_place(
        &mut self,
        replica: usize,
        axis: usize,
        start: usize,
        x: ValueId,
        y: ValueId,
    ) {
        let from = self.operand(replica, x);
        let inner: usize = from.dims[axis + 1..].iter().product();
        let part = from.ptr.add(start * inner * from.elem.bytes());
        match self.request.program.value(y).location {
            Location::Gradient(_) => {
                let to = self.operand(replica, y);
                self.defer_copy(CopyOp { from: part, elem: from.elem, to: to.ptr, len: to.len });
            }
            _ => {
                let own = self.cx(replica).0.assigned(y).span();
                self.aliases.insert(own, (part.block, part.offset));
            }
        }
    }

    pub(super) fn copy(&mut self, replica: usize, x: ValueId, y: ValueId) {
        let empty = self.request.replicas[replica].rows == 0;
        if empty && self.request.program.value(y).ty.is_rows() {
            return;
        }
        let launches = ops::layout::copy(&mut self.cx(replica).0, x, y);
        self.launches(replica, "copy".into(), launches, &[x], &[y]);
    }
}
