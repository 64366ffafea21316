//! 2-D convolution, NHWC. Forward and both derivatives share one loop over all products.

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
    let (group_in, group_out) = (ic / geom.groups, oc / geom.groups);
    for r in 0..rows {
        for oy in 0..oh {
            for ox in 0..ow {
                for o in 0..oc {
                    let y = ((r * oh + oy) * ow + ox) * oc + o;
                    let group = o / group_out;
                    for ky in 0..geom.kernel[0] {
                        for kx in 0..geom.kernel[1] {
                            let (Some(iy), Some(ix)) = (tap(geom, 0, oy, ky), tap(geom, 1, ox, kx))
                            else {
                                continue;
                            };
                            for c in 0..group_in {
                                let x = ((r * ih + iy) * iw + ix) * ic + group * group_in + c;
                                let w = ((ky * geom.kernel[1] + kx) * group_in + c) * oc + o;
                                f(x, w, y);
                            }
                        }
                    }
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
