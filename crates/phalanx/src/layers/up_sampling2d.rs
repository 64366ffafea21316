//! Upsampling of images: `(batch, h, w, c)` becomes `(batch, h · size[0], w · size[1], c)`.
//!
//! `nearest` repeats pixels; `bilinear` interpolates between their centres.

use super::support::{DataFormat, Pair, check_both_at_least_one, check_countable, image};
use crate::by_name::{ByName, Named, variant_by_serde_name};
use crate::config::setters;
use crate::error::Result;
use crate::layer::{Layer, LayerContext, Outputs};
use crate::registry::keras_class;
use phalanx_graph::{NodeId, Op};
use serde::{Deserialize, Serialize};

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

/// Upsamples an image.
///
/// ```
/// use phalanx::layer::Layer;
/// use phalanx::layers::UpSampling2D;
///
/// let up = UpSampling2D::new(2).interpolation("bilinear");
/// assert_eq!(up.config()["size"], serde_json::json!([2, 2]));
/// ```
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct UpSampling2D {
    size: Pair,
    data_format: DataFormat,
    interpolation: ByName<Interpolation>,
}

impl Default for UpSampling2D {
    fn default() -> UpSampling2D {
        UpSampling2D::new(2)
    }
}

impl UpSampling2D {
    /// The factors for height and width.
    pub fn new(size: impl Into<Pair>) -> UpSampling2D {
        UpSampling2D {
            size: size.into(),
            data_format: DataFormat::ChannelsLast,
            interpolation: Interpolation::Nearest.into(),
        }
    }

    setters! {
        /// `nearest` (the default) or `bilinear`.
        interpolation: impl Into<ByName<Interpolation>>,
    }
}

impl Layer for UpSampling2D {
    keras_class!("UpSampling2D");

    fn call(&self, cx: &mut LayerContext<'_>, inputs: &[NodeId]) -> Result<Outputs> {
        let bilinear = *self.interpolation.get()? == Interpolation::Bilinear;
        check_both_at_least_one(cx, "size", self.size)?;
        let (x, [h, w, c]) = image(cx, inputs)?;
        let Pair(size) = self.size;
        check_countable(cx, "size", &[h.checked_mul(size[0]), w.checked_mul(size[1]), Some(c)])?;
        Ok(cx.graph().push(Op::Upsample { size, bilinear }, &[x])?.into())
    }
}
