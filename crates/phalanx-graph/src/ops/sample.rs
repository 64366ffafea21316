//! Affine sampling of images, with one map per sample: shifts, rotations, zooms, flips and crops.
//!
//! The pixel `(x, y)` of the result is the image at `(a·x + b·y + c, d·x + e·y + f)` for the sample's
//! matrix `[a, b, c, d, e, f]`; integer coordinates are pixel centres.

use super::{Backward, Cotangents, Op, Real, need_rows, operand};
use crate::error::{GraphError, Result};
use crate::graph::Graph;
use crate::types::Type;
use std::fmt;

/// How an image `a b c d` is extended beyond its border.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum FillMode {
    /// `k k k k | a b c d | k k k k`
    Constant,
    /// `a a a a | a b c d | d d d d`
    Nearest,
    /// `d c b a | a b c d | d c b a`
    Reflect,
    /// `a b c d | a b c d | a b c d`
    Wrap,
}

impl FillMode {
    /// The pixel at `index` along an axis of `size` pixels; `None` for the constant.
    #[inline]
    pub fn pixel(self, index: i64, size: usize) -> Option<usize> {
        let n = size as i64;
        match self {
            _ if (0..n).contains(&index) => Some(index as usize),
            FillMode::Constant => None,
            FillMode::Nearest => Some(index.clamp(0, n - 1) as usize),
            FillMode::Wrap => Some(index.rem_euclid(n) as usize),
            FillMode::Reflect => {
                let i = index.rem_euclid(2 * n);
                Some(i.min(2 * n - 1 - i) as usize)
            }
        }
    }
}

/// The attributes of affine sampling and of its derivative.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct SampleGeom {
    /// The image's height, width and channels.
    pub input: [usize; 3],
    /// The result's height and width.
    pub output: [usize; 2],
    /// How the image is extended beyond its border.
    pub fill: FillMode,
    /// The fill value of [`FillMode::Constant`].
    pub fill_value: Real,
    /// Whether to interpolate between four pixels rather than take the nearest one.
    pub bilinear: bool,
}

/// Coordinates are clamped to this range, far outside of any image, so that they fit an integer.
const MAX_COORDINATE: f64 = (1u64 << 40) as f64;

impl SampleGeom {
    /// The two pixels next to a coordinate along an axis, each with its weight. Without interpolation
    /// only the first one counts; halves are rounded away from zero.
    #[inline]
    pub fn taps(&self, at: f64) -> [(i64, f64); 2] {
        let at = at.clamp(-MAX_COORDINATE, MAX_COORDINATE);
        if self.bilinear {
            let low = at.floor();
            [(low as i64, 1.0 - (at - low)), (low as i64 + 1, at - low)]
        } else {
            [(at.round() as i64, 1.0), (0, 0.0)]
        }
    }

    /// The dimensions of the result.
    pub fn output_dims(&self) -> [usize; 3] {
        [self.output[0], self.output[1], self.input[2]]
    }
}

impl fmt::Display for SampleGeom {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let how = if self.bilinear { "bilinear" } else { "nearest" };
        write!(f, "{}x{} {how}", self.output[0], self.output[1])?;
        match self.fill {
            FillMode::Constant => write!(f, " fill={}", self.fill_value.get()),
            FillMode::Nearest => f.write_str(" fill=nearest"),
            FillMode::Reflect => f.write_str(" fill=reflect"),
            FillMode::Wrap => f.write_str(" fill=wrap"),
        }
    }
}

fn need_matrix(op: &str, matrix: &Type) -> Result<()> {
    need_rows(op, matrix)?;
    if matrix.dims == [6] { Ok(()) } else { Err(operand(op, "a matrix of 6 numbers", matrix)) }
}

/// Shape rule of `AffineSample`; operands `x, matrix`.
pub fn infer(geom: &SampleGeom, x: &Type, matrix: &Type) -> Result<Type> {
    need_rows("affine_sample", x)?;
    need_matrix("affine_sample", matrix)?;
    if x.dims != geom.input || geom.input.contains(&0) {
        return Err(operand("affine_sample", format!("image {:?}", geom.input), x));
    }
    Ok(Type::rows(geom.output_dims()))
}

/// Shape rule of `AffineSampleGrad`; operands `dy, matrix`.
pub fn infer_grad(geom: &SampleGeom, dy: &Type, matrix: &Type) -> Result<Type> {
    need_rows("affine_sample_grad", dy)?;
    need_matrix("affine_sample_grad", matrix)?;
    if dy.dims != geom.output_dims() || geom.input.contains(&0) {
        return Err(operand("affine_sample_grad", format!("image {:?}", geom.output_dims()), dy));
    }
    Ok(Type::rows(geom.input))
}

/// Distributes `dy` to the sampled pixels by their weights. The matrix is not differentiable.
pub fn derivative(geom: &SampleGeom, g: &mut Graph, b: &Backward<'_>) -> Cotangents {
    if b.wanted[1] {
        let (layer, op) = (g.layer_name(b.y).into(), "affine_sample by its matrix".into());
        return Err(GraphError::NotDifferentiable { layer, op });
    }
    let dx = g.push(Op::AffineSampleGrad(*geom), &[b.dy, b.inputs[1]])?;
    Ok(vec![Some(dx), None])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fill_modes_extend_images_as_documented() {
        let line = |mode: FillMode| -> String {
            let name = |i| mode.pixel(i, 4).map_or('k', |p| ['a', 'b', 'c', 'd'][p]);
            (-6..10).map(name).collect()
        };
        assert_eq!(line(FillMode::Constant), "kkkkkkabcdkkkkkk");
        assert_eq!(line(FillMode::Nearest), "aaaaaaabcddddddd");
        assert_eq!(line(FillMode::Reflect), "cddcbaabcddcbaab");
        assert_eq!(line(FillMode::Wrap), "cdabcdabcdabcdab");
        for mode in [FillMode::Nearest, FillMode::Reflect, FillMode::Wrap] {
            for far in [-(1i64 << 41), 1 << 41] {
                assert!(mode.pixel(far, 7).is_some_and(|p| p < 7));
            }
        }
    }
}
