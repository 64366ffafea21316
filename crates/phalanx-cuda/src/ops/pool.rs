//! Pooling over windows and its derivative. The geometry is part of the kernel's name.

use super::norm::vector;
use crate::launch::Launch;
use crate::lowering_context::{LowerCtx, Operand};
use phalanx_graph::ConvGeom;
use phalanx_graph::ops::PoolKind;
use phalanx_graph::program::ValueId;

/// Threads that fill a GPU. With fewer vectors than this, vectors are split.
const FULL_GPU_THREADS: usize = 132 * 256;

/// Launches `each` threads for every vector of `over`, one of the operands.
fn launch(
    kernel: &str,
    g: &ConvGeom,
    (over, each): (&Operand, usize),
    operands: &[&Operand],
) -> Vec<Launch> {
    if over.len == 0 {
        return vec![];
    }
    let wide = vector(operands);
    let v = if over.len * each / wide < FULL_GPU_THREADS { 1 } else { wide };
    let items = over.len / v * each;
    let index = if items < 1 << 31 { "u32" } else { "u64" };
    let name = format!("{kernel}<{}, {v}, {index}, {}>", over.elem.c_name(), geom_type(g));
    let launch = Launch::over("pool", name, items);
    let launch = operands.iter().fold(launch, |l, o| l.arg(o.ptr).arg(o.ld));
    vec![launch.arg(items)]
}

fn geom_type(g: &ConvGeom) -> String {
    let sizes = [&g.input[..2], &g.output[..2], &g.kernel, &g.stride, &g.dilation, &g.pad].concat();
    let sizes: Vec<String> = sizes.iter().chain(&[g.input[2]]).map(usize::to_string).collect();
    format!("Geom<{}>", sizes.join(", "))
}

/// Maximum or mean of each window.
pub(crate) fn pool(
    cx: &mut LowerCtx<'_>,
    kind: PoolKind,
    geom: &ConvGeom,
    x: &[ValueId],
    y: ValueId,
) -> Vec<Launch> {
    let (x, y) = (cx.operand(x[0]), cx.operand(y));
    let kernel = match kind {
        PoolKind::Max => "max_pool",
        PoolKind::Average => "average_pool",
    };
    launch(kernel, geom, (&y, 1), &[&x, &y])
}

/// Whether every input pixel lies in exactly one window.
fn windows_tile_input(g: &ConvGeom) -> bool {
    (0..2).all(|a| {
        let fits = g.dilation[a] == 1 && g.kernel[a] == g.stride[a];
        // Padding shortens a window but skips no pixel.
        fits && g.output[a] * g.stride[a] >= g.input[a] + g.pad[a]
    })
}

/// Shared memory for the positions of a block's window maxima, in bytes.
const BAND_SHARED_BYTES: usize = 16 << 10;

/// Blocks that keep a GPU busy.
const TARGET_BLOCKS: usize = 132 * 6;

/// The split of overlapping windows for the derivative of their maximum.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Bands {
    /// Channels per thread.
    vector: usize,
    /// Image lines per block.
    lines: usize,
    /// Vectors of channels per block.
    chunk: usize,
    blocks: usize,
}

impl Bands {
    /// The highest bands that give enough blocks: windows between two bands are visited twice.
    fn new(g: &ConvGeom, rows: usize, vector: usize) -> Option<Bands> {
        let heights = [8, 4, 2, 1].map(|n| n * g.stride[0]);
        let all: Vec<Bands> =
            heights.iter().filter_map(|lines| Bands::of(g, rows, vector, *lines)).collect();
        let busy = all.iter().find(|b| b.blocks >= TARGET_BLOCKS);
        // If all give too few blocks, not the lowest: it would visit everything twice.
        busy.or(all.iter().rfind(|b| b.lines > g.stride[0])).or(all.last()).copied()
    }

    fn of(g: &ConvGeom, rows: usize, vector: usize, lines: usize) -> Option<Bands> {
        let lines = lines.min(g.input[0]);
        let reach = lines - 1 + (g.kernel[0] - 1) * g.dilation[0];
        let touched = (reach / g.stride[0] + 1).min(g.output[0]);
        let vectors = g.input[2] / vector;
        let max_chunk = BAND_SHARED_BYTES / (touched * g.output[1] * vector).max(1);
        // The index of a tap takes a byte; narrower chunks than this waste memory bandwidth.
        if g.kernel[0] * g.kernel[1] > 256 || max_chunk < vectors.min(8) {
            return None;
        }
        let chunks = vectors.div_ceil(max_chunk);
        let blocks = rows * g.input[0].div_ceil(lines) * chunks;
        Some(Bands { vector, lines, chunk: vectors.div_ceil(chunks), blocks })
    }

    fn launch(&self, g: &ConvGeom, x: &Operand, dy: &Operand, dx: &Operand) -> Launch {
        let (v, geom) = (self.vector, geom_type(g));
        let band = format!("Band<{geom}, {v}, {}, {}>", self.lines, self.chunk);
        let name = format!("max_pool_grad_bands<{}, {v}, {geom}, {band}>", x.elem.c_name());
        let launch = Launch::blocks("pool", name, self.blocks, 256);
        [x, dy, dx].into_iter().fold(launch, |l, o| l.arg(o.ptr).arg(o.ld))
    }
}

/// Operands `x, y, dy` (max) or `dy` (average).
pub(crate) fn pool_grad(
    cx: &mut LowerCtx<'_>,
    kind: PoolKind,
    geom: &ConvGeom,
    x: &[ValueId],
    y: ValueId,
) -> Vec<Launch> {
    let dx = cx.operand(y);
    let x: Vec<Operand> = x.iter().map(|id| cx.operand(*id)).collect();
    let operands: Vec<&Operand> = x.iter().chain([&dx]).collect();
    match kind {
        PoolKind::Max if windows_tile_input(geom) => {
            launch("max_pool_grad_apart", geom, (&x[2], 1), &operands)
        }
        PoolKind::Max => match Bands::new(geom, cx.rows, vector(&operands)) {
            Some(bands) if dx.len > 0 => vec![bands.launch(geom, &x[0], &x[2], &dx)],
            _ => launch("max_pool_grad", geom, (&dx, 1), &operands),
        },
        PoolKind::Average if windows_tile_input(geom) => {
            launch("average_pool_grad_apart", geom, (&x[0], geom.kernel[0]), &operands)
        }
        PoolKind::Average => launch("average_pool_grad", geom, (&dx, 1), &operands),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use phalanx_graph::{Padding, Window};

    #[test]
    fn windows_with_gaps_or_overlaps_do_not_tile_the_input() {
        let geom = |size, kernel, stride, padding| {
            let (k, s) = ([kernel, kernel], [stride, stride]);
            ConvGeom::new([size, size, 4], 4, Window::new(k, s, padding)).unwrap()
        };
        assert!(windows_tile_input(&geom(8, 2, 2, Padding::Valid)));
        assert!(windows_tile_input(&geom(7, 7, 7, Padding::Valid)));
        assert!(windows_tile_input(&geom(7, 2, 2, Padding::Same)));
        assert!(!windows_tile_input(&geom(7, 2, 2, Padding::Valid)));
        assert!(!windows_tile_input(&geom(8, 3, 2, Padding::Same)));
        assert!(!windows_tile_input(&geom(8, 2, 3, Padding::Valid)));
    }

    #[test]
    fn bands_follow_from_batch_and_memory() {
        let geom = |size, channels, kernel| {
            let (k, s) = ([kernel, kernel], [2, 2]);
            ConvGeom::new([size, size, channels], channels, Window::new(k, s, Padding::Valid))
                .unwrap()
        };
        let bands = |size, channels, rows| Bands::new(&geom(size, channels, 3), rows, 4).unwrap();
        let band = |lines, chunk, blocks| Bands { vector: 4, lines, chunk, blocks };
        assert_eq!(bands(32, 80, 1024), band(16, 20, 2048));
        assert_eq!(bands(32, 80, 256), band(8, 20, 1024));
        assert_eq!(bands(32, 80, 4), band(4, 20, 32));
        assert_eq!(bands(224, 512, 64).chunk, 12);
        assert_eq!(Bands::new(&geom(64, 8, 17), 1, 4), None);
    }

    #[cfg(feature = "emulator")]
    mod emulated {
        use super::*;
        use crate::ops::harness::{Harness, SEEDS, close, numbers};

        /// Input elements of each output's window, in row-major order.
        fn windows(g: &ConvGeom, rows: usize) -> Vec<Vec<usize>> {
            let [h, w, c] = g.input;
            let mut all = Vec::new();
            for o in 0..rows * g.output_len() {
                let (k, j, i) = (o % c, o / c % g.output[1], o / c / g.output[1] % g.output[0]);
                let row = o / g.output_len();
                let mut window = Vec::new();
                for a in 0..g.kernel[0] {
                    for b in 0..g.kernel[1] {
                        let y = (i * g.stride[0] + a * g.dilation[0]).checked_sub(g.pad[0]);
                        let x = (j * g.stride[1] + b * g.dilation[1]).checked_sub(g.pad[1]);
                        if let (Some(y), Some(x)) = (y.filter(|y| *y < h), x.filter(|x| *x < w)) {
                            window.push(((row * h + y) * w + x) * c + k);
                        }
                    }
                }
                all.push(window);
            }
            all
        }

        #[phalanx_testing::needs(gxx)]
        #[test]
        fn pools_and_derivatives() {
            for (size, kernel, stride, dilation) in [
                ([8, 6], [2, 2], [2, 2], [1, 1]),
                ([7, 9], [3, 3], [2, 2], [1, 1]),
                ([7, 5], [2, 3], [3, 3], [1, 1]),
                ([9, 8], [2, 3], [1, 1], [2, 2]),
                ([3, 4], [5, 5], [2, 1], [1, 1]),
                ([7, 7], [7, 7], [7, 7], [1, 1]),
                ([20, 11], [3, 3], [2, 2], [1, 1]),
                // More taps than fit in a byte.
                ([20, 19], [17, 16], [2, 2], [1, 1]),
            ] {
                for padding in [Padding::Valid, Padding::Same] {
                    let input = [size[0], size[1], 3];
                    let window = Window { kernel, stride, dilation, padding, groups: 1 };
                    let g = ConvGeom::new(input, 3, window);
                    g.iter().for_each(|g| SEEDS.into_iter().for_each(|seed| check(seed, g)));
                }
            }
        }

        fn check(seed: Option<u64>, g: &ConvGeom) {
            let rows = 2;
            let mut harness = Harness::new(seed, rows);
            // Few distinct numbers, so that ties are common, and some NaN.
            let mut x: Vec<f32> =
                numbers(rows * g.input_len(), 1).iter().map(|v| (v * 3.0).round()).collect();
            x.iter_mut().step_by(31).for_each(|v| *v = f32::NAN);
            let dy = numbers(rows * g.output_len(), 2);
            let (mut max, mut mean) = (vec![], vec![]);
            let (mut dmax, mut dmean) = (vec![0.0; x.len()], vec![0.0; x.len()]);
            for (window, dy) in windows(g, rows).iter().zip(&dy) {
                let larger = |best: usize, i: &usize| {
                    let takes = x[*i] > x[best] || x[*i].is_nan() && !x[best].is_nan();
                    if takes { *i } else { best }
                };
                let first = window.iter().fold(window[0], larger);
                let count = window.len() as f64;
                max.push(f64::from(x[first]));
                mean.push(window.iter().map(|i| f64::from(x[*i])).sum::<f64>() / count);
                dmax[first] += f64::from(*dy);
                window.iter().for_each(|i| dmean[*i] += f64::from(*dy) / count);
            }
            let (zx, zy) = (vec![9.0; x.len()], vec![9.0; dy.len()]);
            let (input, grad) = (harness.rows(&g.input, 2, &x), harness.rows(&g.output, 1, &dy));
            let (best, mid) = (harness.rows(&g.output, 3, &zy), harness.rows(&g.output, 0, &zy));
            let (dbest, dmid) = (harness.rows(&g.input, 4, &zx), harness.rows(&g.input, 0, &zx));
            harness.run(|cx, _| {
                [
                    pool(cx, PoolKind::Average, g, &[input], mid),
                    pool(cx, PoolKind::Max, g, &[input], best),
                    pool_grad(cx, PoolKind::Max, g, &[input, best, grad], dbest),
                    pool_grad(cx, PoolKind::Average, g, &[grad], dmid),
                ]
                .concat()
            });
            close(&format!("mean {g}"), &harness.get(mid), &mean, 1e-6);
            close(&format!("max {g}"), &harness.get(best), &max, 0.0);
            close(&format!("max' {g}"), &harness.get(dbest), &dmax, 2e-6);
            close(&format!("mean' {g}"), &harness.get(dmid), &dmean, 2e-6);
        }
    }
}
