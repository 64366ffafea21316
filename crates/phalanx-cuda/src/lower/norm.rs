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
            let late = l.request.facts.deferred_bias.get(&id).copied();
            late.map(|b| l.operand(replica, b).ptr)
        };
        match op {
            Op::Moments => {
                let late = bias(self, x[0]);
                let finish = self.request.facts.fused_stats.get(&y).copied();
                let rows = self.request.replicas[replica].rows;
                let (mut cx, _) = self.cx(replica);
                match finish {
                    None => {
                        let launches = ops::norm::moments(&mut cx, x, y, late);
                        self.launches(replica, label, launches, x, &[y]);
                    }
                    Some(f) => {
                        let count = rows * f.positions;
                        let launches =
                            ops::norm::moments_and_stats(&mut cx, count, x, y, f.stats, late);
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
                let late = bias(self, x[0]);
                let launches = ops::norm::batch_norm(&mut self.cx(replica).0, a, x, y, late);
                self.launches(replica, label, launches, x, &[y]);
            }
            Op::BatchNormGradSums(a) => {
                let late = bias(self, x[1]);
                let launches =
                    ops::norm::batch_norm_grad_sums(&mut self.cx(replica).0, a, x, y, late);
                self.launches(replica, label, launches, x, &[y]);
            }
            Op::BatchNormGradInput(a) => {
                let late = bias(self, x[1]);
                self.batch_norm_grad_input(replica, label, a, x, y, late);
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
        late: Option<Ptr>,
    ) {
        let ty = &self.request.program.value(y).ty;
        let positions = ty.len() / ty.last().max(1);
        let count = self.scope_rows(replica, attrs.scope) * positions;
        let sums = self.request.facts.with_sums.get(&y).copied();
        let to = sums.map(|s| self.operand(replica, s).ptr);
        let (mut cx, _) = self.cx(replica);
        let launches = ops::norm::batch_norm_grad_input(&mut cx, attrs, count, x, y, late, to);
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
