//! Shear of images along both axes by random factors, in training; otherwise the identity. The output has the shape of
//! the input.

use super::super::support::DataFormat;
use super::affine::{Affine, IDENTITY, Interpolation, SamplingOptions, sample};
use super::color::random_sign;
use super::random_translation::{bilinear, reflect};
use super::{Augmentation, Factor, augment, image_dims, uniform_between};
use crate::by_name::ByName;
use crate::config::setters;
use crate::data::FillMode;
use crate::error::Result;
use crate::layer::{Layer, LayerContext, Outputs};
use crate::registry::keras_class;
use phalanx_graph::NodeId;
use serde::{Deserialize, Serialize};

/// Randomly shears images in training.
///
/// ```
/// use phalanx::layer::Layer;
/// use phalanx::layers::RandomShear;
///
/// let shear = RandomShear::new(0.2, (0.0, 0.1));
/// assert_eq!(shear.config()["x_factor"], serde_json::json!([-0.2, 0.2]));
/// ```
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct RandomShear {
    x_factor: Factor,
    y_factor: Factor,
    fill_mode: ByName<FillMode>,
    interpolation: ByName<Interpolation>,
    seed: Option<i64>,
    fill_value: f64,
    data_format: DataFormat,
}

impl Default for RandomShear {
    fn default() -> RandomShear {
        RandomShear::new(0.0, 0.0)
    }
}

impl RandomShear {
    /// The shift of a line, or column, relative to the next one. Both have the same random sign.
    pub fn new(x_factor: impl Into<Factor>, y_factor: impl Into<Factor>) -> RandomShear {
        RandomShear {
            x_factor: x_factor.into().span(-1.0),
            y_factor: y_factor.into().span(-1.0),
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

    fn options(&self) -> SamplingOptions<'_> {
        let Self { fill_mode, interpolation, fill_value, .. } = self;
        SamplingOptions { fill_mode, interpolation, fill_value: *fill_value }
    }
}

impl Layer for RandomShear {
    keras_class!("RandomShear");

    fn call(&self, cx: &mut LayerContext<'_>, inputs: &[NodeId]) -> Result<Outputs> {
        augment(self, cx, inputs)
    }
}

impl Augmentation for RandomShear {
    fn check(&self, cx: &LayerContext<'_>, dims: [usize; 3]) -> Result<()> {
        self.x_factor.within_unit(cx, "x_factor")?;
        self.y_factor.within_unit(cx, "y_factor")?;
        self.options().geometry(cx, dims).map(|_| ())
    }

    fn draw(&self, cx: &mut LayerContext<'_>, _: [usize; 3]) -> Result<Vec<NodeId>> {
        let sign = random_sign(cx, &[1])?;
        let down = uniform_between(cx, &[1], self.y_factor.ends())?;
        let right = uniform_between(cx, &[1], self.x_factor.ends())?;
        let g = cx.graph();
        Ok(vec![g.mul(right, sign)?, g.mul(down, sign)?])
    }

    fn apply(&self, cx: &mut LayerContext<'_>, x: NodeId, drawn: &[NodeId]) -> Result<NodeId> {
        let dims = image_dims(cx, x);
        let slopes = [[0.0, 1.0, 0.0, 0.0, 0.0, 0.0], [0.0, 0.0, 0.0, 1.0, 0.0, 0.0]];
        let matrix = Affine { base: IDENTITY, slopes }.matrix(cx, [drawn[0], drawn[1]])?;
        let geom = self.options().geometry(cx, dims)?;
        sample(cx, geom, x, matrix)
    }
}
