//! The input gradient of a convolution with few input channels.
//!
//! A vector across input channels would be nearly empty. Instead, one matrix product per block of pixels
//! computes the gradients of whole patches (all taps and channels of an output pixel). The patches are then
//! added to the input pixels in the order of output pixels.

// A kernel fills two tables of pointers in lockstep and must avoid closures.
#![allow(clippy::needless_range_loop)]

use phalanx_graph::ConvGeom;

use super::GradInput;
use super::grid::Grid;
use crate::kernels::matrix::Epilogue;
use crate::kernels::tile::{Arena, BLOCK_ROWS, Block, PanelRows, Weights, pack_columns, part};
use crate::simd::{MAX_LANES, Simd};

/// Floats of scratch.
pub(super) fn scratch_len(geom: &ConvGeom) -> usize {
    let [kh, kw, cin, filters] = geom.kernel_dims();
    let depth = kh * kw * cin;
    Arena::floats_len(filters / geom.groups * depth.next_multiple_of(MAX_LANES))
        + Arena::floats_len(BLOCK_ROWS * depth)
        + 2 * Arena::pointers_len(BLOCK_ROWS)
}

impl GradInput<'_> {
    /// Computes the input gradient through patches. Overwrites `dx`.
    ///
    /// # Safety
    /// Lengths were checked, and the machine has the instructions of `S`.
    #[inline(always)]
    pub(super) unsafe fn by_patches<S: Simd>(mut self) {
        let geom = self.geom;
        let [kh, kw, cin, filters] = geom.kernel_dims();
        let (depth, cout) = (kh * kw * cin, filters / geom.groups);
        let mut arena = Arena(self.scratch);
        let packed = arena.floats(cout * depth.next_multiple_of(S::LANES)).as_mut_ptr();
        let patches = arena.floats(BLOCK_ROWS * depth);
        let a = arena.pointers::<f32>(BLOCK_ROWS);
        let out = arena.pointers::<f32>(BLOCK_ROWS);
        self.dx.zero();
        let (dy, dx) = (self.dy.src(), self.dx.dst());
        let grid = Grid::forward(geom);
        let pixels = self.rows * grid.points();
        let blocks = pixels.div_ceil(BLOCK_ROWS);
        for group in 0..geom.groups {
            // SAFETY: lengths were checked, and offsets select the channels of the group. `packed` holds all
            // taps, and the tables hold a block.
            unsafe {
                let w = self.w.as_ptr().wrapping_add(group * cout);
                pack_columns::<S>(w, filters, cout, depth, PanelRows::all(packed, cout));
                for block in 0..blocks {
                    let (first, rows) = part(pixels, blocks, block);
                    for i in 0..rows {
                        let pixel = (first + i) * dy.ld + group * cout;
                        a[i] = dy.ptr.add(pixel).cast_mut();
                        out[i] = patches.as_mut_ptr().add(i * depth);
                    }
                    Block {
                        rows,
                        taps: 1,
                        k: cout,
                        a: a.as_ptr().cast(),
                        weights: Weights::Packed(packed),
                        cols: depth,
                        out: out.as_ptr(),
                        epilogue: Epilogue::NONE,
                    }
                    .run::<S>();
                    let to = dx.ptr.wrapping_add(group * cin);
                    grid.scatter(first, rows, patches, cin, to, dx.ld);
                }
            }
        }
    }
}
