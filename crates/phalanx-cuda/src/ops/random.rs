//! Dropout and random numbers.

use super::axes::{Loop, axes, index_type, pack_width, push, sizes};
use super::layout;
use crate::launch::{Block, Launch, Ptr};
use crate::lowering_context::LowerCtx;
use phalanx_graph::program::ValueId;

const FILE: &str = "random";

/// Words per draw.
const WORDS: usize = 4;

fn inputs(cx: &LowerCtx<'_>) -> Ptr {
    Ptr::new(cx.replica, Block::Inputs, 0)
}

/// Rows of numbers in `[0, 1)`.
pub(crate) fn uniform(cx: &mut LowerCtx<'_>, key: u32, y: ValueId) -> Vec<Launch> {
    let (rows, y) = (cx.rows_of(y), cx.operand(y));
    if y.len == 0 {
        return vec![];
    }
    let len = y.len / rows;
    let blocks = len.div_ceil(WORDS);
    let n = rows * blocks;
    let name = format!("uniform<{}, {}>", y.elem.c_name(), index_type(n));
    let launch = Launch::over(FILE, name, n).arg(inputs(cx)).arg(y.ptr).arg(n).arg(blocks);
    vec![launch.arg(len).arg(cx.first_row).arg(key as i32)]
}

/// Zeroes a fraction `rate` of the elements and scales the others. Axes where `noise` is 1 share
/// their mask.
pub(crate) fn dropout(
    cx: &mut LowerCtx<'_>,
    rate: f64,
    key: u32,
    noise: &[usize],
    x: &[ValueId],
    y: ValueId,
) -> Vec<Launch> {
    let rate = rate as f32;
    let (rows, first_row) = (cx.rows_of(y), cx.first_row);
    let (x, y) = (cx.operand(x[0]), cx.operand(y));
    if y.len == 0 || rate <= 0.0 && x.ptr == y.ptr {
        return vec![];
    }
    let (from, to) = (layout::typed_ptr(&x), layout::typed_ptr(&y));
    if rate <= 0.0 {
        return layout::copy_loops(vec![Loop { count: y.len, src: 1, dst: 1 }], from, to);
    }
    let len = y.len / rows;
    let types = format!("{}, {}", x.elem.c_name(), y.elem.c_name());
    let launch = if noise == y.dims {
        let blocks = len.div_ceil(WORDS);
        let n = rows * blocks;
        let width = if pack_width(&[from, to], &[len]) >= WORDS { WORDS } else { 1 };
        let name = format!("dropout<{types}, {width}, {}>", index_type(n));
        let launch = Launch::over(FILE, name, n).arg(inputs(cx)).arg(x.ptr).arg(y.ptr);
        launch.arg(n).arg(blocks)
    } else {
        let name =
            format!("dropout_shared<{types}, {}, {}>", index_type(y.len), mask(&y.dims, noise));
        Launch::over(FILE, name, y.len).arg(inputs(cx)).arg(x.ptr).arg(y.ptr).arg(y.len)
    };
    // Keep a word of 24 bits if it is not below the threshold: the same as comparing the fraction.
    let kept_from = (f64::from(rate) * f64::from(1 << 24)).ceil() as u32;
    let scale = (1.0 / (1.0 - f64::from(rate))) as f32;
    let launch = launch.arg(len).arg(first_row).arg(key as i32);
    vec![launch.arg(kept_from as i32).arg(scale)]
}

/// Loops over a row's elements, and the stride of each in the row's mask.
fn mask(dims: &[usize], noise: &[usize]) -> String {
    let mut stride: usize = noise.iter().product();
    let (mut loops, mut inside) = (vec![], dims.iter().product::<usize>());
    for (d, n) in dims.iter().zip(noise) {
        stride /= n;
        inside /= d;
        push(&mut loops, *d, if *n == 1 { 0 } else { stride }, inside);
    }
    if loops.is_empty() {
        loops.push(Loop { count: 1, src: 0, dst: 0 });
    }
    let counts = sizes(loops.iter().map(|l| l.count));
    format!("{counts}, {}", axes(loops.iter().map(|l| l.src)))
}

#[cfg(test)]
mod tests {
    use super::mask;

    #[test]
    fn masks_skip_shared_axes() {
        assert_eq!(mask(&[4, 5, 33], &[1, 1, 33]), "Axes<1, 33>, Axes<0, 1>");
        assert_eq!(mask(&[4, 5, 7], &[4, 1, 1]), "Axes<1, 35>, Axes<1, 0>");
        assert_eq!(mask(&[4, 5, 7], &[4, 1, 7]), "Axes<1, 5, 7>, Axes<7, 0, 1>");
        assert_eq!(mask(&[3], &[1]), "Axes<1>, Axes<0>");
    }
}
