//! Products of two computed values.

use super::Value;
use super::value::{offset, position};
use phalanx_graph::Type;
use phalanx_graph::ops::Contraction;

/// The label of the rows.
const ROWS: u8 = u8::MAX;

/// Labels of all axes of a value, the rows first if it has any.
fn labels(own: &[u8], rows: bool) -> Vec<u8> {
    let lead: &[u8] = if rows { &[ROWS] } else { &[] };
    [lead, own].concat()
}

/// For every position of the result, the sum over all positions of the contracted axes.
pub(super) fn matmul(c: &Contraction, x: &[&Value], types: &[&Type], dims: Vec<usize>) -> Value {
    let (l, r) = (labels(&c.left, types[0].is_rows()), labels(&c.right, types[1].is_rows()));
    let y = labels(&c.result, dims.len() > c.result.len());
    let summed: Vec<u8> = l.iter().copied().filter(|label| !y.contains(label)).collect();
    let size = |label: &u8| l.iter().position(|k| k == label).map_or(1, |i| x[0].dims[i]);
    let depth: Vec<usize> = summed.iter().map(size).collect();
    let mut out = Value::fill(dims.clone(), 0.0);
    for (i, v) in out.floats_mut().iter_mut().enumerate() {
        let free = position(&dims, i);
        for k in 0..depth.iter().product() {
            let inner = position(&depth, k);
            let at = |labels: &[u8], value: &Value| {
                let each = |label: &u8| match y.iter().position(|k| k == label) {
                    Some(i) => free[i],
                    None => summed.iter().position(|k| k == label).map_or(0, |i| inner[i]),
                };
                let at: Vec<usize> = labels.iter().map(each).collect();
                value.floats()[offset(&value.dims, &at)]
            };
            *v += at(&l, x[0]) * at(&r, x[1]);
        }
    }
    out
}
