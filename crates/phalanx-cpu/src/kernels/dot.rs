//! Dense layers: `y = x w + b` and its two gradients.
//!
//! Rows of activations may have gaps between them ([`MatrixRef`]): inputs and outputs can be slices of a
//! concatenated tensor. [`forward`] reads the weights in place if `reads_in_place` allows it;
//! [`grad_input`] packs their transpose into scratch on every call, which costs about as much as six
//! rows of the product.

// A kernel fills two tables of pointers in lockstep and must avoid closures.
#![allow(clippy::needless_range_loop)]

use super::matrix::{Epilogue, MatrixMut, MatrixRef};
use super::tile::{
    Arena, BLOCK_ROWS, Block, Outer, PanelRows, Panels, Weights, pack_columns, pack_rows, part,
    reads_in_place,
};
use crate::simd::{Isa, Kernel, MAX_LANES, Simd, dispatch};
use phalanx_graph::MAX_ELEMENTS;

/// Rows whose outer products are summed in one pass of the weight gradient.
const GRAD_ROWS: usize = 256;

/// Floats of scratch that [`forward`] and [`grad_input`] need for a kernel `[k, n]`.
///
/// # Panics
/// If the number overflows.
pub fn scratch_len(k: usize, n: usize) -> usize {
    let packed = |k: usize, n: usize| k.checked_mul(n.checked_next_multiple_of(MAX_LANES)?);
    let packed = packed(k, n).zip(packed(n, k)).map(|(a, b)| a.max(b));
    let packed = packed.filter(|n| *n <= MAX_ELEMENTS);
    let packed = packed.unwrap_or_else(|| panic!("kernel: {k} x {n} floats cannot be counted"));
    Arena::floats_len(packed) + 2 * Arena::pointers_len(BLOCK_ROWS)
}

/// Panics unless a shape is as expected.
#[track_caller]
fn check_shape(name: &str, shape: [usize; 2], expected: [usize; 2]) {
    let ([m, n], [rows, cols]) = (expected, shape);
    assert!(
        shape == expected,
        "{name}: expected {m} rows of {n} floats, received {rows} of {cols}"
    );
}

/// `y[m, n] = x[m, k] w[k, n]`, followed by the epilogue.
///
/// Every element is summed over `k` in order, so any split of the columns gives the same bits.
pub fn forward(
    isa: Isa,
    x: MatrixRef<'_>,
    w: MatrixRef<'_>,
    epilogue: Epilogue<'_>,
    y: MatrixMut<'_>,
    scratch: &mut [f32],
) {
    check_shape("w", [w.rows(), w.cols()], [x.cols(), y.cols()]);
    check_shape("y", [y.rows(), y.cols()], [x.rows(), w.cols()]);
    epilogue.check(y.cols());
    // SAFETY: all sizes were checked above.
    unsafe { dispatch(isa, Gemm { x, w, transposed: false, epilogue, y, scratch }) };
}

/// `dx[m, k] = dy[m, n] wᵀ` for `w[k, n]`.
pub fn grad_input(
    isa: Isa,
    dy: MatrixRef<'_>,
    w: MatrixRef<'_>,
    dx: MatrixMut<'_>,
    scratch: &mut [f32],
) {
    check_shape("w", [w.rows(), w.cols()], [dx.cols(), dy.cols()]);
    check_shape("dx", [dx.rows(), dx.cols()], [dy.rows(), w.rows()]);
    let epilogue = Epilogue::NONE;
    // SAFETY: all sizes were checked above.
    unsafe { dispatch(isa, Gemm { x: dy, w, transposed: true, epilogue, y: dx, scratch }) };
}

/// `dw[k, n] = xᵀ dy` for `x[m, k]` and `dy[m, n]`.
///
/// Rows are summed in order for each element, so any split of the columns of `x` gives the same bits.
pub fn grad_weight(isa: Isa, x: MatrixRef<'_>, dy: MatrixRef<'_>, dw: MatrixMut<'_>) {
    check_shape("dy", [dy.rows(), dy.cols()], [x.rows(), dw.cols()]);
    check_shape("dw", [dw.rows(), dw.cols()], [x.cols(), dy.cols()]);
    // SAFETY: all sizes were checked above.
    unsafe { dispatch(isa, WeightGradient { x, dy, dw }) };
}

/// `y = Σ parts`, followed by the epilogue. Parts are added in order.
///
/// # Safety
/// Every part holds the rows of `y` without gaps and does not overlap `y`.
pub unsafe fn add_parts(isa: Isa, parts: &[*const f32], epilogue: Epilogue<'_>, y: MatrixMut<'_>) {
    epilogue.check(y.cols());
    // SAFETY: the caller's contract; the bias was checked above.
    unsafe { dispatch(isa, AddParts { parts, epilogue, y }) };
}

struct AddParts<'a> {
    parts: &'a [*const f32],
    epilogue: Epilogue<'a>,
    y: MatrixMut<'a>,
}

impl Kernel for AddParts<'_> {
    type Output = ();

    #[inline(always)]
    unsafe fn run<S: Simd>(mut self) {
        let (rows, cols, y) = (self.y.rows(), self.y.cols(), self.y.dst());
        for row in 0..rows {
            let mut col = 0;
            while col < cols {
                let lanes = S::LANES.min(cols - col);
                // SAFETY: the caller's contract, and the bias was checked.
                unsafe {
                    let mut sum = S::zero();
                    for (i, part) in self.parts.iter().enumerate() {
                        let x = S::load_partial(part.add(row * cols + col), lanes);
                        sum = if i == 0 { x } else { S::add(sum, x) };
                    }
                    if let Some(bias) = self.epilogue.bias {
                        sum = S::add(sum, S::load_partial(bias.as_ptr().add(col), lanes));
                    }
                    if self.epilogue.relu {
                        sum = S::max(S::zero(), sum);
                    }
                    S::store_partial(y.ptr.add(row * y.ld + col), sum, lanes);
                }
                col += S::LANES;
            }
        }
    }
}

/// `y[m, n] = x[m, k] w` with sizes already checked. `w` is `[k, n]`, or `[n, k]` if transposed.
struct Gemm<'a> {
    x: MatrixRef<'a>,
    w: MatrixRef<'a>,
    transposed: bool,
    epilogue: Epilogue<'a>,
    y: MatrixMut<'a>,
    scratch: &'a mut [f32],
}

impl Kernel for Gemm<'_> {
    type Output = ();

    #[inline(always)]
    unsafe fn run<S: Simd>(mut self) {
        let (m, k, n) = (self.x.rows(), self.x.cols(), self.y.cols());
        if m == 0 || n == 0 {
            return;
        }
        let mut arena = Arena(self.scratch);
        let packed = arena.floats(k * n.next_multiple_of(S::LANES)).as_mut_ptr();
        let a = arena.pointers::<f32>(BLOCK_ROWS);
        let out = arena.pointers::<f32>(BLOCK_ROWS);
        let (x, w, y) = (self.x.src(), self.w.src(), self.y.dst());
        // SAFETY: sizes were checked, and `packed` holds the padded weights.
        let weights = unsafe {
            if self.transposed {
                pack_columns::<S>(w.ptr, w.ld, k, n, PanelRows::all(packed, k));
                Weights::Packed(packed)
            } else if reads_in_place::<S>(n, m) {
                Weights::Rows(w.ptr, w.ld)
            } else {
                pack_rows::<S>(w.ptr, w.ld, k, n, packed);
                Weights::Packed(packed)
            }
        };
        let blocks = m.div_ceil(BLOCK_ROWS);
        for block in 0..blocks {
            let (first, rows) = part(m, blocks, block);
            // SAFETY: rows `first..first + rows` lie inside both matrices.
            unsafe {
                for i in 0..rows {
                    a[i] = x.ptr.add((first + i) * x.ld).cast_mut();
                    out[i] = y.ptr.add((first + i) * y.ld);
                }
                let (a, out, epilogue) = (a.as_ptr().cast(), out.as_ptr(), self.epilogue);
                Block { rows, taps: 1, k, a, weights, cols: n, out, epilogue }.run::<S>();
            }
        }
    }
}

struct WeightGradient<'a> {
    x: MatrixRef<'a>,
    dy: MatrixRef<'a>,
    dw: MatrixMut<'a>,
}

impl Kernel for WeightGradient<'_> {
    type Output = ();

    #[inline(always)]
    unsafe fn run<S: Simd>(mut self) {
        let (m, rows, cols) = (self.x.rows(), self.dw.rows(), self.dw.cols());
        if m == 0 {
            self.dw.zero();
        }
        let (x, dy, dw) = (self.x.src(), self.dy.src(), self.dw.dst());
        let parts = m.div_ceil(GRAD_ROWS);
        for i in 0..parts {
            let (first, count) = part(m, parts, i);
            // SAFETY: sizes were checked by `grad_weight`.
            unsafe {
                let outer = Outer {
                    rows,
                    cols,
                    extent: [1, 1, count],
                    x: x.ptr.add(first * x.ld),
                    x_step: [0, 0, x.ld],
                    y: dy.ptr.add(first * dy.ld),
                    y_step: [0, 0, dy.ld],
                    out: dw.ptr,
                    out_step: dw.ld,
                    accumulate: i > 0,
                };
                for panel in Panels::new::<S>(cols) {
                    outer.run_panel::<S>(panel);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests;
