//! The kernel's gradient: per tap, the sum over pixels of input channels times output gradients.
//!
//! For one tap, the pixels that read inside the image form a rectangle, so padding costs nothing. Pixels
//! are processed in blocks small enough that a panel of the output gradient stays in cache while the kernel
//! iterates over all taps and input channels.

use std::marker::PhantomData;

use phalanx_graph::{ConvGeom, Depth};

use super::grid::Grid;
use super::{uses_patches, winograd};
use crate::kernels::matrix::MatrixRef;
use crate::kernels::tile::{Arena, BLOCK_ROWS, Outer, Panels, part};
use crate::simd::{Kernel, Simd};

/// Pixels per block.
const BLOCK_PIXELS: usize = 128;

/// Adds to `dw`; lengths are checked by the caller.
pub(super) struct GradKernel<'a> {
    pub geom: &'a ConvGeom,
    pub rows: usize,
    pub x: MatrixRef<'a>,
    pub dy: MatrixRef<'a>,
    pub dw: &'a mut [f32],
    pub scratch: &'a mut [f32],
}

impl Kernel for GradKernel<'_> {
    type Output = ();

    #[inline(always)]
    unsafe fn run<S: Simd>(mut self) {
        // SAFETY: the caller's contract.
        unsafe {
            if uses_patches(self.geom) {
                self.add_patches::<S>();
            } else {
                for block in Blocks::new(self.geom, self.rows) {
                    self.block::<S>(block);
                }
            }
        }
    }
}

/// A block of output pixels: some images, and rows `top..bottom` of each. In volumes, it is a slice instead of images;
/// slices are counted over all volumes.
#[derive(Clone, Copy, Debug)]
pub(super) struct PixelBlock {
    image: usize,
    images: usize,
    top: usize,
    bottom: usize,
}

/// Splits a batch into blocks: several whole images if they fit into one block, else bands of an image.
pub(super) struct Blocks {
    rows: usize,
    height: usize,
    images: usize,
    bands: usize,
    image: usize,
    band: usize,
}

impl Blocks {
    pub fn new(geom: &ConvGeom, rows: usize) -> Blocks {
        let [height, width, _] = geom.output;
        let images =
            if geom.is_flat() { (BLOCK_PIXELS / (height * width).max(1)).max(1) } else { 1 };
        let rows = rows * geom.depth.output;
        let lines = (BLOCK_PIXELS / width.max(1)).max(1);
        let bands = if height * width <= BLOCK_PIXELS { 1 } else { height.div_ceil(lines) };
        Blocks { rows, height, images, bands, image: 0, band: 0 }
    }
}

impl Iterator for Blocks {
    type Item = PixelBlock;

    #[inline(always)]
    fn next(&mut self) -> Option<PixelBlock> {
        if self.image >= self.rows {
            return None;
        }
        let images = self.images.min(self.rows - self.image);
        let (top, lines) = part(self.height, self.bands, self.band);
        let block = PixelBlock { image: self.image, images, top, bottom: top + lines };
        self.band += 1;
        if self.band == self.bands {
            self.band = 0;
            self.image += images;
        }
        Some(block)
    }
}

/// The pixels of a block for which one tap lies inside the input: the extent in images, rows and columns, and
/// the first pixel of input and output.
pub(super) struct TapBox {
    pub extent: [usize; 3],
    pub input: usize,
    pub output: usize,
}

impl TapBox {
    /// `None` if the tap lies in the padding for all of them.
    #[inline(always)]
    pub fn new(geom: &ConvGeom, block: PixelBlock, tap: usize) -> Option<TapBox> {
        let (kz, ky, kx) = {
            let [height, width] = geom.kernel;
            (tap / (height * width), tap / width % height, tap % width)
        };
        let slice = source_slice(geom, block.image, kz)?;
        let [top, bottom] = inside(geom, 0, ky);
        let (top, bottom) = (top.max(block.top), bottom.min(block.bottom));
        let [left, right] = inside(geom, 1, kx);
        if top >= bottom || left >= right {
            return None;
        }
        let y = top * geom.stride[0] + ky * geom.dilation[0] - geom.pad[0];
        let x = left * geom.stride[1] + kx * geom.dilation[1] - geom.pad[1];
        Some(TapBox {
            extent: [block.images, bottom - top, right - left],
            input: (slice * geom.input[0] + y) * geom.input[1] + x,
            output: (block.image * geom.output[0] + top) * geom.output[1] + left,
        })
    }

    /// Pixels between adjacent elements of the box along each axis, in the input and in the output.
    #[inline(always)]
    pub fn steps(geom: &ConvGeom) -> [[usize; 3]; 2] {
        let ([h, w, _], [oh, ow, _]) = (geom.input, geom.output);
        [[h * w, geom.stride[0] * w, geom.stride[1]], [oh * ow, ow, 1]]
    }
}

/// The slice of the input that a tap of a slice of the output reads, counted over all volumes.
#[inline(always)]
fn source_slice(geom: &ConvGeom, slice: usize, k: usize) -> Option<usize> {
    if geom.is_flat() {
        return Some(slice);
    }
    let Depth { input, output, stride, dilation, pad, .. } = geom.depth;
    let at = slice % output * stride + k * dilation;
    if at < pad || at - pad >= input { None } else { Some(slice / output * input + at - pad) }
}

/// Output positions along one axis for which tap `k` reads inside the input: `start..end`.
#[inline(always)]
fn inside(geom: &ConvGeom, axis: usize, k: usize) -> [usize; 2] {
    let (stride, pad) = (geom.stride[axis], geom.pad[axis]);
    let tap = k * geom.dilation[axis];
    let start = pad.saturating_sub(tap).div_ceil(stride);
    let end = (geom.input[axis] + pad).saturating_sub(tap).div_ceil(stride);
    [start, end.min(geom.output[axis])]
}

impl<'a> GradKernel<'a> {
    pub fn winograd<P>(self) -> winograd::GradKernel<'a, P> {
        let GradKernel { geom, rows, x, dy, dw, scratch } = self;
        winograd::GradKernel { geom, rows, x, dy, dw, scratch, tile: PhantomData }
    }

    /// Adds one block to every element of `dw`.
    #[inline(always)]
    unsafe fn block<S: Simd>(&mut self, block: PixelBlock) {
        let geom = self.geom;
        let [kh, kw, cin, filters] = geom.kernel_dims();
        let cout = filters / geom.groups;
        let [x_step, y_step] = TapBox::steps(geom);
        let (x, dy) = (self.x.src(), self.dy.src());
        for group in 0..geom.groups {
            for panel in Panels::new::<S>(cout) {
                for tap in 0..kh * kw {
                    let Some(pixels) = TapBox::new(geom, block, tap) else { continue };
                    // SAFETY: the box lies inside both images, whose lengths were checked.
                    unsafe {
                        Outer {
                            rows: cin,
                            cols: cout,
                            extent: pixels.extent,
                            x: x.ptr.add(pixels.input * x.ld + group * cin),
                            x_step: scaled(x_step, x.ld),
                            y: dy.ptr.add(pixels.output * dy.ld + group * cout),
                            y_step: scaled(y_step, dy.ld),
                            out: self.dw.as_mut_ptr().add(tap * cin * filters + group * cout),
                            out_step: filters,
                            accumulate: true,
                        }
                        .run_panel::<S>(panel);
                    }
                }
            }
        }
    }

    /// The same from gathered patches. The taps and channels of a patch together are the rows of `dw`.
    #[inline(always)]
    unsafe fn add_patches<S: Simd>(&mut self) {
        let [kh, kw, cin, filters] = self.geom.kernel_dims();
        let (depth, cout) = (kh * kw * cin, filters / self.geom.groups);
        let grid = Grid::forward(self.geom);
        let (x, dy) = (self.x.src(), self.dy.src());
        let patches = Arena(&mut *self.scratch).floats(BLOCK_ROWS * depth);
        let pixels = self.rows * grid.points();
        let blocks = pixels.div_ceil(BLOCK_ROWS);
        for group in 0..self.geom.groups {
            for block in 0..blocks {
                let (first, count) = part(pixels, blocks, block);
                // SAFETY: the caller's contract; pixels `first..first + count` exist.
                unsafe {
                    let from = x.ptr.wrapping_add(group * cin);
                    grid.gather(first, count, from, x.ld, cin, patches);
                    let outer = Outer {
                        rows: depth,
                        cols: cout,
                        extent: [1, 1, count],
                        x: patches.as_ptr(),
                        x_step: [0, 0, depth],
                        y: dy.ptr.add(first * dy.ld + group * cout),
                        y_step: [0, 0, dy.ld],
                        out: self.dw.as_mut_ptr().wrapping_add(group * cout),
                        out_step: filters,
                        accumulate: true,
                    };
                    for panel in Panels::new::<S>(cout) {
                        outer.run_panel::<S>(panel);
                    }
                }
            }
        }
    }
}

/// Converts steps in pixels to steps in floats.
#[inline(always)]
pub(super) fn scaled(steps: [usize; 3], ld: usize) -> [usize; 3] {
    [steps[0] * ld, steps[1] * ld, steps[2] * ld]
}
