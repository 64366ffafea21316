//! Depthwise convolution (one filter per channel), vectorised over channels. Weights are not packed.
//!
//! Forward and input gradient share one loop over the pixels of a [`Grid`]. Adjacent pixels whose windows
//! lie inside the image are computed [`PIXELS`] at a time, so that each weight is loaded once for all of
//! them.

// Arrays of registers are indexed in lockstep. Iterators would bring closures, which are not compiled for
// the instruction set.
#![allow(clippy::needless_range_loop)]

use phalanx_graph::ConvGeom;

use super::grad_kernel::{self, Blocks, PixelBlock, TapBox, scaled};
use super::grid::Grid;
use super::{Forward, GradInput};
use crate::kernels::layout::{Dst, Src};
use crate::kernels::matrix::Epilogue;
use crate::simd::{Isa, Kernel, Simd, dispatch};

/// Pixels computed together.
const PIXELS: usize = 6;

/// Channel vectors whose kernel gradients are summed together: enough chains to hide the latency of
/// a multiply-add.
const CHAINS: usize = 4;

/// Whether a convolution of images has one input and one output channel per group.
pub(super) fn applies(geom: &ConvGeom) -> bool {
    let channels = [geom.input[2], geom.output[2]];
    geom.groups > 1 && channels == [geom.groups; 2] && geom.is_flat()
}

/// See [`Conv::forward`](super::Conv::forward).
///
/// # Safety
/// The sizes were checked.
pub(super) unsafe fn forward(isa: Isa, mut forward: Forward<'_>) {
    let geom = forward.geom;
    let sweep = Sweep {
        grid: Grid::forward(geom),
        rows: forward.rows,
        channels: geom.input[2],
        kernel_width: geom.kernel[1],
        src: forward.x.src(),
        w: forward.w.as_ptr(),
        epilogue: forward.epilogue,
        dst: forward.y.dst(),
    };
    // SAFETY: the caller's contract.
    unsafe { dispatch(isa, sweep) };
}

/// See [`Conv::grad_input`](super::Conv::grad_input).
///
/// # Safety
/// The sizes were checked.
pub(super) unsafe fn grad_input(isa: Isa, mut grad: GradInput<'_>) {
    let geom = grad.geom;
    for grid in Grid::phases(geom) {
        let sweep = Sweep {
            grid,
            rows: grad.rows,
            channels: geom.input[2],
            kernel_width: geom.kernel[1],
            src: grad.dy.src(),
            w: grad.w.as_ptr(),
            epilogue: Epilogue::NONE,
            dst: grad.dx.dst(),
        };
        // SAFETY: the caller's contract.
        unsafe { dispatch(isa, sweep) };
    }
}

/// The computation of all points of one grid in all images.
struct Sweep<'a> {
    grid: Grid,
    rows: usize,
    channels: usize,
    kernel_width: usize,
    src: Src,
    w: *const f32,
    epilogue: Epilogue<'a>,
    dst: Dst,
}

impl Kernel for Sweep<'_> {
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

impl Sweep<'_> {
    /// Computes `N` adjacent points for which the same taps lie inside the image.
    #[inline(always)]
    unsafe fn points<S: Simd, const N: usize>(&self, at: [usize; 3]) {
        let window = self.grid.window(at);
        let [destination, dst_step] = self.grid.destination(at);
        let src_step = self.grid.source_column_step() * self.src.ld;
        let mut c = 0;
        while c < self.channels {
            let n = S::LANES.min(self.channels - c);
            // SAFETY: `window` yields taps inside the image; `n` channels are left.
            unsafe {
                let mut acc = [S::zero(); N];
                for i in window.rows.clone() {
                    for j in window.cols.clone() {
                        let pixel = self.grid.source(at[0], at, [i, j]);
                        let [ky, kx] = self.grid.kernel_position_of([i, j]);
                        let x = self.src.ptr.add(pixel * self.src.ld + c);
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
                // A closure would not be compiled for the instruction set.
                #[allow(clippy::manual_map)]
                let bias = match self.epilogue.bias {
                    Some(bias) => Some(S::load_partial(bias.as_ptr().add(c), n)),
                    None => None,
                };
                for p in 0..N {
                    let mut y = acc[p];
                    if let Some(bias) = bias {
                        y = S::add(y, bias);
                    }
                    if self.epilogue.relu {
                        y = S::max(S::zero(), y);
                    }
                    let to = self.dst.ptr.add((destination + p * dst_step) * self.dst.ld + c);
                    S::store_partial(to, y, n);
                }
            }
            c += n;
        }
    }
}

/// Adds to `dw`. See [`Conv::grad_kernel`](super::Conv::grad_kernel).
///
/// # Safety
/// The sizes were checked.
pub(super) unsafe fn grad_kernel(isa: Isa, grad: grad_kernel::GradKernel<'_>) {
    // SAFETY: the caller's contract.
    unsafe { dispatch(isa, GradKernel(grad)) };
}

struct GradKernel<'a>(grad_kernel::GradKernel<'a>);

impl Kernel for GradKernel<'_> {
    type Output = ();

    #[inline(always)]
    unsafe fn run<S: Simd>(mut self) {
        for block in Blocks::new(self.0.geom, self.0.rows) {
            // SAFETY: lengths were checked by the caller.
            unsafe { self.block::<S>(block) };
        }
    }
}

impl GradKernel<'_> {
    #[inline(always)]
    unsafe fn block<S: Simd>(&mut self, block: PixelBlock) {
        let geom = self.0.geom;
        let channels = geom.input[2];
        let [x_step, y_step] = TapBox::steps(geom);
        let (x, dy) = (self.0.x.src(), self.0.dy.src());
        for tap in 0..geom.kernel[0] * geom.kernel[1] {
            let Some(pixels) = TapBox::new(geom, block, tap) else { continue };
            let mut c = 0;
            while c < channels {
                // SAFETY: the box lies inside both images; `c` is a channel.
                unsafe {
                    let sum = ProductSum {
                        extent: pixels.extent,
                        x: x.ptr.add(pixels.input * x.ld + c),
                        x_step: scaled(x_step, x.ld),
                        y: dy.ptr.add(pixels.output * dy.ld + c),
                        y_step: scaled(y_step, dy.ld),
                        out: self.0.dw.as_mut_ptr().add(tap * channels + c),
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
