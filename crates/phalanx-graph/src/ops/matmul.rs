//! Products of two computed values: each axis is a batch axis, contracted, or free in one operand.

use super::{Backward, Cotangents, Op, operand};
use crate::error::{GraphError, Result};
use crate::graph::Graph;
use crate::types::{DType, MAX_RANK, Space, Type};
use std::fmt;

/// The axes of a product, as labels: an einsum of two operands without repeated labels. A label of both
/// operands is a batch axis if the result has it and contracted otherwise. A label of one operand is an
/// axis of the result. Samples have no label.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Contraction {
    /// The axes of the left operand.
    pub left: Vec<u8>,
    /// The axes of the right operand.
    pub right: Vec<u8>,
    /// The axes of the result, in any order.
    pub result: Vec<u8>,
    /// Whether the product of two operands with rows is summed over the rows.
    pub sum_rows: bool,
}

impl Contraction {
    /// A contraction with its labels numbered in order of appearance, so that equal products compare
    /// equal.
    pub fn new(left: &[u8], right: &[u8], result: &[u8], sum_rows: bool) -> Contraction {
        let mut seen: Vec<u8> = vec![];
        let mut number = |labels: &[u8]| -> Vec<u8> {
            let each = |label: &u8| match seen.iter().position(|s| s == label) {
                Some(i) => i as u8,
                None => {
                    seen.push(*label);
                    seen.len() as u8 - 1
                }
            };
            labels.iter().map(each).collect()
        };
        let (left, right) = (number(left), number(right));
        Contraction { result: number(result), left, right, sum_rows }
    }

    /// The product of matrices that share their leading axes: `[batch.., m, k] · [batch.., k, n]`.
    pub fn matrices(batch: usize) -> Contraction {
        let lead: Vec<u8> = (0..batch as u8).collect();
        let with = |a: u8, b: u8| [&lead[..], &[a, b]].concat();
        let [m, k, n] = [0, 1, 2].map(|i| batch as u8 + i);
        Contraction::new(&with(m, k), &with(k, n), &with(m, n), false)
    }

    /// The loops of the product over values that lie in memory like this.
    pub fn axes(&self, left: Layout<'_>, right: Layout<'_>, result: Layout<'_>) -> ProductAxes {
        let mut axes = ProductAxes::default();
        let row_strides = [left, right, result].map(|v| v.rows.map(|_| v.row_stride()));
        if let Some(count) = left.rows.or(right.rows) {
            let axis = Axis { count, strides: row_strides.map(|s| s.unwrap_or(0)) };
            axes.of(left.rows.is_some(), right.rows.is_some(), result.rows.is_some()).push(axis);
        }
        let stride = |labels: &[u8], v: Layout<'_>, label: u8| {
            labels.iter().position(|l| *l == label).map(|at| v.stride(at))
        };
        let mut push = |label: u8, count: usize| {
            let strides = [
                stride(&self.left, left, label),
                stride(&self.right, right, label),
                stride(&self.result, result, label),
            ];
            let [l, r, y] = strides.map(|s| s.is_some());
            axes.of(l, r, y).push(Axis { count, strides: strides.map(|s| s.unwrap_or(0)) });
        };
        for (label, count) in self.result.iter().zip(result.dims) {
            push(*label, *count);
        }
        for (label, count) in self.left.iter().zip(left.dims) {
            if !self.result.contains(label) {
                push(*label, *count);
            }
        }
        axes
    }
}

impl fmt::Display for Contraction {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let text = |labels: &[u8]| -> String {
            let letter = |l: &u8| char::from(if *l < 26 { b'a' + l } else { b'A' + (l - 26) % 26 });
            labels.iter().map(letter).collect()
        };
        write!(f, "{},{}->{}", text(&self.left), text(&self.right), text(&self.result))?;
        if self.sum_rows { f.write_str(" over rows") } else { Ok(()) }
    }
}

/// How a value lies in memory: pixels (runs of the last axis) are `ld` elements apart.
#[derive(Clone, Copy, Debug)]
pub struct Layout<'a> {
    /// Dimensions of a row, or of the whole value.
    pub dims: &'a [usize],
    /// Elements from one pixel to the next.
    pub ld: usize,
    /// Number of rows, if the value has rows.
    pub rows: Option<usize>,
}

impl Layout<'_> {
    fn stride(&self, axis: usize) -> usize {
        match self.dims[axis + 1..].split_last() {
            None => 1,
            Some((_, inner)) => self.ld * inner.iter().product::<usize>(),
        }
    }

    fn row_stride(&self) -> usize {
        let lead = self.dims.split_last().map_or(1, |(_, lead)| lead.iter().product());
        self.ld * lead
    }
}

/// One loop of a product, with its strides in the left operand, the right operand and the result.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Axis {
    /// Number of steps.
    pub count: usize,
    /// Elements between steps; 0 where the axis is missing.
    pub strides: [usize; 3],
}

/// Nested loops, outermost first. Loops that continue each other are merged.
#[derive(Clone, Copy, Debug, Default)]
pub struct Axes {
    items: [Axis; MAX_RANK + 1],
    len: usize,
}

impl Axes {
    fn push(&mut self, axis: Axis) {
        if axis.count == 1 {
            return;
        }
        let continues =
            |outer: &Axis| (0..3).all(|i| outer.strides[i] == axis.count * axis.strides[i]);
        match self.items[..self.len].last_mut() {
            Some(outer) if continues(outer) => {
                *outer = Axis { count: outer.count * axis.count, ..axis };
            }
            _ => {
                self.items[self.len] = axis;
                self.len += 1;
            }
        }
    }

    /// The loops.
    pub fn loops(&self) -> &[Axis] {
        &self.items[..self.len]
    }

    /// Steps of all loops.
    pub fn count(&self) -> usize {
        self.loops().iter().map(|a| a.count).product()
    }

    /// Splits off the innermost loop; without loops it has one step.
    pub fn split_inner(&self) -> (&[Axis], Axis) {
        match self.loops().split_last() {
            Some((inner, outer)) => (outer, *inner),
            None => (&[], Axis { count: 1, strides: [1; 3] }),
        }
    }

    fn swap_operands(&mut self) {
        self.items.iter_mut().for_each(|a| a.strides.swap(0, 1));
    }
}

/// The offsets in the left operand, the right operand and the result at step `i` of nested loops.
pub fn offsets(loops: &[Axis], mut i: usize) -> [usize; 3] {
    let mut sum = [0; 3];
    for axis in loops.iter().rev() {
        let at = i % axis.count.max(1);
        i /= axis.count.max(1);
        sum.iter_mut().zip(axis.strides).for_each(|(s, stride)| *s += at * stride);
    }
    sum
}

/// The loops of a product by their role. The rows are one of them.
#[derive(Clone, Copy, Debug, Default)]
pub struct ProductAxes {
    /// In both operands and the result.
    pub batch: Axes,
    /// In the left operand and the result.
    pub left: Axes,
    /// In the right operand and the result.
    pub right: Axes,
    /// In both operands: summed over.
    pub sum: Axes,
}

impl ProductAxes {
    fn of(&mut self, left: bool, right: bool, result: bool) -> &mut Axes {
        match (left, right, result) {
            (true, true, false) => &mut self.sum,
            (true, false, _) => &mut self.left,
            (false, true, _) => &mut self.right,
            _ => &mut self.batch,
        }
    }

    /// The same product with its operands exchanged.
    pub fn swapped(mut self) -> ProductAxes {
        std::mem::swap(&mut self.left, &mut self.right);
        [&mut self.batch, &mut self.left, &mut self.right, &mut self.sum]
            .into_iter()
            .for_each(Axes::swap_operands);
        self
    }

    /// Whether the innermost free axis of the right operand is contiguous in the result.
    pub fn writes_lines(&self) -> bool {
        self.right.split_inner().1.strides[2] == 1
    }
}

/// Shape rule.
pub fn infer(c: &Contraction, left: &Type, right: &Type) -> Result<Type> {
    for (labels, ty) in [(&c.left, left), (&c.right, right)] {
        if ty.dtype != DType::F32 || labels.len() != ty.dims.len() {
            return Err(operand("matmul", format!("f32 with {} axes", labels.len()), ty));
        }
    }
    let repeated = |labels: &[u8]| (1..labels.len()).any(|i| labels[..i].contains(&labels[i]));
    let known = |l: &u8| c.left.contains(l) || c.right.contains(l);
    let kept = |l: &u8| c.result.contains(l) || c.left.contains(l) && c.right.contains(l);
    let valid = ![&c.left, &c.right, &c.result].into_iter().any(|l| repeated(l))
        && c.result.iter().all(known)
        && c.left.iter().chain(&c.right).all(kept);
    if !valid {
        let expected = "axes that are contracted, or free in one operand";
        return Err(GraphError::mismatch("matmul", expected, c.to_string()));
    }
    let size = |l: &u8| {
        let find =
            |labels: &[u8], ty: &Type| labels.iter().position(|k| k == l).map(|i| ty.dims[i]);
        (find(&c.left, left), find(&c.right, right))
    };
    for label in &c.left {
        if let (Some(a), Some(b)) = size(label)
            && a != b
        {
            let received = format!("{} and {}", left.shape_text(), right.shape_text());
            let what = format!("inputs of matmul {c}");
            return Err(GraphError::mismatch(what, "axes of equal size", received));
        }
    }
    let dims: Vec<usize> = c.result.iter().filter_map(|l| size(l).0.or(size(l).1)).collect();
    Ok(Type::new(DType::F32, space(c, left, right)?, dims))
}

/// Samples are a batch axis of two operands with rows unless they are summed over. A product is linear
/// in each operand, so a partial sum times a reduced value is a partial sum.
fn space(c: &Contraction, left: &Type, right: &Type) -> Result<Space> {
    use Space::{Device, Mirrored, Partial, Rows};
    match (left.space, right.space, c.sum_rows) {
        (Rows, Rows, true) => Ok(Partial),
        (_, _, true) => Err(operand("matmul", "rows in both operands of a sum over rows", left)),
        (Rows, Rows | Device | Mirrored, false) | (Device | Mirrored, Rows, false) => Ok(Rows),
        (Partial, Mirrored, false) | (Mirrored, Partial, false) => Ok(Partial),
        (Partial, _, _) => Err(operand("matmul", "a value already reduced", left)),
        (_, Partial, _) => Err(operand("matmul", "a value already reduced", right)),
        (Device, _, _) | (_, Device, _) => Ok(Device),
        (Mirrored, Mirrored, false) => Ok(Mirrored),
    }
}

/// The derivative by one operand is the product of `dy` and the other operand. It is summed over the
/// rows if the operand has none.
pub fn derivative(c: &Contraction, g: &mut Graph, b: &Backward<'_>) -> Cotangents {
    let mut out = vec![None, None];
    for (i, slot) in out.iter_mut().enumerate() {
        if b.wanted[i] {
            let (own, labels) = if i == 0 { (&c.left, &c.right) } else { (&c.right, &c.left) };
            let (x, other) = (b.inputs[i], b.inputs[1 - i]);
            let sum_rows = !g.ty(x).is_rows() && g.ty(b.dy).is_rows() && g.ty(other).is_rows();
            let op = Op::MatMul(Contraction::new(&c.result, labels, own, sum_rows));
            *slot = Some(g.push(op, &[b.dy, other])?);
        }
    }
    Ok(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn layout(dims: &[usize], rows: Option<usize>) -> Layout<'_> {
        Layout { dims, ld: dims.last().copied().unwrap_or(1), rows }
    }

    #[test]
    fn the_axes_of_attention_scores_keep_their_strides() {
        // q[t, h, d], k[s, h, d] -> [h, t, s]
        let c = Contraction::new(b"thd", b"shd", b"hts", false);
        assert_eq!(c.to_string(), "abc,dbc->bad");
        let (q, k, y) = ([5, 2, 3], [7, 2, 3], [2, 5, 7]);
        let axes = c.axes(layout(&q, Some(4)), layout(&k, Some(4)), layout(&y, Some(4)));
        let axis = |count, strides| Axis { count, strides };
        assert_eq!(axes.batch.loops(), [axis(4, [30, 42, 70]), axis(2, [3, 3, 35])]);
        assert_eq!(axes.left.loops(), [axis(5, [6, 0, 7])]);
        assert_eq!(axes.right.loops(), [axis(7, [0, 6, 1])]);
        assert_eq!(axes.sum.loops(), [axis(3, [1, 1, 0])]);
        assert_eq!(offsets(axes.batch.loops(), 3), [33, 45, 105]);
    }

    #[test]
    fn rows_and_contiguous_axes_are_merged() {
        let c = Contraction::new(b"tk", b"kn", b"tn", false);
        let axes =
            c.axes(layout(&[5, 3], Some(4)), layout(&[3, 2], None), layout(&[5, 2], Some(4)));
        assert_eq!(axes.left.loops(), [Axis { count: 20, strides: [3, 0, 2] }]);
        let c = Contraction::new(b"tk", b"tn", b"kn", true);
        let axes =
            c.axes(layout(&[5, 3], Some(4)), layout(&[5, 2], Some(4)), layout(&[3, 2], None));
        assert_eq!(axes.sum.loops(), [Axis { count: 20, strides: [3, 2, 0] }]);
    }

    #[test]
    fn invalid_axes_are_refused() {
        let ty = Type::rows([2, 3]);
        let other = Type::rows([3, 2]);
        for (left, right, result) in
            [("aa", "ab", "ab"), ("ab", "bc", "a"), ("ab", "bc", "acd"), ("ab", "ac", "bc")]
        {
            let [l, r, y] = [left, right, result].map(str::as_bytes);
            let c = Contraction::new(l, r, y, false);
            assert!(infer(&c, &ty, &other).is_err(), "{c}");
        }
        let c = Contraction::matrices(0);
        assert_eq!(infer(&c, &ty, &other), Ok(Type::rows([2, 2])));
        let sum = Contraction { sum_rows: true, ..c };
        assert!(infer(&sum, &ty, &Type::mirrored([3, 2])).is_err());
    }
}
