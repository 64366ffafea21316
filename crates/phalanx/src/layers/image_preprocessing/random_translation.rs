//! Translation of images down and to the right by random fractions of their size, in training; otherwise the
//! identity. The output has the shape of the input.

use super::super::support::DataFormat;
use super::affine::{Affine, IDENTITY, Interpolation, SamplingOptions, sample};
use super::{Augmentation, Factor, augment, image_dims, uniform_between};
use crate::by_name::ByName;
use crate::config::setters;
use crate::data::FillMode;
use crate::error::Result;
use crate::layer::{Layer, LayerContext, Outputs};
use crate::registry::keras_class;
use phalanx_graph::NodeId;
use serde::{Deserialize, Serialize};

/// Randomly translates images in training.
///
/// ```
/// use phalanx::layer::Layer;
/// use phalanx::layers::RandomTranslation;
///
/// let shift = RandomTranslation::new(0.1, (-0.2, 0.2)).fill_mode("nearest");
/// assert_eq!(shift.config()["width_factor"], serde_json::json!([-0.2, 0.2]));
/// ```
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RandomTranslation {
    height_factor: Factor,
    width_factor: Factor,
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

pub(super) fn reflect() -> ByName<FillMode> {
    FillMode::Reflect.into()
}

pub(super) fn bilinear() -> ByName<Interpolation> {
    Interpolation::Bilinear.into()
}

impl RandomTranslation {
    /// The distances down and to the right, as fractions of height and width; negative for up and left.
    pub fn new(
        height_factor: impl Into<Factor>,
        width_factor: impl Into<Factor>,
    ) -> RandomTranslation {
        RandomTranslation {
            height_factor: height_factor.into(),
            width_factor: width_factor.into(),
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

impl RandomTranslation {
    fn options(&self) -> SamplingOptions<'_> {
        let Self { fill_mode, interpolation, fill_value, .. } = self;
        SamplingOptions { fill_mode, interpolation, fill_value: *fill_value }
    }
}

impl Layer for RandomTranslation {
    keras_class!("RandomTranslation");

    fn call(&self, cx: &mut LayerContext<'_>, inputs: &[NodeId]) -> Result<Outputs> {
        augment(self, cx, inputs)
    }
}

impl Augmentation for RandomTranslation {
    fn check(&self, cx: &LayerContext<'_>, dims: [usize; 3]) -> Result<()> {
        self.height_factor.within_unit(cx, "height_factor")?;
        self.width_factor.within_unit(cx, "width_factor")?;
        self.options().geometry(cx, dims).map(|_| ())
    }

    fn draw(&self, cx: &mut LayerContext<'_>, _: [usize; 3]) -> Result<Vec<NodeId>> {
        let down = uniform_between(cx, &[1], self.height_factor.ends())?;
        let right = uniform_between(cx, &[1], self.width_factor.ends())?;
        Ok(vec![down, right])
    }

    fn apply(&self, cx: &mut LayerContext<'_>, x: NodeId, drawn: &[NodeId]) -> Result<NodeId> {
        let dims = image_dims(cx, x);
        let [h, w, _] = dims.map(|d| d as f64);
        let slopes = [[0.0, 0.0, 0.0, 0.0, 0.0, -h], [0.0, 0.0, -w, 0.0, 0.0, 0.0]];
        let matrix = Affine { base: IDENTITY, slopes }.matrix(cx, [drawn[0], drawn[1]])?;
        let geom = self.options().geometry(cx, dims)?;
        sample(cx, geom, x, matrix)
    }
}
