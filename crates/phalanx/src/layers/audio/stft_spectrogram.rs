//! Spectrogram by a short-time Fourier transform whose waves are weights.
//!
//! Input `(batch, samples, channels)`, output `(batch, frames, channels · bins)`, or `(batch, frames, bins, channels)` with
//! `expand_dims`; likewise with the channels first. Weights: `real_kernel` and `imag_kernel` `[frame_length, 1, bins]` with
//! `bins = fft_length / 2 + 1`; modes `real` and `imag` have one of them.

use super::super::spatial::{ImageDataFormat, Padding};
use super::super::support::{shape_text, single};
use crate::by_name::{ByName, Named, OptionalByName, variant_by_serde_name};
use crate::config::setters;
use crate::error::Result;
use crate::initializers::Initializer;
use crate::layer::{Layer, LayerContext, Outputs, WeightSpec};
use crate::registry::keras_class;
use crate::signal::{SignalWindow, SpectrumScaling, SpectrumSide, check_table};
use phalanx_graph::functions::layout::{concat, slice_steps};
use phalanx_graph::functions::math::atan2;
use phalanx_graph::ops::{Binary, Epilogue, Unary};
use phalanx_graph::{ConvGeom, Graph, NodeId, Op, Window};
use serde::{Deserialize, Serialize};

/// Keras' smallest value before a logarithm.
const EPSILON: f64 = 1e-7;

/// What a spectrogram shows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum SpectrogramMode {
    /// The logarithm of the magnitude.
    Log,
    /// The magnitude.
    Magnitude,
    /// The power spectral density.
    Psd,
    /// The real part.
    Real,
    /// The imaginary part.
    Imag,
    /// The phase.
    Angle,
    /// The real and the imaginary part.
    Stft,
}

impl Named for SpectrogramMode {
    const KIND: &'static str = "mode";
    const NAMES: &'static [&'static str] =
        &["log", "magnitude", "psd", "real", "imag", "angle", "stft"];

    fn from_name(name: &str) -> Option<SpectrogramMode> {
        variant_by_serde_name(name)
    }
}

impl Named for SpectrumScaling {
    const KIND: &'static str = "scaling";
    const NAMES: &'static [&'static str] = &["density", "spectrum"];

    fn from_name(name: &str) -> Option<SpectrumScaling> {
        variant_by_serde_name(name)
    }
}

/// A spectrogram of signals.
///
/// ```
/// use phalanx::layer::Layer;
/// use phalanx::layers::STFTSpectrogram;
///
/// let layer = STFTSpectrogram::new(256).mode("magnitude").frame_step(64);
/// assert_eq!(layer.config()["frame_length"], 256);
/// ```
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct STFTSpectrogram {
    mode: ByName<SpectrogramMode>,
    frame_length: usize,
    frame_step: Option<usize>,
    fft_length: Option<usize>,
    window: OptionalByName<SignalWindow>,
    periodic: bool,
    scaling: OptionalByName<SpectrumScaling>,
    padding: ByName<Padding>,
    data_format: ByName<ImageDataFormat>,
    expand_dims: bool,
}

impl Default for STFTSpectrogram {
    fn default() -> STFTSpectrogram {
        STFTSpectrogram::new(256)
    }
}

impl STFTSpectrogram {
    /// Frames of `frame_length` samples.
    pub fn new(frame_length: usize) -> STFTSpectrogram {
        STFTSpectrogram {
            mode: SpectrogramMode::Log.into(),
            frame_length,
            frame_step: None,
            fft_length: None,
            window: SignalWindow::Hann.into(),
            periodic: false,
            scaling: SpectrumScaling::Density.into(),
            padding: Padding::Valid.into(),
            data_format: ImageDataFormat::ChannelsLast.into(),
            expand_dims: false,
        }
    }

    setters! {
        /// `log` (the default), `magnitude`, `psd`, `real`, `imag`, `angle` or `stft`.
        mode: impl Into<ByName<SpectrogramMode>>,
        /// The distance of frames; defaults to half of their length.
        frame_step: impl Into<Option<usize>>,
        /// The length of the transform; defaults to the next power of two.
        fft_length: impl Into<Option<usize>>,
        /// `hann` (the default), `hamming`, `blackman`, `bartlett` or `boxcar`.
        window: impl Into<OptionalByName<SignalWindow>>,
        /// Whether the window is periodic; defaults to false.
        periodic: bool,
        /// `density` (the default) or `spectrum`.
        scaling: impl Into<OptionalByName<SpectrumScaling>>,
        /// `valid` (the default) or `same`.
        padding: impl Into<ByName<Padding>>,
        /// `channels_last` (the default) or `channels_first`.
        data_format: impl Into<ByName<ImageDataFormat>>,
        /// Whether channels and frequencies are separate axes.
        expand_dims: bool,
    }

    /// The distance of frames and the number of frequencies.
    fn sizes(&self, cx: &LayerContext<'_>) -> Result<[usize; 2]> {
        let step = self.frame_step.unwrap_or(self.frame_length / 2);
        if step == 0 || step > self.frame_length {
            let expected = format!("from 1 to the frame_length, {}", self.frame_length);
            return Err(cx.argument("frame_step", &expected, step));
        }
        let power = || self.frame_length.checked_next_power_of_two();
        let fft = self.fft_length.or_else(power).unwrap_or(0);
        if fft < self.frame_length {
            let expected = format!("at least the frame_length, {}", self.frame_length);
            return Err(cx.argument("fft_length", &expected, fft));
        }
        check_table(cx, "frame_length", [self.frame_length, fft / 2 + 1])?;
        Ok([step, fft / 2 + 1])
    }

    /// Declares a kernel.
    fn kernel(&self, cx: &mut LayerContext<'_>, side: SpectrumSide, bins: usize) -> Result<NodeId> {
        let name = match side {
            SpectrumSide::Real => "real_kernel",
            SpectrumSide::Imag => "imag_kernel",
        };
        let (window, scaling) = (self.window.get()?, self.scaling.get()?);
        let initializer = Initializer::STFT { side, window, scaling, periodic: self.periodic };
        cx.weight(WeightSpec::new(name, &[self.frame_length, 1, bins], initializer))
    }

    /// The result from the spectra, `[channels, frames, bins]`.
    fn combined(
        &self,
        g: &mut Graph,
        mode: SpectrogramMode,
        [real, imag]: [Option<NodeId>; 2],
    ) -> phalanx_graph::Result<NodeId> {
        let (real, imag) = match (real, imag) {
            (Some(real), Some(imag)) => (real, imag),
            // `call` computes what the mode needs.
            (one, other) => return Ok(one.or(other).unwrap_or_else(|| g.scalar(0.0))),
        };
        match mode {
            SpectrogramMode::Angle => return atan2(g, imag, real),
            SpectrogramMode::Stft => return concat(g, &[real, imag], 2),
            _ => {}
        }
        let (real, imag) = (g.unary(Unary::Square, real)?, g.unary(Unary::Square, imag)?);
        let power = g.add(real, imag)?;
        let bins = g.ty(power).last();
        if mode == SpectrogramMode::Psd {
            if bins < 3 {
                return Ok(power);
            }
            // The inner frequencies occur twice in a transform.
            let inner = slice_steps(g, power, 2, (1, bins - 2, 1))?;
            let ends = vec![0, 0, 1];
            let inner = g.push(Op::Pad { before: ends.clone(), after: ends }, &[inner])?;
            return g.add(power, inner);
        }
        let least = g.scalar(EPSILON);
        let power = g.binary(Binary::Max, power, least)?;
        let magnitude = g.unary(Unary::Sqrt, power)?;
        if mode == SpectrogramMode::Magnitude {
            return Ok(magnitude);
        }
        let magnitude = g.binary(Binary::Max, magnitude, least)?;
        g.unary(Unary::Log, magnitude)
    }
}

impl Layer for STFTSpectrogram {
    keras_class!("STFTSpectrogram");

    fn call(&self, cx: &mut LayerContext<'_>, inputs: &[NodeId]) -> Result<Outputs> {
        let [step, bins] = self.sizes(cx)?;
        let mode = *self.mode.get()?;
        let padding = match self.padding.get()? {
            Padding::Valid => phalanx_graph::Padding::Valid,
            Padding::Same => phalanx_graph::Padding::Same,
            Padding::Causal => return Err(cx.argument("padding", "valid or same", "causal")),
        };
        let first = *self.data_format.get()? == ImageDataFormat::ChannelsFirst;
        let x = single(cx, inputs)?;
        if cx.dims(x).len() != 2 || cx.dims(x).contains(&0) {
            let received = shape_text(cx, x);
            return Err(cx.argument("input", "shape (batch, samples, channels)", received));
        }
        let x =
            if first { x } else { cx.graph().push(Op::Transpose { perm: vec![1, 0] }, &[x])? };
        let [channels, samples] = [cx.dims(x)[0], cx.dims(x)[1]];
        let window = Window {
            kernel: [1, self.frame_length],
            stride: [1, step],
            dilation: [1, 1],
            padding,
            groups: 1,
        };
        let geom = ConvGeom::new([channels, samples, 1], bins, window).ok_or_else(|| {
            let expected = format!("at most the number of samples, {samples}");
            cx.argument("frame_length", &expected, self.frame_length)
        })?;
        let x = cx.graph().reshape(x, &[channels, samples, 1])?;
        let mut spectrum = |side: SpectrumSide, without: SpectrogramMode| -> Result<_> {
            if mode == without {
                return Ok(None);
            }
            let kernel = self.kernel(cx, side, bins)?;
            let kernel = cx.graph().reshape(kernel, &geom.kernel_dims())?;
            let y = cx.graph().push(Op::Conv(geom, Epilogue::default()), &[x, kernel])?;
            Ok(Some(y))
        };
        let real = spectrum(SpectrumSide::Real, SpectrogramMode::Imag)?;
        let imag = spectrum(SpectrumSide::Imag, SpectrogramMode::Real)?;
        let g = cx.graph();
        let y = self.combined(g, mode, [real, imag])?;
        let [channels, frames, bins] = match g.ty(y).dims[..] {
            [channels, frames, bins] => [channels, frames, bins],
            _ => [channels, 1, bins],
        };
        let (perm, dims) = match (first, self.expand_dims) {
            (false, true) => (vec![1, 2, 0], vec![frames, bins, channels]),
            (false, false) => (vec![1, 0, 2], vec![frames, channels * bins]),
            (true, true) => (vec![0, 1, 2], vec![channels, frames, bins]),
            (true, false) => (vec![0, 2, 1], vec![channels * bins, frames]),
        };
        let y = if first && self.expand_dims { y } else { g.push(Op::Transpose { perm }, &[y])? };
        Ok(g.reshape(y, &dims)?.into())
    }
}
