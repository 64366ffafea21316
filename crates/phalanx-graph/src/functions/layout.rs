//! Composed functions that move elements: slices with steps, padding, concatenation, positions.

use crate::error::{GraphError, Result};
use crate::graph::{Graph, NodeId};
use crate::ops::{Binary, Op};
use crate::types::{Space, Type};

/// Maximum number of pieces that padding repeats.
const MAX_PIECES: usize = 4096;

/// The content of padding.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum PadMode {
    /// One number.
    Constant(f64),
    /// The nearest element.
    Edge,
    /// The elements mirrored at the first and the last, which are not repeated.
    Reflect,
    /// The elements mirrored at the borders: the first and the last are repeated.
    Symmetric,
    /// The elements from the other end.
    Wrap,
}

/// The elements of an axis in reverse order.
pub fn flip(g: &mut Graph, x: NodeId, axis: usize) -> Result<NodeId> {
    if g.node(x).op == (Op::Stride { axis, step: -1 }) {
        return Ok(g.node(x).inputs[0]);
    }
    g.push(Op::Stride { axis, step: -1 }, &[x])
}

/// `column - row` for every element of a matrix.
pub fn offsets(g: &mut Graph, rows: usize, columns: usize) -> Result<NodeId> {
    let (row, column) = (iota(g, rows)?, iota(g, columns)?);
    let row = g.reshape(row, &[rows, 1])?;
    g.sub(column, row)
}

/// `count` elements along an axis: `start`, `start + step`, ….
pub fn slice_steps(
    g: &mut Graph,
    x: NodeId,
    axis: usize,
    (start, count, step): (usize, usize, isize),
) -> Result<NodeId> {
    let stride = step.unsigned_abs();
    let span = match count {
        0 => Some(0),
        n => (n - 1).checked_mul(stride).and_then(|s| s.checked_add(1)),
    };
    let first = match (span, step < 0) {
        (Some(span), true) => start.checked_add(1).and_then(|end| end.checked_sub(span)),
        _ => Some(start),
    };
    let (Some(len), Some(first)) = (span, first) else {
        let received = format!("{count} elements from {start} on, {step} apart");
        return Err(GraphError::mismatch("slice", "elements of the axis", received));
    };
    let first = if count == 0 { 0 } else { first };
    let mut y = x;
    if g.ty(x).dims.get(axis) != Some(&len) {
        y = g.push(Op::Slice { axis, start: first, len }, &[x])?;
    }
    match step {
        1 => Ok(y),
        _ => g.push(Op::Stride { axis, step }, &[y]),
    }
}

/// A piece of a padded axis: `len` elements from `start` on, ascending, descending or one repeated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Piece {
    start: usize,
    len: usize,
    step: isize,
}

/// The piece at position `at`, counted from the first element, of an axis of `n` elements.
fn piece(mode: PadMode, n: usize, at: i64) -> Piece {
    let up = |start: i64, end: i64| Piece {
        start: start as usize,
        len: (end - start) as usize,
        step: 1,
    };
    let down = |start: i64, end: i64| Piece {
        start: start as usize,
        len: (start - end) as usize,
        step: -1,
    };
    let n = n as i64;
    match mode {
        PadMode::Reflect if n > 1 => match at.rem_euclid(2 * (n - 1)) {
            m if m < n - 1 => up(m, n - 1),
            m => down(2 * (n - 1) - m, 0),
        },
        PadMode::Symmetric => match at.rem_euclid(2 * n) {
            m if m < n => up(m, n),
            m => down(2 * n - 1 - m, -1),
        },
        PadMode::Wrap => up(at.rem_euclid(n), n),
        // The other modes repeat an element.
        _ if at < 0 => Piece { start: 0, len: at.unsigned_abs() as usize, step: 0 },
        _ if at < n => up(at, n),
        _ => Piece { start: n as usize - 1, len: usize::MAX, step: 0 },
    }
}

/// Pads one axis by repeating elements.
fn pad_axis(
    g: &mut Graph,
    x: NodeId,
    axis: usize,
    (before, after): (usize, usize),
    mode: PadMode,
) -> Result<NodeId> {
    let n = g.ty(x).dims[axis];
    if n == 0 {
        let received = g.ty(x).shape_text();
        return Err(GraphError::mismatch("padding", "elements to repeat", received));
    }
    let (mut at, end) = (-(before as i64), (n + after) as i64);
    let mut parts = vec![];
    while at < end {
        let Piece { start, len, step } = piece(mode, n, at);
        let len = len.min((end - at) as usize);
        at += len as i64;
        parts.push(if step == 0 {
            let one = g.push(Op::Slice { axis, start, len: 1 }, &[x])?;
            let mut dims = g.ty(x).dims.clone();
            dims[axis] = len;
            g.push(Op::Broadcast { dims }, &[one])?
        } else {
            slice_steps(g, x, axis, (start, len, step))?
        });
        if parts.len() > MAX_PIECES {
            let expected = format!("at most {MAX_PIECES} repetitions of the axis");
            let received = format!("{before} and {after} around {n} elements");
            return Err(GraphError::mismatch("padding", expected, received));
        }
    }
    g.push(Op::Concat { axis }, &parts)
}

/// Pads every axis.
pub fn pad(
    g: &mut Graph,
    x: NodeId,
    before: &[usize],
    after: &[usize],
    mode: PadMode,
) -> Result<NodeId> {
    let op = Op::Pad { before: before.to_vec(), after: after.to_vec() };
    // Checks the number of axes and the size of the result.
    op.infer(&[g.ty(x)])?;
    if let PadMode::Constant(value) = mode {
        let padded = g.push(op.clone(), &[x])?;
        if value == 0.0 {
            return Ok(padded);
        }
        let dims = g.ty(x).dims.clone();
        let inside = g.fill(1.0, &dims);
        let inside = g.push(op, &[inside])?;
        let value = g.scalar(value);
        return g.select(inside, padded, value);
    }
    let mut y = x;
    for (axis, sizes) in before.iter().copied().zip(after.iter().copied()).enumerate() {
        if sizes != (0, 0) {
            y = pad_axis(g, y, axis, sizes, mode)?;
        }
    }
    Ok(y)
}

/// A mirrored value repeated for each sample of `like`.
pub fn repeat_rows(g: &mut Graph, x: NodeId, like: NodeId) -> Result<NodeId> {
    if g.ty(x).is_rows() {
        return Ok(x);
    }
    let len = g.ty(like).len();
    if len == 0 {
        let received = g.ty(like).shape_text();
        return Err(GraphError::mismatch(
            "samples to repeat for",
            "at least one element",
            received,
        ));
    }
    let flat = g.reshape(like, &[len])?;
    let first = g.push(Op::Slice { axis: 0, start: 0, len: 1 }, &[flat])?;
    let first = g.reshape(first, &[])?;
    // Nothing is above itself, NaN included: zeros.
    let zeros = g.binary(Binary::Gt, first, first)?;
    g.add(x, zeros)
}

/// Concatenates values along an axis. Mirrored values are repeated for each sample if others have rows.
pub fn concat(g: &mut Graph, parts: &[NodeId], axis: usize) -> Result<NodeId> {
    let mut parts = parts.to_vec();
    if let Some(like) = parts.iter().copied().find(|x| g.ty(*x).is_rows()) {
        for x in &mut parts {
            *x = repeat_rows(g, *x, like)?;
        }
    }
    match parts[..] {
        [one] => Ok(one),
        _ => g.push(Op::Concat { axis }, &parts),
    }
}

/// The numbers `0, 1, …, n - 1`; exact up to 2²⁴.
pub fn iota(g: &mut Graph, n: usize) -> Result<NodeId> {
    Type::new(crate::types::DType::F32, Space::Mirrored, [n]).check_limits()?;
    let ones = g.fill(1.0, &[n]);
    let counts = g.push(Op::Cumulative { axis: 0, product: false, reverse: false }, &[ones])?;
    g.offset(counts, -1.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The elements of a padded axis of `n`.
    fn padded(mode: PadMode, n: usize, before: usize, after: usize) -> Vec<usize> {
        let (mut at, end) = (-(before as i64), (n + after) as i64);
        let mut out = vec![];
        while at < end {
            let p = piece(mode, n, at);
            let len = p.len.min((end - at) as usize);
            out.extend((0..len as isize).map(|i| (p.start as isize + i * p.step) as usize));
            at += len as i64;
        }
        out
    }

    #[test]
    fn padding_repeats_as_numpy_does() {
        assert_eq!(padded(PadMode::Reflect, 3, 4, 3), [0, 1, 2, 1, 0, 1, 2, 1, 0, 1]);
        assert_eq!(padded(PadMode::Symmetric, 3, 4, 3), [2, 2, 1, 0, 0, 1, 2, 2, 1, 0]);
        assert_eq!(padded(PadMode::Wrap, 3, 4, 2), [2, 0, 1, 2, 0, 1, 2, 0, 1]);
        assert_eq!(padded(PadMode::Edge, 3, 2, 1), [0, 0, 0, 1, 2, 2]);
        assert_eq!(padded(PadMode::Reflect, 1, 2, 2), [0; 5]);
        assert_eq!(padded(PadMode::Symmetric, 1, 2, 2), [0; 5]);
    }

    #[test]
    fn sizes_that_do_not_fit_are_refused() {
        let mut g = Graph::new();
        let feed = g.add_feed("x", Type::rows([2]));
        let x = g.feed(feed);
        let big = usize::MAX >> 20;
        for mode in [PadMode::Wrap, PadMode::Reflect, PadMode::Symmetric] {
            assert!(pad(&mut g, x, &[big], &[0], mode).is_err());
        }
        assert!(pad(&mut g, x, &[usize::MAX], &[usize::MAX], PadMode::Edge).is_err());
        assert!(pad(&mut g, x, &[1, 1], &[1, 1], PadMode::Edge).is_err());
        for steps in [(0, 3, 1), (1, 3, -1), (0, usize::MAX, 2), (0, 2, isize::MIN)] {
            assert!(slice_steps(&mut g, x, 0, steps).is_err(), "{steps:?}");
        }
        let back = slice_steps(&mut g, x, 0, (1, 2, -1)).expect("fits");
        assert_eq!(*g.ty(back), Type::rows([2]));
        let none = slice_steps(&mut g, x, 0, (1, 0, -3)).expect("fits");
        assert_eq!(*g.ty(none), Type::rows([0]));
    }
}
