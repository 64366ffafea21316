//! Elements from a user's vector or iterator, and assertions about their number.

use super::epoch_context::{EpochContext, Item};
use super::{Cardinality, Element, Elements, PipelineStep};
use crate::error::{Error, Result};
use phalanx_graph::Tensor;
use std::sync::Arc;

/// Elements in memory.
pub(super) struct InMemoryElements {
    pub elements: Arc<Vec<Vec<Arc<Tensor>>>>,
}

impl PipelineStep for InMemoryElements {
    fn cardinality(&self) -> Cardinality {
        Cardinality::Known(self.elements.len())
    }

    fn open(&self, context: EpochContext) -> Result<Box<dyn Elements>> {
        Ok(Box::new(InMemoryPass { elements: self.elements.clone(), context, at: 0 }))
    }
}

struct InMemoryPass {
    elements: Arc<Vec<Vec<Arc<Tensor>>>>,
    context: EpochContext,
    at: usize,
}

impl Elements for InMemoryPass {
    fn next(&mut self) -> Result<Option<Item>> {
        let Some(element) = self.elements.get(self.at) else { return Ok(None) };
        let at = self.at;
        self.at += 1;
        Ok(Some(match self.context.wants(at) {
            true => Item::Full(element.iter().map(|tensor| Tensor::clone(tensor)).collect()),
            false => Item::Skipped,
        }))
    }

    fn skip(&mut self, elements: usize) -> Result<()> {
        self.at = self.at.saturating_add(elements);
        Ok(())
    }
}

const OWNER: &str = "from_generator";

/// An iterator over the elements of one context.
pub(super) type Iter = Box<dyn Iterator<Item = Result<Element>> + Send>;

/// Opens an iterator for every context.
pub(super) struct Generator {
    pub open: Arc<dyn Fn() -> Result<Iter> + Send + Sync>,
}

impl PipelineStep for Generator {
    fn cardinality(&self) -> Cardinality {
        Cardinality::Unknown
    }

    fn open(&self, context: EpochContext) -> Result<Box<dyn Elements>> {
        let iter = (self.open)().map_err(|e| Error::config(OWNER, e))?;
        Ok(Box::new(GeneratorElements { iter: Some(iter), context, at: 0 }))
    }
}

struct GeneratorElements {
    /// Taken at the end, so that the iterator is not polled again.
    iter: Option<Iter>,
    context: EpochContext,
    at: usize,
}

impl Elements for GeneratorElements {
    fn next(&mut self) -> Result<Option<Item>> {
        let Some(next) = self.iter.as_mut().and_then(Iterator::next) else {
            self.iter = None;
            return Ok(None);
        };
        let at = self.at;
        self.at += 1;
        let element = next.map_err(|e| Error::config(OWNER, format!("element {at}: {e}")))?;
        Ok(Some(if self.context.wants(at) { Item::Full(element) } else { Item::Skipped }))
    }
}

/// The elements of another step, whose number must be `count`.
pub(super) struct AssertCardinality {
    pub inner: Arc<dyn PipelineStep>,
    pub count: usize,
}

impl PipelineStep for AssertCardinality {
    fn cardinality(&self) -> Cardinality {
        Cardinality::Known(self.count)
    }

    fn open(&self, context: EpochContext) -> Result<Box<dyn Elements>> {
        Ok(Box::new(Asserted {
            inner: self.inner.open(context)?,
            count: self.count,
            at: 0,
            skipped: false,
        }))
    }
}

struct Asserted {
    inner: Box<dyn Elements>,
    count: usize,
    at: usize,
    /// Whether elements were skipped; fewer may have been available.
    skipped: bool,
}

impl Elements for Asserted {
    fn next(&mut self) -> Result<Option<Item>> {
        let item = self.inner.next()?;
        let received = match &item {
            Some(_) if self.at < self.count => {
                self.at += 1;
                return Ok(item);
            }
            Some(_) => "more".into(),
            None if self.at < self.count && self.skipped => "fewer".into(),
            None if self.at < self.count => self.at.to_string(),
            None => return Ok(None),
        };
        let expected = format!("{} elements", self.count);
        Err(Error::argument("Pipeline", "assert_cardinality", expected, received))
    }

    fn skip(&mut self, elements: usize) -> Result<()> {
        self.at = self.at.saturating_add(elements);
        self.skipped |= elements > 0;
        self.inner.skip(elements)
    }
}
