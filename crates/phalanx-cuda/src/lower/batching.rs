//! Batching of small operations. They are deferred and then run in a single launch: copies of
//! statistics into gradients and weights, filter gradients that are converted back to Keras'
//! layout, moving averages. `row_sums` defers sums over rows.

use super::conv::{of_type, packed, plain};
use super::{Lowering, tasks};
use crate::launch::{Arg, Elem, Launch, Ptr, Span, Word};
use crate::lowering_context::Operand;
use crate::ops::update;
use crate::tape;
use crate::work_item::{Task, WorkItem};
use phalanx_graph::ops::Tape;
use phalanx_graph::program::ValueId;

/// Maximum blocks of a small copy.
const MAX_BLOCKS_PER_SMALL_COPY: usize = 4;

/// A copy that converts to 32-bit floats.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct CopyOp {
    pub from: Ptr,
    pub elem: Elem,
    pub to: Ptr,
    pub len: usize,
}

impl CopyOp {
    pub fn reads(&self) -> Span {
        Span::whole(self.from, self.len * self.elem.bytes())
    }

    pub fn writes(&self) -> Span {
        Span::whole(self.to, self.len * 4)
    }
}

/// All copies in one launch.
fn copy_many(copies: &[CopyOp]) -> WorkItem {
    let mut table = vec![];
    for m in copies {
        let kind = match m.elem {
            Elem::F32 => 0,
            Elem::F64 => 1,
            Elem::I32 => 2,
            Elem::Bf16 => 3,
            Elem::F16 => 4,
        };
        let numbers = [Word::I64(m.len as i64), Word::I64(kind)];
        table.extend([Word::Ptr(m.from), Word::Ptr(m.to)].into_iter().chain(numbers));
    }
    let longest = copies.iter().map(|m| m.len).max().unwrap_or(0);
    let blocks = longest.div_ceil(256 * 4).clamp(1, MAX_BLOCKS_PER_SMALL_COPY.max(longest >> 14));
    let launch = Launch::blocks("collective", "copy_many", copies.len() * blocks, 256)
        .arg(Arg::Table(table))
        .arg(blocks);
    WorkItem {
        label: format!("{} small copies", copies.len()),
        instr: 0,
        tasks: vec![Task::Launch(launch)],
        reads: copies.iter().map(CopyOp::reads).collect(),
        writes: copies.iter().map(CopyOp::writes).collect(),
    }
}

/// A deferred tape over few elements.
pub(super) struct SmallTape {
    tape: Tape,
    x: Vec<Operand>,
    y: Operand,
    reads: Vec<Span>,
    writes: Span,
}

impl Lowering<'_> {
    /// Appends a work item, after flushing deferred operations that overlap it.
    pub fn push(&mut self, work: WorkItem) {
        self.flush_for(&work.reads, &work.writes);
        if self.overlaps_sums(&work.reads, &work.writes) {
            self.flush_sums();
        }
        self.work_items.push(WorkItem { instr: self.at, ..work });
    }

    /// Flushes deferred operations, except sums, if any overlaps these reads and writes.
    pub(super) fn flush_for(&mut self, reads: &[Span], writes: &[Span]) {
        let meets = |spans: &[Span], other: &Span| spans.iter().any(|s| s.overlaps(other));
        let moved = self.copies.iter().any(|m| {
            let (from, to) = (m.reads(), m.writes());
            meets(reads, &to) || meets(writes, &to) || meets(writes, &from)
        });
        let unpacked = self.unpacks.iter().any(|(f, _)| {
            let to = plain(f);
            meets(reads, &to) || meets(writes, &to)
        });
        let small = self.small_tapes.iter().any(|t| {
            meets(reads, &t.writes)
                || meets(writes, &t.writes)
                || t.reads.iter().any(|r| meets(writes, r))
        });
        if moved || unpacked || small {
            self.flush();
        }
    }

    /// Flushes all deferred operations.
    pub(super) fn flush(&mut self) {
        self.flush_sums();
        let unpacks = std::mem::take(&mut self.unpacks);
        for elem in [Elem::F32, Elem::Bf16, Elem::F16] {
            let unpacks = of_type(&unpacks, elem);
            if unpacks.is_empty() {
                continue;
            }
            self.work_items.push(WorkItem {
                instr: self.at,
                label: format!("{} filter gradients", unpacks.len()),
                tasks: tasks(update::unpack_gradients(&unpacks, elem)),
                reads: unpacks.iter().map(|f| packed(f, elem)).collect(),
                writes: unpacks.iter().map(plain).collect(),
            });
        }
        self.flush_small_tapes();
        let copies = std::mem::take(&mut self.copies);
        if !copies.is_empty() {
            self.work_items.push(WorkItem { instr: self.at, ..copy_many(&copies) });
        }
    }

    /// Flushes the small tapes, with one launch per distinct tape.
    pub(super) fn flush_small_tapes(&mut self) {
        let mut rest = std::mem::take(&mut self.small_tapes);
        while let Some(first) = rest.first() {
            let tape = first.tape.clone();
            let alike = |t: &SmallTape| t.tape == tape;
            let (group, others): (Vec<SmallTape>, Vec<SmallTape>) =
                rest.into_iter().partition(alike);
            rest = others;
            let instances: Vec<(Vec<Operand>, Operand)> =
                group.iter().map(|t| (t.x.clone(), t.y.clone())).collect();
            let launches = tape::fused_many(&mut self.tapes, &tape, &instances);
            self.work_items.push(WorkItem {
                label: format!("{} small tapes", group.len()),
                instr: self.at,
                tasks: tasks(launches),
                reads: group.iter().flat_map(|t| t.reads.clone()).collect(),
                writes: group.iter().map(|t| t.writes).collect(),
            });
        }
    }

    /// Defers a tape over few elements.
    pub(super) fn defer_tape(&mut self, replica: usize, tape: &Tape, x: &[ValueId], y: ValueId) {
        let x: Vec<Operand> = x.iter().map(|id| self.operand(replica, *id)).collect();
        let y = self.operand(replica, y);
        let reads: Vec<Span> = x.iter().map(Operand::span).collect();
        let writes = y.span();
        self.flush_for(&reads, &[writes]);
        self.small_tapes.push(SmallTape { tape: tape.clone(), x, y, reads, writes });
    }

    /// Defers a copy. A copy that overlaps a deferred one runs after it.
    pub(super) fn defer_copy(&mut self, new: CopyOp) {
        let (reads, writes) = (new.reads(), new.writes());
        let meets = |m: &CopyOp| {
            m.writes().overlaps(&reads)
                || m.writes().overlaps(&writes)
                || m.reads().overlaps(&writes)
        };
        if self.copies.iter().any(meets)
            || self.unpacks.iter().any(|(f, _)| plain(f).overlaps(&reads))
        {
            self.flush();
        }
        self.copies.push(new);
    }
}
