//! Evaluates a [`Tape`](phalanx_graph::ops::Tape) over the elements of a value, tile by tile.
//!
//! Every step of a tape runs over a tile of a few hundred elements before the next step does. Intermediate
//! results stay in the first-level cache, and the cost of dispatching a step is negligible. Operands and
//! results that are contiguous in memory are read and written in place. The others (repeated vectors, one
//! number per pixel, channel slices) are copied through a tile of their own.

mod functions;
mod fusion;
mod plan;
#[cfg(test)]
mod tests;

use std::ops::Range;

use phalanx_graph::ops::Access;

use super::math::prefetch;
use crate::simd::{Isa, Kernel, MAX_LANES, Simd, dispatch};
use functions::{Source, execute};
use plan::{MAX_RESULTS, RegisterLocation};

pub use super::layout::{Dst as TapeOutput, Src as TapeInput};
pub use plan::TapePlan;

/// Elements of a tile. Ten tiles fit into 32 KiB with room to spare.
const TILE: usize = 512;

/// Elements that a core's caches hold. Longer values are prefetched.
const CACHED_ELEMENTS: usize = 32 * 1024;

/// If an operand is strided, pixels at least this wide are processed one by one, without copies.
const MIN_PIXEL_WIDTH: usize = 128;

impl TapePlan {
    /// Floats of scratch memory that [`run`](TapePlan::run) needs.
    pub fn scratch_len(&self) -> usize {
        let splats = self.consts.len() + self.inputs.len();
        let tiles = self.inputs.len() + self.read_later.len() + self.temps;
        // One extra vector, so that the tiles can be aligned.
        (splats + 1) * MAX_LANES + tiles * TILE
    }

    /// Computes `elements` of the results. Element `e` is channel `e % width` of pixel `e / width`. The pixels
    /// of full operands and of all results are `ld` apart.
    ///
    /// # Safety
    /// There is one input and one output for each of the tape's. Their pointers are valid for `elements`. An
    /// output overlaps nothing except a full input with the same pointer and `ld`.
    pub unsafe fn run(
        &self,
        isa: Isa,
        width: usize,
        elements: Range<usize>,
        inputs: &[TapeInput],
        outputs: &[TapeOutput],
        scratch: &mut [f32],
    ) {
        assert!(inputs.len() == self.inputs.len() && outputs.len() == self.read_later.len());
        assert!(scratch.len() >= self.scratch_len(), "scratch memory too small");
        if elements.is_empty() {
            return;
        }
        let base = scratch.as_mut_ptr();
        // SAFETY: `scratch_len` includes an extra vector for the alignment.
        let base = unsafe { base.add(base.align_offset(64).min(MAX_LANES - 1)) };
        let flat = |ld: usize| ld == width;
        let full = self.inputs.iter().zip(inputs).filter(|(a, _)| **a == Access::Full);
        let strided = full.map(|(_, i)| i.ld).chain(outputs.iter().map(|o| o.ld)).any(|l| !flat(l));
        let tiling = match (strided, self.single) {
            (true, _) if width >= MIN_PIXEL_WIDTH => Tiling::InsidePixels,
            (false, true) => Tiling::Whole,
            _ => Tiling::Even,
        };
        let mut walk = Walk { plan: self, width, inputs, outputs, base, direct: 0, tiling };
        for (o, out) in outputs.iter().enumerate().take(64) {
            let clash = self.read_later[o].iter().any(|i| inputs[usize::from(*i)].ptr == out.ptr);
            walk.direct |= u64::from(!clash) << o;
        }
        // SAFETY: the caller's contract. The tape's registers lie in scratch memory, whose length was checked.
        unsafe { dispatch(isa, Evaluate { walk, elements }) };
    }
}

/// How the elements are split into tiles.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Tiling {
    /// One tile.
    Whole,
    /// Tiles of equal length, so that repeated vectors have the same layout in each.
    Even,
    /// No tile crosses the border of a pixel.
    InsidePixels,
}

/// A range of elements, with the pixel and channel of the first.
struct Tile {
    start: usize,
    len: usize,
    pixel: usize,
    channel: usize,
}

/// The addresses of operands and results. Scratch memory holds, in this order: constants and scalars as
/// vectors, then tiles for inputs, outputs and temporaries.
struct Walk<'a> {
    plan: &'a TapePlan,
    width: usize,
    inputs: &'a [TapeInput],
    outputs: &'a [TapeOutput],
    base: *mut f32,
    /// Bit `o`: output `o` may be written before the last step.
    direct: u64,
    tiling: Tiling,
}

// SAFETY (all blocks below): pointers are those of `TapePlan::run`, whose contract covers `elements`;
// scratch memory has `scratch_len` floats.
#[allow(clippy::undocumented_unsafe_blocks)]
impl Walk<'_> {
    fn tile(&self, start: usize, end: usize) -> Tile {
        let (pixel, channel) = (start / self.width, start % self.width);
        let len = match self.tiling {
            Tiling::Whole => end - start,
            Tiling::Even => self.plan.tile.min(end - start),
            Tiling::InsidePixels => TILE.min(end - start).min(self.width - channel),
        };
        Tile { start, len, pixel, channel }
    }

    fn splat_slot(&self, i: usize) -> *mut f32 {
        unsafe { self.base.add(i * MAX_LANES) }
    }

    fn tile_slot(&self, i: usize) -> *mut f32 {
        let splats = self.plan.consts.len() + self.inputs.len();
        unsafe { self.base.add(splats * MAX_LANES + i * TILE) }
    }

    fn contiguous(&self, ld: usize, t: &Tile) -> bool {
        ld == self.width || t.channel + t.len <= self.width
    }

    /// Whether a repeated vector is laid out once for all tiles.
    fn repeats_alike(&self, period: usize) -> bool {
        self.tiling == Tiling::Even && self.plan.tile.is_multiple_of(period)
    }

    fn input(&self, i: usize, t: &Tile) -> Source {
        let x = &self.inputs[i];
        let slot = Source { ptr: self.tile_slot(i), splat: false };
        let splat = Source { ptr: self.splat_slot(self.plan.consts.len() + i), splat: true };
        let at = |offset: usize| Source { ptr: unsafe { x.ptr.add(offset) }, splat: false };
        match self.plan.inputs[i] {
            Access::Scalar => splat,
            Access::Full if self.contiguous(x.ld, t) => at(t.pixel * x.ld + t.channel),
            Access::Suffix(p) if self.repeats_alike(p) => slot,
            Access::Suffix(p) if t.start % p + t.len <= p => at(t.start % p),
            Access::Prefix(1) => at(t.start),
            Access::Prefix(g) if t.start % g + t.len <= g => splat,
            Access::Full | Access::Suffix(_) | Access::Prefix(_) => slot,
        }
    }

    /// Copies an operand into its tile if `input` cannot use it in place.
    fn fill(&self, i: usize, t: &Tile, first: bool) {
        let x = &self.inputs[i];
        let (mut done, slot) = (0, self.tile_slot(i));
        let from = self.input(i, t);
        match self.plan.inputs[i] {
            Access::Scalar if first => unsafe { self.fill_splat(from, *x.ptr) },
            Access::Prefix(g) if from.splat => unsafe {
                self.fill_splat(from, *x.ptr.add(t.start / g))
            },
            _ if from.splat || !std::ptr::eq(from.ptr, slot) => {}
            Access::Full => unsafe { copy_pixels(t, self.width, x.ptr, x.ld, slot) },
            Access::Suffix(p) if first || !self.repeats_alike(p) => {
                while done < t.len {
                    let phase = (t.start + done) % p;
                    let n = (p - phase).min(t.len - done);
                    unsafe { copy(x.ptr.add(phase), slot.add(done), n) };
                    done += n;
                }
            }
            Access::Prefix(g) => {
                while done < t.len {
                    let e = t.start + done;
                    let n = (g - e % g).min(t.len - done);
                    for k in done..done + n {
                        unsafe { *slot.add(k) = *x.ptr.add(e / g) };
                    }
                    done += n;
                }
            }
            Access::Scalar | Access::Suffix(_) => {}
        }
    }

    unsafe fn fill_splat(&self, slot: Source, x: f32) {
        unsafe { *slot.ptr.cast_mut().cast::<[f32; MAX_LANES]>() = [x; MAX_LANES] };
    }

    fn output(&self, o: usize, t: &Tile) -> *mut f32 {
        let y = &self.outputs[o];
        if o < 64 && self.direct >> o & 1 == 1 && self.contiguous(y.ld, t) {
            unsafe { y.ptr.add(t.pixel * y.ld + t.channel) }
        } else {
            self.tile_slot(self.inputs.len() + o)
        }
    }

    /// Prefetches the memory of the tile after `t`. While the steps of a tile run, the hardware prefetcher sees
    /// no access to it.
    fn prefetch(&self, t: &Tile) {
        let next = t.start + t.len;
        for (x, access) in self.inputs.iter().zip(&self.plan.inputs) {
            if *access == Access::Full && x.ld == self.width {
                prefetch_floats(x.ptr.wrapping_add(next), t.len);
            }
        }
        for y in self.outputs.iter().filter(|y| y.ld == self.width) {
            if !self.inputs.iter().any(|x| std::ptr::eq(x.ptr, y.ptr)) {
                prefetch_floats(y.ptr.wrapping_add(next), t.len);
            }
        }
    }

    /// Copies results that were not written in place to their destinations.
    fn flush(&self, t: &Tile) {
        for (o, y) in self.outputs.iter().enumerate() {
            let slot = self.tile_slot(self.inputs.len() + o);
            if std::ptr::eq(self.output(o, t), slot) {
                let (mut done, mut pixel, mut channel) = (0, t.pixel, t.channel);
                while done < t.len {
                    let n = (self.width - channel).min(t.len - done);
                    unsafe { copy(slot.add(done), y.ptr.add(pixel * y.ld + channel), n) };
                    (done, pixel, channel) = (done + n, pixel + 1, 0);
                }
            }
        }
    }

    fn source(&self, location: RegisterLocation, t: &Tile) -> Source {
        match location {
            RegisterLocation::Const(k) => {
                Source { ptr: self.splat_slot(usize::from(k)), splat: true }
            }
            RegisterLocation::Input(i) => self.input(usize::from(i), t),
            RegisterLocation::Temp(_) | RegisterLocation::Output(_) => {
                Source { ptr: self.dest(location, t), splat: false }
            }
        }
    }

    fn dests(&self, locations: &[RegisterLocation], t: &Tile) -> [*mut f32; MAX_RESULTS] {
        let mut dests = [std::ptr::null_mut(); MAX_RESULTS];
        dests.iter_mut().zip(locations).for_each(|(to, location)| *to = self.dest(*location, t));
        dests
    }

    fn dest(&self, location: RegisterLocation, t: &Tile) -> *mut f32 {
        match location {
            RegisterLocation::Output(o) => self.output(usize::from(o), t),
            RegisterLocation::Temp(k) => {
                self.tile_slot(self.inputs.len() + self.outputs.len() + usize::from(k))
            }
            RegisterLocation::Const(_) | RegisterLocation::Input(_) => {
                unreachable!("steps write temporaries and outputs")
            }
        }
    }
}

/// Copies `n` floats that do not overlap, without a call of `memcpy` for short runs.
#[inline(always)]
unsafe fn copy(from: *const f32, to: *mut f32, n: usize) {
    // SAFETY: the caller's contract.
    unsafe {
        if n > 64 {
            return std::ptr::copy_nonoverlapping(from, to, n);
        }
        let mut i = 0;
        while i + 8 <= n {
            to.add(i)
                .cast::<[f32; 8]>()
                .write_unaligned(from.add(i).cast::<[f32; 8]>().read_unaligned());
            i += 8;
        }
        while i < n {
            *to.add(i) = *from.add(i);
            i += 1;
        }
    }
}

fn prefetch_floats(p: *const f32, n: usize) {
    for i in (0..n).step_by(16) {
        prefetch(p.wrapping_add(i));
    }
}

/// Copies the channels of a strided operand to contiguous memory.
unsafe fn copy_pixels(t: &Tile, width: usize, x: *const f32, ld: usize, slot: *mut f32) {
    let (mut done, mut pixel, mut channel) = (0, t.pixel, t.channel);
    while done < t.len {
        let n = (width - channel).min(t.len - done);
        // SAFETY: the caller's contract.
        unsafe { copy(x.add(pixel * ld + channel), slot.add(done), n) };
        (done, pixel, channel) = (done + n, pixel + 1, 0);
    }
}

struct Evaluate<'a> {
    walk: Walk<'a>,
    elements: Range<usize>,
}

impl Kernel for Evaluate<'_> {
    type Output = ();

    #[inline(always)]
    unsafe fn run<S: Simd>(self) {
        let walk = self.walk;
        for (k, c) in walk.plan.consts.iter().enumerate() {
            let slot = Source { ptr: walk.splat_slot(k), splat: true };
            // SAFETY: the slot holds a vector.
            unsafe { walk.fill_splat(slot, *c) };
        }
        let ahead = self.elements.len() > CACHED_ELEMENTS && walk.tiling == Tiling::Even;
        let mut start = self.elements.start;
        while start < self.elements.end {
            let t = walk.tile(start, self.elements.end);
            for i in 0..walk.inputs.len() {
                walk.fill(i, &t, start == self.elements.start);
            }
            if ahead {
                walk.prefetch(&t);
            }
            for step in &walk.plan.steps {
                let action = step.action.map(|location| walk.source(location, &t));
                // SAFETY: sources and destinations hold `len` floats.
                unsafe { execute::<S>(action, t.len, walk.dests(&step.dests, &t)) };
            }
            walk.flush(&t);
            start += t.len;
        }
    }
}
