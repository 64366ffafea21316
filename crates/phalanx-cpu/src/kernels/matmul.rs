//! Products of two computed values with any strides.
//!
//! The product is blocked over the summed axis and the columns of the result. Operands are read in place
//! if their elements are contiguous in the right direction, and copied to scratch block by block
//! otherwise. So heads of attention, which interleave in memory, need no transposition.

use super::layout::Copy;
use super::matrix::Epilogue;
use super::tile::{
    Arena, BLOCK_ROWS, Block, PanelRows, Weights, pack_columns, pack_rows, part, reads_in_place,
};
use crate::simd::{Isa, Kernel, Simd, dispatch};
use phalanx_graph::ops::matmul::{Axis, ProductAxes, offsets};
use std::ops::Range;

/// Steps of the summed axis per block.
const BLOCK_DEPTH: usize = 256;

/// Columns of the result per block; whole vectors.
const BLOCK_COLS: usize = 512;

/// Floats of scratch memory that a product needs.
pub fn scratch_len() -> usize {
    Arena::floats_len(BLOCK_ROWS * BLOCK_DEPTH)
        + 2 * Arena::floats_len(BLOCK_DEPTH * BLOCK_COLS)
        + Arena::floats_len(BLOCK_ROWS * BLOCK_COLS)
        + 2 * Arena::pointers_len(BLOCK_ROWS)
}

/// The operands and the result of a product.
#[derive(Clone, Copy, Debug)]
pub struct Pointers {
    /// The left operand.
    pub left: *const f32,
    /// The right operand.
    pub right: *const f32,
    /// The result.
    pub result: *mut f32,
}

/// A product, as items that can be computed in any order and by different workers.
#[derive(Clone, Copy, Debug)]
pub struct Product {
    axes: ProductAxes,
    /// Whether the operands are exchanged, so that less has to be transposed.
    swapped: bool,
}

/// Elements of a product that are transposed on the way: operands to scratch, or scratch to the result.
fn transposed(axes: &ProductAxes) -> usize {
    let [left, right, sum] = [&axes.left, &axes.right, &axes.sum].map(|axes| axes.count());
    let contiguous = |axis: Axis, operand: usize| axis.count == 1 || axis.strides[operand] == 1;
    let (columns, steps) = (axes.right.split_inner().1, axes.sum.split_inner().1);
    let count = |contiguous: bool, a: usize, b: usize| if contiguous { 0 } else { a * b };
    count(contiguous(steps, 0), left, sum)
        + count(contiguous(columns, 1), right, sum)
        + count(contiguous(columns, 2), left, right)
}

impl Product {
    /// A product with these axes.
    pub fn new(axes: &ProductAxes) -> Product {
        let swapped = axes.swapped();
        match transposed(&swapped) < transposed(axes) {
            true => Product { axes: swapped, swapped: true },
            false => Product { axes: *axes, swapped: false },
        }
    }

    /// Number of items: some columns of one batch item each.
    pub fn items(&self) -> usize {
        let (outer, inner) = self.axes.right.split_inner();
        let outer: usize = outer.iter().map(|a| a.count).product();
        self.axes.batch.count() * outer * inner.count.div_ceil(BLOCK_COLS)
    }

    /// Computes some items. Every element is summed over the contracted axes in order.
    ///
    /// # Safety
    /// The pointers are valid for all elements that the axes reach, and the result overlaps no operand.
    /// Nothing else accesses these items of the result.
    pub unsafe fn run(&self, isa: Isa, at: Pointers, items: Range<usize>, scratch: &mut [f32]) {
        if self.axes.left.count() == 0 || items.is_empty() {
            return;
        }
        let at = match self.swapped {
            true => Pointers { left: at.right, right: at.left, ..at },
            false => at,
        };
        // SAFETY: the caller's contract.
        unsafe { dispatch(isa, MatMul { isa, axes: &self.axes, at, items, scratch }) };
    }
}

struct MatMul<'a> {
    isa: Isa,
    axes: &'a ProductAxes,
    at: Pointers,
    items: Range<usize>,
    scratch: &'a mut [f32],
}

/// Scratch memory of a product.
struct Buffers<'a> {
    left: *mut f32,
    right: *mut f32,
    packed: *mut f32,
    result: *mut f32,
    rows: &'a mut [*mut f32],
    out: &'a mut [*mut f32],
}

/// A block of the product of one batch item: some columns and a part of the summed axis.
#[derive(Clone, Copy)]
struct Piece {
    /// The operands at the start of the block.
    left: *const f32,
    right: *const f32,
    depth: usize,
    cols: usize,
    /// Strides along the summed axis in both operands, and along the columns in the right operand.
    left_step: usize,
    right_step: usize,
    col_step: usize,
    /// Whether the result already holds a sum.
    accumulate: bool,
}

impl Kernel for MatMul<'_> {
    type Output = ();

    #[inline(always)]
    unsafe fn run<S: Simd>(self) {
        let MatMul { isa, axes, at, items, scratch } = self;
        let mut arena = Arena(scratch);
        let mut buffers = Buffers {
            left: arena.floats(BLOCK_ROWS * BLOCK_DEPTH).as_mut_ptr(),
            right: arena.floats(BLOCK_DEPTH * BLOCK_COLS).as_mut_ptr(),
            packed: arena.floats(BLOCK_DEPTH * BLOCK_COLS).as_mut_ptr(),
            result: arena.floats(BLOCK_ROWS * BLOCK_COLS).as_mut_ptr(),
            rows: arena.pointers(BLOCK_ROWS),
            out: arena.pointers(BLOCK_ROWS),
        };
        let (outer_cols, cols) = axes.right.split_inner();
        let outer: usize = outer_cols.iter().map(|a| a.count).product();
        let panels = cols.count.div_ceil(BLOCK_COLS);
        for i in items {
            let (item, panel) = (i / panels, i % panels);
            let ([l, r, y], [_, more_r, more_y]) =
                (offsets(axes.batch.loops(), item / outer), offsets(outer_cols, item % outer));
            let (col, count) =
                (panel * BLOCK_COLS, BLOCK_COLS.min(cols.count - panel * BLOCK_COLS));
            // SAFETY: the offsets are those of elements of the operands and the result.
            unsafe {
                let item = Pointers {
                    left: at.left.add(l),
                    right: at.right.add(r + more_r + col * cols.strides[1]),
                    result: at.result.add(y + more_y + col * cols.strides[2]),
                };
                let columns = Axis { count, ..cols };
                let mut job = Columns { isa, axes, at: item, columns, buffers: &mut buffers };
                job.run::<S>();
            }
        }
    }
}

/// Some columns of the result of one batch item.
struct Columns<'a, 'b> {
    isa: Isa,
    axes: &'a ProductAxes,
    at: Pointers,
    columns: Axis,
    buffers: &'a mut Buffers<'b>,
}

impl Columns<'_, '_> {
    /// Goes over the summed axes outside the rows if the result is written in place, so that a block of
    /// the right operand is packed once. Otherwise a block of rows is summed in scratch and copied.
    #[inline(always)]
    unsafe fn run<S: Simd>(&mut self) {
        let in_place = self.columns.count == 1 || self.columns.strides[2] == 1;
        let rows = self.axes.left.count();
        let blocks = rows.div_ceil(BLOCK_ROWS);
        let pieces = self.piece_count();
        // SAFETY: the caller's contract.
        unsafe {
            if in_place {
                for piece in 0..pieces {
                    let piece = self.piece(piece);
                    let weights = self.pack::<S>(&piece, rows);
                    for block in 0..blocks {
                        let (first, count) = part(rows, blocks, block);
                        self.fill_out(first, count);
                        self.multiply::<S>(&piece, weights, (first, count));
                    }
                }
                return;
            }
            for block in 0..blocks {
                let (first, count) = part(rows, blocks, block);
                for i in 0..count {
                    self.buffers.out[i] = self.buffers.result.add(i * BLOCK_COLS);
                }
                for piece in 0..pieces {
                    let piece = self.piece(piece);
                    let weights = self.pack::<S>(&piece, count);
                    self.multiply::<S>(&piece, weights, (first, count));
                }
                self.scatter(first, count);
            }
        }
    }

    /// Blocks of the summed axes: at least one, so that an empty sum gives zeros.
    fn piece_count(&self) -> usize {
        let (outer, inner) = self.axes.sum.split_inner();
        let outer: usize = outer.iter().map(|a| a.count).product();
        (outer * inner.count.div_ceil(BLOCK_DEPTH)).max(1)
    }

    fn piece(&self, i: usize) -> Piece {
        let (outer, inner) = self.axes.sum.split_inner();
        let parts = inner.count.div_ceil(BLOCK_DEPTH).max(1);
        let [l, r, _] = offsets(outer, i / parts);
        let (first, depth) = part(inner.count, parts, i % parts);
        let depth = if self.axes.sum.count() == 0 { 0 } else { depth };
        Piece {
            left: self.at.left.wrapping_add(l + first * inner.strides[0]),
            right: self.at.right.wrapping_add(r + first * inner.strides[1]),
            depth,
            cols: self.columns.count,
            left_step: inner.strides[0],
            right_step: inner.strides[1],
            col_step: self.columns.strides[1],
            accumulate: i > 0,
        }
    }

    /// The right operand's block for a product with `rows` rows.
    #[inline(always)]
    unsafe fn pack<S: Simd>(&mut self, p: &Piece, rows: usize) -> Weights {
        let Buffers { right, packed, .. } = *self.buffers;
        // SAFETY: the block lies inside the operand, and the buffers hold a block.
        unsafe {
            if p.col_step == 1 || p.cols == 1 {
                if reads_in_place::<S>(p.cols, rows) {
                    return Weights::Rows(p.right, p.right_step);
                }
                pack_rows::<S>(p.right, p.right_step, p.depth, p.cols, packed);
            } else if p.right_step == 1 || p.depth <= 1 {
                pack_columns::<S>(
                    p.right,
                    p.col_step,
                    p.depth,
                    p.cols,
                    PanelRows::all(packed, p.depth),
                );
            } else {
                let mut copy = Copy::new();
                copy.push(p.depth, p.right_step, p.cols);
                copy.push(p.cols, p.col_step, 1);
                copy.run(self.isa, p.right, right);
                pack_rows::<S>(right, p.cols, p.depth, p.cols, packed);
            }
        }
        Weights::Packed(packed)
    }

    /// Points to rows of the result in place.
    unsafe fn fill_out(&mut self, first: usize, count: usize) {
        for i in 0..count {
            let [_, _, y] = offsets(self.axes.left.loops(), first + i);
            // SAFETY: the row is one of the result.
            self.buffers.out[i] = unsafe { self.at.result.add(y) };
        }
    }

    /// Adds the product of a block of rows and a block of the right operand to the rows of `out`.
    #[inline(always)]
    unsafe fn multiply<S: Simd>(&mut self, p: &Piece, weights: Weights, rows: (usize, usize)) {
        // SAFETY: the rows lie inside the left operand, and the buffers hold a block.
        unsafe {
            self.fill_rows(p, rows);
            let (a, out) = (self.buffers.rows.as_ptr().cast(), self.buffers.out.as_ptr());
            let (k, cols, epilogue) = (p.depth, p.cols, Epilogue::NONE);
            let block = Block { rows: rows.1, taps: 1, k, a, weights, cols, out, epilogue };
            block.run_from::<S>(p.accumulate);
        }
    }

    /// Points to rows of the left operand, which are copied unless they are contiguous.
    unsafe fn fill_rows(&mut self, p: &Piece, (first, count): (usize, usize)) {
        let loops = self.axes.left.loops();
        let in_place = p.left_step == 1 || p.depth <= 1;
        for i in 0..count {
            let [l, ..] = offsets(loops, first + i);
            let from = p.left.wrapping_add(l).cast_mut();
            self.buffers.rows[i] = if in_place { from } else { self.copied_row(i) };
        }
        if in_place {
            return;
        }
        // SAFETY: the block lies inside the operand, and the buffer holds it.
        unsafe {
            if let [line] = loops {
                let mut copy = Copy::new();
                copy.push(count, line.strides[0], BLOCK_DEPTH);
                copy.push(p.depth, p.left_step, 1);
                let from = p.left.add(first * line.strides[0]);
                return copy.run(self.isa, from, self.buffers.left);
            }
            for i in 0..count {
                let [l, ..] = offsets(loops, first + i);
                let mut copy = Copy::new();
                copy.push(p.depth, p.left_step, 1);
                copy.run(self.isa, p.left.add(l), self.copied_row(i));
            }
        }
    }

    fn copied_row(&self, i: usize) -> *mut f32 {
        self.buffers.left.wrapping_add(i * BLOCK_DEPTH)
    }

    /// Copies rows of scratch to the result.
    unsafe fn scatter(&self, first: usize, count: usize) {
        if let [Axis { strides: [.., 1], .. }] = self.axes.left.loops() {
            let mut copy = Copy::new();
            copy.push(self.columns.count, 1, self.columns.strides[2]);
            copy.push(count, BLOCK_COLS, 1);
            // SAFETY: the rows are those of the result.
            return unsafe { copy.run(self.isa, self.buffers.result, self.at.result.add(first)) };
        }
        for i in 0..count {
            let [_, _, y] = offsets(self.axes.left.loops(), first + i);
            let mut copy = Copy::new();
            copy.push(self.columns.count, 1, self.columns.strides[2]);
            // SAFETY: the row is one of the result.
            unsafe { copy.run(self.isa, self.buffers.out[i], self.at.result.add(y)) };
        }
    }
}

#[cfg(test)]
mod tests;
