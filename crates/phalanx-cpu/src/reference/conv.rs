//! Convolution, NHWC. Forward and both derivatives share one loop over all products.

use super::{Value, dot};
use phalanx_graph::ConvGeom;
use phalanx_graph::ops::Epilogue;

/// The input pixel under tap `k` of output pixel `o` along an axis, `None` on padding.
pub(super) fn tap(geom: &ConvGeom, axis: usize, o: usize, k: usize) -> Option<usize> {
    let at = o * geom.stride[axis] + k * geom.dilation[axis];
    at.checked_sub(geom.pad[axis]).filter(|i| *i < geom.input[axis])
}

/// Calls `f(x, w, y)` with the element indices of every product `x · w` that contributes to `y`.
fn each_product(geom: &ConvGeom, rows: usize, mut f: impl FnMut(usize, usize, usize)) {
    let [ih, iw, ic] = geom.input;
    let [oh, ow, oc] = geom.output;
    let [kh, kw] = geom.kernel;
    let (group_in, group_out) = (ic / geom.groups, oc / geom.groups);
    let d = geom.depth;
    for pixel in 0..rows * d.output * oh * ow {
        let (slice, oy, ox) = (pixel / (oh * ow), pixel / ow % oh, pixel % ow);
        for tap_index in 0..d.kernel * kh * kw {
            let (kz, ky, kx) = (tap_index / (kh * kw), tap_index / kw % kh, tap_index % kw);
            let z = (slice % d.output * d.stride + kz * d.dilation).checked_sub(d.pad);
            let (Some(iz), Some(iy), Some(ix)) =
                (z.filter(|z| *z < d.input), tap(geom, 0, oy, ky), tap(geom, 1, ox, kx))
            else {
                continue;
            };
            let first = ((slice / d.output * d.input + iz) * ih + iy) * iw + ix;
            for o in 0..oc {
                for c in 0..group_in {
                    let x = first * ic + o / group_out * group_in + c;
                    f(x, (tap_index * group_in + c) * oc + o, pixel * oc + o);
                }
            }
        }
    }
}

/// Convolution with its epilogue; operands `x, w` and `bias`.
pub(super) fn conv(geom: &ConvGeom, e: Epilogue, x: &[&Value], dims: Vec<usize>) -> Value {
    let (image, kernel) = (x[0].floats(), x[1].floats());
    let rows = dims[0];
    let mut y = Value::fill(dims, 0.0);
    let out = y.floats_mut();
    each_product(geom, rows, |i, k, o| out[o] += image[i] * kernel[k]);
    dot::finish(e, &mut y, x);
    y
}

/// Derivative by the input.
pub(super) fn grad_input(geom: &ConvGeom, dy: &Value, w: &Value, dims: Vec<usize>) -> Value {
    let rows = dims[0];
    let mut dx = Value::fill(dims, 0.0);
    let out = dx.floats_mut();
    each_product(geom, rows, |i, k, o| out[i] += dy.floats()[o] * w.floats()[k]);
    dx
}

/// Derivative by the kernel.
pub(super) fn grad_kernel(geom: &ConvGeom, x: &Value, dy: &Value, dims: Vec<usize>) -> Value {
    let mut dw = Value::fill(dims, 0.0);
    let out = dw.floats_mut();
    each_product(geom, x.dims[0], |i, k, o| out[k] += x.floats()[i] * dy.floats()[o]);
    dw
}
