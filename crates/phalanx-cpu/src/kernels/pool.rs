//! Pooling over windows, vectorised over channels. Padding is ignored by maxima and averages. The maximum
//! of a window with a NaN is NaN.

use phalanx_graph::ConvGeom;
use phalanx_graph::ops::PoolKind;

use super::layout::{Dst, Src, zero};
use super::math::{self, load, store};
use crate::simd::{Isa, Kernel, Simd, dispatch};

/// Number of channel vectors processed together.
const VECTORS: usize = 4;

/// The taps of one window that lie inside the image.
#[derive(Clone, Copy)]
struct Window {
    /// Pixel of the first tap, within its image.
    start: usize,
    rows: usize,
    columns: usize,
    /// Pixels from one row of taps to the next, and from one tap to the next.
    row_step: usize,
    column_step: usize,
}

/// The first tap inside the image and the number of taps inside, for the window at `at` along an axis.
#[inline(always)]
fn clip(geom: &ConvGeom, axis: usize, at: usize) -> (usize, usize) {
    let (size, step) = (geom.input[axis], geom.dilation[axis]);
    let (start, pad) = (at * geom.stride[axis], geom.pad[axis]);
    let skipped = pad.saturating_sub(start).div_ceil(step).min(geom.kernel[axis]);
    let first = start + skipped * step;
    // A window may lie entirely in the padding.
    let fit = (size + pad).saturating_sub(first).div_ceil(step);
    (first.saturating_sub(pad), fit.min(geom.kernel[axis] - skipped))
}

impl Window {
    #[inline(always)]
    fn new(geom: &ConvGeom, i: usize, j: usize) -> Window {
        let ((top, rows), (left, columns)) = (clip(geom, 0, i), clip(geom, 1, j));
        Window {
            start: top * geom.input[1] + left,
            rows,
            columns,
            row_step: geom.dilation[0] * geom.input[1],
            column_step: geom.dilation[1],
        }
    }

    #[inline(always)]
    fn pixel(&self, row: usize, column: usize) -> usize {
        self.start + row * self.row_step + column * self.column_step
    }

    #[inline(always)]
    fn taps(&self) -> usize {
        self.rows * self.columns
    }
}

/// The windows of a batch of images.
#[derive(Clone, Copy, Debug)]
pub struct Windows<'a> {
    /// Shapes of one image.
    pub geom: &'a ConvGeom,
    /// Number of images.
    pub rows: usize,
}

/// A pass over all windows; `K` processes one of them.
struct Pass<'a, K> {
    windows: Windows<'a>,
    window: K,
}

/// The processing of one window, for `N` vectors of channels or, if `PART`, for `n` channels.
trait PerWindow {
    /// `image` is the first pixel of the input image, `pixel` the output pixel.
    unsafe fn chunk<S: Simd, const N: usize, const PART: bool>(
        &self,
        w: &Window,
        image: usize,
        pixel: usize,
        channel: usize,
        n: usize,
    );
}

impl<K: PerWindow> Kernel for Pass<'_, K> {
    type Output = ();

    #[inline(always)]
    unsafe fn run<S: Simd>(self) {
        let Windows { geom, rows } = self.windows;
        let [h, w, c] = geom.output;
        let image_pixels = geom.input[0] * geom.input[1];
        let mut pixel = 0;
        for row in 0..rows {
            for i in 0..h {
                for j in 0..w {
                    let window = Window::new(geom, i, j);
                    let image = row * image_pixels;
                    let mut at = 0;
                    // SAFETY: the taps lie inside the image, channels stay below `c`.
                    unsafe {
                        let k = &self.window;
                        while at + VECTORS * S::LANES <= c {
                            k.chunk::<S, VECTORS, false>(&window, image, pixel, at, S::LANES);
                            at += VECTORS * S::LANES;
                        }
                        while at + S::LANES <= c {
                            k.chunk::<S, 1, false>(&window, image, pixel, at, S::LANES);
                            at += S::LANES;
                        }
                        if at < c {
                            k.chunk::<S, 1, true>(&window, image, pixel, at, c - at);
                        }
                    }
                    pixel += 1;
                }
            }
        }
    }
}

/// The largest element or the mean of each window.
///
/// # Safety
/// `x` and `y` are valid for the images and do not overlap.
pub unsafe fn pool(isa: Isa, kind: PoolKind, windows: Windows<'_>, x: Src, y: Dst) {
    match kind {
        // SAFETY: the caller's contract.
        PoolKind::Max => unsafe { dispatch(isa, Pass { windows, window: Max { x, y } }) },
        // SAFETY: the caller's contract.
        PoolKind::Average => unsafe { dispatch(isa, Pass { windows, window: Average { x, y } }) },
    }
}

struct Max {
    x: Src,
    y: Dst,
}

impl PerWindow for Max {
    #[inline(always)]
    unsafe fn chunk<S: Simd, const N: usize, const PART: bool>(
        &self,
        w: &Window,
        image: usize,
        pixel: usize,
        channel: usize,
        n: usize,
    ) {
        // SAFETY: the pass stays inside the images.
        unsafe {
            let mut best = [S::splat(f32::NEG_INFINITY); N];
            for r in 0..w.rows {
                for c in 0..w.columns {
                    let x = self.x.ptr.add((image + w.pixel(r, c)) * self.x.ld + channel);
                    for (k, best) in best.iter_mut().enumerate() {
                        *best = math::max::<S>(*best, load::<S, PART>(x.add(k * S::LANES), n));
                    }
                }
            }
            let y = self.y.ptr.add(pixel * self.y.ld + channel);
            for (k, best) in best.iter().enumerate() {
                store::<S, PART>(y.add(k * S::LANES), *best, n);
            }
        }
    }
}

struct Average {
    x: Src,
    y: Dst,
}

impl PerWindow for Average {
    #[inline(always)]
    unsafe fn chunk<S: Simd, const N: usize, const PART: bool>(
        &self,
        w: &Window,
        image: usize,
        pixel: usize,
        channel: usize,
        n: usize,
    ) {
        // SAFETY: the pass stays inside the images.
        unsafe {
            let mut sum = [S::zero(); N];
            for r in 0..w.rows {
                for c in 0..w.columns {
                    let x = self.x.ptr.add((image + w.pixel(r, c)) * self.x.ld + channel);
                    for (k, sum) in sum.iter_mut().enumerate() {
                        *sum = S::add(*sum, load::<S, PART>(x.add(k * S::LANES), n));
                    }
                }
            }
            let share = S::splat(1.0 / w.taps().max(1) as f32);
            let y = self.y.ptr.add(pixel * self.y.ld + channel);
            for (k, sum) in sum.iter().enumerate() {
                store::<S, PART>(y.add(k * S::LANES), S::mul(*sum, share), n);
            }
        }
    }
}

/// Whether windows are disjoint, and whether they are disjoint and cover the whole image.
fn coverage(geom: &ConvGeom) -> (bool, bool) {
    let disjoint = (0..2).all(|a| {
        let span = (geom.kernel[a] - 1) * geom.dilation[a] + 1;
        geom.stride[a] >= span
    });
    let covered = (0..2).all(|a| {
        let reach = geom.output[a] * geom.stride[a];
        geom.dilation[a] == 1 && geom.kernel[a] == geom.stride[a] && reach >= geom.input[a]
    });
    (disjoint, disjoint && covered)
}

/// Zeroes `dx` unless every pixel will be overwritten. Returns true if windows are disjoint.
unsafe fn prepare(Windows { geom, rows }: Windows<'_>, dx: Dst) -> bool {
    let (disjoint, overwritten) = coverage(geom);
    if !overwritten {
        let [h, w, c] = geom.input;
        // SAFETY: the caller's `dx` is valid for `rows` images.
        unsafe { zero(rows * h * w, c, dx) };
    }
    disjoint
}

/// Derivative of max pooling: `dy` goes to the first maximum of each window in row-major order.
///
/// # Safety
/// All operands are valid for the images, and `dx` overlaps none of the others.
pub unsafe fn max_grad(isa: Isa, windows: Windows<'_>, x: Src, y: Src, dy: Src, dx: Dst) {
    // SAFETY: the caller's contract.
    let disjoint = unsafe { prepare(windows, dx) };
    if disjoint {
        // SAFETY: the caller's contract.
        unsafe { dispatch(isa, Pass { windows, window: MaxGrad::<false> { x, y, dy, dx } }) };
    } else {
        // SAFETY: the caller's contract.
        unsafe { dispatch(isa, Pass { windows, window: MaxGrad::<true> { x, y, dy, dx } }) };
    }
}

/// Adds to `dx` if `ADD`, else overwrites it.
struct MaxGrad<const ADD: bool> {
    x: Src,
    y: Src,
    dy: Src,
    dx: Dst,
}

impl<const ADD: bool> PerWindow for MaxGrad<ADD> {
    #[inline(always)]
    unsafe fn chunk<S: Simd, const N: usize, const PART: bool>(
        &self,
        w: &Window,
        image: usize,
        pixel: usize,
        channel: usize,
        n: usize,
    ) {
        // SAFETY: the pass stays inside the images.
        unsafe {
            let (y, dy) = (
                self.y.ptr.add(pixel * self.y.ld + channel),
                self.dy.ptr.add(pixel * self.dy.ld + channel),
            );
            let mut best = [S::zero(); N];
            let mut rest = [S::zero(); N];
            for k in 0..N {
                best[k] = load::<S, PART>(y.add(k * S::LANES), n);
                rest[k] = load::<S, PART>(dy.add(k * S::LANES), n);
            }
            for r in 0..w.rows {
                for c in 0..w.columns {
                    let at = image + w.pixel(r, c);
                    let x = self.x.ptr.add(at * self.x.ld + channel);
                    let dx = self.dx.ptr.add(at * self.dx.ld + channel);
                    for k in 0..N {
                        let v = load::<S, PART>(x.add(k * S::LANES), n);
                        // The first match takes all of `dy`, the others get zero. NaN is a match.
                        let g = S::select(S::eq(v, best[k]), rest[k], S::zero());
                        let g = S::select(S::eq(v, v), g, rest[k]);
                        let left = S::select(S::eq(v, best[k]), S::zero(), rest[k]);
                        rest[k] = S::select(S::eq(v, v), left, S::zero());
                        let to = dx.add(k * S::LANES);
                        let g = if ADD { S::add(load::<S, PART>(to, n), g) } else { g };
                        store::<S, PART>(to, g, n);
                    }
                }
            }
        }
    }
}

/// Derivative of average pooling: `dy` goes evenly to the elements of each window.
///
/// # Safety
/// Both operands are valid for the images and do not overlap.
pub unsafe fn average_grad(isa: Isa, windows: Windows<'_>, dy: Src, dx: Dst) {
    // SAFETY: the caller's contract.
    let disjoint = unsafe { prepare(windows, dx) };
    if disjoint {
        // SAFETY: the caller's contract.
        unsafe { dispatch(isa, Pass { windows, window: AverageGrad::<false> { dy, dx } }) };
    } else {
        // SAFETY: the caller's contract.
        unsafe { dispatch(isa, Pass { windows, window: AverageGrad::<true> { dy, dx } }) };
    }
}

/// Adds to `dx` if `ADD`, else overwrites it.
struct AverageGrad<const ADD: bool> {
    dy: Src,
    dx: Dst,
}

impl<const ADD: bool> PerWindow for AverageGrad<ADD> {
    #[inline(always)]
    unsafe fn chunk<S: Simd, const N: usize, const PART: bool>(
        &self,
        w: &Window,
        image: usize,
        pixel: usize,
        channel: usize,
        n: usize,
    ) {
        // SAFETY: the pass stays inside the images.
        unsafe {
            let share = S::splat(1.0 / w.taps().max(1) as f32);
            let dy = self.dy.ptr.add(pixel * self.dy.ld + channel);
            let mut g = [S::zero(); N];
            for (k, g) in g.iter_mut().enumerate() {
                *g = S::mul(load::<S, PART>(dy.add(k * S::LANES), n), share);
            }
            for r in 0..w.rows {
                for c in 0..w.columns {
                    let dx = self.dx.ptr.add((image + w.pixel(r, c)) * self.dx.ld + channel);
                    for (k, g) in g.iter().enumerate() {
                        let to = dx.add(k * S::LANES);
                        let g = if ADD { S::add(load::<S, PART>(to, n), *g) } else { *g };
                        store::<S, PART>(to, g, n);
                    }
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernels::math::testing::{close, numbers, spread, unspread};
    use phalanx_graph::Padding;

    /// Input elements of each output's window, in row-major order.
    fn windows(g: &ConvGeom, rows: usize) -> Vec<Vec<usize>> {
        let [h, w, c] = g.input;
        let mut all = Vec::new();
        for o in 0..rows * g.output_len() {
            let (k, j, i) = (o % c, o / c % g.output[1], o / c / g.output[1] % g.output[0]);
            let row = o / g.output_len();
            let mut window = Vec::new();
            for a in 0..g.kernel[0] {
                for b in 0..g.kernel[1] {
                    let y = (i * g.stride[0] + a * g.dilation[0]).checked_sub(g.pad[0]);
                    let x = (j * g.stride[1] + b * g.dilation[1]).checked_sub(g.pad[1]);
                    if let (Some(y), Some(x)) = (y.filter(|y| *y < h), x.filter(|x| *x < w)) {
                        window.push(((row * h + y) * w + x) * c + k);
                    }
                }
            }
            all.push(window);
        }
        all
    }

    fn geometries() -> Vec<ConvGeom> {
        let mut all = Vec::new();
        for c in [3, 16, 83] {
            for (size, kernel, stride, dilation) in [
                ([8, 6], [2, 2], [2, 2], [1, 1]),
                ([7, 9], [3, 3], [2, 2], [1, 1]),
                ([7, 5], [2, 3], [3, 3], [1, 1]),
                ([5, 5], [3, 3], [1, 1], [1, 1]),
                ([9, 8], [2, 3], [1, 1], [2, 2]),
                ([3, 4], [5, 5], [2, 1], [1, 1]),
            ] {
                for padding in [Padding::Valid, Padding::Same] {
                    let input = [size[0], size[1], c];
                    let window = phalanx_graph::Window {
                        dilation,
                        ..phalanx_graph::Window::new(kernel, stride, padding)
                    };
                    all.extend(ConvGeom::new(input, c, window));
                }
            }
        }
        all
    }

    #[test]
    fn pools_and_derivatives() {
        for isa in Isa::available() {
            for g in geometries() {
                for rows in [0, 1, 2] {
                    check(isa, &g, rows);
                }
            }
        }
    }

    fn check(isa: Isa, g: &ConvGeom, rows: usize) {
        let c = g.input[2];
        // Few distinct numbers, so that ties are common.
        let x: Vec<f32> =
            numbers(rows * g.input_len(), 1).iter().map(|v| (v * 3.0).round()).collect();
        let dy = numbers(rows * g.output_len(), 2);
        let (mut max, mut mean) = (vec![], vec![]);
        let (mut dmax, mut dmean) = (vec![0.0; x.len()], vec![0.0; x.len()]);
        for (window, dy) in windows(g, rows).iter().zip(&dy) {
            let mut first = window[0];
            window.iter().for_each(|i| first = if x[*i] > x[first] { *i } else { first });
            let count = window.len() as f64;
            max.push(f64::from(x[first]));
            mean.push(window.iter().map(|i| f64::from(x[*i])).sum::<f64>() / count);
            dmax[first] += f64::from(*dy);
            window.iter().for_each(|i| dmean[*i] += f64::from(*dy) / count);
        }
        for gap in [0, 3] {
            let ld = c + gap;
            let (sx, sdy) = (spread(&x, c, ld), spread(&dy, c, ld));
            let mut y = spread(&vec![9.0; dy.len()], c, ld);
            let mut dx = spread(&vec![9.0; x.len()], c, ld);
            let src = |x: &[f32]| Src { ptr: x.as_ptr(), ld };
            let what = format!("{g} {:?} rows {rows}", g.input);
            let windows = Windows { geom: g, rows };
            // SAFETY: all have `rows` images with the same distance between pixels.
            unsafe {
                let to = Dst { ptr: y.as_mut_ptr(), ld };
                pool(isa, PoolKind::Average, windows, src(&sx), to);
                close(isa, &format!("mean {what}"), &unspread(&y, c, ld), &mean, 1e-6);
                pool(isa, PoolKind::Max, windows, src(&sx), to);
                close(isa, &format!("max {what}"), &unspread(&y, c, ld), &max, 0.0);
                let to = Dst { ptr: dx.as_mut_ptr(), ld };
                max_grad(isa, windows, src(&sx), src(&y), src(&sdy), to);
                close(isa, &format!("max' {what}"), &unspread(&dx, c, ld), &dmax, 2e-6);
                average_grad(isa, windows, src(&sdy), to);
                close(isa, &format!("mean' {what}"), &unspread(&dx, c, ld), &dmean, 2e-6);
            }
        }
    }

    #[test]
    fn nan_wins() {
        let window = phalanx_graph::Window::new([2, 2], [2, 2], Padding::Valid);
        let g = ConvGeom::new([2, 2, 1], 1, window).unwrap();
        let windows = Windows { geom: &g, rows: 1 };
        for isa in Isa::available() {
            let x = [1.0, f32::NAN, 5.0, f32::NAN];
            let (mut y, mut dx, dy) = ([0.0], [9.0; 4], [3.0]);
            let src = |x: &[f32]| Src { ptr: x.as_ptr(), ld: 1 };
            // SAFETY: one image of four pixels and its result.
            unsafe {
                let to = Dst { ptr: y.as_mut_ptr(), ld: 1 };
                pool(isa, PoolKind::Max, windows, src(&x), to);
                let to = Dst { ptr: dx.as_mut_ptr(), ld: 1 };
                max_grad(isa, windows, src(&x), src(&y), src(&dy), to);
            }
            assert!(y[0].is_nan());
            assert_eq!(dx, [0.0, 3.0, 0.0, 0.0]);
        }
    }
}
