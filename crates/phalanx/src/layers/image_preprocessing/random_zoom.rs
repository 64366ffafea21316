//! Zooms images about their middle by random factors, in training; otherwise the identity. The output
//! has the input's shape.

use super::super::support::{DataFormat, setters};
use super::super::up_sampling2d::Interpolation;
use super::affine::{Affine, IDENTITY, Reading};
use super::random_translation::{bilinear, reflect};
use super::{Factor, float_image};
use crate::choice::Choice;
use crate::config;
use crate::data::FillMode;
use crate::error::Result;
use crate::layer::{Layer, LayerContext};
use phalanx_graph::NodeId;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

/// Zooms images at random in training.
///
/// ```
/// use phalanx::layer::Layer;
/// use phalanx::layers::RandomZoom;
///
/// let out = RandomZoom::new((0.2, 0.3)); // height and width shown are 120% to 130%
/// assert_eq!(out.config()["height_factor"], serde_json::json!([0.2, 0.3]));
/// ```
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RandomZoom {
    height_factor: Factor,
    width_factor: Option<Factor>,
    #[serde(default = "reflect")]
    fill_mode: Choice<FillMode>,
    #[serde(default = "bilinear")]
    interpolation: Choice<Interpolation>,
    seed: Option<i64>,
    #[serde(default)]
    fill_value: f64,
    #[serde(default)]
    data_format: DataFormat,
}

impl RandomZoom {
    /// How much more of the height is shown: positive zooms out, negative in. The width follows,
    /// unless it has its own [`width_factor`](RandomZoom::width_factor).
    pub fn new(height_factor: impl Into<Factor>) -> RandomZoom {
        RandomZoom {
            height_factor: height_factor.into(),
            width_factor: None,
            fill_mode: reflect(),
            interpolation: bilinear(),
            seed: None,
            fill_value: 0.0,
            data_format: DataFormat::ChannelsLast,
        }
    }

    /// How much more of the width is shown, apart from the height.
    #[must_use]
    pub fn width_factor(mut self, width_factor: impl Into<Factor>) -> RandomZoom {
        self.width_factor = Some(width_factor.into());
        self
    }

    setters! {
        /// What comes in: `reflect` (unless set), `constant`, `nearest` or `wrap`.
        fill_mode: impl Into<Choice<FillMode>>,
        /// `bilinear` (unless set) or `nearest`.
        interpolation: impl Into<Choice<Interpolation>>,
        /// The value of `fill_mode` "constant"; 0 unless set.
        fill_value: f64,
        /// Kept for Keras; the run's seed decides.
        seed: Option<i64>,
    }
}

/// The ends of a range, none of which may shrink what is shown to nothing.
fn shown(cx: &LayerContext<'_>, argument: &str, factor: Factor) -> Result<[f64; 2]> {
    let ends = factor.within_one(cx, argument)?;
    if ends[0] > -1.0 { Ok(ends) } else { Err(cx.argument(argument, "numbers above -1", ends[0])) }
}

impl Layer for RandomZoom {
    fn class_name(&self) -> &'static str {
        "RandomZoom"
    }

    fn config(&self) -> Map<String, Value> {
        config::write(self)
    }

    fn call(&self, cx: &mut LayerContext<'_>, inputs: &[NodeId]) -> Result<NodeId> {
        let height = shown(cx, "height_factor", self.height_factor)?;
        let width = self.width_factor.map(|f| shown(cx, "width_factor", f)).transpose()?;
        let (x, dims) = float_image(cx, inputs)?;
        let [my, mx] = [dims[0], dims[1]].map(|d| (d - 1) as f64 / 2.0);
        let Self { fill_mode, interpolation, fill_value, .. } = self;
        let reading = Reading { fill_mode, interpolation, fill_value: *fill_value };
        let geom = reading.geometry(cx, dims)?;
        // By how much the height, and the width, differ from what they were.
        let (down, across) = ([0.0, 0.0, 0.0, 0.0, 1.0, -my], [1.0, 0.0, -mx, 0.0, 0.0, 0.0]);
        let base = IDENTITY;
        match width {
            Some(width) => {
                let slopes = [down, across];
                Affine { base, slopes }.at_random(cx, geom, x, [height, width])
            }
            None => {
                let both = std::array::from_fn(|k| down[k] + across[k]);
                Affine { base, slopes: [both] }.at_random(cx, geom, x, [height])
            }
        }
    }
}
