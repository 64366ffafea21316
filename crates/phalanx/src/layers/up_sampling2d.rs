//! Enlarges an image: `(batch, h, w, c)` becomes `(batch, h · size[0], w · size[1], c)`.
//!
//! `nearest` repeats pixels; `bilinear` interpolates between their centres.

use super::support::{DataFormat, Pair, both_at_least_one, countable, image, setters};
use crate::choice::{Choice, Vocabulary, by_serde_name};
use crate::config;
use crate::error::Result;
use crate::layer::{Layer, LayerContext};
use phalanx_graph::{NodeId, Op};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

/// How new pixels are made.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Interpolation {
    /// By repeating the nearest.
    Nearest,
    /// From the four around.
    Bilinear,
}

impl Vocabulary for Interpolation {
    const KIND: &'static str = "interpolation";
    const NAMES: &'static [&'static str] = &["nearest", "bilinear"];

    fn from_name(name: &str) -> Option<Interpolation> {
        by_serde_name(name)
    }
}

/// Enlarges an image.
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
    interpolation: Choice<Interpolation>,
}

impl Default for UpSampling2D {
    fn default() -> UpSampling2D {
        UpSampling2D::new(2)
    }
}

impl UpSampling2D {
    /// How many times as high and wide.
    pub fn new(size: impl Into<Pair>) -> UpSampling2D {
        UpSampling2D {
            size: size.into(),
            data_format: DataFormat::ChannelsLast,
            interpolation: Interpolation::Nearest.into(),
        }
    }

    setters! {
        /// `nearest` (unless set) or `bilinear`.
        interpolation: impl Into<Choice<Interpolation>>,
    }
}

impl Layer for UpSampling2D {
    fn class_name(&self) -> &'static str {
        "UpSampling2D"
    }

    fn config(&self) -> Map<String, Value> {
        config::write(self)
    }

    fn call(&self, cx: &mut LayerContext<'_>, inputs: &[NodeId]) -> Result<NodeId> {
        let bilinear = *self.interpolation.get()? == Interpolation::Bilinear;
        both_at_least_one(cx, "size", self.size)?;
        let (x, [h, w, c]) = image(cx, inputs)?;
        let Pair(size) = self.size;
        countable(cx, "size", &[h.checked_mul(size[0]), w.checked_mul(size[1]), Some(c)])?;
        Ok(cx.graph().push(Op::Upsample { size, bilinear }, &[x])?)
    }
}
