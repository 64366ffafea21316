//! Batching of sums over few rows: bias gradients, losses, metrics. Columns that were concatenated
//! only to be summed are summed in place.

use super::analysis::{FusionFacts, only_read_by, survives};
use super::{Lowering, tasks};
use crate::launch::{Elem, Ptr, Span};
use crate::ops::reduce::{self, RowSum};
use crate::work_item::WorkItem;
use phalanx_graph::Op;
use phalanx_graph::program::{Instr, Program, ValueId};

/// Maximum rows of a batched sum: one block sums them quickly.
const MAX_BATCHED_ROWS: usize = 512;

/// Maximum columns of a batched sum.
const MAX_BATCHED_COLUMNS: usize = 4096;

fn reads(s: &RowSum) -> Span {
    let (width, pitch) = (s.columns * 4, s.ld * 4);
    let bytes = (s.rows.max(1) - 1) * pitch + width;
    if width == pitch {
        return Span::whole(s.from, bytes);
    }
    Span { at: s.from, bytes, width, pitch }
}

fn writes(s: &RowSum) -> Span {
    Span::whole(s.to, s.columns * 4)
}

impl FusionFacts {
    /// `copy, copy, sum_rows`: columns concatenated only for this sum.
    pub(super) fn find_concat_sums(&mut self, program: &Program, at: usize, concat: ValueId) {
        let whole = program.value(concat);
        let mut parts = vec![];
        let mut first = at;
        while let Some(Instr::Copy { input, output }) =
            first.checked_sub(1).map(|i| &program.instrs()[i])
        {
            let (from, to) = (program.value(*input), program.value(*output));
            let inside = to.location == whole.location && to.ld == whole.ld && to.ty.is_rows();
            let flat = from.ty.len() == to.ty.last() && from.ld == from.ty.last();
            if !inside || !flat || from.ty.dtype != whole.ty.dtype {
                break;
            }
            first -= 1;
            parts.push((*input, to.offset - whole.offset));
        }
        let survive =
            parts.iter().all(|(from, _)| survives(program, *from, (first, at), |_| false));
        let only = |op: &Op, _| matches!(op, Op::SumRows);
        if !parts.is_empty() && survive && only_read_by(program, at - 1, concat, only) {
            self.covered.extend(first..at);
            parts.sort_by_key(|(_, column)| *column);
            self.concat_sums.insert(at, parts);
        }
    }
}

impl Lowering<'_> {
    /// Defers a sum over rows. Returns false if it is too large for that.
    pub(super) fn sum_rows(&mut self, replica: usize, x: ValueId, y: ValueId) -> bool {
        let rows = self.request.replicas[replica].rows;
        let (from, to) = (self.operand(replica, x), self.operand(replica, y));
        let parts = self.request.facts.concat_sums.get(&self.at);
        let small = rows <= MAX_BATCHED_ROWS && to.len <= MAX_BATCHED_COLUMNS && to.len > 0;
        if parts.is_none() && !small || [from.elem, to.elem] != [Elem::F32; 2] {
            return false;
        }
        let (mut column, mut sums) = (0, vec![]);
        let mut add = |from: Ptr, ld: usize, at: usize, columns: usize| {
            if columns > 0 {
                sums.push(RowSum { from, to: to.ptr.add(at * 4), rows, columns, ld });
            }
        };
        for (id, at) in parts.cloned().unwrap_or_default() {
            add(from.ptr.add(column * 4), to.len, column, at - column);
            let part = self.operand(replica, id);
            let width = part.len / rows.max(1);
            add(part.ptr, width, at, width);
            column = at + width;
        }
        add(from.ptr.add(column * 4), to.len, column, to.len - column);
        sums.into_iter().for_each(|s| self.defer_sum(s));
        true
    }

    /// Deferred sums run before all other deferred operations.
    pub(super) fn defer_sum(&mut self, sum: RowSum) {
        let (from, to) = (reads(&sum), writes(&sum));
        if self.overlaps_sums(&[from], &[to]) {
            self.flush_sums();
        }
        self.flush_for(&[from], &[to]);
        self.sums.push(sum);
    }

    /// Whether an item that reads and writes these spans must run after a deferred sum.
    pub(super) fn overlaps_sums(&self, read: &[Span], written: &[Span]) -> bool {
        self.sums.iter().any(|s| {
            let (from, to) = (reads(s), writes(s));
            read.iter().any(|r| r.overlaps(&to))
                || written.iter().any(|w| w.overlaps(&to) || w.overlaps(&from))
        })
    }

    /// Flushes the deferred sums in one launch.
    pub(super) fn flush_sums(&mut self) {
        let sums = std::mem::take(&mut self.sums);
        if sums.is_empty() {
            return;
        }
        self.work_items.push(WorkItem {
            label: format!("{} sums over rows", sums.len()),
            instr: self.at,
            tasks: tasks(vec![reduce::sum_many(&sums)]),
            reads: sums.iter().map(reads).collect(),
            writes: sums.iter().map(writes).collect(),
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use phalanx_graph::ops::Binary;
    use phalanx_graph::{DType, Fetch, Graph, Mesh, Options, Scope, Step, Type};

    /// A step that sums an accuracy and its weights.
    fn accuracy() -> Program {
        let mut g = Graph::new();
        let int = Type { dtype: DType::I32, ..Type::rows([]) };
        let feeds = [("scores", Type::rows([4])), ("labels", int), ("weight", Type::rows([]))];
        let [scores, labels, weight] = feeds.map(|(name, ty)| {
            let feed = g.add_feed(name, ty);
            g.feed(feed)
        });
        let best = g.push(Op::ArgMax, &[scores]).unwrap();
        let [best, labels] = [best, labels].map(|n| g.cast(n, DType::F32).unwrap());
        let right = g.binary(Binary::Eq, labels, best).unwrap();
        let total = g.mul(right, weight).unwrap();
        let columns = [total, weight].map(|n| g.reshape(n, &[1]).unwrap());
        let joined = g.push(Op::Concat { axis: 0 }, &columns).unwrap();
        let sums = g.push(Op::SumRows, &[joined]).unwrap();
        let node = g.push(Op::AllReduce { scope: Scope::All }, &[sums]).unwrap();
        let mut step = Step::new("accuracy", g);
        step.fetches.push(Fetch { name: "accuracy".into(), node });
        Program::compile(step, Options::new(Mesh::new(1, 1), 8)).unwrap()
    }

    #[test]
    fn an_accuracy_is_summed_without_casts_and_copies() {
        let program = accuracy();
        let facts = FusionFacts::of(&program, true);
        assert_eq!(facts.casts.len(), 2, "{program}");
        let left_out = facts.covered.iter().map(|i| &program.instrs()[*i]);
        let copies = left_out.filter(|i| matches!(i, Instr::Copy { .. })).count();
        let all = program.instrs().iter().filter(|i| matches!(i, Instr::Copy { .. })).count();
        assert!(all > 0 && copies == all, "{copies} of {all} copies left out: {program}");
        let parts: Vec<usize> = facts.concat_sums.values().map(Vec::len).collect();
        assert_eq!(parts, [all]);
    }
}
