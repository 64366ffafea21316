//! Vector functions that [`Simd`] lacks, each accurate to about three units in the last place, and two
//! helpers that let one loop body handle full vectors and remainders.
//!
//! All are `#[inline(always)]` and have [`Simd`]'s contract: call them only if the machine has the
//! instructions of `S`.
#![allow(clippy::missing_safety_doc)] // One contract for all, above.

use crate::simd::{MAX_LANES, Simd};

/// Loads a full vector from `p` or, if `PART`, its first `n` lanes and zeros.
#[inline(always)]
pub unsafe fn load<S: Simd, const PART: bool>(p: *const f32, n: usize) -> S::V {
    // SAFETY: the caller's pointer holds a vector, or `n` floats where `PART`.
    unsafe { if PART { S::load_partial(p, n) } else { S::load(p) } }
}

/// Stores a full vector to `p` or, if `PART`, its first `n` lanes.
#[inline(always)]
pub unsafe fn store<S: Simd, const PART: bool>(p: *mut f32, v: S::V, n: usize) {
    // SAFETY: the caller's pointer takes a vector, or `n` floats where `PART`.
    unsafe { if PART { S::store_partial(p, v, n) } else { S::store(p, v) } }
}

/// Prefetches the cache line at `p`, which may be an invalid address.
#[inline(always)]
pub fn prefetch(p: *const f32) {
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    // SAFETY: a prefetch is a hint and never faults.
    unsafe {
        use std::arch::x86_64::{_MM_HINT_T1, _mm_prefetch};
        _mm_prefetch::<_MM_HINT_T1>(p.cast());
    }
    #[cfg(any(not(target_arch = "x86_64"), miri))]
    let _ = p;
}

/// The first `n` lanes of `v`, and `rest` in the others.
#[inline(always)]
pub unsafe fn keep_first<S: Simd>(v: S::V, n: usize, rest: f32) -> S::V {
    static LANE: [f32; MAX_LANES] =
        [0., 1., 2., 3., 4., 5., 6., 7., 8., 9., 10., 11., 12., 13., 14., 15.];
    // SAFETY: `LANES <= MAX_LANES`.
    unsafe { S::select(S::gt(S::splat(n as f32), S::load(LANE.as_ptr())), v, S::splat(rest)) }
}

/// The larger; NaN if either is.
#[inline(always)]
pub unsafe fn max<S: Simd>(a: S::V, b: S::V) -> S::V {
    // SAFETY: the caller's contract. `S::max` gives `b` where either is NaN.
    unsafe { S::select(S::eq(a, a), S::max(a, b), a) }
}

/// The smaller; NaN if either is.
#[inline(always)]
pub unsafe fn min<S: Simd>(a: S::V, b: S::V) -> S::V {
    // SAFETY: the caller's contract. `S::min` gives `b` where either is NaN.
    unsafe { S::select(S::eq(a, a), S::min(a, b), a) }
}

/// The largest lane; NaN if any is.
#[inline(always)]
pub unsafe fn max_lane<S: Simd>(v: S::V) -> f32 {
    let mut lanes = [0.0; MAX_LANES];
    // SAFETY: `LANES <= MAX_LANES`.
    unsafe { S::store(lanes.as_mut_ptr(), v) };
    let mut largest = lanes[0];
    for x in &lanes[1..S::LANES] {
        largest = if *x > largest || x.is_nan() { *x } else { largest };
    }
    largest
}

/// -1, 0 or 1; NaN for NaN.
#[inline(always)]
pub unsafe fn sign<S: Simd>(x: S::V) -> S::V {
    // SAFETY: the caller's contract.
    unsafe {
        let zero = S::zero();
        let below = S::select(S::gt(zero, x), S::splat(-1.0), x);
        S::select(S::gt(x, zero), S::splat(1.0), below)
    }
}

/// A function lane by lane.
#[inline(always)]
unsafe fn each_lane<S: Simd>(x: S::V, f: fn(f32) -> f32) -> S::V {
    let mut lanes = [0.0; MAX_LANES];
    // SAFETY: `LANES <= MAX_LANES`.
    unsafe {
        S::store(lanes.as_mut_ptr(), x);
        lanes[..S::LANES].iter_mut().for_each(|v| *v = f(*v));
        S::load(lanes.as_ptr())
    }
}

/// `sin x`, lane by lane: it is used for only a few numbers per sample, and for angles of any size.
#[inline(always)]
pub unsafe fn sin<S: Simd>(x: S::V) -> S::V {
    // SAFETY: the caller's contract.
    unsafe { each_lane::<S>(x, libm::sinf) }
}

/// `cos x`, lane by lane as [`sin`].
#[inline(always)]
pub unsafe fn cos<S: Simd>(x: S::V) -> S::V {
    // SAFETY: the caller's contract.
    unsafe { each_lane::<S>(x, libm::cosf) }
}

/// The arc tangent of `x`, lane by lane: few models use it.
#[inline(always)]
pub unsafe fn atan<S: Simd>(x: S::V) -> S::V {
    // SAFETY: the caller's contract.
    unsafe { each_lane::<S>(x, libm::atanf) }
}

/// The remainder of `a / b`, which is exact, lane by lane: few models use it.
#[inline(always)]
pub unsafe fn rem<S: Simd>(a: S::V, b: S::V) -> S::V {
    let (mut l, mut r) = ([0.0; MAX_LANES], [0.0; MAX_LANES]);
    // SAFETY: `LANES <= MAX_LANES`.
    unsafe {
        S::store(l.as_mut_ptr(), a);
        S::store(r.as_mut_ptr(), b);
        l[..S::LANES].iter_mut().zip(r).for_each(|(l, r)| *l = libm::fmodf(*l, r));
        S::load(l.as_ptr())
    }
}

/// `c₀ xⁿ + c₁ xⁿ⁻¹ + …` by Horner's rule.
#[inline(always)]
unsafe fn polynomial<S: Simd, const N: usize>(x: S::V, c: [f32; N]) -> S::V {
    // SAFETY: the caller's contract.
    unsafe {
        let mut y = S::splat(c[0]);
        for c in &c[1..] {
            y = S::fmadd(y, x, S::splat(*c));
        }
        y
    }
}

/// `v` with the sign of `x`, for `v` not negative.
#[inline(always)]
unsafe fn with_sign<S: Simd>(v: S::V, x: S::V) -> S::V {
    // SAFETY: the caller's contract.
    unsafe { S::select(S::gt(S::zero(), x), S::neg(v), v) }
}

/// `tanh x`.
#[inline(always)]
pub unsafe fn tanh<S: Simd>(x: S::V) -> S::V {
    // Cephes: an odd polynomial near zero, 1 - 2 / (e^2|x| + 1) elsewhere.
    // SAFETY: the caller's contract.
    unsafe {
        let t = S::abs(x);
        let z = S::mul(x, x);
        let p = polynomial::<S, 5>(
            z,
            [-5.704_988_7e-3, 2.063_909e-2, -5.373_971_6e-2, 1.333_144_2e-1, -3.333_328e-1],
        );
        let near = S::fmadd(S::mul(p, z), x, x);
        let e = S::exp(S::add(t, t));
        let one = S::splat(1.0);
        let far = S::sub(one, S::div(S::splat(2.0), S::add(e, one)));
        S::select(S::gt(S::splat(0.625), t), near, with_sign::<S>(far, x))
    }
}

/// `1 / (1 + e⁻ˣ)`.
#[inline(always)]
pub unsafe fn sigmoid<S: Simd>(x: S::V) -> S::V {
    // SAFETY: the caller's contract.
    unsafe {
        let one = S::splat(1.0);
        S::div(one, S::add(one, S::exp(S::neg(x))))
    }
}

/// `eˣ - 1`, exact near zero.
#[inline(always)]
pub unsafe fn expm1<S: Simd>(x: S::V) -> S::V {
    // As in `S::exp`, x = n ln2 + r, but with eʳ - 1: eˣ - 1 = 2ⁿ (eʳ - 1) + (2ⁿ - 1).
    // SAFETY: the caller's contract.
    unsafe {
        let a = S::min(S::splat(89.0), S::max(S::splat(-104.5), x));
        let n = S::round(S::mul(a, S::splat(std::f32::consts::LOG2_E)));
        let r = S::fmadd(n, S::splat(-0.693_359_4), a);
        let r = S::fmadd(n, S::splat(2.121_944_4e-4), r);
        let p = polynomial::<S, 6>(
            r,
            [1.987_569_2e-4, 1.398_199_9e-3, 8.333_452e-3, 4.166_579_6e-2, 1.666_666_5e-1, 0.5],
        );
        let p = S::fmadd(S::mul(r, r), p, r);
        let one = S::splat(1.0);
        let y = S::add(S::scale2(p, n), S::sub(S::scale2(one, n), one));
        // For large x the 1 is negligible, and 2ⁿ alone could overflow before eˣ does.
        S::select(S::gt(a, S::splat(32.0)), S::scale2(S::add(p, one), n), y)
    }
}

/// `ln(1 + x)`, exact near zero.
#[inline(always)]
pub unsafe fn log1p<S: Simd>(x: S::V) -> S::V {
    // With u = 1 + x rounded, ln(1 + x) = ln u + (x - (u - 1)) / u to first order.
    // SAFETY: the caller's contract.
    unsafe {
        let one = S::splat(1.0);
        let u = S::add(x, one);
        let y = S::log(u);
        let lost = S::div(S::sub(x, S::sub(u, one)), u);
        let better = S::select(S::gt(S::splat(f32::INFINITY), u), S::add(y, lost), y);
        S::select(S::gt(u, S::zero()), better, y)
    }
}

/// The error function.
#[inline(always)]
pub unsafe fn erf<S: Simd>(x: S::V) -> S::V {
    // After N. Juffa: an odd polynomial near zero, 1 - e^p(|x|) elsewhere; 1 in all digits beyond 4.
    // SAFETY: the caller's contract.
    unsafe {
        let t = S::min(S::splat(4.0), S::abs(x));
        let z = S::mul(x, x);
        let near = polynomial::<S, 6>(
            z,
            [
                -5.967_617e-4,
                4.991_194_2e-3,
                -2.676_813_5e-2,
                1.128_199_25e-1,
                -3.761_253_4e-1,
                1.283_791_7e-1,
            ],
        );
        let near = S::fmadd(near, x, x);
        let s = S::mul(t, t);
        let high = polynomial::<S, 2>(t, [-1.728_534_7e-5, 3.831_971_3e-4]);
        let low = polynomial::<S, 2>(t, [-3.883_964_4e-3, 2.425_462_2e-2]);
        let mut p = S::fmadd(high, s, low);
        for c in [-1.067_778_8e-1, -6.348_467e-1, -1.287_175_1e-1] {
            p = S::fmadd(p, t, S::splat(c));
        }
        let p = S::fmadd(p, t, S::neg(t));
        let far = S::sub(S::splat(1.0), S::exp(p));
        S::select(S::gt(S::splat(0.927_734_4), t), near, with_sign::<S>(far, x))
    }
}

/// `aᵇ`, lane by lane through the standard library: it is rare and has many special cases.
#[inline(always)]
pub unsafe fn pow<S: Simd>(a: S::V, b: S::V) -> S::V {
    let mut x = [0.0f32; MAX_LANES];
    let mut y = [0.0f32; MAX_LANES];
    // SAFETY: `LANES <= MAX_LANES`.
    unsafe {
        S::store(x.as_mut_ptr(), a);
        S::store(y.as_mut_ptr(), b);
        for i in 0..S::LANES {
            x[i] = x[i].powf(y[i]);
        }
        S::load(x.as_ptr())
    }
}

/// Test helpers of the kernels.
#[cfg(test)]
pub(crate) mod testing {
    use crate::simd::Isa;
    use phalanx_graph::rng::Stream;

    /// `n` numbers between -2 and 2.
    pub fn numbers(n: usize, seed: u64) -> Vec<f32> {
        let mut s = Stream::new(seed, 0, 0, 0);
        (0..n).map(|_| s.unit() as f32 * 4.0 - 2.0).collect()
    }

    /// Checks every pair to `tolerance`, relative to the magnitude but at least to one.
    pub fn close(isa: Isa, what: &str, got: &[f32], want: &[f64], tolerance: f64) {
        assert_eq!(got.len(), want.len(), "{isa} {what}");
        for (i, (g, w)) in got.iter().zip(want).enumerate() {
            let g = f64::from(*g);
            let same = g == *w || g.is_nan() && w.is_nan();
            let error = (g - w).abs() / w.abs().max(1.0);
            assert!(same || error <= tolerance, "{isa} {what}[{i}]: got {g}, want {w}");
        }
    }

    /// Copies rows of `width` columns to rows `ld` apart, with [`GAP`] in the gaps.
    pub fn spread(x: &[f32], width: usize, ld: usize) -> Vec<f32> {
        let mut out = vec![GAP; x.len() / width.max(1) * ld];
        for (i, v) in x.iter().enumerate() {
            out[i / width * ld + i % width] = *v;
        }
        out
    }

    /// The inverse of [`spread`]; fails if a gap was written.
    pub fn unspread(x: &[f32], width: usize, ld: usize) -> Vec<f32> {
        let mut out = Vec::new();
        for row in x.chunks(ld) {
            out.extend_from_slice(&row[..width]);
            assert!(row[width..].iter().all(|v| *v == GAP), "a gap was written to");
        }
        out
    }

    /// The error function by its series, or by a continued fraction where the series would cancel.
    pub fn erf64(x: f64) -> f64 {
        if x.abs() < 3.0 {
            let (mut term, mut sum) = (x, x);
            for n in 1..200 {
                term *= -x * x / f64::from(n);
                sum += term / f64::from(2 * n + 1);
            }
            return sum * std::f64::consts::FRAC_2_SQRT_PI;
        }
        let t = x.abs();
        let mut f = 0.0;
        for k in (1..200).rev() {
            f = f64::from(k) / 2.0 / (t + f);
        }
        let tail = (-t * t).exp() / std::f64::consts::PI.sqrt() / (t + f);
        (1.0 - tail).copysign(x)
    }

    /// The content of gaps.
    pub const GAP: f32 = -7777.0;
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::simd::{Isa, Kernel, dispatch};

    #[derive(Clone, Copy, Debug)]
    enum Function {
        Tanh,
        Sigmoid,
        Expm1,
        Log1p,
        Erf,
        Sign,
        Sin,
        Cos,
        Atan,
    }

    struct Apply<'a>(Function, &'a [f32], &'a mut [f32]);

    impl Kernel for Apply<'_> {
        type Output = ();

        #[inline(always)]
        unsafe fn run<S: Simd>(self) {
            let mut i = 0;
            while i < self.1.len() {
                let n = S::LANES.min(self.1.len() - i);
                // SAFETY: `n` floats are left in both slices.
                unsafe {
                    let x = S::load_partial(self.1.as_ptr().add(i), n);
                    let y = match self.0 {
                        Function::Tanh => tanh::<S>(x),
                        Function::Sigmoid => sigmoid::<S>(x),
                        Function::Expm1 => expm1::<S>(x),
                        Function::Log1p => log1p::<S>(x),
                        Function::Erf => erf::<S>(x),
                        Function::Sign => sign::<S>(x),
                        Function::Sin => sin::<S>(x),
                        Function::Cos => cos::<S>(x),
                        Function::Atan => atan::<S>(x),
                    };
                    S::store_partial(self.2.as_mut_ptr().add(i), y, n);
                }
                i += n;
            }
        }
    }

    fn exact(f: Function, x: f64) -> f64 {
        match f {
            Function::Tanh => x.tanh(),
            Function::Sigmoid => 1.0 / (1.0 + (-x).exp()),
            Function::Expm1 => x.exp_m1(),
            Function::Log1p => x.ln_1p(),
            Function::Erf => testing::erf64(x),
            Function::Sign if x == 0.0 || x.is_nan() => x,
            Function::Sign => x.signum(),
            Function::Sin => x.sin(),
            Function::Cos => x.cos(),
            Function::Atan => x.atan(),
        }
    }

    #[test]
    fn functions_are_exact_to_a_few_ulp() {
        use Function::*;
        let mut x: Vec<f32> = (-90_000..90_000).map(|i| i as f32 * 1e-3).collect();
        x.extend((-20_000..20_000).map(|i| i as f32 * 1e-4));
        x.extend((0..2000).map(|i| 1e-30 * 1.07f32.powi(i - 1000)));
        x.extend([0.0, -0.0, f32::INFINITY, f32::NEG_INFINITY, f32::NAN, -1.0, -2.0, 1e38, -1e38]);
        for isa in Isa::available() {
            for f in [Tanh, Sigmoid, Expm1, Log1p, Erf, Sign, Sin, Cos, Atan] {
                let mut y = vec![0.0; x.len()];
                // SAFETY: both slices have the same length.
                unsafe { dispatch(isa, Apply(f, &x, &mut y)) };
                let mut worst = 0.0;
                for (x, y) in x.iter().zip(&y) {
                    let want = exact(f, f64::from(*x));
                    if want as f32 == *y || want.is_nan() && y.is_nan() {
                        continue;
                    }
                    let ulp = f64::from(f32::EPSILON) * 0.5 * want.abs();
                    let error = (f64::from(*y) - want).abs() / ulp.max(1e-44);
                    // Denormal results may be flushed.
                    let tiny = want.abs() < 2.0 * f64::from(f32::MIN_POSITIVE);
                    assert!(error <= 7.0 || tiny, "{isa} {f:?}({x}) = {y}, want {want}");
                    worst = f64::max(worst, if tiny { 0.0 } else { error / 2.0 });
                }
                println!("{isa} {f:?}: {worst:.2} eps");
            }
        }
    }
}
