//! Ops with integer operands or results: embeddings, one-hot, arg-max and counting.

use super::axes::{index_type, pack_width};
use super::layout::typed_ptr;
use crate::launch::{Elem, Launch, MAX_BLOCKS};
use crate::lowering_context::LowerCtx;
use phalanx_graph::ops::TakeAxis;
use phalanx_graph::ops::take::TakeLoops;
use phalanx_graph::program::ValueId;

const FILE: &str = "index";

/// Uses of a table row above which blocks search for them, as in the kernels.
const MAX_LISTED_USES: usize = 32;

/// Maximum blocks that search for the uses of a table row, and the indices that each should have at least.
const MAX_SPLITS: usize = 16;
const MIN_INDICES_PER_SPLIT: usize = 512;

/// Rows of a table; operands `table, index`.
pub(crate) fn gather(cx: &mut LowerCtx<'_>, x: &[ValueId], y: ValueId) -> Vec<Launch> {
    let (table, index, y) = (cx.operand(x[0]), cx.operand(x[1]), cx.operand(y));
    if y.len == 0 {
        return vec![];
    }
    let (vocab, wide) = (table.dims[0], table.dims[1]);
    let width = pack_width(&[typed_ptr(&table), typed_ptr(&y)], &[wide]);
    let n = y.len / width;
    let types = format!("{}, {}", table.elem.c_name(), y.elem.c_name());
    let name = format!("gather<{types}, {width}, {}>", index_type(n));
    let launch = Launch::over(FILE, name, n).arg(table.ptr).arg(index.ptr).arg(y.ptr);
    vec![launch.arg(n).arg(vocab).arg(wide / width)]
}

/// Operands `index, dy`. Uses are sorted by table row, so that every row sums its uses in order. Rows with many uses
/// are left to blocks that search the indices for them.
pub(crate) fn gather_grad(cx: &mut LowerCtx<'_>, x: &[ValueId], y: ValueId) -> Vec<Launch> {
    let (index, dy, table) = (cx.operand(x[0]), cx.operand(x[1]), cx.operand(y));
    if table.len == 0 {
        return vec![];
    }
    let (n, vocab, wide) = (index.len, table.dims[0], table.dims[1]);
    let word = size_of::<u32>();
    let counts = cx.scratch.counters(vocab * word);
    let starts = cx.scratch.take(vocab * word);
    let list = cx.scratch.take(n * word);
    let max_many = (n / (MAX_LISTED_USES + 1)).min(vocab);
    let many = cx.scratch.take((1 + max_many) * word);
    let width = pack_width(&[typed_ptr(&dy), typed_ptr(&table)], &[wide]);
    let count = Launch::over(FILE, "gather_count", n).arg(index.ptr).arg(counts);
    let start = Launch::blocks(FILE, "gather_starts", 1, 1024).arg(counts).arg(starts).arg(many);
    let put = Launch::over(FILE, "gather_place", n).arg(index.ptr).arg(counts);
    let put = put.arg(starts).arg(list);
    let types = format!("{}, {width}", dy.elem.c_name());
    let name = format!("gather_grad<{types}>");
    let sum = Launch::blocks(FILE, name, vocab.div_ceil(8).min(MAX_BLOCKS), 256);
    let sum = sum.arg(dy.ptr).arg(table.ptr).arg(counts).arg(starts).arg(list);
    let mut launches = vec![
        count.arg(n).arg(vocab),
        start.arg(vocab),
        put.arg(n).arg(vocab),
        sum.arg(vocab).arg(wide),
    ];
    if max_many > 0 {
        let splits = (n / MIN_INDICES_PER_SPLIT).clamp(1, MAX_SPLITS);
        let rows = max_many.min(MAX_BLOCKS / MAX_SPLITS);
        let parts = cx.scratch.take(max_many * splits * wide * Elem::F32.bytes());
        let counters = cx.scratch.counters(max_many * word);
        let name = format!("gather_grad_many<{types}>");
        let sum = Launch::blocks(FILE, name, rows * splits, 256);
        let sum = sum.arg(index.ptr).arg(dy.ptr).arg(table.ptr).arg(many).arg(n).arg(wide);
        launches.push(sum.arg(splits).arg(parts).arg(counters));
    }
    launches
}

/// The sizes of `take` as arguments of its kernels.
fn take_args(launch: Launch, l: &TakeLoops) -> Launch {
    let launch = launch.arg(l.outer).arg(l.size).arg(l.count).arg(l.inner);
    launch.arg(l.x_rows).arg(l.index_rows).arg(l.along)
}

/// Elements at positions along an axis; operands `x, index`.
pub(crate) fn take(cx: &mut LowerCtx<'_>, at: TakeAxis, x: &[ValueId], y: ValueId) -> Vec<Launch> {
    let (of, positions) = (cx.value(x[0]), &cx.value(x[1]).ty);
    let loops = at.loops(&of.ty.dims, of.ty.is_rows(), positions, cx.rows);
    let (x, index, y) = (cx.operand(x[0]), cx.operand(x[1]), cx.operand(y));
    if y.len == 0 {
        return vec![];
    }
    let name = format!("take<{}, {}>", x.elem.c_name(), index_type(y.len));
    let launch = Launch::over(FILE, name, y.len).arg(x.ptr).arg(index.ptr).arg(y.ptr).arg(y.len);
    vec![take_args(launch, &loops)]
}

/// Adds to each element the derivatives of its uses, in order; operands `index, dy`.
pub(crate) fn take_grad(
    cx: &mut LowerCtx<'_>,
    at: TakeAxis,
    x: &[ValueId],
    y: ValueId,
) -> Vec<Launch> {
    let (to, positions) = (cx.value(y), &cx.value(x[0]).ty);
    let loops = at.loops(&to.ty.dims, to.ty.is_rows(), positions, cx.rows);
    let (index, dy, y) = (cx.operand(x[0]), cx.operand(x[1]), cx.operand(y));
    if y.len == 0 {
        return vec![];
    }
    let name = format!("take_grad<{}>", index_type(y.len));
    let launch = Launch::over(FILE, name, y.len).arg(index.ptr).arg(dy.ptr).arg(y.ptr).arg(y.len);
    vec![take_args(launch, &loops).arg(loops.rows)]
}

/// The positions that sort the last axis.
pub(crate) fn arg_sort(cx: &mut LowerCtx<'_>, x: &[ValueId], y: ValueId) -> Vec<Launch> {
    let (x, y) = (cx.operand(x[0]), cx.operand(y));
    if y.len == 0 {
        return vec![];
    }
    let name = format!("arg_sort<{}, {}>", x.elem.c_name(), index_type(y.len));
    vec![Launch::over(FILE, name, y.len).arg(x.ptr).arg(y.ptr).arg(y.len).arg(x.last())]
}

/// The index of each row in the global batch.
pub(crate) fn row_index(cx: &mut LowerCtx<'_>, y: ValueId) -> Vec<Launch> {
    let y = cx.operand(y);
    if y.len == 0 {
        return vec![];
    }
    vec![Launch::over(FILE, "row_index", y.len).arg(y.ptr).arg(y.len).arg(cx.first_row)]
}

/// 1 at the index, 0 elsewhere, along a new last axis.
pub(crate) fn one_hot(
    cx: &mut LowerCtx<'_>,
    depth: usize,
    x: &[ValueId],
    y: ValueId,
) -> Vec<Launch> {
    let (index, y) = (cx.operand(x[0]), cx.operand(y));
    if y.len == 0 {
        return vec![];
    }
    let name = format!("one_hot<{}, {}>", y.elem.c_name(), index_type(y.len));
    let launch = Launch::over(FILE, name, y.len).arg(index.ptr).arg(y.ptr);
    vec![launch.arg(y.len).arg(depth)]
}

/// Index of the first maximum along the last axis.
pub(crate) fn arg_max(cx: &mut LowerCtx<'_>, x: &[ValueId], y: ValueId) -> Vec<Launch> {
    let (x, y) = (cx.operand(x[0]), cx.operand(y));
    if y.len == 0 {
        return vec![];
    }
    let launch = Launch::over(FILE, format!("arg_max<{}>", x.elem.c_name()), 32 * y.len);
    vec![launch.arg(x.ptr).arg(y.ptr).arg(y.len).arg(x.last() as i32).arg(x.ld)]
}

/// 1 if the label's score is among the `k` best; operands `scores, labels`.
pub(crate) fn in_top_k(cx: &mut LowerCtx<'_>, k: usize, x: &[ValueId], y: ValueId) -> Vec<Launch> {
    let (scores, labels, y) = (cx.operand(x[0]), cx.operand(x[1]), cx.operand(y));
    if y.len == 0 {
        return vec![];
    }
    let n = scores.last();
    let name = format!("in_top_k<{}, {}>", scores.elem.c_name(), y.elem.c_name());
    let launch = Launch::over(FILE, name, 32 * y.len).arg(scores.ptr).arg(labels.ptr).arg(y.ptr);
    vec![launch.arg(y.len).arg(n as i32).arg(k.min(n) as i32)]
}

/// Weights of positives, then of negatives, above each of `n` thresholds; operands
/// `score, label, weight`.
pub(crate) fn threshold_counts(
    cx: &mut LowerCtx<'_>,
    n: usize,
    x: &[ValueId],
    y: ValueId,
) -> Vec<Launch> {
    let (score, label, weight) = (cx.operand(x[0]), cx.operand(x[1]), cx.operand(x[2]));
    let y = cx.operand(y);
    let blocks = score.len.div_ceil(1024).clamp(1, 132);
    let parts = cx.scratch.take(blocks * 2 * n * Elem::F64.bytes());
    let counter = cx.scratch.counters(size_of::<u32>());
    let types = [&score, &label, &weight].map(|o| o.elem.c_name()).join(", ");
    let launch = Launch::blocks(FILE, format!("threshold_counts<{types}>"), blocks, 256);
    let launch = launch.arg(score.ptr).arg(label.ptr).arg(weight.ptr).arg(y.ptr);
    vec![launch.arg(score.len).arg(n as i32).arg(parts).arg(counter)]
}
