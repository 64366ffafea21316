//! Recurrent cells over a sequence, and their derivatives.
//!
//! A block of rows runs through all steps with the recurrent kernel packed once. A step is one product of the block's
//! states and one pass over its gates, which stay in cache in between.

// Arrays of registers are indexed in lockstep.
#![allow(clippy::needless_range_loop)]

use super::layout::Src;
use super::math;
use super::matrix::Epilogue;
use super::tile::{Arena, Block, PanelRows, Weights, pack_columns, pack_rows};
use crate::simd::{Isa, Kernel, MAX_LANES, Simd, dispatch};
use phalanx_graph::MAX_ELEMENTS;
use phalanx_graph::ops::recurrent::SAVED_PER_UNIT;
use phalanx_graph::ops::{RecurrentAttrs, RecurrentCell};

/// Rows that run through the sequence together.
const ROWS: usize = 48;

/// Gates of any cell.
const MAX_GATES: usize = 4;

/// Floats of scratch that both passes need for this many units.
///
/// # Panics
/// If the number overflows.
pub fn scratch_len(units: usize) -> usize {
    let padded = units.checked_next_multiple_of(MAX_LANES);
    let packed = padded.and_then(|n| n.checked_mul(n)?.checked_mul(MAX_GATES));
    let packed = packed.filter(|n| *n <= MAX_ELEMENTS);
    let packed = packed.unwrap_or_else(|| panic!("{units} units cannot be counted"));
    let block = ROWS * MAX_GATES * units;
    Arena::floats_len(packed)
        + Arena::floats_len(block)
        + Arena::pointers_len(MAX_GATES * ROWS)
        + Arena::pointers_len(ROWS)
}

/// The shape of a recurrent op.
#[derive(Clone, Copy, Debug)]
pub struct Shape {
    /// The op's attributes.
    pub attrs: RecurrentAttrs,
    /// Rows.
    pub rows: usize,
    /// Steps of the sequence.
    pub steps: usize,
    /// Units of the cell.
    pub units: usize,
}

impl Shape {
    /// The step that is computed as number `i`.
    #[inline(always)]
    fn step(&self, i: usize) -> usize {
        if self.attrs.reverse { self.steps - 1 - i } else { i }
    }

    /// Floats of all gates.
    #[inline(always)]
    fn gates(&self) -> usize {
        self.attrs.cell.gates() * self.units
    }
}

/// The states before the first step, `h` and `c`, and the mask; all optional. Rows of a state are `ld` apart.
#[derive(Clone, Copy, Debug)]
pub struct Optional {
    /// `h`, and `c` if the cell has one.
    pub initial: [Option<Src>; 2],
    /// One number per row and step.
    pub mask: Option<*const f32>,
}

impl Optional {
    /// The state of a row before the first step.
    #[inline(always)]
    unsafe fn state(&self, which: usize, row: usize) -> Option<*const f32> {
        // SAFETY: the caller's contract.
        self.initial[which].map(|s| unsafe { s.ptr.add(row * s.ld) })
    }

    #[inline(always)]
    unsafe fn is_masked(&self, pixel: usize) -> bool {
        // SAFETY: the caller's contract.
        self.mask.is_some_and(|mask| unsafe { *mask.add(pixel) == 0.0 })
    }
}

/// A forward pass.
#[derive(Debug)]
pub struct Forward<'a> {
    /// Sizes.
    pub shape: Shape,
    /// Projected inputs.
    pub x: Src,
    /// The recurrent kernel, without gaps.
    pub kernel: &'a [f32],
    /// The bias of the states.
    pub bias: Option<&'a [f32]>,
    /// Further operands.
    pub optional: Optional,
    /// The result, without gaps.
    pub y: *mut f32,
}

/// A backward pass.
#[derive(Debug)]
pub struct Backward<'a> {
    /// Sizes.
    pub shape: Shape,
    /// The result of the forward pass, with all it keeps.
    pub y: *const f32,
    /// The recurrent kernel, without gaps.
    pub kernel: &'a [f32],
    /// Further operands.
    pub optional: Optional,
    /// The cotangents of `h` and, if any, of `c`.
    pub dy: [Option<Src>; 2],
    /// The result, without gaps.
    pub d: *mut f32,
}

/// Runs a cell over a sequence.
///
/// # Safety
/// All pointers are valid for the sizes of the shape, and `y` overlaps no operand.
pub unsafe fn forward(isa: Isa, pass: Forward<'_>, scratch: &mut [f32]) {
    assert_eq!(pass.kernel.len(), pass.shape.units * pass.shape.gates(), "kernel");
    // SAFETY: the caller's contract; the kernel was checked.
    unsafe { dispatch(isa, ForwardKernel { pass, scratch }) };
}

/// Runs the derivative of a cell backwards over a sequence.
///
/// # Safety
/// All pointers are valid for the sizes of the shape, and `d` overlaps no operand.
pub unsafe fn backward(isa: Isa, pass: Backward<'_>, scratch: &mut [f32]) {
    assert_eq!(pass.kernel.len(), pass.shape.units * pass.shape.gates(), "kernel");
    // SAFETY: the caller's contract; the kernel was checked.
    unsafe { dispatch(isa, BackwardKernel { pass, scratch }) };
}

struct ForwardKernel<'a> {
    pass: Forward<'a>,
    scratch: &'a mut [f32],
}

impl Kernel for ForwardKernel<'_> {
    type Output = ();

    #[inline(always)]
    unsafe fn run<S: Simd>(self) {
        let pass = self.pass;
        let (units, cols) = (pass.shape.units, pass.shape.gates());
        let mut arena = Arena(self.scratch);
        let packed = arena.floats(units * cols.next_multiple_of(S::LANES)).as_mut_ptr();
        let sums = arena.floats(ROWS * cols).as_mut_ptr();
        let a = arena.pointers::<f32>(ROWS);
        let out = arena.pointers::<f32>(ROWS);
        for i in 0..ROWS {
            // SAFETY: the sums have this many rows.
            out[i] = unsafe { sums.add(i * cols) };
        }
        // SAFETY: the kernel's size was checked, and `packed` holds it.
        unsafe { pack_rows::<S>(pass.kernel.as_ptr(), cols, units, cols, packed) };
        let Shape { attrs, rows, steps, .. } = pass.shape;
        let width = attrs.width() * units;
        for first in (0..rows).step_by(ROWS) {
            let count = ROWS.min(rows - first);
            for i in 0..steps {
                let t = pass.shape.step(i);
                // SAFETY: rows and steps exist; results of earlier steps are complete.
                unsafe {
                    let mut known = true;
                    for r in 0..count {
                        let row = first + r;
                        let state = match i {
                            0 => pass.optional.state(0, row),
                            _ => {
                                let before = row * steps + pass.shape.step(i - 1);
                                Some(pass.y.add(before * width).cast_const())
                            }
                        };
                        known = state.is_some();
                        a[r] = state.unwrap_or(std::ptr::null()).cast_mut();
                    }
                    if known {
                        let (a, out) = (a.as_ptr().cast(), out.as_ptr());
                        let epilogue = Epilogue { bias: pass.bias, relu: false };
                        let weights = Weights::Packed(packed);
                        Block { rows: count, taps: 1, k: units, a, weights, cols, out, epilogue }
                            .run::<S>();
                    } else {
                        start(pass.bias, sums, count, cols);
                    }
                    for r in 0..count {
                        let pixel = (first + r) * steps + t;
                        let previous = match i {
                            0 => [0, 1].map(|s| pass.optional.state(s, first + r)),
                            _ => [Some(a[r].cast_const()), Some(a[r].add(units).cast_const())],
                        };
                        let step = UnitStep {
                            cell: attrs.cell,
                            keep: attrs.keep,
                            units,
                            x: pass.x.ptr.add(pixel * pass.x.ld),
                            sums: sums.add(r * cols),
                            previous,
                            y: pass.y.add(pixel * width),
                            masked: pass.optional.is_masked(pixel),
                        };
                        S::enter(step);
                    }
                }
            }
        }
    }
}

/// The sums of states that are zero: the bias.
#[inline(always)]
unsafe fn start(bias: Option<&[f32]>, sums: *mut f32, rows: usize, cols: usize) {
    for row in 0..rows {
        for col in 0..cols {
            // SAFETY: the sums have this many rows.
            unsafe { *sums.add(row * cols + col) = bias.map_or(0.0, |bias| bias[col]) };
        }
    }
}

/// The gates and states of one row at one step.
struct UnitStep {
    cell: RecurrentCell,
    keep: bool,
    units: usize,
    x: *const f32,
    /// The product of the state with the recurrent kernel.
    sums: *const f32,
    /// The previous states; zero if absent.
    previous: [Option<*const f32>; 2],
    y: *mut f32,
    masked: bool,
}

impl UnitStep {
    /// The previous state of the units from `at` on.
    #[inline(always)]
    unsafe fn before<S: Simd>(&self, state: usize, at: usize, n: usize) -> S::V {
        // SAFETY: the caller's contract.
        unsafe {
            match self.previous[state] {
                Some(p) => S::load_partial(p.add(at), n),
                None => S::zero(),
            }
        }
    }

    #[inline(always)]
    unsafe fn input<S: Simd>(&self, gate: usize, at: usize, n: usize) -> S::V {
        // SAFETY: the caller's contract.
        unsafe { S::load_partial(self.x.add(gate * self.units + at), n) }
    }

    #[inline(always)]
    unsafe fn sum<S: Simd>(&self, gate: usize, at: usize, n: usize) -> S::V {
        // SAFETY: the caller's contract.
        unsafe { S::load_partial(self.sums.add(gate * self.units + at), n) }
    }
}

impl Kernel for UnitStep {
    type Output = ();

    #[inline(always)]
    unsafe fn run<S: Simd>(self) {
        let (units, states) = (self.units, self.cell.states());
        for at in (0..units).step_by(S::LANES) {
            let n = S::LANES.min(units - at);
            // SAFETY: the units exist, and the result has a place for each of their values.
            unsafe {
                let h = self.before::<S>(0, at, n);
                let (mut new, kept) = match self.cell {
                    RecurrentCell::Lstm => {
                        let mut z = [S::zero(); 4];
                        for gate in 0..4 {
                            z[gate] =
                                S::add(self.input::<S>(gate, at, n), self.sum::<S>(gate, at, n));
                        }
                        let c = self.before::<S>(1, at, n);
                        let i = math::sigmoid::<S>(z[0]);
                        let f = math::sigmoid::<S>(z[1]);
                        let g = math::tanh::<S>(z[2]);
                        let o = math::sigmoid::<S>(z[3]);
                        let c = S::fmadd(f, c, S::mul(i, g));
                        ([S::mul(o, math::tanh::<S>(c)), c], [i, f, g, o])
                    }
                    RecurrentCell::Gru => {
                        let z = S::add(self.input::<S>(0, at, n), self.sum::<S>(0, at, n));
                        let r = S::add(self.input::<S>(1, at, n), self.sum::<S>(1, at, n));
                        let (z, r) = (math::sigmoid::<S>(z), math::sigmoid::<S>(r));
                        let inner = self.sum::<S>(2, at, n);
                        let new = math::tanh::<S>(S::fmadd(r, inner, self.input::<S>(2, at, n)));
                        // z · h + (1 - z) · new
                        let blend = S::fmadd(z, S::sub(h, new), new);
                        ([blend, S::zero()], [z, r, new, inner])
                    }
                };
                if self.masked {
                    new = [h, self.before::<S>(states - 1, at, n)];
                }
                for s in 0..states {
                    S::store_partial(self.y.add(s * units + at), new[s], n);
                }
                if self.keep {
                    for i in 0..4 {
                        S::store_partial(self.y.add((states + i) * units + at), kept[i], n);
                    }
                    S::store_partial(self.y.add((states + 4) * units + at), h, n);
                }
            }
        }
    }
}

struct BackwardKernel<'a> {
    pass: Backward<'a>,
    scratch: &'a mut [f32],
}

impl Kernel for BackwardKernel<'_> {
    type Output = ();

    #[inline(always)]
    unsafe fn run<S: Simd>(self) {
        let pass = self.pass;
        let (units, gates) = (pass.shape.units, pass.shape.gates());
        let Shape { attrs, rows, steps, .. } = pass.shape;
        let (cell, states) = (attrs.cell, attrs.cell.states());
        // The gates inside of the product: one piece, or pieces of `units` with a gap between them.
        let (taps, k) = match cell {
            RecurrentCell::Lstm => (1, 4 * units),
            RecurrentCell::Gru => (3, units),
        };
        let piece = [0, 1, 3];
        let (width, out_steps) =
            ((states + SAVED_PER_UNIT) * units, steps + usize::from(attrs.initial));
        let mut arena = Arena(self.scratch);
        let packed = arena.floats(gates * units.next_multiple_of(S::LANES)).as_mut_ptr();
        let carried = arena.floats(2 * ROWS * units).as_mut_ptr();
        let a = arena.pointers::<f32>(MAX_GATES * ROWS);
        let out = arena.pointers::<f32>(ROWS);
        // SAFETY: the kernel's size was checked, and `packed` holds its transpose.
        unsafe {
            let to = PanelRows::all(packed, gates);
            pack_columns::<S>(pass.kernel.as_ptr(), gates, gates, units, to);
        }
        for first in (0..rows).step_by(ROWS) {
            let count = ROWS.min(rows - first);
            // SAFETY: rows and steps exist; the scratch memory holds two vectors of each row.
            unsafe {
                let of_c = carried.add(ROWS * units);
                std::slice::from_raw_parts_mut(carried, 2 * ROWS * units).fill(0.0);
                for r in 0..count {
                    out[r] = carried.add(r * units);
                }
                for i in (0..steps).rev() {
                    let t = pass.shape.step(i);
                    for r in 0..count {
                        let row = first + r;
                        let (pixel, to) = (row * steps + t, (row * out_steps + t) * 4 * units);
                        let c = match i {
                            0 => pass.optional.state(states - 1, row),
                            _ => {
                                let before = row * steps + pass.shape.step(i - 1);
                                Some(pass.y.add(before * width + (states - 1) * units))
                            }
                        };
                        let dy = pass.dy.map(|d| d.map(|d| d.ptr.add(pixel * d.ld)));
                        S::enter(UnitGrad {
                            cell,
                            units,
                            y: pass.y.add(pixel * width),
                            c,
                            dy,
                            carried: [out[r], of_c.add(r * units)],
                            d: pass.d.add(to),
                            masked: pass.optional.is_masked(pixel),
                        });
                        for tap in 0..taps {
                            a[tap * count + r] = pass.d.add(to + piece[tap] * units);
                        }
                    }
                    let (a, out, weights) =
                        (a.as_ptr().cast(), out.as_ptr(), Weights::Packed(packed));
                    let epilogue = Epilogue::NONE;
                    Block { rows: count, taps, k, a, weights, cols: units, out, epilogue }
                        .run_from::<S>(true);
                }
                if attrs.initial {
                    for r in 0..count {
                        let to = pass.d.add(((first + r) * out_steps + steps) * 4 * units);
                        std::slice::from_raw_parts_mut(to, 4 * units).fill(0.0);
                        to.copy_from_nonoverlapping(carried.add(r * units), units);
                        if states == 2 {
                            to.add(units).copy_from_nonoverlapping(of_c.add(r * units), units);
                        }
                    }
                }
            }
        }
    }
}

/// The cotangents of one row at one step.
struct UnitGrad {
    cell: RecurrentCell,
    units: usize,
    /// What the forward pass kept of the step.
    y: *const f32,
    /// The previous `c`; zero if absent.
    c: Option<*const f32>,
    /// The cotangents of the step's `h` and `c`.
    dy: [Option<*const f32>; 2],
    /// The cotangents of the states after the step; then those before it, without the product.
    carried: [*mut f32; 2],
    d: *mut f32,
    masked: bool,
}

impl UnitGrad {
    #[inline(always)]
    unsafe fn kept<S: Simd>(&self, which: usize, at: usize, n: usize) -> S::V {
        // SAFETY: the caller's contract.
        unsafe { S::load_partial(self.y.add(which * self.units + at), n) }
    }

    /// The cotangent of a state after the step.
    #[inline(always)]
    unsafe fn incoming<S: Simd>(&self, state: usize, at: usize, n: usize) -> S::V {
        // SAFETY: the caller's contract.
        unsafe {
            let carried = S::load_partial(self.carried[state].add(at), n);
            match self.dy[state] {
                Some(dy) => S::add(carried, S::load_partial(dy.add(at), n)),
                None => carried,
            }
        }
    }
}

impl Kernel for UnitGrad {
    type Output = ();

    #[inline(always)]
    unsafe fn run<S: Simd>(self) {
        let units = self.units;
        for at in (0..units).step_by(S::LANES) {
            let n = S::LANES.min(units - at);
            // SAFETY: the units exist, and the result has a place for each of their values.
            unsafe {
                let one = S::splat(1.0);
                let (dh, dc) = (self.incoming::<S>(0, at, n), self.incoming::<S>(1, at, n));
                let (d, before) = if self.masked {
                    ([S::zero(); 4], [dh, dc])
                } else if self.cell == RecurrentCell::Lstm {
                    let (i, f) = (self.kept::<S>(2, at, n), self.kept::<S>(3, at, n));
                    let (g, o) = (self.kept::<S>(4, at, n), self.kept::<S>(5, at, n));
                    let shown = math::tanh::<S>(self.kept::<S>(1, at, n));
                    let c = match self.c {
                        Some(c) => S::load_partial(c.add(at), n),
                        None => S::zero(),
                    };
                    let slope = S::mul(o, S::sub(one, S::mul(shown, shown)));
                    let dc = S::fmadd(dh, slope, dc);
                    let of_i = S::mul(S::mul(dc, g), S::mul(i, S::sub(one, i)));
                    let of_f = S::mul(S::mul(dc, c), S::mul(f, S::sub(one, f)));
                    let of_g = S::mul(S::mul(dc, i), S::sub(one, S::mul(g, g)));
                    let of_o = S::mul(S::mul(dh, shown), S::mul(o, S::sub(one, o)));
                    ([of_i, of_f, of_g, of_o], [S::zero(), S::mul(dc, f)])
                } else {
                    let (z, r) = (self.kept::<S>(1, at, n), self.kept::<S>(2, at, n));
                    let (new, inner) = (self.kept::<S>(3, at, n), self.kept::<S>(4, at, n));
                    let h = self.kept::<S>(5, at, n);
                    let of_new = S::mul(S::mul(dh, S::sub(one, z)), S::sub(one, S::mul(new, new)));
                    let of_z = S::mul(S::mul(dh, S::sub(h, new)), S::mul(z, S::sub(one, z)));
                    let of_r = S::mul(S::mul(of_new, inner), S::mul(r, S::sub(one, r)));
                    ([of_z, of_r, of_new, S::mul(of_new, r)], [S::mul(dh, z), S::zero()])
                };
                for gate in 0..4 {
                    S::store_partial(self.d.add(gate * units + at), d[gate], n);
                }
                for state in 0..2 {
                    S::store_partial(self.carried[state].add(at), before[state], n);
                }
            }
        }
    }
}
