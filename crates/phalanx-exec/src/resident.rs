//! Resident samples: tables on the devices, and steps that refer to their rows by index.

use crate::error::ExecError;
use phalanx_graph::count;

/// A table of samples that is resident on the devices of an executor.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct TableId(pub usize);

/// The elements of a column, row by row.
#[derive(Clone, Copy, Debug)]
pub enum ColumnData<'a> {
    /// 32-bit floats.
    F32(&'a [f32]),
    /// 32-bit integers.
    I32(&'a [i32]),
    /// Floats stored as bytes: each is `byte / divisor` minus the offset at its position in the row.
    Bytes {
        /// The bytes.
        bytes: &'a [u8],
        /// The divisor.
        divisor: f32,
        /// Subtracted from every row, if any.
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

    /// Whether there are no elements.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Size in bytes.
    pub fn bytes(&self) -> usize {
        match self {
            ColumnData::F32(v) => size_of_val(*v),
            ColumnData::I32(v) => size_of_val(*v),
            ColumnData::Bytes { bytes, offset, .. } => bytes.len() + offset.map_or(0, size_of_val),
        }
    }
}

/// How an augmented image is filled outside its borders.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Fill {
    /// The nearest pixel.
    Nearest,
    /// A constant.
    Constant(f32),
    /// The mirrored image.
    Reflect,
    /// The repeated image.
    Wrap,
}

/// The shape of images that steps may augment, channels last.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ImageShape {
    /// Height in pixels.
    pub height: usize,
    /// Width in pixels.
    pub width: usize,
    /// Number of channels.
    pub channels: usize,
    /// How the outside is filled.
    pub fill: Fill,
}

/// One column of a table, for one feed.
#[derive(Clone, Copy, Debug)]
pub struct Column<'a> {
    /// All rows.
    pub data: ColumnData<'a>,
    /// Elements per row.
    pub row_len: usize,
    /// The image shape, if rows may be augmented.
    pub image: Option<ImageShape>,
}

/// Checks the columns of a table and returns its number of rows.
///
/// # Errors
/// Columns with different numbers of rows, or whose offset or image shape does not match the row.
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
        let image_len = |s: ImageShape| count(&[s.height, s.width, s.channels]);
        if let Some(shape) = c.image.filter(|s| image_len(*s) != c.row_len) {
            return fail(i, format!("images of {} elements", c.row_len), format!("{shape:?}"));
        }
    }
    Ok(rows)
}

/// An affine augmentation: each output pixel is read, with bilinear interpolation, where `map` sends it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct AffineAugment {
    /// Maps the output pixel's `(row, column, 1)` to the row and the column in the input.
    pub map: [[f64; 3]; 2],
    /// Whether to flip the output pixel's column before mapping.
    pub flip_horizontal: bool,
    /// Whether to flip the output pixel's row before mapping.
    pub flip_vertical: bool,
}

impl AffineAugment {
    /// The identity.
    pub const NONE: AffineAugment = AffineAugment {
        map: [[1.0, 0.0, 0.0], [0.0, 1.0, 0.0]],
        flip_horizontal: false,
        flip_vertical: false,
    };
}

/// The input of a step on rows of a table. Feeds with rows read the table's columns, in order.
#[derive(Clone, Copy, Debug)]
pub struct StepInput<'a> {
    /// The rows of the global batch.
    pub rows: &'a [u32],
    /// The augmentation of each row; empty if there is none.
    pub augments: &'a [AffineAugment],
    /// The mirrored feeds: one number each.
    pub mirrored: &'a [f32],
    /// The run's seed.
    pub seed: u64,
    /// The step number, which random numbers are derived from.
    pub step: u64,
    /// The optimizer's scalars for this step.
    pub scalars: &'a [f32],
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_with_inconsistent_sizes_are_rejected() {
        let shape = ImageShape { height: 2, width: 1, channels: 3, fill: Fill::Wrap };
        let images = Column { data: ColumnData::F32(&[0.0; 12]), row_len: 6, image: Some(shape) };
        let labels = Column { data: ColumnData::I32(&[0; 2]), row_len: 1, image: None };
        assert_eq!(check_columns(&[images, labels]), Ok(2));
        let short = Column { data: ColumnData::I32(&[0; 1]), ..labels };
        let empty = Column { row_len: 0, ..labels };
        let wide = ImageShape { width: 2, ..shape };
        let larger = Column { image: Some(wide), ..images };
        let wraps = ImageShape { height: usize::MAX / 2 + 1, width: 2, ..shape };
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
