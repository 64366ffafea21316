//! Depthwise convolutions: every channel has filters of its own. A thread follows a strip of an image; see
//! `kernels/depthwise.cu`.
//!
//! How a convolution is split depends on its shape alone, so that sums have the same order on every GPU.

use crate::launch::{Elem, Launch, Ptr};
use crate::lowering_context::{Operand, Scratch};
use crate::ops::reduce::RowSum;
use phalanx_graph::ConvGeom;

const FILE: &str = "depthwise";

/// Threads per block, as `THREADS` of the kernels.
const THREADS: usize = 128;

/// Maximum registers of a thread for pixels, taps and sums. It takes up to 45 others for addresses, and all should leave
/// room for 384 threads on a multiprocessor.
const MAX_REGISTERS: usize = 124;

/// Columns of a strip, if the image has as many. Neighbouring strips load the columns between them twice.
const STRIP_COLUMNS: usize = 4;

/// Maximum columns that a thread loads of a line: it has a bit for each.
const MAX_LOADED_COLUMNS: usize = 32;

/// Maximum vectors of channels in a block. Its eight or more strips lie side by side and find the columns between them
/// in the cache.
const MAX_TILE: usize = 16;

/// Threads for which images are cut into bands: several times those that an H200 runs together.
const TARGET_THREADS: usize = 132 * 384 * 4;

/// Minimum lines of a band, if there are as many. Neighbouring bands load the lines between them twice.
const MIN_BAND: usize = 8;

/// Blocks that sum a filter's gradient: those that an H200 runs together.
const SUMMING_BLOCKS: usize = 132 * 3;

/// Maximum partial sums of a filter's gradient.
const MAX_PARTS: usize = 512;

/// Maximum taps along an axis of a launch that sums a filter's gradient. Larger windows take several launches.
const MAX_SUMMED_TAPS: usize = 7;

/// Columns of a sum over blocks. All sums of a launch have as many blocks as the widest one.
const SUM_COLUMNS: usize = 1024;

/// Whether a convolution is one of images in which every channel has filters of its own.
pub(crate) fn is_depthwise(g: &ConvGeom) -> bool {
    g.is_flat() && g.groups > 1 && g.groups == g.input[2]
}

/// A depthwise convolution and its operands.
pub(crate) struct Depthwise {
    pub geom: ConvGeom,
    pub rows: usize,
    /// The input, or its gradient.
    pub x: Operand,
    /// The filters, or their gradient.
    pub filters: Operand,
    /// The output, or its gradient.
    pub y: Operand,
}

/// The registers of a strip kernel: floats for each channel, and vectors of pixels that are held as they were loaded.
#[derive(Clone, Copy)]
struct Registers {
    channel: usize,
    pixels: usize,
}

/// What a thread computes of each line: this many channels and columns of the lattice.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Strip {
    vector: usize,
    columns: usize,
}

/// Lines and columns of a kernel's lattice, and its phases along both axes.
#[derive(Clone, Copy)]
struct Lattice {
    size: [usize; 2],
    phases: [usize; 2],
}

/// The strips of all images, and the tiles of channels.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Tiling {
    /// Vectors of a tile.
    tile: usize,
    tiles: usize,
    /// Lines of a band.
    band: usize,
    /// Strips above each other and side by side in an image.
    counts: [usize; 2],
    /// All strips.
    strips: usize,
}

impl Tiling {
    fn new(rows: usize, lattice: &Lattice, strip: Strip, channels: usize) -> Tiling {
        let vectors = (channels / strip.vector).max(1);
        let tiles = vectors.div_ceil(MAX_TILE);
        let across = lattice.size[1].div_ceil(strip.columns) * lattice.phases[1];
        let lines = lattice.size[0].max(1);
        let threads = rows * lattice.phases[0] * across * vectors;
        let bands = TARGET_THREADS.div_ceil(threads.max(1)).min(lines.div_ceil(MIN_BAND));
        let band = lines.div_ceil(bands);
        let counts = [lines.div_ceil(band) * lattice.phases[0], across];
        let strips = rows * counts[0] * counts[1];
        Tiling { tile: vectors.div_ceil(tiles), tiles, band, counts, strips }
    }

    /// Threads of a block with the same channels.
    fn lanes(&self) -> usize {
        THREADS / self.tile
    }

    /// Blocks of a tile that process a strip per thread.
    fn blocks(&self) -> usize {
        self.strips.div_ceil(self.lanes()).max(1)
    }

    /// Blocks of a tile that sum all strips.
    fn parts(&self) -> usize {
        self.blocks().min((SUMMING_BLOCKS / self.tiles).clamp(1, MAX_PARTS))
    }
}

/// A part of the window's taps along an axis.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Taps {
    first: usize,
    count: usize,
}

/// Two numbers in one argument: height and width.
fn pair([h, w]: [i64; 2]) -> usize {
    ((h << 32) | (w & 0xffff_ffff)) as usize
}

fn sizes(both: [usize; 2]) -> usize {
    pair(both.map(|n| n as i64))
}

/// The widest strip whose registers suffice. `need` gives those of a number of columns.
fn widest_strip(
    elem: Elem,
    fits: impl Fn(usize) -> bool,
    columns: usize,
    need: impl Fn(usize) -> Option<Registers>,
) -> Option<Strip> {
    let all = [4, 2, 1].into_iter().filter(|n| *n <= columns.max(1));
    let all = all.flat_map(|columns| [4, 2, 1].map(|vector| Strip { vector, columns }));
    all.into_iter().find(|s| {
        let held = |r: Registers| {
            s.vector * r.channel + (s.vector * elem.bytes()).div_ceil(4) * r.pixels <= MAX_REGISTERS
        };
        fits(s.vector) && need(s.columns).is_some_and(held)
    })
}

impl Depthwise {
    /// Output channels of an input channel.
    fn multiplier(&self) -> usize {
        self.geom.output[2] / self.geom.groups
    }

    /// Whether vectors of channels can be loaded and stored at once.
    fn fits(&self, vector: usize) -> bool {
        let aligned = |o: &Operand| {
            let address = o.ptr.offset.is_multiple_of(vector * o.elem.bytes());
            address && o.ld.is_multiple_of(vector) && o.last().is_multiple_of(vector)
        };
        vector == 1
            || self.multiplier() == 1 && [&self.x, &self.filters, &self.y].into_iter().all(aligned)
    }

    /// Whether the pixels of each axis form lattices that the strip kernels follow.
    fn has_lattices(&self) -> bool {
        let g = &self.geom;
        (0..2).all(|a| g.stride[a] == 1 || g.dilation[a] == 1)
    }

    /// The lattice of the outputs.
    fn outputs(&self) -> Lattice {
        let g = &self.geom;
        Lattice { size: [0, 1].map(|a| g.output[a].div_ceil(g.dilation[a])), phases: g.dilation }
    }

    /// `y = x * w`, then `relu(y + bias)`, both optional.
    pub fn forward(&self, bias: Option<Ptr>, relu: bool) -> Launch {
        let (g, lattice) = (&self.geom, self.outputs());
        let need = |n: usize| {
            let lines = g.kernel[0].div_ceil(g.stride[0]);
            let columns = (n - 1) * g.stride[1] + g.kernel[1];
            let channel = g.kernel[0] * g.kernel[1] + lines * n;
            (columns <= MAX_LOADED_COLUMNS).then_some(Registers { channel, pixels: 2 * columns })
        };
        let columns = lattice.size[1].next_power_of_two().min(STRIP_COLUMNS);
        let strip = widest_strip(self.x.elem, |v| self.fits(v), columns, need);
        let operands = |launch: Launch| {
            let launch = launch.arg(self.x.ptr).arg(self.x.ld as i32).arg(self.filters.ptr);
            let launch = launch.arg(bias).arg(relu).arg(self.y.ptr).arg(self.y.ld as i32);
            launch.arg(g.output[2] as i32).arg(self.multiplier() as i32)
        };
        let Some(strip) = strip.filter(|_| self.has_lattices()) else {
            let v = if self.fits(4) { 4 } else { 1 };
            let kernel = format!("depthwise_forward_any<{}, {v}>", self.x.elem.c_name());
            let items = self.rows * g.output_len() / v;
            return self.any(operands(Launch::over(FILE, kernel, items)), items);
        };
        let t = Tiling::new(self.rows, &lattice, strip, g.output[2]);
        let epilogue = bias.is_some() || relu;
        let kernel = self.kernel("depthwise_forward", strip, g.kernel, &format!(", {epilogue}"));
        let launch = operands(Launch::blocks(FILE, kernel, t.tiles * t.blocks(), THREADS as u32));
        let launch = split(launch, &t, &lattice);
        geometry(launch, g, g.pad.map(|p| p as i64), g.dilation)
    }

    /// `dx = dy * wᵀ`
    pub fn grad_input(&self) -> Launch {
        let g = &self.geom;
        // Counted from the start of the padding, output `i` completes `stride` pixels from `stride * i` on.
        let position = |a: usize, pixel: usize| (pixel + g.pad[a]) / g.dilation[a] / g.stride[a];
        let first = [0, 1].map(|a| position(a, 0));
        let size = [0, 1].map(|a| position(a, g.input[a].max(1) - 1) - first[a] + 1);
        let lattice = Lattice { size, phases: g.dilation };
        let need = |n: usize| {
            let lines = g.kernel[0].max(g.stride[0]);
            let width = n * g.stride[1];
            let columns = n + (g.kernel[1] - 1) / g.stride[1];
            let channel = g.kernel[0] * g.kernel[1] + lines * width;
            let loaded = columns <= MAX_LOADED_COLUMNS && width <= MAX_LOADED_COLUMNS;
            loaded.then_some(Registers { channel, pixels: 2 * columns })
        };
        let columns = (STRIP_COLUMNS / g.stride[1]).max(1).min(size[1].next_power_of_two());
        let strip = widest_strip(self.x.elem, |v| self.fits(v), columns, need);
        let operands = |launch: Launch, channels: usize| {
            let launch = launch.arg(self.y.ptr).arg(self.y.ld as i32).arg(self.filters.ptr);
            launch.arg(self.x.ptr).arg(self.x.ld as i32).arg(channels as i32)
        };
        let usable = self.has_lattices() && self.multiplier() == 1;
        let Some(strip) = strip.filter(|_| usable) else {
            let kernel = format!("depthwise_grad_input_any<{}>", self.x.elem.c_name());
            let items = self.rows * g.input_len();
            let launch = operands(Launch::over(FILE, kernel, items), g.input[2]);
            return self.any(launch.arg(self.multiplier() as i32), items);
        };
        let t = Tiling::new(self.rows, &lattice, strip, g.input[2]);
        let kernel = self.kernel("depthwise_grad_input", strip, g.kernel, "");
        let launch = Launch::blocks(FILE, kernel, t.tiles * t.blocks(), THREADS as u32);
        let launch = split(operands(launch, g.input[2]), &t, &lattice).arg(sizes(first));
        geometry(launch, g, g.pad.map(|p| p as i64), g.dilation)
    }

    /// `dw = xᵀ * dy`: launches that write partial sums, where these are, and what remains to be summed. One part
    /// needs no sum.
    pub fn grad_filter(&self, scratch: &mut Scratch) -> (Vec<Launch>, Ptr, Vec<RowSum>) {
        let g = &self.geom;
        let pieces = [0, 1].map(|a| pieces(g.kernel[a], g.stride[a] > 1 && g.dilation[a] > 1));
        let pieces: Vec<[Taps; 2]> = pieces[0]
            .iter()
            .flat_map(|down| pieces[1].iter().map(|across| [*down, *across]))
            .collect();
        let splits: Vec<Sums> = pieces.into_iter().map(|taps| self.sums(taps)).collect();
        // The sums of all taps have the same number of parts.
        let parts = splits.iter().map(|s| s.tiling.parts()).min().unwrap_or(1);
        let len = self.filters.len;
        let to = if parts == 1 { self.filters.ptr } else { scratch.take(parts * len * 4) };
        let launches = splits.iter().map(|s| self.sum_filter(s, parts, to)).collect();
        let sum = |first: usize| RowSum {
            from: to.add(first * 4),
            to: self.filters.ptr.add(first * 4),
            rows: parts,
            columns: SUM_COLUMNS.min(len - first),
            ld: len,
        };
        let sums = if parts == 1 { 0..0 } else { 0..len };
        (launches, to, sums.step_by(SUM_COLUMNS).map(sum).collect())
    }

    /// How the gradients of some taps are summed.
    fn sums(&self, taps: [Taps; 2]) -> Sums {
        let g = &self.geom;
        // A single tap is not dilated.
        let dilation = [0, 1].map(|a| if taps[a].count == 1 { 1 } else { g.dilation[a] });
        let size = [0, 1].map(|a| g.output[a].div_ceil(dilation[a]));
        let lattice = Lattice { size, phases: dilation };
        let [kh, kw] = taps.map(|t| t.count);
        let need = |n: usize| {
            let columns = (n - 1) * g.stride[1] + kw;
            // Gradients of the lines that an input line adds to, and of the next one.
            let pixels = 2 * columns + (kh.div_ceil(g.stride[0]) + 1) * n;
            (columns <= MAX_LOADED_COLUMNS).then_some(Registers { channel: kh * kw, pixels })
        };
        let columns = size[1].next_power_of_two().min(STRIP_COLUMNS);
        let strip = widest_strip(self.x.elem, |v| self.fits(v), columns, need);
        let strip = strip.unwrap_or(Strip { vector: 1, columns: 1 });
        let tiling = Tiling::new(self.rows, &lattice, strip, g.output[2]);
        Sums { taps, lattice, strip, tiling }
    }

    /// The launch that sums the gradients of some taps.
    fn sum_filter(&self, s: &Sums, parts: usize, to: Ptr) -> Launch {
        let (g, t) = (&self.geom, &s.tiling);
        let kernel = self.kernel("depthwise_grad_filter", s.strip, s.taps.map(|t| t.count), "");
        let first = (s.taps[0].first * g.kernel[1] + s.taps[1].first) * g.output[2];
        let pad = |a: usize| g.pad[a] as i64 - (s.taps[a].first * g.dilation[a]) as i64;
        let launch = Launch::blocks(FILE, kernel, t.tiles * parts, THREADS as u32)
            .arg(self.x.ptr)
            .arg(self.x.ld as i32)
            .arg(self.y.ptr)
            .arg(self.y.ld as i32)
            .arg(to.add(first * 4))
            .arg(self.filters.len)
            .arg(g.kernel[1] as i32)
            .arg(g.output[2] as i32)
            .arg(self.multiplier() as i32);
        geometry(split(launch, t, &s.lattice), g, [pad(0), pad(1)], s.lattice.phases)
    }

    /// The name of a strip kernel.
    fn kernel(&self, name: &str, s: Strip, [kh, kw]: [usize; 2], more: &str) -> String {
        let ([sh, sw], elem) = (self.geom.stride, self.x.elem.c_name());
        format!("{name}<{elem}, {}, {}, {kh}, {kw}, {sh}, {sw}{more}>", s.vector, s.columns)
    }

    /// Adds the geometry of a kernel for any window.
    fn any(&self, launch: Launch, items: usize) -> Launch {
        let g = &self.geom;
        let launch = launch.arg(sizes(g.kernel)).arg(sizes(g.stride));
        geometry(launch, g, g.pad.map(|p| p as i64), g.dilation).arg(items)
    }
}

/// The sum of the gradients of some taps over all strips.
struct Sums {
    taps: [Taps; 2],
    lattice: Lattice,
    strip: Strip,
    tiling: Tiling,
}

/// The taps along an axis in parts that a launch can sum.
fn pieces(kernel: usize, single: bool) -> Vec<Taps> {
    let most = if single { 1 } else { MAX_SUMMED_TAPS };
    let piece = |first: usize| Taps { first, count: most.min(kernel - first) };
    (0..kernel).step_by(most).map(piece).collect()
}

/// Adds tile, strips and bands.
fn split(launch: Launch, t: &Tiling, lattice: &Lattice) -> Launch {
    let launch = launch.arg(t.tile as i32).arg(t.strips as i32).arg(sizes(t.counts));
    launch.arg(sizes([lattice.size[0], t.band]))
}

/// Adds the sizes of input and output, padding and dilation.
fn geometry(launch: Launch, g: &ConvGeom, pad: [i64; 2], dilation: [usize; 2]) -> Launch {
    let launch = launch.arg(sizes([g.input[0], g.input[1]])).arg(sizes([g.output[0], g.output[1]]));
    launch.arg(pair(pad)).arg(sizes(dilation))
}

#[cfg(all(test, feature = "emulator"))]
mod tests;
