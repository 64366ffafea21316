//! Resizing of images in memory.

use super::{Pixels, Samples};
use crate::error::{Error, Result};
use crate::memory;
use phalanx_graph::Tensor;

/// Maximum length of a side in pixels, before and after resizing.
const MAX_SIDE: usize = 16_384;

impl Samples {
    /// Resizes images `[n, height, width, channels]` bilinearly, with half-pixel centers. Bytes stay
    /// bytes.
    ///
    /// # Errors
    /// Samples that are not images, a size out of range, or images that do not fit into memory.
    pub fn resize(&self, height: usize, width: usize) -> Result<Samples> {
        let wrong = |argument: &str, expected: &str, received: String| {
            Error::argument("resize", argument, expected, received)
        };
        let &[n, from_height, from_width, channels] = self.dims() else {
            let received = format!("{:?}", self.dims());
            return Err(wrong("samples", "images [n, height, width, channels]", received));
        };
        let sides = [height, width, from_height, from_width];
        let size = height
            .checked_mul(width)
            .and_then(|s| s.checked_mul(n))
            .and_then(|s| s.checked_mul(channels));
        let received = || format!("{n} images of {height}x{width}");
        if !sides.iter().all(|side| (1..=MAX_SIDE).contains(side)) {
            return Err(wrong("size", "sides of 1 to 16384", received()));
        }
        let too_large = || wrong("size", "images that fit into memory", received());
        let size = size.ok_or_else(too_large)?;
        let dims = [n, height, width, channels];
        match self {
            Samples::Pixels(pixels) => {
                let mut bytes = memory::reserve(size).ok_or_else(too_large)?;
                let plain = Samples::Pixels(pixels.clone()).raw();
                plain.resample(dims, |v| bytes.push(v.round().clamp(0.0, 255.0) as u8));
                let resized = Pixels::new(dims, bytes, pixels.divisor());
                resized
                    .map(Into::into)
                    .ok_or_else(|| wrong("size", "a byte each", size.to_string()))
            }
            Samples::Tensor(_) | Samples::External(_) => {
                let mut floats = memory::reserve(size).ok_or_else(too_large)?;
                self.resample(dims, |v| floats.push(v));
                Ok(Tensor::new(dims, floats)?.into())
            }
            Samples::Text(_) => Err(wrong("samples", "images", "strings".into())),
        }
    }

    /// Passes the elements of the resized images to `put`, in order.
    fn resample(&self, [n, height, width, channels]: [usize; 4], mut put: impl FnMut(f32)) {
        let (from_height, from_width) = (self.dims()[1], self.dims()[2]);
        let (rows, columns) = (taps(from_height, height), taps(from_width, width));
        let mut image = vec![0.0; self.row_len()];
        for i in 0..n {
            self.read_row(i, &mut image);
            for (top, bottom, down) in &rows {
                for (left, right, along) in &columns {
                    for c in 0..channels {
                        let at = |y: usize, x: usize| image[(y * from_width + x) * channels + c];
                        let mix = |a: f32, b: f32, weight: f32| a + (b - a) * weight;
                        let above = mix(at(*top, *left), at(*top, *right), *along);
                        let below = mix(at(*bottom, *left), at(*bottom, *right), *along);
                        put(mix(above, below, *down));
                    }
                }
            }
        }
    }
}

/// For each output coordinate: the two nearest input coordinates, and the weight of the second.
fn taps(from: usize, to: usize) -> Vec<(usize, usize, f32)> {
    let scale = from as f64 / to as f64;
    let tap = |i: usize| {
        let at = ((i as f64 + 0.5) * scale - 0.5).clamp(0.0, (from - 1) as f64);
        let first = at.floor() as usize;
        (first, (first + 1).min(from - 1), (at - first as f64) as f32)
    };
    (0..to).map(tap).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_change_and_values_stay_between_their_neighbours() {
        let bytes = Pixels::new([1, 2, 2, 1], vec![0, 100, 200, 40], 255.0).unwrap();
        let same = Samples::from(bytes.clone()).resize(2, 2).unwrap();
        assert_eq!(same, Samples::from(bytes.clone()));
        let one = Samples::from(bytes).resize(1, 1).unwrap();
        assert_eq!(one.to_tensor().f32().unwrap(), [85.0 / 255.0]);
        let floats = Tensor::new([1, 1, 2, 2], vec![0.0, 8.0, 4.0, 0.0]).unwrap();
        let wide = Samples::from(floats).resize(1, 4).unwrap();
        assert_eq!(wide.dims(), [1, 1, 4, 2]);
        let expected = [0.0, 8.0, 1.0, 6.0, 3.0, 2.0, 4.0, 0.0];
        assert_eq!(wide.to_tensor().f32().unwrap(), expected);
    }

    #[test]
    fn errors_name_what_cannot_be_resized() {
        let message = |dims: &[usize], side| {
            let samples = Samples::from(Tensor::zeros(dims));
            samples.resize(side, side).unwrap_err().to_string()
        };
        assert!(message(&[4, 9], 2).contains("expected images"));
        assert!(message(&[1, 2, 2, 1], 0).contains("sides of 1 to 16384"));
        assert!(message(&[1, 2, 2, 1], usize::MAX).contains("sides of 1 to 16384"));
    }

    #[test]
    fn images_that_do_not_fit_into_memory_are_refused_before_they_are_made() {
        let n = 6000;
        let bytes = Samples::from(Pixels::new([n, 2, 2, 1], vec![0; n * 4], 255.0).unwrap());
        for samples in [bytes.clone(), Samples::from(bytes.to_tensor())] {
            let error = samples.resize(16_384, 16_384).unwrap_err().to_string();
            let expected =
                "expected images that fit into memory, received 6000 images of 16384x16384";
            assert!(error.contains(expected), "{error}");
        }
    }
}
