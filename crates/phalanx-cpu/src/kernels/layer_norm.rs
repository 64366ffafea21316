//! Normalisation of the vectors along the last axis, and its derivative.

use super::math;
use crate::simd::{Isa, Kernel, Simd, dispatch};

/// Vectors that are summed in f32 before the sum moves to f64.
const BLOCK: usize = 64;

/// The shape and the constants of a layer normalisation.
#[derive(Clone, Copy, Debug)]
pub struct LayerNorm {
    /// Number of lines.
    pub lines: usize,
    /// Numbers per line.
    pub n: usize,
    /// Added to the variance.
    pub epsilon: f64,
    /// Divides by the root mean square, without subtracting the mean.
    pub rms: bool,
}

/// `(x - mean) / √(variance + epsilon)` for each line.
///
/// # Safety
/// `x` and `y` are valid for all lines and do not overlap.
pub unsafe fn layer_norm(isa: Isa, norm: LayerNorm, x: *const f32, y: *mut f32) {
    // SAFETY: the caller's contract.
    unsafe { dispatch(isa, Forward { norm, x, y }) };
}

/// The derivative by `x`.
///
/// # Safety
/// `x`, `dy` and `dx` are valid for all lines, and `dx` overlaps no operand.
pub unsafe fn layer_norm_grad(
    isa: Isa,
    norm: LayerNorm,
    x: *const f32,
    dy: *const f32,
    dx: *mut f32,
) {
    // SAFETY: the caller's contract.
    unsafe { dispatch(isa, Backward { norm, x, dy, dx }) };
}

/// The terms of a sum over a line.
enum Terms {
    /// `a`
    First,
    /// `(a - mean)²`
    Squares,
    /// `(a - mean) · b`
    Products,
}

/// The sum over a line of `n` terms of `a` and `b`.
#[inline(always)]
unsafe fn sum<S: Simd>(n: usize, terms: Terms, a: *const f32, b: *const f32, mean: f32) -> f64 {
    let (mut total, mut at) = (0.0f64, 0);
    // SAFETY: reads stay below `n`.
    unsafe {
        let shift = S::splat(mean);
        while at < n {
            let end = n.min(at + BLOCK * S::LANES);
            let mut acc = S::zero();
            while at < end {
                let lanes = S::LANES.min(end - at);
                let v = S::load_partial(a.add(at), lanes);
                let term = match terms {
                    Terms::First => v,
                    Terms::Squares => {
                        let v = S::sub(v, shift);
                        math::keep_first::<S>(S::mul(v, v), lanes, 0.0)
                    }
                    Terms::Products => S::mul(S::sub(v, shift), S::load_partial(b.add(at), lanes)),
                };
                acc = S::add(acc, term);
                at += lanes;
            }
            total += f64::from(S::sum(acc));
        }
    }
    total
}

impl LayerNorm {
    /// The mean and the reciprocal deviation of a line.
    #[inline(always)]
    unsafe fn statistics<S: Simd>(&self, x: *const f32) -> (f32, f32) {
        let n = self.n as f64;
        // SAFETY: the line has `n` numbers.
        unsafe {
            let mean = match self.rms {
                true => 0.0,
                false => (sum::<S>(self.n, Terms::First, x, x, 0.0) / n) as f32,
            };
            let variance = sum::<S>(self.n, Terms::Squares, x, x, mean) / n;
            (mean, (1.0 / (variance + self.epsilon).sqrt()) as f32)
        }
    }
}

struct Forward {
    norm: LayerNorm,
    x: *const f32,
    y: *mut f32,
}

impl Kernel for Forward {
    type Output = ();

    #[inline(always)]
    unsafe fn run<S: Simd>(self) {
        let n = self.norm.n;
        for line in 0..self.norm.lines {
            // SAFETY: the line exists.
            unsafe {
                let (x, y) = (self.x.add(line * n), self.y.add(line * n));
                let (mean, scale) = self.norm.statistics::<S>(x);
                let (mean, scale) = (S::splat(mean), S::splat(scale));
                let mut at = 0;
                while at < n {
                    let lanes = S::LANES.min(n - at);
                    let v = S::sub(S::load_partial(x.add(at), lanes), mean);
                    S::store_partial(y.add(at), S::mul(v, scale), lanes);
                    at += lanes;
                }
            }
        }
    }
}

struct Backward {
    norm: LayerNorm,
    x: *const f32,
    dy: *const f32,
    dx: *mut f32,
}

impl Kernel for Backward {
    type Output = ();

    #[inline(always)]
    unsafe fn run<S: Simd>(self) {
        let n = self.norm.n;
        for line in 0..self.norm.lines {
            // SAFETY: the line exists.
            unsafe {
                let (x, dy) = (self.x.add(line * n), self.dy.add(line * n));
                let dx = self.dx.add(line * n);
                let (mean, scale) = self.norm.statistics::<S>(x);
                let of_dy = match self.norm.rms {
                    true => 0.0,
                    false => sum::<S>(n, Terms::First, dy, dy, 0.0) / n as f64,
                };
                // The mean of `dy · y`, times the scale of `y`.
                let product = sum::<S>(n, Terms::Products, x, dy, mean) / n as f64;
                let slope = product * f64::from(scale) * f64::from(scale);
                let (mean, scale) = (S::splat(mean), S::splat(scale));
                let (shift, slope) = (S::splat(of_dy as f32), S::splat(-slope as f32));
                let mut at = 0;
                while at < n {
                    let lanes = S::LANES.min(n - at);
                    let v = S::sub(S::load_partial(x.add(at), lanes), mean);
                    let d = S::sub(S::load_partial(dy.add(at), lanes), shift);
                    let d = S::fmadd(v, slope, d);
                    S::store_partial(dx.add(at), S::mul(d, scale), lanes);
                    at += lanes;
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernels::math::testing::{close, numbers};

    #[test]
    fn lines_of_any_length() {
        for (n, rms) in [(1, false), (5, true), (16, false), (37, false), (2000, true)] {
            let (lines, epsilon) = (3, 1e-3);
            let (x, dy) = (numbers(lines * n, 1), numbers(lines * n, 2));
            let (mut want, mut want_grad) = (vec![], vec![]);
            for (x, dy) in x.chunks(n).zip(dy.chunks(n)) {
                let x: Vec<f64> = x.iter().map(|v| f64::from(*v) + 3.0).collect();
                let dy: Vec<f64> = dy.iter().map(|v| f64::from(*v)).collect();
                let mean = |v: &mut dyn Iterator<Item = f64>| v.sum::<f64>() / n as f64;
                let centre = if rms { 0.0 } else { mean(&mut x.iter().copied()) };
                let variance = mean(&mut x.iter().map(|v| (v - centre).powi(2)));
                let scale = 1.0 / (variance + epsilon).sqrt();
                let y: Vec<f64> = x.iter().map(|v| (v - centre) * scale).collect();
                let of_dy = if rms { 0.0 } else { mean(&mut dy.iter().copied()) };
                let product = mean(&mut dy.iter().zip(&y).map(|(d, y)| d * y));
                want_grad.extend((0..n).map(|i| scale * (dy[i] - of_dy - y[i] * product)));
                want.extend(y);
            }
            let x: Vec<f32> = x.iter().map(|v| v + 3.0).collect();
            let norm = LayerNorm { lines, n, epsilon, rms };
            for isa in Isa::available() {
                let (mut y, mut dx) = (vec![f32::NAN; lines * n], vec![f32::NAN; lines * n]);
                // SAFETY: all have three lines.
                unsafe {
                    layer_norm(isa, norm, x.as_ptr(), y.as_mut_ptr());
                    layer_norm_grad(isa, norm, x.as_ptr(), dy.as_ptr(), dx.as_mut_ptr());
                }
                close(isa, "layer_norm", &y, &want, 2e-5);
                close(isa, "layer_norm_grad", &dx, &want_grad, 2e-5);
            }
        }
    }
}
