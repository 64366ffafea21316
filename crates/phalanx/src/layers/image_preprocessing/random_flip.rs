//! Random flips of images with probability one half, in training; otherwise the identity. The output has the
//! shape of the input.
//!
//! With both directions, each is decided independently, as in Keras' documentation (Keras 3.15 itself flips
//! both ways or neither).

use super::super::support::DataFormat;
use super::affine::{Affine, IDENTITY, pixel_geometry, sample};
use super::{float_image, uniform};
use crate::by_name::{ByName, Named, variant_by_serde_name};
use crate::config::setters;
use crate::error::Result;
use crate::layer::{Layer, LayerContext, Outputs};
use crate::registry::keras_class;
use phalanx_graph::NodeId;
use phalanx_graph::ops::Binary;
use serde::{Deserialize, Serialize};

/// The directions in which images are flipped.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum FlipMode {
    /// Left to right.
    Horizontal,
    /// Top to bottom.
    Vertical,
    /// Either or both.
    HorizontalAndVertical,
}

impl Named for FlipMode {
    const KIND: &'static str = "mode";
    const NAMES: &'static [&'static str] = &["horizontal", "vertical", "horizontal_and_vertical"];

    fn from_name(name: &str) -> Option<FlipMode> {
        variant_by_serde_name(name)
    }
}

/// Randomly flips images in training.
///
/// ```
/// use phalanx::layer::Layer;
/// use phalanx::layers::RandomFlip;
///
/// assert_eq!(RandomFlip::new("horizontal").config()["mode"], "horizontal");
/// ```
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct RandomFlip {
    mode: ByName<FlipMode>,
    seed: Option<i64>,
    data_format: DataFormat,
}

impl Default for RandomFlip {
    fn default() -> RandomFlip {
        RandomFlip::new(FlipMode::HorizontalAndVertical)
    }
}

impl RandomFlip {
    /// `horizontal`, `vertical` or `horizontal_and_vertical`.
    pub fn new(mode: impl Into<ByName<FlipMode>>) -> RandomFlip {
        RandomFlip { mode: mode.into(), seed: None, data_format: DataFormat::ChannelsLast }
    }

    setters! {
        /// Ignored; kept for compatibility with Keras. The run's seed is used.
        seed: Option<i64>,
    }
}

impl Layer for RandomFlip {
    keras_class!("RandomFlip");

    fn call(&self, cx: &mut LayerContext<'_>, inputs: &[NodeId]) -> Result<Outputs> {
        let mode = *self.mode.get()?;
        let (x, dims) = float_image(cx, inputs)?;
        let [h, w, _] = dims;
        // x becomes w - 1 - x, and y likewise. Directions that the mode excludes have a slope of zero.
        let mut slopes = [[0.0; 6]; 2];
        if mode != FlipMode::Vertical {
            slopes[0] = [-2.0, 0.0, (w - 1) as f64, 0.0, 0.0, 0.0];
        }
        if mode != FlipMode::Horizontal {
            slopes[1] = [0.0, 0.0, 0.0, 0.0, -2.0, (h - 1) as f64];
        }
        if !cx.training() {
            return Ok(x.into());
        }
        let mut flip = || -> Result<NodeId> {
            let u = uniform(cx, &[1])?;
            let half = cx.graph().scalar(0.5);
            Ok(cx.graph().binary(Binary::Gt, half, u)?)
        };
        let flips = [flip()?, flip()?];
        let matrix = Affine { base: IDENTITY, slopes }.matrix(cx, flips)?;
        Ok(sample(cx, pixel_geometry(dims, [h, w]), x, matrix)?.into())
    }
}
