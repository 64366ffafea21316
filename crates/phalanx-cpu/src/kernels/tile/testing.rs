//! Test helpers of the kernels: noise, and matrices with gaps between their rows.

use crate::kernels::matrix::{MatrixMut, MatrixRef};

/// The content of a matrix's gaps, which no kernel may change.
const GAP: f32 = -12345.0;

/// Reproducible numbers in `-1..1`.
pub(crate) fn noise(len: usize, seed: u64) -> Vec<f32> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) + 1;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state >> 40) as f32 / (1u64 << 23) as f32 - 1.0
    };
    (0..len).map(|_| next()).collect()
}

/// Rows of `cols` floats with a gap after each but the last.
pub(crate) struct Matrix {
    pub data: Vec<f32>,
    pub ld: usize,
    rows: usize,
    cols: usize,
}

impl Matrix {
    fn new(rows: usize, cols: usize, gap: usize, mut value: impl FnMut() -> f32) -> Matrix {
        let ld = cols + gap;
        let mut data = vec![GAP; if rows == 0 { 0 } else { (rows - 1) * ld + cols }];
        for row in data.chunks_mut(ld) {
            row[..cols].fill_with(&mut value);
        }
        Matrix { data, ld, rows, cols }
    }

    pub fn noise(rows: usize, cols: usize, gap: usize, seed: u64) -> Matrix {
        let mut values = noise(rows * cols, seed).into_iter();
        Matrix::new(rows, cols, gap, || values.next().unwrap())
    }

    /// NaN everywhere but in the gaps, to reveal elements that a kernel does not write.
    pub fn poisoned(rows: usize, cols: usize, gap: usize) -> Matrix {
        Matrix::new(rows, cols, gap, || f32::NAN)
    }

    pub fn view(&self) -> MatrixRef<'_> {
        MatrixRef::new(&self.data, self.rows, self.cols, self.ld)
    }

    pub fn view_mut(&mut self) -> MatrixMut<'_> {
        MatrixMut::new(&mut self.data, self.rows, self.cols, self.ld)
    }

    pub fn at(&self, row: usize, col: usize) -> f32 {
        self.data[row * self.ld + col]
    }

    /// Compares each element with the sum of its terms; `want` returns (terms, bias, relu). The tolerance is
    /// relative to the sum of their magnitudes.
    pub fn check(&self, what: &str, want: impl Fn(usize, usize) -> (Vec<f64>, f64, bool)) {
        for i in 0..self.rows {
            for j in 0..self.cols {
                let (terms, bias, relu) = want(i, j);
                let sum = terms.iter().sum::<f64>() + bias;
                let sum = if relu { sum.max(0.0) } else { sum };
                let size = terms.iter().map(|t| t.abs()).sum::<f64>() + bias.abs();
                let got = self.at(i, j);
                assert!(
                    (f64::from(got) - sum).abs() <= 1e-6 * size,
                    "{what} [{i}, {j}]: got {got}, expected {sum}"
                );
            }
        }
        self.check_gaps(what);
    }

    /// Panics if a gap was written.
    pub fn check_gaps(&self, what: &str) {
        for i in 0..self.rows {
            let gap = &self.data[(i * self.ld + self.cols).min(self.data.len())..];
            let gap = &gap[..gap.len().min(self.ld - self.cols)];
            assert!(gap.iter().all(|&x| x == GAP), "{what}: the gap after row {i} was written");
        }
    }
}

/// Whether a call panics because of its own checks. Arithmetic overflow does not count, since release builds
/// do not detect it.
#[track_caller]
pub(crate) fn refused(call: impl FnOnce()) -> bool {
    let call = std::panic::AssertUnwindSafe(call);
    let Err(cause) = std::panic::catch_unwind(call) else { return false };
    let text = cause.downcast_ref::<String>().cloned();
    let text = text.or_else(|| cause.downcast_ref::<&str>().map(|s| s.to_string()));
    let text = text.expect("a panic says why");
    assert!(!text.contains("overflow"), "{text}");
    true
}
