//! Batch normalisation.

use super::Lowering;
use crate::launch::Ptr;
use crate::ops;
use phalanx_graph::ops::BatchNormAttrs;
use phalanx_graph::program::ValueId;
use phalanx_graph::{Op, Scope};

impl Lowering<'_> {
    pub(super) fn norm(
        &mut self,
        replica: usize,
        label: String,
        op: &Op,
        x: &[ValueId],
        y: ValueId,
    ) {
        let bias = |l: &mut Self, id: ValueId| {
            let deferred = l.request.facts.deferred_bias.get(&id).copied();
            deferred.map(|b| l.operand(replica, b).ptr)
        };
        match op {
            Op::Moments => {
                let deferred = bias(self, x[0]);
                let fused = self.request.facts.fused_stats.get(&y).copied();
                let rows = self.request.replicas[replica].rows;
                let (mut cx, _) = self.cx(replica);
                match fused {
                    None => {
                        let launches = ops::norm::moments(&mut cx, x, y, deferred);
                        self.launches(replica, label, launches, x, &[y]);
                    }
                    Some(f) => {
                        let count = rows * f.positions;
                        let launches =
                            ops::norm::moments_and_stats(&mut cx, count, x, y, f.stats, deferred);
                        self.launches(replica, label, launches, x, &[y, f.stats]);
                    }
                }
            }
            Op::BatchStats { scope, positions } => {
                let count = self.scope_rows(replica, *scope) * positions;
                let launches = ops::norm::batch_stats(&mut self.cx(replica).0, count, x, y);
                self.launches(replica, label, launches, x, &[y]);
            }
            Op::BatchNorm(a) => {
                let deferred = bias(self, x[0]);
                let launches = ops::norm::batch_norm(&mut self.cx(replica).0, a, x, y, deferred);
                self.launches(replica, label, launches, x, &[y]);
            }
            Op::BatchNormGradSums(a) => {
                let deferred = bias(self, x[1]);
                let launches =
                    ops::norm::batch_norm_grad_sums(&mut self.cx(replica).0, a, x, y, deferred);
                self.launches(replica, label, launches, x, &[y]);
            }
            Op::BatchNormGradInput(a) => {
                let deferred = bias(self, x[1]);
                self.batch_norm_grad_input(replica, label, a, x, y, deferred);
            }
            _ => unreachable!("{} is no batch norm", op.name()),
        }
    }

    pub(super) fn batch_norm_grad_input(
        &mut self,
        replica: usize,
        label: String,
        attrs: &BatchNormAttrs,
        x: &[ValueId],
        y: ValueId,
        deferred: Option<Ptr>,
    ) {
        let ty = &self.request.program.value(y).ty;
        let positions = ty.len() / ty.last().max(1);
        let count = self.scope_rows(replica, attrs.scope) * positions;
        let sums = self.request.facts.fused_column_sums.get(&y).copied();
        let column_sums = sums.map(|s| self.operand(replica, s).ptr);
        let bias = ops::norm::FusedBias { values: deferred, column_sums };
        let (mut cx, _) = self.cx(replica);
        let launches = ops::norm::batch_norm_grad_input(&mut cx, attrs, count, x, y, bias);
        let written: Vec<ValueId> = [y].into_iter().chain(sums).collect();
        self.launches(replica, label, launches, x, &written);
    }

    /// Rows that share statistics.
    pub(super) fn scope_rows(&self, replica: usize, scope: Scope) -> usize {
        match scope {
            Scope::Device => self.request.replicas[replica].rows,
            Scope::All => self.request.rows,
        }
    }
}
