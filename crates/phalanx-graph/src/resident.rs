//! Samples that devices keep, and steps that are handed rows of them by number.

use crate::exec::ExecError;
use crate::graph::FeedSpec;
use crate::program::Program;
use crate::types::{DType, count};

/// Samples on the devices of an executor.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct TableId(pub usize);

/// The numbers of a column, row by row.
#[derive(Clone, Copy, Debug)]
pub enum ColumnData<'a> {
    /// 32-bit floats.
    F32(&'a [f32]),
    /// 32-bit integers.
    I32(&'a [i32]),
    /// Floats as bytes: each counts as `byte / divisor`, less the offset at its place in the row.
    Bytes {
        /// The bytes.
        bytes: &'a [u8],
        /// What they are divided by.
        divisor: f32,
        /// What is taken from every row.
        offset: Option<&'a [f32]>,
    },
}

impl ColumnData<'_> {
    /// Number of elements.
    pub fn len(&self) -> usize {
        match self {
            ColumnData::F32(v) => v.len(),
            ColumnData::I32(v) => v.len(),
            ColumnData::Bytes { bytes, .. } => bytes.len(),
        }
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Bytes that they take.
    pub fn bytes(&self) -> usize {
        match self {
            ColumnData::F32(v) => size_of_val(*v),
            ColumnData::I32(v) => size_of_val(*v),
            ColumnData::Bytes { bytes, offset, .. } => bytes.len() + offset.map_or(0, size_of_val),
        }
    }
}

/// What lies outside an image that is moved.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Fill {
    /// The nearest pixel.
    Nearest,
    /// One value.
    Constant(f32),
    /// The image mirrored.
    Reflect,
    /// The image again.
    Wrap,
}

/// Images of one size, channels last, that a step may find moved.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ImageShape {
    /// Rows of pixels.
    pub height: usize,
    /// Pixels of a row.
    pub width: usize,
    /// Numbers of a pixel.
    pub channels: usize,
    /// What lies outside.
    pub fill: Fill,
}

/// One column of samples, for one feed.
#[derive(Clone, Copy, Debug)]
pub struct Column<'a> {
    /// All rows.
    pub data: ColumnData<'a>,
    /// Elements of a row.
    pub row_len: usize,
    /// What a row is, where it may be moved.
    pub image: Option<ImageShape>,
}

/// The rows of a table's columns.
///
/// # Errors
/// Columns of different numbers of rows, or whose parts are not as long as their rows.
pub fn check_columns(columns: &[Column<'_>]) -> Result<usize, ExecError> {
    let fail = |column: usize, expected: String, received: String| {
        Err(ExecError::Feed { name: format!("column {column}"), expected, received })
    };
    let rows = columns.first().map_or(0, |c| c.data.len() / c.row_len.max(1));
    for (i, c) in columns.iter().enumerate() {
        if c.row_len == 0 || rows.checked_mul(c.row_len) != Some(c.data.len()) {
            let expected = format!("{rows} rows of {} elements", c.row_len.max(1));
            return fail(i, expected, format!("{} elements", c.data.len()));
        }
        if let ColumnData::Bytes { offset: Some(offset), .. } = c.data
            && offset.len() != c.row_len
        {
            let expected = format!("an offset of {} elements", c.row_len);
            return fail(i, expected, offset.len().to_string());
        }
        let image = |f: ImageShape| count(&[f.height, f.width, f.channels]);
        if let Some(frame) = c.image.filter(|f| image(*f) != c.row_len) {
            return fail(i, format!("images of {} elements", c.row_len), format!("{frame:?}"));
        }
    }
    Ok(rows)
}

/// How an image is read: each pixel where the map sends it, between four pixels.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct AffineAugment {
    /// From a new pixel's row and column (and 1) to the old one's row, and to its column.
    pub map: [[f64; 3]; 2],
    /// Whether columns are counted from the right before that.
    pub flip_horizontal: bool,
    /// Whether rows are counted from below before that.
    pub flip_vertical: bool,
}

impl AffineAugment {
    /// Leaves an image as it is.
    pub const NONE: AffineAugment = AffineAugment {
        map: [[1.0, 0.0, 0.0], [0.0, 1.0, 0.0]],
        flip_horizontal: false,
        flip_vertical: false,
    };
}

/// A step on rows of a table. Feeds that are rows come from its columns, in their order.
#[derive(Clone, Copy, Debug)]
pub struct StepInput<'a> {
    /// The rows of the global batch.
    pub rows: &'a [u32],
    /// How the images of each are moved; none where they are not.
    pub augments: &'a [AffineAugment],
    /// The feeds that are no rows: one number each.
    pub mirrored: &'a [f32],
    /// The run's seed.
    pub seed: u64,
    /// Counts steps, for random numbers.
    pub step: u64,
    /// The optimizer's scalars of this step.
    pub scalars: &'a [f32],
}

impl Program {
    /// Fails where rows of a table, given by the type and length of each column, do not have the feeds
    /// this was compiled for.
    pub fn check_step_input(
        &self,
        columns: &[(DType, usize)],
        turn: &StepInput<'_>,
    ) -> Result<(), ExecError> {
        let fail = |name: &str, expected: String, received: String| {
            Err(ExecError::Feed { name: name.into(), expected, received })
        };
        let (rows, others): (Vec<&FeedSpec>, Vec<&FeedSpec>) =
            self.feeds.iter().partition(|f| f.ty.is_rows());
        if rows.len() != columns.len() {
            let expected = format!("{} columns", rows.len());
            return fail(&self.name, expected, columns.len().to_string());
        }
        let differs = |(f, c): &(&&FeedSpec, &(DType, usize))| (f.ty.dtype, f.ty.len()) != **c;
        if let Some((feed, (dtype, len))) = rows.iter().zip(columns).find(differs) {
            let received = format!("a column of {len} {dtype} a row");
            return fail(&feed.name, feed.ty.to_string(), received);
        }
        let single = others.iter().all(|f| f.ty.len() == 1 && f.ty.dtype == DType::F32);
        if !single || others.len() != turn.mirrored.len() {
            let expected = format!("{} numbers", others.len());
            return fail(&self.name, expected, turn.mirrored.len().to_string());
        }
        if turn.rows.len() > self.options.max_batch {
            let expected = format!("at most {} rows", self.options.max_batch);
            return fail(&self.name, expected, turn.rows.len().to_string());
        }
        if !turn.augments.is_empty() && turn.augments.len() != turn.rows.len() {
            let expected = format!("{} motions", turn.rows.len());
            return fail(&self.name, expected, turn.augments.len().to_string());
        }
        let scalars = self.update.as_ref().map_or(turn.scalars.len(), |u| u.rule.scalars);
        if scalars != turn.scalars.len() {
            let received = turn.scalars.len().to_string();
            return fail("optimizer scalars", scalars.to_string(), received);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_that_a_step_would_read_beyond_are_refused() {
        let frame = ImageShape { height: 2, width: 1, channels: 3, fill: Fill::Wrap };
        let images = Column { data: ColumnData::F32(&[0.0; 12]), row_len: 6, image: Some(frame) };
        let labels = Column { data: ColumnData::I32(&[0; 2]), row_len: 1, image: None };
        assert_eq!(check_columns(&[images, labels]), Ok(2));
        let short = Column { data: ColumnData::I32(&[0; 1]), ..labels };
        let empty = Column { row_len: 0, ..labels };
        let wide = ImageShape { width: 2, ..frame };
        let larger = Column { image: Some(wide), ..images };
        let wraps = ImageShape { height: usize::MAX / 2 + 1, width: 2, ..frame };
        let wrapped = Column { image: Some(wraps), ..images };
        let bytes = |offset| ColumnData::Bytes { bytes: &[0; 12], divisor: 1.0, offset };
        let offset = Column { data: bytes(Some(&[0.0; 5][..])), ..images };
        for columns in [[images, short], [images, empty], [larger, labels], [wrapped, labels]] {
            assert!(check_columns(&columns).is_err(), "{columns:?}");
        }
        assert!(check_columns(&[offset, labels]).is_err());
        let offset = Column { data: bytes(Some(&[0.0; 6][..])), ..images };
        assert_eq!(check_columns(&[offset, labels]), Ok(2));
    }
}
