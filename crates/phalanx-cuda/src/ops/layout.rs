//! Constants, casts and ops that move elements: copies, transposes, concatenation, slices, padding.

use super::axes::{Loop, TypedPtr, axes, index_type, items, pack_width, push, sizes, strides};
use crate::launch::{Launch, MAX_BLOCKS};
use crate::lowering_context::{LowerCtx, Operand};
use phalanx_graph::program::ValueId;

const FILE: &str = "layout";

/// Minimum axis length for transposition through shared memory.
const MIN_TILED_AXIS: usize = 16;

/// The same number everywhere.
pub(crate) fn constant(cx: &mut LowerCtx<'_>, value: f64, y: ValueId) -> Vec<Launch> {
    let y = cx.operand(y);
    fill((y.ptr, y.elem), y.len, value as f32)
}

/// Fills `n` elements with a number.
pub(super) fn fill(y: TypedPtr, n: usize, value: f32) -> Vec<Launch> {
    if n == 0 {
        return vec![];
    }
    let name = format!("fill<{}>", y.1.c_name());
    vec![Launch::over(FILE, name, n).arg(y.0).arg(n).arg(value)]
}

/// A copy that converts to another element type.
pub(crate) fn cast(cx: &mut LowerCtx<'_>, x: &[ValueId], y: ValueId) -> Vec<Launch> {
    copy(cx, x[0], y)
}

/// Copies pixel by pixel between strides and element types.
pub(crate) fn copy(cx: &mut LowerCtx<'_>, x: ValueId, y: ValueId) -> Vec<Launch> {
    let (x, y) = (cx.operand(x), cx.operand(y));
    // If one side has no gaps, its pixels can be split like the other's.
    let width = if is_contiguous(&x) { y.last() } else { x.last() };
    let step = |v: &Operand| if is_contiguous(v) { width } else { v.ld };
    let mut loops = vec![];
    push(&mut loops, y.len / width.max(1), step(&x), step(&y));
    push(&mut loops, width, 1, 1);
    copy_loops(loops, typed_ptr(&x), typed_ptr(&y))
}

fn is_contiguous(v: &Operand) -> bool {
    v.ld == v.last()
}

pub(super) fn typed_ptr(v: &Operand) -> TypedPtr {
    (v.ptr, v.elem)
}

/// The address `elements` further on.
fn offset_by((ptr, elem): TypedPtr, elements: usize) -> TypedPtr {
    (ptr.add(elements * elem.bytes()), elem)
}

/// Copies the elements of nested loops.
pub(crate) fn copy_loops(mut loops: Vec<Loop>, x: TypedPtr, y: TypedPtr) -> Vec<Launch> {
    let n: usize = loops.iter().map(|l| l.count).product();
    if n == 0 {
        return vec![];
    }
    if loops.is_empty() {
        loops.push(Loop { count: 1, src: 1, dst: 1 });
    }
    let inner = loops[loops.len() - 1];
    let unit = inner.src == 1 && inner.dst == 1;
    if !unit && let Some(launch) = transpose_tiles(&loops, x, y) {
        return vec![launch];
    }
    let width = if unit { copy_width(&loops, x, y) } else { 1 };
    let n = n / width;
    let item = items(x.1, y.1, width);
    let index = index_type(n);
    if unit && loops.len() <= 2 {
        let lines = if loops.len() == 2 { loops[0] } else { Loop { count: 1, src: 0, dst: 0 } };
        let launch = Launch::over(FILE, format!("copy_pixels<{item}, {index}>"), n);
        let launch = launch.arg(x.0).arg(y.0).arg(n).arg(inner.count / width);
        return vec![launch.arg(lines.src / width).arg(lines.dst / width)];
    }
    let sizes = loop_axes(&shorten(&loops, width));
    let name = format!("copy_axes<{item}, {index}, {sizes}>");
    vec![Launch::over(FILE, name, n).arg(x.0).arg(y.0).arg(n)]
}

/// Elements at once along an innermost contiguous loop.
fn copy_width(loops: &[Loop], x: TypedPtr, y: TypedPtr) -> usize {
    let (inner, outer) = loops.split_last().expect("one loop or more");
    let mut sizes = vec![inner.count];
    outer.iter().for_each(|l| sizes.extend([l.src, l.dst]));
    pack_width(&[x, y], &sizes)
}

/// Loops over items of `width` elements, which divides all but the innermost stride.
fn shorten(loops: &[Loop], width: usize) -> Vec<Loop> {
    let (inner, outer) = loops.split_last().expect("one loop or more");
    let mut out: Vec<Loop> = outer
        .iter()
        .map(|l| Loop { count: l.count, src: l.src / width, dst: l.dst / width })
        .collect();
    out.push(Loop { count: inner.count / width, ..*inner });
    out
}

fn loop_axes(loops: &[Loop]) -> String {
    let each = |f: fn(&Loop) -> usize| axes(loops.iter().map(f));
    format!("{}, {}, {}", sizes(loops.iter().map(|l| l.count)), each(|l| l.src), each(|l| l.dst))
}

/// A transposition through tiles in shared memory, which makes both sides contiguous.
fn transpose_tiles(loops: &[Loop], x: TypedPtr, y: TypedPtr) -> Option<Launch> {
    let a = loops.iter().position(|l| l.src == 1 && l.count >= MIN_TILED_AXIS)?;
    let b = loops.iter().position(|l| l.dst == 1 && l.count >= MIN_TILED_AXIS)?;
    if a == b || x.1 != y.1 {
        return None;
    }
    let mut others: Vec<Loop> =
        (0..loops.len()).filter(|i| *i != a && *i != b).map(|i| loops[i]).collect();
    let outer: usize = others.iter().map(|l| l.count).product();
    if others.is_empty() {
        others.push(Loop { count: 1, src: 0, dst: 0 });
    }
    let (a, b) = (loops[a], loops[b]);
    let tiles = outer * a.count.div_ceil(32) * b.count.div_ceil(32);
    let word = items(x.1, y.1, 1);
    let word = word.split(',').next().unwrap_or_default();
    let name = format!("transpose_tiles<{word}, {}, {}>", index_type(outer), loop_axes(&others));
    let launch = Launch::blocks(FILE, name, tiles.min(MAX_BLOCKS), 256);
    Some(launch.arg(x.0).arg(y.0).arg(tiles).arg(a.count).arg(b.count).arg(b.src).arg(a.dst))
}

/// Repeats along axes of size one and along new leading ones.
pub(crate) fn broadcast(
    cx: &mut LowerCtx<'_>,
    dims: &[usize],
    x: &[ValueId],
    y: ValueId,
) -> Vec<Launch> {
    let rows = cx.rows_of(y);
    let (x, y) = (cx.operand(x[0]), cx.operand(y));
    let (from, from_row) = strides(&x.dims, x.ld);
    let (to, to_row) = strides(dims, y.ld);
    let new = dims.len() - x.dims.len();
    let mut loops = vec![];
    push(&mut loops, rows, from_row, to_row);
    for (i, d) in dims.iter().enumerate() {
        let repeats = i < new || x.dims[i - new] == 1;
        push(&mut loops, *d, if repeats { 0 } else { from[i - new] }, to[i]);
    }
    copy_loops(loops, typed_ptr(&x), typed_ptr(&y))
}

/// Axis `i` of `y` is axis `perm[i]` of `x`.
pub(crate) fn transpose(
    cx: &mut LowerCtx<'_>,
    perm: &[usize],
    x: &[ValueId],
    y: ValueId,
) -> Vec<Launch> {
    let rows = cx.rows_of(y);
    let (x, y) = (cx.operand(x[0]), cx.operand(y));
    let (from, from_row) = strides(&x.dims, x.ld);
    let (to, to_row) = strides(&y.dims, y.ld);
    let mut loops = vec![];
    push(&mut loops, rows, from_row, to_row);
    for (i, p) in perm.iter().enumerate() {
        push(&mut loops, y.dims[i], from[*p], to[i]);
    }
    copy_loops(loops, typed_ptr(&x), typed_ptr(&y))
}

/// The loops over a block of `dims` inside two values, each with its own dimensions.
fn block_loops(
    rows: usize,
    dims: &[usize],
    (from, from_row): (Vec<usize>, usize),
    (to, to_row): (Vec<usize>, usize),
) -> Vec<Loop> {
    let mut loops = vec![];
    push(&mut loops, rows, from_row, to_row);
    for (i, d) in dims.iter().enumerate() {
        push(&mut loops, *d, from[i], to[i]);
    }
    loops
}

/// Concatenates operands along an axis, with one launch each.
pub(crate) fn concat(cx: &mut LowerCtx<'_>, axis: usize, x: &[ValueId], y: ValueId) -> Vec<Launch> {
    let rows = cx.rows_of(y);
    let y = cx.operand(y);
    let to = strides(&y.dims, y.ld);
    let (mut start, mut launches) = (0, vec![]);
    for part in x {
        let x = cx.operand(*part);
        let loops = block_loops(rows, &x.dims, strides(&x.dims, x.ld), to.clone());
        launches.extend(copy_loops(
            loops,
            typed_ptr(&x),
            offset_by(typed_ptr(&y), start * to.0[axis]),
        ));
        start += x.dims[axis];
    }
    launches
}

/// Elements from `start` on, along an axis.
pub(crate) fn slice(
    cx: &mut LowerCtx<'_>,
    axis: usize,
    start: usize,
    x: &[ValueId],
    y: ValueId,
) -> Vec<Launch> {
    let rows = cx.rows_of(y);
    let (x, y) = (cx.operand(x[0]), cx.operand(y));
    let from = strides(&x.dims, x.ld);
    let source = offset_by(typed_ptr(&x), start * from.0[axis]);
    copy_loops(block_loops(rows, &y.dims, from, strides(&y.dims, y.ld)), source, typed_ptr(&y))
}

/// A kernel between all steps of an axis of `dims` and the selected ones, for each of `n` elements.
fn along_axis(
    name: &str,
    (x, y): (&Operand, &Operand),
    dims: &[usize],
    axis: usize,
    step: isize,
) -> Vec<Launch> {
    let n = y.len;
    if n == 0 {
        return vec![];
    }
    let (len, inner) = (dims[axis], dims[axis + 1..].iter().product::<usize>());
    let word = items(x.elem, y.elem, 1);
    let word = word.split(',').next().unwrap_or_default();
    let launch = Launch::over(FILE, format!("{name}<{word}, {}>", index_type(n)), n);
    let launch = launch.arg(x.ptr).arg(y.ptr).arg(n).arg(len).arg(inner);
    vec![launch.arg(step.unsigned_abs()).arg(step < 0)]
}

/// Every `step`-th element along an axis.
pub(crate) fn stride(
    cx: &mut LowerCtx<'_>,
    axis: usize,
    step: isize,
    x: &[ValueId],
    y: ValueId,
) -> Vec<Launch> {
    let (x, y) = (cx.operand(x[0]), cx.operand(y));
    along_axis("stride_axis", (&x, &y), &x.dims, axis, step)
}

/// Elements at every `step`-th position along an axis, zeros between.
pub(crate) fn dilate(
    cx: &mut LowerCtx<'_>,
    axis: usize,
    step: isize,
    x: &[ValueId],
    y: ValueId,
) -> Vec<Launch> {
    let (x, y) = (cx.operand(x[0]), cx.operand(y));
    along_axis("dilate_axis", (&x, &y), &y.dims, axis, step)
}

/// A loop over a padded axis: `own` of its steps are in the source, after the first `before`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Padded {
    at: Loop,
    before: usize,
    own: usize,
}

/// Appends an inner loop. A loop without padding is merged into the last.
fn push_padded(loops: &mut Vec<Padded>, inner: Padded) {
    let Loop { count, src, dst } = inner.at;
    match loops.last_mut() {
        Some(outer)
            if count == inner.own && outer.at.src == count * src && outer.at.dst == count * dst =>
        {
            let at = Loop { count: outer.at.count * count, src, dst };
            *outer = Padded { at, before: outer.before * count, own: outer.own * count };
        }
        _ => loops.push(inner),
    }
}

/// Zeros before and after each axis.
pub(crate) fn pad(
    cx: &mut LowerCtx<'_>,
    before: &[usize],
    x: &[ValueId],
    y: ValueId,
) -> Vec<Launch> {
    let rows = cx.rows_of(y);
    let (x, y) = (cx.operand(x[0]), cx.operand(y));
    if y.len == 0 {
        return vec![];
    }
    let (from, from_row) = strides(&x.dims, x.ld);
    let (to, to_row) = strides(&y.dims, y.ld);
    let at = Loop { count: rows, src: from_row, dst: to_row };
    let mut loops = vec![Padded { at, before: 0, own: rows }];
    for i in 0..y.dims.len() {
        let at = Loop { count: y.dims[i], src: from[i], dst: to[i] };
        push_padded(&mut loops, Padded { at, before: before[i], own: x.dims[i] });
    }
    let width = padded_width(&loops, &x, &y);
    let plain: Vec<Loop> = loops.iter().map(|l| l.at).collect();
    let plain = shorten(&plain, width);
    let (last, outer) = loops.split_last().expect("the rows' loop");
    let tail = |f: fn(&Padded) -> usize| axes(outer.iter().map(f).chain([f(last) / width]));
    let (sizes, borders) = (loop_axes(&plain), [tail(|l| l.before), tail(|l| l.own)].join(", "));
    let n = y.len / width;
    let (item, index) = (items(x.elem, y.elem, width), index_type(n));
    let name = format!("pad_axes<{item}, {index}, {sizes}, {borders}>");
    vec![Launch::over(FILE, name, n).arg(x.ptr).arg(y.ptr).arg(n)]
}

fn padded_width(loops: &[Padded], x: &Operand, y: &Operand) -> usize {
    let (inner, outer) = loops.split_last().expect("the rows' loop");
    if inner.at.src != 1 || inner.at.dst != 1 {
        return 1;
    }
    let mut sizes = vec![inner.at.count, inner.before, inner.own];
    outer.iter().for_each(|l| sizes.extend([l.at.src, l.at.dst]));
    pack_width(&[typed_ptr(x), typed_ptr(y)], &sizes)
}
