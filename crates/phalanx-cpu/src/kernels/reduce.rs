//! Sums and maxima along axes, the sum over rows, broadcasting and casts.
//!
//! Long sums are split into short blocks whose results are added with compensation (or in f64), so that
//! the error does not grow with the length.

use phalanx_graph::ops::ReduceKind;

use super::layout::Copy;
use super::math;
use crate::simd::{Isa, Kernel, Simd, dispatch};

/// Numbers summed in plain f32 before the sum is added to a more precise one.
const BLOCK: usize = 64;

/// `y[o, i]` = sum or maximum of `x[o, .., i]`, where `x` is `[outer, len, inner]`. A maximum is NaN
/// if an element is NaN. The sum of no elements is 0, their maximum is minus infinity.
///
/// # Safety
/// `x` and `y` are valid for those shapes and do not overlap.
pub unsafe fn reduce(
    isa: Isa,
    kind: ReduceKind,
    [outer, len, inner]: [usize; 3],
    x: *const f32,
    y: *mut f32,
) {
    // SAFETY: the caller's contract.
    unsafe { dispatch(isa, Reduce { kind, outer, len, inner, x, y }) };
}

struct Reduce {
    kind: ReduceKind,
    outer: usize,
    len: usize,
    inner: usize,
    x: *const f32,
    y: *mut f32,
}

impl Kernel for Reduce {
    type Output = ();

    #[inline(always)]
    unsafe fn run<S: Simd>(self) {
        let Reduce { kind, outer, len, inner, .. } = self;
        for o in 0..outer {
            // SAFETY: `reduce`'s contract.
            unsafe {
                let (x, y) = (self.x.add(o * len * inner), self.y.add(o * inner));
                match kind {
                    ReduceKind::Sum if inner == 1 => *y = sum_line::<S>(x, len),
                    ReduceKind::Max if inner == 1 => *y = max_line::<S>(x, len),
                    ReduceKind::Sum => columns::<S, true>(len, inner, x, y),
                    ReduceKind::Max => columns::<S, false>(len, inner, x, y),
                }
            }
        }
    }
}

/// The sum of `len` consecutive floats.
#[inline(always)]
unsafe fn sum_line<S: Simd>(x: *const f32, len: usize) -> f32 {
    let (mut total, mut at) = (0.0f64, 0);
    // SAFETY: reads stay below `len`.
    unsafe {
        while at < len {
            let end = len.min(at + 4 * BLOCK * S::LANES);
            let mut acc = [S::zero(); 4];
            while at + 4 * S::LANES <= end {
                for (k, acc) in acc.iter_mut().enumerate() {
                    *acc = S::add(*acc, S::load(x.add(at + k * S::LANES)));
                }
                at += 4 * S::LANES;
            }
            while at < end {
                let n = S::LANES.min(end - at);
                acc[0] = S::add(acc[0], S::load_partial(x.add(at), n));
                at += n;
            }
            total += f64::from(S::sum(S::add(S::add(acc[0], acc[1]), S::add(acc[2], acc[3]))));
        }
    }
    total as f32
}

/// The largest of `len` consecutive floats.
#[inline(always)]
unsafe fn max_line<S: Simd>(x: *const f32, len: usize) -> f32 {
    // SAFETY: reads stay below `len`.
    unsafe {
        let mut acc = [S::splat(f32::NEG_INFINITY); 2];
        let mut at = 0;
        while at + 2 * S::LANES <= len {
            for (k, acc) in acc.iter_mut().enumerate() {
                *acc = math::max::<S>(*acc, S::load(x.add(at + k * S::LANES)));
            }
            at += 2 * S::LANES;
        }
        while at < len {
            let n = S::LANES.min(len - at);
            let v = math::keep_first::<S>(S::load_partial(x.add(at), n), n, f32::NEG_INFINITY);
            acc[0] = math::max::<S>(acc[0], v);
            at += n;
        }
        math::max_lane::<S>(math::max::<S>(acc[0], acc[1]))
    }
}

/// Sum or maximum of every column of a `[len, inner]` matrix.
#[inline(always)]
unsafe fn columns<S: Simd, const SUM: bool>(len: usize, inner: usize, x: *const f32, y: *mut f32) {
    let mut at = 0;
    macro_rules! strips {
        ($n:literal) => {
            while at + $n * S::LANES <= inner {
                strip::<S, SUM, $n, false>(len, inner, x.add(at), y.add(at), S::LANES);
                at += $n * S::LANES;
            }
        };
    }
    // SAFETY: columns stay below `inner`.
    unsafe {
        strips!(8);
        strips!(4);
        strips!(2);
        strips!(1);
        if at < inner {
            strip::<S, SUM, 1, true>(len, inner, x.add(at), y.add(at), inner - at);
        }
    }
}

/// Reduces `N` vectors of columns, or `n` columns if `PART`.
#[inline(always)]
unsafe fn strip<S: Simd, const SUM: bool, const N: usize, const PART: bool>(
    len: usize,
    ld: usize,
    x: *const f32,
    y: *mut f32,
    n: usize,
) {
    // SAFETY: the caller's columns lie inside the matrix.
    unsafe {
        // The next strip reads other cache lines of the same rows, so blocks are short enough to stay in
        // the cache.
        let ahead = N > 1 && len <= 1024;
        let start = S::splat(if SUM { 0.0 } else { f32::NEG_INFINITY });
        let mut total = [start; N];
        let mut lost = [S::zero(); N];
        let mut row = 0;
        while row < len {
            let end = len.min(row + BLOCK);
            let mut acc = [start; N];
            while row < end {
                for (k, acc) in acc.iter_mut().enumerate() {
                    let at = x.add(row * ld + k * S::LANES);
                    if ahead {
                        math::prefetch(at.wrapping_add(N * S::LANES));
                    }
                    let v = math::load::<S, PART>(at, n);
                    *acc = if SUM { S::add(*acc, v) } else { math::max::<S>(*acc, v) };
                }
                row += 1;
            }
            for k in 0..N {
                if SUM {
                    // Kahan summation. Infinities have no rounding error to compensate.
                    let v = S::sub(acc[k], lost[k]);
                    let sum = S::add(total[k], v);
                    let error = S::sub(S::sub(sum, total[k]), v);
                    lost[k] = S::select(S::eq(error, error), error, S::zero());
                    total[k] = sum;
                } else {
                    total[k] = math::max::<S>(total[k], acc[k]);
                }
            }
        }
        for (k, total) in total.iter().enumerate() {
            math::store::<S, PART>(y.add(k * S::LANES), *total, n);
        }
    }
}

/// `y[len]` = the sum of `rows` rows; zeros if there are none.
///
/// # Safety
/// `x` and `y` are valid for those shapes and do not overlap.
pub unsafe fn sum_rows(isa: Isa, rows: usize, len: usize, x: *const f32, y: *mut f32) {
    // SAFETY: the caller's contract. A single column is a contiguous line.
    unsafe { reduce(isa, ReduceKind::Sum, [1, rows, len], x, y) }
}

/// A sum or maximum of every row along some axes.
#[derive(Clone, Copy, Debug)]
pub struct Reduction<'a> {
    /// Sum or maximum.
    pub kind: ReduceKind,
    /// Number of rows.
    pub rows: usize,
    /// Dimensions of a row.
    pub dims: &'a [usize],
    /// The reduced axes, ascending.
    pub axes: &'a [usize],
}

impl Reduction<'_> {
    /// Computes `y` from `x`.
    ///
    /// # Safety
    /// `x` and `y` are valid for all rows and do not overlap.
    pub unsafe fn run(&self, isa: Isa, x: *const f32, y: *mut f32) {
        let Reduction { kind, rows, dims, axes } = *self;
        let reduced = |a: usize| axes.contains(&a) && dims[a] != 1;
        let first = (0..dims.len()).find(|a| reduced(*a));
        let last = (0..dims.len()).rfind(|a| reduced(*a));
        let (first, end) = (first.unwrap_or(dims.len()), last.map_or(dims.len(), |l| l + 1));
        // SAFETY: the caller's contract.
        unsafe {
            if (first..end).all(|a| reduced(a) || dims[a] == 1) {
                let outer = rows * dims[..first].iter().product::<usize>();
                let len = dims[first..end].iter().product();
                return reduce(isa, kind, [outer, len, dims[end..].iter().product()], x, y);
            }
            let (len, mut next) = (dims.iter().product::<usize>(), y);
            for r in 0..rows {
                self.reduce_remaining(0, x.add(r * len), len, &mut next);
            }
        }
    }

    /// Iterates over the axes that are not reduced, from `axis` on, and writes one number for each
    /// combination of indices. `block` is the number of elements from `x` on that `axis` spans.
    unsafe fn reduce_remaining(&self, axis: usize, x: *const f32, block: usize, y: &mut *mut f32) {
        // SAFETY: offsets stay inside the row; `y` has one element for each combination.
        unsafe {
            match self.dims.get(axis) {
                None => {
                    let sum = self.kind == ReduceKind::Sum;
                    let start = if sum { 0.0 } else { f64::NEG_INFINITY };
                    let len: usize = self.dims.iter().product();
                    **y = self.fold(0, x, len, start) as f32;
                    *y = y.add(1);
                }
                Some(d) if self.axes.contains(&axis) => {
                    self.reduce_remaining(axis + 1, x, block / (*d).max(1), y);
                }
                Some(d) => {
                    let block = block / (*d).max(1);
                    for i in 0..*d {
                        self.reduce_remaining(axis + 1, x.add(i * block), block, y);
                    }
                }
            }
        }
    }

    /// Iterates over the reduced axes, from `axis` on, and accumulates the elements.
    unsafe fn fold(&self, axis: usize, x: *const f32, block: usize, acc: f64) -> f64 {
        let Some(d) = self.dims.get(axis) else {
            // SAFETY: one element of the row.
            let v = f64::from(unsafe { *x });
            return match self.kind {
                ReduceKind::Sum => acc + v,
                ReduceKind::Max if v > acc || v.is_nan() => v,
                ReduceKind::Max => acc,
            };
        };
        let (mut acc, block) = (acc, block / (*d).max(1));
        for i in 0..if self.axes.contains(&axis) { *d } else { 1 } {
            // SAFETY: offsets stay inside the row.
            acc = unsafe { self.fold(axis + 1, x.add(i * block), block, acc) };
        }
        acc
    }
}

/// Broadcasts every row of `x` from dimensions `from` to dimensions `to`: axes of size one and missing
/// leading axes are repeated.
///
/// # Safety
/// `x` and `y` are valid for `rows` rows and do not overlap.
pub unsafe fn broadcast(rows: usize, from: &[usize], to: &[usize], x: *const f32, y: *mut f32) {
    let lead = to.len() - from.len();
    let mut copy = Copy::new();
    let (mut src, mut dst) = (from.iter().product::<usize>(), to.iter().product::<usize>());
    copy.push(rows, src, dst);
    for (i, d) in to.iter().enumerate() {
        dst /= (*d).max(1);
        let same = i >= lead && from[i - lead] == *d;
        if same {
            src /= (*d).max(1);
        }
        copy.push(*d, if same { src } else { 0 }, dst);
    }
    // SAFETY: the caller's contract. No axes are transposed, so the instruction set does not matter.
    unsafe { copy.run(Isa::PORTABLE, x, y) }
}

/// Converts integers to floats.
///
/// # Safety
/// `x` and `y` are valid for `len` elements and do not overlap.
pub unsafe fn cast_to_f32(len: usize, x: *const i32, y: *mut f32) {
    for i in 0..len {
        // SAFETY: `i < len`.
        unsafe { *y.add(i) = *x.add(i) as f32 };
    }
}

/// Converts floats to integers: rounds towards zero, saturates, and maps NaN to 0.
///
/// # Safety
/// `x` and `y` are valid for `len` elements and do not overlap.
pub unsafe fn cast_to_i32(len: usize, x: *const f32, y: *mut i32) {
    for i in 0..len {
        // SAFETY: `i < len`.
        unsafe { *y.add(i) = *x.add(i) as i32 };
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernels::math::testing::{close, numbers};

    /// Reduces any axes, element by element.
    fn naive(kind: ReduceKind, rows: usize, dims: &[usize], axes: &[usize], x: &[f32]) -> Vec<f64> {
        let kept = |a: usize| !axes.contains(&a);
        let out: usize = (0..dims.len()).filter(|a| kept(*a)).map(|a| dims[a]).product();
        let empty = if kind == ReduceKind::Sum { 0.0 } else { f64::NEG_INFINITY };
        let mut y = vec![empty; rows * out];
        for (i, v) in x.iter().enumerate() {
            let len: usize = dims.iter().product();
            let (mut rest, mut at, mut scale) = (i % len, 0, 1);
            for a in (0..dims.len()).rev() {
                if kept(a) {
                    at += rest % dims[a] * scale;
                    scale *= dims[a];
                }
                rest /= dims[a];
            }
            let y = &mut y[i / len * out + at];
            match kind {
                ReduceKind::Sum => *y += f64::from(*v),
                ReduceKind::Max if v.is_nan() || y.is_nan() => *y = f64::NAN,
                ReduceKind::Max => *y = y.max(f64::from(*v)),
            }
        }
        y
    }

    #[test]
    fn reduces_any_axes() {
        for isa in Isa::available() {
            for kind in [ReduceKind::Sum, ReduceKind::Max] {
                for (dims, axes) in [
                    (vec![1000], vec![0]),
                    (vec![10], vec![0]),
                    (vec![7, 7, 133], vec![0, 1]),
                    (vec![300, 5], vec![0]),
                    (vec![6, 50], vec![1]),
                    (vec![3, 4, 5, 6], vec![0, 1, 3]),
                    (vec![3, 4, 5, 6], vec![1, 3]),
                    (vec![3, 1, 5], vec![0, 1, 2]),
                    (vec![3, 4], vec![]),
                    (vec![4, 1, 3], vec![1]),
                ] {
                    for rows in [0, 1, 3] {
                        let mut x = numbers(rows * dims.iter().product::<usize>(), 1);
                        if let Some(v) = x.get_mut(1) {
                            *v = if kind == ReduceKind::Max { f32::NAN } else { f32::INFINITY };
                        }
                        let want = naive(kind, rows, &dims, &axes, &x);
                        let mut y = vec![9.0; want.len()];
                        let (px, py) = (x.as_ptr(), y.as_mut_ptr());
                        let reduction = Reduction { kind, rows, dims: &dims, axes: &axes };
                        // SAFETY: both have the lengths of their shapes.
                        unsafe { reduction.run(isa, px, py) };
                        close(isa, &format!("{kind:?} {dims:?} {axes:?}"), &y, &want, 2e-5);
                    }
                }
            }
        }
    }

    #[test]
    fn long_sums_stay_exact() {
        for isa in Isa::available() {
            for (rows, len) in [(100_003, 3), (50_001, 1), (0, 5), (2, 1000), (1000, 130)] {
                let x: Vec<f32> = numbers(rows * len, 2).iter().map(|v| v + 3.0).collect();
                let want = naive(ReduceKind::Sum, 1, &[rows.max(1), len], &[0], &x);
                let mut y = vec![9.0; len];
                // SAFETY: both have the lengths of their shapes.
                unsafe { sum_rows(isa, rows, len, x.as_ptr(), y.as_mut_ptr()) };
                close(isa, "sum_rows", &y, &want, 1e-6);
            }
        }
    }

    #[test]
    fn broadcasts_like_numpy() {
        for (from, to) in [
            (vec![1, 3], vec![4, 3]),
            (vec![3], vec![2, 5, 3]),
            (vec![2, 1, 3], vec![2, 4, 3]),
            (vec![2, 1], vec![2, 5]),
            (vec![], vec![3, 2]),
            (vec![1, 4, 1], vec![3, 4, 2]),
            (vec![2, 3], vec![2, 3]),
        ] {
            let x = numbers(2 * from.iter().product::<usize>(), 3);
            let len: usize = to.iter().product();
            let mut y = vec![9.0; 2 * len];
            // SAFETY: both hold two rows.
            unsafe { broadcast(2, &from, &to, x.as_ptr(), y.as_mut_ptr()) };
            for (i, got) in y.iter().enumerate() {
                let (mut rest, mut at, mut scale) = (i % len, 0, 1);
                for a in (0..to.len()).rev() {
                    if let Some(b) = (a + from.len()).checked_sub(to.len()) {
                        at += if from[b] == 1 { 0 } else { rest % to[a] * scale };
                        scale *= from[b];
                    }
                    rest /= to[a];
                }
                assert_eq!(*got, x[i / len * scale + at], "{from:?} {to:?}");
            }
        }
    }

    #[test]
    fn casts() {
        let x = [1.9, -1.9, f32::NAN, 1e20, -1e20, 0.0];
        let mut y = [7; 6];
        let mut z = [0.0; 6];
        // SAFETY: six elements each.
        unsafe {
            cast_to_i32(6, x.as_ptr(), y.as_mut_ptr());
            cast_to_f32(6, y.as_ptr(), z.as_mut_ptr());
        }
        assert_eq!(y, [1, -1, 0, i32::MAX, i32::MIN, 0]);
        assert_eq!(z[..3], [1.0, -1.0, 0.0]);
    }
}
