//! Validation of embedding indices. Indices that come from the model's inputs are checked on the host before a
//! step runs. A computed index outside the table yields NaN.

use super::BatchChecks;
use super::run_step::feed;
use crate::data::{Arrays, Samples};
use crate::error::{Error, Result};
use phalanx_exec::FeedData;
use phalanx_graph::{Graph, NodeId, Op, count};
use std::collections::HashSet;
use std::ops::Range;

/// A layer that looks up rows of its embedding table.
#[derive(Debug)]
pub(super) struct Lookup {
    layer: String,
    /// Rows of the table.
    rows: usize,
    /// The model inputs whose values are used as indices unchanged.
    inputs: Vec<usize>,
    /// Whether some indices are computed, so that they are known only within a step.
    computed: bool,
}

/// Returns the lookups of a graph. Its first `inputs` feeds are the model's inputs.
pub(super) fn lookups(g: &Graph, inputs: usize) -> Vec<Lookup> {
    let lookup = |id: NodeId| {
        let node = g.node(id);
        let Op::Gather = node.op else { return None };
        let (table, index) = (node.inputs[0], node.inputs[1]);
        let (layer, rows) = (g.layer_name(id).to_string(), g.ty(table).dims[0]);
        let mut found = Lookup { layer, rows, inputs: vec![], computed: false };
        found.trace(g, index, inputs);
        Some(found)
    };
    g.ids().filter_map(lookup).collect()
}

impl Lookup {
    /// Traces indices back through ops that move values without changing them.
    fn trace(&mut self, g: &Graph, from: NodeId, inputs: usize) {
        let (mut stack, mut seen) = (vec![from], HashSet::new());
        while let Some(id) = stack.pop() {
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
                | Op::Concat { .. } => stack.extend(&node.inputs),
                // Samples of the batch, as in `functions::batch`: none is outside.
                Op::RowIndex => {}
                Op::Take(_) if g.node(node.inputs[0]).op == Op::ArgSort => {}
                _ => self.computed = true,
            }
        }
    }

    /// Returns position and value of the first index outside the table. Floats are truncated.
    fn first_outside(&self, indices: FeedData<'_>) -> Option<(usize, String)> {
        match indices {
            FeedData::I32(values) => {
                // As unsigned numbers, negative ones are large, so one comparison suffices.
                let rows = u32::try_from(self.rows).unwrap_or(u32::MAX);
                first_not(values, |v| (v as u32) < rows)
            }
            FeedData::F32(values) => {
                let rows = self.rows as f32;
                first_not(values, |v| (v > -1.0) & (v < rows))
            }
        }
    }
}

/// Returns position and value of the first number that is not `inside`. The first scan has no branches, so its
/// cost is small compared with a step.
fn first_not<T: Copy + ToString>(
    values: &[T],
    inside: impl Fn(T) -> bool,
) -> Option<(usize, String)> {
    if values.iter().fold(true, |all, v| all & inside(*v)) {
        return None;
    }
    let at = values.iter().position(|v| !inside(*v))?;
    Some((at, values[at].to_string()))
}

impl BatchChecks {
    /// Fails if an input, with this many indices per row, holds one outside the table of a layer. `first_row` is the number of the first
    /// row, for errors.
    pub(super) fn check_indices(
        &self,
        input: usize,
        (indices, width): (FeedData<'_>, usize),
        first_row: usize,
        origin: &str,
    ) -> Result<()> {
        let (name, width) = (&self.def.fed[input].name, width.max(1));
        for lookup in self.lookups_of(input) {
            let Some((at, value)) = lookup.first_outside(indices) else { continue };
            let Lookup { layer, rows, .. } = lookup;
            let argument = format!("indices from input '{name}'");
            let expected = format!("0 to {} (its table has {rows} rows)", rows.saturating_sub(1));
            let received = format!("{value} in row {}{origin}", first_row + at / width);
            return Err(Error::argument(format!("layer '{layer}'"), argument, expected, received));
        }
        Ok(())
    }

    /// Returns the lookups whose indices come from an input.
    fn lookups_of(&self, input: usize) -> impl Iterator<Item = &Lookup> {
        self.lookups.iter().filter(move |lookup| lookup.inputs.contains(&input))
    }

    /// Checks the indices in all samples of arrays.
    pub(crate) fn check_samples(&self, arrays: &Arrays, origin: &str) -> Result<()> {
        for (input, samples) in arrays.inputs().iter().enumerate() {
            self.check_sample_rows(input, samples, arrays.window(), origin)?;
        }
        Ok(())
    }

    /// Checks the indices in a range of rows of one input's samples.
    pub(super) fn check_sample_rows(
        &self,
        input: usize,
        samples: &Samples,
        rows: Range<usize>,
        origin: &str,
    ) -> Result<()> {
        // The check of the first batch rejects samples of a different shape.
        if input >= self.def.fed.len() || !self.fits(input, samples) {
            return Ok(());
        }
        let width = samples.row_len();
        if let Samples::Tensor(tensor) = samples {
            return self.check_indices(input, (feed(tensor, &rows), width), rows.start, origin);
        }
        if self.lookups_of(input).next().is_none() || samples.text().is_some() {
            return Ok(());
        }
        let mut sample = vec![0f32; width];
        for row in rows {
            samples.read_row(row, &mut sample);
            self.check_indices(input, (FeedData::F32(&sample), width), row, origin)?;
        }
        Ok(())
    }

    /// Returns whether samples have the shape of an input.
    fn fits(&self, input: usize, samples: &Samples) -> bool {
        let shape = &self.def.fed[input].shape;
        match shape.known() {
            Some(sizes) => samples.row_len() == count(&sizes),
            None => shape.sizes_of(samples.dims().get(1..).unwrap_or_default()).is_some(),
        }
    }

    /// Describes the layers with computed indices, which are possible causes of NaN.
    pub(crate) fn unchecked_lookups(&self) -> Vec<String> {
        let describe = |lookup: &Lookup| {
            let Lookup { layer, rows, .. } = lookup;
            format!(
                "layer '{layer}' gives NaN for an index outside 0 to {}",
                rows.saturating_sub(1)
            )
        };
        self.lookups.iter().filter(|lookup| lookup.computed).map(describe).collect()
    }
}
