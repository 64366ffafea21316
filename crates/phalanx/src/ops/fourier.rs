//! Fourier transforms. Complex values are pairs of real and imaginary parts, as in Keras.

use super::context::{OpCall, OpContext};
use super::ops;
use crate::by_name::Named;
use crate::error::Result;
use crate::layer::Outputs;
use crate::signal::{Frames, SignalWindow, fit_last, fourier, inverse_real_fourier, swap_last};
use phalanx_graph::NodeId;
use serde_json::Value;

/// The real and imaginary parts of `x`, with at least `rank` axes besides the batch.
fn complex(cx: OpCall<'_, '_, '_>, rank: usize) -> Result<[NodeId; 2]> {
    let parts = cx.tensors("x")?;
    let [real, imag] = parts[..] else {
        return Err(cx.argument("x", "a real and an imaginary part", parts.len()));
    };
    let dims = cx.dims(real);
    if cx.dims(imag) != dims || cx.is_rows(imag) != cx.is_rows(real) {
        let received = format!("{dims:?} and {:?}", cx.dims(imag));
        return Err(cx.argument("x", "parts of the same shape", received));
    }
    check_axes(cx, real, rank)?;
    Ok([real, imag])
}

/// Fails unless a value has this many axes besides the batch, none of which is empty.
fn check_axes(cx: &OpContext<'_, '_>, x: NodeId, rank: usize) -> Result<()> {
    let dims = cx.dims(x);
    if dims.len() < rank || dims.contains(&0) {
        let expected = format!("at least {rank} axes besides the batch");
        return Err(cx.argument("x", &expected, format!("{dims:?}")));
    }
    Ok(())
}

/// The transform along the last two axes.
fn fourier_2(cx: OpCall<'_, '_, '_>, parts: [NodeId; 2]) -> Result<[NodeId; 2]> {
    let mut parts = parts;
    for _ in 0..2 {
        let [real, imag] = fourier(cx.layer(), (parts[0], Some(parts[1])))?;
        let g = cx.graph();
        parts = [swap_last(g, real)?, swap_last(g, imag)?];
    }
    Ok(parts)
}

fn fft(cx: OpCall<'_, '_, '_>) -> Result<Outputs> {
    let [real, imag] = complex(cx, 1)?;
    Ok(fourier(cx.layer(), (real, Some(imag)))?.to_vec().into())
}

fn fft2(cx: OpCall<'_, '_, '_>) -> Result<Outputs> {
    let parts = complex(cx, 2)?;
    Ok(fourier_2(cx, parts)?.to_vec().into())
}

/// The inverse is the conjugate of the transform of the conjugate, divided by the number of elements.
fn ifft2(cx: OpCall<'_, '_, '_>) -> Result<Outputs> {
    let [real, imag] = complex(cx, 2)?;
    let count: usize = cx.dims(real).iter().rev().take(2).product();
    let imag = cx.graph().neg(imag)?;
    let [real, imag] = fourier_2(cx, [real, imag])?;
    let g = cx.graph();
    let scale = 1.0 / count as f64;
    Ok(vec![g.scale(real, scale)?, g.scale(imag, -scale)?].into())
}

/// The option `fft_length`, if it is given.
fn fft_length(cx: &OpContext<'_, '_>) -> Result<Option<usize>> {
    match cx.option("fft_length") {
        Value::Null => Ok(None),
        _ => cx.size("fft_length", 1).map(Some),
    }
}

fn rfft(cx: OpCall<'_, '_, '_>) -> Result<Outputs> {
    let mut x = cx.tensor("x")?;
    check_axes(cx, x, 1)?;
    if let Some(n) = fft_length(cx)? {
        x = fit_last(cx.graph(), x, n)?;
    }
    let bins = cx.layer().ty(x).last() / 2 + 1;
    let parts = fourier(cx.layer(), (x, None))?;
    let g = cx.graph();
    Ok(vec![fit_last(g, parts[0], bins)?, fit_last(g, parts[1], bins)?].into())
}

fn irfft(cx: OpCall<'_, '_, '_>) -> Result<Outputs> {
    let parts = complex(cx, 1)?;
    let bins = cx.layer().ty(parts[0]).last();
    let n = fft_length(cx)?.unwrap_or(2 * (bins - 1));
    Ok(inverse_real_fourier(cx.layer(), parts, n)?.into())
}

fn frames(cx: &OpContext<'_, '_>) -> Result<Frames> {
    let window = cx.option("window");
    let window = match &window {
        Value::Null if cx.config_has("window") => None,
        Value::Null => Some(SignalWindow::Hann),
        name => match name.as_str().filter(|name| ["hann", "hamming"].contains(name)) {
            Some(name) => SignalWindow::from_name(name),
            None => return Err(cx.argument("window", "hann, hamming or null", name)),
        },
    };
    Ok(Frames {
        length: cx.size("sequence_length", 1)?,
        stride: cx.size("sequence_stride", 1)?,
        fft_length: cx.size("fft_length", 1)?,
        window,
        center: cx.option("center") != Value::Bool(false),
    })
}

fn stft(cx: OpCall<'_, '_, '_>) -> Result<Outputs> {
    let x = cx.tensor("x")?;
    check_axes(cx, x, 1)?;
    let frames = frames(cx)?;
    Ok(frames.transform(cx.layer(), x)?.to_vec().into())
}

fn istft(cx: OpCall<'_, '_, '_>) -> Result<Outputs> {
    let parts = complex(cx, 2)?;
    let frames = frames(cx)?;
    let length = match cx.option("length") {
        Value::Null => None,
        _ => Some(cx.size("length", 1)?),
    };
    Ok(frames.inverse(cx.layer(), parts, length)?.into())
}

ops! {
    MATH, "math";
    FFT(x) => fft,
    FFT2(x) => fft2,
    IFFT2(x) => ifft2,
    IRFFT(x) => irfft,
    ISTFT(x) => istft,
    RFFT(x) => rfft,
    STFT(x) => stft,
}
