//! Batch normalisation: moments, statistics, the normalisation itself and its derivative.
//!
//! All are memory-bound, so each is one pass over the pixels. Sums run in f32 over short blocks of pixels and
//! are added to f64 sums after each block. The mask of a fused ReLU is not stored: forward and backward
//! evaluate `x * scale + shift` with the same instruction and the same numbers.

use super::layout::{Dst, Src};
use super::math::{load, prefetch, store};
use crate::simd::{Isa, Kernel, MAX_LANES, Simd, dispatch};

/// Pixels summed in f32 before the sums are added to those in f64.
const BLOCK: usize = 64;

/// Number of channel vectors processed together.
const VECTORS: usize = 4;

/// The parameters of a normalisation, shared by forward and backward.
#[derive(Clone, Copy, Debug)]
pub struct BatchNorm<'a> {
    /// Mean of every channel, then variance of every channel.
    pub stats: &'a [f32],
    /// Factor of every channel.
    pub gamma: &'a [f32],
    /// Offset of every channel.
    pub beta: &'a [f32],
    /// Added to the variance.
    pub epsilon: f64,
    /// Whether a ReLU follows.
    pub relu: bool,
}

impl BatchNorm<'_> {
    fn channels(&self) -> usize {
        self.gamma.len()
    }

    fn inverse_deviation(&self, c: usize) -> f64 {
        1.0 / (f64::from(self.stats[self.channels() + c]) + self.epsilon).sqrt()
    }

    /// Computes the coefficients of `y = x * scale + shift`. All kernels use this function, so that they agree
    /// exactly.
    fn scale_shift(&self, scale: &mut [f32], shift: &mut [f32]) {
        for c in 0..self.channels() {
            scale[c] = (f64::from(self.gamma[c]) * self.inverse_deviation(c)) as f32;
            let moved = f64::from(self.stats[c]) * f64::from(scale[c]);
            shift[c] = (f64::from(self.beta[c]) - moved) as f32;
        }
    }
}

/// The sum of every channel, then the sum of squares of every channel.
///
/// # Safety
/// `x` is valid for `pixels`, `out` holds two numbers for each of `c` channels.
pub unsafe fn moments(isa: Isa, pixels: usize, c: usize, x: Src, out: &mut [f64]) {
    assert!(out.len() == 2 * c);
    out.fill(0.0);
    let body = Moments { x };
    // SAFETY: the caller's contract; the other slices have the lengths computed above.
    unsafe { dispatch(isa, Sums { pixels, c, body, out }) };
}

/// The mean, then the variance of every channel, from reduced moments over `count` numbers.
pub fn stats(sums: &[f64], count: f64, out: &mut [f32]) {
    let c = sums.len() / 2;
    for i in 0..c {
        let mean = if count > 0.0 { sums[i] / count } else { 0.0 };
        let square = if count > 0.0 { sums[c + i] / count } else { 0.0 };
        out[i] = mean as f32;
        // NaN must stay NaN, so no `max`.
        let variance = square - mean * mean;
        out[c + i] = if variance < 0.0 { 0.0 } else { variance as f32 };
    }
}

/// Two sums for each channel over all pixels.
struct Sums<'a, B> {
    pixels: usize,
    c: usize,
    body: B,
    out: &'a mut [f64],
}

/// The two terms that a pixel adds to the sums.
trait Terms {
    /// Parameters of a vector of channels, loaded once per block.
    type Params<S: Simd>: Copy;
    unsafe fn params<S: Simd, const PART: bool>(&self, channel: usize, n: usize)
    -> Self::Params<S>;
    unsafe fn add<S: Simd, const PART: bool, const AHEAD: bool>(
        &self,
        params: Self::Params<S>,
        sums: &mut [S::V; 2],
        pixel: usize,
        channel: usize,
        n: usize,
    );
}

impl<B: Terms> Kernel for Sums<'_, B> {
    type Output = ();

    #[inline(always)]
    unsafe fn run<S: Simd>(mut self) {
        // SAFETY: the caller's contract.
        unsafe {
            // Wide blocks are read in strips, which the hardware prefetcher does not predict.
            if self.c > VECTORS * S::LANES {
                self.blocks::<S, true>();
            } else {
                self.blocks::<S, false>();
            }
        }
    }
}

impl<B: Terms> Sums<'_, B> {
    #[inline(always)]
    unsafe fn blocks<S: Simd, const AHEAD: bool>(&mut self) {
        let mut start = 0;
        while start < self.pixels {
            let end = self.pixels.min(start + BLOCK);
            let mut at = 0;
            // SAFETY: channels stay below `c`.
            unsafe {
                while at + VECTORS * S::LANES <= self.c {
                    self.block::<S, VECTORS, false, AHEAD>(start, end, at, S::LANES);
                    at += VECTORS * S::LANES;
                }
                while at + S::LANES <= self.c {
                    self.block::<S, 1, false, AHEAD>(start, end, at, S::LANES);
                    at += S::LANES;
                }
                if at < self.c {
                    self.block::<S, 1, true, AHEAD>(start, end, at, self.c - at);
                }
            }
            start = end;
        }
    }

    #[inline(always)]
    unsafe fn block<S: Simd, const N: usize, const PART: bool, const AHEAD: bool>(
        &mut self,
        start: usize,
        end: usize,
        channel: usize,
        n: usize,
    ) {
        // SAFETY: the caller's channels exist; `Terms` read inside their operands.
        unsafe {
            // Two sets of sums, so that adjacent pixels do not wait for each other.
            let mut sums = [[[S::zero(); 2]; N]; 2];
            let mut params = [self.body.params::<S, PART>(channel, n); N];
            for (k, p) in params.iter_mut().enumerate() {
                *p = self.body.params::<S, PART>(channel + k * S::LANES, n);
            }
            let mut pixel = start;
            while pixel + 2 <= end {
                for (odd, sums) in sums.iter_mut().enumerate() {
                    for k in 0..N {
                        let at = channel + k * S::LANES;
                        self.body.add::<S, PART, AHEAD>(
                            params[k],
                            &mut sums[k],
                            pixel + odd,
                            at,
                            n,
                        );
                    }
                }
                pixel += 2;
            }
            if pixel < end {
                for k in 0..N {
                    let at = channel + k * S::LANES;
                    self.body.add::<S, PART, AHEAD>(params[k], &mut sums[0][k], pixel, at, n);
                }
            }
            let mut lanes = [0.0f32; MAX_LANES];
            let [even, odd] = sums;
            for (k, (even, odd)) in even.iter().zip(&odd).enumerate() {
                for (which, (a, b)) in even.iter().zip(odd).enumerate() {
                    S::store(lanes.as_mut_ptr(), S::add(*a, *b));
                    let at = which * self.c + channel + k * S::LANES;
                    for (out, lane) in self.out[at..at + n].iter_mut().zip(&lanes) {
                        *out += f64::from(*lane);
                    }
                }
            }
        }
    }
}

/// Loads channels of a pixel. If `AHEAD`, prefetches those of the next block.
#[inline(always)]
unsafe fn load_ahead<S: Simd, const PART: bool, const AHEAD: bool>(
    x: Src,
    pixel: usize,
    channel: usize,
    n: usize,
) -> S::V {
    // SAFETY: the pixel and its channels exist; the hint may point anywhere.
    unsafe {
        let at = x.ptr.add(pixel * x.ld + channel);
        if AHEAD {
            prefetch(at.wrapping_add(BLOCK * x.ld));
        }
        load::<S, PART>(at, n)
    }
}

struct Moments {
    x: Src,
}

impl Terms for Moments {
    type Params<S: Simd> = ();

    #[inline(always)]
    unsafe fn params<S: Simd, const PART: bool>(&self, _: usize, _: usize) {}

    #[inline(always)]
    unsafe fn add<S: Simd, const PART: bool, const AHEAD: bool>(
        &self,
        (): (),
        sums: &mut [S::V; 2],
        pixel: usize,
        channel: usize,
        n: usize,
    ) {
        // SAFETY: the pixel and its channels exist.
        unsafe {
            let x = load_ahead::<S, PART, AHEAD>(self.x, pixel, channel, n);
            sums[0] = S::add(sums[0], x);
            sums[1] = S::fmadd(x, x, sums[1]);
        }
    }
}

/// A pass over the channels of all pixels.
struct Each<B> {
    pixels: usize,
    c: usize,
    body: B,
}

/// The processing of one vector of a pixel's channels or, if `PART`, of `n` of them.
trait PerVector {
    unsafe fn vector<S: Simd, const PART: bool>(&self, pixel: usize, channel: usize, n: usize);
}

impl<B: PerVector> Kernel for Each<B> {
    type Output = ();

    #[inline(always)]
    unsafe fn run<S: Simd>(self) {
        let whole = self.c - self.c % S::LANES;
        for pixel in 0..self.pixels {
            let mut at = 0;
            // SAFETY: channels stay below `c`.
            unsafe {
                while at < whole {
                    self.body.vector::<S, false>(pixel, at, S::LANES);
                    at += S::LANES;
                }
                if at < self.c {
                    self.body.vector::<S, true>(pixel, at, self.c - at);
                }
            }
        }
    }
}

/// A pass over the input of a normalisation.
#[derive(Clone, Copy, Debug)]
pub struct NormPass<'a> {
    /// The parameters.
    pub norm: BatchNorm<'a>,
    /// Number of pixels of every operand.
    pub pixels: usize,
    /// The input, before the normalisation.
    pub x: Src,
}

/// `y = x * scale + shift` and the ReLU, if any, in one pass. `scratch` holds `2c` floats.
///
/// # Safety
/// `pass.x` and `y` are valid for the pixels of `gamma.len()` channels; they may be the same, otherwise
/// they do not overlap.
pub unsafe fn normalize(isa: Isa, pass: &NormPass<'_>, y: Dst, scratch: &mut [f32]) {
    let NormPass { norm, pixels, x } = *pass;
    let c = norm.channels();
    let (scale, shift) = scratch[..2 * c].split_at_mut(c);
    norm.scale_shift(scale, shift);
    let (scale, shift) = (scale.as_ptr(), shift.as_ptr());
    if norm.relu {
        // SAFETY: the caller's contract; the other slices have the lengths computed above.
        unsafe {
            dispatch(isa, Each { pixels, c, body: Normalize::<true> { x, y, scale, shift } })
        };
    } else {
        // SAFETY: the caller's contract; the other slices have the lengths computed above.
        unsafe {
            dispatch(isa, Each { pixels, c, body: Normalize::<false> { x, y, scale, shift } })
        };
    }
}

struct Normalize<const RELU: bool> {
    x: Src,
    y: Dst,
    scale: *const f32,
    shift: *const f32,
}

impl<const RELU: bool> PerVector for Normalize<RELU> {
    #[inline(always)]
    unsafe fn vector<S: Simd, const PART: bool>(&self, pixel: usize, channel: usize, n: usize) {
        // SAFETY: the pixel and its channels exist.
        unsafe {
            let x = load::<S, PART>(self.x.ptr.add(pixel * self.x.ld + channel), n);
            let scale = load::<S, PART>(self.scale.add(channel), n);
            let shift = load::<S, PART>(self.shift.add(channel), n);
            let y = S::fmadd(x, scale, shift);
            let y = if RELU { S::max(S::zero(), y) } else { y };
            store::<S, PART>(self.y.ptr.add(pixel * self.y.ld + channel), y, n);
        }
    }
}

/// `dy` where the input of the ReLU is positive, computed as in [`Normalize`]; zero elsewhere.
#[inline(always)]
unsafe fn relu_masked<S: Simd>(dy: S::V, x: S::V, scale: S::V, shift: S::V) -> S::V {
    // SAFETY: the caller's contract.
    unsafe { S::select(S::gt(S::fmadd(x, scale, shift), S::zero()), dy, S::zero()) }
}

/// `Σ dy`, then `Σ dy·x̂`, of every channel into `out`. `wide` holds `2c` numbers, `scratch` `2c`.
///
/// # Safety
/// `dy` and `pass.x` are valid for the pixels of `gamma.len()` channels.
pub unsafe fn grad_sums(
    isa: Isa,
    pass: &NormPass<'_>,
    dy: Src,
    out: &mut [f32],
    wide: &mut [f64],
    scratch: &mut [f32],
) {
    let NormPass { norm, pixels, x } = *pass;
    let c = norm.channels();
    let (scale, shift) = scratch[..2 * c].split_at_mut(c);
    norm.scale_shift(scale, shift);
    let (mean, scale, shift) = (norm.stats.as_ptr(), scale.as_ptr(), shift.as_ptr());
    let sums = &mut wide[..2 * c];
    sums.fill(0.0);
    if norm.relu {
        let body = GradSums::<true> { dy, x, mean, scale, shift };
        // SAFETY: the caller's contract; the other slices have the lengths computed above.
        unsafe { dispatch(isa, Sums { pixels, c, body, out: sums }) };
    } else {
        let body = GradSums::<false> { dy, x, mean, scale, shift };
        // SAFETY: the caller's contract; the other slices have the lengths computed above.
        unsafe { dispatch(isa, Sums { pixels, c, body, out: sums }) };
    }
    for i in 0..c {
        out[i] = sums[i] as f32;
        out[c + i] = (sums[c + i] * norm.inverse_deviation(i)) as f32;
    }
}

struct GradSums<const RELU: bool> {
    dy: Src,
    x: Src,
    mean: *const f32,
    scale: *const f32,
    shift: *const f32,
}

impl<const RELU: bool> Terms for GradSums<RELU> {
    /// Mean, scale and shift.
    type Params<S: Simd> = [S::V; 3];

    #[inline(always)]
    unsafe fn params<S: Simd, const PART: bool>(&self, channel: usize, n: usize) -> [S::V; 3] {
        // SAFETY: the channels exist.
        unsafe {
            let at = [self.mean.add(channel), self.scale.add(channel), self.shift.add(channel)];
            [load::<S, PART>(at[0], n), load::<S, PART>(at[1], n), load::<S, PART>(at[2], n)]
        }
    }

    #[inline(always)]
    unsafe fn add<S: Simd, const PART: bool, const AHEAD: bool>(
        &self,
        [mean, scale, shift]: [S::V; 3],
        sums: &mut [S::V; 2],
        pixel: usize,
        channel: usize,
        n: usize,
    ) {
        // SAFETY: the pixel and its channels exist.
        unsafe {
            let dy = load_ahead::<S, PART, AHEAD>(self.dy, pixel, channel, n);
            let x = load_ahead::<S, PART, AHEAD>(self.x, pixel, channel, n);
            let dy = if RELU { relu_masked::<S>(dy, x, scale, shift) } else { dy };
            sums[0] = S::add(sums[0], dy);
            sums[1] = S::fmadd(dy, S::sub(x, mean), sums[1]);
        }
    }
}

/// The sums of [`grad_sums`], reduced over all numbers of a channel.
#[derive(Clone, Copy)]
pub struct ReducedSums<'a> {
    /// `Σdy` and `Σdy·(x - mean)` of every channel.
    pub sums: &'a [f32],
    /// The numbers of a channel.
    pub count: f64,
}

/// `dx = gamma/σ · (dy - Σdy/N - x̂ · Σdy·x̂/N)` with sums over `N` numbers.
/// `scratch` holds `4c` floats.
///
/// # Safety
/// All operands are valid for the pixels of `gamma.len()` channels. `dx` may be `dy` or `pass.x`, otherwise
/// it overlaps neither.
pub unsafe fn grad_input(
    isa: Isa,
    pass: &NormPass<'_>,
    dy: Src,
    reduced: ReducedSums<'_>,
    dx: Dst,
    scratch: &mut [f32],
) {
    let NormPass { norm, pixels, x } = *pass;
    let ReducedSums { sums, count } = reduced;
    let c = norm.channels();
    let (scale, rest) = scratch[..4 * c].split_at_mut(c);
    let (shift, rest) = rest.split_at_mut(c);
    let (slope, offset) = rest.split_at_mut(c);
    norm.scale_shift(scale, shift);
    // With k = gamma/σ: dx = k·dy + slope·x + offset.
    let share = if count > 0.0 { 1.0 / count } else { 0.0 };
    for i in 0..c {
        let inverse = norm.inverse_deviation(i);
        let k = f64::from(norm.gamma[i]) * inverse;
        let steep = -k * inverse * share * f64::from(sums[c + i]);
        slope[i] = steep as f32;
        let mean = f64::from(norm.stats[i]);
        offset[i] = (-k * share * f64::from(sums[i]) - f64::from(slope[i]) * mean) as f32;
    }
    let (scale, shift) = (scale.as_ptr(), shift.as_ptr());
    let (slope, offset) = (slope.as_ptr(), offset.as_ptr());
    if norm.relu {
        let body = GradInput::<true> { dy, x, dx, scale, shift, slope, offset };
        // SAFETY: the caller's contract; the other slices have the lengths computed above.
        unsafe { dispatch(isa, Each { pixels, c, body }) };
    } else {
        let body = GradInput::<false> { dy, x, dx, scale, shift, slope, offset };
        // SAFETY: the caller's contract; the other slices have the lengths computed above.
        unsafe { dispatch(isa, Each { pixels, c, body }) };
    }
}

struct GradInput<const RELU: bool> {
    dy: Src,
    x: Src,
    dx: Dst,
    scale: *const f32,
    shift: *const f32,
    slope: *const f32,
    offset: *const f32,
}

impl<const RELU: bool> PerVector for GradInput<RELU> {
    #[inline(always)]
    unsafe fn vector<S: Simd, const PART: bool>(&self, pixel: usize, channel: usize, n: usize) {
        // SAFETY: the pixel and its channels exist.
        unsafe {
            let dy = load::<S, PART>(self.dy.ptr.add(pixel * self.dy.ld + channel), n);
            let x = load::<S, PART>(self.x.ptr.add(pixel * self.x.ld + channel), n);
            let scale = load::<S, PART>(self.scale.add(channel), n);
            let shift = load::<S, PART>(self.shift.add(channel), n);
            let slope = load::<S, PART>(self.slope.add(channel), n);
            let offset = load::<S, PART>(self.offset.add(channel), n);
            let dy = if RELU { relu_masked::<S>(dy, x, scale, shift) } else { dy };
            let dx = S::fmadd(dy, scale, S::fmadd(x, slope, offset));
            store::<S, PART>(self.dx.ptr.add(pixel * self.dx.ld + channel), dx, n);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernels::math::testing::{close, numbers, spread, unspread};

    #[test]
    fn normalisation_matches_plain_loops() {
        for isa in Isa::available() {
            for (c, pixels) in [(1, 301), (3, 77), (16, 64), (83, 129), (128, 65), (5, 1)] {
                for relu in [false, true] {
                    for gap in [0, 7] {
                        check(isa, c, pixels, relu, c + gap);
                    }
                }
            }
        }
    }

    fn check(isa: Isa, c: usize, pixels: usize, relu: bool, ld: usize) {
        let what = |part: &str| format!("{part} c {c} pixels {pixels} relu {relu} ld {ld}");
        let x: Vec<f32> = numbers(pixels * c, 1).iter().map(|v| v * 2.0 + 1.5).collect();
        let dy = numbers(pixels * c, 2);
        let (gamma, beta) = (numbers(c, 3), numbers(c, 4));
        let (epsilon, count) = (1e-3, pixels as f64);
        let src = |x: &[f32]| Src { ptr: x.as_ptr(), ld };
        let column = |x: &[f32], i: usize| -> Vec<f64> {
            x.iter().skip(i).step_by(c).map(|v| f64::from(*v)).collect()
        };
        let (sx, sdy) = (spread(&x, c, ld), spread(&dy, c, ld));
        let mut y = spread(&vec![0.0; x.len()], c, ld);
        let mut dx = y.clone();
        let mut wide = vec![f64::NAN; 2 * c];
        let mut scratch = vec![f32::NAN; 4 * c];
        let (mut st, mut sums) = (vec![0.0; 2 * c], vec![0.0; 2 * c]);
        // SAFETY: all have `pixels` pixels with the same stride.
        let norm = unsafe {
            moments(isa, pixels, c, src(&sx), &mut wide);
            stats(&wide, count, &mut st);
            let norm = BatchNorm { stats: &st, gamma: &gamma, beta: &beta, epsilon, relu };
            let to = Dst { ptr: y.as_mut_ptr(), ld };
            let pass = NormPass { norm, pixels, x: src(&sx) };
            normalize(isa, &pass, to, &mut scratch);
            grad_sums(isa, &pass, src(&sdy), &mut sums, &mut wide, &mut scratch);
            let to = Dst { ptr: dx.as_mut_ptr(), ld };
            let reduced = ReducedSums { sums: &sums, count };
            grad_input(isa, &pass, src(&sdy), reduced, to, &mut scratch);
            norm
        };
        let (y, dx) = (unspread(&y, c, ld), unspread(&dx, c, ld));
        for i in 0..c {
            let (xs, dys) = (column(&x, i), column(&dy, i));
            let mean = xs.iter().sum::<f64>() / count;
            let variance = xs.iter().map(|x| (x - mean).powi(2)).sum::<f64>() / count;
            close(
                isa,
                &what("stats"),
                &[norm.stats[i], norm.stats[c + i]],
                &[mean, variance],
                2e-6,
            );
            let inverse = 1.0 / (variance + epsilon).sqrt();
            let (g, b) = (f64::from(gamma[i]), f64::from(beta[i]));
            let hat: Vec<f64> = xs.iter().map(|x| (x - mean) * inverse).collect();
            let want: Vec<f64> = hat.iter().map(|h| h * g + b).collect();
            let got: Vec<f32> = y.iter().skip(i).step_by(c).copied().collect();
            // Masks follow the computed values. If rounding decides, either is correct.
            let open: Vec<bool> = (0..pixels).map(|p| !relu || got[p] > 0.0).collect();
            let want: Vec<f64> = want.iter().map(|w| if relu { w.max(0.0) } else { *w }).collect();
            close(isa, &what("y"), &got, &want, 1e-5);
            let dz: Vec<f64> = (0..pixels).map(|p| if open[p] { dys[p] } else { 0.0 }).collect();
            let (s0, s1) = (dz.iter().sum::<f64>(), dz.iter().zip(&hat).map(|(a, b)| a * b).sum());
            close(isa, &what("sums"), &[sums[i], sums[c + i]], &[s0, s1], 2e-4);
            let (m0, m1): (f64, f64) = (s0 / count, s1 / count);
            let want: Vec<f64> =
                (0..pixels).map(|p| g * inverse * (dz[p] - m0 - hat[p] * m1)).collect();
            let got: Vec<f32> = dx.iter().skip(i).step_by(c).copied().collect();
            close(isa, &what("dx"), &got, &want, 2e-5 * inverse.max(1.0));
        }
    }

    #[test]
    fn masks_agree_exactly() {
        // Values that normalise to zero up to rounding.
        for isa in Isa::available() {
            let c = 19;
            let x: Vec<f32> = (0..c * 40).map(|i| 0.3 + (i / c) as f32 * 3e-8).collect();
            let (gamma, beta) = (vec![1.7; c], vec![0.0; c]);
            let st: Vec<f32> = [vec![0.3 + 6e-7; c], vec![0.9; c]].concat();
            let norm =
                BatchNorm { stats: &st, gamma: &gamma, beta: &beta, epsilon: 1e-3, relu: true };
            let ones = vec![1.0; x.len()];
            let mut y = vec![0.0; x.len()];
            let (mut sums, mut wide) = (vec![0.0; 2 * c], vec![0.0; 2 * c]);
            let mut scratch = vec![0.0; 2 * c];
            let src = |x: &[f32]| Src { ptr: x.as_ptr(), ld: c };
            // SAFETY: all have 40 pixels.
            unsafe {
                let to = Dst { ptr: y.as_mut_ptr(), ld: c };
                let pass = NormPass { norm, pixels: 40, x: src(&x) };
                normalize(isa, &pass, to, &mut scratch);
                grad_sums(isa, &pass, src(&ones), &mut sums, &mut wide, &mut scratch);
            }
            for (i, sum) in sums[..c].iter().enumerate() {
                let open = y.iter().skip(i).step_by(c).filter(|v| **v > 0.0).count();
                assert_eq!(*sum, open as f32, "{isa}");
                assert!(open > 0 && open < 40);
            }
        }
    }

    #[test]
    fn nothing_to_normalise() {
        let mut out = [7.0; 4];
        let none = Src { ptr: std::ptr::null(), ld: 2 };
        // SAFETY: there are no pixels.
        unsafe { moments(Isa::PORTABLE, 0, 2, none, &mut out) };
        let mut st = [7.0; 4];
        stats(&out, 0.0, &mut st);
        assert_eq!(st, [0.0; 4]);
        stats(&[3.0, f64::NAN, 2.9, 1.0], 3.0, &mut st);
        assert!(st[0] == 1.0 && st[2] == 0.0 && st[1].is_nan() && st[3].is_nan());
    }
}
