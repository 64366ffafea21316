//! Packing of weights into panels, and the scratch memory for it.

use super::Panels;
use crate::simd::Simd;

/// Rows of weights that [`pack_rows`] copies at a time.
const PACK_ROWS: usize = 16;

/// Packs `w[k, cols]` (rows `ld` apart) into panels, the last vector padded with zeros.
///
/// # Safety
/// `dst` holds `k` times `cols` rounded up to whole vectors; `w` is valid for `k` rows.
#[inline(always)]
pub(crate) unsafe fn pack_rows<S: Simd>(
    w: *const f32,
    ld: usize,
    k: usize,
    cols: usize,
    dst: *mut f32,
) {
    // A few rows at a time through all panels: the source is read nearly in order, and only the pages of
    // a few panels are written at once.
    for first in (0..k).step_by(PACK_ROWS) {
        for panel in Panels::new::<S>(cols) {
            let width = panel.nv * S::LANES;
            for row in first..k.min(first + PACK_ROWS) {
                for v in 0..panel.nv {
                    let col = v * S::LANES;
                    let n = S::LANES.min(panel.cols - col);
                    // SAFETY: the caller's contract.
                    unsafe {
                        let x = S::load_partial(w.add(row * ld + panel.col + col), n);
                        S::store(dst.add(k * panel.col + row * width + col), x);
                    }
                }
            }
        }
    }
}

/// Rows of panels.
pub(crate) struct PanelRows {
    /// The panels.
    pub panels: *mut f32,
    /// The first of the rows.
    pub first: usize,
    /// Number of rows of the panels.
    pub depth: usize,
}

impl PanelRows {
    /// All rows of panels.
    pub(crate) fn all(panels: *mut f32, depth: usize) -> PanelRows {
        PanelRows { panels, first: 0, depth }
    }
}

/// Packs the transpose of `w[cols, k]` (rows `ld` apart) as `k` rows of panels.
///
/// # Safety
/// The panels hold `depth` times `cols` rounded up to whole vectors; `w` is valid for `cols` rows.
#[inline(always)]
pub(crate) unsafe fn pack_columns<S: Simd>(
    w: *const f32,
    ld: usize,
    k: usize,
    cols: usize,
    to: PanelRows,
) {
    let PanelRows { panels, first: row, depth } = to;
    for panel in Panels::new::<S>(cols) {
        let width = panel.nv * S::LANES;
        for v in 0..panel.nv {
            let first = v * S::LANES;
            let n = S::LANES.min(panel.cols - first);
            // SAFETY: the caller's contract.
            unsafe {
                let from = w.add((panel.col + first) * ld);
                let to = panels.add(depth * panel.col + row * width + first);
                let whole = if n == S::LANES { k / S::LANES * S::LANES } else { 0 };
                for i in (0..whole).step_by(S::LANES) {
                    S::transpose(from.add(i), ld, to.add(i * width), width);
                }
                for i in whole..k {
                    for j in 0..S::LANES {
                        *to.add(i * width + j) = if j < n { *from.add(j * ld + i) } else { 0.0 };
                    }
                }
            }
        }
    }
}

/// Allocates pieces of a scratch slice.
pub(crate) struct Arena<'a>(pub &'a mut [f32]);

impl<'a> Arena<'a> {
    /// Floats to reserve for `len` floats.
    pub const fn floats_len(len: usize) -> usize {
        len.saturating_add(16)
    }

    /// Floats to reserve for `len` pointers.
    pub const fn pointers_len(len: usize) -> usize {
        len.saturating_add(1).saturating_mul(size_of::<usize>() / size_of::<f32>())
    }

    /// `len` floats that start on a cache line.
    pub fn floats(&mut self, len: usize) -> &'a mut [f32] {
        let whole = std::mem::take(&mut self.0);
        let skip = whole.as_ptr().align_offset(64).min(whole.len());
        assert!(len <= whole.len() - skip, "scratch too small: see scratch_len");
        let (piece, rest) = whole[skip..].split_at_mut(len);
        self.0 = rest;
        piece
    }

    /// Memory for `len` pointers.
    pub fn pointers<T>(&mut self, len: usize) -> &'a mut [*mut T] {
        let whole = std::mem::take(&mut self.0);
        let used = Self::pointers_len(len);
        assert!(used <= whole.len(), "scratch too small: see scratch_len");
        let (piece, rest) = whole.split_at_mut(used);
        self.0 = rest;
        // SAFETY: every bit pattern is a valid raw pointer, and pointers have no padding.
        let (_, pointers, _) = unsafe { piece.align_to_mut::<*mut T>() };
        &mut pointers[..len]
    }
}
