//! Softmax over the last axis, and the crossentropy fused with it.

use super::layout::Dst;
use super::math;
use crate::simd::{Isa, Kernel, Simd, dispatch};

/// Vectors whose exponentials are summed in f32 before the sum moves to f64.
const BLOCK: usize = 64;

/// Vectors of numbers along the last axis.
#[derive(Clone, Copy, Debug)]
pub struct Logits {
    /// The first number.
    pub ptr: *const f32,
    /// Number of vectors.
    pub rows: usize,
    /// Numbers per vector.
    pub classes: usize,
    /// Numbers from one vector to the next.
    pub ld: usize,
}

/// `eˣ / Σ eˣ` for each vector; `y` has no gaps.
///
/// # Safety
/// `x` and `y` are valid for all vectors; they may be the same, otherwise they do not overlap.
pub unsafe fn softmax(isa: Isa, x: Logits, y: *mut f32) {
    // SAFETY: the caller's contract.
    unsafe { dispatch(isa, Rows { x, body: Softmax { y } }) };
}

/// `y · (dy - Σ dy·y)` for each vector of results `y`.
///
/// # Safety
/// `y`, `dy` and `dx` are valid for all vectors; `dx` may be one of the others, otherwise they do not overlap.
pub unsafe fn softmax_grad(isa: Isa, y: Logits, dy: *const f32, dx: *mut f32) {
    // SAFETY: the caller's contract.
    unsafe { dispatch(isa, SoftmaxGrad { y, dy, dx }) };
}

/// `x - log Σ eˣ` for each vector.
///
/// # Safety
/// As [`softmax`].
pub unsafe fn log_softmax(isa: Isa, x: Logits, y: *mut f32) {
    // SAFETY: the caller's contract.
    unsafe { dispatch(isa, Rows { x, body: LogSoftmax { y } }) };
}

/// `log Σ e^logits - logits[label]`, one number per row; NaN if the label is out of range.
///
/// # Safety
/// `logits` is valid for all vectors, `labels` and `y` for one number per vector; nothing overlaps.
pub unsafe fn sparse_xent(isa: Isa, logits: Logits, labels: *const i32, y: *mut f32) {
    // SAFETY: the caller's contract.
    unsafe { dispatch(isa, Rows { x: logits, body: SparseXent { labels, y } }) };
}

/// `(softmax(logits) - onehot(label)) · dy`; NaN if the label is out of range.
///
/// # Safety
/// `logits` and `dx` are valid for all vectors, `labels` and `dy` for one number per vector. `dx` may be
/// `logits`, otherwise nothing overlaps.
pub unsafe fn sparse_xent_grad(
    isa: Isa,
    logits: Logits,
    labels: *const i32,
    dy: *const f32,
    dx: Dst,
) {
    // SAFETY: the caller's contract.
    unsafe { dispatch(isa, Rows { x: logits, body: SparseXentGrad { labels, dy, dx } }) };
}

/// A pass over vectors; `B` processes one vector.
struct Rows<B> {
    x: Logits,
    body: B,
}

trait PerRow {
    /// `x` is the vector of row `row`, `top` its largest number.
    unsafe fn row<S: Simd>(&self, row: usize, n: usize, x: *const f32, top: f32);
}

impl<B: PerRow> Kernel for Rows<B> {
    type Output = ();

    #[inline(always)]
    unsafe fn run<S: Simd>(self) {
        let Logits { ptr, rows, classes, ld } = self.x;
        for row in 0..rows {
            // SAFETY: the row exists.
            unsafe {
                let x = ptr.add(row * ld);
                self.body.row::<S>(row, classes, x, largest::<S>(x, classes));
            }
        }
    }
}

#[inline(always)]
unsafe fn largest<S: Simd>(x: *const f32, n: usize) -> f32 {
    // SAFETY: reads stay below `n`.
    unsafe {
        let mut top = S::splat(f32::NEG_INFINITY);
        let mut at = 0;
        while at + S::LANES <= n {
            top = math::max::<S>(top, S::load(x.add(at)));
            at += S::LANES;
        }
        if at < n {
            let v = S::load_partial(x.add(at), n - at);
            top = math::max::<S>(top, math::keep_first::<S>(v, n - at, f32::NEG_INFINITY));
        }
        math::max_lane::<S>(top)
    }
}

/// `Σ e^(x - top)`. If `STORE`, writes the exponentials to `y`.
#[inline(always)]
unsafe fn sum_exp<S: Simd, const STORE: bool>(
    n: usize,
    x: *const f32,
    top: f32,
    y: *mut f32,
) -> f64 {
    let (mut total, mut at) = (0.0f64, 0);
    // SAFETY: reads and writes stay below `n`.
    unsafe {
        let top = S::splat(top);
        while at < n {
            let end = n.min(at + BLOCK * S::LANES);
            let mut sum = S::zero();
            while at + S::LANES <= end {
                let e = S::exp(S::sub(S::load(x.add(at)), top));
                sum = S::add(sum, e);
                if STORE {
                    S::store(y.add(at), e);
                }
                at += S::LANES;
            }
            if at < end {
                let m = end - at;
                let e = S::exp(S::sub(S::load_partial(x.add(at), m), top));
                sum = S::add(sum, math::keep_first::<S>(e, m, 0.0));
                if STORE {
                    S::store_partial(y.add(at), e, m);
                }
                at = end;
            }
            total += f64::from(S::sum(sum));
        }
    }
    total
}

/// `y = x * factor`.
#[inline(always)]
unsafe fn scale<S: Simd>(n: usize, x: *const f32, factor: f32, y: *mut f32) {
    let mut at = 0;
    // SAFETY: reads and writes stay below `n`.
    unsafe {
        let factor = S::splat(factor);
        while at < n {
            let m = S::LANES.min(n - at);
            S::store_partial(y.add(at), S::mul(S::load_partial(x.add(at), m), factor), m);
            at += m;
        }
    }
}

struct Softmax {
    y: *mut f32,
}

impl PerRow for Softmax {
    #[inline(always)]
    unsafe fn row<S: Simd>(&self, row: usize, n: usize, x: *const f32, top: f32) {
        // SAFETY: the row exists in `y`.
        unsafe {
            let y = self.y.add(row * n);
            let sum = sum_exp::<S, true>(n, x, top, y);
            scale::<S>(n, y, (1.0 / sum) as f32, y);
        }
    }
}

struct SoftmaxGrad {
    y: Logits,
    dy: *const f32,
    dx: *mut f32,
}

impl Kernel for SoftmaxGrad {
    type Output = ();

    #[inline(always)]
    unsafe fn run<S: Simd>(self) {
        let Logits { ptr, rows, classes: n, ld } = self.y;
        for row in 0..rows {
            // SAFETY: the row exists in all.
            unsafe {
                let (y, dy, dx) = (ptr.add(row * ld), self.dy.add(row * n), self.dx.add(row * n));
                let sum = S::splat(sum_of_products::<S>(n, y, dy) as f32);
                let mut at = 0;
                while at < n {
                    let m = S::LANES.min(n - at);
                    let centred = S::sub(S::load_partial(dy.add(at), m), sum);
                    let y = S::load_partial(y.add(at), m);
                    S::store_partial(dx.add(at), S::mul(y, centred), m);
                    at += m;
                }
            }
        }
    }
}

/// `Σ x·y`
#[inline(always)]
unsafe fn sum_of_products<S: Simd>(n: usize, x: *const f32, y: *const f32) -> f64 {
    let (mut total, mut at) = (0.0, 0);
    while at < n {
        let end = n.min(at + BLOCK * S::LANES);
        // SAFETY: reads stay below `n`. Lanes that are not loaded are zero.
        unsafe {
            let mut sum = S::zero();
            while at < end {
                let m = S::LANES.min(end - at);
                let (x, y) = (S::load_partial(x.add(at), m), S::load_partial(y.add(at), m));
                sum = S::fmadd(x, y, sum);
                at += m;
            }
            total += f64::from(S::sum(sum));
        }
    }
    total
}

struct LogSoftmax {
    y: *mut f32,
}

impl PerRow for LogSoftmax {
    #[inline(always)]
    unsafe fn row<S: Simd>(&self, row: usize, n: usize, x: *const f32, top: f32) {
        // SAFETY: the row exists in `y`.
        unsafe {
            let y = self.y.add(row * n);
            // Two subtractions, because adding `top` and the logarithm first would lose the smaller one.
            let norm = S::splat(sum_exp::<S, false>(n, x, top, y).ln() as f32);
            let top = S::splat(top);
            let mut at = 0;
            while at < n {
                let m = S::LANES.min(n - at);
                let v = S::sub(S::load_partial(x.add(at), m), top);
                S::store_partial(y.add(at), S::sub(v, norm), m);
                at += m;
            }
        }
    }
}

/// The class of a label, if it is in range.
#[inline(always)]
fn class(label: i32, classes: usize) -> Option<usize> {
    usize::try_from(label).ok().filter(|l| *l < classes)
}

struct SparseXent {
    labels: *const i32,
    y: *mut f32,
}

impl PerRow for SparseXent {
    #[inline(always)]
    unsafe fn row<S: Simd>(&self, row: usize, n: usize, x: *const f32, top: f32) {
        // SAFETY: the row exists in both, and a class is below `n`.
        unsafe {
            *self.y.add(row) = match class(*self.labels.add(row), n) {
                Some(label) => {
                    let above = f64::from(top) - f64::from(*x.add(label));
                    (sum_exp::<S, false>(n, x, top, self.y).ln() + above) as f32
                }
                None => f32::NAN,
            };
        }
    }
}

struct SparseXentGrad {
    labels: *const i32,
    dy: *const f32,
    dx: Dst,
}

impl PerRow for SparseXentGrad {
    #[inline(always)]
    unsafe fn row<S: Simd>(&self, row: usize, n: usize, x: *const f32, top: f32) {
        // SAFETY: the row exists in all, and a class is below `n`.
        unsafe {
            let (dx, dy) = (self.dx.ptr.add(row * self.dx.ld), *self.dy.add(row));
            let Some(label) = class(*self.labels.add(row), n) else {
                return scale::<S>(n, x, f32::NAN, dx);
            };
            let sum = sum_exp::<S, true>(n, x, top, dx);
            let own = ((f64::from(*dx.add(label)) / sum - 1.0) * f64::from(dy)) as f32;
            scale::<S>(n, dx, (f64::from(dy) / sum) as f32, dx);
            *dx.add(label) = own;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernels::math::testing::{close, numbers, spread, unspread};

    #[test]
    fn softmax_and_crossentropy() {
        for isa in Isa::available() {
            for (rows, n) in [(0, 5), (3, 1), (7, 10), (2, 16), (3, 1003), (2, 40_001)] {
                let x: Vec<f32> = numbers(rows * n, 1).iter().map(|v| v * 20.0 + 60.0).collect();
                let labels: Vec<i32> = (0..rows).map(|r| (r * 7 % (n + 1)) as i32).collect();
                let dy = numbers(rows, 2);
                let (mut soft, mut log, mut loss, mut grad) = (vec![], vec![], vec![], vec![]);
                let (of_vectors, mut soft_grad) = (numbers(rows * n, 3), vec![]);
                for (r, x) in x.chunks(n).enumerate() {
                    let x: Vec<f64> = x.iter().map(|v| f64::from(*v)).collect();
                    let top = x.iter().copied().fold(f64::NEG_INFINITY, f64::max);
                    let norm = x.iter().map(|v| (v - top).exp()).sum::<f64>().ln() + top;
                    let label = labels[r] as usize;
                    loss.push(x.get(label).map_or(f64::NAN, |v| norm - v));
                    for (i, v) in x.iter().enumerate() {
                        let p = (v - norm).exp();
                        soft.push(p);
                        log.push(v - norm);
                        let own = if i == label { 1.0 } else { 0.0 };
                        grad.push(if label < n { (p - own) * f64::from(dy[r]) } else { f64::NAN });
                    }
                    let dy = of_vectors[r * n..(r + 1) * n].iter().map(|v| f64::from(*v));
                    let pairs: Vec<(f64, f64)> = soft[r * n..].iter().copied().zip(dy).collect();
                    let sum: f64 = pairs.iter().map(|(p, d)| p * d).sum();
                    soft_grad.extend(pairs.iter().map(|(p, d)| p * (d - sum)));
                }
                let (mut y, mut l) = (vec![9.0; x.len()], vec![9.0; rows]);
                // SAFETY: all have the lengths of their shapes.
                unsafe {
                    let (pl, py) = (labels.as_ptr(), y.as_mut_ptr());
                    let logits = Logits { ptr: x.as_ptr(), rows, classes: n, ld: n };
                    softmax(isa, logits, py);
                    close(isa, "softmax", &y, &soft, 1e-6);
                    y.copy_from_slice(&x);
                    softmax(isa, Logits { ptr: py, ..logits }, py);
                    close(isa, "softmax in place", &y, &soft, 1e-6);
                    let soft = Logits { ptr: py, ..logits };
                    softmax_grad(isa, soft, of_vectors.as_ptr(), py);
                    close(isa, "softmax_grad", &y, &soft_grad, 1e-6);
                    log_softmax(isa, logits, py);
                    close(isa, "log_softmax", &y, &log, 1e-6);
                    sparse_xent(isa, logits, pl, l.as_mut_ptr());
                    close(isa, "sparse_xent", &l, &loss, 1e-6);
                    sparse_xent_grad(isa, logits, pl, dy.as_ptr(), Dst { ptr: py, ld: n });
                    close(isa, "sparse_xent_grad", &y, &grad, 1e-6);
                    let wide = spread(&x, n, n + 3);
                    let logits = Logits { ptr: wide.as_ptr(), ld: n + 3, ..logits };
                    sparse_xent(isa, logits, pl, l.as_mut_ptr());
                    close(isa, "sparse_xent with gaps", &l, &loss, 1e-6);
                    let mut wide = spread(&vec![0.0; x.len()], n, n + 5);
                    let dx = Dst { ptr: wide.as_mut_ptr(), ld: n + 5 };
                    sparse_xent_grad(isa, logits, pl, dy.as_ptr(), dx);
                    let y = unspread(&wide, n, n + 5);
                    close(isa, "sparse_xent_grad with gaps", &y, &grad, 1e-6);
                }
            }
        }
    }

    fn one_row(x: &[f32]) -> Logits {
        Logits { ptr: x.as_ptr(), rows: 1, classes: x.len(), ld: x.len() }
    }

    #[test]
    fn infinities_and_large_numbers() {
        for isa in Isa::available() {
            let x = [3e38, 3e38, f32::NEG_INFINITY, 1.0];
            let mut y = [9.0; 4];
            // SAFETY: one row of four.
            unsafe { softmax(isa, one_row(&x), y.as_mut_ptr()) };
            assert_eq!(y, [0.5, 0.5, 0.0, 0.0]);
            for bad in [f32::NAN, f32::INFINITY] {
                let x = [1.0, bad, 2.0, 3.0];
                // SAFETY: one row of four.
                unsafe { softmax(isa, one_row(&x), y.as_mut_ptr()) };
                assert!(y.iter().all(|v| v.is_nan()), "{isa} {bad} {y:?}");
            }
        }
    }
}
