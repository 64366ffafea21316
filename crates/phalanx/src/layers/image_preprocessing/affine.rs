//! Affine maps for sampling images: the pixel `(x, y)` of the result is the image at
//! `(a·x + b·y + c, d·x + e·y + f)`.

use super::super::support::check_finite;
use crate::by_name::{ByName, Named, variant_by_serde_name};
use crate::data::FillMode;
use crate::error::Result;
use crate::layer::LayerContext;
use phalanx_graph::functions::layout::{concat, repeat_rows};
use phalanx_graph::ops::{self, SampleGeom};
use phalanx_graph::{NodeId, Op};
use serde::{Deserialize, Serialize};

/// `[a, b, c, d, e, f]` of the identity.
pub(super) const IDENTITY: [f64; 6] = [1.0, 0.0, 0.0, 0.0, 1.0, 0.0];

/// Maps that depend linearly on parameters `p`: `base + Σ pᵢ · slopesᵢ`.
#[derive(Clone, Copy, Debug)]
pub(super) struct Affine<const N: usize> {
    pub base: [f64; 6],
    pub slopes: [[f64; 6]; N],
}

impl<const N: usize> Affine<N> {
    /// Computes the matrix of each sample from its parameters, rows of one number each.
    pub fn matrix(&self, cx: &mut LayerContext<'_>, parameters: [NodeId; N]) -> Result<NodeId> {
        let g = cx.graph();
        let mut entries = vec![];
        for k in 0..6 {
            let mut entry = g.fill(self.base[k], &[1]);
            for (parameter, slope) in parameters.iter().zip(&self.slopes) {
                if slope[k] != 0.0 {
                    let part = g.scale(*parameter, slope[k])?;
                    entry = g.add(entry, part)?;
                }
            }
            entries.push(repeat_rows(g, entry, parameters[0])?);
        }
        Ok(concat(g, &entries, 0)?)
    }
}

/// The interpolation of new pixels.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Interpolation {
    /// The nearest pixel.
    Nearest,
    /// Linear interpolation of the four surrounding pixels.
    Bilinear,
}

impl Named for Interpolation {
    const KIND: &'static str = "interpolation";
    const NAMES: &'static [&'static str] = &["nearest", "bilinear"];

    fn from_name(name: &str) -> Option<Interpolation> {
        variant_by_serde_name(name)
    }
}

/// Interpolation and fill mode of the geometric layers, with Keras' names.
pub(super) struct SamplingOptions<'a> {
    pub fill_mode: &'a ByName<FillMode>,
    pub interpolation: &'a ByName<Interpolation>,
    pub fill_value: f64,
}

impl SamplingOptions<'_> {
    /// The sampling attributes for an image that keeps its size.
    pub fn geometry(&self, cx: &LayerContext<'_>, input: [usize; 3]) -> Result<SampleGeom> {
        check_finite(cx, "fill_value", self.fill_value)?;
        let fill = match self.fill_mode.get()? {
            FillMode::Constant => ops::FillMode::Constant,
            FillMode::Nearest => ops::FillMode::Nearest,
            FillMode::Reflect => ops::FillMode::Reflect,
            FillMode::Wrap => ops::FillMode::Wrap,
        };
        let bilinear = *self.interpolation.get()? == Interpolation::Bilinear;
        let fill_value = self.fill_value.into();
        Ok(SampleGeom { input, output: [input[0], input[1]], fill, fill_value, bilinear })
    }
}

/// The sampling attributes of a map from pixels to pixels inside the image.
pub(super) fn pixel_geometry(input: [usize; 3], output: [usize; 2]) -> SampleGeom {
    let fill = ops::FillMode::Nearest;
    SampleGeom { input, output, fill, fill_value: 0.0.into(), bilinear: false }
}

/// Samples each image through its own matrix.
pub(super) fn sample(
    cx: &mut LayerContext<'_>,
    geom: SampleGeom,
    x: NodeId,
    matrix: NodeId,
) -> Result<NodeId> {
    Ok(cx.graph().push(Op::AffineSample(geom), &[x, matrix])?)
}
