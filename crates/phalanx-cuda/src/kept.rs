//! Samples that a GPU keeps, and the list of what the steps on them are told: a head that counts the
//! steps done, then a turn for each, with its head, the feeds that are no rows, its rows by number and
//! how their images are moved. `kernels/kept.cu` reads it.

use crate::executor::as_bytes;
use crate::inputs::{INPUT_BYTES, Inputs};
use crate::launch::{Block, Ptr, Word};
use phalanx_graph::DType;
use phalanx_graph::resident::{AffineAugment, Column, ColumnData, Fill, ImageShape, StepInput};
use std::ops::Range;

/// Bytes in front of the first turn, and of a turn's head.
pub(crate) const HEAD: usize = INPUT_BYTES;

/// Most steps that are started together.
pub(crate) const MOST_TURNS: usize = 64;

/// Bytes of a motion, as the kernel has it.
const MOTION: usize = 64;

/// A column on the GPU.
#[derive(Clone, Debug)]
pub(crate) struct KeptColumn {
    cells: Ptr,
    bytes: usize,
    offset: Option<Ptr>,
    /// Elements of a row.
    row: usize,
    kind: i64,
    divisor: f32,
    frame: Option<ImageShape>,
}

/// Samples on the GPU.
#[derive(Clone, Debug)]
pub(crate) struct Table {
    pub columns: Vec<KeptColumn>,
    pub rows: usize,
}

impl Table {
    /// Columns in blocks from number `first` on: two for each.
    pub fn new(columns: &[Column<'_>], first: usize) -> Table {
        let at = |number: usize| Ptr::new(0, Block::Kept(number), 0);
        let keep = |(i, c): (usize, &Column<'_>)| {
            let (kind, divisor, offset) = match c.data {
                ColumnData::F32(_) => (0, 1.0, None),
                ColumnData::I32(_) => (1, 1.0, None),
                ColumnData::Bytes { divisor, offset, .. } => {
                    (2, divisor, offset.map(|_| at(first + 2 * i + 1)))
                }
            };
            let bytes = c.data.bytes() - offset.map_or(0, |_| c.row_len * 4);
            let (cells, row, frame) = (at(first + 2 * i), c.row_len, c.image);
            KeptColumn { cells, bytes, offset, row, kind, divisor, frame }
        };
        let rows = columns.first().map_or(0, |c| c.data.len() / c.row_len.max(1));
        Table { columns: columns.iter().enumerate().map(keep).collect(), rows }
    }

    /// All blocks.
    pub fn blocks(&self) -> impl Iterator<Item = Block> {
        self.columns.iter().flat_map(|c| [Some(c.cells), c.offset]).flatten().map(|p| p.block)
    }

    /// What its rows are in a step, and how long.
    pub fn types(&self) -> Vec<(DType, usize)> {
        let dtype = |c: &KeptColumn| if c.kind == 1 { DType::I32 } else { DType::F32 };
        self.columns.iter().map(|c| (dtype(c), c.row)).collect()
    }

    pub fn moves(&self) -> bool {
        self.columns.iter().any(|c| c.frame.is_some())
    }
}

impl KeptColumn {
    /// The bytes of its blocks, in their order.
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

    /// Addresses that a step reads, with their bytes.
    pub fn reads(&self) -> impl Iterator<Item = (Ptr, usize)> {
        let offset = self.offset.map(|at| (at, self.row * 4));
        [Some((self.cells, self.bytes)), offset].into_iter().flatten()
    }

    /// As the kernel has it, with the feed that its rows go to.
    pub fn words(&self, to: Ptr) -> Vec<Word> {
        let offset = self.offset.map_or(Word::I64(0), Word::Ptr);
        let number = |n: usize| Word::I64(n as i64);
        let mut words = vec![Word::Ptr(self.cells), Word::Ptr(to), offset];
        words.extend([number(self.row), Word::I64(self.kind), Word::F32(self.divisor)]);
        let (sizes, fill) = match self.frame {
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

/// Where the parts of a turn lie.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct TurnLayout {
    pub picks: usize,
    /// Nowhere where nothing is moved.
    pub motions: Option<usize>,
    pub bytes: usize,
}

impl TurnLayout {
    /// For turns of so many numbers and at most so many rows of a replica.
    pub fn new(numbers: usize, rows: usize, moves: bool) -> TurnLayout {
        let picks = (HEAD + numbers * 4).next_multiple_of(MOTION);
        let behind = (picks + rows * 4).next_multiple_of(MOTION);
        let motions = moves.then_some(behind);
        let end = if moves { behind + rows * MOTION } else { behind };
        TurnLayout { picks, motions, bytes: end.next_multiple_of(HEAD) }
    }

    /// Bytes of a list of turns.
    pub fn list(&self, turns: usize) -> usize {
        HEAD + turns * self.bytes
    }

    /// Writes a turn as a replica with these rows of the batch gets it.
    pub fn write(&self, to: &mut [u8], head: &Inputs, turn: &StepInput<'_>, rows: Range<usize>) {
        let head = head.to_bytes();
        to[..head.len()].copy_from_slice(&head);
        put(to, HEAD, turn.mirrored.iter().map(|v| v.to_le_bytes()));
        put(to, self.picks, turn.rows[rows.clone()].iter().map(|row| row.to_le_bytes()));
        let Some(at) = self.motions else { return };
        if turn.augments.is_empty() {
            to[at..at + rows.len() * MOTION].fill(0);
        } else {
            put(to, at, turn.augments[rows].iter().map(motion));
        }
    }
}

/// Writes items one behind the other.
fn put<const N: usize>(to: &mut [u8], at: usize, items: impl Iterator<Item = [u8; N]>) {
    for (to, item) in to[at..].chunks_exact_mut(N).zip(items) {
        to.copy_from_slice(&item);
    }
}

fn motion(m: &AffineAugment) -> [u8; MOTION] {
    let mut bytes = [0; MOTION];
    put(&mut bytes, 0, m.map.as_flattened().iter().map(|v| v.to_le_bytes()));
    let flags = [m.flip_horizontal, m.flip_vertical, *m != AffineAugment::NONE];
    put(&mut bytes, 48, flags.iter().map(|f| u32::from(*f).to_le_bytes()));
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_turn_holds_its_rows_and_motions() {
        let layout = TurnLayout::new(2, 3, true);
        assert_eq!((layout.picks, layout.motions, layout.bytes), (320, Some(384), 768));
        let flipped = AffineAugment { flip_horizontal: true, ..AffineAugment::NONE };
        let turn = StepInput {
            rows: &[7, 8, 9],
            augments: &[AffineAugment::NONE, flipped, AffineAugment::NONE],
            mirrored: &[0.5, 0.25],
            seed: 1,
            step: 2,
            scalars: &[],
        };
        let mut bytes = vec![0xff; layout.bytes];
        layout.write(&mut bytes, &Inputs { seed: 1, step: 2, ..Inputs::default() }, &turn, 1..3);
        let word = |at: usize| u32::from_le_bytes(bytes[at..at + 4].try_into().unwrap());
        assert_eq!((word(0), word(8)), (1, 2));
        assert_eq!(f32::from_bits(word(HEAD + 4)), 0.25);
        assert_eq!((word(320), word(324)), (8, 9));
        assert_eq!([48, 52, 56].map(|at| word(384 + at)), [1, 0, 1]);
        assert_eq!([48, 52, 56].map(|at| word(448 + at)), [0, 0, 0]);
        let plain = TurnLayout::new(2, 3, false);
        assert_eq!((plain.motions, plain.list(4)), (None, 256 + 4 * 512));
    }
}
