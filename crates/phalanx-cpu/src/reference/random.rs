//! Dropout.

use super::value::{offset, position};
use super::{Context, Value};
use phalanx_graph::rng::{Draw, unit};

/// Zeroes a share `rate` of the elements and scales the rest. Element `e` of the noise of row `r`
/// is kept when word `e` of that row's draw says so; axes where `noise` has size 1 share theirs.
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
