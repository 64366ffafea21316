//! Mel spectrogram: the spectrum of frames, gathered in bands that are evenly spaced to the ear.
//!
//! Input `(batch, samples)`, output `(batch, num_mel_bins, frames)`. No weights. As in Keras, `top_db` counts from the
//! highest value of the whole batch; derivatives take that value as given.

use super::super::support::{check_at_least_one, check_finite, single};
use crate::by_name::OptionalByName;
use crate::config::{self, setters};
use crate::error::Result;
use crate::layer::{Layer, LayerContext, Outputs};
use crate::registry::Config;
use crate::signal::{Frames, SignalWindow, check_table};
use phalanx_graph::functions::index::max_axes;
use phalanx_graph::ops::{Binary, Epilogue, Unary};
use phalanx_graph::{DType, Graph, NodeId, Op, Scope};
use serde::{Deserialize, Serialize};
use std::f64::consts::LN_10;

/// A spectrogram in mel bands.
///
/// ```
/// use phalanx::layer::Layer;
/// use phalanx::layers::MelSpectrogram;
///
/// let layer = MelSpectrogram::new().num_mel_bins(64).sampling_rate(8000);
/// assert_eq!(layer.config()["num_mel_bins"], 64);
/// ```
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
// The fields are Keras' arguments. serde cannot flatten groups of them and also reject unknown keys.
pub struct MelSpectrogram {
    fft_length: usize,
    sequence_stride: usize,
    sequence_length: Option<usize>,
    window: OptionalByName<SignalWindow>,
    sampling_rate: f64,
    num_mel_bins: usize,
    min_freq: f64,
    max_freq: Option<f64>,
    power_to_db: bool,
    top_db: f64,
    mag_exp: f64,
    min_power: f64,
    ref_power: f64,
}

impl Default for MelSpectrogram {
    fn default() -> MelSpectrogram {
        MelSpectrogram::new()
    }
}

/// Hertz as mel.
fn mel(hertz: f64) -> f64 {
    1127.0 * (1.0 + hertz / 700.0).ln()
}

impl MelSpectrogram {
    /// 128 bands of transforms of 2048 samples.
    pub fn new() -> MelSpectrogram {
        MelSpectrogram {
            fft_length: 2048,
            sequence_stride: 512,
            sequence_length: Some(2048),
            window: SignalWindow::Hann.into(),
            sampling_rate: 16000.0,
            num_mel_bins: 128,
            min_freq: 20.0,
            max_freq: Some(8000.0),
            power_to_db: true,
            top_db: 80.0,
            mag_exp: 2.0,
            min_power: 1e-10,
            ref_power: 1.0,
        }
    }

    /// The length of the transform and of the window.
    #[must_use]
    pub fn fft_length(mut self, fft_length: usize) -> MelSpectrogram {
        self.fft_length = fft_length;
        self.sequence_length = Some(fft_length);
        self
    }

    /// The number of samples per second. The highest frequency becomes half of it.
    #[must_use]
    pub fn sampling_rate(mut self, sampling_rate: u32) -> MelSpectrogram {
        self.sampling_rate = f64::from(sampling_rate);
        self.max_freq = Some(f64::from(sampling_rate / 2));
        self
    }

    setters! {
        /// The distance of frames; defaults to 512.
        sequence_stride: usize,
        /// The length of the window; defaults to that of the transform.
        sequence_length: impl Into<Option<usize>>,
        /// `hann` (the default) or `hamming`.
        window: impl Into<OptionalByName<SignalWindow>>,
        /// The number of bands; defaults to 128.
        num_mel_bins: usize,
        /// The lowest frequency; defaults to 20.
        min_freq: f64,
        /// The highest frequency; defaults to half of the sampling rate.
        max_freq: impl Into<Option<f64>>,
        /// Whether to convert to decibels; defaults to true.
        power_to_db: bool,
        /// The range of decibels below the highest one; defaults to 80.
        top_db: f64,
        /// The exponent of the magnitudes; defaults to 2.
        mag_exp: f64,
        /// The smallest power; defaults to 1e-10.
        min_power: f64,
        /// The power of 0 decibels; defaults to 1.
        ref_power: f64,
    }

    /// The weights of frequencies in bands, `[bins, num_mel_bins]`.
    fn bands(&self, bins: usize) -> Vec<f32> {
        let (low, high) =
            (mel(self.min_freq), mel(self.max_freq.unwrap_or(self.sampling_rate / 2.0)));
        let edge = |i: usize| low + (high - low) * i as f64 / (self.num_mel_bins + 1) as f64;
        let mut weights = vec![0.0; bins * self.num_mel_bins];
        // The band of frequency 0 stays empty.
        for bin in 1..bins {
            let at = mel(self.sampling_rate / 2.0 * bin as f64 / (bins - 1) as f64);
            for band in 0..self.num_mel_bins {
                let [start, center, end] = [0, 1, 2].map(|i| edge(band + i));
                let rise = (at - start) / (center - start);
                let fall = (end - at) / (end - center);
                weights[bin * self.num_mel_bins + band] = rise.min(fall).max(0.0) as f32;
            }
        }
        weights
    }

    /// Power as decibels above the reference, at most `top_db` below the highest of the batch.
    fn decibels(&self, g: &mut Graph, power: NodeId) -> phalanx_graph::Result<NodeId> {
        let least = g.scalar(self.min_power);
        let power = g.binary(Binary::Max, power, least)?;
        let log = g.unary(Unary::Log, power)?;
        let db = g.scale(log, 10.0 / LN_10)?;
        let db = g.offset(db, -10.0 * self.ref_power.abs().max(self.min_power).log10())?;
        let highest = max_axes(g, db, &[0, 1])?;
        let highest = g.reshape(highest, &[])?;
        let lowest = 10.0 * (self.min_power / self.ref_power.abs().max(self.min_power)).log10();
        let highest = batch_maximum(g, highest, [lowest, lowest + MAX_DECIBELS])?;
        let floor = g.offset(highest, -self.top_db)?;
        g.binary(Binary::Max, db, floor)
    }
}

/// More decibels than there are between any two powers of 32-bit floats.
const MAX_DECIBELS: f64 = 1024.0;

/// Halvings of an interval until its ends are neighbours as 32-bit floats.
const HALVINGS: usize = 26;

/// The largest of a number per sample over the whole batch, which lies between bounds. Sums over samples are all that
/// devices exchange, so the interval of the maximum is halved by counting what lies above its middle.
fn batch_maximum(g: &mut Graph, x: NodeId, [low, high]: [f64; 2]) -> phalanx_graph::Result<NodeId> {
    let dtype = g.ty(x).dtype;
    let x = g.push(Op::Cast { dtype }, &[x])?;
    let (mut low, mut high) = (g.scalar(low - 1.0), g.scalar(high));
    let sum = |g: &mut Graph, rows: NodeId| -> phalanx_graph::Result<NodeId> {
        let partial = g.push(Op::SumRows, &[rows])?;
        g.push(Op::AllReduce { scope: Scope::All }, &[partial])
    };
    for _ in 0..HALVINGS {
        let both = g.add(low, high)?;
        let middle = g.scale(both, 0.5)?;
        let above = g.binary(Binary::Gt, x, middle)?;
        let count = sum(g, above)?;
        low = g.select(count, middle, low)?;
        high = g.select(count, high, middle)?;
    }
    // The mean of those above the lower end, which are equal but for rounding.
    let zero = g.scalar(0.0);
    let above = g.binary(Binary::Gt, x, low)?;
    let kept = g.select(above, x, zero)?;
    let (count, total) = (sum(g, above)?, sum(g, kept)?);
    let mean = g.div(total, count)?;
    g.select(count, mean, low)
}

impl Layer for MelSpectrogram {
    fn class_name(&self) -> &'static str {
        "MelSpectrogram"
    }

    fn config(&self) -> Config {
        // Keras writes the lengths and frequencies that follow from others.
        let half = (self.sampling_rate / 2.0).trunc();
        config::write(&MelSpectrogram {
            sequence_length: self.sequence_length.or(Some(self.fft_length)),
            max_freq: self.max_freq.or(Some(half)),
            ..self.clone()
        })
    }

    fn call(&self, cx: &mut LayerContext<'_>, inputs: &[NodeId]) -> Result<Outputs> {
        check_at_least_one(cx, "num_mel_bins", self.num_mel_bins)?;
        let numbers = [
            ("sampling_rate", self.sampling_rate),
            ("min_freq", self.min_freq),
            ("max_freq", self.max_freq.unwrap_or(0.0)),
            ("top_db", self.top_db),
            ("mag_exp", self.mag_exp),
            ("ref_power", self.ref_power),
            ("min_power", self.min_power),
        ];
        for (argument, number) in numbers {
            check_finite(cx, argument, number)?;
        }
        if self.min_power <= 0.0 {
            return Err(cx.argument("min_power", "a number above 0", self.min_power));
        }
        let frames = Frames {
            length: self.sequence_length.unwrap_or(self.fft_length),
            stride: self.sequence_stride,
            fft_length: self.fft_length,
            window: self.window.get()?,
            center: true,
        };
        let x = single(cx, inputs)?;
        if cx.dims(x).len() != 1 {
            let received = super::super::support::shape_text(cx, x);
            return Err(cx.argument("input", "shape (batch, samples)", received));
        }
        let x = cx.graph().cast(x, DType::F32)?;
        let spectrum = frames.transform(cx, x)?;
        check_table(cx, "num_mel_bins", [self.num_mel_bins, frames.bins()])?;
        let bands = self.bands(frames.bins());
        let bands = cx.constant("bands", &[frames.bins(), self.num_mel_bins], bands);
        let g = cx.graph();
        let [real, imag] =
            [g.unary(Unary::Square, spectrum[0])?, g.unary(Unary::Square, spectrum[1])?];
        let power = g.add(real, imag)?;
        let power = match self.mag_exp {
            2.0 => power,
            exponent => {
                let half = g.scalar(exponent / 2.0);
                g.binary(Binary::Pow, power, half)?
            }
        };
        let mut y = g.push(Op::Dot(Epilogue::default()), &[power, bands])?;
        if self.power_to_db {
            y = self.decibels(g, y)?;
        }
        Ok(g.push(Op::Transpose { perm: vec![1, 0] }, &[y])?.into())
    }
}
