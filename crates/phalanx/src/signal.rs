//! Windows and Fourier transforms of signals. A transform is a product with the cosines and sines of its frequencies.

use crate::by_name::{Named, variant_by_serde_name};
use crate::error::Result;
use crate::layer::LayerContext;
use phalanx_graph::functions::layout::{PadMode, concat, pad, slice_steps};
use phalanx_graph::ops::Epilogue;
use phalanx_graph::{ConvGeom, Graph, NodeId, Op, Padding, Window};
use serde::{Deserialize, Serialize};
use std::f64::consts::TAU;

/// The maximum number of cosines or sines of a transform: 8192 by 8192.
const MAX_WEIGHTS: usize = 1 << 26;

/// A window: weights of the samples of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum SignalWindow {
    /// A cosine that is zero at the ends.
    Hann,
    /// A cosine that is 0.08 at the ends.
    Hamming,
    /// Two cosines.
    Blackman,
    /// A triangle that is zero at the ends.
    Bartlett,
    /// Ones.
    Boxcar,
}

impl Named for SignalWindow {
    const KIND: &'static str = "window";
    const NAMES: &'static [&'static str] = &["hann", "hamming", "blackman", "bartlett", "boxcar"];

    fn from_name(name: &str) -> Option<SignalWindow> {
        variant_by_serde_name(name)
    }
}

impl SignalWindow {
    /// The weights of `n` samples. A periodic window is one that has one more sample, which is left out.
    pub fn samples(self, n: usize, periodic: bool) -> Vec<f64> {
        let last = if periodic { n } else { n.saturating_sub(1) }.max(1) as f64;
        let weight = |i: usize| {
            let turn = TAU * i as f64 / last;
            match self {
                _ if n == 1 => 1.0,
                SignalWindow::Hann => 0.5 - 0.5 * turn.cos(),
                SignalWindow::Hamming => 0.54 - 0.46 * turn.cos(),
                SignalWindow::Blackman => 0.42 - 0.5 * turn.cos() + 0.08 * (2.0 * turn).cos(),
                SignalWindow::Bartlett => 1.0 - (2.0 * i as f64 / last - 1.0).abs(),
                SignalWindow::Boxcar => 1.0,
            }
        };
        (0..n).map(weight).collect()
    }
}

/// The part of a spectrum.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum SpectrumSide {
    /// The cosines.
    Real,
    /// The sines.
    Imag,
}

/// How a spectrum is scaled by its window.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum SpectrumScaling {
    /// By the root of the sum of the squares.
    Density,
    /// By the sum.
    Spectrum,
}

/// The cosine (or sine, if not) of `2π · i · k / n`, exact also for large products.
fn wave(cosine: bool, i: usize, k: usize, n: usize) -> f64 {
    let turn = TAU * ((i as u128 * k as u128) % n as u128) as f64 / n as f64;
    if cosine { turn.cos() } else { turn.sin() }
}

/// The initial kernel of a spectrogram layer, `[frame, 1, bins]`: the waves of `2 · (bins - 1)` samples, windowed.
pub(crate) fn spectrum_kernel(
    side: SpectrumSide,
    window: Option<SignalWindow>,
    scaling: Option<SpectrumScaling>,
    periodic: bool,
    [frame, bins]: [usize; 2],
) -> Vec<f32> {
    let weights = window.map(|window| window.samples(frame, periodic));
    let scale = match (&weights, scaling) {
        (Some(w), Some(SpectrumScaling::Density)) => w.iter().map(|v| v * v).sum::<f64>().sqrt(),
        (Some(w), Some(SpectrumScaling::Spectrum)) => w.iter().map(|v| v.abs()).sum(),
        _ => 1.0,
    };
    let n = (2 * bins.saturating_sub(1)).max(1);
    let mut kernel = Vec::with_capacity(frame * bins);
    for t in 0..frame {
        let weight = weights.as_ref().map_or(1.0, |w| w[t]) / scale;
        kernel.extend((0..bins).map(|k| {
            let value = match side {
                SpectrumSide::Real => wave(true, t, k, n),
                SpectrumSide::Imag => -wave(false, t, k, n),
            };
            (value * weight) as f32
        }));
    }
    kernel
}

/// Fails if a table of `rows` by `columns` does not fit.
pub(crate) fn check_table(
    cx: &LayerContext<'_>,
    argument: &str,
    [rows, columns]: [usize; 2],
) -> Result<()> {
    match rows.checked_mul(columns) {
        Some(n) if n > 0 && n <= MAX_WEIGHTS => Ok(()),
        _ => {
            let expected = format!("1 or more, and at most {MAX_WEIGHTS} when squared and halved");
            Err(cx.argument(argument, &expected, rows))
        }
    }
}

/// Constants `[rows, columns]`, the cosines and the sines of `2π · row · column / n`, each times a function of its row
/// and column.
pub(crate) fn waves(
    cx: &mut LayerContext<'_>,
    [rows, columns]: [usize; 2],
    n: usize,
    factor: impl Fn(usize, usize) -> f64,
) -> [NodeId; 2] {
    [(true, "cosines"), (false, "sines")].map(|(cosine, name)| {
        let each = (0..rows * columns).map(|i| {
            let (row, column) = (i / columns, i % columns);
            (wave(cosine, row, column, n) * factor(row, column)) as f32
        });
        let values = each.collect();
        cx.constant(name, &[rows, columns], values)
    })
}

/// The longest transform that is one product; longer ones are split into factors.
const MAX_TABLE: usize = 128;

/// The largest number of frames that overlap in a signal.
const MAX_OVERLAP: usize = 4096;

/// The largest prime factor of a transform's length: its table has this many rows and columns.
const MAX_PRIME: usize = 2048;

/// The largest factor up to the root of `n`, 1 for a prime number.
fn split(n: usize) -> usize {
    let candidates = (1..=n.isqrt()).rev();
    candidates.into_iter().find(|factor| n.is_multiple_of(*factor)).unwrap_or(1)
}

/// Exchanges the last two axes.
pub(crate) fn swap_last(g: &mut Graph, x: NodeId) -> phalanx_graph::Result<NodeId> {
    let rank = g.ty(x).dims.len();
    let mut perm: Vec<usize> = (0..rank).collect();
    if rank >= 2 {
        perm.swap(rank - 2, rank - 1);
    }
    g.push(Op::Transpose { perm }, &[x])
}

/// Fails unless a transform of this length has tables of reasonable size.
fn check_length(cx: &LayerContext<'_>, n: usize) -> Result<()> {
    let mut rest = n;
    while rest > MAX_TABLE && split(rest) > 1 {
        rest /= split(rest);
    }
    if (1..=MAX_PRIME).contains(&rest) && n <= MAX_WEIGHTS {
        return Ok(());
    }
    let expected = format!("a length up to {MAX_WEIGHTS} with prime factors up to {MAX_PRIME}");
    Err(cx.argument("x", &expected, n))
}

/// The discrete Fourier transform along the last axis, of real and imaginary parts; the latter may be zero. A length
/// `n = a · b` is split: `b` transforms of length `a`, a rotation of each element, and `a` transforms of length `b`.
pub(crate) fn fourier(
    cx: &mut LayerContext<'_>,
    (real, imag): (NodeId, Option<NodeId>),
) -> Result<[NodeId; 2]> {
    let dims = cx.dims(real);
    let Some((n, outer)) = dims.split_last().map(|(n, outer)| (*n, outer.to_vec())) else {
        return Err(cx.argument("x", "a last axis", "a number"));
    };
    check_length(cx, n)?;
    let a = split(n);
    if n <= MAX_TABLE || a == 1 {
        let tables = waves(cx, [n, n], n, |_, _| 1.0);
        let product = |g: &mut Graph, x, table| g.einsum("...i,ij->...j", &[x, table]);
        return Ok(turned(cx.graph(), (real, imag), tables, product)?);
    }
    let b = n / a;
    let apart = |g: &mut Graph, x: NodeId| {
        let x = g.reshape(x, &[&outer[..], &[a, b]].concat())?;
        swap_last(g, x)
    };
    let g = cx.graph();
    let real = apart(g, real)?;
    let imag = imag.map(|x| apart(g, x)).transpose()?;
    let [real, imag] = fourier(cx, (real, imag))?;
    let angles = waves(cx, [b, a], n, |_, _| 1.0);
    let g = cx.graph();
    let [real, imag] = turned(g, (real, Some(imag)), angles, Graph::mul)?;
    let (real, imag) = (swap_last(g, real)?, swap_last(g, imag)?);
    let [real, imag] = fourier(cx, (real, Some(imag)))?;
    let g = cx.graph();
    let mut joined = |x: NodeId| -> phalanx_graph::Result<NodeId> {
        let x = swap_last(g, x)?;
        g.reshape(x, &dims)
    };
    Ok([joined(real)?, joined(imag)?])
}

/// Products of complex values with `cosines - i · sines`.
fn turned(
    g: &mut Graph,
    (real, imag): (NodeId, Option<NodeId>),
    [cosines, sines]: [NodeId; 2],
    product: impl Fn(&mut Graph, NodeId, NodeId) -> phalanx_graph::Result<NodeId>,
) -> phalanx_graph::Result<[NodeId; 2]> {
    let (cosine, sine) = (product(g, real, cosines)?, product(g, real, sines)?);
    let Some(imag) = imag else { return Ok([cosine, g.neg(sine)?]) };
    let (of_real, of_imag) = (product(g, imag, sines)?, product(g, imag, cosines)?);
    Ok([g.add(cosine, of_real)?, g.sub(of_imag, sine)?])
}

/// The value with `len` elements on its last axis: the first ones, or zeros after all.
pub(crate) fn fit_last(g: &mut Graph, x: NodeId, len: usize) -> phalanx_graph::Result<NodeId> {
    let rank = g.ty(x).dims.len();
    let n = g.ty(x).last();
    if len <= n {
        return slice_steps(g, x, rank - 1, (0, len, 1));
    }
    let mut after = vec![0; rank];
    after[rank - 1] = len - n;
    pad(g, x, &vec![0; rank], &after, PadMode::Constant(0.0))
}

/// The `n` real samples along the last axis whose spectrum up to half of the frequencies is given.
pub(crate) fn inverse_real_fourier(
    cx: &mut LayerContext<'_>,
    [real, imag]: [NodeId; 2],
    n: usize,
) -> Result<NodeId> {
    check_length(cx, n)?;
    let g = cx.graph();
    let axis = g.ty(real).dims.len() - 1;
    let (bins, inner) = (n / 2 + 1, n.div_ceil(2) - 1);
    // The other half is the mirrored conjugate. The inverse transform is the conjugate of that of the conjugate.
    let mut whole = |x: NodeId, sign: f64| -> phalanx_graph::Result<NodeId> {
        let half = fit_last(g, x, bins)?;
        let first = g.scale(half, sign)?;
        if inner == 0 {
            return Ok(first);
        }
        let rest = slice_steps(g, half, axis, (inner, inner, -1))?;
        concat(g, &[first, rest], axis)
    };
    let (real, imag) = (whole(real, 1.0)?, whole(imag, -1.0)?);
    let [samples, _] = fourier(cx, (real, Some(imag)))?;
    Ok(cx.graph().scale(samples, 1.0 / n as f64)?)
}

/// The frames of a short-time transform.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Frames {
    /// The length of the window.
    pub length: usize,
    /// The distance of frames.
    pub stride: usize,
    /// The length of the transform, at least that of the window.
    pub fft_length: usize,
    /// The window; ones over the whole length of the transform if there is none.
    pub window: Option<SignalWindow>,
    /// Whether frames are centered: the signal is mirrored at both ends.
    pub center: bool,
}

impl Frames {
    /// Fails if the sizes do not fit.
    pub fn check(&self, cx: &LayerContext<'_>) -> Result<()> {
        for (name, size) in [("sequence_length", self.length), ("sequence_stride", self.stride)] {
            if size == 0 {
                return Err(cx.argument(name, "1 or more", size));
            }
        }
        if self.fft_length < self.length {
            let expected = format!("at least the length of the sequence, {}", self.length);
            return Err(cx.argument("fft_length", &expected, self.fft_length));
        }
        check_table(cx, "fft_length", [self.fft_length, self.bins()])
    }

    /// The number of frequencies.
    pub fn bins(&self) -> usize {
        self.fft_length / 2 + 1
    }

    /// The weights of the samples of a transform: the window in the middle.
    fn weights(&self) -> Vec<f64> {
        let Some(window) = self.window else { return vec![1.0; self.fft_length] };
        let before = (self.fft_length - self.length) / 2;
        let mut weights = vec![0.0; self.fft_length];
        weights[before..before + self.length].copy_from_slice(&window.samples(self.length, true));
        weights
    }

    /// The geometry of frames of `lines` signals of `len` samples.
    fn geometry(&self, cx: &LayerContext<'_>, lines: usize, len: usize) -> Result<ConvGeom> {
        let window = Window {
            kernel: [1, self.fft_length],
            stride: [1, self.stride],
            dilation: [1, 1],
            padding: Padding::Valid,
            groups: 1,
        };
        let geom = ConvGeom::new([lines, len, 1], self.bins(), window);
        let expected = || format!("a signal of at least {} samples", self.fft_length);
        geom.ok_or_else(|| cx.argument("input", &expected(), len))
    }

    /// The real and imaginary parts of the transform of signals `[.., samples]`: `[.., frames, bins]`.
    pub fn transform(&self, cx: &mut LayerContext<'_>, x: NodeId) -> Result<[NodeId; 2]> {
        self.check(cx)?;
        let mut dims = cx.dims(x);
        let Some(len) = dims.pop().filter(|n| *n > 0) else {
            return Err(cx.argument("input", "a signal", "no samples"));
        };
        let lines = dims.iter().product();
        let g = cx.graph();
        let mut signal = g.reshape(x, &[lines, len])?;
        if self.center {
            let half = self.fft_length / 2;
            signal = pad(g, signal, &[0, half], &[0, half], PadMode::Reflect)?;
        }
        let len = g.ty(signal).dims[1];
        let signal = g.reshape(signal, &[lines, len, 1])?;
        let geom = self.geometry(cx, lines, len)?;
        let weights = self.weights();
        let [cosines, sines] =
            waves(cx, [self.fft_length, self.bins()], self.fft_length, |t, _| weights[t]);
        let g = cx.graph();
        let dims = [&dims[..], &geom.output[1..]].concat();
        let mut part = |kernel: NodeId| -> phalanx_graph::Result<NodeId> {
            let kernel = g.reshape(kernel, &geom.kernel_dims())?;
            let y = g.push(Op::Conv(geom, Epilogue::default()), &[signal, kernel])?;
            g.reshape(y, &dims)
        };
        let (real, imag) = (part(cosines)?, part(sines)?);
        Ok([real, cx.graph().neg(imag)?])
    }

    /// The signals of spectra `[.., frames, bins]`: windowed frames are added where they overlap, and divided by the sum
    /// of the squared windows. `length` is that of the result; without it, all samples.
    pub fn inverse(
        &self,
        cx: &mut LayerContext<'_>,
        [real, imag]: [NodeId; 2],
        length: Option<usize>,
    ) -> Result<NodeId> {
        self.check(cx)?;
        let dims = cx.dims(real);
        let [outer @ .., frames, _] = &dims[..] else {
            return Err(cx.argument("x", "frames and frequencies", format!("{dims:?}")));
        };
        let (n, stride, frames) = (self.fft_length, self.stride, *frames);
        let blocks = n.div_ceil(stride);
        if frames == 0 || blocks > MAX_OVERLAP {
            let expected = format!("frames of which at most {MAX_OVERLAP} overlap");
            return Err(cx.argument("sequence_stride", &expected, stride));
        }
        let samples = inverse_real_fourier(cx, [real, imag], n)?;
        let weights = self.weights();
        let mut sums = vec![0.0f64; (frames + blocks - 1) * stride];
        for (i, sum) in (0..frames).flat_map(|f| (0..n).map(move |t| (t, f * stride + t))) {
            sums[sum] += weights[i] * weights[i];
        }
        // Without a window, Keras divides by the stride instead of the length.
        let scale = if self.window.is_some() { 1.0 } else { n as f64 / stride as f64 };
        let factors = sums.iter().map(|sum| if *sum > 1e-10 { scale / sum } else { scale });
        let factors: Vec<f32> = factors.map(|factor| factor as f32).collect();
        let window = weights.iter().map(|weight| *weight as f32).collect();
        let window = cx.constant("window", &[n], window);
        let total = factors.len();
        let factors = cx.constant("factors", &[total], factors);
        let g = cx.graph();
        let windowed = g.mul(samples, window)?;
        let padded = fit_last(g, windowed, blocks * stride)?;
        let pieces = g.reshape(padded, &[outer, &[frames, blocks, stride]].concat())?;
        let axis = outer.len();
        let mut sum: Option<NodeId> = None;
        for block in 0..blocks {
            let part = slice_steps(g, pieces, axis + 1, (block, 1, 1))?;
            let part = g.reshape(part, &[outer, &[frames, stride]].concat())?;
            let (mut before, mut after) = (vec![0; axis + 2], vec![0; axis + 2]);
            (before[axis], after[axis]) = (block, blocks - 1 - block);
            let part = pad(g, part, &before, &after, PadMode::Constant(0.0))?;
            sum = Some(sum.map_or(Ok(part), |sum| g.add(sum, part))?);
        }
        let sum = sum.unwrap_or(pieces);
        let signal = g.reshape(sum, &[outer, &[total]].concat())?;
        let signal = g.mul(signal, factors)?;
        let (len, start) = (n + stride * (frames - 1), if self.center { n / 2 } else { 0 });
        let rest = len - start;
        let kept =
            length.map_or(if self.center { rest.checked_sub(n / 2) } else { Some(rest) }, Some);
        let Some(kept) = kept.filter(|kept| (1..=rest).contains(kept)) else {
            let expected = format!("1 to {rest} samples of the signal");
            return Err(cx.argument("length", &expected, length.unwrap_or(0)));
        };
        Ok(slice_steps(cx.graph(), signal, axis, (start, kept, 1))?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn windows_are_those_of_scipy() {
        let near = |received: Vec<f64>, expected: &[f64]| {
            assert_eq!(received.len(), expected.len());
            assert!(received.iter().zip(expected).all(|(r, e)| (r - e).abs() < 1e-12));
        };
        near(SignalWindow::Hann.samples(4, true), &[0.0, 0.5, 1.0, 0.5]);
        near(SignalWindow::Hann.samples(5, false), &[0.0, 0.5, 1.0, 0.5, 0.0]);
        near(SignalWindow::Hamming.samples(3, false), &[0.08, 1.0, 0.08]);
        near(SignalWindow::Blackman.samples(4, true), &[0.0, 0.34, 1.0, 0.34]);
        near(SignalWindow::Bartlett.samples(4, true), &[0.0, 0.5, 1.0, 0.5]);
        near(SignalWindow::Boxcar.samples(2, true), &[1.0, 1.0]);
        near(SignalWindow::Hann.samples(1, true), &[1.0]);
    }
}
