//! Which pass over the data is under way, and which of its elements a worker needs.
//!
//! With several workers a batch is cut to a worker's rows where it is made, and the steps before it
//! hear which samples those are: what nobody needs is not made, yet keeps its place.

use super::Element;
use crate::data::LocalShard;
use std::ops::Range;
use std::sync::Arc;

/// Says of an element, by its number, whether it is needed.
pub(super) type Wanted = Arc<dyn Fn(usize) -> bool + Send + Sync>;

/// Which pass over the data this is; all randomness follows from its numbers.
#[derive(Clone)]
pub(super) struct Pass {
    pub seed: u64,
    pub epoch: u64,
    /// Tells apart repetitions within an epoch and steps of the same kind.
    pub path: u32,
    /// This worker's share of every batch, where there are several.
    pub share: Option<Arc<LocalShard>>,
    /// Whether a batch may be cut to the share: nothing behind it looks at whole batches.
    pub cut: bool,
    /// The elements that are needed; all where nothing is said.
    pub wanted: Option<Wanted>,
}

impl Pass {
    pub fn new(seed: u64, epoch: u64, share: Option<&LocalShard>) -> Pass {
        let share = share.filter(|share| !share.is_whole()).cloned().map(Arc::new);
        let cut = share.is_some();
        Pass { seed, epoch, path: 0, share, cut, wanted: None }
    }

    /// A pass of a step within another.
    pub fn inner(self, step: usize) -> Pass {
        let path = self.path.wrapping_mul(31).wrapping_add(step as u32).wrapping_add(1);
        Pass { path, ..self }
    }

    /// For a step that looks at elements: batches must be whole.
    pub fn uncut(self) -> Pass {
        Pass { cut: false, ..self }
    }

    /// For a step that must see every element.
    pub fn all(self) -> Pass {
        Pass { cut: false, wanted: None, ..self }
    }

    pub fn with_wanted(self, wanted: impl Fn(usize) -> bool + Send + Sync + 'static) -> Pass {
        Pass { wanted: Some(Arc::new(wanted)), ..self }
    }

    /// For a step whose element `at` is this one's element `number(at)`, if it is one of this one's.
    pub fn renumbered(
        self,
        number: impl Fn(usize) -> Option<usize> + Send + Sync + 'static,
    ) -> Pass {
        match self.wanted.clone() {
            None => self,
            Some(wanted) => self.with_wanted(move |at| number(at).is_some_and(|at| wanted(at))),
        }
    }

    pub fn wants(&self, at: usize) -> bool {
        self.wanted.as_ref().is_none_or(|wanted| wanted(at))
    }
}

/// What a step hands on.
#[derive(Clone)]
pub(super) enum Item {
    Made(Element),
    /// A worker's rows of a batch.
    Part(Part),
    /// Nobody needs it, and it was not made.
    LeftOut,
}

/// A worker's rows of a batch; where it has none, the first stands for their shape.
#[derive(Clone)]
pub(super) struct Part {
    pub element: Element,
    /// Rows of the batch.
    pub rows: usize,
    /// Those of the worker.
    pub own: Range<usize>,
}

impl Item {
    /// The element, where it was made whole.
    pub fn made(self) -> Option<Element> {
        match self {
            Item::Made(element) => Some(element),
            Item::Part(_) | Item::LeftOut => None,
        }
    }
}

/// The rows of a batch that a share has, and those that are made for it: at least one.
pub(super) fn rows_of(share: &LocalShard, rows: usize) -> (Range<usize>, Range<usize>) {
    let own = share.rows(rows);
    let made = if own.is_empty() { 0..rows.min(1) } else { own.clone() };
    (own, made)
}
