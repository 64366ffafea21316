//! Affine sampling of images, with one matrix per sample.

use super::Value;
use super::value::{offset, position};
use phalanx_graph::ops::SampleGeom;

/// The elements of the image that element `i` of the result reads, each with its weight; `None` beyond the
/// border.
fn read(geom: &SampleGeom, matrix: &Value, i: usize) -> Vec<(Option<usize>, f64)> {
    let [oh, ow] = geom.output;
    let [h, w, c] = geom.input;
    let at = position(&[i / (oh * ow * c) + 1, oh, ow, c], i);
    let (row, y, x, channel) = (at[0], at[1] as f64, at[2] as f64, at[3]);
    let m = &matrix.floats()[6 * row..6 * row + 6];
    let mut all = vec![];
    for (iy, wy) in geom.taps(m[3] * x + m[4] * y + m[5]) {
        for (ix, wx) in geom.taps(m[0] * x + m[1] * y + m[2]) {
            let pixel = geom.fill.pixel(iy, h).zip(geom.fill.pixel(ix, w));
            let element =
                pixel.map(|(iy, ix)| offset(&[row + 1, h, w, c], &[row, iy, ix, channel]));
            all.push((element, wy * wx));
        }
    }
    all
}

/// Every element of the result is the weighted sum of the elements it reads.
pub(super) fn affine(geom: &SampleGeom, x: &Value, matrix: &Value, dims: Vec<usize>) -> Value {
    let mut y = Value::fill(dims, 0.0);
    for (i, v) in y.floats_mut().iter_mut().enumerate() {
        let pixel = |e: Option<usize>| e.map_or(geom.fill_value.get(), |e| x.floats()[e]);
        *v = read(geom, matrix, i).into_iter().map(|(e, w)| w * pixel(e)).sum();
    }
    y
}

/// Adds each `dy` to the elements that were read, multiplied by their weights.
pub(super) fn affine_grad(
    geom: &SampleGeom,
    dy: &Value,
    matrix: &Value,
    dims: Vec<usize>,
) -> Value {
    let mut dx = Value::fill(dims, 0.0);
    for (i, d) in dy.floats().iter().enumerate() {
        for (element, weight) in read(geom, matrix, i) {
            if let Some(e) = element {
                dx.floats_mut()[e] += weight * d;
            }
        }
    }
    dx
}
