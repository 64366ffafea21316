//! Broadcasting, reductions inside a row, and the sum over rows.

use super::Value;
use super::elementwise::max;
use super::value::{offset, position};
use phalanx_graph::ops::ReduceKind;

/// Repeats `x` along its axes of size one and along new axes, which follow the `lead` leading row axes.
pub(super) fn broadcast(x: &Value, lead: usize, dims: Vec<usize>) -> Value {
    let new = dims.len() - x.dims.len();
    x.moved(dims, |at| {
        let own = at[..lead].iter().chain(&at[lead + new..]);
        Some(own.zip(&x.dims).map(|(a, d)| if *d == 1 { 0 } else { *a }).collect())
    })
}

/// Sum or maximum along axes, which keep size one.
pub(super) fn reduce(
    kind: ReduceKind,
    axes: &[usize],
    lead: usize,
    x: &Value,
    dims: Vec<usize>,
) -> Value {
    let start = match kind {
        ReduceKind::Sum => 0.0,
        ReduceKind::Max => f64::NEG_INFINITY,
    };
    let mut y = Value::fill(dims.clone(), start);
    for (i, v) in x.floats().iter().enumerate() {
        let mut at = position(&x.dims, i);
        axes.iter().for_each(|a| at[a + lead] = 0);
        let sum = &mut y.floats_mut()[offset(&dims, &at)];
        *sum = match kind {
            ReduceKind::Sum => *sum + v,
            ReduceKind::Max => max(*sum, *v),
        };
    }
    y
}

/// Sum over the rows.
pub(super) fn sum_rows(x: &Value, dims: Vec<usize>) -> Value {
    let mut y = Value::fill(dims, 0.0);
    let row = y.len();
    for (i, v) in x.floats().iter().enumerate() {
        y.floats_mut()[i % row] += v;
    }
    y
}
