//! Splitting of images into square tiles of results, and the pixels of each tile.

// Rows and columns of a tile are counted in lockstep with pixels.
#![allow(clippy::needless_range_loop)]

use phalanx_graph::ConvGeom;

use super::transform::{SIDE, Tile};

/// The split of images into tiles: each tile of results and the source pixels it is computed from.
pub(super) struct Tiling {
    source: [usize; 2],
    results: [usize; 2],
    /// Source pixels before the first result's window.
    pad: [usize; 2],
    m: usize,
    /// Tiles per image, vertically and horizontally.
    count: [usize; 2],
}

impl Tiling {
    fn new(source: [usize; 3], results: [usize; 3], pad: [usize; 2], m: usize) -> Tiling {
        let count = [results[0].div_ceil(m), results[1].div_ceil(m)];
        let (source, results) = ([source[0], source[1]], [results[0], results[1]]);
        Tiling { source, results, pad, m, count }
    }

    /// Tiles of outputs, computed from inputs.
    pub fn forward(geom: &ConvGeom, m: usize) -> Tiling {
        Tiling::new(geom.input, geom.output, geom.pad, m)
    }

    /// Tiles of input gradients: input pixel `i` is reached from output pixels `i + pad - 2 ..= i + pad`.
    pub fn backward(geom: &ConvGeom, m: usize) -> Tiling {
        Tiling::new(geom.output, geom.input, geom.pad.map(|pad| 2 - pad), m)
    }

    /// Tiles per image.
    pub fn per_image(&self) -> usize {
        self.count[0] * self.count[1]
    }

    /// Image, row and column of a tile counted over all images.
    #[inline(always)]
    fn locate(&self, tile: usize) -> [usize; 3] {
        let within = tile % self.per_image();
        [tile / self.per_image(), within / self.count[1], within % self.count[1]]
    }

    /// The source pixels of a tile; those outside are `zeros`.
    ///
    /// # Safety
    /// `src` points to images of the source's size, pixels `ld` apart.
    #[inline(always)]
    pub unsafe fn sources(&self, tile: usize, src: *const f32, ld: usize, zeros: *mut f32) -> Tile {
        let [image, y, x] = self.locate(tile);
        let first = [y * self.m, x * self.m];
        let [h, w] = self.source;
        let mut out = [[zeros; SIDE]; SIDE];
        for i in 0..self.m + 2 {
            let row = (first[0] + i).wrapping_sub(self.pad[0]);
            if row >= h {
                continue;
            }
            for j in 0..self.m + 2 {
                let col = (first[1] + j).wrapping_sub(self.pad[1]);
                if col < w {
                    // SAFETY: the pixel lies inside the image.
                    out[i][j] = unsafe { src.add(((image * h + row) * w + col) * ld) }.cast_mut();
                }
            }
        }
        out
    }

    /// The result pixels of a tile; those outside are `outside`.
    ///
    /// # Safety
    /// `dst` points to images of the results' size, pixels `ld` apart.
    #[inline(always)]
    pub unsafe fn targets(&self, tile: usize, dst: *mut f32, ld: usize, outside: *mut f32) -> Tile {
        let [image, y, x] = self.locate(tile);
        let [h, w] = self.results;
        let mut out = [[outside; SIDE]; SIDE];
        for i in 0..self.m.min(h - y * self.m) {
            let row = (image * h + y * self.m + i) * w;
            for j in 0..self.m.min(w - x * self.m) {
                // SAFETY: the pixel lies inside the image.
                out[i][j] = unsafe { dst.add((row + x * self.m + j) * ld) };
            }
        }
        out
    }
}

/// The same element of `side x side` planes, `step` floats apart.
///
/// # Safety
/// The planes lie in one allocation.
#[inline(always)]
pub(super) unsafe fn planes(side: usize, first: *mut f32, step: usize) -> Tile {
    let mut out = [[first; SIDE]; SIDE];
    for i in 0..side {
        for j in 0..side {
            // SAFETY: the caller's contract.
            out[i][j] = unsafe { first.add((i * side + j) * step) };
        }
    }
    out
}
