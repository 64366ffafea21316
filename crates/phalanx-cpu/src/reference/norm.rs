//! Batch normalisation in training.

use super::Value;
use phalanx_graph::ops::BatchNormAttrs;

/// Sums and sums of squares of every channel.
pub(super) fn moments(x: &Value, dims: Vec<usize>) -> Value {
    let channels = x.last();
    let mut sums = Value::fill(dims, 0.0);
    let out = sums.floats_mut();
    for (i, v) in x.floats().iter().enumerate() {
        out[i % channels] += v;
        out[channels + i % channels] += v * v;
    }
    sums
}

/// Mean and variance from moments over `count` elements per channel; zeros if `count` is zero.
pub(super) fn batch_stats(count: usize, sums: &Value) -> Value {
    let channels = sums.last();
    let mut stats = Value::fill(sums.dims.clone(), 0.0);
    if count > 0 {
        let n = count as f64;
        for c in 0..channels {
            let mean = sums.floats()[c] / n;
            let variance = (sums.floats()[channels + c] / n - mean * mean).max(0.0);
            stats.floats_mut()[c] = mean;
            stats.floats_mut()[channels + c] = variance;
        }
    }
    stats
}

/// Intermediate results of the normalisation of one element.
struct Element {
    /// `(x - mean) / σ`
    normal: f64,
    /// `gamma / σ`
    slope: f64,
    /// The result before the ReLU.
    y: f64,
}

/// Element `i` of `x`; operands `x, stats, gamma, beta`.
fn element(attrs: &BatchNormAttrs, x: &[&Value], i: usize) -> Element {
    let channels = x[0].last();
    let c = i % channels;
    let (mean, variance) = (x[1].floats()[c], x[1].floats()[channels + c]);
    let sigma = (variance + attrs.epsilon.get()).sqrt();
    let normal = (x[0].floats()[i] - mean) / sigma;
    let gamma = x[2].floats()[c];
    Element { normal, slope: gamma / sigma, y: gamma * normal + x[3].floats()[c] }
}

/// `gamma * (x - mean) / sqrt(variance + epsilon) + beta`; operands `x, stats, gamma, beta`.
pub(super) fn batch_norm(attrs: &BatchNormAttrs, x: &[&Value]) -> Value {
    let y = (0..x[0].len()).map(|i| {
        let y = element(attrs, x, i).y;
        if attrs.relu { super::elementwise::max(y, 0.0) } else { y }
    });
    Value::float(x[0].dims.clone(), y.collect())
}

/// `dy` of an element, backpropagated through the ReLU.
fn through_relu(attrs: &BatchNormAttrs, e: &Element, dy: f64) -> f64 {
    if !attrs.relu || e.y > 0.0 { dy } else { 0.0 }
}

/// Sums of `dy` and `dy * x̂`; operands `dy, x, stats, gamma, beta`.
pub(super) fn grad_sums(attrs: &BatchNormAttrs, x: &[&Value], dims: Vec<usize>) -> Value {
    let channels = x[0].last();
    let mut sums = Value::fill(dims, 0.0);
    for (i, dy) in x[0].floats().iter().enumerate() {
        let e = element(attrs, &x[1..], i);
        let dy = through_relu(attrs, &e, *dy);
        sums.floats_mut()[i % channels] += dy;
        sums.floats_mut()[channels + i % channels] += dy * e.normal;
    }
    sums
}

/// `dx = gamma/σ · (dy - dbeta/N - x̂ · dgamma/N)`; operands `dy, x, stats, gamma, beta, sums`.
pub(super) fn grad_input(attrs: &BatchNormAttrs, x: &[&Value]) -> Value {
    let channels = x[0].last();
    let n = (x[0].len() / channels.max(1)) as f64;
    let sums = x[5].floats();
    let dx = x[0].floats().iter().enumerate().map(|(i, dy)| {
        let e = element(attrs, &x[1..5], i);
        let dy = through_relu(attrs, &e, *dy);
        let (dbeta, dgamma) = (sums[i % channels], sums[channels + i % channels]);
        e.slope * (dy - dbeta / n - e.normal * dgamma / n)
    });
    Value::float(x[0].dims.clone(), dx.collect())
}
