//! Sums and maxima along axes, and the sum over rows.

use super::axes::{TypedPtr, axes, index_type, pack_width, sizes, strides};
use super::layout;
use crate::launch::{Arg, Elem, Launch, MAX_BLOCKS, Ptr, Word};
use crate::lowering_context::{LowerCtx, Scratch};
use phalanx_graph::ops::ReduceKind;
use phalanx_graph::program::ValueId;

const FILE: &str = "reduce";

/// Threads per block of `reduce_columns`.
const THREADS: usize = 256;

/// Maximum columns per block of `sum_many`.
const MAX_COLUMNS_PER_BLOCK: usize = 16;

/// Blocks that keep a GPU busy with columns.
const TARGET_BLOCKS: usize = 132 * 2;

/// Minimum rows per thread of `reduce_columns` before they are split among blocks.
const MIN_ROWS_PER_THREAD: usize = 8;

/// Sum or maximum along axes, which are kept with size one.
pub(crate) fn reduce(
    cx: &mut LowerCtx<'_>,
    kind: ReduceKind,
    along: &[usize],
    x: &[ValueId],
    y: ValueId,
) -> Vec<Launch> {
    let rows = cx.rows_of(y);
    let (x, y) = (cx.operand(x[0]), cx.operand(y));
    let ends = (layout::typed_ptr(&x), layout::typed_ptr(&y));
    if y.len == 0 || x.len == 0 {
        let start = if kind == ReduceKind::Sum { 0.0 } else { f32::NEG_INFINITY };
        return layout::fill(ends.1, y.len, start);
    }
    let (from, from_row) = strides(&x.dims, x.last());
    let (mut kept, mut reduced) = (vec![], vec![]);
    push_loop(&mut kept, rows, from_row);
    for (i, d) in x.dims.iter().enumerate() {
        push_loop(if along.contains(&i) { &mut reduced } else { &mut kept }, *d, from[i]);
    }
    match reduced[..] {
        [] => reduce_plain(cx.scratch, kind, ends, [y.len, 1, 1]),
        [(len, inner)] => reduce_plain(cx.scratch, kind, ends, [x.len / (len * inner), len, inner]),
        _ => vec![reduce_strided(kind, ends, y.len, x.len, kept, reduced)],
    }
}

/// Appends a loop. A loop that continues the last one contiguously is merged into it.
fn push_loop(loops: &mut Vec<(usize, usize)>, count: usize, stride: usize) {
    match loops.last_mut() {
        _ if count == 1 => {}
        Some(outer) if outer.1 == count * stride => *outer = (outer.0 * count, stride),
        _ => loops.push((count, stride)),
    }
}

/// The sum of all rows.
pub(crate) fn sum_rows(cx: &mut LowerCtx<'_>, x: &[ValueId], y: ValueId) -> Vec<Launch> {
    let (x, y) = (cx.operand(x[0]), cx.operand(y));
    if y.len == 0 {
        return vec![];
    }
    let ends = (layout::typed_ptr(&x), layout::typed_ptr(&y));
    reduce_plain(cx.scratch, ReduceKind::Sum, ends, [1, cx.rows, y.len])
}

/// The sum of `pixels` of `c` channels each, `ld` elements apart, in one launch.
pub(crate) fn column_sums(
    cx: &mut LowerCtx<'_>,
    x: TypedPtr,
    [pixels, c, ld]: [usize; 3],
    y: Ptr,
) -> Launch {
    columns(cx.scratch, ReduceKind::Sum, (x, (y, Elem::F32)), [1, pixels, c], ld)
}

/// Sum (or product) of the elements up to each one along an axis, or from it on.
pub(crate) fn cumulative(
    cx: &mut LowerCtx<'_>,
    axis: usize,
    [product, reverse]: [bool; 2],
    x: &[ValueId],
    y: ValueId,
) -> Vec<Launch> {
    let (x, y) = (cx.operand(x[0]), cx.operand(y));
    if y.len == 0 {
        return vec![];
    }
    let (len, inner) = (y.dims[axis], y.dims[axis + 1..].iter().product::<usize>());
    let lines = y.len / len;
    let types = format!("{}, {}", x.elem.c_name(), y.elem.c_name());
    let launch = Launch::over(FILE, format!("cumulative<{types}>"), 32 * lines);
    let launch = launch.arg(x.ptr).arg(y.ptr).arg(lines).arg(len).arg(inner);
    vec![launch.arg(product).arg(reverse)]
}

/// A sum over rows that is batched with others.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct RowSum {
    pub from: Ptr,
    pub to: Ptr,
    pub rows: usize,
    pub columns: usize,
    /// Floats from one row to the next.
    pub ld: usize,
}

/// Many sums over few rows in one launch.
pub(crate) fn sum_many(sums: &[RowSum]) -> Launch {
    let side = |s: &RowSum| s.columns.next_power_of_two().min(MAX_COLUMNS_PER_BLOCK);
    let tiles = sums.iter().map(|s| s.columns.div_ceil(side(s))).max().unwrap_or(1).max(1);
    let row = |s: &RowSum| -> [Word; 6] {
        [s.from.into(), s.to.into(), s.rows.into(), s.columns.into(), s.ld.into(), side(s).into()]
    };
    let table: Vec<Word> = sums.iter().flat_map(row).collect();
    Launch::blocks(FILE, "sum_many", sums.len() * tiles, THREADS as u32).arg(table).arg(tiles)
}

fn max(kind: ReduceKind) -> bool {
    kind == ReduceKind::Max
}

fn template(name: &str, kind: ReduceKind, (x, y): (TypedPtr, TypedPtr), more: &str) -> String {
    format!("{name}<{}, {}, {}, {more}>", max(kind), x.1.c_name(), y.1.c_name())
}

/// `[outer, len, inner]` to `[outer, inner]`.
fn reduce_plain(
    scratch: &mut Scratch,
    kind: ReduceKind,
    ends: (TypedPtr, TypedPtr),
    [outer, len, inner]: [usize; 3],
) -> Vec<Launch> {
    let (x, y) = ends;
    if inner == 1 && (len <= 2048 || outer >= 1024) {
        let group = len.next_power_of_two().min(32);
        let name = template("reduce_lines", kind, ends, &group.to_string());
        let launch = Launch::over(FILE, name, outer * group);
        return vec![launch.arg(x.0).arg(y.0).arg(outer).arg(len)];
    }
    let shape = Columns::new(x, [outer, len, inner], inner);
    let small = len * inner.min(shape.tile()) < 8 * THREADS && outer > 1;
    if len <= 4 || small || outer * shape.tiles > 1 << 20 {
        let n = outer * inner;
        let name = template("reduce_each", kind, ends, index_type(n));
        let launch = Launch::over(FILE, name, n);
        return vec![launch.arg(x.0).arg(y.0).arg(n).arg(len).arg(inner)];
    }
    vec![columns(scratch, kind, ends, [outer, len, inner], inner)]
}

/// The split of `reduce_columns`: `tx` threads next to each other, with `width` columns each.
struct Columns {
    width: usize,
    tx: usize,
    tiles: usize,
    splits: usize,
}

impl Columns {
    fn new(x: TypedPtr, [outer, len, inner]: [usize; 3], ld: usize) -> Columns {
        let width = pack_width(&[x], &[inner, ld]);
        let tx = inner.div_ceil(width).next_power_of_two().min(32);
        let tiles = inner.div_ceil(tx * width).max(1);
        let max_splits = len.div_ceil(THREADS / tx * MIN_ROWS_PER_THREAD).max(1);
        let splits = TARGET_BLOCKS.div_ceil((outer * tiles).max(1)).min(max_splits);
        Columns { width, tx, tiles, splits }
    }

    fn tile(&self) -> usize {
        self.width * self.tx
    }
}

/// Rows may be `ld` apart if there is one outer step.
fn columns(
    scratch: &mut Scratch,
    kind: ReduceKind,
    ends: (TypedPtr, TypedPtr),
    [outer, len, inner]: [usize; 3],
    ld: usize,
) -> Launch {
    let (x, y) = ends;
    let Columns { width, tx, tiles, splits } = Columns::new(x, [outer, len, inner], ld);
    let name = template("reduce_columns", kind, ends, &format!("{width}, {tx}"));
    let launch = Launch::blocks(FILE, name, (outer * tiles * splits).max(1), THREADS as u32);
    let launch = launch.arg(x.0).arg(y.0).arg(len).arg(inner).arg(ld).arg(tiles).arg(splits);
    if splits == 1 {
        return launch.arg(Arg::Null).arg(Arg::Null);
    }
    let parts = scratch.take(outer * splits * inner * Elem::F64.bytes());
    launch.arg(parts).arg(scratch.counters(outer * tiles * size_of::<u32>()))
}

/// Axes that are not adjacent.
fn reduce_strided(
    kind: ReduceKind,
    ends: (TypedPtr, TypedPtr),
    n: usize,
    all: usize,
    mut kept: Vec<(usize, usize)>,
    reduced: Vec<(usize, usize)>,
) -> Launch {
    if kept.is_empty() {
        kept.push((1, 0));
    }
    let list = |loops: &[(usize, usize)]| {
        format!("{}, {}", sizes(loops.iter().map(|l| l.0)), axes(loops.iter().map(|l| l.1)))
    };
    let more = format!("{}, {}, {}", index_type(all), list(&kept), list(&reduced));
    let name = template("reduce_axes", kind, ends, &more);
    let blocks = (32 * n).div_ceil(THREADS).min(MAX_BLOCKS);
    let launch = Launch::blocks(FILE, name, blocks, THREADS as u32);
    launch.arg(ends.0.0).arg(ends.1.0).arg(n).arg(all / n)
}
