//! The operands of products: matrices with gaps between their rows, and the epilogue of a result.

use std::marker::PhantomData;
use std::ops::Range;

use super::layout::{Dst, Src};

/// Maximum number of rows of a matrix, so that products of sizes do not overflow.
const MAX_ROWS: usize = 1 << 35;

/// Panics unless `len` floats hold `rows` rows of `cols` floats, `ld` apart.
#[track_caller]
fn check(len: usize, rows: usize, cols: usize, ld: usize) {
    // No slice has a size that overflows.
    let needed = match rows {
        0 => Some(0),
        _ => (rows - 1).checked_mul(ld).and_then(|n| n.checked_add(cols)),
    };
    assert!(
        rows <= MAX_ROWS && ld >= cols && needed.is_some_and(|n| len >= n),
        "expected {rows} rows of {cols} floats, {ld} apart, received {len} floats"
    );
}

/// A readable matrix. Its rows start `ld` floats apart, so it may be a slice of the columns of a wider one.
#[derive(Clone, Copy, Debug)]
pub struct MatrixRef<'a> {
    data: &'a [f32],
    rows: usize,
    cols: usize,
    ld: usize,
}

impl<'a> MatrixRef<'a> {
    /// A matrix of `rows` rows of `cols` floats, `ld` floats apart, at the start of `data`.
    ///
    /// # Panics
    /// If `data` is too short.
    #[track_caller]
    pub fn new(data: &'a [f32], rows: usize, cols: usize, ld: usize) -> MatrixRef<'a> {
        check(data.len(), rows, cols, ld);
        MatrixRef { data, rows, cols, ld }
    }

    /// A matrix without gaps between its rows.
    ///
    /// # Panics
    /// If `data` is too short.
    #[track_caller]
    pub fn contiguous(data: &'a [f32], rows: usize, cols: usize) -> MatrixRef<'a> {
        MatrixRef::new(data, rows, cols, cols)
    }

    /// Number of rows.
    #[inline]
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// Number of columns.
    #[inline]
    pub fn cols(&self) -> usize {
        self.cols
    }

    /// Some of the columns.
    ///
    /// # Panics
    /// If the matrix lacks one of them.
    #[track_caller]
    pub fn columns(self, range: Range<usize>) -> MatrixRef<'a> {
        let cols = self.cols;
        assert!(range.start <= range.end && range.end <= cols, "columns {range:?} exceed {cols}");
        let data = &self.data[range.start.min(self.data.len())..];
        MatrixRef { data, cols: range.len(), ..self }
    }

    /// A pointer to the rows.
    #[inline]
    pub(crate) fn src(&self) -> Src {
        Src { ptr: self.data.as_ptr(), ld: self.ld }
    }
}

/// A writable matrix. Its rows start `ld` floats apart; gaps between them are not written.
#[derive(Debug)]
pub struct MatrixMut<'a> {
    ptr: *mut f32,
    rows: usize,
    cols: usize,
    ld: usize,
    data: PhantomData<&'a mut [f32]>,
}

impl<'a> MatrixMut<'a> {
    /// A matrix of `rows` rows of `cols` floats, `ld` floats apart, at the start of `data`.
    ///
    /// # Panics
    /// If `data` is too short.
    #[track_caller]
    pub fn new(data: &'a mut [f32], rows: usize, cols: usize, ld: usize) -> MatrixMut<'a> {
        check(data.len(), rows, cols, ld);
        MatrixMut { ptr: data.as_mut_ptr(), rows, cols, ld, data: PhantomData }
    }

    /// A matrix without gaps between its rows.
    ///
    /// # Panics
    /// If `data` is too short.
    #[track_caller]
    pub fn contiguous(data: &'a mut [f32], rows: usize, cols: usize) -> MatrixMut<'a> {
        MatrixMut::new(data, rows, cols, cols)
    }

    /// A matrix inside a wider one whose other columns belong to other workers.
    ///
    /// # Safety
    /// `dst` points to `rows` rows of `cols` floats, which nothing else accesses while the matrix lives.
    pub unsafe fn from_raw(dst: Dst, rows: usize, cols: usize) -> MatrixMut<'a> {
        MatrixMut { ptr: dst.ptr, rows, cols, ld: dst.ld, data: PhantomData }
    }

    /// Number of rows.
    #[inline]
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// Number of columns.
    #[inline]
    pub fn cols(&self) -> usize {
        self.cols
    }

    /// A pointer to the rows.
    #[inline]
    pub(crate) fn dst(&mut self) -> Dst {
        Dst { ptr: self.ptr, ld: self.ld }
    }

    /// Sets every element to zero.
    pub(crate) fn zero(&mut self) {
        // SAFETY: the constructors' contract.
        unsafe { super::layout::zero(self.rows, self.cols, self.dst()) };
    }
}

/// What follows a product: `y + bias`, then the maximum with 0.
#[derive(Clone, Copy, Debug)]
pub struct Epilogue<'a> {
    /// A number to add to each column, if any.
    pub bias: Option<&'a [f32]>,
    /// Whether a ReLU follows.
    pub relu: bool,
}

impl<'a> Epilogue<'a> {
    /// Leaves the product as it is.
    pub const NONE: Epilogue<'static> = Epilogue { bias: None, relu: false };

    /// Panics if the bias has fewer than `cols` numbers.
    #[track_caller]
    pub(crate) fn check(&self, cols: usize) {
        assert!(self.bias.is_none_or(|bias| bias.len() >= cols), "bias: expected {cols} floats");
    }

    /// The epilogue without the first `columns` columns.
    #[inline(always)]
    pub(crate) fn skip_columns(self, columns: usize) -> Epilogue<'a> {
        Epilogue { bias: self.bias.map(|bias| &bias[columns..]), relu: self.relu }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernels::tile::testing::refused;

    #[test]
    fn sizes_that_wrap_around_are_refused() {
        let half = usize::MAX / 2 + 1;
        // With wrapping arithmetic, two rows `half` apart end where the first begins; so do three with a sum.
        for (rows, cols, ld) in [(3, 4, half), (2, half, half), (half, 2, 2), (half + 1, 0, 2)] {
            let new = || assert_eq!(MatrixMut::new(&mut [0.0; 8], rows, cols, ld).rows(), rows);
            assert!(refused(new), "{rows} {cols} {ld}");
            let new = || assert_eq!(MatrixRef::new(&[0.0; 8], rows, cols, ld).rows(), rows);
            assert!(refused(new), "{rows} {cols} {ld}");
        }
        assert_eq!(MatrixRef::new(&[0.0; 8], 2, 4, 4).columns(1..3).cols(), 2);
    }

    #[test]
    fn columns_outside_of_a_matrix_are_refused() {
        let matrix = MatrixRef::new(&[0.0; 8], 2, 3, 4);
        for range in [2..4, 5..6, 4..4] {
            assert!(refused(|| assert!(matrix.columns(range).cols() < 2)));
        }
        assert_eq!(MatrixRef::new(&[], 0, 3, 3).columns(1..3).cols(), 2);
    }
}
