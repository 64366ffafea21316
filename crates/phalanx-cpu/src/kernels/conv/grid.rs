//! Regular grids of destination pixels and the taps they read.
//!
//! Along each axis, point `g` of a grid writes destination pixel `start + g * step` and its tap `i`
//! reads source pixel `g * source_step + offset + i * tap_step`, which may lie outside. The axes are depth,
//! height and width; images have one slice.

use std::ops::Range;

use phalanx_graph::ConvGeom;

use super::axis::{Axis, Side};

/// The lines of taps of adjacent points, all inside the image.
struct Lines {
    /// The first tap of the first point.
    from: *const f32,
    /// Floats from one point to the next, from one line of taps to the next, and from one slice of taps to the next.
    point_step: usize,
    line_step: usize,
    slice_step: usize,
    /// Number of lines per slice, and of slices per point.
    count: usize,
    slices: usize,
}

impl Lines {
    /// Copies the lines of `points` points, `len` floats each, one after the other.
    ///
    /// # Safety
    /// All lines lie inside the source, and `to` is valid for them.
    #[inline(always)]
    unsafe fn copy(&self, len: usize, points: usize, to: *mut f32) {
        // SAFETY: the caller's contract.
        unsafe {
            match len {
                3 => self.copy_fixed::<3>(points, to),
                5 => self.copy_fixed::<5>(points, to),
                9 => self.copy_fixed::<9>(points, to),
                15 => self.copy_fixed::<15>(points, to),
                21 => self.copy_fixed::<21>(points, to),
                _ => self.each(points, to, len, |from, to| {
                    std::ptr::copy_nonoverlapping(from, to, len);
                }),
            }
        }
    }

    /// As `copy` for a length known at compile time, which needs a few moves instead of a loop.
    #[inline(always)]
    unsafe fn copy_fixed<const LEN: usize>(&self, points: usize, to: *mut f32) {
        // SAFETY: the caller's contract.
        unsafe {
            self.each(points, to, LEN, |from, to| *to.cast::<[f32; LEN]>() = *from.cast());
        }
    }

    #[inline(always)]
    unsafe fn each(
        &self,
        points: usize,
        mut to: *mut f32,
        len: usize,
        copy: impl Fn(*const f32, *mut f32),
    ) {
        for point in 0..points {
            for slice in 0..self.slices {
                let first = point * self.point_step + slice * self.slice_step;
                for line in 0..self.count {
                    copy(self.from.wrapping_add(first + line * self.line_step), to);
                    to = to.wrapping_add(len);
                }
            }
        }
    }
}

/// The taps of a point that lie inside the image.
pub(super) struct Window {
    pub rows: Range<usize>,
    pub cols: Range<usize>,
}

/// Destination pixels that share their taps, repeated in every image.
///
/// A point is `[slice, y, x]`, where slices are counted over all images.
#[derive(Clone, Copy, Debug)]
pub(super) struct Grid([Axis; 3]);

impl Grid {
    /// All output pixels of a convolution.
    pub fn forward(geom: &ConvGeom) -> Grid {
        Grid([0, 1, 2].map(|axis| Axis::forward(geom, axis)))
    }

    /// All input pixels, one grid per phase. Phases beyond the image are skipped, so a stride larger than the
    /// image costs nothing.
    pub fn phases(geom: &ConvGeom) -> impl Iterator<Item = Grid> + use<> {
        let geom = *geom;
        let [depth, height, width] = [0, 1, 2].map(|axis| {
            let side = Side::new(&geom, axis);
            side.stride.min(side.input)
        });
        (0..depth * height * width).map(move |phase| {
            let phases = [phase / (height * width), phase / width % height, phase % width];
            Grid([0, 1, 2].map(|axis| Axis::backward(&geom, axis, phases[axis])))
        })
    }

    /// Points per image.
    pub fn points(&self) -> usize {
        self.0[0].points * self.0[1].points * self.0[2].points
    }

    /// Taps per point.
    pub fn taps(&self) -> usize {
        self.0[0].taps * self.0[1].taps * self.0[2].taps
    }

    /// Points per slice, vertically and horizontally.
    pub fn size(&self) -> [usize; 2] {
        [self.0[1].points, self.0[2].points]
    }

    /// The kernel position of a tap counted over slices, rows and columns; the rows of all slices count as rows of the
    /// kernel.
    pub fn kernel_position(&self, tap: usize) -> [usize; 2] {
        let [z, y, x] = &self.0;
        let [row, column] = self.kernel_position_of([tap / x.taps % y.taps, tap % x.taps]);
        let slice = z.kernel_first + tap / (x.taps * y.taps) * z.kernel_step;
        [slice * y.kernel + row, column]
    }

    /// The kernel position of the tap in row and column `tap` of the grid's taps, in one slice.
    #[inline(always)]
    pub fn kernel_position_of(&self, tap: [usize; 2]) -> [usize; 2] {
        let [_, y, x] = &self.0;
        [y.kernel_first + tap[0] * y.kernel_step, x.kernel_first + tap[1] * x.kernel_step]
    }

    /// Whether all columns of taps are inside the image for points in column `x`.
    #[inline(always)]
    pub fn has_all_columns(&self, x: usize) -> bool {
        self.0[2].inside(x) == (0..self.0[2].taps)
    }

    /// The taps of a point that are inside the image, in one slice.
    #[inline(always)]
    pub fn window(&self, at: [usize; 3]) -> Window {
        Window { rows: self.0[1].inside(at[1]), cols: self.0[2].inside(at[2]) }
    }

    /// The source slice of tap `i` along the depth for points in slice `slice`, if it exists.
    #[inline(always)]
    fn source_slice(&self, slice: usize, i: usize) -> Option<usize> {
        let z = &self.0[0];
        if z.source_size == 1 && z.points == 1 && z.taps == 1 {
            return if z.offset == 0 { Some(slice) } else { None };
        }
        let (image, z_point) = (slice / z.points, slice % z.points);
        let source = z.source(z_point, i)?;
        Some(image * z.source_size + source)
    }

    /// The source pixel of a point's tap that is inside the image, in the source slice `slice`.
    #[inline(always)]
    pub fn source(&self, slice: usize, at: [usize; 3], tap: [usize; 2]) -> usize {
        let [_, y, x] = &self.0;
        let row = (at[1] * y.source_step) as isize + y.offset + tap[0] as isize * y.tap_step;
        let col = (at[2] * x.source_step) as isize + x.offset + tap[1] as isize * x.tap_step;
        (slice * y.source_size + row as usize) * x.source_size + col as usize
    }

    /// Pixels between the sources of two adjacent points.
    #[inline(always)]
    pub fn source_column_step(&self) -> usize {
        self.0[2].source_step
    }

    /// The destination pixel of a point, and the distance to the next point's in pixels.
    #[inline(always)]
    pub fn destination(&self, at: [usize; 3]) -> [usize; 2] {
        let [z, y, x] = &self.0;
        let slice = if z.size == 1 {
            at[0]
        } else {
            at[0] / z.points * z.size + z.start + at[0] % z.points * z.step
        };
        let row = slice * y.size + y.start + at[1] * y.step;
        [row * x.size + x.start + at[2] * x.step, x.step]
    }

    /// Slice, row and column of a point counted over all images.
    #[inline(always)]
    fn locate(&self, point: usize) -> [usize; 3] {
        let [height, width] = self.size();
        let within = point % (height * width);
        [point / (height * width), within / width, within % width]
    }

    /// The point after `at`.
    #[inline(always)]
    fn advance(&self, at: &mut [usize; 3]) {
        let [height, width] = self.size();
        at[2] += 1;
        if at[2] == width {
            at[2] = 0;
            at[1] += 1;
            if at[1] == height {
                at[1] = 0;
                at[0] += 1;
            }
        }
    }

    /// Fills `out` with the destination pixels of the points from `first` on.
    ///
    /// # Safety
    /// `dst` points to images of the destination's size, pixels `ld` apart.
    #[inline(always)]
    pub unsafe fn destinations(
        &self,
        first: usize,
        dst: *mut f32,
        ld: usize,
        out: &mut [*mut f32],
    ) {
        let mut at = self.locate(first);
        for out in out {
            let [pixel, _] = self.destination(at);
            // SAFETY: the pixel lies inside the destination.
            *out = unsafe { dst.add(pixel * ld) };
            self.advance(&mut at);
        }
    }

    /// Fills `table[tap][point]` with the source pixels of `count` points from `first` on; taps in the
    /// padding get `zeros`.
    ///
    /// # Safety
    /// `src` points to images of the source's size, pixels `ld` apart.
    #[inline(always)]
    pub unsafe fn sources(
        &self,
        first: usize,
        src: *const f32,
        ld: usize,
        zeros: &[f32],
        table: &mut [*mut f32],
        count: usize,
    ) {
        let [z, y, x] = &self.0;
        let mut at = self.locate(first);
        for point in 0..count {
            let mut slot = point;
            for t in 0..z.taps {
                let slice = self.source_slice(at[0], t);
                for i in 0..y.taps {
                    let row = match (slice, y.source(at[1], i)) {
                        (Some(slice), Some(row)) => Some(slice * y.source_size + row),
                        _ => None,
                    };
                    for j in 0..x.taps {
                        let pixel = match (row, x.source(at[2], j)) {
                            // SAFETY: the pixel lies inside the source.
                            (Some(row), Some(col)) => unsafe {
                                src.add((row * x.source_size + col) * ld)
                            },
                            _ => zeros.as_ptr(),
                        };
                        table[slot] = pixel.cast_mut();
                        slot += count;
                    }
                }
            }
            self.advance(&mut at);
        }
    }

    /// Copies the patches of `count` points from `first` on: `patches[point][tap][channels]`.
    ///
    /// # Safety
    /// `src` points to images of the source's size, pixels `ld >= channels` apart.
    #[inline(always)]
    pub unsafe fn gather(
        &self,
        first: usize,
        count: usize,
        src: *const f32,
        ld: usize,
        channels: usize,
        patches: &mut [f32],
    ) {
        let [z, y, x] = &self.0;
        let depth = self.taps() * channels;
        let mut to = &mut patches[..count * depth];
        let interior =
            if x.tap_step == 1 && ld == channels { x.interior() } else { Range::default() };
        let mut at = self.locate(first);
        while !to.is_empty() {
            // Adjacent points whose windows lie inside the image are copied in whole lines.
            let mut points = 1;
            let slice = self.first_of_all_slices(at[0]);
            let lines_inside = interior.contains(&at[2]) && y.inside(at[1]) == (0..y.taps);
            if let (Some(slice), true) = (slice, lines_inside) {
                points = (interior.end - at[2]).min(to.len() / depth);
                let line = x.source_size * ld;
                let lines = Lines {
                    from: src.wrapping_add(self.source(slice, at, [0, 0]) * ld),
                    point_step: x.source_step * ld,
                    line_step: y.tap_step as usize * line,
                    slice_step: z.tap_step as usize * y.source_size * line,
                    count: y.taps,
                    slices: z.taps,
                };
                // SAFETY: the windows lie inside the source, and `to` holds `points` patches.
                unsafe { lines.copy(x.taps * channels, points, to.as_mut_ptr()) };
            } else {
                // SAFETY: the caller's contract.
                unsafe { self.gather_point(at, src, ld, channels, &mut to[..depth]) };
            }
            to = &mut to[points * depth..];
            at[2] += points - 1;
            self.advance(&mut at);
        }
    }

    /// Copies the patch of one point, with zeros for taps outside the image.
    #[inline(always)]
    unsafe fn gather_point(
        &self,
        at: [usize; 3],
        src: *const f32,
        ld: usize,
        channels: usize,
        patch: &mut [f32],
    ) {
        let [_, y, x] = &self.0;
        for (i, line) in patch.chunks_exact_mut(x.taps * channels).enumerate() {
            let row = match (self.source_slice(at[0], i / y.taps), y.source(at[1], i % y.taps)) {
                (Some(slice), Some(row)) => Some((slice * y.source_size + row) * x.source_size),
                _ => None,
            };
            for (j, to) in line.chunks_exact_mut(channels).enumerate() {
                match (row, x.source(at[2], j)) {
                    // SAFETY: the pixel lies inside the source.
                    (Some(row), Some(col)) => to.copy_from_slice(unsafe {
                        std::slice::from_raw_parts(src.add((row + col) * ld), channels)
                    }),
                    _ => to.fill(0.0),
                }
            }
        }
    }

    /// The source slice of the first tap along the depth, if all of these taps are inside the image.
    #[inline(always)]
    fn first_of_all_slices(&self, slice: usize) -> Option<usize> {
        let last = self.0[0].taps.wrapping_sub(1);
        match (self.source_slice(slice, 0), self.source_slice(slice, last)) {
            (Some(first), Some(_)) => Some(first),
            _ => None,
        }
    }

    /// Adds the patches of `count` points from `first` on to the source pixels they were gathered from.
    ///
    /// # Safety
    /// `src` points to images of the source's size, pixels `ld >= channels` apart.
    #[inline(always)]
    pub unsafe fn scatter(
        &self,
        first: usize,
        count: usize,
        patches: &[f32],
        channels: usize,
        src: *mut f32,
        ld: usize,
    ) {
        let [z, y, x] = &self.0;
        let line = x.taps * channels;
        let contiguous = x.tap_step == 1 && ld == channels;
        let mut at = self.locate(first);
        for patch in patches.chunks_exact(z.taps * y.taps * line).take(count) {
            let Window { rows, cols } = self.window(at);
            // One run of floats if all columns are adjacent in memory, else one per column.
            let (runs, len) =
                if contiguous { (1, cols.len() * channels) } else { (cols.len(), channels) };
            for i in 0..z.taps * rows.len() {
                let (slice_tap, row_tap) = (i / rows.len(), rows.start + i % rows.len());
                let Some(slice) = self.source_slice(at[0], slice_tap) else { continue };
                for run in 0..if cols.is_empty() { 0 } else { runs } {
                    let tap = cols.start + run;
                    let from = (slice_tap * y.taps + row_tap) * line + tap * channels;
                    // SAFETY: the taps lie inside the source.
                    let to = unsafe {
                        let pixel = self.source(slice, at, [row_tap, tap]);
                        std::slice::from_raw_parts_mut(src.add(pixel * ld), len)
                    };
                    for (to, from) in to.iter_mut().zip(&patch[from..][..len]) {
                        *to += *from;
                    }
                }
            }
            self.advance(&mut at);
        }
    }
}
