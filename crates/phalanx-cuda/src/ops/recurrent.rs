//! Recurrent cells over a sequence.

use crate::launch::{Elem, Launch, MAX_BLOCKS, Ptr};
use crate::lowering_context::{LowerCtx, Operand};
use phalanx_graph::ops::{RecurrentAttrs, RecurrentCell};
use phalanx_graph::program::ValueId;

const FILE: &str = "recurrent";

/// Maximum number of units whose kernel the threads of a block hold in registers: 96 of 4 gates are 384 threads
/// with 96 weights each.
const MAX_UNITS_PER_BLOCK: usize = 96;

/// Threads per block of a single step.
const THREADS: usize = 256;

/// Rows that a warp of a single backward step has.
const ROWS_PER_WARP: usize = 8;

/// The shape of a recurrent op.
struct Shape {
    rows: usize,
    steps: usize,
    units: usize,
}

impl Shape {
    /// Its op has `x[steps, ..]` and the kernel as first operands.
    fn of(cx: &LowerCtx<'_>, x: &[ValueId]) -> Shape {
        let dims = |i: usize| &cx.value(x[i]).ty.dims;
        Shape { rows: cx.rows, steps: dims(0)[0], units: dims(1)[0] }
    }

    /// Whether a block runs all steps of a row.
    fn fits_block(&self) -> bool {
        self.units <= MAX_UNITS_PER_BLOCK
    }

    /// Threads of a block that runs all steps.
    fn threads(&self, cell: RecurrentCell) -> u32 {
        (cell.gates() * self.units).next_multiple_of(32) as u32
    }

    /// The steps in the order of computation.
    fn order(&self, attrs: &RecurrentAttrs) -> Vec<i32> {
        let steps = 0..self.steps as i32;
        if attrs.reverse { steps.rev().collect() } else { steps.collect() }
    }
}

/// The cell's type in the kernels.
fn c_name(cell: RecurrentCell) -> &'static str {
    match cell {
        RecurrentCell::Lstm => "Lstm",
        RecurrentCell::Gru => "Gru",
    }
}

/// Runs a cell over a sequence.
pub(crate) fn recurrent(
    cx: &mut LowerCtx<'_>,
    attrs: &RecurrentAttrs,
    x: &[ValueId],
    y: ValueId,
) -> Vec<Launch> {
    let (shape, at) = (Shape::of(cx, x), attrs.operands());
    if shape.rows == 0 {
        return vec![];
    }
    let ptr = |i: usize| cx.operand(x[i]).ptr;
    let state =
        |s: usize| at.initial.filter(|_| s < attrs.cell.states()).map(|first| ptr(first + s));
    let z = cx.operand(x[0]);
    let operands = |launch: Launch| {
        launch
            .arg(z.ptr)
            .arg(z.ld)
            .arg(ptr(1))
            .arg(at.bias.map(ptr))
            .arg(state(0))
            .arg(state(1))
            .arg(at.mask.map(ptr))
            .arg(cx.operand(y).ptr)
            .arg(shape.rows)
    };
    let (cell, keep) = (c_name(attrs.cell), attrs.keep);
    let steps = shape.steps as i32;
    if shape.fits_block() {
        let name = format!("recurrent<{cell}, {}, {keep}>", shape.units);
        let threads = shape.threads(attrs.cell);
        let launch = Launch::blocks(FILE, name, shape.rows.min(MAX_BLOCKS), threads);
        return vec![operands(launch).arg(steps).arg(attrs.reverse)];
    }
    let warps = shape.rows * shape.units.div_ceil(32);
    let order = shape.order(attrs);
    let one = |(i, step): (usize, &i32)| {
        let before = if i == 0 { -1 } else { order[i - 1] };
        let name = format!("recurrent_step<{cell}, {keep}>");
        let launch = operands(warp_launch(name, warps));
        launch.arg(shape.units as i32).arg(steps).arg(*step).arg(before)
    };
    order.iter().enumerate().map(one).collect()
}

/// A launch with one warp for each item.
fn warp_launch(name: String, warps: usize) -> Launch {
    let blocks = warps.div_ceil(THREADS / 32).clamp(1, MAX_BLOCKS);
    Launch::blocks(FILE, name, blocks, THREADS as u32)
}

/// Runs the derivative of a cell backwards over a sequence.
pub(crate) fn recurrent_grad(
    cx: &mut LowerCtx<'_>,
    attrs: &RecurrentAttrs,
    more: bool,
    x: &[ValueId],
    y: ValueId,
) -> Vec<Launch> {
    let (shape, at) = (Shape::of(cx, x), attrs.grad_operands(more));
    if shape.rows == 0 {
        return vec![];
    }
    let carried = match shape.fits_block() {
        true => None,
        false => Some(cx.scratch.take(2 * shape.rows * shape.units * Elem::F32.bytes())),
    };
    let operand = |i: usize| cx.operand(x[i]);
    let ptr = |i: usize| operand(i).ptr;
    let c0: Option<Ptr> = at.initial.filter(|_| attrs.cell.states() == 2).map(|h| ptr(h + 1));
    let (dh, dc): (Operand, Option<Operand>) = (operand(at.first), at.second.map(operand));
    let d = cx.operand(y).ptr;
    let operands = |launch: Launch| {
        launch
            .arg(ptr(0))
            .arg(ptr(1))
            .arg(c0)
            .arg(at.mask.map(ptr))
            .arg(dh.ptr)
            .arg(dh.ld)
            .arg(dc.as_ref().map(|dc| dc.ptr))
            .arg(dc.as_ref().map_or(0, |dc| dc.ld))
            .arg(d)
    };
    let (cell, steps) = (c_name(attrs.cell), shape.steps as i32);
    let Some(carried) = carried else {
        let name = format!("recurrent_grad<{cell}, {}>", shape.units);
        let threads = shape.threads(attrs.cell);
        let launch = operands(Launch::blocks(FILE, name, shape.rows.min(MAX_BLOCKS), threads));
        let launch = launch.arg(shape.rows).arg(steps).arg(attrs.reverse);
        return vec![launch.arg(attrs.initial)];
    };
    let warps = shape.units * shape.rows.div_ceil(ROWS_PER_WARP);
    // The step, the one before it and the one after it in the order of computation; -1 if there is none.
    let one = |step: i32, before: i32, after: i32| {
        let launch = operands(warp_launch(format!("recurrent_grad_step<{cell}>"), warps));
        let launch = launch.arg(carried).arg(shape.rows).arg(shape.units as i32).arg(steps);
        launch.arg(step).arg(before).arg(after).arg(attrs.initial)
    };
    let order = shape.order(attrs);
    let at = |i: Option<usize>| i.and_then(|i| order.get(i)).copied().unwrap_or(-1);
    let mut launches: Vec<Launch> = (0..shape.steps)
        .rev()
        .map(|i| one(order[i], at(i.checked_sub(1)), at(Some(i + 1))))
        .collect();
    if attrs.initial {
        launches.push(one(-1, -1, order[0]));
    }
    launches
}
