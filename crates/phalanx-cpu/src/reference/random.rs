//! Dropout and random numbers.

use super::value::{offset, position};
use super::{Context, Value};
use phalanx_graph::rng::{Draw, unit};

/// Element `e` of row `r` is word `e` of that row's draw, in `[0, 1)`.
pub(super) fn uniform(key: u32, dims: Vec<usize>, ctx: &Context) -> Value {
    let draw = Draw { seed: ctx.seed, step: ctx.step, stream: key };
    let len: usize = dims[1..].iter().product();
    let number = |i: usize| {
        let (row, e) = (i / len, i % len);
        f64::from(unit(draw.words(row as u32, (e / 4) as u32)[e % 4]))
    };
    let numbers = (0..dims.iter().product()).map(number).collect();
    Value::float(dims, numbers)
}

/// Zeroes a fraction `rate` of the elements and scales the rest. Word `e` of the draw of row `r` decides
/// element `e` of that row's mask. Elements along axes where `noise` has size 1 share a mask element.
pub(super) fn dropout(rate: f64, key: u32, noise: &[usize], x: &Value, ctx: &Context) -> Value {
    let draw = Draw { seed: ctx.seed, step: ctx.step, stream: key };
    let mut y = x.clone();
    for (i, v) in y.floats_mut().iter_mut().enumerate() {
        let at = position(&x.dims, i);
        let shared: Vec<usize> =
            at[1..].iter().zip(noise).map(|(a, n)| if *n == 1 { 0 } else { *a }).collect();
        let element = offset(noise, &shared);
        let word = draw.words(at[0] as u32, (element / 4) as u32)[element % 4];
        let kept = unit(word) >= rate as f32;
        *v = if kept { *v / (1.0 - rate) } else { 0.0 };
    }
    y
}
