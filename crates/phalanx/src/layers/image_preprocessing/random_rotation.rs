//! Rotation of images about their center by random angles, in training; otherwise the identity. The output has
//! the shape of the input.

use super::super::support::DataFormat;
use super::affine::{Affine, Interpolation, SamplingOptions, sample};
use super::random_translation::{bilinear, reflect};
use super::{Augmentation, Factor, augment, image_dims, uniform_between};
use crate::by_name::ByName;
use crate::config::{self, setters};
use crate::data::FillMode;
use crate::error::Result;
use crate::layer::{Layer, LayerContext, Outputs};
use phalanx_graph::NodeId;
use phalanx_graph::ops::Unary;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use std::f64::consts::TAU;

/// Randomly rotates images in training.
///
/// ```
/// use phalanx::layer::Layer;
/// use phalanx::layers::RandomRotation;
///
/// let turn = RandomRotation::new(0.1); // up to 36 degrees, either way
/// assert_eq!(turn.config()["factor"], serde_json::json!([-0.1, 0.1]));
/// ```
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RandomRotation {
    factor: Factor,
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

impl RandomRotation {
    /// The angle as a fraction of a full turn; positive is counter-clockwise.
    pub fn new(factor: impl Into<Factor>) -> RandomRotation {
        RandomRotation {
            factor: factor.into(),
            fill_mode: reflect(),
            interpolation: bilinear(),
            seed: None,
            fill_value: 0.0,
            data_format: DataFormat::ChannelsLast,
        }
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

impl RandomRotation {
    fn options(&self) -> SamplingOptions<'_> {
        let Self { fill_mode, interpolation, fill_value, .. } = self;
        SamplingOptions { fill_mode, interpolation, fill_value: *fill_value }
    }
}

impl Layer for RandomRotation {
    fn class_name(&self) -> &'static str {
        "RandomRotation"
    }

    fn config(&self) -> Map<String, Value> {
        // Keras writes both ends even for a single number.
        config::write(&RandomRotation { factor: self.factor.ends().into(), ..self.clone() })
    }

    fn call(&self, cx: &mut LayerContext<'_>, inputs: &[NodeId]) -> Result<Outputs> {
        augment(self, cx, inputs)
    }
}

impl Augmentation for RandomRotation {
    fn check(&self, cx: &LayerContext<'_>, dims: [usize; 3]) -> Result<()> {
        self.factor.within_unit(cx, "factor")?;
        self.options().geometry(cx, dims).map(|_| ())
    }

    fn draw(&self, cx: &mut LayerContext<'_>, _: [usize; 3]) -> Result<Vec<NodeId>> {
        let turns = uniform_between(cx, &[1], self.factor.ends())?;
        Ok(vec![cx.graph().scale(turns, TAU)?])
    }

    fn apply(&self, cx: &mut LayerContext<'_>, x: NodeId, drawn: &[NodeId]) -> Result<NodeId> {
        let dims = image_dims(cx, x);
        let [my, mx] = [dims[0], dims[1]].map(|d| (d - 1) as f64 / 2.0);
        // A rotation about the center, from the cosine and sine of its angle.
        let slopes = [[1.0, 0.0, -mx, 0.0, 1.0, -my], [0.0, -1.0, my, 1.0, 0.0, -mx]];
        let base = [0.0, 0.0, mx, 0.0, 0.0, my];
        let g = cx.graph();
        let (cos, sin) = (g.unary(Unary::Cos, drawn[0])?, g.unary(Unary::Sin, drawn[0])?);
        let matrix = Affine { base, slopes }.matrix(cx, [cos, sin])?;
        let geom = self.options().geometry(cx, dims)?;
        sample(cx, geom, x, matrix)
    }
}
