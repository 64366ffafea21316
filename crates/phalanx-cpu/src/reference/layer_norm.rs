//! Normalisation of the vectors along the last axis.

use super::Value;
use phalanx_graph::ops::LayerNormAttrs;

/// The mean and the reciprocal deviation of a vector.
fn statistics(attrs: &LayerNormAttrs, x: &[f64]) -> (f64, f64) {
    let n = x.len() as f64;
    let mean = if attrs.rms { 0.0 } else { x.iter().sum::<f64>() / n };
    let variance = x.iter().map(|v| (v - mean).powi(2)).sum::<f64>() / n;
    (mean, 1.0 / (variance + attrs.epsilon.get()).sqrt())
}

/// `(x - mean) / √(variance + epsilon)`
pub(super) fn layer_norm(attrs: &LayerNormAttrs, x: &Value) -> Value {
    let mut y = x.clone();
    let n = y.last();
    for line in y.floats_mut().chunks_mut(n) {
        let (mean, scale) = statistics(attrs, line);
        line.iter_mut().for_each(|v| *v = (*v - mean) * scale);
    }
    y
}

/// Operands `x, dy`.
pub(super) fn layer_norm_grad(attrs: &LayerNormAttrs, x: &Value, dy: &Value) -> Value {
    let mut dx = dy.clone();
    let n = x.last();
    for (d, x) in dx.floats_mut().chunks_mut(n).zip(x.floats().chunks(n)) {
        let (mean, scale) = statistics(attrs, x);
        let y = |i: usize| (x[i] - mean) * scale;
        let of_dy = if attrs.rms { 0.0 } else { d.iter().sum::<f64>() / n as f64 };
        let of_product = (0..n).map(|i| d[i] * y(i)).sum::<f64>() / n as f64;
        for (i, d) in d.iter_mut().enumerate() {
            *d = scale * (*d - of_dy - y(i) * of_product);
        }
    }
    dx
}
