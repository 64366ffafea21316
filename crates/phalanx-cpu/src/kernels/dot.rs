//! Dense layers: `y = x w + b` and its two gradients.
//!
//! Rows of activations may be wider than the matrix (`ld`): inputs and outputs can be slices of a
//! concatenated tensor. [`forward`] reads the weights where they lie if `reads_in_place` allows it;
//! [`grad_input`] packs their transpose into scratch on every call, which costs about as much as six
//! rows of the product.

// Two tables of pointers are filled in step inside a kernel, where closures are to be avoided.
#![allow(clippy::needless_range_loop)]

use std::ops::Range;

use super::tile::{
    Arena, BLOCK_ROWS, Block, Outer, Panels, Weights, pack_columns, pack_rows, part, reads_in_place,
};
use crate::simd::{Isa, Kernel, MAX_LANES, Simd, dispatch};

/// Rows whose outer products are summed in one pass of the weight gradient.
const GRAD_ROWS: usize = 256;

/// Floats of scratch that [`forward`] and [`grad_input`] need for a kernel `[k, n]`.
pub fn scratch_len(k: usize, n: usize) -> usize {
    let packed = (k * n.next_multiple_of(MAX_LANES)).max(n * k.next_multiple_of(MAX_LANES));
    Arena::floats_len(packed) + 2 * Arena::pointers_len(BLOCK_ROWS)
}

/// Panics unless `len` floats hold `rows` rows of `cols` floats, `ld` apart.
pub(crate) fn check_matrix(name: &str, len: usize, rows: usize, cols: usize, ld: usize) {
    let needed = if rows == 0 { 0 } else { (rows - 1) * ld + cols };
    assert!(
        ld >= cols && len >= needed,
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
    let product =
        Product { m, k, n, x, ldx, w, ldw, transposed: false, bias, relu, y, ldy, scratch };
    dispatch(isa, product);
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
    check_matrix("dy", dy.len(), m, n, ldy);
    check_matrix("w", w.len(), k, n, n);
    check_matrix("dx", dx.len(), m, k, ldx);
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
    dispatch(isa, product);
}

/// Rows of a batch that contribute to a weight gradient.
#[derive(Clone, Copy, Debug)]
pub struct GradBlock<'a> {
    /// Inputs `[rows, k]`.
    pub x: &'a [f32],
    /// Floats between rows of `x`.
    pub ldx: usize,
    /// Gradients of the outputs `[rows, n]`.
    pub dy: &'a [f32],
    /// Floats between rows of `dy`.
    pub ldy: usize,
    /// Rows.
    pub rows: usize,
}

/// `dw[k_range, n] = Σ xᵀ dy` over the blocks in order; `dw` holds the rows of `k_range` only.
///
/// Rows are summed in order for each element, so any split of `0..k` into ranges gives the same bits.
pub fn grad_weight(
    isa: Isa,
    k: usize,
    n: usize,
    blocks: &[GradBlock<'_>],
    k_range: Range<usize>,
    dw: &mut [f32],
) {
    assert!(k_range.start <= k_range.end && k_range.end <= k, "k_range {k_range:?} exceeds {k}");
    check_matrix("dw", dw.len(), k_range.len(), n, n);
    for block in blocks {
        check_matrix("x", block.x.len(), block.rows, k, block.ldx);
        check_matrix("dy", block.dy.len(), block.rows, n, block.ldy);
    }
    dispatch(isa, WeightGradient { n, blocks, k_range, dw });
}

/// `y[m, n] = x[m, k] w` with lengths checked; `w` is `[k, n]`, or `[n, k]` if transposed, its rows
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
    y: &'a mut [f32],
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
                    out[i] = self.y.as_mut_ptr().add((first + i) * self.ldy);
                }
                let (bias, relu) = (self.bias, self.relu);
                let (a, out) = (a.as_ptr().cast(), out.as_ptr());
                Block { rows, taps: 1, k, a, weights, cols: n, out, bias, relu }.run::<S>();
            }
        }
    }
}

struct WeightGradient<'a> {
    n: usize,
    blocks: &'a [GradBlock<'a>],
    k_range: Range<usize>,
    dw: &'a mut [f32],
}

impl Kernel for WeightGradient<'_> {
    type Output = ();

    #[inline(always)]
    unsafe fn run<S: Simd>(self) {
        let (n, rows) = (self.n, self.k_range.len());
        let mut accumulate = false;
        for block in self.blocks {
            let parts = block.rows.div_ceil(GRAD_ROWS);
            for i in 0..parts {
                let (first, count) = part(block.rows, parts, i);
                // SAFETY: lengths were checked by `grad_weight`.
                unsafe {
                    let outer = Outer {
                        rows,
                        cols: n,
                        extent: [1, 1, count],
                        x: block.x.as_ptr().add(first * block.ldx + self.k_range.start),
                        x_step: [0, 0, block.ldx],
                        y: block.dy.as_ptr().add(first * block.ldy),
                        y_step: [0, 0, block.ldy],
                        out: self.dw.as_mut_ptr(),
                        out_step: n,
                        accumulate,
                    };
                    for panel in Panels::new::<S>(n) {
                        outer.run_panel::<S>(panel);
                    }
                }
                accumulate = true;
            }
        }
        if !accumulate {
            self.dw[..rows * n].fill(0.0);
        }
    }
}

#[cfg(test)]
mod tests;
