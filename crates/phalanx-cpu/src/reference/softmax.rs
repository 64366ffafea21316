//! Softmax over the last axis and the crossentropy fused with it.

use super::Value;

/// `log Σ eˣ`, without overflow for large numbers.
fn log_sum_exp(x: &[f64]) -> f64 {
    let top = x.iter().copied().fold(f64::NEG_INFINITY, super::elementwise::max);
    top + x.iter().map(|v| (v - top).exp()).sum::<f64>().ln()
}

/// Applies `f` to every vector along the last axis.
fn vectors(x: &Value, f: impl Fn(&[f64]) -> Vec<f64>) -> Value {
    Value::float(x.dims.clone(), x.floats().chunks_exact(x.last()).flat_map(f).collect())
}

/// `x - log Σ eˣ`
pub(super) fn log_softmax(x: &Value) -> Value {
    vectors(x, |v| {
        // Of numbers as large as a mask's, `top + log Σ` would only keep the first term.
        let top = v.iter().copied().fold(f64::NEG_INFINITY, super::elementwise::max);
        let norm = v.iter().map(|x| (x - top).exp()).sum::<f64>().ln();
        v.iter().map(|x| (x - top) - norm).collect()
    })
}

/// `eˣ / Σ eˣ`
pub(super) fn softmax(x: &Value) -> Value {
    let mut y = log_softmax(x);
    y.floats_mut().iter_mut().for_each(|v| *v = v.exp());
    y
}

/// `y · (dy - Σ dy·y)`
pub(super) fn softmax_grad(y: &Value, dy: &Value) -> Value {
    let mut dx = dy.clone();
    let n = dx.last();
    for (d, y) in dx.floats_mut().chunks_exact_mut(n).zip(y.floats().chunks_exact(n)) {
        let sum: f64 = d.iter().zip(y).map(|(d, y)| d * y).sum();
        d.iter_mut().zip(y).for_each(|(d, y)| *d = y * (*d - sum));
    }
    dx
}

/// The class of a label; `None` if out of range.
fn class(label: i32, classes: usize) -> Option<usize> {
    usize::try_from(label).ok().filter(|l| *l < classes)
}

/// `log Σ e^logits - logits[label]`; NaN if the label is out of range.
pub(super) fn sparse_xent(logits: &Value, labels: &Value, dims: Vec<usize>) -> Value {
    let vectors = logits.floats().chunks_exact(logits.last());
    let losses = vectors.zip(labels.ints()).map(|(v, label)| {
        class(*label, v.len()).map_or(f64::NAN, |label| log_sum_exp(v) - v[label])
    });
    Value::float(dims, losses.collect())
}

/// `(softmax(logits) - onehot(label)) · dy`; NaN if the label is out of range.
pub(super) fn sparse_xent_grad(logits: &Value, labels: &Value, dy: &Value) -> Value {
    let mut d = softmax(logits);
    let classes = d.last();
    let vectors = d.floats_mut().chunks_exact_mut(classes);
    for ((v, label), dy) in vectors.zip(labels.ints()).zip(dy.floats()) {
        match class(*label, classes) {
            Some(label) => v[label] -= 1.0,
            None => v.fill(f64::NAN),
        }
        v.iter_mut().for_each(|p| *p *= dy);
    }
    d
}
