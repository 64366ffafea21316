//! Linear algebra of small matrices: determinants, inverses, linear systems and Cholesky's factor. The elimination is part of the graph:
//! every column of a matrix adds some nodes.

use super::context::{GraphResult, OpCall};
use super::ops;
use crate::error::Result;
use crate::layer::Outputs;
use phalanx_graph::functions::index::arg_max;
use phalanx_graph::functions::layout::{concat, iota, repeat_rows};
use phalanx_graph::functions::math;
use phalanx_graph::ops::{Binary, Unary};
use phalanx_graph::{Graph, NodeId, Op};

/// The largest matrix.
const MAX_SIDE: usize = 64;

/// A square matrix per sample and the length of its side.
fn square(cx: OpCall<'_, '_, '_>, name: &str) -> Result<(NodeId, usize)> {
    let x = cx.tensor(name)?;
    match cx.dims(x)[..] {
        [.., rows, columns] if rows == columns && (1..=MAX_SIDE).contains(&rows) => Ok((x, rows)),
        ref dims => {
            let expected = format!("square matrices of at most {MAX_SIDE} rows");
            Err(cx.argument(name, &expected, format!("{dims:?}")))
        }
    }
}

/// Row `at` of matrices, which remain matrices.
fn row(g: &mut Graph, x: NodeId, at: usize) -> GraphResult {
    let axis = g.ty(x).dims.len() - 2;
    g.push(Op::Slice { axis, start: at, len: 1 }, &[x])
}

/// Column `at` of matrices, which remain matrices.
fn column(g: &mut Graph, x: NodeId, at: usize) -> GraphResult {
    let axis = g.ty(x).dims.len() - 1;
    g.push(Op::Slice { axis, start: at, len: 1 }, &[x])
}

fn transpose(g: &mut Graph, x: NodeId) -> GraphResult {
    let rank = g.ty(x).dims.len();
    let mut perm: Vec<usize> = (0..rank).collect();
    perm.swap(rank - 2, rank - 1);
    g.push(Op::Transpose { perm }, &[x])
}

/// The numbers of `n` rows, as a column.
fn row_numbers(g: &mut Graph, n: usize) -> GraphResult {
    let numbers = iota(g, n)?;
    g.reshape(numbers, &[n, 1])
}

/// The identity matrix.
fn identity(g: &mut Graph, n: usize) -> GraphResult {
    let down = row_numbers(g, n)?;
    let across = g.reshape(down, &[1, n])?;
    g.binary(Binary::Eq, down, across)
}

/// Exchanges row `k` with the row of the largest element of column `k` from `k` on. Returns the exchanged matrices and 1
/// or, where the rows differ, -1.
fn pivot(
    g: &mut Graph,
    k: usize,
    n: usize,
    matrices: &mut [NodeId],
) -> phalanx_graph::Result<NodeId> {
    let first = matrices[0];
    let (numbers, here) = (row_numbers(g, n)?, g.scalar(k as f64));
    let sizes = column(g, first, k)?;
    let sizes = g.unary(Unary::Abs, sizes)?;
    let above = math::less(g, numbers, here)?;
    let below_zero = g.scalar(-1.0);
    let sizes = g.select(above, below_zero, sizes)?;
    let lead = g.ty(sizes).dims[..g.ty(sizes).dims.len() - 2].to_vec();
    let flat = g.reshape(sizes, &[&lead[..], &[n]].concat())?;
    let best = arg_max(g, flat, lead.len())?;
    let best = g.cast(best, phalanx_graph::DType::F32)?;
    let best = g.reshape(best, &[&lead[..], &[1, 1]].concat())?;
    let (is_best, is_here) =
        (g.binary(Binary::Eq, numbers, best)?, g.binary(Binary::Eq, numbers, here)?);
    for x in matrices.iter_mut() {
        let axis = g.ty(*x).dims.len() - 2;
        let zero = g.scalar(0.0);
        let only_best = g.select(is_best, *x, zero)?;
        let best_row = g.sum_axes(only_best, &[axis])?;
        let here_row = row(g, *x, k)?;
        let swapped = g.select(is_best, here_row, *x)?;
        *x = g.select(is_here, best_row, swapped)?;
    }
    let same = g.binary(Binary::Eq, best, here)?;
    let (one, minus) = (g.scalar(1.0), g.scalar(-1.0));
    g.select(same, one, minus)
}

/// Subtracts multiples of row `k` from the other rows, or from those after it, so that column `k` becomes zero there.
fn eliminate(
    g: &mut Graph,
    k: usize,
    n: usize,
    all: bool,
    matrices: &mut [NodeId],
) -> phalanx_graph::Result<()> {
    let (numbers, here) = (row_numbers(g, n)?, g.scalar(k as f64));
    let others = match all {
        true => math::not_equal(g, numbers, here)?,
        false => math::less(g, here, numbers)?,
    };
    let zero = g.scalar(0.0);
    let factors = column(g, matrices[0], k)?;
    let diagonal = row(g, factors, k)?;
    let factors = g.div(factors, diagonal)?;
    let factors = g.select(others, factors, zero)?;
    for x in matrices.iter_mut() {
        let of_row = row(g, *x, k)?;
        let share = g.mul(factors, of_row)?;
        *x = g.sub(*x, share)?;
    }
    Ok(())
}

/// Solves `a · x = b` by elimination with exchange of rows.
fn gauss(g: &mut Graph, a: NodeId, b: NodeId, n: usize) -> GraphResult {
    let b = repeat_rows(g, b, a)?;
    let mut matrices = [a, b];
    for k in 0..n {
        pivot(g, k, n, &mut matrices)?;
        eliminate(g, k, n, true, &mut matrices)?;
    }
    let diagonal = diagonal(g, matrices[0], n)?;
    g.div(matrices[1], diagonal)
}

/// The diagonal as a column.
fn diagonal(g: &mut Graph, x: NodeId, n: usize) -> GraphResult {
    let axis = g.ty(x).dims.len() - 1;
    let identity = identity(g, n)?;
    let zero = g.scalar(0.0);
    let kept = g.select(identity, x, zero)?;
    g.sum_axes(kept, &[axis])
}

/// The pivots of matrices, and the sign of their exchange: 1 or -1 each.
fn pivots(cx: OpCall<'_, '_, '_>, name: &str) -> Result<(Vec<NodeId>, Vec<NodeId>)> {
    let (x, n) = square(cx, name)?;
    let lead = cx.dims(x)[..cx.dims(x).len() - 2].to_vec();
    let g = cx.graph();
    let mut matrices = [x];
    let (mut values, mut signs) = (vec![], vec![]);
    for k in 0..n {
        let sign = pivot(g, k, n, &mut matrices)?;
        signs.push(g.reshape(sign, &lead)?);
        let of_row = row(g, matrices[0], k)?;
        let value = column(g, of_row, k)?;
        values.push(g.reshape(value, &lead)?);
        eliminate(g, k, n, false, &mut matrices)?;
    }
    Ok((values, signs))
}

fn det(cx: OpCall<'_, '_, '_>) -> Result<Outputs> {
    let (values, signs) = pivots(cx, "a")?;
    let g = cx.graph();
    let mut product = g.scalar(1.0);
    for factor in values.into_iter().chain(signs) {
        product = g.mul(product, factor)?;
    }
    Ok(product.into())
}

/// The sign of the determinant and the logarithm of its size.
fn sign_and_logarithm(cx: OpCall<'_, '_, '_>) -> Result<[NodeId; 2]> {
    let (values, signs) = pivots(cx, "x")?;
    let g = cx.graph();
    let (mut sign, mut logarithm) = (g.scalar(1.0), g.scalar(0.0));
    for (value, exchange) in values.into_iter().zip(signs) {
        let of_value = g.unary(Unary::Sign, value)?;
        let of_value = g.mul(of_value, exchange)?;
        sign = g.mul(sign, of_value)?;
        let size = g.unary(Unary::Abs, value)?;
        let size = g.unary(Unary::Log, size)?;
        logarithm = g.add(logarithm, size)?;
    }
    Ok([sign, logarithm])
}

fn inv(cx: OpCall<'_, '_, '_>) -> Result<Outputs> {
    let (x, n) = square(cx, "a")?;
    let dims = cx.dims(x);
    let g = cx.graph();
    let mut identity = identity(g, n)?;
    if dims.len() > 2 {
        identity = g.push(Op::Broadcast { dims }, &[identity])?;
    }
    Ok(gauss(g, x, identity, n)?.into())
}

/// The right side of a linear system: matrices with as many rows.
fn right_side(cx: OpCall<'_, '_, '_>, n: usize, a: NodeId) -> Result<NodeId> {
    let mut b = cx.tensor("b")?;
    let (mut dims, of_a) = (cx.dims(b), cx.dims(a));
    if !cx.is_rows(b) && dims.len() == of_a.len() + 1 && dims[0] == 1 {
        dims.remove(0);
        b = cx.graph().reshape(b, &dims)?;
    }
    match dims[..] {
        [.., rows, _] if rows == n && dims.len() == of_a.len() => Ok(b),
        _ => {
            let expected = format!("matrices of {n} rows");
            Err(cx.argument("b", &expected, format!("{dims:?}")))
        }
    }
}

fn solve(cx: OpCall<'_, '_, '_>) -> Result<Outputs> {
    let (a, n) = square(cx, "a")?;
    let b = right_side(cx, n, a)?;
    Ok(gauss(cx.graph(), a, b, n)?.into())
}

fn solve_triangular(cx: OpCall<'_, '_, '_>) -> Result<Outputs> {
    let (a, n) = square(cx, "a")?;
    let b = right_side(cx, n, a)?;
    let lower = cx.flag("lower");
    let g = cx.graph();
    let mut rest = repeat_rows(g, b, a)?;
    let mut found = vec![rest; n];
    for step in 0..n {
        let i = if lower { step } else { n - 1 - step };
        let factors = column(g, a, i)?;
        let diagonal = row(g, factors, i)?;
        let of_row = row(g, rest, i)?;
        found[i] = g.div(of_row, diagonal)?;
        // Rows that are solved already are not read again.
        let share = g.mul(factors, found[i])?;
        rest = g.sub(rest, share)?;
    }
    let axis = g.ty(rest).dims.len() - 2;
    Ok(concat(g, &found, axis)?.into())
}

/// The triangular matrix whose product with its transpose is the symmetric part of a matrix.
fn cholesky(cx: OpCall<'_, '_, '_>) -> Result<Outputs> {
    let name = if cx.passed("a").is_some() { "a" } else { "x" };
    let (x, n) = square(cx, name)?;
    let upper = cx.flag("upper");
    let g = cx.graph();
    let other = transpose(g, x)?;
    let sum = g.add(x, other)?;
    let mut rest = g.scale(sum, 0.5)?;
    let numbers = row_numbers(g, n)?;
    let zero = g.scalar(0.0);
    let mut columns = vec![];
    for k in 0..n {
        let of_column = column(g, rest, k)?;
        let corner = row(g, of_column, k)?;
        let root = g.unary(Unary::Sqrt, corner)?;
        let scaled = g.div(of_column, root)?;
        let here = g.scalar(k as f64);
        let above = math::less(g, numbers, here)?;
        let kept = g.select(above, zero, scaled)?;
        let across = transpose(g, kept)?;
        let share = g.mul(kept, across)?;
        rest = g.sub(rest, share)?;
        columns.push(kept);
    }
    let axis = g.ty(x).dims.len() - 1;
    let lower = concat(g, &columns, axis)?;
    Ok(if upper { transpose(g, lower)? } else { lower }.into())
}

ops! {
    LINALG, "linalg";
    Cholesky(a) => cholesky,
    Det(a) => det,
    Inv(a) => inv,
    Solve(a, b) => solve,
    SolveTriangular(a, b) => solve_triangular,
}

ops! {
    MATH, "math";
    Logdet(x) => |cx| Ok(sign_and_logarithm(cx)?[1].into()),
}

ops! {
    NUMPY, "numpy";
    Slogdet(x) => |cx| Ok(sign_and_logarithm(cx)?.to_vec().into()),
}
