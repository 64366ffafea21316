//! Matrix products with a weight.

use super::Value;
use super::elementwise::max;
use phalanx_graph::ops::Epilogue;

/// `relu(y + bias)`; the epilogue selects each part.
pub(super) fn finish(e: Epilogue, y: &mut Value, x: &[&Value]) {
    let channels = y.last();
    for (i, v) in y.floats_mut().iter_mut().enumerate() {
        if e.bias {
            *v += x[2].floats()[i % channels];
        }
        if e.relu {
            *v = max(*v, 0.0);
        }
    }
}

/// `x[.., k] · w[k, n]`
pub(super) fn dot(e: Epilogue, x: &[&Value], dims: Vec<usize>) -> Value {
    let (a, w) = (x[0].floats(), x[1].floats());
    let [k, n] = [x[1].dims[0], x[1].dims[1]];
    let mut y = Value::fill(dims, 0.0);
    for (i, v) in y.floats_mut().iter_mut().enumerate() {
        let (m, j) = (i / n, i % n);
        *v = (0..k).map(|p| a[m * k + p] * w[p * n + j]).sum();
    }
    finish(e, &mut y, x);
    y
}

/// `dy[.., n] · wᵀ`
pub(super) fn grad_input(dy: &Value, w: &Value, dims: Vec<usize>) -> Value {
    let [k, n] = [w.dims[0], w.dims[1]];
    let mut dx = Value::fill(dims, 0.0);
    for (i, v) in dx.floats_mut().iter_mut().enumerate() {
        let (m, p) = (i / k, i % k);
        *v = (0..n).map(|j| dy.floats()[m * n + j] * w.floats()[p * n + j]).sum();
    }
    dx
}

/// `xᵀ · dy`, summed over all but the last axis.
pub(super) fn grad_kernel(x: &Value, dy: &Value, dims: Vec<usize>) -> Value {
    let [k, n] = [dims[0], dims[1]];
    let count: usize = x.dims[..x.dims.len() - 1].iter().product();
    let mut dw = Value::fill(dims, 0.0);
    for (i, v) in dw.floats_mut().iter_mut().enumerate() {
        let (p, j) = (i / n, i % n);
        *v = (0..count).map(|m| x.floats()[m * k + p] * dy.floats()[m * n + j]).sum();
    }
    dw
}
