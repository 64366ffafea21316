//! Kernels with integer operands or results: embeddings, one-hot, arg-max and counting.

use super::layout::Src;
use super::math;
use crate::simd::{Isa, Kernel, Simd, dispatch};

/// The index as a position below `n`, if it is in range.
#[inline(always)]
fn within(index: i32, n: usize) -> Option<usize> {
    usize::try_from(index).ok().filter(|i| *i < n)
}

/// Copies rows of a `[vocab, width]` table; NaN for an index out of range.
///
/// # Safety
/// `table` has that shape, `index` is valid for `count` numbers, `y` for `count * width`; nothing
/// overlaps.
pub unsafe fn gather(
    [vocab, width]: [usize; 2],
    table: *const f32,
    count: usize,
    index: *const i32,
    y: *mut f32,
) {
    for i in 0..count {
        // SAFETY: the row lies in the table, the result in `y`.
        unsafe {
            let to = y.add(i * width);
            match within(*index.add(i), vocab) {
                Some(row) => std::ptr::copy_nonoverlapping(table.add(row * width), to, width),
                None => std::slice::from_raw_parts_mut(to, width).fill(f32::NAN),
            }
        }
    }
}

/// Zeroes a `[vocab, width]` table and adds each `dy` to its row. Indices out of range are ignored.
///
/// # Safety
/// As [`gather`], with `dy` in place of the result.
pub unsafe fn gather_grad(
    isa: Isa,
    [vocab, width]: [usize; 2],
    count: usize,
    index: *const i32,
    dy: *const f32,
    table: *mut f32,
) {
    // SAFETY: the table has that many floats.
    unsafe { std::ptr::write_bytes(table, 0, vocab * width) };
    // SAFETY: the caller's contract.
    unsafe { dispatch(isa, GatherGrad { vocab, width, count, index, dy, table }) };
}

struct GatherGrad {
    vocab: usize,
    width: usize,
    count: usize,
    index: *const i32,
    dy: *const f32,
    table: *mut f32,
}

impl Kernel for GatherGrad {
    type Output = ();

    #[inline(always)]
    unsafe fn run<S: Simd>(self) {
        let width = self.width;
        for i in 0..self.count {
            // SAFETY: the row lies in the table, its columns below `width`.
            unsafe {
                let Some(row) = within(*self.index.add(i), self.vocab) else { continue };
                let (from, to) = (self.dy.add(i * width), self.table.add(row * width));
                let mut at = 0;
                while at < width {
                    let n = S::LANES.min(width - at);
                    let sum =
                        S::add(S::load_partial(to.add(at), n), S::load_partial(from.add(at), n));
                    S::store_partial(to.add(at), sum, n);
                    at += n;
                }
            }
        }
    }
}

/// 1 at the index, 0 elsewhere; all zeros for an index out of range.
///
/// # Safety
/// `index` is valid for `count` numbers and `y` for `count * depth`.
pub unsafe fn one_hot(depth: usize, count: usize, index: *const i32, y: *mut f32) {
    // SAFETY: writes stay inside `y`.
    unsafe {
        std::ptr::write_bytes(y, 0, count * depth);
        for i in 0..count {
            if let Some(k) = within(*index.add(i), depth) {
                *y.add(i * depth + k) = 1.0;
            }
        }
    }
}

/// The index of the first maximum of each of `rows` vectors of `n` numbers. NaN is ignored unless it comes
/// first.
///
/// # Safety
/// `x` is valid for `rows` vectors and `y` for `rows` numbers.
pub unsafe fn arg_max(rows: usize, n: usize, x: Src, y: *mut i32) {
    for r in 0..rows {
        // SAFETY: the row exists.
        unsafe {
            let x = std::slice::from_raw_parts(x.ptr.add(r * x.ld), n);
            let mut best = 0;
            for (i, v) in x.iter().enumerate() {
                best = if *v > x[best] { i } else { best };
            }
            *y.add(r) = best as i32;
        }
    }
}

/// The positions that sort each of `rows` vectors of `n` numbers: equal numbers in order, NaN last.
///
/// # Safety
/// `x` is valid for `rows * n` floats and `y` for as many integers.
pub unsafe fn arg_sort(rows: usize, n: usize, x: *const f32, y: *mut i32) {
    for r in 0..rows {
        // SAFETY: the row exists.
        let (x, y) = unsafe {
            (
                std::slice::from_raw_parts(x.add(r * n), n),
                std::slice::from_raw_parts_mut(y.add(r * n), n),
            )
        };
        y.iter_mut().enumerate().for_each(|(i, y)| *y = i as i32);
        let value = |i: &i32| x[*i as usize];
        y.sort_unstable_by(|i, j| {
            let (a, b) = (value(i), value(j));
            let by_value = a.partial_cmp(&b).unwrap_or_else(|| a.is_nan().cmp(&b.is_nan()));
            by_value.then(i.cmp(j))
        });
    }
}

/// 1 if fewer than `k` scores of the row are above the label's score, else 0. Also 0 if the label is out of
/// range or a score of the row is not finite.
///
/// # Safety
/// `scores` is valid for `rows * n` floats, `labels` and `y` for `rows` numbers.
pub unsafe fn in_top_k(
    isa: Isa,
    k: usize,
    [rows, n]: [usize; 2],
    scores: *const f32,
    labels: *const i32,
    y: *mut f32,
) {
    // SAFETY: the caller's contract.
    unsafe { dispatch(isa, InTopK { k, rows, n, scores, labels, y }) };
}

struct InTopK {
    k: usize,
    rows: usize,
    n: usize,
    scores: *const f32,
    labels: *const i32,
    y: *mut f32,
}

impl Kernel for InTopK {
    type Output = ();

    #[inline(always)]
    unsafe fn run<S: Simd>(self) {
        for r in 0..self.rows {
            // SAFETY: the row exists, reads stay below `n`.
            unsafe {
                let x = self.scores.add(r * self.n);
                *self.y.add(r) = match within(*self.labels.add(r), self.n) {
                    Some(label) if better::<S>(x, self.n, *x.add(label)) < self.k => 1.0,
                    _ => 0.0,
                };
            }
        }
    }
}

/// How many of `n` numbers are above `score`; more than `n` if one is not finite.
#[inline(always)]
unsafe fn better<S: Simd>(x: *const f32, n: usize, score: f32) -> usize {
    let (mut count, mut at) = (0.0, 0);
    // SAFETY: reads stay below `n`.
    unsafe {
        let (score, one) = (S::splat(score), S::splat(1.0));
        let mut finite = S::zero();
        while at < n {
            let m = S::LANES.min(n - at);
            let v = math::keep_first::<S>(S::load_partial(x.add(at), m), m, f32::MIN);
            // x - x is zero for finite numbers and NaN for all others.
            finite = S::add(finite, S::sub(v, v));
            count += f64::from(S::sum(S::select(S::gt(v, score), one, S::zero())));
            at += m;
        }
        if S::sum(finite).is_nan() { usize::MAX } else { count as usize }
    }
}

/// Threshold `i` of `n`, as in Keras' AUC: evenly spaced over 0..=1, the ends slightly outside.
fn threshold(i: usize, n: usize) -> f64 {
    match i {
        0 => -1e-7,
        _ if i == n - 1 => 1.0 + 1e-7,
        _ => i as f64 / (n - 1) as f64,
    }
}

/// For each of `n` thresholds the total weight of the positives (label above one half) whose score is above
/// it, then the same for the negatives. `scratch` holds `2n` numbers.
///
/// # Safety
/// `scores`, `labels` and `weights` are valid for `count` floats.
pub unsafe fn threshold_counts(
    n: usize,
    count: usize,
    [scores, labels, weights]: [*const f32; 3],
    out: &mut [f32],
    scratch: &mut [f64],
) {
    let bins = &mut scratch[..2 * n];
    bins.fill(0.0);
    for i in 0..count {
        // SAFETY: `i < count`.
        let (score, label, weight) =
            unsafe { (f64::from(*scores.add(i)), *labels.add(i), f64::from(*weights.add(i))) };
        if score.is_nan() {
            continue;
        }
        // Estimate how many thresholds lie below, then correct the estimate by its neighbours.
        let mut below = ((score * (n - 1) as f64) as usize).min(n);
        while below < n && score > threshold(below, n) {
            below += 1;
        }
        while below > 0 && score <= threshold(below - 1, n) {
            below -= 1;
        }
        if below > 0 {
            let class = if label > 0.5 { 0 } else { n };
            bins[class + below - 1] += weight;
        }
    }
    for class in [0, n] {
        let mut sum = 0.0;
        for i in (class..class + n).rev() {
            sum += bins[i];
            out[i] = sum as f32;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernels::math::testing::{close, numbers};

    #[test]
    fn embeddings() {
        let (vocab, width) = (5, 19);
        let index = [3, 0, -1, 3, 5, 4];
        let table = numbers(vocab * width, 1);
        let dy = numbers(index.len() * width, 2);
        let mut y = vec![9.0; dy.len()];
        let (mut want, mut want_grad) = (vec![], vec![0.0; table.len()]);
        for (i, k) in index.iter().enumerate() {
            for d in 0..width {
                let inside = (0..5).contains(k);
                let at = (*k).max(0) as usize * width + d;
                want.push(if inside { f64::from(table[at]) } else { f64::NAN });
                if inside {
                    want_grad[at] += f64::from(dy[i * width + d]);
                }
            }
        }
        for isa in Isa::available() {
            let mut grad = vec![9.0; table.len()];
            // SAFETY: all have the lengths of their shapes.
            unsafe {
                gather([vocab, width], table.as_ptr(), 6, index.as_ptr(), y.as_mut_ptr());
                let (p, d) = (index.as_ptr(), dy.as_ptr());
                gather_grad(isa, [vocab, width], 6, p, d, grad.as_mut_ptr());
            }
            close(isa, "gather", &y, &want, 0.0);
            close(isa, "gather_grad", &grad, &want_grad, 1e-6);
            // SAFETY: no index is read.
            unsafe {
                let none = std::ptr::null();
                gather_grad(isa, [vocab, width], 0, none, std::ptr::null(), grad.as_mut_ptr());
            }
            assert!(grad.iter().all(|g| *g == 0.0));
        }
    }

    #[test]
    fn one_hot_and_arg_max() {
        let index = [2, -1, 3, 0];
        let mut y = [9.0; 12];
        let mut back = [9; 4];
        // SAFETY: four rows of three.
        unsafe {
            one_hot(3, 4, index.as_ptr(), y.as_mut_ptr());
            assert_eq!(y, [0., 0., 1., 0., 0., 0., 0., 0., 0., 1., 0., 0.]);
            arg_max(4, 3, Src { ptr: y.as_ptr(), ld: 3 }, back.as_mut_ptr());
        }
        assert_eq!(back, [2, 0, 0, 0]);
        let mut first = [9];
        let vector = [1.0, f32::NAN, 7.0, 7.0];
        let x = Src { ptr: vector.as_ptr(), ld: 4 };
        // SAFETY: one vector of four.
        unsafe { arg_max(1, 4, x, first.as_mut_ptr()) };
        assert_eq!(first, [2]);
    }

    #[test]
    fn equal_numbers_stay_in_order_and_nan_comes_last() {
        let nan = f32::NAN;
        let x = [2.0, nan, -1.0, 2.0, -0.0, 0.0, nan, f32::INFINITY];
        let mut y = [9; 8];
        // SAFETY: one row of eight, then two of four.
        unsafe {
            arg_sort(1, 8, x.as_ptr(), y.as_mut_ptr());
            assert_eq!(y, [2, 4, 5, 0, 3, 7, 1, 6]);
            arg_sort(2, 4, x.as_ptr(), y.as_mut_ptr());
        }
        assert_eq!(y, [2, 0, 3, 1, 0, 1, 3, 2]);
    }

    #[test]
    fn top_k() {
        for isa in Isa::available() {
            for n in [1, 10, 37] {
                let rows = 40;
                let x: Vec<f32> = numbers(rows * n, 3).iter().map(|v| (v * 4.0).round()).collect();
                let labels: Vec<i32> = (0..rows).map(|r| (r % (n + 2)) as i32 - 1).collect();
                let want: Vec<f64> = (0..rows)
                    .map(|r| {
                        let row = &x[r * n..(r + 1) * n];
                        let hit = within(labels[r], n)
                            .is_some_and(|l| row.iter().filter(|v| **v > row[l]).count() < 3);
                        if hit { 1.0 } else { 0.0 }
                    })
                    .collect();
                let mut y = vec![9.0; rows];
                let (p, l) = (x.as_ptr(), labels.as_ptr());
                // SAFETY: all have the lengths of their shapes.
                unsafe { in_top_k(isa, 3, [rows, n], p, l, y.as_mut_ptr()) };
                close(isa, "in_top_k", &y, &want, 0.0);
            }
            let mut y = [9.0];
            let x = [1.0, f32::NAN, 0.0];
            // SAFETY: one row of three.
            unsafe { in_top_k(isa, 3, [1, 3], x.as_ptr(), [0].as_ptr(), y.as_mut_ptr()) };
            assert_eq!(y, [0.0]);
        }
    }

    #[test]
    fn counts_above_thresholds() {
        for n in [2, 3, 200] {
            let mut scores: Vec<f32> = numbers(500, 4).iter().map(|v| v * 0.3 + 0.5).collect();
            scores.extend([0.0, 1.0, 0.5, f32::NAN, f32::INFINITY, f32::NEG_INFINITY, -1e-8]);
            scores.extend((0..n).map(|i| i as f32 / (n - 1) as f32));
            let labels: Vec<f32> = (0..scores.len()).map(|i| (i % 3 == 0) as u8 as f32).collect();
            let weights: Vec<f32> = numbers(scores.len(), 5).iter().map(|v| v.abs()).collect();
            let mut want = vec![0.0; 2 * n];
            for ((s, l), w) in scores.iter().zip(&labels).zip(&weights) {
                for i in 0..n {
                    if f64::from(*s) > threshold(i, n) {
                        want[if *l > 0.5 { i } else { n + i }] += f64::from(*w);
                    }
                }
            }
            let mut out = vec![9.0; 2 * n];
            let mut scratch = vec![f64::NAN; 2 * n];
            let operands = [scores.as_ptr(), labels.as_ptr(), weights.as_ptr()];
            // SAFETY: all have the same length.
            unsafe { threshold_counts(n, scores.len(), operands, &mut out, &mut scratch) };
            close(Isa::PORTABLE, "counts", &out, &want, 1e-6);
        }
    }
}
