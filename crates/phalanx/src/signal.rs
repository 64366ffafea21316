//! Windows and Fourier transforms of signals. A transform is a product with the cosines and sines of its frequencies.

use crate::by_name::{Named, variant_by_serde_name};
use crate::error::Result;
use crate::layer::LayerContext;
use phalanx_graph::functions::layout::{PadMode, pad};
use phalanx_graph::ops::Epilogue;
use phalanx_graph::{ConvGeom, NodeId, Op, Padding, Window};
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
