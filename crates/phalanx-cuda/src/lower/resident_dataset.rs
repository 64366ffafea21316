//! A step on a resident dataset: it reads its inputs from the step list, and writes its fetches to
//! a list of results.

use super::Lowering;
use crate::inputs::INPUT_BYTES;
use crate::launch::{Arg, Block, Launch, Ptr, Span, Word};
use crate::resident_dataset::{StepLayout, Table};
use crate::work_item::{Task, WorkItem};

/// The source of a step's rows.
#[derive(Clone, Copy)]
pub(crate) struct FromTable<'a> {
    pub table: &'a Table,
    pub step: StepLayout,
    /// Bytes of a replica's inputs, and of its fetches.
    pub inputs: usize,
    pub fetch_bytes: usize,
}

/// A replica's whole step list. Only the executor knows its length.
fn list(replica: usize) -> Span {
    Span::whole(Ptr::new(replica, Block::StepList, 0), usize::MAX >> 1)
}

impl Lowering<'_> {
    /// The first work item of each replica: it fills the feeds.
    pub(super) fn load_step_input(&mut self, from: &FromTable<'_>) {
        for r in self.request.replicas {
            let (local, feeds) =
                (r.local, self.request.program.feeds().iter().zip(&self.request.layout.feeds));
            let to = |at: &usize| Ptr::new(local, Block::Inputs, *at);
            let (rows, others): (Vec<_>, Vec<_>) = feeds.partition(|(f, _)| f.ty.is_rows());
            let columns = from.table.columns.iter().zip(&rows);
            let words: Vec<Word> = columns.flat_map(|(c, (_, at))| c.words(to(at))).collect();
            let others: Vec<Word> = others.iter().map(|(_, at)| Word::Ptr(to(at))).collect();
            let others = match others.len() {
                0 => (Arg::Null, 0),
                n => (Arg::Table(others), n),
            };
            let largest = rows.iter().map(|(f, _)| f.ty.len() * r.rows).max().unwrap_or(0);
            let launch = Launch::over("resident_dataset", "take", largest)
                .arg(list(local).at)
                .arg(Ptr::new(local, Block::Inputs, 0))
                .arg(Arg::Table(words))
                .arg(rows.len())
                .arg(others.0)
                .arg(others.1)
                .arg(r.rows)
                .arg(from.step.bytes)
                .arg(from.step.rows_at)
                .arg(from.step.augments_at.unwrap_or(0));
            let cells = from.table.columns.iter().flat_map(|c| c.reads());
            let cells = cells.map(|(at, bytes)| Span::whole(at, bytes));
            self.work_items.push(WorkItem {
                label: "rows".into(),
                instr: 0,
                tasks: vec![Task::Launch(launch)],
                reads: [list(local)].into_iter().chain(cells).collect(),
                writes: vec![Span::whole(Ptr::new(local, Block::Inputs, 0), from.inputs)],
            });
        }
    }

    /// The last work item of each replica: it stores the fetches. Items that read a step's head run
    /// after the one that writes it.
    pub(super) fn store_results(&mut self, from: &FromTable<'_>) {
        for work in &mut self.work_items[self.request.replicas.len()..] {
            let head =
                |r: &super::Replica| Span::whole(Ptr::new(r.local, Block::Inputs, 0), INPUT_BYTES);
            work.reads.extend(self.request.replicas.iter().map(head));
        }
        for r in self.request.replicas {
            let at = |block| Ptr::new(r.local, block, 0);
            let launch = Launch::blocks("resident_dataset", "leave", 1, 256)
                .arg(at(Block::StepList))
                .arg(at(Block::Fetches))
                .arg(at(Block::Results))
                .arg(from.fetch_bytes / 4);
            let results = Span::whole(at(Block::Results), usize::MAX >> 1);
            self.work_items.push(WorkItem {
                label: "results".into(),
                instr: self.at,
                tasks: vec![Task::Launch(launch)],
                reads: vec![Span::whole(at(Block::Fetches), from.fetch_bytes), list(r.local)],
                writes: vec![results, list(r.local)],
            });
        }
    }
}
