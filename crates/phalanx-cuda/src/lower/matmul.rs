//! Products of two computed values: batched products of the library if the strides allow it, a plain
//! kernel otherwise.

use super::Lowering;
use crate::launch::{Elem, Ptr};
use crate::lowering_context::Operand;
use crate::ops;
use crate::work_item::{Batch, Gemm, Matrix, Task};
use phalanx_graph::ops::Contraction;
use phalanx_graph::ops::matmul::{Axis, Layout, ProductAxes, offsets};
use phalanx_graph::program::ValueId;

/// Maximum number of library calls of a product. More items are so small that a plain kernel is faster.
const MAX_CALLS: usize = 64;

impl Lowering<'_> {
    pub(super) fn matmul(
        &mut self,
        replica: usize,
        label: String,
        c: &Contraction,
        x: &[ValueId],
        y: ValueId,
    ) {
        let operands = [x[0], x[1], y].map(|id| self.operand(replica, id));
        if operands[2].len == 0 {
            return;
        }
        let rows = [x[0], x[1], y].map(|id| {
            let rows = self.request.program.value(id).ty.is_rows();
            rows.then_some(self.request.replicas[replica].rows)
        });
        let layout =
            |i: usize| Layout { dims: &operands[i].dims, ld: operands[i].ld, rows: rows[i] };
        let axes = c.axes(layout(0), layout(1), layout(2));
        let tasks = match library_calls(&axes, &operands) {
            Some(calls) => calls.into_iter().map(Task::Gemm).collect(),
            None => vec![Task::Launch(ops::matmul::plain(&axes, &operands))],
        };
        self.work(replica, label, tasks, x, &[y]);
    }
}

/// The library's calls, or `None` if it does not support the types or strides.
fn library_calls(axes: &ProductAxes, operands: &[Operand; 3]) -> Option<Vec<Gemm>> {
    let [a, b, c] = operands;
    let types = a.elem == b.elem && (c.elem == a.elem || c.elem == Elem::F32);
    if !types || axes.sum.loops().len() > 1 || axes.sum.count() == 0 {
        return None;
    }
    if !axes.writes_lines() && axes.swapped().writes_lines() {
        return calls(&axes.swapped(), [b, a, c]);
    }
    calls(axes, [a, b, c])
}

fn calls(axes: &ProductAxes, [a, b, c]: [&Operand; 3]) -> Option<Vec<Gemm>> {
    let (more_rows, m) = axes.left.split_inner();
    let (more_columns, n) = axes.right.split_inner();
    let (_, k) = axes.sum.split_inner();
    let mut loops = [axes.batch.loops(), more_rows, more_columns].concat();
    // The longest loop over items becomes the library's.
    let longest = (0..loops.len()).max_by_key(|i| loops[*i].count);
    let batch = longest.map_or(Batch::ONE, |i| {
        let Axis { count, strides } = loops.remove(i);
        Batch { count, strides }
    });
    let calls: usize = loops.iter().map(|l| l.count).product();
    if calls > MAX_CALLS {
        return None;
    }
    let matrices = [
        matrix(a, (m.count, m.strides[0]), (k.count, k.strides[0]))?,
        matrix(b, (k.count, k.strides[1]), (n.count, n.strides[1]))?,
        matrix(c, (m.count, m.strides[2]), (n.count, n.strides[2])).filter(|c| !c.transposed)?,
    ];
    let call = |i: usize| {
        let at = offsets(&loops, i);
        let [a, b, c] = std::array::from_fn(|i| {
            let of: &Matrix = &matrices[i];
            Matrix { at: moved(of.at, of.elem, at[i]), ..*of }
        });
        let (bias, relu) = (None, false);
        Gemm { m: m.count, n: n.count, k: k.count, a, b, c, bias, relu, batch }
    };
    Some((0..calls).map(call).collect())
}

fn moved(at: Ptr, elem: Elem, elements: usize) -> Ptr {
    at.add(elements * elem.bytes())
}

/// An operand as a matrix, given the count and stride of its rows and columns. One of them must be
/// contiguous.
fn matrix(x: &Operand, rows: (usize, usize), columns: (usize, usize)) -> Option<Matrix> {
    let lines = |(outer, step): (usize, usize), (inner, unit): (usize, usize)| {
        let ld = if outer == 1 { inner } else { step };
        (ld >= inner && (unit == 1 || inner == 1)).then_some(ld)
    };
    let matrix = |ld, transposed| Matrix { at: x.ptr, elem: x.elem, ld, transposed };
    match lines(rows, columns) {
        Some(ld) => Some(matrix(ld, false)),
        None => lines(columns, rows).map(|ld| matrix(ld, true)),
    }
}
