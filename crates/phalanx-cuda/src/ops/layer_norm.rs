//! Normalisation of the vectors along the last axis, and its derivative.

use crate::launch::{Launch, MAX_BLOCKS};
use crate::lowering_context::{LowerCtx, Operand};
use phalanx_graph::ops::LayerNormAttrs;
use phalanx_graph::program::ValueId;

const FILE: &str = "layer_norm";

/// Threads per block.
const THREADS: usize = 256;

/// Maximum numbers of a vector that a warp normalises; longer vectors get a block.
const MAX_PER_WARP: usize = 1024;

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
    let group = if n <= MAX_PER_WARP { 32 } else { THREADS };
    let types: Vec<&str> = operands.iter().map(|o| o.elem.c_name()).collect();
    let name = format!("{name}<{}, {group}, {}>", attrs.rms, types.join(", "));
    let blocks = (lines * group).div_ceil(THREADS).min(MAX_BLOCKS);
    let launch = Launch::blocks(FILE, name, blocks, THREADS as u32);
    let launch = operands.iter().fold(launch, |l, o| l.arg(o.ptr));
    vec![launch.arg(lines).arg(n as i32).arg(attrs.epsilon.get() as f32)]
}
