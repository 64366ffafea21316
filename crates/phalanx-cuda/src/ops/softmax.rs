//! Softmax over the last axis, and the fused crossentropy.

use super::axes::pack_width;
use super::layout::typed_ptr;
use crate::launch::{Elem, Launch, MAX_BLOCKS};
use crate::lowering_context::{LowerCtx, Operand};
use phalanx_graph::program::ValueId;

const FILE: &str = "softmax";

/// Threads per block. A vector with its own block is shared by all of them.
const THREADS: usize = 256;

/// Softmax over the last axis.
pub(crate) fn softmax(cx: &mut LowerCtx<'_>, x: &[ValueId], y: ValueId) -> Vec<Launch> {
    vectors(cx, "softmax", x, y)
}

/// `y · (dy - Σ dy·y)` over the last axis; operands `y, dy`.
pub(crate) fn softmax_grad(cx: &mut LowerCtx<'_>, x: &[ValueId], y: ValueId) -> Vec<Launch> {
    vectors(cx, "softmax_grad", x, y)
}

/// `log(softmax(x))` over the last axis.
pub(crate) fn log_softmax(cx: &mut LowerCtx<'_>, x: &[ValueId], y: ValueId) -> Vec<Launch> {
    vectors(cx, "log_softmax", x, y)
}

/// `log Σ e^logits - logits[label]`; operands `logits, labels`.
pub(crate) fn sparse_xent(cx: &mut LowerCtx<'_>, x: &[ValueId], y: ValueId) -> Vec<Launch> {
    let ld = cx.operand(x[0]).ld;
    vectors(cx, "sparse_xent", x, y).into_iter().map(|launch| launch.arg(ld)).collect()
}

/// Operands `logits, labels, dy`.
pub(crate) fn sparse_xent_grad(cx: &mut LowerCtx<'_>, x: &[ValueId], y: ValueId) -> Vec<Launch> {
    let [from, to] = [x[0], y].map(|id| cx.operand(id).ld);
    let launches = vectors(cx, "sparse_xent_grad", x, y);
    launches.into_iter().map(|launch| launch.arg(from).arg(to)).collect()
}

/// A kernel over the vectors of the first operand.
fn vectors(cx: &mut LowerCtx<'_>, name: &str, x: &[ValueId], y: ValueId) -> Vec<Launch> {
    let logits = cx.operand(x[0]);
    let (rows, n) = (logits.pixels(), logits.last());
    let operands: Vec<Operand> = x.iter().chain([&y]).map(|id| cx.operand(*id)).collect();
    if rows == 0 {
        return vec![];
    }
    let types = operands.iter().map(|o| o.elem).filter(|e| *e != Elem::I32);
    let types: Vec<&str> = types.map(Elem::c_name).collect();
    let vectors = operands.iter().filter(|o| o.last() == n && o.elem != Elem::I32);
    let (places, steps): (Vec<_>, Vec<_>) = vectors.map(|o| (typed_ptr(o), o.ld)).unzip();
    let (group, per_thread) = threads_per_vector(rows, n);
    let (per_thread, width) = match per_thread {
        0 => (0, pack_width(&places, &steps)),
        per_thread => {
            let width = pack_width(&places, &[&steps[..], &[n]].concat());
            (per_thread.max(width), width)
        }
    };
    let name = format!("{name}<{}, {group}, {per_thread}, {width}>", types.join(", "));
    let blocks = (rows * group).div_ceil(THREADS).min(MAX_BLOCKS);
    let launch = Launch::blocks(FILE, name, blocks, THREADS as u32);
    let launch = operands.iter().fold(launch, |l, o| l.arg(o.ptr));
    vec![launch.arg(rows).arg(n as i32)]
}

/// How many threads share a vector of `n` numbers, and how many numbers each holds in registers. A
/// warp if that suffices or there are many vectors, otherwise a block; 0 numbers if there are too
/// many for registers.
fn threads_per_vector(rows: usize, n: usize) -> (usize, usize) {
    if n <= 128 || n <= 1024 && rows >= 2048 {
        return (32, n.div_ceil(32).next_power_of_two());
    }
    match n.div_ceil(THREADS).next_power_of_two() {
        per_thread if per_thread <= 16 => (THREADS, per_thread),
        _ => (THREADS, 0),
    }
}

#[cfg(test)]
mod tests {
    use super::threads_per_vector;

    #[test]
    fn vectors_get_enough_threads() {
        assert_eq!(threads_per_vector(64, 10), (32, 1));
        assert_eq!(threads_per_vector(64, 100), (32, 4));
        assert_eq!(threads_per_vector(64, 1000), (256, 4));
        assert_eq!(threads_per_vector(4096, 500), (32, 16));
        assert_eq!(threads_per_vector(4096, 1000), (32, 32));
        assert_eq!(threads_per_vector(64, 4096), (256, 16));
        assert_eq!(threads_per_vector(64, 4097), (256, 0));
        for rows in [1, 5000] {
            for n in 1..5000 {
                let (group, per_thread) = threads_per_vector(rows, n);
                assert!(per_thread == 0 || group * per_thread >= n, "{rows} {n}");
            }
        }
    }
}
