//! Ops that move elements: reshape, transpose, concat, slice, pad, upsample.

use super::{Data, Value};

/// The same elements with other dimensions.
pub(super) fn reshape(x: &Value, dims: Vec<usize>) -> Value {
    Value { dims, data: x.data.clone() }
}

/// Axis `i` of the result is axis `perm[i]` of `x`, not counting the `lead` leading row axes.
pub(super) fn transpose(perm: &[usize], lead: usize, x: &Value, dims: Vec<usize>) -> Value {
    x.moved(dims, |at| {
        let mut from = at.to_vec();
        perm.iter().enumerate().for_each(|(i, p)| from[p + lead] = at[i + lead]);
        Some(from)
    })
}

/// Concatenates operands along an axis.
pub(super) fn concat(axis: usize, x: &[&Value], dims: Vec<usize>) -> Value {
    let outer = dims[..axis].iter().product();
    let data = match x[0].data {
        Data::Float(_) => Data::Float(join(outer, x.iter().map(|v| v.floats()).collect())),
        Data::Int(_) => Data::Int(join(outer, x.iter().map(|v| v.ints()).collect())),
    };
    Value { dims, data }
}

/// For each outer position, the elements of every part, one part after the other.
fn join<T: Copy>(outer: usize, parts: Vec<&[T]>) -> Vec<T> {
    let mut out = Vec::new();
    for i in 0..outer {
        for part in &parts {
            let run = part.len() / outer;
            out.extend_from_slice(&part[i * run..(i + 1) * run]);
        }
    }
    out
}

/// Elements from `start` on, along an axis.
pub(super) fn slice(axis: usize, start: usize, x: &Value, dims: Vec<usize>) -> Value {
    x.moved(dims, |at| {
        let mut from = at.to_vec();
        from[axis] += start;
        Some(from)
    })
}

/// Where selected element `i` of an axis of `n` lies.
fn selected(i: usize, step: isize, n: usize) -> usize {
    let distance = i * step.unsigned_abs();
    if step > 0 { distance } else { n - 1 - distance }
}

/// Every `step`-th element along an axis.
pub(super) fn stride(axis: usize, step: isize, x: &Value, dims: Vec<usize>) -> Value {
    x.moved(dims, |at| {
        let mut from = at.to_vec();
        from[axis] = selected(at[axis], step, x.dims[axis]);
        Some(from)
    })
}

/// The elements of `x` at every `step`-th position along an axis, zeros between.
pub(super) fn dilate(axis: usize, step: isize, x: &Value, dims: Vec<usize>) -> Value {
    let n = dims[axis];
    x.moved(dims, |at| {
        let mut from = at.to_vec();
        from[axis] = (0..x.dims[axis]).find(|i| selected(*i, step, n) == at[axis])?;
        Some(from)
    })
}

/// Pads each axis with zeros, except the `lead` leading row axes.
pub(super) fn pad(before: &[usize], lead: usize, x: &Value, dims: Vec<usize>) -> Value {
    x.moved(dims, |at| {
        let mut from = at.to_vec();
        for (axis, before) in before.iter().enumerate() {
            from[axis + lead] = from[axis + lead].checked_sub(*before)?;
        }
        from.iter().zip(&x.dims).all(|(a, d)| a < d).then_some(from)
    })
}

/// The source pixels of output pixel `o` along one axis of `n` pixels, with their weights.
/// Bilinear as in `tf.image.resize`: half-pixel centres, and the border is repeated.
fn taps(o: usize, size: usize, n: usize, bilinear: bool) -> Vec<(usize, f64)> {
    if !bilinear {
        return vec![(o / size, 1.0)];
    }
    let centre = (o as f64 + 0.5) / size as f64 - 0.5;
    let share = centre - centre.floor();
    let pixel = |p: f64| p.clamp(0.0, (n - 1) as f64) as usize;
    vec![(pixel(centre.floor()), 1.0 - share), (pixel(centre.floor() + 1.0), share)]
}

/// Calls `f(small, large, weight)` for every pair of an element of a small image `[rows, h, w, c]` and an
/// element of the enlarged image that depends on it.
fn each_tap(
    dims: &[usize],
    size: [usize; 2],
    bilinear: bool,
    mut f: impl FnMut(usize, usize, f64),
) {
    let &[rows, h, w, c] = dims else { panic!("images expected, received {dims:?}") };
    let (oh, ow) = (h * size[0], w * size[1]);
    for r in 0..rows {
        for oy in 0..oh {
            for ox in 0..ow {
                for (iy, wy) in taps(oy, size[0], h, bilinear) {
                    for (ix, wx) in taps(ox, size[1], w, bilinear) {
                        for ch in 0..c {
                            let small = ((r * h + iy) * w + ix) * c + ch;
                            let large = ((r * oh + oy) * ow + ox) * c + ch;
                            f(small, large, wy * wx);
                        }
                    }
                }
            }
        }
    }
}

/// Enlarges images.
pub(super) fn upsample(size: [usize; 2], bilinear: bool, x: &Value, dims: Vec<usize>) -> Value {
    let mut y = Value::fill(dims, 0.0);
    let out = y.floats_mut();
    each_tap(&x.dims, size, bilinear, |i, o, weight| out[o] += weight * x.floats()[i]);
    y
}

/// For each small pixel, the weighted sum over the large pixels that depend on it.
pub(super) fn upsample_grad(
    size: [usize; 2],
    bilinear: bool,
    dy: &Value,
    dims: Vec<usize>,
) -> Value {
    let mut dx = Value::fill(dims.clone(), 0.0);
    let out = dx.floats_mut();
    each_tap(&dims, size, bilinear, |i, o, weight| out[i] += weight * dy.floats()[o]);
    dx
}
