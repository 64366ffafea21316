//! Depthwise convolution (one filter per channel), vectorised over channels. Weights are not packed.
//!
//! Forward and input gradient share one loop over the pixels of a [`Grid`]. Adjacent pixels whose windows
//! lie inside the image are computed [`PIXELS`] at a time, so that each weight is loaded once for all of
//! them.

// Arrays of registers are indexed in lockstep. Iterators would bring closures, which are not compiled for
// the instruction set.
#![allow(clippy::needless_range_loop)]

use phalanx_graph::ConvGeom;

use super::grad_kernel::{Blocks, PixelBlock, TapBox, scaled};
use super::grid::Grid;
use crate::simd::{Isa, Kernel, Simd, dispatch};

/// Pixels computed together.
const PIXELS: usize = 6;

/// Channel vectors whose kernel gradients are summed together: enough chains to hide the latency of
/// a multiply-add.
const CHAINS: usize = 4;

/// Whether a convolution has one input and one output channel per group.
pub(super) fn applies(geom: &ConvGeom) -> bool {
    geom.groups > 1 && geom.groups == geom.input[2] && geom.groups == geom.output[2]
}

/// See [`super::forward`].
///
/// # Safety
/// The lengths were checked, and `bias` is null or points to the output's channels.
#[allow(clippy::too_many_arguments)] // Passed through.
pub(super) unsafe fn forward(
    isa: Isa,
    geom: &ConvGeom,
    rows: usize,
    x: &[f32],
    ldx: usize,
    w: &[f32],
    bias: *const f32,
    relu: bool,
    y: &mut [f32],
    ldy: usize,
) {
    let grid = Grid::forward(geom);
    let (src, dst) = (x.as_ptr(), y.as_mut_ptr());
    let (channels, kernel_width) = (geom.input[2], geom.kernel[1]);
    let w = w.as_ptr();
    let sweep = Sweep {
        grid,
        rows,
        channels,
        kernel_width,
        src,
        src_ld: ldx,
        w,
        bias,
        relu,
        dst,
        dst_ld: ldy,
    };
    // SAFETY: the caller's contract.
    unsafe { dispatch(isa, sweep) };
}

/// See [`super::grad_input`].
///
/// # Safety
/// The lengths were checked.
#[allow(clippy::too_many_arguments)] // Passed through.
pub(super) unsafe fn grad_input(
    isa: Isa,
    geom: &ConvGeom,
    rows: usize,
    dy: &[f32],
    ldy: usize,
    w: &[f32],
    dx: &mut [f32],
    ldx: usize,
) {
    for grid in Grid::phases(geom) {
        let sweep = Sweep {
            grid,
            rows,
            channels: geom.input[2],
            kernel_width: geom.kernel[1],
            src: dy.as_ptr(),
            src_ld: ldy,
            w: w.as_ptr(),
            bias: std::ptr::null(),
            relu: false,
            dst: dx.as_mut_ptr(),
            dst_ld: ldx,
        };
        // SAFETY: the caller's contract.
        unsafe { dispatch(isa, sweep) };
    }
}

/// The computation of all points of one grid in all images.
struct Sweep {
    grid: Grid,
    rows: usize,
    channels: usize,
    kernel_width: usize,
    src: *const f32,
    src_ld: usize,
    w: *const f32,
    bias: *const f32,
    relu: bool,
    dst: *mut f32,
    dst_ld: usize,
}

impl Kernel for Sweep {
    type Output = ();

    #[inline(always)]
    unsafe fn run<S: Simd>(self) {
        let [height, width] = self.grid.size();
        for image in 0..self.rows {
            for y in 0..height {
                let mut x = 0;
                while x < width {
                    let last = x + PIXELS - 1;
                    let together = last < width
                        && self.grid.has_all_columns(x)
                        && self.grid.has_all_columns(last);
                    // SAFETY: lengths were checked; the points lie inside the grid.
                    unsafe {
                        if together {
                            self.points::<S, PIXELS>([image, y, x]);
                            x += PIXELS;
                        } else {
                            self.points::<S, 1>([image, y, x]);
                            x += 1;
                        }
                    }
                }
            }
        }
    }
}

impl Sweep {
    /// Computes `N` adjacent points for which the same taps lie inside the image.
    #[inline(always)]
    unsafe fn points<S: Simd, const N: usize>(&self, at: [usize; 3]) {
        let window = self.grid.window(at);
        let [destination, dst_step] = self.grid.destination(at);
        let src_step = self.grid.source_column_step() * self.src_ld;
        let mut c = 0;
        while c < self.channels {
            let n = S::LANES.min(self.channels - c);
            // SAFETY: `window` yields taps inside the image; `n` channels are left.
            unsafe {
                let mut acc = [S::zero(); N];
                for i in window.rows.clone() {
                    for j in window.cols.clone() {
                        let pixel = self.grid.source(at, [i, j]);
                        let [ky, kx] = self.grid.kernel_position_of([i, j]);
                        let x = self.src.add(pixel * self.src_ld + c);
                        let w = self.w.add((ky * self.kernel_width + kx) * self.channels + c);
                        if n == S::LANES {
                            let w = S::load(w);
                            for p in 0..N {
                                acc[p] = S::fmadd(S::load(x.add(p * src_step)), w, acc[p]);
                            }
                        } else {
                            let w = S::load_partial(w, n);
                            for p in 0..N {
                                let x = S::load_partial(x.add(p * src_step), n);
                                acc[p] = S::fmadd(x, w, acc[p]);
                            }
                        }
                    }
                }
                let bias = if self.bias.is_null() {
                    None
                } else {
                    Some(S::load_partial(self.bias.add(c), n))
                };
                for p in 0..N {
                    let mut y = acc[p];
                    if let Some(bias) = bias {
                        y = S::add(y, bias);
                    }
                    if self.relu {
                        y = S::max(S::zero(), y);
                    }
                    let to = self.dst.add((destination + p * dst_step) * self.dst_ld + c);
                    S::store_partial(to, y, n);
                }
            }
            c += n;
        }
    }
}

/// Adds to `dw`. See [`super::grad_kernel`].
///
/// # Safety
/// The lengths were checked.
#[allow(clippy::too_many_arguments)] // Passed through.
pub(super) unsafe fn grad_kernel(
    isa: Isa,
    geom: &ConvGeom,
    rows: usize,
    x: &[f32],
    ldx: usize,
    dy: &[f32],
    ldy: usize,
    dw: &mut [f32],
) {
    // SAFETY: the caller's contract.
    unsafe { dispatch(isa, GradKernel { geom, rows, x, ldx, dy, ldy, dw }) };
}

struct GradKernel<'a> {
    geom: &'a ConvGeom,
    rows: usize,
    x: &'a [f32],
    ldx: usize,
    dy: &'a [f32],
    ldy: usize,
    dw: &'a mut [f32],
}

impl Kernel for GradKernel<'_> {
    type Output = ();

    #[inline(always)]
    unsafe fn run<S: Simd>(mut self) {
        for block in Blocks::new(self.geom, self.rows) {
            // SAFETY: lengths were checked by the caller.
            unsafe { self.block::<S>(block) };
        }
    }
}

impl GradKernel<'_> {
    #[inline(always)]
    unsafe fn block<S: Simd>(&mut self, block: PixelBlock) {
        let channels = self.geom.input[2];
        let [x_step, y_step] = TapBox::steps(self.geom);
        for tap in 0..self.geom.kernel[0] * self.geom.kernel[1] {
            let Some(pixels) = TapBox::new(self.geom, block, tap) else { continue };
            let mut c = 0;
            while c < channels {
                // SAFETY: the box lies inside both images; `c` is a channel.
                unsafe {
                    let sum = ProductSum {
                        extent: pixels.extent,
                        x: self.x.as_ptr().add(pixels.input * self.ldx + c),
                        x_step: scaled(x_step, self.ldx),
                        y: self.dy.as_ptr().add(pixels.output * self.ldy + c),
                        y_step: scaled(y_step, self.ldy),
                        out: self.dw.as_mut_ptr().add(tap * channels + c),
                    };
                    let left = channels - c;
                    if left >= CHAINS * S::LANES {
                        sum.run::<S, CHAINS>(S::LANES);
                        c += CHAINS * S::LANES;
                    } else {
                        sum.run::<S, 1>(left.min(S::LANES));
                        c += S::LANES;
                    }
                }
            }
        }
    }
}

/// `out[c] += Σ x[p, c] y[p, c]` over a box of pixels.
struct ProductSum {
    extent: [usize; 3],
    x: *const f32,
    x_step: [usize; 3],
    y: *const f32,
    y_step: [usize; 3],
    out: *mut f32,
}

impl ProductSum {
    /// `N` vectors of channels, each of `n` floats.
    #[inline(always)]
    unsafe fn run<S: Simd, const N: usize>(&self, n: usize) {
        // SAFETY: the caller's contract.
        unsafe {
            let mut acc = [S::zero(); N];
            for v in 0..N {
                acc[v] = S::load_partial(self.out.add(v * S::LANES), n);
            }
            for i in 0..self.extent[0] {
                for j in 0..self.extent[1] {
                    let x = self.x.add(i * self.x_step[0] + j * self.x_step[1]);
                    let y = self.y.add(i * self.y_step[0] + j * self.y_step[1]);
                    for k in 0..self.extent[2] {
                        let (x, y) = (x.add(k * self.x_step[2]), y.add(k * self.y_step[2]));
                        for v in 0..N {
                            let x = S::load_partial(x.add(v * S::LANES), n);
                            let y = S::load_partial(y.add(v * S::LANES), n);
                            acc[v] = S::fmadd(x, y, acc[v]);
                        }
                    }
                }
            }
            for v in 0..N {
                S::store_partial(self.out.add(v * S::LANES), acc[v], n);
            }
        }
    }
}
