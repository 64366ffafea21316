//! Layout kernels: transpose, concat, slice, pad and broadcast are strided copies; upsampling repeats or
//! interpolates pixels. Copies move 32-bit elements of any type; integers are moved as the bits of floats.

use super::math::{load, store};
use crate::simd::{Isa, Kernel, Simd, dispatch};
use phalanx_graph::MAX_RANK;
use std::ops::Range;

/// A readable value whose pixels (all but the last axis, flattened) start `ld` floats apart.
#[derive(Clone, Copy, Debug)]
pub struct Src {
    /// The first pixel.
    pub ptr: *const f32,
    /// Floats from one pixel to the next.
    pub ld: usize,
}

impl Src {
    /// The value without its first `pixels` pixels.
    pub(crate) fn skip_pixels(self, pixels: usize) -> Src {
        Src { ptr: self.ptr.wrapping_add(pixels * self.ld), ld: self.ld }
    }
}

/// A writable value whose pixels start `ld` floats apart. Gaps between pixels are not written.
#[derive(Clone, Copy, Debug)]
pub struct Dst {
    /// The first pixel.
    pub ptr: *mut f32,
    /// Floats from one pixel to the next.
    pub ld: usize,
}

impl Dst {
    /// The value without its first `pixels` pixels.
    pub(crate) fn skip_pixels(self, pixels: usize) -> Dst {
        Dst { ptr: self.ptr.wrapping_add(pixels * self.ld), ld: self.ld }
    }
}

/// One loop of a copy: the number of iterations, and the strides in source and destination.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Axis {
    count: usize,
    src: usize,
    dst: usize,
}

/// The nested loops of a copy, outermost first. Loops are merged if possible.
#[derive(Clone, Copy, Debug)]
pub(super) struct Copy {
    axes: [Axis; MAX_RANK + 1],
    len: usize,
}

impl Copy {
    pub(super) fn new() -> Copy {
        Copy { axes: [Axis { count: 1, src: 0, dst: 0 }; MAX_RANK + 1], len: 0 }
    }

    /// Adds a loop inside the others.
    pub(super) fn push(&mut self, count: usize, src: usize, dst: usize) {
        if count == 1 {
            return;
        }
        if let Some(outer) = self.axes[..self.len].last_mut()
            && outer.src == count * src
            && outer.dst == count * dst
        {
            *outer = Axis { count: outer.count * count, src, dst };
            return;
        }
        assert!(self.len <= MAX_RANK, "a value has at most {MAX_RANK} axes");
        self.axes[self.len] = Axis { count, src, dst };
        self.len += 1;
    }

    /// Runs the copy.
    ///
    /// # Safety
    /// Both pointers are valid for the elements that the loops access, and source and destination do not
    /// overlap.
    pub(super) unsafe fn run(&self, isa: Isa, src: *const f32, dst: *mut f32) {
        // SAFETY: the caller's contract.
        unsafe { copy_axes(isa, &self.axes[..self.len], src, dst) }
    }
}

unsafe fn copy_axes(isa: Isa, axes: &[Axis], src: *const f32, dst: *mut f32) {
    // SAFETY: the caller's contract.
    unsafe {
        match axes {
            [] => *dst = *src,
            [a] if a.src == 1 && a.dst == 1 => std::ptr::copy_nonoverlapping(src, dst, a.count),
            [a] => {
                for i in 0..a.count {
                    *dst.add(i * a.dst) = *src.add(i * a.src);
                }
            }
            [a, b] if a.src == 1 && b.dst == 1 && b.src > 1 => {
                dispatch(isa, Transpose { a: *a, b: *b, src, dst });
            }
            [a, inner @ ..] => {
                for i in 0..a.count {
                    copy_axes(isa, inner, src.add(i * a.src), dst.add(i * a.dst));
                }
            }
        }
    }
}

/// `dst[i, j] = src[j, i]` for two axes, in square blocks.
struct Transpose {
    a: Axis,
    b: Axis,
    src: *const f32,
    dst: *mut f32,
}

impl Kernel for Transpose {
    type Output = ();

    #[inline(always)]
    unsafe fn run<S: Simd>(self) {
        let Transpose { a, b, src, dst } = self;
        for i in (0..a.count).step_by(S::LANES) {
            for j in (0..b.count).step_by(S::LANES) {
                // SAFETY: the block lies inside both matrices.
                unsafe {
                    if i + S::LANES <= a.count && j + S::LANES <= b.count {
                        S::transpose(src.add(j * b.src + i), b.src, dst.add(i * a.dst + j), a.dst);
                        continue;
                    }
                    for i in i..a.count.min(i + S::LANES) {
                        for j in j..b.count.min(j + S::LANES) {
                            *dst.add(i * a.dst + j) = *src.add(j * b.src + i);
                        }
                    }
                }
            }
        }
    }
}

/// Numbers between neighbours of a value.
#[derive(Clone, Copy)]
struct Strides {
    axes: [usize; MAX_RANK],
    rows: usize,
}

fn strides(dims: &[usize], ld: usize) -> Strides {
    assert!(dims.len() <= MAX_RANK, "a value has at most {MAX_RANK} axes");
    let mut axes = [1; MAX_RANK];
    let mut next = ld;
    for i in (0..dims.len().saturating_sub(1)).rev() {
        axes[i] = next;
        next *= dims[i];
    }
    Strides { axes, rows: next }
}

/// Axis `i` of `y` is axis `perm[i]` of `x`, which has `dims`.
///
/// # Safety
/// `x` and `y` are valid for `rows` rows and do not overlap.
pub unsafe fn transpose(isa: Isa, rows: usize, dims: &[usize], perm: &[usize], x: Src, y: Dst) {
    let mut out = [0; MAX_RANK];
    let from = strides(dims, x.ld);
    for (d, p) in out.iter_mut().zip(perm) {
        *d = dims[*p];
    }
    let to = strides(&out[..perm.len()], y.ld);
    let mut copy = Copy::new();
    copy.push(rows, from.rows, to.rows);
    for (i, p) in perm.iter().enumerate() {
        copy.push(dims[*p], from.axes[*p], to.axes[i]);
    }
    // SAFETY: the caller's contract.
    unsafe { copy.run(isa, x.ptr, y.ptr) }
}

/// Copies a block of `dims` between two values with their own strides.
unsafe fn copy_block(
    rows: usize,
    dims: &[usize],
    [from, to]: [Strides; 2],
    x: *const f32,
    y: *mut f32,
) {
    let mut copy = Copy::new();
    copy.push(rows, from.rows, to.rows);
    for (i, d) in dims.iter().enumerate() {
        copy.push(*d, from.axes[i], to.axes[i]);
    }
    // SAFETY: the caller's contract. No axes change places, so the instruction set does not matter.
    unsafe { copy.run(Isa::PORTABLE, x, y) }
}

fn with_axis(dims: &[usize], axis: usize, len: usize) -> [usize; MAX_RANK] {
    let mut out = [0; MAX_RANK];
    out[..dims.len()].copy_from_slice(dims);
    out[axis] = len;
    out
}

/// `y = x[.., part, ..]` along `axis`, where `x` has `dims`.
///
/// # Safety
/// `x` and `y` are valid for `rows` rows and do not overlap.
pub unsafe fn slice(rows: usize, dims: &[usize], axis: usize, part: Range<usize>, x: Src, y: Dst) {
    let block = with_axis(dims, axis, part.len());
    let block = &block[..dims.len()];
    let from = strides(dims, x.ld);
    // SAFETY: the caller's contract.
    unsafe {
        let x = x.ptr.add(part.start * from.axes[axis]);
        copy_block(rows, block, [from, strides(block, y.ld)], x, y.ptr);
    }
}

/// Copies one operand of a concatenation: `y[.., part, ..] = x` along `axis`, where `y` has `dims`.
///
/// # Safety
/// `x` and `y` are valid for `rows` rows and do not overlap.
pub unsafe fn concat_part(
    rows: usize,
    dims: &[usize],
    axis: usize,
    part: Range<usize>,
    x: Src,
    y: Dst,
) {
    let block = with_axis(dims, axis, part.len());
    let block = &block[..dims.len()];
    let to = strides(dims, y.ld);
    // SAFETY: the caller's contract.
    unsafe {
        let y = y.ptr.add(part.start * to.axes[axis]);
        copy_block(rows, block, [strides(block, x.ld), to], x.ptr, y);
    }
}

/// `x` of `dims` with zeros before and after each axis.
///
/// # Safety
/// `x` and `y` are valid for `rows` rows and do not overlap.
pub unsafe fn pad(rows: usize, dims: &[usize], before: &[usize], after: &[usize], x: Src, y: Dst) {
    let mut out = [0; MAX_RANK];
    for i in 0..dims.len() {
        out[i] = before[i] + dims[i] + after[i];
    }
    let out = &out[..dims.len()];
    let width = out.last().copied().unwrap_or(1);
    let pixels = rows * out.iter().rev().skip(1).product::<usize>();
    let to = strides(out, y.ld);
    let start: usize = before.iter().zip(&to.axes).map(|(b, s)| b * s).sum();
    // SAFETY: the caller's contract.
    unsafe {
        zero(pixels, width, y);
        copy_block(rows, dims, [strides(dims, x.ld), to], x.ptr, y.ptr.add(start));
    }
}

/// Blocks of `inner` floats along an axis of `len` blocks, of which a stride selects some.
#[derive(Clone, Copy, Debug)]
pub struct Stride {
    /// Repetitions of the axis: rows and leading axes.
    pub outer: usize,
    /// Length of the axis.
    pub len: usize,
    /// Floats per step of the axis.
    pub inner: usize,
    /// Distance between selected blocks; negative from the last block back.
    pub step: isize,
}

impl Stride {
    fn count(&self) -> usize {
        self.len.div_ceil(self.step.unsigned_abs())
    }

    /// Where selected block `i` starts, counted in floats.
    fn at(&self, i: usize) -> usize {
        let (outer, i) = (i / self.count(), i % self.count());
        let from_end = i * self.step.unsigned_abs();
        let at = if self.step > 0 { from_end } else { self.len - 1 - from_end };
        (outer * self.len + at) * self.inner
    }
}

/// Copies the selected blocks of `x` to `y`.
///
/// # Safety
/// `x` holds all blocks and `y` the selected ones; they do not overlap.
pub unsafe fn stride(s: Stride, x: *const f32, y: *mut f32) {
    for i in 0..s.outer * s.count() {
        // SAFETY: the block lies inside both.
        unsafe {
            std::ptr::copy_nonoverlapping(x.add(s.at(i)), y.add(i * s.inner), s.inner);
        }
    }
}

/// Copies `x` to the selected blocks of `y` and zeroes the others.
///
/// # Safety
/// `y` holds all blocks and `x` the selected ones; they do not overlap.
pub unsafe fn dilate(s: Stride, x: *const f32, y: *mut f32) {
    // SAFETY: the blocks lie inside both.
    unsafe {
        std::ptr::write_bytes(y, 0, s.outer * s.len * s.inner);
        for i in 0..s.outer * s.count() {
            std::ptr::copy_nonoverlapping(x.add(i * s.inner), y.add(s.at(i)), s.inner);
        }
    }
}

/// Zeroes `pixels` pixels of `width` floats.
///
/// # Safety
/// `y` is valid for them.
pub(super) unsafe fn zero(pixels: usize, width: usize, y: Dst) {
    // SAFETY: the caller's contract.
    unsafe {
        if y.ld == width {
            return std::ptr::write_bytes(y.ptr, 0, pixels * width);
        }
        for p in 0..pixels {
            std::ptr::write_bytes(y.ptr.add(p * y.ld), 0, width);
        }
    }
}

/// The geometry of upsampling: `input` is the small image, `[h, w, c]`.
#[derive(Clone, Copy, Debug)]
pub struct Upsample {
    /// Height, width and channels of the small image.
    pub input: [usize; 3],
    /// Factors of height and width.
    pub size: [usize; 2],
    /// Interpolate between pixel centres instead of repeating pixels.
    pub bilinear: bool,
}

/// The two small pixels around a position of the large image along one axis, and the weight of the second.
#[derive(Clone, Copy)]
struct Neighbours {
    low: usize,
    high: usize,
    weight: f32,
}

impl Upsample {
    fn neighbours(&self, axis: usize, at: usize) -> Neighbours {
        // Pixel centres lie at half-integers. Convert to the coordinates of the small image.
        let centre = (at as f64 + 0.5) / self.size[axis] as f64 - 0.5;
        let low = centre.floor();
        let last = self.input[axis] - 1;
        Neighbours {
            low: (low.max(0.0) as usize).min(last),
            high: ((low + 1.0) as usize).min(last),
            weight: (centre - low) as f32,
        }
    }

    fn output(&self) -> [usize; 2] {
        [self.input[0] * self.size[0], self.input[1] * self.size[1]]
    }
}

/// Computes the large image from the small one.
///
/// # Safety
/// `x` and `y` are valid for `rows` images and do not overlap.
pub unsafe fn upsample(isa: Isa, rows: usize, geom: &Upsample, x: Src, y: Dst) {
    let ([h, w], [ih, iw, c]) = (geom.output(), geom.input);
    for p in 0..rows * h * w {
        let (row, i, j) = (p / (h * w), p / w % h, p % w);
        // SAFETY: all pixels lie in their images.
        unsafe {
            let image = x.ptr.add(row * ih * iw * x.ld);
            let to = y.ptr.add(p * y.ld);
            if !geom.bilinear {
                let from = (i / geom.size[0] * iw + j / geom.size[1]) * x.ld;
                std::ptr::copy_nonoverlapping(image.add(from), to, c);
                continue;
            }
            let (v, u) = (geom.neighbours(0, i), geom.neighbours(1, j));
            let at = |i: usize, j: usize| image.add((i * iw + j) * x.ld);
            let from = [at(v.low, u.low), at(v.low, u.high), at(v.high, u.low), at(v.high, u.high)];
            dispatch(isa, Mix { c, from, weights: [u.weight, v.weight], to });
        }
    }
}

/// Interpolates one pixel between four.
struct Mix {
    c: usize,
    from: [*const f32; 4],
    weights: [f32; 2],
    to: *mut f32,
}

impl Mix {
    #[inline(always)]
    unsafe fn chunk<S: Simd, const PART: bool>(&self, at: usize, n: usize) {
        // SAFETY: `n` floats follow in all pixels.
        unsafe {
            let [u, v] = [S::splat(self.weights[0]), S::splat(self.weights[1])];
            let p = |k: usize| self.from[k].add(at);
            let (a, b) = (load::<S, PART>(p(0), n), load::<S, PART>(p(1), n));
            let (c, d) = (load::<S, PART>(p(2), n), load::<S, PART>(p(3), n));
            let top = S::fmadd(S::sub(b, a), u, a);
            let bottom = S::fmadd(S::sub(d, c), u, c);
            store::<S, PART>(self.to.add(at), S::fmadd(S::sub(bottom, top), v, top), n);
        }
    }
}

impl Kernel for Mix {
    type Output = ();

    #[inline(always)]
    unsafe fn run<S: Simd>(self) {
        let whole = self.c - self.c % S::LANES;
        // SAFETY: pixels have `c` floats.
        unsafe {
            for at in (0..whole).step_by(S::LANES) {
                self.chunk::<S, false>(at, S::LANES);
            }
            if whole < self.c {
                self.chunk::<S, true>(whole, self.c - whole);
            }
        }
    }
}

/// The derivative of [`upsample`]: `dx` sums the derivatives of the large pixels that each small pixel
/// contributed to.
///
/// # Safety
/// `dy` and `dx` are valid for `rows` images and do not overlap.
pub unsafe fn upsample_grad(isa: Isa, rows: usize, geom: &Upsample, dy: Src, dx: Dst) {
    let ([h, w], [ih, iw, c]) = (geom.output(), geom.input);
    // SAFETY: `dx` is valid for these pixels.
    unsafe { zero(rows * ih * iw, c, dx) };
    for p in 0..rows * h * w {
        let (row, i, j) = (p / (h * w), p / w % h, p % w);
        // SAFETY: all pixels lie in their images.
        unsafe {
            let image = dx.ptr.add(row * ih * iw * dx.ld);
            let from = dy.ptr.add(p * dy.ld);
            if !geom.bilinear {
                let to = image.add((i / geom.size[0] * iw + j / geom.size[1]) * dx.ld);
                dispatch(isa, AddScaled { c, from, weight: 1.0, to });
                continue;
            }
            let (v, u) = (geom.neighbours(0, i), geom.neighbours(1, j));
            for (i, a) in [(v.low, 1.0 - v.weight), (v.high, v.weight)] {
                for (j, b) in [(u.low, 1.0 - u.weight), (u.high, u.weight)] {
                    let to = image.add((i * iw + j) * dx.ld);
                    dispatch(isa, AddScaled { c, from, weight: a * b, to });
                }
            }
        }
    }
}

/// `to += weight * from` over the channels of a pixel.
struct AddScaled {
    c: usize,
    from: *const f32,
    weight: f32,
    to: *mut f32,
}

impl Kernel for AddScaled {
    type Output = ();

    #[inline(always)]
    unsafe fn run<S: Simd>(self) {
        let mut at = 0;
        while at < self.c {
            let n = S::LANES.min(self.c - at);
            // SAFETY: `n` floats follow in both pixels.
            unsafe {
                let to = self.to.add(at);
                let x = S::load_partial(self.from.add(at), n);
                let y = S::fmadd(x, S::splat(self.weight), S::load_partial(to, n));
                S::store_partial(to, y, n);
            }
            at += n;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernels::math::testing::{close, numbers, spread, unspread};

    fn src(x: &[f32], ld: usize) -> Src {
        Src { ptr: x.as_ptr(), ld }
    }

    fn dst(y: &mut [f32], ld: usize) -> Dst {
        Dst { ptr: y.as_mut_ptr(), ld }
    }

    /// The flat index of `at` in `dims`.
    fn flat(dims: &[usize], at: &[usize]) -> usize {
        dims.iter().zip(at).fold(0, |f, (d, i)| f * d + i)
    }

    /// All positions of `dims`, in order.
    fn positions(dims: &[usize]) -> Vec<Vec<usize>> {
        dims.iter().fold(vec![vec![]], |all, d| {
            all.iter().flat_map(|p| (0..*d).map(|i| [&p[..], &[i]].concat())).collect()
        })
    }

    #[test]
    fn transposes() {
        for isa in Isa::available() {
            for (dims, perm) in [
                (vec![5, 7, 3], vec![2, 0, 1]),
                (vec![40, 33], vec![1, 0]),
                (vec![4, 5, 37], vec![2, 0, 1]),
                (vec![3, 4, 5, 2], vec![3, 1, 0, 2]),
                (vec![6, 5], vec![0, 1]),
                (vec![], vec![]),
            ] {
                let out: Vec<usize> = perm.iter().map(|p| dims[*p]).collect();
                let (rows, len) = (3, dims.iter().product::<usize>());
                let (wx, wy) = (*dims.last().unwrap_or(&1), *out.last().unwrap_or(&1));
                let x = numbers(rows * len, 1);
                for gap in [0, 2] {
                    let sx = spread(&x, wx, wx + gap);
                    let mut y = spread(&vec![0.0; x.len()], wy, wy + gap);
                    // SAFETY: both hold three rows.
                    unsafe {
                        let to = dst(&mut y, wy + gap);
                        transpose(isa, rows, &dims, &perm, src(&sx, wx + gap), to);
                    }
                    let y = unspread(&y, wy, wy + gap);
                    for r in 0..rows {
                        for at in positions(&out) {
                            let mut from = vec![0; dims.len()];
                            perm.iter().zip(&at).for_each(|(p, i)| from[*p] = *i);
                            let want = x[r * len + flat(&dims, &from)];
                            assert_eq!(
                                y[r * len + flat(&out, &at)],
                                want,
                                "{isa} {dims:?} {perm:?}"
                            );
                        }
                    }
                }
            }
        }
    }

    #[test]
    fn slices_join_again() {
        let dims = [3, 4, 5];
        for (axis, cut) in [(0, 1), (1, 3), (2, 2)] {
            for gap in [0, 4] {
                let x = numbers(2 * 60, 2);
                let wide = spread(&x, 5, 5 + gap);
                let mut joined = spread(&[0.0; 120], 5, 5 + gap);
                for (start, len) in [(0, cut), (cut, dims[axis] - cut)] {
                    let mut part = dims;
                    part[axis] = len;
                    let mut y = spread(
                        &vec![0.0; 2 * part.iter().product::<usize>()],
                        part[2],
                        part[2] + 1,
                    );
                    // SAFETY: all hold two rows.
                    unsafe {
                        let to = dst(&mut y, part[2] + 1);
                        slice(2, &dims, axis, start..start + len, src(&wide, 5 + gap), to);
                        let to = dst(&mut joined, 5 + gap);
                        concat_part(2, &dims, axis, start..start + len, src(&y, part[2] + 1), to);
                    }
                    let y = unspread(&y, part[2], part[2] + 1);
                    for (i, at) in positions(&[2, part[0], part[1], part[2]]).iter().enumerate() {
                        let mut from = at.clone();
                        from[axis + 1] += start;
                        assert_eq!(y[i], x[flat(&[2, 3, 4, 5], &from)]);
                    }
                }
                assert_eq!(unspread(&joined, 5, 5 + gap), x);
            }
        }
    }

    #[test]
    fn pads_with_zeros() {
        let (dims, before, after) = ([2, 3, 2], [1, 0, 1], [0, 2, 3]);
        let x = numbers(24, 3);
        let mut y = spread(&[9.0; 2 * 3 * 5 * 6], 6, 7);
        // SAFETY: both hold two rows.
        unsafe { pad(2, &dims, &before, &after, src(&x, 2), dst(&mut y, 7)) };
        let y = unspread(&y, 6, 7);
        for (i, at) in positions(&[2, 3, 5, 6]).iter().enumerate() {
            let from: Option<Vec<usize>> =
                (0..3).map(|a| at[a + 1].checked_sub(before[a]).filter(|k| *k < dims[a])).collect();
            let want = from.map_or(0.0, |f| x[at[0] * 12 + flat(&dims, &f)]);
            assert_eq!(y[i], want, "{at:?}");
        }
    }

    /// Weights of the small pixels in each large one, along one axis.
    fn weights(n: usize, size: usize, bilinear: bool) -> Vec<Vec<f64>> {
        (0..n * size)
            .map(|at| {
                let mut w = vec![0.0; n];
                if bilinear {
                    let x = ((at as f64 + 0.5) / size as f64 - 0.5).clamp(0.0, n as f64 - 1.0);
                    let low = x.floor() as usize;
                    w[low] += 1.0 - (x - low as f64);
                    w[(low + 1).min(n - 1)] += x - low as f64;
                } else {
                    w[at / size] = 1.0;
                }
                w
            })
            .collect()
    }

    #[test]
    fn upsamples_and_back() {
        let (rows, h, w, c) = (2, 3, 4, 19);
        for isa in Isa::available() {
            for (size, bilinear) in
                [([2, 2], false), ([2, 3], true), ([1, 4], true), ([3, 2], false)]
            {
                let geom = Upsample { input: [h, w, c], size, bilinear };
                let (oh, ow) = (h * size[0], w * size[1]);
                let (wi, wj) = (weights(h, size[0], bilinear), weights(w, size[1], bilinear));
                let x = numbers(rows * h * w * c, 4);
                let dy = numbers(rows * oh * ow * c, 5);
                let mut want_y = vec![0.0; dy.len()];
                let mut want_dx = vec![0.0; x.len()];
                for at in positions(&[rows, oh, ow, h, w, c]) {
                    let [r, i, j, a, b, k] = at[..] else { unreachable!() };
                    let small = flat(&[rows, h, w, c], &[r, a, b, k]);
                    let large = flat(&[rows, oh, ow, c], &[r, i, j, k]);
                    want_y[large] += wi[i][a] * wj[j][b] * f64::from(x[small]);
                    want_dx[small] += wi[i][a] * wj[j][b] * f64::from(dy[large]);
                }
                let (sx, sdy) = (spread(&x, c, c + 1), spread(&dy, c, c + 3));
                let mut y = spread(&vec![0.0; dy.len()], c, c + 2);
                let mut dx = spread(&vec![5.0; x.len()], c, c + 4);
                // SAFETY: all hold two images.
                unsafe {
                    upsample(isa, rows, &geom, src(&sx, c + 1), dst(&mut y, c + 2));
                    upsample_grad(isa, rows, &geom, src(&sdy, c + 3), dst(&mut dx, c + 4));
                }
                close(isa, "y", &unspread(&y, c, c + 2), &want_y, 1e-6);
                close(isa, "dx", &unspread(&dx, c, c + 4), &want_dx, 2e-6);
            }
        }
    }

    #[test]
    fn no_rows_touch_nothing() {
        let (x, y) =
            (Src { ptr: std::ptr::null(), ld: 4 }, Dst { ptr: std::ptr::null_mut(), ld: 4 });
        // SAFETY: there are no elements.
        unsafe {
            transpose(Isa::PORTABLE, 0, &[3, 4], &[1, 0], x, y);
            slice(0, &[3, 4], 0, 1..3, Src { ptr: std::ptr::dangling(), ld: 4 }, y);
            pad(0, &[3, 4], &[0, 0], &[0, 0], x, y);
        }
    }
}
