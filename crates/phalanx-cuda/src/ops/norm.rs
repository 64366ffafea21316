//! Batch normalisation. A block processes a tile of channels and a share of the pixels; see
//! `kernels/norm.cu`.
//!
//! All functions take the `bias` of a convolution that did not add it, if any.

use crate::launch::{Launch, Ptr};
use crate::lowering_context::{LowerCtx, Operand};
use phalanx_graph::ops::BatchNormAttrs;
use phalanx_graph::program::ValueId;

/// Minimum pixels per thread, if there are enough.
const MIN_PIXELS_PER_THREAD: usize = 4;

/// Maximum channels of a summing thread: more would not leave it enough registers.
const MAX_SUMMED_CHANNELS: usize = 4;

/// The split of channels and pixels over threads and blocks.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Tiling {
    /// Channels per thread.
    vector: usize,
    /// Vectors per tile.
    tile: usize,
    tiles: usize,
    /// Number of parts of the pixels.
    parts: usize,
    threads: usize,
}

impl Tiling {
    /// For kernels that sum: narrow tiles, so that many blocks finish the sums of a tile, with few
    /// blocks per tile.
    fn sums(pixels: usize, vector: usize, x: &Operand) -> Tiling {
        let bytes = 128 / (vector * x.elem.bytes());
        Tiling::new(pixels, vector, x, bytes.min(32), 512, 264)
    }

    /// For kernels that only visit the pixels.
    fn walk(pixels: usize, vector: usize, x: &Operand) -> Tiling {
        Tiling::new(pixels, vector, x, 32, 256, 132 * 8)
    }

    fn new(
        pixels: usize,
        vector: usize,
        x: &Operand,
        widest: usize,
        threads: usize,
        most_blocks: usize,
    ) -> Tiling {
        let vectors = (x.last() / vector).max(1);
        let tiles = vectors.div_ceil(widest);
        let tile = vectors.div_ceil(tiles);
        let wanted = pixels.div_ceil(threads / tile * MIN_PIXELS_PER_THREAD).max(1);
        let rounds = wanted.div_ceil((most_blocks / tiles).max(1));
        Tiling { vector, tile, tiles, parts: wanted.div_ceil(rounds), threads }
    }

    fn launch(&self, kernel: String) -> Launch {
        Launch::blocks("norm", kernel, self.tiles * self.parts, self.threads as u32)
    }

    /// Allocates each block's `sums` of its channels, and a counter for each tile.
    fn scratch(&self, cx: &mut LowerCtx<'_>, sums: usize) -> (Ptr, Ptr) {
        let numbers = sums * self.tiles * self.parts * self.tile * self.vector;
        (cx.scratch.take(8 * numbers), cx.scratch.counters(4 * self.tiles))
    }
}

/// The maximum elements, up to 16 bytes, that all operands can be read and written by at once.
pub(super) fn vector(operands: &[&Operand]) -> usize {
    vector_up_to(16 / operands[0].elem.bytes(), operands)
}

fn vector_up_to(widest: usize, operands: &[&Operand]) -> usize {
    let fits = |v: &usize| {
        operands.iter().all(|o| {
            let aligned = o.ptr.offset.is_multiple_of(v * o.elem.bytes());
            aligned && o.ld.is_multiple_of(*v) && o.last().is_multiple_of(*v)
        })
    };
    [widest, 4].into_iter().find(fits).unwrap_or(1)
}

/// `moments`, and `batch_stats` over `count` numbers if `stats` is given.
fn sum_moments(
    cx: &mut LowerCtx<'_>,
    x: ValueId,
    sums: ValueId,
    stats: Option<(ValueId, usize)>,
    bias: Option<Ptr>,
) -> Vec<Launch> {
    let (x, sums) = (cx.operand(x), cx.operand(sums));
    if x.len == 0 {
        return vec![];
    }
    let t = Tiling::sums(x.pixels(), vector_up_to(MAX_SUMMED_CHANNELS, &[&x]), &x);
    let (partial, counters) = t.scratch(cx, 2);
    let launch = t
        .launch(format!("moments<{}, {}>", x.elem.c_name(), t.vector))
        .arg(x.ptr)
        .arg(x.ld)
        .arg(bias)
        .arg(sums.ptr)
        .arg(stats.map(|(y, _)| cx.operand(y).ptr))
        .arg(stats.map_or(0, |(_, count)| count))
        .arg(x.pixels())
        .arg(x.last())
        .arg(t.tile as i32)
        .arg(partial)
        .arg(counters);
    vec![launch]
}

/// Sums and sums of squares of every channel.
pub(crate) fn moments(
    cx: &mut LowerCtx<'_>,
    x: &[ValueId],
    y: ValueId,
    bias: Option<Ptr>,
) -> Vec<Launch> {
    sum_moments(cx, x[0], y, None, bias)
}

/// Mean and variance of every channel from complete moments over `count` numbers.
pub(crate) fn batch_stats(
    cx: &mut LowerCtx<'_>,
    count: usize,
    x: &[ValueId],
    y: ValueId,
) -> Vec<Launch> {
    let (sums, stats) = (cx.operand(x[0]), cx.operand(y));
    let launch = Launch::over("norm", "batch_stats", sums.last())
        .arg(sums.ptr)
        .arg(count)
        .arg(sums.last())
        .arg(stats.ptr);
    vec![launch]
}

/// [`moments`] into `sums` and [`batch_stats`] into `y`, for moments that need no reduction over
/// replicas.
pub(crate) fn moments_and_stats(
    cx: &mut LowerCtx<'_>,
    count: usize,
    x: &[ValueId],
    sums: ValueId,
    y: ValueId,
    bias: Option<Ptr>,
) -> Vec<Launch> {
    sum_moments(cx, x[0], sums, Some((y, count)), bias)
}

/// Adds `bias`, statistics, gamma, beta, epsilon and whether a ReLU follows.
fn norm_args(
    cx: &LowerCtx<'_>,
    launch: Launch,
    a: &BatchNormAttrs,
    x: &[ValueId],
    bias: Option<Ptr>,
) -> Launch {
    let at = |id: ValueId| cx.operand(id).ptr;
    launch
        .arg(bias)
        .arg(at(x[0]))
        .arg(at(x[1]))
        .arg(at(x[2]))
        .arg(a.epsilon.get() as f32)
        .arg(a.relu)
}

/// `y = gamma * (x - mean) / sqrt(variance + epsilon) + beta`; operands `x, stats, gamma, beta`.
pub(crate) fn batch_norm(
    cx: &mut LowerCtx<'_>,
    a: &BatchNormAttrs,
    x: &[ValueId],
    y: ValueId,
    bias: Option<Ptr>,
) -> Vec<Launch> {
    let (input, out) = (cx.operand(x[0]), cx.operand(y));
    if input.len == 0 {
        return vec![];
    }
    let t = Tiling::walk(input.pixels(), vector(&[&input, &out]), &input);
    let launch = t
        .launch(format!("batch_norm<{}, {}>", input.elem.c_name(), t.vector))
        .arg(input.ptr)
        .arg(input.ld);
    let launch = norm_args(cx, launch, a, &x[1..4], bias)
        .arg(out.ptr)
        .arg(out.ld)
        .arg(input.pixels())
        .arg(input.last())
        .arg(t.tile as i32);
    vec![launch]
}

/// Sums of `dy` and `dy * x̂`; operands `dy, x, stats, gamma, beta`.
pub(crate) fn batch_norm_grad_sums(
    cx: &mut LowerCtx<'_>,
    a: &BatchNormAttrs,
    x: &[ValueId],
    y: ValueId,
    bias: Option<Ptr>,
) -> Vec<Launch> {
    let (dy, input, sums) = (cx.operand(x[0]), cx.operand(x[1]), cx.operand(y));
    if input.len == 0 {
        return vec![];
    }
    let t = Tiling::sums(input.pixels(), vector_up_to(MAX_SUMMED_CHANNELS, &[&input, &dy]), &input);
    let (partial, counters) = t.scratch(cx, 2);
    let launch = t
        .launch(format!("batch_norm_grad_sums<{}, {}>", input.elem.c_name(), t.vector))
        .arg(dy.ptr)
        .arg(dy.ld)
        .arg(input.ptr)
        .arg(input.ld);
    let launch = norm_args(cx, launch, a, &x[2..5], bias)
        .arg(sums.ptr)
        .arg(input.pixels())
        .arg(input.last())
        .arg(t.tile as i32)
        .arg(partial)
        .arg(counters);
    vec![launch]
}

/// A bias of the layer before that the kernel adds to its input.
#[derive(Clone, Copy, Default)]
pub(crate) struct FusedBias {
    /// The bias, if any.
    pub values: Option<Ptr>,
    /// Receives the derivative by the bias: the result's sums over all pixels.
    pub column_sums: Option<Ptr>,
}

/// The derivative by `x` from complete sums over `count` numbers; operands `dy, x, stats, gamma,
/// beta, sums`.
pub(crate) fn batch_norm_grad_input(
    cx: &mut LowerCtx<'_>,
    a: &BatchNormAttrs,
    count: usize,
    x: &[ValueId],
    y: ValueId,
    bias: FusedBias,
) -> Vec<Launch> {
    let FusedBias { values: bias, column_sums } = bias;
    let (dy, input, dx) = (cx.operand(x[0]), cx.operand(x[1]), cx.operand(y));
    if input.len == 0 {
        return vec![];
    }
    let operands = [&input, &dy, &dx];
    let pixels = input.pixels();
    let (t, scratch) = if column_sums.is_some() {
        let t = Tiling::sums(pixels, vector_up_to(MAX_SUMMED_CHANNELS, &operands), &input);
        (t, Some(t.scratch(cx, 1)))
    } else {
        (Tiling::walk(pixels, vector(&operands), &input), None)
    };
    let kernel = format!(
        "batch_norm_grad_input<{}, {}, {}>",
        input.elem.c_name(),
        t.vector,
        scratch.is_some()
    );
    let launch = t.launch(kernel).arg(dy.ptr).arg(dy.ld).arg(input.ptr).arg(input.ld);
    let launch = norm_args(cx, launch, a, &x[2..5], bias)
        .arg(cx.operand(x[5]).ptr)
        .arg(count)
        .arg(dx.ptr)
        .arg(dx.ld)
        .arg(pixels)
        .arg(input.last())
        .arg(t.tile as i32)
        .arg(column_sums)
        .arg(scratch.map(|(partial, _)| partial))
        .arg(scratch.map(|(_, counters)| counters));
    vec![launch]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::launch::{Block, Elem};

    fn image(elem: Elem, offset: usize, ld: usize, channels: usize, pixels: usize) -> Operand {
        let ptr = Ptr::new(0, Block::Arena, offset);
        Operand { ptr, elem, dims: vec![pixels, channels], ld, len: pixels * channels }
    }

    #[test]
    fn vectors_need_alignment_stride_and_channels() {
        let v = |elem, offset, ld, channels| vector(&[&image(elem, offset, ld, channels, 8)]);
        assert_eq!(v(Elem::F32, 0, 96, 96), 4);
        assert_eq!(v(Elem::Bf16, 512, 96, 96), 8);
        assert_eq!(v(Elem::Bf16, 8, 100, 20), 4);
        assert_eq!(v(Elem::F32, 8, 96, 96), 1);
        assert_eq!(v(Elem::F32, 0, 97, 96), 1);
        assert_eq!(v(Elem::F32, 0, 96, 83), 1);
        let (x, y) = (image(Elem::F32, 0, 96, 96, 8), image(Elem::F32, 4, 96, 96, 8));
        assert_eq!(vector(&[&x, &y]), 1);
    }

    #[test]
    fn tiles_cover_all_channels_and_pixels() {
        for channels in [1, 3, 4, 20, 83, 96, 160, 1000, 4096] {
            for pixels in [1, 49, 3136, 65536, 1 << 20] {
                for elem in [Elem::F32, Elem::Bf16] {
                    let x = image(elem, 0, channels, channels, pixels);
                    let v = vector(&[&x]);
                    let t = Tiling::sums(pixels, vector_up_to(MAX_SUMMED_CHANNELS, &[&x]), &x);
                    assert!(t.tile * t.tiles * t.vector >= channels);
                    assert!(2 * t.tile * t.vector <= 128);
                    let w = Tiling::walk(pixels, v, &x);
                    assert!(w.tile * w.tiles * v >= channels && w.tile * v <= 256);
                    assert!(t.tiles * t.parts <= 264.max(t.tiles) && t.parts > 0);
                }
            }
        }
    }

    #[cfg(feature = "emulator")]
    mod emulated {
        use super::*;
        use crate::ops::harness::{Harness, SEEDS, close, numbers};
        use phalanx_graph::Scope;

        fn attrs(relu: bool) -> BatchNormAttrs {
            BatchNormAttrs { epsilon: 1e-3.into(), relu, scope: Scope::Device }
        }

        #[phalanx_testing::needs(gxx)]
        #[test]
        fn batch_norm_matches_plain_loops() {
            for seed in SEEDS {
                for (c, size, gap) in [(1, 301, 0), (3, 77, 2), (96, 150, 8), (40, 49, 0)] {
                    for (relu, biased) in [(false, true), (true, true), (true, false)] {
                        check(seed, c, size, gap, relu, biased);
                    }
                }
            }
        }

        fn check(seed: Option<u64>, c: usize, size: usize, gap: usize, relu: bool, biased: bool) {
            let rows = 2;
            let mut harness = Harness::new(seed, rows);
            let (n, count) = (rows * size * c, rows * size);
            let what = |part: &str| format!("{part} c {c} size {size} gap {gap} relu {relu}");
            let x: Vec<f32> = numbers(n, 1).iter().map(|v| v * 2.0 + 1.5).collect();
            let (dy, zero) = (numbers(n, 2), vec![0.0; n]);
            let (gamma, beta) = (numbers(c, 3), numbers(c, 4));
            let shift = if biased { numbers(c, 5) } else { vec![0.0; c] };
            let dims = [size, c];
            let input = harness.rows(&dims, gap, &x);
            let grad = harness.rows(&dims, gap, &dy);
            let (y, dx) = (harness.rows(&dims, gap, &zero), harness.rows(&dims, 0, &zero));
            let (g, b) = (harness.whole(&[c], &gamma), harness.whole(&[c], &beta));
            let (st, sums) =
                (harness.whole(&[2, c], &[0.0].repeat(2 * c)), harness.doubles(&[2, c]));
            let (st2, gs) = (
                harness.whole(&[2, c], &[0.0].repeat(2 * c)),
                harness.whole(&[2, c], &[0.0].repeat(2 * c)),
            );
            let (shifts, columns) = (harness.whole(&[c], &shift), harness.whole(&[c], &zero[..c]));
            let bias = biased.then(|| harness.at(shifts));
            let a = attrs(relu);
            harness.run(|cx, _| moments_and_stats(cx, count, &[input], sums, st, bias));
            harness.run(|cx, _| moments(cx, &[input], sums, bias));
            harness.run(|cx, _| batch_stats(cx, count, &[sums], st2));
            assert_eq!(harness.get(st), harness.get(st2), "{}", what("one launch or two"));
            harness.run(|cx, _| batch_norm(cx, &a, &[input, st, g, b], y, bias));
            harness.run(|cx, _| batch_norm_grad_sums(cx, &a, &[grad, input, st, g, b], gs, bias));
            let operands = [grad, input, st, g, b, gs];
            let fused = |column_sums| FusedBias { values: bias, column_sums };
            harness.run(|cx, _| batch_norm_grad_input(cx, &a, count, &operands, dx, fused(None)));
            let plain = harness.get(dx);
            let to = fused(Some(harness.at(columns)));
            harness.run(|cx, _| batch_norm_grad_input(cx, &a, count, &operands, dx, to));
            assert_eq!(harness.get(dx), plain, "{}", what("with or without sums"));

            let (stats, got, sums, columns) =
                (harness.get(st), harness.get(y), harness.get(gs), harness.get(columns));
            let pick = |v: &[f32], i: usize| -> Vec<f32> {
                v.iter().skip(i).step_by(c).copied().collect()
            };
            for i in 0..c {
                let xs: Vec<f64> =
                    pick(&x, i).iter().map(|v| f64::from(*v) + f64::from(shift[i])).collect();
                let mean = xs.iter().sum::<f64>() / count as f64;
                let variance = xs.iter().map(|x| (x - mean).powi(2)).sum::<f64>() / count as f64;
                close(&what("stats"), &[stats[i], stats[c + i]], &[mean, variance], 2e-6);
                let inverse = 1.0 / (variance + 1e-3).sqrt();
                let hat: Vec<f64> = xs.iter().map(|x| (x - mean) * inverse).collect();
                let (g, b) = (f64::from(gamma[i]), f64::from(beta[i]));
                let z = hat.iter().map(|h| h * g + b);
                let want: Vec<f64> = z.map(|z| if relu { z.max(0.0) } else { z }).collect();
                let got = pick(&got, i);
                close(&what("y"), &got, &want, 1e-5);
                let dz: Vec<f64> = pick(&dy, i)
                    .iter()
                    .zip(&got)
                    .map(|(d, y)| if !relu || *y > 0.0 { f64::from(*d) } else { 0.0 })
                    .collect();
                let s0: f64 = dz.iter().sum();
                let s1: f64 = dz.iter().zip(&hat).map(|(d, h)| d * h).sum();
                close(&what("sums"), &[sums[i], sums[c + i]], &[s0, s1], 2e-4);
                let n = count as f64;
                let want: Vec<f64> = dz
                    .iter()
                    .zip(&hat)
                    .map(|(d, h)| g * inverse * (d - s0 / n - h * s1 / n))
                    .collect();
                close(&what("dx"), &pick(&plain, i), &want, 2e-5);
                close(&what("columns"), &[columns[i]], &[want.iter().sum()], 1e-4);
            }
        }
    }
}
