//! Elements at computed positions along an axis.

use super::value::{offset, position};
use super::{Data, Value};
use phalanx_graph::Type;
use phalanx_graph::ops::TakeAxis;

/// A position below `n`; those below zero count from the end.
fn resolve(index: i32, n: usize) -> Option<usize> {
    let index = i64::from(index);
    let at = if index < 0 { index + n as i64 } else { index };
    usize::try_from(at).ok().filter(|at| *at < n)
}

/// For the element at `at` of the result: its position in the index and, for a given position on the
/// axis, its place in the operand. All positions have the rows first if the value has rows.
struct Places<'a> {
    at: TakeAxis,
    index: &'a Type,
    rows: [bool; 3],
}

impl Places<'_> {
    /// `[x, index, result]` have rows.
    fn index(&self, at: &[usize]) -> Vec<usize> {
        let lead = usize::from(self.rows[2]);
        let row = if self.rows[1] { &at[..lead] } else { &[] };
        let own = match self.at.along {
            true => &at[lead..],
            false => &at[lead + self.at.axis..lead + self.at.axis + self.index.dims.len()],
        };
        [row, own].concat()
    }

    fn source(&self, at: &[usize], position: usize) -> Vec<usize> {
        let lead = usize::from(self.rows[2]);
        let row = if self.rows[0] { &at[..lead] } else { &[] };
        let taken = if self.at.along { 1 } else { self.index.dims.len() };
        let (outer, rest) = at[lead..].split_at(self.at.axis);
        [row, outer, &[position], &rest[taken..]].concat()
    }
}

/// Elements at positions; NaN outside.
pub(super) fn take(at: TakeAxis, x: &[&Value], types: &[&Type], dims: Vec<usize>) -> Value {
    let rows = [types[0].is_rows(), types[1].is_rows()];
    let places = Places { at, index: types[1], rows: [rows[0], rows[1], rows[0] || rows[1]] };
    let n = types[0].dims[at.axis];
    let from = |i: usize| {
        let to = position(&dims, i);
        let index = x[1].ints()[offset(&x[1].dims, &places.index(&to))];
        resolve(index, n).map(|k| offset(&x[0].dims, &places.source(&to, k)))
    };
    let from: Vec<Option<usize>> = (0..dims.iter().product()).map(from).collect();
    let data = match &x[0].data {
        Data::Float(v) => Data::Float(from.iter().map(|i| i.map_or(f64::NAN, |i| v[i])).collect()),
        Data::Int(v) => Data::Int(from.iter().map(|i| i.map_or(i32::MIN, |i| v[i])).collect()),
    };
    Value { dims, data }
}

/// Adds each `dy` to the element it was read from; operands `index, dy`.
pub(super) fn take_grad(at: TakeAxis, x: &[&Value], types: &[&Type], dims: Vec<usize>) -> Value {
    let taken = if at.along { 1 } else { types[0].dims.len() };
    let rank = types[1].dims.len() + 1 - taken;
    let has_rows = dims.len() > rank;
    let rows = [has_rows, types[0].is_rows(), types[1].is_rows()];
    let places = Places { at, index: types[0], rows };
    let n = dims[at.axis + usize::from(has_rows)];
    let mut sum = Value::fill(dims.clone(), 0.0);
    for (i, dy) in x[1].floats().iter().enumerate() {
        let to = position(&x[1].dims, i);
        let index = x[0].ints()[offset(&x[0].dims, &places.index(&to))];
        if let Some(k) = resolve(index, n) {
            sum.floats_mut()[offset(&dims, &places.source(&to, k))] += dy;
        }
    }
    sum
}
