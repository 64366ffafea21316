//! Ops with integer operands or results: embeddings, one-hot, arg-max and counting.

use super::Value;

/// An index as a position below `n`; `None` if out of range.
fn within(index: i32, n: usize) -> Option<usize> {
    usize::try_from(index).ok().filter(|i| *i < n)
}

/// Rows of a table; NaN for an index out of range.
pub(super) fn gather(table: &Value, index: &Value, dims: Vec<usize>) -> Value {
    let [vocab, width] = [table.dims[0], table.dims[1]];
    let mut out = Vec::with_capacity(index.len() * width);
    for i in index.ints() {
        match within(*i, vocab) {
            Some(i) => out.extend_from_slice(&table.floats()[i * width..(i + 1) * width]),
            None => out.extend(vec![f64::NAN; width]),
        }
    }
    Value::float(dims, out)
}

/// Adds each `dy` to the row of the table that it was read from. Indices out of range are ignored.
pub(super) fn gather_grad(index: &Value, dy: &Value, dims: Vec<usize>) -> Value {
    let [vocab, width] = [dims[0], dims[1]];
    let mut table = Value::fill(dims, 0.0);
    for (n, i) in index.ints().iter().enumerate() {
        let Some(i) = within(*i, vocab) else { continue };
        for d in 0..width {
            table.floats_mut()[i * width + d] += dy.floats()[n * width + d];
        }
    }
    table
}

/// The number of each row.
pub(super) fn row_index(dims: Vec<usize>) -> Value {
    let rows = dims[0];
    Value::int(dims, (0..rows as i32).collect())
}

/// 1 at the index; all zeros for an index out of range.
pub(super) fn one_hot(depth: usize, index: &Value, dims: Vec<usize>) -> Value {
    let mut out = Value::fill(dims, 0.0);
    for (n, i) in index.ints().iter().enumerate() {
        if let Some(i) = within(*i, depth) {
            out.floats_mut()[n * depth + i] = 1.0;
        }
    }
    out
}

/// The index of the first maximum along the last axis.
pub(super) fn arg_max(x: &Value, dims: Vec<usize>) -> Value {
    let first_maximum = |v: &[f64]| {
        let mut best = 0;
        for (i, number) in v.iter().enumerate() {
            if *number > v[best] {
                best = i;
            }
        }
        best as i32
    };
    Value::int(dims, x.floats().chunks_exact(x.last()).map(first_maximum).collect())
}

/// 1 if fewer than `k` scores are above the label's. As in `tf.math.in_top_k`, 0 if the label is out of range
/// or any score of the row is not finite.
pub(super) fn in_top_k(k: usize, scores: &Value, labels: &Value, dims: Vec<usize>) -> Value {
    let hit = |(v, label): (&[f64], &i32)| match within(*label, v.len()) {
        Some(label) if v.iter().all(|s| s.is_finite()) => {
            let better = v.iter().filter(|s| **s > v[label]).count();
            if better < k { 1.0 } else { 0.0 }
        }
        _ => 0.0,
    };
    let rows = scores.floats().chunks_exact(scores.last());
    Value::float(dims, rows.zip(labels.ints()).map(hit).collect())
}

/// The thresholds of Keras' AUC: evenly spaced over 0..=1, the ends slightly outside.
fn thresholds(n: usize) -> Vec<f64> {
    let mut t: Vec<f64> = (0..n).map(|i| i as f64 / (n - 1) as f64).collect();
    t[0] = -1e-7;
    t[n - 1] = 1.0 + 1e-7;
    t
}

/// For each threshold the total weight of the positives whose score is above it, then the same for the
/// negatives; operands `score, label, weight`.
pub(super) fn threshold_counts(n: usize, x: &[&Value], dims: Vec<usize>) -> Value {
    let mut counts = Value::fill(dims, 0.0);
    let samples = x[0].floats().iter().zip(x[1].floats()).zip(x[2].floats());
    for ((score, label), weight) in samples {
        let row = if *label > 0.5 { 0 } else { 1 };
        for (i, t) in thresholds(n).iter().enumerate() {
            if score > t {
                counts.floats_mut()[row * n + i] += weight;
            }
        }
    }
    counts
}

/// The positions that sort the last axis: stable, NaN last.
pub(super) fn arg_sort(x: &Value, dims: Vec<usize>) -> Value {
    let n = x.last();
    let mut out = vec![];
    for row in x.floats().chunks(n.max(1)) {
        let mut positions: Vec<i32> = (0..row.len() as i32).collect();
        let key = |i: &i32| row[*i as usize];
        positions.sort_by(|i, j| {
            let (a, b) = (key(i), key(j));
            a.partial_cmp(&b).unwrap_or_else(|| a.is_nan().cmp(&b.is_nan()))
        });
        out.extend(positions);
    }
    Value::int(dims, out)
}
