//! Pooling over windows. Padding is ignored by maxima and averages.

use super::Value;
use super::conv::tap;
use phalanx_graph::ConvGeom;
use phalanx_graph::ops::PoolKind;

/// The input elements in the window of output element `i`, row by row.
fn window(geom: &ConvGeom, i: usize) -> Vec<usize> {
    let [ih, iw, c] = geom.input;
    let [oh, ow, _] = geom.output;
    let (ch, ox, oy, r) = (i % c, i / c % ow, i / (c * ow) % oh, i / (c * ow * oh));
    let mut elements = Vec::new();
    for ky in 0..geom.kernel[0] {
        for kx in 0..geom.kernel[1] {
            if let (Some(iy), Some(ix)) = (tap(geom, 0, oy, ky), tap(geom, 1, ox, kx)) {
                elements.push(((r * ih + iy) * iw + ix) * c + ch);
            }
        }
    }
    elements
}

/// The first largest element of the window; a NaN counts as larger than any number.
fn winner(x: &[f64], window: &[usize]) -> Option<usize> {
    window.iter().copied().reduce(|best, i| {
        let beats = x[i] > x[best] || x[i].is_nan() && !x[best].is_nan();
        if beats { i } else { best }
    })
}

/// The largest element or the mean of each window.
pub(super) fn pool(kind: PoolKind, geom: &ConvGeom, x: &Value, dims: Vec<usize>) -> Value {
    let x = x.floats();
    let mut y = Value::fill(dims, 0.0);
    for (o, v) in y.floats_mut().iter_mut().enumerate() {
        let window = window(geom, o);
        *v = match kind {
            PoolKind::Max => winner(x, &window).map_or(f64::NEG_INFINITY, |i| x[i]),
            PoolKind::Average => {
                window.iter().map(|i| x[*i]).sum::<f64>() / window.len().max(1) as f64
            }
        };
    }
    y
}

/// `dy` goes to the first maximum of each window, or evenly to all its elements; operands
/// `x, y, dy` (max) or `dy` (average).
pub(super) fn grad(kind: PoolKind, geom: &ConvGeom, x: &[&Value], dims: Vec<usize>) -> Value {
    let mut dx = Value::fill(dims, 0.0);
    let out = dx.floats_mut();
    for (o, d) in x[x.len() - 1].floats().iter().enumerate() {
        let window = window(geom, o);
        match kind {
            PoolKind::Max => {
                if let Some(i) = winner(x[0].floats(), &window) {
                    out[i] += d;
                }
            }
            PoolKind::Average => {
                window.iter().for_each(|i| out[*i] += d / window.len() as f64);
            }
        }
    }
    dx
}
