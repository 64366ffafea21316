//! Indices of embeddings. Those that come from the model's inputs are checked on the host before a step runs
//! on them; a table has no row for any other, and gives NaN.

use super::BatchChecks;
use super::run_step::feed;
use crate::data::{Arrays, Samples};
use crate::error::{Error, Result};
use phalanx_graph::exec::FeedData;
use phalanx_graph::{Graph, NodeId, Op};
use std::collections::HashSet;
use std::ops::Range;

/// A layer that looks up rows of its table.
#[derive(Debug)]
pub(super) struct Lookup {
    layer: String,
    /// Rows of the table.
    rows: usize,
    /// The model's inputs whose numbers are its indices, as they are.
    inputs: Vec<usize>,
    /// Whether indices are computed as well, so that only a step can tell what they are.
    computed: bool,
}

/// The lookups of a model, whose inputs are the first feeds.
pub(super) fn lookups(g: &Graph, inputs: usize) -> Vec<Lookup> {
    let lookup = |id: NodeId| {
        let node = g.node(id);
        let Op::Gather = node.op else { return None };
        let (table, index) = (node.inputs[0], node.inputs[1]);
        let (layer, rows) = (g.scope_name(id).to_string(), g.ty(table).dims[0]);
        let mut found = Lookup { layer, rows, inputs: vec![], computed: false };
        found.trace(g, index, inputs);
        Some(found)
    };
    g.ids().filter_map(lookup).collect()
}

impl Lookup {
    /// Follows indices back through what moves numbers and changes none.
    fn trace(&mut self, g: &Graph, from: NodeId, inputs: usize) {
        let (mut open, mut seen) = (vec![from], HashSet::new());
        while let Some(id) = open.pop() {
            if !seen.insert(id) {
                continue;
            }
            let node = g.node(id);
            match &node.op {
                Op::Feed { id } if id.index() < inputs => self.inputs.push(id.index()),
                Op::Cast { .. }
                | Op::Reshape { .. }
                | Op::Transpose { .. }
                | Op::Broadcast { .. }
                | Op::Concat { .. } => open.extend(&node.inputs),
                _ => self.computed = true,
            }
        }
    }

    /// The first of some numbers that is no row of the table, and where it is. Of floats the whole part
    /// counts.
    fn outside(&self, numbers: FeedData<'_>) -> Option<(usize, String)> {
        match numbers {
            FeedData::I32(values) => {
                // Negative numbers are large ones here: one comparison each.
                let rows = u32::try_from(self.rows).unwrap_or(u32::MAX);
                first(values, |v| (v as u32) < rows)
            }
            FeedData::F32(values) => {
                let rows = self.rows as f32;
                first(values, |v| (v > -1.0) & (v < rows))
            }
        }
    }
}

/// The first number that is not inside. All are looked at without a branch, which takes a small part of the
/// time that a step takes for them.
fn first<T: Copy + ToString>(values: &[T], inside: impl Fn(T) -> bool) -> Option<(usize, String)> {
    if values.iter().fold(true, |all, v| all & inside(*v)) {
        return None;
    }
    let at = values.iter().position(|v| !inside(*v))?;
    Some((at, values[at].to_string()))
}

impl BatchChecks {
    /// Fails where an input has a number that a table has no row for; `row` is the number of the first row
    /// of these.
    pub(super) fn check_indices(
        &self,
        input: usize,
        numbers: FeedData<'_>,
        row: usize,
        place: &str,
    ) -> Result<()> {
        let width = self.def.input(input).ty().len().max(1);
        for lookup in self.lookups_of(input) {
            let Some((at, value)) = lookup.outside(numbers) else { continue };
            let Lookup { layer, rows, .. } = lookup;
            let argument = format!("indices from input '{}'", self.def.input_name(input));
            let expected = format!("0 to {} (its table has {rows} rows)", rows.saturating_sub(1));
            let received = format!("{value} in row {}{place}", row + at / width);
            return Err(Error::argument(format!("layer '{layer}'"), argument, expected, received));
        }
        Ok(())
    }

    /// The layers whose indices are the numbers of an input.
    fn lookups_of(&self, input: usize) -> impl Iterator<Item = &Lookup> {
        self.lookups.iter().filter(move |lookup| lookup.inputs.contains(&input))
    }

    /// The same of all samples of arrays, once.
    pub(crate) fn check_samples(&self, arrays: &Arrays, place: &str) -> Result<()> {
        for (input, samples) in arrays.inputs().iter().enumerate() {
            self.check_rows_of(input, samples, arrays.window(), place)?;
        }
        Ok(())
    }

    /// The same of some rows of samples, which lie in memory.
    pub(super) fn check_rows_of(
        &self,
        input: usize,
        samples: &Samples,
        rows: Range<usize>,
        place: &str,
    ) -> Result<()> {
        // Samples of another shape are refused with the first batch.
        let known = input < self.def.inputs.len();
        if !known || samples.row_len() != self.def.input(input).ty().len() {
            return Ok(());
        }
        if let Samples::Tensor(tensor) = samples {
            return self.check_indices(input, feed(tensor, &rows), rows.start, place);
        }
        if self.lookups_of(input).next().is_none() {
            return Ok(());
        }
        let mut sample = vec![0f32; samples.row_len()];
        for row in rows {
            samples.read_row(row, &mut sample);
            self.check_indices(input, FeedData::F32(&sample), row, place)?;
        }
        Ok(())
    }

    /// What may have given NaN besides the numbers of training: layers whose indices only a step knows.
    pub(crate) fn unchecked_lookups(&self) -> Vec<String> {
        let words = |lookup: &Lookup| {
            let Lookup { layer, rows, .. } = lookup;
            format!(
                "layer '{layer}' gives NaN for an index outside 0 to {}",
                rows.saturating_sub(1)
            )
        };
        self.lookups.iter().filter(|lookup| lookup.computed).map(words).collect()
    }
}
