//! Zoom of images about their center by random factors, in training; otherwise the identity. The output has the
//! shape of the input.

use super::super::support::DataFormat;
use super::affine::{Affine, IDENTITY, Interpolation, SamplingOptions, sample};
use super::random_translation::{bilinear, reflect};
use super::{Factor, float_image, uniform_between};
use crate::by_name::ByName;
use crate::config::setters;
use crate::data::FillMode;
use crate::error::Result;
use crate::layer::{Layer, LayerContext, Outputs};
use crate::registry::keras_class;
use phalanx_graph::NodeId;
use serde::{Deserialize, Serialize};

/// Randomly zooms images in training.
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
    fill_mode: ByName<FillMode>,
    #[serde(default = "bilinear")]
    interpolation: ByName<Interpolation>,
    seed: Option<i64>,
    #[serde(default)]
    fill_value: f64,
    #[serde(default)]
    data_format: DataFormat,
}

impl RandomZoom {
    /// The relative change of the visible height: positive zooms out, negative zooms in. The width follows
    /// unless [`width_factor`](RandomZoom::width_factor) is set.
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

    /// The relative change of the visible width, independent of the height.
    #[must_use]
    pub fn width_factor(mut self, width_factor: impl Into<Factor>) -> RandomZoom {
        self.width_factor = Some(width_factor.into());
        self
    }

    setters! {
        /// How pixels outside the image are filled: `reflect` (the default), `constant`, `nearest` or `wrap`.
        fill_mode: impl Into<ByName<FillMode>>,
        /// `bilinear` (the default) or `nearest`.
        interpolation: impl Into<ByName<Interpolation>>,
        /// The value of `fill_mode` "constant"; defaults to 0.
        fill_value: f64,
        /// Ignored; kept for compatibility with Keras. The run's seed is used.
        seed: Option<i64>,
    }
}

/// The ends of a range, or an error if the visible size would become zero.
fn checked_ends(cx: &LayerContext<'_>, argument: &str, factor: Factor) -> Result<[f64; 2]> {
    let ends = factor.within_unit(cx, argument)?;
    if ends[0] > -1.0 { Ok(ends) } else { Err(cx.argument(argument, "numbers above -1", ends[0])) }
}

impl Layer for RandomZoom {
    keras_class!("RandomZoom");

    fn call(&self, cx: &mut LayerContext<'_>, inputs: &[NodeId]) -> Result<Outputs> {
        let height = checked_ends(cx, "height_factor", self.height_factor)?;
        let width = self.width_factor.map(|f| checked_ends(cx, "width_factor", f)).transpose()?;
        let (x, dims) = float_image(cx, inputs)?;
        let [my, mx] = [dims[0], dims[1]].map(|d| (d - 1) as f64 / 2.0);
        let Self { fill_mode, interpolation, fill_value, .. } = self;
        let reading = SamplingOptions { fill_mode, interpolation, fill_value: *fill_value };
        let geom = reading.geometry(cx, dims)?;
        // The changes of height and width.
        let (down, across) = ([0.0, 0.0, 0.0, 0.0, 1.0, -my], [1.0, 0.0, -mx, 0.0, 0.0, 0.0]);
        if !cx.training() {
            return Ok(x.into());
        }
        let base = IDENTITY;
        let vertical = uniform_between(cx, &[1], height)?;
        let matrix = match width {
            Some(width) => {
                let horizontal = uniform_between(cx, &[1], width)?;
                Affine { base, slopes: [down, across] }.matrix(cx, [vertical, horizontal])?
            }
            None => {
                let both = std::array::from_fn(|k| down[k] + across[k]);
                Affine { base, slopes: [both] }.matrix(cx, [vertical])?
            }
        };
        Ok(sample(cx, geom, x, matrix)?.into())
    }
}
