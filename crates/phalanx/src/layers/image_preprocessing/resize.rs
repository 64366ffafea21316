//! Resizing as in `jax.image.resize`. Every new row is a weighted sum of old rows, and every new column of old
//! columns, so resizing consists of two products with weight matrices.

use crate::by_name::{Named, variant_by_serde_name};
use crate::error::Result;
use crate::layer::LayerContext;
use phalanx_graph::ops::Epilogue;
use phalanx_graph::{NodeId, Op};
use serde::{Deserialize, Serialize};
use std::f64::consts::PI;

/// The interpolation of a resized image.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Resampling {
    /// The nearest pixel.
    Nearest,
    /// Linear interpolation between two pixels.
    Bilinear,
    /// Keys' cubic interpolation of four pixels.
    Bicubic,
    /// Lanczos interpolation of six pixels.
    Lanczos3,
    /// Lanczos interpolation of ten pixels.
    Lanczos5,
}

impl Named for Resampling {
    const KIND: &'static str = "interpolation";
    const NAMES: &'static [&'static str] =
        &["nearest", "bilinear", "bicubic", "lanczos3", "lanczos5"];

    fn from_name(name: &str) -> Option<Resampling> {
        variant_by_serde_name(name)
    }
}

impl Resampling {
    /// The kernel: the weight of a pixel at distance `x`.
    fn kernel(self, x: f64) -> f64 {
        let lanczos = |radius: f64| match x {
            _ if x > radius => 0.0,
            _ if x > 1e-3 => radius * (PI * x).sin() * (PI * x / radius).sin() / (PI * x * PI * x),
            _ => 1.0,
        };
        match self {
            Resampling::Nearest | Resampling::Bilinear => (1.0 - x).max(0.0),
            Resampling::Bicubic if x >= 2.0 => 0.0,
            Resampling::Bicubic if x >= 1.0 => ((-0.5 * x + 2.5) * x - 4.0) * x + 2.0,
            Resampling::Bicubic => (1.5 * x - 2.5) * x * x + 1.0,
            Resampling::Lanczos3 => lanczos(3.0),
            Resampling::Lanczos5 => lanczos(5.0),
        }
    }
}

/// How one axis of an image is resampled.
#[derive(Clone, Copy, Debug)]
pub(crate) struct AxisSampling {
    /// The interpolation.
    pub resampling: Resampling,
    /// Whether a smaller image is smoothed first.
    pub antialias: bool,
    /// The size of the result.
    pub size: usize,
    /// A point at `x`, counted from the border, moves to `x · scale + translation`.
    pub scale: f64,
    pub translation: f64,
}

impl AxisSampling {
    /// The weights of `from` pixels for pixel `at` of the result. All are zero for a point outside of the image.
    fn weights(&self, from: usize, at: usize) -> Vec<f64> {
        if self.resampling == Resampling::Nearest {
            let nearest = (2 * at + 1) * from / (2 * self.size);
            return (0..from).map(|k| f64::from(u8::from(k == nearest))).collect();
        }
        let step = 1.0 / self.scale;
        let width = if self.antialias { step.max(1.0) } else { 1.0 };
        let center = (at as f64 + 0.5 - self.translation) * step - 0.5;
        let kernel = |k: usize| self.resampling.kernel((center - k as f64).abs() / width);
        let raw: Vec<f64> = (0..from).map(kernel).collect();
        // Near the border, part of the kernel lies outside.
        let total: f64 = raw.iter().sum();
        let inside = (-0.5 - EDGE..=from as f64 - 0.5 + EDGE).contains(&center);
        if !inside || total.abs() <= 1000.0 * f64::from(f32::EPSILON) {
            return vec![0.0; from];
        }
        raw.into_iter().map(|w| w / total).collect()
    }

    /// The image with an axis resampled: a product with a matrix of weights.
    pub fn along(
        &self,
        cx: &mut LayerContext<'_>,
        x: NodeId,
        axis: usize,
        argument: &'static str,
    ) -> Result<NodeId> {
        let (from, to) = (cx.dims(x)[axis], self.size);
        if from.checked_mul(to).is_none_or(|n| n > MAX_WEIGHTS) {
            let expected = format!("at most {MAX_WEIGHTS} when multiplied with the input's {from}");
            return Err(cx.argument(argument, &expected, to));
        }
        let mut weights = vec![0.0; from * to];
        for at in 0..to {
            let column = self.weights(from, at);
            column.iter().enumerate().for_each(|(k, w)| weights[k * to + at] = *w as f32);
        }
        let weights = cx.constant(argument, &[from, to], weights);
        let rank = cx.dims(x).len();
        let mut perm: Vec<usize> = (0..rank).collect();
        perm.swap(axis, rank - 1);
        let g = cx.graph();
        let x = g.push(Op::Transpose { perm: perm.clone() }, &[x])?;
        let y = g.push(Op::Dot(Epilogue::default()), &[x, weights])?;
        Ok(g.push(Op::Transpose { perm }, &[y])?)
    }
}

/// The maximum number of weights of a matrix: 8192 by 8192 pixels.
const MAX_WEIGHTS: usize = 1 << 26;

/// A point this far outside of an image counts as its border: positions are rounded.
const EDGE: f64 = 1e-6;

/// Resizes an image.
pub(in crate::layers) fn resize(
    cx: &mut LayerContext<'_>,
    x: NodeId,
    size: [usize; 2],
    resampling: Resampling,
    antialias: bool,
) -> Result<NodeId> {
    let mut y = x;
    for (axis, argument) in [(1, "width"), (0, "height")] {
        let (from, size) = (cx.dims(y)[axis], size[axis]);
        if from != size {
            let scale = size as f64 / from as f64;
            let how = AxisSampling { resampling, antialias, size, scale, translation: 0.0 };
            y = how.along(cx, y, axis, argument)?;
        }
    }
    Ok(y)
}

/// A length scaled by the ratio `to / of`, truncated to whole pixels.
pub(super) fn scaled_length(length: usize, of: usize, to: usize) -> usize {
    (length as f64 * of as f64 / to as f64) as usize
}

/// Start and size of the largest centered window with the aspect ratio of `size`.
pub(super) fn aspect_window([h, w]: [usize; 2], size: [usize; 2]) -> ([usize; 2], [usize; 2]) {
    let height = scaled_length(w, size[0], size[1]).min(h).max(1);
    let width = scaled_length(h, size[1], size[0]).min(w).max(1);
    ([(h - height) / 2, (w - width) / 2], [height, width])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn weights_add_up_to_one() {
        use Resampling::*;
        for how in [Nearest, Bilinear, Bicubic, Lanczos3, Lanczos5] {
            for (from, to) in [(1, 5), (5, 1), (7, 3), (3, 7), (64, 63)] {
                let scale = to as f64 / from as f64;
                for (at, antialias) in (0..to).flat_map(|at| [(at, false), (at, true)]) {
                    let (resampling, translation) = (how, 0.0);
                    let axis = AxisSampling { resampling, antialias, size: to, scale, translation };
                    let sum: f64 = axis.weights(from, at).iter().sum();
                    assert!((sum - 1.0).abs() < 1e-12, "{how:?} {from} {to}: {sum}");
                }
            }
        }
    }

    #[test]
    fn the_window_is_the_largest_of_its_proportions() {
        assert_eq!(aspect_window([340, 500], [200, 200]), ([0, 80], [340, 340]));
        assert_eq!(aspect_window([10, 4], [1, 2]), ([4, 0], [2, 4]));
        assert_eq!(aspect_window([1, 9], [9, 1]), ([0, 4], [1, 1]));
    }
}
