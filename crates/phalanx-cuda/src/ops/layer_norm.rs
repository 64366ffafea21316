//! Normalisation of the vectors along the last axis, and its derivative.

use super::axes::pack_width;
use super::layout::typed_ptr;
use crate::launch::{Launch, MAX_BLOCKS};
use crate::lowering_context::{LowerCtx, Operand};
use phalanx_graph::ops::LayerNormAttrs;
use phalanx_graph::program::ValueId;

const FILE: &str = "layer_norm";

/// Threads per block.
const THREADS: usize = 256;

/// Maximum numbers that a thread holds in registers if a warp normalises a vector, and if a block does.
const MAX_PER_THREAD: [usize; 2] = [32, 16];

/// `(x - mean) / √(variance + epsilon)`
pub(crate) fn layer_norm(
    cx: &mut LowerCtx<'_>,
    attrs: &LayerNormAttrs,
    x: &[ValueId],
    y: ValueId,
) -> Vec<Launch> {
    lines(cx, "layer_norm", attrs, x, y)
}

/// Operands `x, dy`.
pub(crate) fn layer_norm_grad(
    cx: &mut LowerCtx<'_>,
    attrs: &LayerNormAttrs,
    x: &[ValueId],
    y: ValueId,
) -> Vec<Launch> {
    lines(cx, "layer_norm_grad", attrs, x, y)
}

/// A kernel over the vectors of the first operand.
fn lines(
    cx: &mut LowerCtx<'_>,
    name: &str,
    attrs: &LayerNormAttrs,
    x: &[ValueId],
    y: ValueId,
) -> Vec<Launch> {
    let operands: Vec<Operand> = x.iter().chain([&y]).map(|id| cx.operand(*id)).collect();
    let (lines, n) = (operands[0].pixels(), operands[0].last());
    if lines == 0 {
        return vec![];
    }
    let width = pack_width(&operands.iter().map(typed_ptr).collect::<Vec<_>>(), &[n]);
    let (group, per_thread, width) = threads_per_vector(n, width);
    let types: Vec<&str> = operands.iter().map(|o| o.elem.c_name()).collect();
    let shape = format!("{}, {group}, {per_thread}, {width}", attrs.rms);
    let name = format!("{name}<{shape}, {}>", types.join(", "));
    let blocks = (lines * group).div_ceil(THREADS).min(MAX_BLOCKS);
    let launch = Launch::blocks(FILE, name, blocks, THREADS as u32);
    let launch = operands.iter().fold(launch, |l, o| l.arg(o.ptr));
    vec![launch.arg(lines).arg(n as i32).arg(attrs.epsilon.get() as f32)]
}

/// How many threads share a vector of `n` numbers, how many numbers each holds in registers, and in packs of how many.
/// 0 numbers if there are too many for registers.
fn threads_per_vector(n: usize, width: usize) -> (usize, usize, usize) {
    let packs = n / width;
    for (most, held) in [32, THREADS].into_iter().zip(MAX_PER_THREAD) {
        let group = if most == 32 { packs.next_power_of_two().min(32) } else { most };
        let per_thread = packs.div_ceil(group) * width;
        if per_thread <= held {
            return (group, per_thread, width);
        }
    }
    (THREADS, 0, 1)
}

#[cfg(test)]
mod tests {
    use super::threads_per_vector;

    #[test]
    fn vectors_get_enough_threads() {
        assert_eq!(threads_per_vector(64, 8), (8, 8, 8));
        assert_eq!(threads_per_vector(768, 8), (32, 24, 8));
        assert_eq!(threads_per_vector(7, 1), (8, 1, 1));
        assert_eq!(threads_per_vector(2048, 4), (256, 8, 4));
        assert_eq!(threads_per_vector(4097, 1), (256, 0, 1));
    }
}
