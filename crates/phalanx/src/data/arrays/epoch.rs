//! Batches of in-memory arrays.

use super::Arrays;
use crate::data::{
    Dataset, Epoch, External, HostBatch, IndexBatch, IndexBatches, LocalShard, Samples,
    local_positions, next_batch, reserve_slots,
};
use crate::error::Result;
use phalanx_graph::{Data, Tensor};
use std::ops::Range;

/// The state of one epoch.
pub(super) struct ArraysEpoch<'a> {
    pub arrays: &'a Arrays,
    /// The rows of every batch to produce; `None` means all.
    pub shard: Option<LocalShard>,
    /// Positions in the window; `None` if samples are not shuffled.
    pub order: Option<Vec<u32>>,
    pub at: usize,
    pub end: usize,
}

impl IndexBatches for ArraysEpoch<'_> {
    fn next(&mut self, batch: &mut IndexBatch) -> Result<bool> {
        let Some(positions) = next_batch(&mut self.at, self.end, self.arrays.batch) else {
            return Ok(false);
        };
        batch.rows.clear();
        batch.augments.clear();
        let first = self.arrays.window.start as u32;
        match &self.order {
            None => batch.rows.extend(positions.map(|at| first + at as u32)),
            Some(order) => batch.rows.extend(order[positions].iter().map(|at| first + at)),
        }
        Ok(true)
    }
}

impl Epoch for ArraysEpoch<'_> {
    fn next(&mut self, batch: &mut HostBatch) -> Result<bool> {
        let Some(positions) = next_batch(&mut self.at, self.end, self.arrays.batch) else {
            return Ok(false);
        };
        let arrays = self.arrays;
        batch.rows = positions.len();
        let shard = self.shard.as_ref();
        let (positions, local) = local_positions(shard, positions);
        batch.local = local;
        let first = arrays.window.start;
        let rows = match &self.order {
            None => Rows::InOrder(first + positions.start..first + positions.end),
            Some(order) => Rows::Indexed(first, &order[positions]),
        };
        let room = arrays.batch_size();
        let room = shard.map_or(room, |shard| shard.rows(room).len().max(1));
        let columns = arrays.inputs.iter().map(|c| (c.dtype(), c.dims()));
        reserve_slots(&mut batch.inputs, columns, room);
        for (slot, column) in batch.inputs.iter_mut().zip(&arrays.inputs) {
            rows.gather(column, slot);
        }
        let strings = |samples: &Samples| samples.text().map(|text| text.shared_strings().clone());
        batch.strings.clear();
        batch.strings.extend(arrays.inputs.iter().map(strings));
        let columns = arrays.targets.iter().map(|c| (c.dtype(), c.dims()));
        reserve_slots(&mut batch.targets, columns, room);
        for (slot, column) in batch.targets.iter_mut().zip(&arrays.targets) {
            rows.gather_tensor(column, slot);
        }
        batch.weighted = arrays.weights.is_some();
        batch.sample_weight.resize(batch.local_len(), 1.0);
        match &arrays.weights {
            Some(weights) => rows.copy(weights, 1, &mut batch.sample_weight),
            None => batch.sample_weight.fill(1.0),
        }
        let columns = arrays.output_weights.iter().map(|c| (c.dtype(), c.dims()));
        reserve_slots(&mut batch.output_weights, columns, room);
        for (slot, column) in batch.output_weights.iter_mut().zip(&arrays.output_weights) {
            rows.gather_tensor(column, slot);
        }
        Ok(true)
    }

    fn skip(&mut self, batches: usize) -> Result<()> {
        self.at = self.at.saturating_add(batches.saturating_mul(self.arrays.batch));
        Ok(())
    }
}

/// The rows that make up a batch.
enum Rows<'a> {
    InOrder(Range<usize>),
    /// Offsets from a first row.
    Indexed(usize, &'a [u32]),
}

impl Rows<'_> {
    fn gather(&self, column: &Samples, slot: &mut Tensor) {
        match (column, self) {
            (Samples::Tensor(tensor), _) => self.gather_tensor(tensor, slot),
            (Samples::Text(text), _) => self.gather_tensor(text.numbers(), slot),
            (Samples::External(external), _) => self.gather_external(external, slot),
            (Samples::Pixels(pixels), Rows::InOrder(rows)) => {
                let width = column.row_len();
                let Some(to) = slot.f32_mut() else { return };
                pixels.convert(rows.start, &mut to[..rows.len() * width]);
            }
            (Samples::Pixels(_), Rows::Indexed(first, offsets)) => {
                let width = column.row_len().max(1);
                let Some(to) = slot.f32_mut() else { return };
                for (to, offset) in to.chunks_exact_mut(width).zip(*offsets) {
                    column.read_row(first + *offset as usize, to);
                }
            }
        }
    }

    fn gather_external(&self, column: &External, slot: &mut Tensor) {
        let width: usize = column.dims()[1..].iter().product();
        if let Some(to) = slot.f32_mut() {
            self.read(width, to, |first, to| column.read_f32(first, to));
        } else if let Some(to) = slot.i32_mut() {
            self.read(width, to, |first, to| column.read_i32(first, to));
        }
    }

    /// Reads rows of `width` elements with a function that reads consecutive elements.
    fn read<T>(&self, width: usize, to: &mut [T], read: impl Fn(usize, &mut [T])) {
        match self {
            Rows::InOrder(rows) => read(rows.start * width, &mut to[..rows.len() * width]),
            Rows::Indexed(first, offsets) => {
                for (to, offset) in to.chunks_exact_mut(width.max(1)).zip(*offsets) {
                    read((first + *offset as usize) * width, to);
                }
            }
        }
    }

    fn gather_tensor(&self, column: &Tensor, slot: &mut Tensor) {
        let width = column.row_len();
        match column.data() {
            Data::F32(from) => {
                if let Some(to) = slot.f32_mut() {
                    self.copy(from, width, to);
                }
            }
            Data::I32(from) => {
                if let Some(to) = slot.i32_mut() {
                    self.copy(from, width, to);
                }
            }
        }
    }

    fn copy<T: Copy>(&self, from: &[T], width: usize, to: &mut [T]) {
        match self {
            Rows::InOrder(rows) => {
                let part = &from[rows.start * width..rows.end * width];
                to[..part.len()].copy_from_slice(part);
            }
            Rows::Indexed(first, offsets) if width == 1 => {
                for (to, offset) in to.iter_mut().zip(*offsets) {
                    *to = from[first + *offset as usize];
                }
            }
            Rows::Indexed(first, offsets) => {
                for (to, offset) in to.chunks_exact_mut(width.max(1)).zip(*offsets) {
                    let row = first + *offset as usize;
                    to.copy_from_slice(&from[row * width..(row + 1) * width]);
                }
            }
        }
    }
}
