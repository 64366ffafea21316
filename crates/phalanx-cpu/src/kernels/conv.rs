//! Convolution of images and volumes, NHWC, and its two gradients.
//!
//! * Forward and input gradient both are an indirect matrix product (`Block`) over regular grids of
//!   pixels (`Grid`). Forward is one grid. The input gradient of a strided convolution is one grid per
//!   phase: input pixels whose coordinates agree modulo the stride are reached by the same subset of
//!   taps, so nothing is multiplied by the zeros that a stride would insert.
//! * Inputs with few channels would make the inner loop short. For them, patches are gathered into
//!   scratch, a block of pixels at a time, and the product has a single tap (im2col). Their input
//!   gradients are computed as patches and added to the pixels (`scatter.rs`).
//! * Depthwise convolution is vectorised over channels (`depthwise.rs`).
//! * 3x3 convolutions of stride one use Winograd's algorithm (`winograd.rs`) if [`Method::choose`]
//!   expects that to be faster.
//!
//! Pixels may have gaps between them ([`MatrixRef`]), so that inputs and outputs may be channel slices of
//! a wider tensor. No function allocates, and each output is summed in one fixed
//! order that does not depend on the number of rows.

mod axis;
mod depthwise;
mod grad_kernel;
mod grid;
mod method;
mod scatter;
mod winograd;

use std::marker::PhantomData;

use phalanx_graph::ConvGeom;

use self::grid::Grid;
use super::layout::{Dst, Src};
use super::matrix::{Epilogue, MatrixMut, MatrixRef};
use super::tile::{
    Arena, BLOCK_ROWS, Block, PanelRows, Weights, pack_columns, pack_rows, part, reads_in_place,
};
use crate::simd::{Isa, Kernel, MAX_LANES, Simd, dispatch};

pub use self::method::Method;

/// With fewer channels per tap than this, patches are gathered into scratch instead of read through pointers.
const GATHER_BELOW_CHANNELS: usize = 8;

/// One of the three computations of a convolution.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Pass {
    /// [`Conv::forward`].
    Forward,
    /// [`Conv::grad_input`].
    GradInput,
    /// [`Conv::grad_kernel`].
    GradKernel,
}

/// Floats of scratch that a pass needs.
///
/// # Panics
/// If the sizes of the geometry overflow.
pub fn scratch_len(method: Method, geom: &ConvGeom, pass: Pass) -> usize {
    check_geometry(geom);
    if let Some(m) = method.tile() {
        return winograd::scratch_len(geom, pass, m);
    }
    if depthwise::applies(geom) {
        return 0;
    }
    let [kh, kw, cin, _] = geom.kernel_dims();
    let cout = geom.output[2] / geom.groups;
    let taps = kh * kw;
    let patches = if uses_patches(geom) { BLOCK_ROWS * taps * cin } else { 0 };
    let (k, n) = match pass {
        Pass::Forward => (cin, cout),
        Pass::GradInput if uses_patches(geom) => return scatter::scratch_len(geom),
        Pass::GradInput => (cout, cin),
        Pass::GradKernel => return Arena::floats_len(patches),
    };
    Arena::floats_len(taps * k * n.next_multiple_of(MAX_LANES))
        + Arena::floats_len(k)
        + Arena::pointers_len(BLOCK_ROWS)
        + Arena::pointers_len(taps * BLOCK_ROWS)
        + Arena::floats_len(if pass == Pass::Forward { patches } else { 0 })
}

/// Whether a convolution works on patches that are gathered from its input or scattered to it.
fn uses_patches(geom: &ConvGeom) -> bool {
    let taps = [geom.depth.kernel, geom.kernel[0], geom.kernel[1]];
    geom.input[2] / geom.groups < GATHER_BELOW_CHANNELS && taps != [1, 1, 1]
}

/// Panics if sizes of a geometry overflow or are zero.
fn check_geometry(geom: &ConvGeom) {
    if let Err(error) = geom.check() {
        panic!("{error}");
    }
}

/// A convolution of a batch of images. Matrices of pixels have one row per pixel and one column per channel.
#[derive(Clone, Copy, Debug)]
pub struct Conv<'a> {
    /// Instruction set.
    pub isa: Isa,
    /// The algorithm.
    pub method: Method,
    /// Shapes of one image.
    pub geom: &'a ConvGeom,
    /// Number of images.
    pub rows: usize,
}

impl Conv<'_> {
    /// Panics unless the matrices have the pixels of the geometry, and the kernel its weights.
    fn check(&self, x: [usize; 2], w: &[f32], y: [usize; 2]) {
        let Conv { method, geom, rows, .. } = *self;
        check_geometry(geom);
        assert!(method.computes(geom), "{method:?} does not compute {geom:?}");
        let check = |name: &str, [height, width, channels]: [usize; 3], shape: [usize; 2]| {
            // `check_geometry` ensures that the pixels of one image do not overflow.
            let pixels = rows.checked_mul(height * width);
            assert!(
                pixels.is_some_and(|pixels| shape == [pixels, channels]),
                "{name}: expected {rows} images of {height} x {width} pixels of {channels} floats, \
                 received {} pixels of {}",
                shape[0],
                shape[1],
            );
        };
        check("input", geom.input_dims(), x);
        check("output", geom.output_dims(), y);
        let (weights, received): (usize, _) = (geom.kernel_dims().iter().product(), w.len());
        assert!(received >= weights, "kernel: expected {weights} floats, received {received}");
    }

    /// `y = conv(x, w)`, followed by the epilogue.
    pub fn forward(
        &self,
        x: MatrixRef<'_>,
        w: &[f32],
        epilogue: Epilogue<'_>,
        y: MatrixMut<'_>,
        scratch: &mut [f32],
    ) {
        let Conv { isa, method, geom, rows } = *self;
        self.check([x.rows(), x.cols()], w, [y.rows(), y.cols()]);
        epilogue.check(y.cols());
        let forward = Forward { geom, rows, x, w, epilogue, y, scratch };
        match method {
            // SAFETY: `check` ensured that all operands hold the images of the geometry.
            Method::Winograd2 => unsafe { dispatch(isa, forward.winograd::<winograd::Two>()) },
            // SAFETY: `check` ensured that all operands hold the images of the geometry.
            Method::Winograd4 => unsafe { dispatch(isa, forward.winograd::<winograd::Four>()) },
            // SAFETY: `check` ensured that all operands hold the images of the geometry.
            Method::Direct if depthwise::applies(geom) => unsafe {
                depthwise::forward(isa, forward);
            },
            // SAFETY: `check` ensured that all operands hold the images of the geometry.
            Method::Direct => unsafe { dispatch(isa, forward) },
        }
    }

    /// The gradient of the input. Overwrites `dx`.
    pub fn grad_input(&self, dy: MatrixRef<'_>, w: &[f32], dx: MatrixMut<'_>, scratch: &mut [f32]) {
        let Conv { isa, method, geom, rows } = *self;
        self.check([dx.rows(), dx.cols()], w, [dy.rows(), dy.cols()]);
        let grad = GradInput { geom, rows, dy, w, dx, scratch };
        match method {
            // SAFETY: `check` ensured that all operands hold the images of the geometry.
            Method::Winograd2 => unsafe { dispatch(isa, grad.winograd::<winograd::Two>()) },
            // SAFETY: `check` ensured that all operands hold the images of the geometry.
            Method::Winograd4 => unsafe { dispatch(isa, grad.winograd::<winograd::Four>()) },
            // SAFETY: `check` ensured that all operands hold the images of the geometry.
            Method::Direct if depthwise::applies(geom) => unsafe {
                depthwise::grad_input(isa, grad);
            },
            // SAFETY: `check` ensured that all operands hold the images of the geometry.
            Method::Direct => unsafe { dispatch(isa, grad) },
        }
    }

    /// The gradient of the kernel, summed over all rows in order. Overwrites `dw`.
    pub fn grad_kernel(
        &self,
        x: MatrixRef<'_>,
        dy: MatrixRef<'_>,
        dw: &mut [f32],
        scratch: &mut [f32],
    ) {
        let Conv { isa, method, geom, rows } = *self;
        self.check([x.rows(), x.cols()], dw, [dy.rows(), dy.cols()]);
        dw[..geom.kernel_dims().iter().product()].fill(0.0);
        let grad = grad_kernel::GradKernel { geom, rows, x, dy, dw, scratch };
        match method {
            // SAFETY: `check` ensured that all operands hold the images of the geometry.
            Method::Winograd2 => unsafe { dispatch(isa, grad.winograd::<winograd::Two>()) },
            // SAFETY: `check` ensured that all operands hold the images of the geometry.
            Method::Winograd4 => unsafe { dispatch(isa, grad.winograd::<winograd::Four>()) },
            // SAFETY: `check` ensured that all operands hold the images of the geometry.
            Method::Direct if depthwise::applies(geom) => unsafe {
                depthwise::grad_kernel(isa, grad);
            },
            // SAFETY: `check` ensured that all operands hold the images of the geometry.
            Method::Direct => unsafe { dispatch(isa, grad) },
        }
    }
}

/// The operands of [`Conv::forward`], with sizes already checked.
struct Forward<'a> {
    geom: &'a ConvGeom,
    rows: usize,
    x: MatrixRef<'a>,
    w: &'a [f32],
    epilogue: Epilogue<'a>,
    y: MatrixMut<'a>,
    scratch: &'a mut [f32],
}

impl<'a> Forward<'a> {
    fn winograd<P>(self) -> winograd::Product<'a, P> {
        let Forward { geom, rows, x, w, epilogue, y, scratch } = self;
        winograd::Product {
            geom,
            pass: Pass::Forward,
            rows,
            src: x,
            w,
            epilogue,
            dst: y,
            scratch,
            tile: PhantomData,
        }
    }
}

impl Kernel for Forward<'_> {
    type Output = ();

    #[inline(always)]
    unsafe fn run<S: Simd>(mut self) {
        let geom = self.geom;
        let [kh, kw, cin, filters] = geom.kernel_dims();
        let (taps, cout) = (kh * kw, filters / geom.groups);
        let mut arena = Arena(self.scratch);
        let packed = arena.floats(taps * cin * cout.next_multiple_of(S::LANES)).as_mut_ptr();
        let gather = uses_patches(geom);
        let mut tables = Tables::new(&mut arena, if gather { 1 } else { taps }, cin);
        let patches = if gather { arena.floats(BLOCK_ROWS * taps * cin) } else { &mut [] };
        let grid = Grid::forward(geom);
        let (x, y) = (self.x.src(), self.y.dst());
        for group in 0..geom.groups {
            // SAFETY: lengths were checked, offsets select the channels of the group.
            unsafe {
                let w = self.w.as_ptr().wrapping_add(group * cout);
                let weights = if reads_in_place::<S>(cout, self.rows * grid.points()) {
                    Weights::Rows(w, filters)
                } else {
                    pack_rows::<S>(w, filters, taps * cin, cout, packed);
                    Weights::Packed(packed)
                };
                let sweep = Sweep {
                    grid: &grid,
                    rows: self.rows,
                    src: Src { ptr: x.ptr.wrapping_add(group * cin), ld: x.ld },
                    k: cin,
                    weights,
                    cols: cout,
                    dst: Dst { ptr: y.ptr.wrapping_add(group * cout), ld: y.ld },
                    epilogue: self.epilogue.skip_columns(group * cout),
                };
                sweep.run::<S>(&mut tables, patches);
            }
        }
    }
}

/// The operands of [`Conv::grad_input`], with sizes already checked.
struct GradInput<'a> {
    geom: &'a ConvGeom,
    rows: usize,
    dy: MatrixRef<'a>,
    w: &'a [f32],
    dx: MatrixMut<'a>,
    scratch: &'a mut [f32],
}

impl<'a> GradInput<'a> {
    fn winograd<P>(self) -> winograd::Product<'a, P> {
        let GradInput { geom, rows, dy, w, dx, scratch } = self;
        winograd::Product {
            geom,
            pass: Pass::GradInput,
            rows,
            src: dy,
            w,
            epilogue: Epilogue::NONE,
            dst: dx,
            scratch,
            tile: PhantomData,
        }
    }
}

impl Kernel for GradInput<'_> {
    type Output = ();

    #[inline(always)]
    unsafe fn run<S: Simd>(mut self) {
        let geom = self.geom;
        if uses_patches(geom) {
            // SAFETY: lengths were checked.
            return unsafe { self.by_patches::<S>() };
        }
        let [kh, kw, cin, filters] = geom.kernel_dims();
        let cout = filters / geom.groups;
        let mut arena = Arena(self.scratch);
        let packed = arena.floats(kh * kw * cout * cin.next_multiple_of(S::LANES)).as_mut_ptr();
        let mut tables = Tables::new(&mut arena, kh * kw, cout);
        let (dy, dx) = (self.dy.src(), self.dx.dst());
        for group in 0..geom.groups {
            for grid in Grid::phases(geom) {
                let depth = grid.taps() * cout;
                for tap in 0..grid.taps() {
                    let [ky, kx] = grid.kernel_position(tap);
                    let first = (ky * kw + kx) * cin * filters + group * cout;
                    // SAFETY: the kernel's length was checked; `packed` holds all taps.
                    unsafe {
                        let w = self.w.as_ptr().wrapping_add(first);
                        let rows = PanelRows { panels: packed, first: tap * cout, depth };
                        pack_columns::<S>(w, filters, cout, cin, rows);
                    }
                }
                // SAFETY: lengths were checked, offsets select the channels of the group.
                unsafe {
                    let sweep = Sweep {
                        grid: &grid,
                        rows: self.rows,
                        src: Src { ptr: dy.ptr.wrapping_add(group * cout), ld: dy.ld },
                        k: cout,
                        weights: Weights::Packed(packed),
                        cols: cin,
                        dst: Dst { ptr: dx.ptr.wrapping_add(group * cin), ld: dx.ld },
                        epilogue: Epilogue::NONE,
                    };
                    sweep.run::<S>(&mut tables, &mut []);
                }
            }
        }
    }
}

/// Pointers of one block of pixels, and the zeros that pointers into the padding refer to.
struct Tables<'a> {
    zeros: &'a [f32],
    out: &'a mut [*mut f32],
    a: &'a mut [*mut f32],
}

impl<'a> Tables<'a> {
    fn new(arena: &mut Arena<'a>, taps: usize, k: usize) -> Tables<'a> {
        let zeros = arena.floats(k);
        zeros.fill(0.0);
        let out = arena.pointers(BLOCK_ROWS);
        Tables { zeros, out, a: arena.pointers(taps * BLOCK_ROWS) }
    }
}

/// The computation of one grid of destination pixels in all images.
struct Sweep<'a> {
    grid: &'a Grid,
    rows: usize,
    src: Src,
    k: usize,
    weights: Weights,
    cols: usize,
    dst: Dst,
    epilogue: Epilogue<'a>,
}

impl Sweep<'_> {
    /// Computes every pixel of the grid. Gathers patches unless `patches` is empty.
    #[inline(always)]
    unsafe fn run<S: Simd>(&self, tables: &mut Tables<'_>, patches: &mut [f32]) {
        let grid = self.grid;
        let pixels = self.rows * grid.points();
        let blocks = pixels.div_ceil(BLOCK_ROWS);
        for block in 0..blocks {
            let (first, rows) = part(pixels, blocks, block);
            // SAFETY: the grid stays inside the images, whose lengths were checked.
            unsafe {
                grid.destinations(first, self.dst.ptr, self.dst.ld, &mut tables.out[..rows]);
                let (taps, k);
                if patches.is_empty() {
                    (taps, k) = (grid.taps(), self.k);
                    let a = &mut tables.a[..taps * rows];
                    grid.sources(first, self.src.ptr, self.src.ld, tables.zeros, a, rows);
                } else {
                    (taps, k) = (1, grid.taps() * self.k);
                    grid.gather(first, rows, self.src.ptr, self.src.ld, self.k, patches);
                    for i in 0..rows {
                        tables.a[i] = patches.as_mut_ptr().add(i * k);
                    }
                }
                Block {
                    rows,
                    taps,
                    k,
                    a: tables.a.as_ptr().cast(),
                    weights: self.weights,
                    cols: self.cols,
                    out: tables.out.as_ptr(),
                    epilogue: self.epilogue,
                }
                .run::<S>();
            }
        }
    }
}

#[cfg(test)]
mod tests;
