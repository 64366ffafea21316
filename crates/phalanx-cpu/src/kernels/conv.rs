//! Two-dimensional convolution, NHWC, and its two gradients.
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
//! `ldx` and `ldy` are the floats between neighbouring pixels, so that inputs and outputs may be
//! channel slices of a wider tensor. No function allocates, and each output is summed in one fixed
//! order that does not depend on the number of rows.

mod depthwise;
mod grad_kernel;
mod grid;
mod method;
mod scatter;
mod winograd;

use std::marker::PhantomData;

use phalanx_graph::ConvGeom;

use self::grid::Grid;
use super::dot::check_matrix;
use super::tile::{
    Arena, BLOCK_ROWS, Block, Weights, pack_columns, pack_rows, part, reads_in_place,
};
use crate::simd::{Isa, Kernel, MAX_LANES, Simd, dispatch};

pub use self::method::Method;

/// With fewer channels per tap than this, patches are gathered into scratch instead of read through pointers.
const GATHER_BELOW_CHANNELS: usize = 8;

/// One of the three computations of a convolution.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Pass {
    /// [`forward`].
    Forward,
    /// [`grad_input`].
    GradInput,
    /// [`grad_kernel`].
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
    geom.input[2] / geom.groups < GATHER_BELOW_CHANNELS && geom.kernel != [1, 1]
}

/// Panics if sizes of a geometry overflow or are zero.
fn check_geometry(geom: &ConvGeom) {
    if let Err(error) = geom.check() {
        panic!("{error}");
    }
}

/// Panics unless the slices hold `rows` images of the geometry.
fn check(
    method: Method,
    geom: &ConvGeom,
    rows: usize,
    x: (usize, usize),
    w: usize,
    y: (usize, usize),
) {
    let ConvGeom { input, output, .. } = *geom;
    check_geometry(geom);
    assert!(method.computes(geom), "{method:?} does not compute {geom:?}");
    let pixels = |name: &str, [height, width, _]: [usize; 3]| {
        // `check_geometry` ensures that the pixels of one image do not overflow.
        let all = rows.checked_mul(height * width);
        all.unwrap_or_else(|| panic!("{name}: {rows} images of {height} x {width} pixels"))
    };
    check_matrix("input", x.0, pixels("input", input), input[2], x.1);
    check_matrix("output", y.0, pixels("output", output), output[2], y.1);
    let weights: usize = geom.kernel_dims().iter().product();
    assert!(w >= weights, "kernel: expected {weights} floats, received {w}");
}

/// `y = conv(x, w) (+ bias) (then max with 0)`.
#[allow(clippy::too_many_arguments)] // Operands and their leading dimensions, as in BLAS.
pub fn forward(
    isa: Isa,
    method: Method,
    geom: &ConvGeom,
    rows: usize,
    x: &[f32],
    ldx: usize,
    w: &[f32],
    bias: Option<&[f32]>,
    relu: bool,
    y: &mut [f32],
    ldy: usize,
    scratch: &mut [f32],
) {
    check(method, geom, rows, (x.len(), ldx), w.len(), (y.len(), ldy));
    assert!(bias.is_none_or(|b| b.len() >= geom.output[2]), "bias: expected {}", geom.output[2]);
    let bias = bias.map_or(std::ptr::null(), <[f32]>::as_ptr);
    let forward = Forward { geom, rows, x, ldx, w, bias, relu, y, ldy, scratch };
    match method {
        // SAFETY: `check` ensured that all slices hold the images of the geometry.
        Method::Winograd2 => unsafe { dispatch(isa, forward.winograd::<winograd::Two>()) },
        // SAFETY: `check` ensured that all slices hold the images of the geometry.
        Method::Winograd4 => unsafe { dispatch(isa, forward.winograd::<winograd::Four>()) },
        Method::Direct if depthwise::applies(geom) => {
            // SAFETY: `check` ensured that all slices hold the images of the geometry.
            unsafe {
                depthwise::forward(isa, geom, rows, x, ldx, w, bias, relu, forward.y, ldy);
            }
        }
        // SAFETY: `check` ensured that all slices hold the images of the geometry.
        Method::Direct => unsafe { dispatch(isa, forward) },
    }
}

/// The gradient of the input. Overwrites `dx`.
#[allow(clippy::too_many_arguments)] // Operands and their leading dimensions, as in BLAS.
pub fn grad_input(
    isa: Isa,
    method: Method,
    geom: &ConvGeom,
    rows: usize,
    dy: &[f32],
    ldy: usize,
    w: &[f32],
    dx: &mut [f32],
    ldx: usize,
    scratch: &mut [f32],
) {
    check(method, geom, rows, (dx.len(), ldx), w.len(), (dy.len(), ldy));
    let grad = GradInput { geom, rows, dy, ldy, w, dx, ldx, scratch };
    match method {
        // SAFETY: `check` ensured that all slices hold the images of the geometry.
        Method::Winograd2 => unsafe { dispatch(isa, grad.winograd::<winograd::Two>()) },
        // SAFETY: `check` ensured that all slices hold the images of the geometry.
        Method::Winograd4 => unsafe { dispatch(isa, grad.winograd::<winograd::Four>()) },
        Method::Direct if depthwise::applies(geom) => {
            // SAFETY: `check` ensured that all slices hold the images of the geometry.
            unsafe { depthwise::grad_input(isa, geom, rows, dy, ldy, w, grad.dx, ldx) };
        }
        // SAFETY: `check` ensured that all slices hold the images of the geometry.
        Method::Direct => unsafe { dispatch(isa, grad) },
    }
}

/// The gradient of the kernel, summed over all rows in order. Overwrites `dw`.
#[allow(clippy::too_many_arguments)] // Operands and their leading dimensions, as in BLAS.
pub fn grad_kernel(
    isa: Isa,
    method: Method,
    geom: &ConvGeom,
    rows: usize,
    x: &[f32],
    ldx: usize,
    dy: &[f32],
    ldy: usize,
    dw: &mut [f32],
    scratch: &mut [f32],
) {
    check(method, geom, rows, (x.len(), ldx), dw.len(), (dy.len(), ldy));
    dw[..geom.kernel_dims().iter().product()].fill(0.0);
    let grad = grad_kernel::GradKernel { geom, rows, x, ldx, dy, ldy, dw, scratch };
    match method {
        // SAFETY: `check` ensured that all slices hold the images of the geometry.
        Method::Winograd2 => unsafe { dispatch(isa, grad.winograd::<winograd::Two>()) },
        // SAFETY: `check` ensured that all slices hold the images of the geometry.
        Method::Winograd4 => unsafe { dispatch(isa, grad.winograd::<winograd::Four>()) },
        Method::Direct if depthwise::applies(geom) => {
            // SAFETY: `check` ensured that all slices hold the images of the geometry.
            unsafe { depthwise::grad_kernel(isa, geom, rows, x, ldx, dy, ldy, grad.dw) };
        }
        // SAFETY: `check` ensured that all slices hold the images of the geometry.
        Method::Direct => unsafe { dispatch(isa, grad) },
    }
}

struct Forward<'a> {
    geom: &'a ConvGeom,
    rows: usize,
    x: &'a [f32],
    ldx: usize,
    w: &'a [f32],
    bias: *const f32,
    relu: bool,
    y: &'a mut [f32],
    ldy: usize,
    scratch: &'a mut [f32],
}

impl<'a> Forward<'a> {
    fn winograd<P>(self) -> winograd::Product<'a, P> {
        let Forward { geom, rows, x, ldx, w, bias, relu, y, ldy, scratch } = self;
        winograd::Product {
            geom,
            pass: Pass::Forward,
            rows,
            src: x,
            src_ld: ldx,
            w,
            bias,
            relu,
            dst: y,
            dst_ld: ldy,
            scratch,
            tile: PhantomData,
        }
    }
}

impl Kernel for Forward<'_> {
    type Output = ();

    #[inline(always)]
    unsafe fn run<S: Simd>(self) {
        let geom = self.geom;
        let [kh, kw, cin, filters] = geom.kernel_dims();
        let (taps, cout) = (kh * kw, filters / geom.groups);
        let mut arena = Arena(self.scratch);
        let packed = arena.floats(taps * cin * cout.next_multiple_of(S::LANES)).as_mut_ptr();
        let gather = uses_patches(geom);
        let mut tables = Tables::new(&mut arena, if gather { 1 } else { taps }, cin);
        let patches = if gather { arena.floats(BLOCK_ROWS * taps * cin) } else { &mut [] };
        let grid = Grid::forward(geom);
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
                    src: self.x.as_ptr().wrapping_add(group * cin),
                    src_ld: self.ldx,
                    k: cin,
                    weights,
                    cols: cout,
                    dst: self.y.as_mut_ptr().wrapping_add(group * cout),
                    dst_ld: self.ldy,
                    bias: if self.bias.is_null() { self.bias } else { self.bias.add(group * cout) },
                    relu: self.relu,
                };
                sweep.run::<S>(&mut tables, patches);
            }
        }
    }
}

struct GradInput<'a> {
    geom: &'a ConvGeom,
    rows: usize,
    dy: &'a [f32],
    ldy: usize,
    w: &'a [f32],
    dx: &'a mut [f32],
    ldx: usize,
    scratch: &'a mut [f32],
}

impl<'a> GradInput<'a> {
    fn winograd<P>(self) -> winograd::Product<'a, P> {
        let GradInput { geom, rows, dy, ldy, w, dx, ldx, scratch } = self;
        winograd::Product {
            geom,
            pass: Pass::GradInput,
            rows,
            src: dy,
            src_ld: ldy,
            w,
            bias: std::ptr::null(),
            relu: false,
            dst: dx,
            dst_ld: ldx,
            scratch,
            tile: PhantomData,
        }
    }
}

impl Kernel for GradInput<'_> {
    type Output = ();

    #[inline(always)]
    unsafe fn run<S: Simd>(self) {
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
        for group in 0..geom.groups {
            for grid in Grid::phases(geom) {
                let depth = grid.taps() * cout;
                for tap in 0..grid.taps() {
                    let [ky, kx] = grid.kernel_position(tap);
                    let first = (ky * kw + kx) * cin * filters + group * cout;
                    // SAFETY: the kernel's length was checked; `packed` holds all taps.
                    unsafe {
                        let w = self.w.as_ptr().wrapping_add(first);
                        pack_columns::<S>(w, filters, cout, cin, packed, (tap * cout, depth));
                    }
                }
                // SAFETY: lengths were checked, offsets select the channels of the group.
                unsafe {
                    let sweep = Sweep {
                        grid: &grid,
                        rows: self.rows,
                        src: self.dy.as_ptr().wrapping_add(group * cout),
                        src_ld: self.ldy,
                        k: cout,
                        weights: Weights::Packed(packed),
                        cols: cin,
                        dst: self.dx.as_mut_ptr().wrapping_add(group * cin),
                        dst_ld: self.ldx,
                        bias: std::ptr::null(),
                        relu: false,
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
    src: *const f32,
    src_ld: usize,
    k: usize,
    weights: Weights,
    cols: usize,
    dst: *mut f32,
    dst_ld: usize,
    bias: *const f32,
    relu: bool,
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
                grid.destinations(first, self.dst, self.dst_ld, &mut tables.out[..rows]);
                let (taps, k);
                if patches.is_empty() {
                    (taps, k) = (grid.taps(), self.k);
                    let a = &mut tables.a[..taps * rows];
                    grid.sources(first, self.src, self.src_ld, tables.zeros, a, rows);
                } else {
                    (taps, k) = (1, grid.taps() * self.k);
                    grid.gather(first, rows, self.src, self.src_ld, self.k, patches);
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
                    bias: self.bias,
                    relu: self.relu,
                }
                .run::<S>();
            }
        }
    }
}

#[cfg(test)]
mod tests;
