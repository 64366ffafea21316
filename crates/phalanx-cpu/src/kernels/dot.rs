//! Dense layers: `y = x w + b` and its two gradients.
//!
//! Rows of activations may be wider than the matrix (`ld`): inputs and outputs can be slices of a
//! concatenated tensor. [`forward`] reads the weights in place if `reads_in_place` allows it;
//! [`grad_input`] packs their transpose into scratch on every call, which costs about as much as six
//! rows of the product.

// A kernel fills two tables of pointers in lockstep and must avoid closures.
#![allow(clippy::needless_range_loop)]

use std::ops::Range;

use super::layout::Dst;
use super::tile::{
    Arena, BLOCK_ROWS, Block, Outer, Panels, Weights, pack_columns, pack_rows, part, reads_in_place,
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

/// Maximum number of rows of a matrix, so that products of sizes do not overflow.
const MAX_ROWS: usize = 1 << 35;

/// Panics unless `len` floats hold `rows` rows of `cols` floats, `ld` apart.
pub(crate) fn check_matrix(name: &str, len: usize, rows: usize, cols: usize, ld: usize) {
    // No slice has a size that overflows.
    let needed = match rows {
        0 => Some(0),
        _ => (rows - 1).checked_mul(ld).and_then(|n| n.checked_add(cols)),
    };
    assert!(
        rows <= MAX_ROWS && ld >= cols && needed.is_some_and(|n| len >= n),
        "{name}: expected {rows} rows of {cols} floats, {ld} apart, received {len} floats"
    );
}

/// `y[m, n] = x[m, k] w[k, n] (+ bias) (then max with 0)`.
#[allow(clippy::too_many_arguments)] // The matrix product and its leading dimensions, as in BLAS.
pub fn forward(
    isa: Isa,
    m: usize,
    k: usize,
    n: usize,
    x: &[f32],
    ldx: usize,
    w: &[f32],
    bias: Option<&[f32]>,
    relu: bool,
    y: &mut [f32],
    ldy: usize,
    scratch: &mut [f32],
) {
    forward_columns(isa, m, k, n, 0..n, x, ldx, w, bias, relu, y, ldy, scratch);
}

/// Columns `columns` of [`forward`]; `y` starts with the first of them.
///
/// Every element is summed over `k` in order, so any split of the columns gives the same bits.
#[allow(clippy::too_many_arguments)] // The matrix product and its leading dimensions, as in BLAS.
pub fn forward_columns(
    isa: Isa,
    m: usize,
    k: usize,
    n: usize,
    columns: Range<usize>,
    x: &[f32],
    ldx: usize,
    w: &[f32],
    bias: Option<&[f32]>,
    relu: bool,
    y: &mut [f32],
    ldy: usize,
    scratch: &mut [f32],
) {
    assert!(columns.start <= columns.end && columns.end <= n, "columns {columns:?} exceed {n}");
    check_matrix("x", x.len(), m, k, ldx);
    check_matrix("w", w.len(), k, n, n);
    check_matrix("y", y.len(), m, columns.len(), ldy);
    assert!(bias.is_none_or(|bias| bias.len() >= n), "bias: expected {n} floats");
    let bias = bias.map_or(std::ptr::null(), |b| b[columns.start..].as_ptr());
    let (w, n, ldw) = (&w[columns.start.min(w.len())..], columns.len(), n);
    let y = y.as_mut_ptr();
    let product =
        Product { m, k, n, x, ldx, w, ldw, transposed: false, bias, relu, y, ldy, scratch };
    // SAFETY: all lengths were checked above.
    unsafe { dispatch(isa, product) };
}

/// `dx[m, k] = dy[m, n] wᵀ` for `w[k, n]`.
#[allow(clippy::too_many_arguments)] // The matrix product and its leading dimensions, as in BLAS.
pub fn grad_input(
    isa: Isa,
    m: usize,
    k: usize,
    n: usize,
    dy: &[f32],
    ldy: usize,
    w: &[f32],
    dx: &mut [f32],
    ldx: usize,
    scratch: &mut [f32],
) {
    check_matrix("dx", dx.len(), m, k, ldx);
    // SAFETY: `dx` holds the result, as just checked.
    unsafe { grad_input_at(isa, m, k, n, dy, ldy, w, dx.as_mut_ptr(), ldx, scratch) };
}

/// [`grad_input`] for a `dx` inside a wider matrix whose other columns belong to other workers.
///
/// # Safety
/// `dx` points to `m` rows of `k` floats, `ldx` apart, that no other thread accesses.
#[allow(clippy::too_many_arguments)] // The matrix product and its leading dimensions, as in BLAS.
pub unsafe fn grad_input_at(
    isa: Isa,
    m: usize,
    k: usize,
    n: usize,
    dy: &[f32],
    ldy: usize,
    w: &[f32],
    dx: *mut f32,
    ldx: usize,
    scratch: &mut [f32],
) {
    check_matrix("dy", dy.len(), m, n, ldy);
    check_matrix("w", w.len(), k, n, n);
    let product = Product {
        m,
        k: n,
        n: k,
        x: dy,
        ldx: ldy,
        w,
        ldw: n,
        transposed: true,
        bias: std::ptr::null(),
        relu: false,
        y: dx,
        ldy: ldx,
        scratch,
    };
    // SAFETY: all lengths were checked above.
    unsafe { dispatch(isa, product) };
}

/// `dw[k_range, n] = xᵀ dy` for `x[m, k]` and `dy[m, n]`; `dw` holds the rows of `k_range` only.
///
/// Rows are summed in order for each element, so any split of `0..k` into ranges gives the same bits.
#[allow(clippy::too_many_arguments)] // The matrix product and its leading dimensions, as in BLAS.
pub fn grad_weight(
    isa: Isa,
    m: usize,
    k: usize,
    n: usize,
    x: &[f32],
    ldx: usize,
    dy: &[f32],
    ldy: usize,
    k_range: Range<usize>,
    dw: &mut [f32],
) {
    assert!(k_range.start <= k_range.end && k_range.end <= k, "k_range {k_range:?} exceeds {k}");
    check_matrix("dw", dw.len(), k_range.len(), n, n);
    check_matrix("x", x.len(), m, k, ldx);
    check_matrix("dy", dy.len(), m, n, ldy);
    // SAFETY: all lengths were checked above.
    unsafe { dispatch(isa, WeightGradient { m, n, x, ldx, dy, ldy, k_range, dw }) };
}

/// `y = Σ parts (+ bias) (then max with 0)`; each part has `m` rows of `n` floats. Parts are added in order.
///
/// # Safety
/// Every part holds the rows without gaps. `y` is valid for them and overlaps no part.
pub unsafe fn add_parts(
    isa: Isa,
    m: usize,
    n: usize,
    parts: &[*const f32],
    bias: Option<&[f32]>,
    relu: bool,
    y: Dst,
) {
    assert!(bias.is_none_or(|bias| bias.len() >= n), "bias: expected {n} floats");
    // SAFETY: all lengths were checked above.
    unsafe { dispatch(isa, AddParts { m, n, parts, bias, relu, y }) };
}

struct AddParts<'a> {
    m: usize,
    n: usize,
    parts: &'a [*const f32],
    bias: Option<&'a [f32]>,
    relu: bool,
    y: Dst,
}

impl Kernel for AddParts<'_> {
    type Output = ();

    #[inline(always)]
    unsafe fn run<S: Simd>(self) {
        for row in 0..self.m {
            let mut col = 0;
            while col < self.n {
                let lanes = S::LANES.min(self.n - col);
                // SAFETY: the caller's contract, and the bias was checked.
                unsafe {
                    let mut sum = S::zero();
                    for (i, part) in self.parts.iter().enumerate() {
                        let x = S::load_partial(part.add(row * self.n + col), lanes);
                        sum = if i == 0 { x } else { S::add(sum, x) };
                    }
                    if let Some(bias) = self.bias {
                        sum = S::add(sum, S::load_partial(bias.as_ptr().add(col), lanes));
                    }
                    if self.relu {
                        sum = S::max(S::zero(), sum);
                    }
                    S::store_partial(self.y.ptr.add(row * self.y.ld + col), sum, lanes);
                }
                col += S::LANES;
            }
        }
    }
}

/// `y[m, n] = x[m, k] w` with lengths already checked. `w` is `[k, n]`, or `[n, k]` if transposed, with rows
/// `ldw` apart.
struct Product<'a> {
    m: usize,
    k: usize,
    n: usize,
    x: &'a [f32],
    ldx: usize,
    w: &'a [f32],
    ldw: usize,
    transposed: bool,
    bias: *const f32,
    relu: bool,
    y: *mut f32,
    ldy: usize,
    scratch: &'a mut [f32],
}

impl Kernel for Product<'_> {
    type Output = ();

    #[inline(always)]
    unsafe fn run<S: Simd>(self) {
        let Product { m, k, n, .. } = self;
        if m == 0 || n == 0 {
            return;
        }
        let mut arena = Arena(self.scratch);
        let packed = arena.floats(k * n.next_multiple_of(S::LANES)).as_mut_ptr();
        let a = arena.pointers::<f32>(BLOCK_ROWS);
        let out = arena.pointers::<f32>(BLOCK_ROWS);
        let w = self.w.as_ptr();
        // SAFETY: lengths were checked, and `packed` holds the padded weights.
        let weights = unsafe {
            if self.transposed {
                pack_columns::<S>(w, self.ldw, k, n, packed, (0, k));
                Weights::Packed(packed)
            } else if reads_in_place::<S>(n, m) {
                Weights::Rows(w, self.ldw)
            } else {
                pack_rows::<S>(w, self.ldw, k, n, packed);
                Weights::Packed(packed)
            }
        };
        let blocks = m.div_ceil(BLOCK_ROWS);
        for block in 0..blocks {
            let (first, rows) = part(m, blocks, block);
            // SAFETY: rows `first..first + rows` lie inside both matrices.
            unsafe {
                for i in 0..rows {
                    a[i] = self.x.as_ptr().add((first + i) * self.ldx).cast_mut();
                    out[i] = self.y.add((first + i) * self.ldy);
                }
                let (bias, relu) = (self.bias, self.relu);
                let (a, out) = (a.as_ptr().cast(), out.as_ptr());
                Block { rows, taps: 1, k, a, weights, cols: n, out, bias, relu }.run::<S>();
            }
        }
    }
}

struct WeightGradient<'a> {
    m: usize,
    n: usize,
    x: &'a [f32],
    ldx: usize,
    dy: &'a [f32],
    ldy: usize,
    k_range: Range<usize>,
    dw: &'a mut [f32],
}

impl Kernel for WeightGradient<'_> {
    type Output = ();

    #[inline(always)]
    unsafe fn run<S: Simd>(self) {
        let (n, rows) = (self.n, self.k_range.len());
        if self.m == 0 {
            self.dw[..rows * n].fill(0.0);
        }
        let parts = self.m.div_ceil(GRAD_ROWS);
        for i in 0..parts {
            let (first, count) = part(self.m, parts, i);
            // SAFETY: lengths were checked by `grad_weight`.
            unsafe {
                let outer = Outer {
                    rows,
                    cols: n,
                    extent: [1, 1, count],
                    x: self.x.as_ptr().add(first * self.ldx + self.k_range.start),
                    x_step: [0, 0, self.ldx],
                    y: self.dy.as_ptr().add(first * self.ldy),
                    y_step: [0, 0, self.ldy],
                    out: self.dw.as_mut_ptr(),
                    out_step: n,
                    accumulate: i > 0,
                };
                for panel in Panels::new::<S>(n) {
                    outer.run_panel::<S>(panel);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests;
