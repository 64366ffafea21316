//! The context of a pass over the data, and the elements that a worker needs of it.
//!
//! With several workers, the batch step keeps only a worker's rows. The steps before it are told which
//! samples those are. Elements that are not needed are not produced, but they keep their index.

use super::Element;
use crate::data::LocalShard;
use std::ops::Range;
use std::sync::Arc;

/// Tells for the index of an element whether it is needed.
pub(super) type Wanted = Arc<dyn Fn(usize) -> bool + Send + Sync>;

/// Identifies a pass over the data; all randomness derives from it.
#[derive(Clone)]
pub(super) struct EpochContext {
    pub seed: u64,
    pub epoch: u64,
    /// Distinguishes repetitions within an epoch and steps of the same kind.
    pub path: u32,
    /// This worker's shard of every batch, if there are several workers.
    pub shard: Option<Arc<LocalShard>>,
    /// Whether a step may produce only the shard of a batch, which requires that no later step looks at full batches.
    pub slices_batches: bool,
    /// The elements that are needed; `None` means all.
    pub wanted: Option<Wanted>,
}

impl EpochContext {
    pub fn new(seed: u64, epoch: u64, shard: Option<&LocalShard>) -> EpochContext {
        let shard = shard.filter(|shard| !shard.is_whole()).cloned().map(Arc::new);
        let slices_batches = shard.is_some();
        EpochContext { seed, epoch, path: 0, shard, slices_batches, wanted: None }
    }

    /// The context of a nested step.
    pub fn inner(self, step: usize) -> EpochContext {
        let path = self.path.wrapping_mul(31).wrapping_add(step as u32).wrapping_add(1);
        EpochContext { path, ..self }
    }

    /// For a step that looks at elements: batches must be complete.
    pub fn with_full_batches(self) -> EpochContext {
        EpochContext { slices_batches: false, ..self }
    }

    /// For a step that must see every element.
    pub fn all(self) -> EpochContext {
        EpochContext { slices_batches: false, wanted: None, ..self }
    }

    pub fn with_wanted(
        self,
        wanted: impl Fn(usize) -> bool + Send + Sync + 'static,
    ) -> EpochContext {
        EpochContext { wanted: Some(Arc::new(wanted)), ..self }
    }

    /// For a step whose element `at` is element `number(at)` of this one, if any.
    pub fn renumbered(
        self,
        number: impl Fn(usize) -> Option<usize> + Send + Sync + 'static,
    ) -> EpochContext {
        match self.wanted.clone() {
            None => self,
            Some(wanted) => self.with_wanted(move |at| number(at).is_some_and(|at| wanted(at))),
        }
    }

    pub fn wants(&self, at: usize) -> bool {
        self.wanted.as_ref().is_none_or(|wanted| wanted(at))
    }
}

/// The output of a step.
#[derive(Clone)]
pub(super) enum Item {
    Full(Element),
    /// A worker's rows of a batch.
    Partial(PartialBatch),
    /// Not needed and not produced.
    Skipped,
}

/// A worker's rows of a batch. If it has none, the first row is included for its shape.
#[derive(Clone)]
pub(super) struct PartialBatch {
    pub element: Element,
    /// Rows of the full batch.
    pub rows: usize,
    /// Rows of this worker.
    pub local: Range<usize>,
}

impl Item {
    /// The element, if it was produced in full.
    pub fn full(self) -> Option<Element> {
        match self {
            Item::Full(element) => Some(element),
            Item::Partial(_) | Item::Skipped => None,
        }
    }
}

/// The rows of a batch that belong to a shard, and the rows to produce for it: at least one.
pub(super) fn rows_of(shard: &LocalShard, rows: usize) -> (Range<usize>, Range<usize>) {
    let local = shard.rows(rows);
    let made = if local.is_empty() { 0..rows.min(1) } else { local.clone() };
    (local, made)
}
