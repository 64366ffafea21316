//! The parts of a gradient: what each worker reduces and updates, in chunks that fit the first-level cache.

use crate::executor::FlatLayout;
use crate::worker::WorkerCtx;
use phalanx_graph::ParamId;
use phalanx_graph::program::{GradientPlan, UpdatePlan, split_range};
use std::ops::Range;

/// Elements reduced and updated at a time.
pub(super) const CHUNK: usize = 4096;

/// Elements that the workers do not divide where rows of the gradient do not matter: those of a cache line.
const LINE: usize = 16;

/// Some elements of the gradient of a parameter.
#[derive(Clone)]
pub(super) struct Chunk {
    pub param: ParamId,
    pub elements: Range<usize>,
}

impl Chunk {
    pub fn len(&self) -> usize {
        self.elements.len()
    }

    /// Where a flat buffer has the first element.
    pub fn at(&self, layout: &FlatLayout) -> usize {
        layout.at(self.param, self.elements.start)
    }
}

/// Elements reduced and updated at a time. A whole number of rows if the gradient is computed during the
/// update (`GradientPlan::operands`).
pub(super) fn chunk_len(g: &GradientPlan) -> usize {
    if g.operands.is_none() { CHUNK } else { (CHUNK / g.granule).max(1) * g.granule }
}

pub(super) fn longest_chunk(plan: &UpdatePlan) -> usize {
    plan.gradients.iter().map(chunk_len).fold(CHUNK, usize::max)
}

/// Part `i` of `n` of some elements of a gradient, in whole rows if they are all of it.
pub(super) fn split(
    ctx: &WorkerCtx<'_>,
    g: &GradientPlan,
    held: &Range<usize>,
    (i, n): (usize, usize),
) -> Range<usize> {
    let whole = held.len() == ctx.program().params()[g.param.index()].len();
    let unit = if whole { g.granule } else { LINE };
    let part = split_range(0..held.len().div_ceil(unit), n, i);
    let at = |units: usize| held.start + (units * unit).min(held.len());
    at(part.start)..at(part.end)
}

/// This worker's part of a gradient.
pub(super) fn worker_part(ctx: &WorkerCtx<'_>, g: &GradientPlan) -> Range<usize> {
    split(ctx, g, &ctx.run.memory.owned.held[g.param.index()], ctx.state_worker())
}

/// Splits elements into chunks that fit the first-level cache.
pub(super) fn chunks_of(
    param: ParamId,
    range: Range<usize>,
    len: usize,
) -> impl Iterator<Item = Chunk> + use<> {
    let end = range.end;
    range.step_by(len).map(move |at| Chunk { param, elements: at..end.min(at + len) })
}

pub(super) fn chunks(ctx: &WorkerCtx<'_>, g: &GradientPlan) -> impl Iterator<Item = Chunk> + use<> {
    chunks_of(g.param, worker_part(ctx, g), chunk_len(g))
}
