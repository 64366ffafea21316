//! The operations of the vendor's libraries, as plain loops.

use super::memory::Memory;
use crate::launch::{Elem, Ptr, Span};
use crate::work_item::{Batch, Conv, Gemm, Images, Matrix, Pass};
use phalanx_graph::ConvGeom;

/// The address of an element.
fn element(at: Ptr, elem: Elem, index: usize) -> Ptr {
    at.add(index * elem.bytes())
}

fn entry(m: &Matrix, row: usize, column: usize) -> Ptr {
    let index = if m.transposed { column * m.ld + row } else { row * m.ld + column };
    element(m.at, m.elem, index)
}

fn matrix(memory: &Memory, m: &Matrix, rows: usize, columns: usize) -> Result<Vec<f64>, String> {
    let places = (0..rows * columns).map(|i| entry(m, i / columns, i % columns));
    places.map(|at| memory.load(at, m.elem)).collect()
}

/// `c = relu(a · b + bias)`, for every item of a batch.
pub(super) fn gemm(memory: &mut Memory, g: &Gemm) -> Result<(), String> {
    let moved = |m: &Matrix, by: usize| Matrix { at: element(m.at, m.elem, by), ..*m };
    for item in 0..g.batch.count {
        let [a, b, c] = g.batch.strides.map(|stride| stride * item);
        let (a, b, c) = (moved(&g.a, a), moved(&g.b, b), moved(&g.c, c));
        product(memory, &Gemm { a, b, c, batch: Batch::ONE, ..g.clone() })?;
    }
    Ok(())
}

fn product(memory: &mut Memory, g: &Gemm) -> Result<(), String> {
    let (a, b) = (matrix(memory, &g.a, g.m, g.k)?, matrix(memory, &g.b, g.k, g.n)?);
    for i in 0..g.m {
        for j in 0..g.n {
            let mut sum: f64 = (0..g.k).map(|k| a[i * g.k + k] * b[k * g.n + j]).sum();
            if let Some(bias) = g.bias {
                sum += memory.load(element(bias, Elem::F32, j), Elem::F32)?;
            }
            if g.relu && sum < 0.0 {
                sum = 0.0;
            }
            memory.store(entry(&g.c, i, j), g.c.elem, sum)?;
        }
    }
    Ok(())
}

/// Calls `f(x, w, y)` with the indices of every product `x · w` that adds to `y`, for contiguous
/// pixels and filters as `[filters, depth, height, width, channels / groups]`.
fn each_product(g: &ConvGeom, rows: usize, mut f: impl FnMut(usize, usize, usize)) {
    let [ih, iw, ic] = g.input;
    let [oh, ow, oc] = g.output;
    let [kh, kw] = g.kernel;
    let (d, group_in, group_out) = (g.depth, ic / g.groups, oc / g.groups);
    let tap = |axis: usize, o: usize, k: usize| {
        let at = o * g.stride[axis] + k * g.dilation[axis];
        at.checked_sub(g.pad[axis]).filter(|i| *i < g.input[axis])
    };
    for pixel in 0..rows * d.output * oh * ow {
        let (slice, oy, ox) = (pixel / (oh * ow), pixel / ow % oh, pixel % ow);
        for k in 0..d.kernel * kh * kw {
            let (kz, ky, kx) = (k / (kh * kw), k / kw % kh, k % kw);
            let z = (slice % d.output * d.stride + kz * d.dilation).checked_sub(d.pad);
            let (Some(iz), Some(iy), Some(ix)) =
                (z.filter(|z| *z < d.input), tap(0, oy, ky), tap(1, ox, kx))
            else {
                continue;
            };
            let from = ((slice / d.output * d.input + iz) * ih + iy) * iw + ix;
            for o in 0..oc {
                let first = from * ic + o / group_out * group_in;
                let filter = (o * d.kernel * kh * kw + k) * group_in;
                (0..group_in).for_each(|c| f(first + c, filter + c, pixel * oc + o));
            }
        }
    }
}

/// Elements with `channels` of each pixel.
fn images(memory: &Memory, x: &Images, pixels: usize, channels: usize) -> Result<Vec<f64>, String> {
    let place = |i: usize| element(x.at, x.elem, i / channels * x.ld + i % channels);
    (0..pixels * channels).map(|i| memory.load(place(i), x.elem)).collect()
}

fn set_images(memory: &mut Memory, x: &Images, channels: usize, v: &[f64]) -> Result<(), String> {
    for (i, v) in v.iter().enumerate() {
        let at = element(x.at, x.elem, i / channels * x.ld + i % channels);
        memory.store(at, x.elem, *v)?;
    }
    Ok(())
}

/// One of a convolution's three products.
pub(super) fn conv(memory: &mut Memory, t: &Conv) -> Result<(), String> {
    let g = &t.geom;
    let ([ih, iw, ic], [oh, ow, oc]) = (g.input_dims(), g.output_dims());
    let (inputs, outputs) = (t.rows * ih * iw, t.rows * oh * ow);
    let x = |memory: &Memory| images(memory, &t.x, inputs, ic);
    let y = |memory: &Memory| images(memory, &t.y, outputs, oc);
    let filters = Images { at: t.w.0, elem: t.w.1, ld: 1 };
    let weights: usize = g.kernel_dims().iter().product();
    match t.pass {
        Pass::Forward => {
            let (x, w) = (x(memory)?, images(memory, &filters, weights, 1)?);
            let mut y = vec![0.0; outputs * oc];
            each_product(g, t.rows, |i, k, o| y[o] += x[i] * w[k]);
            set_images(memory, &t.y, oc, &y)
        }
        Pass::GradInput => {
            let (dy, w) = (y(memory)?, images(memory, &filters, weights, 1)?);
            let mut dx = vec![0.0; inputs * ic];
            each_product(g, t.rows, |i, k, o| dx[i] += dy[o] * w[k]);
            set_images(memory, &t.x, ic, &dx)
        }
        Pass::GradKernel => {
            let (x, dy) = (x(memory)?, y(memory)?);
            let mut dw = vec![0.0; weights];
            each_product(g, t.rows, |i, k, o| dw[k] += x[i] * dy[o]);
            set_images(memory, &filters, 1, &dw)
        }
    }
}

/// Fills a span with zero.
pub(super) fn clear(memory: &mut Memory, span: &Span) -> Result<(), String> {
    memory.bytes_mut(span.at, span.bytes).map(|bytes| bytes.fill(0))
}
