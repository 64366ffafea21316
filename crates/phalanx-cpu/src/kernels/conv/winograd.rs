//! Winograd's minimal filtering for 3x3 convolutions of stride one: `F(4x4, 3x3)` and `F(2x2, 3x3)`.
//!
//! The image is split into tiles of `M x M` results. A tile's `N x N` inputs are transformed
//! (`transform.rs`), multiplied with transformed weights in `N * N` matrix products over the channels,
//! one per point, and transformed back: 36 instead of 144 multiplications for 16 results. Tiles are
//! processed in blocks whose transforms stay in cache, columns (output channels) in groups whose
//! transformed weights have at most [`GROUP_FLOATS`] floats.
//!
//! An input gradient is the same product with the kernel rotated by 180 degrees and transposed. The
//! kernel's gradient sums products of transformed inputs and transformed output gradients over all
//! tiles and transforms that sum once (`grad_kernel.rs`).
//!
//! Every sum has one fixed order that depends neither on the number of rows nor on the block. Errors are
//! about twice those of the direct sum. A NaN or an infinity spreads over its tile.

mod grad_kernel;
mod tiling;
mod transform;

use std::marker::PhantomData;
use std::ops::Range;

use phalanx_graph::ConvGeom;

use self::tiling::{Tiling, planes};
use self::transform::{Map, Points};
use super::Pass;
use crate::kernels::layout::Src;
use crate::kernels::matrix::{Epilogue, MatrixMut, MatrixRef};
use crate::kernels::tile::{Arena, Block, PanelRows, Weights, pack_columns, pack_rows};
use crate::simd::{Kernel, MAX_LANES, Simd};

pub(super) use self::grad_kernel::GradKernel;
pub(super) use self::transform::{Four, Two};

/// Maximum number of floats of transformed weights, or of their gradient, held at once.
const GROUP_FLOATS: usize = 2 << 20;

/// Floats of transformed tiles that should stay in cache.
const BLOCK_FLOATS: usize = 256 << 10;

/// The number of tiles of a block is a multiple of this, which the tile heights of all micro-kernels divide.
const TILE_STEP: usize = 24;

/// Maximum number of tiles of a block.
const MAX_TILES: usize = 8 * TILE_STEP;

/// Whether the algorithm supports this convolution.
pub(super) fn applies(geom: &ConvGeom) -> bool {
    geom.kernel == [3, 3]
        && geom.stride == [1, 1]
        && geom.dilation == [1, 1]
        && geom.groups == 1
        && geom.is_flat()
        && geom.pad.iter().all(|&pad| pad <= 2)
}

/// How one pass is split into blocks, and the layout of its scratch.
#[derive(Clone, Copy)]
struct Plan {
    /// Number of points, over both dimensions.
    points: usize,
    /// Channels summed over; for the kernel's gradient, input channels.
    k: usize,
    /// Channels of the result; for the kernel's gradient, output channels.
    cols: usize,
    /// Number of groups of columns, and the columns of the largest.
    groups: usize,
    width: usize,
    /// Tiles per block.
    tiles: usize,
}

impl Plan {
    fn new(geom: &ConvGeom, pass: Pass, m: usize) -> Plan {
        let (cin, cout) = (geom.input[2], geom.output[2]);
        let (k, cols) = if pass == Pass::GradInput { (cout, cin) } else { (cin, cout) };
        let points = (m + 2) * (m + 2);
        let vectors = cols.div_ceil(MAX_LANES);
        let most = (GROUP_FLOATS / (points * k * MAX_LANES)).max(4);
        let groups = vectors.div_ceil(most).max(1);
        let width = vectors.div_ceil(groups) * MAX_LANES;
        let each = points * (k.next_multiple_of(MAX_LANES) + width);
        let tiles = (BLOCK_FLOATS / each / TILE_STEP * TILE_STEP).clamp(TILE_STEP, MAX_TILES);
        Plan { points, k, cols, groups, width, tiles }
    }

    /// The columns of a group.
    fn group(&self, group: usize) -> Range<usize> {
        let first = (group * self.width).min(self.cols);
        first..self.cols.min(first + self.width)
    }

    /// Floats from one channel row of transformed inputs to the next.
    fn k_step(&self) -> usize {
        self.k.next_multiple_of(MAX_LANES)
    }

    /// Floats of one plane of transformed weights, inputs and results.
    fn weights(&self) -> usize {
        plane(self.k * self.width)
    }

    fn inputs(&self) -> usize {
        plane(self.tiles * self.k_step())
    }

    fn results(&self) -> usize {
        plane(self.tiles * self.width)
    }

    /// Floats of scratch.
    fn scratch_len(&self, pass: Pass) -> usize {
        let raw = if pass == Pass::GradKernel { 0 } else { 9 * self.k * self.width };
        Arena::floats_len(self.points * self.weights())
            + Arena::floats_len(self.points * self.inputs())
            + Arena::floats_len(self.points * self.results())
            + Arena::floats_len(raw)
            + 2 * Arena::floats_len(self.k_step().max(self.width))
            + 2 * Arena::pointers_len(self.tiles)
    }
}

/// Floats between planes of `len` floats each. It is an odd number of cache lines, so that corresponding
/// elements of all planes do not fall into the same cache set.
fn plane(len: usize) -> usize {
    (len.div_ceil(MAX_LANES) | 1) * MAX_LANES
}

/// Floats of scratch that a pass needs with tiles of `m x m` results.
pub(super) fn scratch_len(geom: &ConvGeom, pass: Pass, m: usize) -> usize {
    Plan::new(geom, pass, m).scratch_len(pass)
}

/// Forward or input gradient; lengths are checked by the caller.
pub(super) struct Product<'a, P> {
    pub geom: &'a ConvGeom,
    pub pass: Pass,
    pub rows: usize,
    pub src: MatrixRef<'a>,
    pub w: &'a [f32],
    pub epilogue: Epilogue<'a>,
    pub dst: MatrixMut<'a>,
    pub scratch: &'a mut [f32],
    pub tile: PhantomData<P>,
}

/// The scratch buffers of a product.
struct Buffers {
    raw: *mut f32,
    weights: *mut f32,
    inputs: *mut f32,
    results: *mut f32,
    zeros: *mut f32,
    /// Destination of results outside the image.
    sink: *mut f32,
    a: *mut *mut f32,
    out: *mut *mut f32,
}

impl Buffers {
    fn new(plan: &Plan, scratch: &mut [f32]) -> Buffers {
        let mut arena = Arena(scratch);
        let zeros = arena.floats(plan.k_step().max(plan.width));
        zeros.fill(0.0);
        Buffers {
            zeros: zeros.as_mut_ptr(),
            sink: arena.floats(plan.k_step().max(plan.width)).as_mut_ptr(),
            weights: arena.floats(plan.points * plan.weights()).as_mut_ptr(),
            inputs: arena.floats(plan.points * plan.inputs()).as_mut_ptr(),
            results: arena.floats(plan.points * plan.results()).as_mut_ptr(),
            raw: arena.floats(9 * plan.k * plan.width).as_mut_ptr(),
            a: arena.pointers(plan.tiles).as_mut_ptr(),
            out: arena.pointers(plan.tiles).as_mut_ptr(),
        }
    }
}

impl<P: Points> Kernel for Product<'_, P> {
    type Output = ();

    #[inline(always)]
    unsafe fn run<S: Simd>(mut self) {
        let plan = Plan::new(self.geom, self.pass, P::M);
        let tiling = match self.pass {
            Pass::GradInput => Tiling::backward(self.geom, P::M),
            _ => Tiling::forward(self.geom, P::M),
        };
        let buffers = Buffers::new(&plan, std::mem::take(&mut self.scratch));
        let total = self.rows * tiling.per_image();
        for group in 0..plan.groups {
            let columns = plan.group(group);
            if columns.is_empty() || total == 0 {
                continue;
            }
            // SAFETY: lengths were checked; tiles and columns lie inside the tensors, and scratch was
            // sized by the same plan.
            unsafe {
                self.weights::<S>(&plan, &buffers, columns.clone());
                for first in (0..total).step_by(plan.tiles) {
                    let tiles = first..total.min(first + plan.tiles);
                    let (src, zeros, to) = (self.src.src(), buffers.zeros, buffers.inputs);
                    inputs::<S, P>(&plan, &tiling, tiles.clone(), src, zeros, to);
                    multiply::<S>(&plan, &buffers, tiles.len(), columns.len());
                    self.results::<S>(&plan, &tiling, &buffers, tiles, columns.clone());
                }
            }
        }
    }
}

impl<P: Points> Product<'_, P> {
    /// Packs and transforms the weights of some columns.
    #[inline(always)]
    unsafe fn weights<S: Simd>(&self, plan: &Plan, buffers: &Buffers, columns: Range<usize>) {
        let (col, cols) = (columns.start, columns.len());
        let [cin, filters] = [self.geom.input[2], self.geom.output[2]];
        let size = plan.k * cols.next_multiple_of(S::LANES);
        // SAFETY: the caller's contract.
        unsafe {
            for tap in 0..9 {
                let to = buffers.raw.add(tap * size);
                if self.pass == Pass::GradInput {
                    let w = self.w.as_ptr().add(((8 - tap) * cin + col) * filters);
                    pack_columns::<S>(w, filters, plan.k, cols, PanelRows::all(to, plan.k));
                } else {
                    let w = self.w.as_ptr().add(tap * cin * filters + col);
                    pack_rows::<S>(w, filters, plan.k, cols, to);
                }
            }
            let from = planes(3, buffers.raw, size);
            let to = planes(P::N, buffers.weights, plan.weights());
            S::enter(Map::<P::Filter>::plain(&from, &to, size));
        }
    }

    /// Transforms products back into results.
    #[inline(always)]
    unsafe fn results<S: Simd>(
        &mut self,
        plan: &Plan,
        tiling: &Tiling,
        buffers: &Buffers,
        tiles: Range<usize>,
        columns: Range<usize>,
    ) {
        // SAFETY: the caller's contract.
        unsafe {
            let dst = self.dst.dst();
            let epilogue = self.epilogue.skip_columns(columns.start);
            for (i, tile) in tiles.enumerate() {
                let from = planes(P::N, buffers.results.add(i * plan.width), plan.results());
                let to = tiling.targets(tile, dst.ptr.add(columns.start), dst.ld, buffers.sink);
                let mut map = Map::<P::Output>::plain(&from, &to, columns.len());
                map.epilogue = epilogue;
                S::enter(map);
            }
        }
    }
}

/// Transforms the inputs of some tiles.
#[inline(always)]
unsafe fn inputs<S: Simd, P: Points>(
    plan: &Plan,
    tiling: &Tiling,
    tiles: Range<usize>,
    src: Src,
    zeros: *mut f32,
    to: *mut f32,
) {
    // SAFETY: the caller's contract.
    unsafe {
        for (i, tile) in tiles.enumerate() {
            let from = tiling.sources(tile, src.ptr, src.ld, zeros);
            let to = planes(P::N, to.add(i * plan.k_step()), plan.inputs());
            let map = Map::<P::Input>::plain(&from, &to, plan.k);
            S::enter(Map { ahead: P::M * src.ld, ..map });
        }
    }
}

/// Multiplies transformed inputs with transformed weights, point by point.
#[inline(always)]
unsafe fn multiply<S: Simd>(plan: &Plan, buffers: &Buffers, count: usize, cols: usize) {
    // SAFETY: the caller's contract.
    unsafe {
        for point in 0..plan.points {
            for i in 0..count {
                *buffers.a.add(i) = buffers.inputs.add(point * plan.inputs() + i * plan.k_step());
                *buffers.out.add(i) = buffers.results.add(point * plan.results() + i * plan.width);
            }
            Block {
                rows: count,
                taps: 1,
                k: plan.k,
                a: buffers.a.cast(),
                weights: Weights::Packed(buffers.weights.add(point * plan.weights())),
                cols,
                out: buffers.out,
                epilogue: Epilogue::NONE,
            }
            .run::<S>();
        }
    }
}

#[cfg(test)]
mod tests;
