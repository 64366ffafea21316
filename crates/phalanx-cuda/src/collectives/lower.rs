//! Sums and means over replicas that are all on this GPU.

use crate::launch::{Arg, Launch, Word};
use crate::lower::Lowering;
use crate::lowering_context::Operand;
use crate::work_item::{Task, WorkItem};
use phalanx_graph::Scope;
use phalanx_graph::program::ValueId;

impl Lowering<'_> {
    /// Sums over replicas. The sum of a single replica is read in place.
    pub(crate) fn all_reduce(&mut self, scope: Scope, x: ValueId, y: ValueId) {
        if scope == Scope::Device || self.alone() {
            self.read_in_place(x, y);
            return;
        }
        if self.request.joined {
            return self.read_sum(y);
        }
        let (from, to) = self.operands_on_all_replicas(x, y);
        let elem = from[0].elem;
        let words = from.iter().zip(&to).flat_map(|(f, t)| [Word::Ptr(f.ptr), Word::Ptr(t.ptr)]);
        let kernel = format!("all_reduce<{}>", elem.c_name());
        let launch = Launch::over("collective", kernel, from[0].len)
            .arg(Arg::Table(words.collect()))
            .arg(from.len())
            .arg(from[0].len);
        self.collective("all_reduce", launch, &from, &to);
    }

    /// Aliases `y` to `x` instead of copying.
    pub(crate) fn read_in_place(&mut self, x: ValueId, y: ValueId) {
        let from = self.operand(0, x).ptr;
        let own = self.cx(0).0.assigned(y).span();
        self.aliases.insert(own, (from.block, from.offset));
    }

    /// The mean over replicas, weighted by their rows.
    pub(crate) fn replica_mean(&mut self, x: ValueId, y: ValueId) {
        if self.alone() {
            self.read_in_place(x, y);
            return;
        }
        if self.request.joined {
            return self.read_sum(y);
        }
        let (from, to) = self.operands_on_all_replicas(x, y);
        let total = self.request.rows.max(1) as f32;
        let mut words = vec![];
        for (r, (f, t)) in self.request.replicas.iter().zip(from.iter().zip(&to)) {
            let share = Word::F32(r.rows as f32 / total);
            words.extend([Word::Ptr(f.ptr), Word::Ptr(t.ptr), share]);
        }
        let launch = Launch::over("collective", "replica_mean", from[0].len)
            .arg(Arg::Table(words))
            .arg(from.len())
            .arg(from[0].len);
        self.collective("replica_mean", launch, &from, &to);
    }

    pub(crate) fn operands_on_all_replicas(
        &mut self,
        x: ValueId,
        y: ValueId,
    ) -> (Vec<Operand>, Vec<Operand>) {
        self.replicas().map(|r| (self.operand(r, x), self.operand(r, y))).unzip()
    }

    pub(crate) fn collective(
        &mut self,
        label: &str,
        launch: Launch,
        from: &[Operand],
        to: &[Operand],
    ) {
        self.push(WorkItem {
            instr: self.at,
            label: label.into(),
            tasks: vec![Task::Launch(launch)],
            reads: from.iter().map(Operand::span).collect(),
            writes: to.iter().map(Operand::span).collect(),
        });
    }
}
