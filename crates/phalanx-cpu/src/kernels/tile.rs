//! The register-blocked micro-kernels of all dense and convolution kernels.
//!
//! Both keep a tile of `MR x NV` accumulator vectors in registers. They differ in the axis they sum over:
//!
//! * [`Block`] (forward and input gradients) is an *indirect* matrix product: a row of the result is a
//!   pixel, its operands are reached through one pointer per kernel tap, and a tap in the padding
//!   points to a row of zeros. Activations are never copied. Weights are read in place if
//!   [`reads_in_place`] says that this is faster. Otherwise, or if the transpose is needed, they are
//!   packed into panels once per call. A panel is processed in chunks that stay in cache while the
//!   kernel iterates over all rows of the block; between chunks the result holds the partial sums.
//! * [`Outer`] (weight gradients) sums outer products over pixels: `MR` input channels by `NV` vectors
//!   of output channels.
//!
//! Each element of the result is one chain of multiply-adds in the order of taps and channels (or
//! pixels), regardless of the tile, chunk or block it belongs to. So its bits depend neither on the
//! number of rows nor on how the work is split.

// Arrays of registers are indexed in lockstep. Iterators would bring closures, which are not compiled for
// the instruction set.
#![allow(clippy::needless_range_loop)]

mod pack;

use super::matrix::Epilogue;
use crate::simd::{Kernel, MAX_LANES, Simd};

pub(crate) use self::pack::{Arena, PanelRows, pack_columns, pack_rows};

/// Rows (pixels) that share one pass over the packed weights.
pub(crate) const BLOCK_ROWS: usize = 192;

/// Floats of a panel that stay in cache while the kernel iterates over the rows of a block. Slightly more than
/// the first-level cache measured best: the second level keeps up, and partial sums move less often.
const CHUNK_FLOATS: usize = 12 * 1024;

/// Number of vectors of the widest tile.
const fn max_vectors(registers: usize) -> usize {
    registers / 8
}

/// Number of rows of the tallest tile with `nv` vectors. A quarter of the registers is left for operands.
pub(crate) const fn max_rows(registers: usize, nv: usize) -> usize {
    let rows = registers * 3 / 4 / nv;
    if rows < 12 { rows } else { 12 }
}

/// A range of columns covered by one tile.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Panel {
    /// First column.
    pub col: usize,
    /// Number of columns; the last vector may be partly empty.
    pub cols: usize,
    /// Number of vectors.
    pub nv: usize,
}

/// Splits columns into panels of nearly equal width, so that no narrow panel is left over.
pub(crate) struct Panels {
    cols: usize,
    lanes: usize,
    vectors: usize,
    count: usize,
    next: usize,
}

impl Panels {
    #[inline(always)]
    pub fn new<S: Simd>(cols: usize) -> Panels {
        let vectors = cols.div_ceil(S::LANES);
        let count = vectors.div_ceil(max_vectors(S::REGISTERS));
        Panels { cols, lanes: S::LANES, vectors, count, next: 0 }
    }
}

impl Iterator for Panels {
    type Item = Panel;

    #[inline(always)]
    fn next(&mut self) -> Option<Panel> {
        if self.next == self.count {
            return None;
        }
        let first = self.vectors * self.next / self.count;
        let end = self.vectors * (self.next + 1) / self.count;
        self.next += 1;
        let col = first * self.lanes;
        Some(Panel { col, cols: (end * self.lanes).min(self.cols) - col, nv: end - first })
    }
}

/// Part `i` of `count` nearly equal parts of `0..len`: `(start, length)`.
#[inline(always)]
pub(crate) fn part(len: usize, count: usize, i: usize) -> (usize, usize) {
    let start = len * i / count;
    (start, len * (i + 1) / count - start)
}

/// The memory layout of the weights of a [`Block`].
#[derive(Clone, Copy)]
pub(crate) enum Weights {
    /// In panels, as written by [`pack_rows`] or [`pack_columns`].
    Packed(*const f32),
    /// In rows this many floats apart; columns fill whole vectors.
    Rows(*const f32, usize),
}

/// Whether a product of `rows` rows is faster if its weights are read in place instead of packed first.
///
/// Measured on Zen 4, packed against in place. AVX-512: in place is as fast for convolutions and wins
/// for few rows (dense 32x784x256: 97 against 115 GFLOP/s). AVX2: it wins for few rows (87 against
/// 108) but loses for many (1x1, 256 to 64 channels, 12544 rows: 87 against 67). Hence the limit,
/// which lies between the measured 64 and 392 rows.
#[inline(always)]
pub(crate) fn reads_in_place<S: Simd>(cols: usize, rows: usize) -> bool {
    cols.is_multiple_of(S::LANES) && (S::LANES == MAX_LANES || rows <= BLOCK_ROWS)
}

/// A block of rows of an indirect matrix product `out = a * b`, with an epilogue.
pub(crate) struct Block<'a> {
    /// Rows of the result.
    pub rows: usize,
    /// Operand pieces per row; zero gives a result of zeros (plus bias).
    pub taps: usize,
    /// Floats per piece.
    pub k: usize,
    /// Where each piece starts: `taps x rows` pointers.
    pub a: *const *const f32,
    /// Weights `[taps * k, cols]`.
    pub weights: Weights,
    /// Columns of the result.
    pub cols: usize,
    /// Where each row of the result starts.
    pub out: *const *mut f32,
    /// Its bias, if any, has at least `cols` floats.
    pub epilogue: Epilogue<'a>,
}

impl Block<'_> {
    /// Computes the block.
    ///
    /// # Safety
    /// All pointers are valid for the sizes that the fields state, and `out` overlaps no operand.
    #[inline(always)]
    pub unsafe fn run<S: Simd>(&self) {
        // SAFETY: the caller's contract.
        unsafe { self.run_from::<S>(false) }
    }

    /// Computes the block, added to what `out` holds if `accumulate`.
    ///
    /// # Safety
    /// As [`run`](Self::run).
    #[inline(always)]
    pub unsafe fn run_from<S: Simd>(&self, accumulate: bool) {
        for panel in Panels::new::<S>(self.cols) {
            let width = panel.nv * S::LANES;
            // SAFETY: the panel lies inside the weights.
            let (weights, b_step) = unsafe {
                match self.weights {
                    Weights::Packed(w) => (w.add(self.taps * self.k * panel.col), width),
                    Weights::Rows(w, ld) => (w.add(panel.col), ld),
                }
            };
            let depth = (CHUNK_FLOATS / width).max(1);
            // Whole taps per chunk if a tap is short, else pieces of one tap.
            let taps_each = (depth / self.k.max(1)).clamp(1, self.taps.max(1));
            let pieces = self.k.div_ceil(depth).max(1);
            let chunks = self.taps.div_ceil(taps_each).max(1);
            for chunk in 0..chunks {
                let (tap, taps) = part(self.taps, chunks, chunk);
                for piece in 0..pieces {
                    let (k, depth) = part(self.k, pieces, piece);
                    let last = chunk + 1 == chunks && piece + 1 == pieces;
                    let epilogue = match last {
                        true => self.epilogue.skip_columns(panel.col),
                        false => Epilogue::NONE,
                    };
                    // SAFETY: offsets stay inside the packed panel and the table.
                    let job = unsafe {
                        RowJob {
                            taps,
                            k: depth,
                            a: self.a.add(tap * self.rows),
                            a_next: self.rows,
                            a_skip: k,
                            b: WeightRows {
                                first: weights.add((tap * self.k + k) * b_step),
                                step: b_step,
                                skip: (self.k - depth) * b_step,
                            },
                            out: self.out,
                            panel,
                            accumulate: accumulate || chunk + piece > 0,
                            epilogue,
                        }
                    };
                    // SAFETY: as above.
                    unsafe { self.sweep::<S>(job) };
                }
            }
        }
    }

    /// Runs one chunk of one panel over all rows.
    #[inline(always)]
    unsafe fn sweep<S: Simd>(&self, mut job: RowJob<'_>) {
        let nv = job.panel.nv;
        let tiles = self.rows.div_ceil(max_rows(S::REGISTERS, nv));
        let (a, out) = (job.a, job.out);
        for tile in 0..tiles {
            let (row, mr) = part(self.rows, tiles, tile);
            // SAFETY: `row + mr <= rows`.
            unsafe {
                job.a = a.add(row);
                job.out = out.add(row);
                row_tile::<S>(mr, nv, &job);
            }
        }
    }
}

/// The weights of a row tile.
struct WeightRows {
    first: *const f32,
    /// Floats between two rows.
    step: usize,
    /// Unused floats between two taps.
    skip: usize,
}

/// The arguments of a row tile.
struct RowJob<'a> {
    taps: usize,
    k: usize,
    /// Pointers of the first tap, one per row; those of the next tap follow after `a_next` pointers.
    a: *const *const f32,
    a_next: usize,
    /// Floats to skip at the start of every piece.
    a_skip: usize,
    b: WeightRows,
    out: *const *mut f32,
    panel: Panel,
    accumulate: bool,
    epilogue: Epilogue<'a>,
}

struct RowTile<'a, const MR: usize, const NV: usize>(&'a RowJob<'a>);

impl<const MR: usize, const NV: usize> Kernel for RowTile<'_, MR, NV> {
    type Output = ();

    #[inline(always)]
    unsafe fn run<S: Simd>(self) {
        let (job, cols) = (self.0, self.0.panel.cols);
        // SAFETY: `Block::run` built the job, and its caller guarantees the pointers.
        unsafe {
            let mut out = [std::ptr::null_mut::<f32>(); MR];
            for m in 0..MR {
                out[m] = (*job.out.add(m)).add(job.panel.col);
            }
            let mut acc = [[S::zero(); NV]; MR];
            if job.accumulate {
                load_tile::<S, MR, NV>(&mut acc, &out, cols);
            }
            let mut b = job.b.first;
            for tap in 0..job.taps {
                let mut a = [std::ptr::null::<f32>(); MR];
                for m in 0..MR {
                    a[m] = (*job.a.add(tap * job.a_next + m)).add(job.a_skip);
                }
                for k in 0..job.k {
                    let mut w = [S::zero(); NV];
                    for v in 0..NV {
                        w[v] = S::load(b.add(v * S::LANES));
                    }
                    for m in 0..MR {
                        let x = S::splat(*a[m].add(k));
                        for v in 0..NV {
                            acc[m][v] = S::fmadd(x, w[v], acc[m][v]);
                        }
                    }
                    b = b.wrapping_add(job.b.step);
                }
                b = b.wrapping_add(job.b.skip);
            }
            if let Some(bias) = job.epilogue.bias {
                for v in 0..NV {
                    let first = v * S::LANES;
                    let bias =
                        S::load_partial(bias.as_ptr().add(first), S::LANES.min(cols - first));
                    for m in 0..MR {
                        acc[m][v] = S::add(acc[m][v], bias);
                    }
                }
            }
            if job.epilogue.relu {
                for m in 0..MR {
                    for v in 0..NV {
                        acc[m][v] = S::max(S::zero(), acc[m][v]);
                    }
                }
            }
            store_tile::<S, MR, NV>(&acc, &out, cols);
        }
    }
}

#[inline(always)]
unsafe fn load_tile<S: Simd, const MR: usize, const NV: usize>(
    acc: &mut [[S::V; NV]; MR],
    rows: &[*mut f32; MR],
    cols: usize,
) {
    // SAFETY: the caller's rows hold `cols` floats each.
    unsafe {
        if cols == NV * S::LANES {
            for m in 0..MR {
                for v in 0..NV {
                    acc[m][v] = S::load(rows[m].add(v * S::LANES));
                }
            }
        } else {
            for m in 0..MR {
                for v in 0..NV {
                    let first = v * S::LANES;
                    acc[m][v] = S::load_partial(rows[m].add(first), S::LANES.min(cols - first));
                }
            }
        }
    }
}

#[inline(always)]
unsafe fn store_tile<S: Simd, const MR: usize, const NV: usize>(
    acc: &[[S::V; NV]; MR],
    rows: &[*mut f32; MR],
    cols: usize,
) {
    // SAFETY: the caller's rows hold `cols` floats each.
    unsafe {
        if cols == NV * S::LANES {
            for m in 0..MR {
                for v in 0..NV {
                    S::store(rows[m].add(v * S::LANES), acc[m][v]);
                }
            }
        } else {
            for m in 0..MR {
                for v in 0..NV {
                    let first = v * S::LANES;
                    S::store_partial(rows[m].add(first), acc[m][v], S::LANES.min(cols - first));
                }
            }
        }
    }
}

/// A sum of outer products over a box of pixels, `out[m, n] += x[p, m] * y[p, n]`.
#[derive(Clone, Copy)]
pub(crate) struct Outer {
    /// Rows of the result: leading floats of each pixel of `x`.
    pub rows: usize,
    /// Columns of the result: leading floats of each pixel of `y`.
    pub cols: usize,
    /// Pixels along three axes, outermost first.
    pub extent: [usize; 3],
    /// First pixel of `x` and the floats between neighbours along each axis.
    pub x: *const f32,
    pub x_step: [usize; 3],
    /// The same for `y`.
    pub y: *const f32,
    pub y_step: [usize; 3],
    /// The result, rows `out_step` apart.
    pub out: *mut f32,
    pub out_step: usize,
    /// Add to `out` instead of overwriting it.
    pub accumulate: bool,
}

impl Outer {
    /// Computes the sum for one panel of columns.
    ///
    /// # Safety
    /// All pointers are valid for the sizes that the fields state, and `out` overlaps neither operand.
    #[inline(always)]
    pub unsafe fn run_panel<S: Simd>(&self, panel: Panel) {
        let tiles = self.rows.div_ceil(max_rows(S::REGISTERS, panel.nv));
        for tile in 0..tiles {
            let (row, mr) = part(self.rows, tiles, tile);
            // SAFETY: the tile lies inside the result, its operands inside the pixels.
            unsafe {
                let job = Outer {
                    cols: panel.cols,
                    x: self.x.add(row),
                    y: self.y.add(panel.col),
                    out: self.out.add(row * self.out_step + panel.col),
                    ..*self
                };
                outer_tile::<S>(mr, panel.nv, &job);
            }
        }
    }
}

struct OuterTile<'a, const MR: usize, const NV: usize>(&'a Outer);

impl<const MR: usize, const NV: usize> Kernel for OuterTile<'_, MR, NV> {
    type Output = ();

    #[inline(always)]
    unsafe fn run<S: Simd>(self) {
        let job = self.0;
        // SAFETY: `Outer::run_panel` built the job, and its caller guarantees the pointers.
        unsafe {
            let mut out = [std::ptr::null_mut::<f32>(); MR];
            for m in 0..MR {
                out[m] = job.out.add(m * job.out_step);
            }
            let mut acc = [[S::zero(); NV]; MR];
            if job.accumulate {
                load_tile::<S, MR, NV>(&mut acc, &out, job.cols);
            }
            let tail = job.cols - (NV - 1) * S::LANES;
            for i in 0..job.extent[0] {
                for j in 0..job.extent[1] {
                    let mut x = job.x.add(i * job.x_step[0] + j * job.x_step[1]);
                    let mut y = job.y.add(i * job.y_step[0] + j * job.y_step[1]);
                    for _ in 0..job.extent[2] {
                        let mut g = [S::zero(); NV];
                        for v in 0..NV - 1 {
                            g[v] = S::load(y.add(v * S::LANES));
                        }
                        g[NV - 1] = if tail == S::LANES {
                            S::load(y.add((NV - 1) * S::LANES))
                        } else {
                            S::load_partial(y.add((NV - 1) * S::LANES), tail)
                        };
                        for m in 0..MR {
                            let a = S::splat(*x.add(m));
                            for v in 0..NV {
                                acc[m][v] = S::fmadd(a, g[v], acc[m][v]);
                            }
                        }
                        x = x.wrapping_add(job.x_step[2]);
                        y = y.wrapping_add(job.y_step[2]);
                    }
                }
            }
            store_tile::<S, MR, NV>(&acc, &out, job.cols);
        }
    }
}

/// Maps a tile shape known at run time to the function compiled for it.
macro_rules! by_shape {
    ($name:ident, $kernel:ident, $job:ty; $($nv:literal: $($mr:literal)+;)+) => {
        #[inline(always)]
        unsafe fn $name<S: Simd>(mr: usize, nv: usize, job: &$job) {
            match (nv, mr) {
                $($(($nv, $mr) => {
                    // Shapes too large for the registers of this instruction set are not compiled.
                    if const { $nv <= max_vectors(S::REGISTERS) && $mr <= max_rows(S::REGISTERS, $nv) } {
                        // SAFETY: the caller's contract.
                        unsafe { S::enter($kernel::<$mr, $nv>(job)) }
                    }
                })+)+
                _ => unreachable!("no tile has {mr} rows of {nv} vectors"),
            }
        }
    };
}

by_shape!(row_tile, RowTile, RowJob<'_>;
    1: 1 2 3 4 5 6 7 8 9 10 11 12;
    2: 1 2 3 4 5 6 7 8 9 10 11 12;
    3: 1 2 3 4 5 6 7 8;
    4: 1 2 3 4 5 6;
);

by_shape!(outer_tile, OuterTile, Outer;
    1: 1 2 3 4 5 6 7 8 9 10 11 12;
    2: 1 2 3 4 5 6 7 8 9 10 11 12;
    3: 1 2 3 4 5 6 7 8;
    4: 1 2 3 4 5 6;
);

#[cfg(test)]
pub(crate) mod testing;
