//! Datasets resident on a GPU, and the layout of the list that describes the steps on them. The
//! list begins with a head that counts completed steps. Each step follows with its own head, the
//! feeds without a row axis, its row indices and the augmentation of each row.
//! `kernels/resident_dataset.cu` reads the list.

use crate::bytes::as_bytes;
use crate::inputs::{INPUT_BYTES, Inputs};
use crate::launch::{Block, Ptr, Word};
use phalanx_exec::{AffineAugment, Column, ColumnData, Fill, ImageShape, StepInput};
use phalanx_graph::DType;
use std::ops::Range;

/// Bytes of the list's head, and of each step's head.
pub(crate) const HEAD_BYTES: usize = INPUT_BYTES;

/// Maximum steps per launch.
pub(crate) const MAX_STEPS_PER_LAUNCH: usize = 64;

/// Size of an augmentation in the list, in bytes.
const AUGMENT_BYTES: usize = 64;

/// A column on the GPU.
#[derive(Clone, Debug)]
pub(crate) struct ResidentColumn {
    cells: Ptr,
    bytes: usize,
    offset: Option<Ptr>,
    /// Elements per row.
    row: usize,
    kind: i64,
    divisor: f32,
    image: Option<ImageShape>,
}

/// A dataset on the GPU.
#[derive(Clone, Debug)]
pub(crate) struct Table {
    pub columns: Vec<ResidentColumn>,
    pub rows: usize,
}

impl Table {
    /// Places columns in blocks numbered from `first`, two per column.
    pub fn new(columns: &[Column<'_>], first: usize) -> Table {
        let at = |number: usize| Ptr::new(0, Block::Resident(number), 0);
        let column = |(i, c): (usize, &Column<'_>)| {
            let (kind, divisor, offset) = match c.data {
                ColumnData::F32(_) => (0, 1.0, None),
                ColumnData::I32(_) => (1, 1.0, None),
                ColumnData::Bytes { divisor, offset, .. } => {
                    (2, divisor, offset.map(|_| at(first + 2 * i + 1)))
                }
            };
            let bytes = c.data.bytes() - offset.map_or(0, |_| c.row_len * 4);
            let (cells, row, image) = (at(first + 2 * i), c.row_len, c.image);
            ResidentColumn { cells, bytes, offset, row, kind, divisor, image }
        };
        let rows = columns.first().map_or(0, |c| c.data.len() / c.row_len.max(1));
        Table { columns: columns.iter().enumerate().map(column).collect(), rows }
    }

    /// All blocks of the table.
    pub fn blocks(&self) -> impl Iterator<Item = Block> {
        self.columns.iter().flat_map(|c| [Some(c.cells), c.offset]).flatten().map(|p| p.block)
    }

    /// Element type and row length of each column, as a step sees them.
    pub fn types(&self) -> Vec<(DType, usize)> {
        let dtype = |c: &ResidentColumn| if c.kind == 1 { DType::I32 } else { DType::F32 };
        self.columns.iter().map(|c| (dtype(c), c.row)).collect()
    }

    pub fn is_augmented(&self) -> bool {
        self.columns.iter().any(|c| c.image.is_some())
    }
}

impl ResidentColumn {
    /// The contents of the column's blocks, in order.
    pub fn parts<'a>(&self, column: &Column<'a>) -> Vec<(Ptr, &'a [u8])> {
        let mut parts = match column.data {
            ColumnData::F32(v) => vec![(self.cells, as_bytes(v))],
            ColumnData::I32(v) => vec![(self.cells, as_bytes(v))],
            ColumnData::Bytes { bytes, .. } => vec![(self.cells, bytes)],
        };
        if let (Some(at), ColumnData::Bytes { offset: Some(offset), .. }) =
            (self.offset, column.data)
        {
            parts.push((at, as_bytes(offset)));
        }
        parts
    }

    /// The address ranges that a step reads, with their sizes in bytes.
    pub fn reads(&self) -> impl Iterator<Item = (Ptr, usize)> {
        let offset = self.offset.map(|at| (at, self.row * 4));
        [Some((self.cells, self.bytes)), offset].into_iter().flatten()
    }

    /// The column's entry in the kernel's table; its rows are written to the feed at `to`.
    pub fn words(&self, to: Ptr) -> Vec<Word> {
        let offset = self.offset.map_or(Word::I64(0), Word::Ptr);
        let number = |n: usize| Word::I64(n as i64);
        let mut words = vec![Word::Ptr(self.cells), Word::Ptr(to), offset];
        words.extend([number(self.row), Word::I64(self.kind), Word::F32(self.divisor)]);
        let (sizes, fill) = match self.image {
            Some(f) => ([f.height, f.width, f.channels], f.fill),
            None => ([0; 3], Fill::Nearest),
        };
        words.extend(sizes.map(number));
        let (fill, value) = match fill {
            Fill::Nearest => (0, 0.0),
            Fill::Constant(value) => (1, value),
            Fill::Reflect => (2, 0.0),
            Fill::Wrap => (3, 0.0),
        };
        words.extend([Word::I64(fill), Word::F32(value)]);
        words
    }
}

/// Byte offsets of the parts of a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct StepLayout {
    pub rows_at: usize,
    /// `None` if nothing is augmented.
    pub augments_at: Option<usize>,
    pub bytes: usize,
}

impl StepLayout {
    /// The layout for steps with `numbers` scalars and at most `rows` rows per replica.
    pub fn new(numbers: usize, rows: usize, augmented: bool) -> StepLayout {
        let rows_at = (HEAD_BYTES + numbers * 4).next_multiple_of(AUGMENT_BYTES);
        let after_rows = (rows_at + rows * 4).next_multiple_of(AUGMENT_BYTES);
        let augments_at = augmented.then_some(after_rows);
        let end = if augmented { after_rows + rows * AUGMENT_BYTES } else { after_rows };
        StepLayout { rows_at, augments_at, bytes: end.next_multiple_of(HEAD_BYTES) }
    }

    /// Bytes of a list of `steps` steps.
    pub fn list_bytes(&self, steps: usize) -> usize {
        HEAD_BYTES + steps * self.bytes
    }

    /// Writes a step for the replica that has `rows` of the batch.
    pub fn write(&self, to: &mut [u8], head: &Inputs, step: &StepInput<'_>, rows: Range<usize>) {
        let head = head.to_bytes();
        to[..head.len()].copy_from_slice(&head);
        write_items(to, HEAD_BYTES, step.mirrored.iter().map(|v| v.to_le_bytes()));
        write_items(to, self.rows_at, step.rows[rows.clone()].iter().map(|row| row.to_le_bytes()));
        let Some(at) = self.augments_at else { return };
        if step.augments.is_empty() {
            to[at..at + rows.len() * AUGMENT_BYTES].fill(0);
        } else {
            write_items(to, at, step.augments[rows].iter().map(augment_bytes));
        }
    }
}

/// Writes items consecutively.
fn write_items<const N: usize>(to: &mut [u8], at: usize, items: impl Iterator<Item = [u8; N]>) {
    for (to, item) in to[at..].chunks_exact_mut(N).zip(items) {
        to.copy_from_slice(&item);
    }
}

fn augment_bytes(m: &AffineAugment) -> [u8; AUGMENT_BYTES] {
    let mut bytes = [0; AUGMENT_BYTES];
    write_items(&mut bytes, 0, m.map.as_flattened().iter().map(|v| v.to_le_bytes()));
    let flags = [m.flip_horizontal, m.flip_vertical, *m != AffineAugment::NONE];
    write_items(&mut bytes, 48, flags.iter().map(|f| u32::from(*f).to_le_bytes()));
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_step_holds_its_rows_and_augmentations() {
        let layout = StepLayout::new(2, 3, true);
        assert_eq!((layout.rows_at, layout.augments_at, layout.bytes), (320, Some(384), 768));
        let flipped = AffineAugment { flip_horizontal: true, ..AffineAugment::NONE };
        let step = StepInput {
            rows: &[7, 8, 9],
            augments: &[AffineAugment::NONE, flipped, AffineAugment::NONE],
            mirrored: &[0.5, 0.25],
            seed: 1,
            step: 2,
            scalars: &[],
        };
        let mut bytes = vec![0xff; layout.bytes];
        layout.write(&mut bytes, &Inputs { seed: 1, step: 2, ..Inputs::default() }, &step, 1..3);
        let word = |at: usize| u32::from_le_bytes(bytes[at..at + 4].try_into().unwrap());
        assert_eq!((word(0), word(8)), (1, 2));
        assert_eq!(f32::from_bits(word(HEAD_BYTES + 4)), 0.25);
        assert_eq!((word(320), word(324)), (8, 9));
        assert_eq!([48, 52, 56].map(|at| word(384 + at)), [1, 0, 1]);
        assert_eq!([48, 52, 56].map(|at| word(448 + at)), [0, 0, 0]);
        let plain = StepLayout::new(2, 3, false);
        assert_eq!((plain.augments_at, plain.list_bytes(4)), (None, 256 + 4 * 512));
    }
}
