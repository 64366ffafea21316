//! Elastic deformation of images by smoothed noise, in training; otherwise the identity. The output has the shape of
//! the input.
//!
//! Pixel `(x, y)` is the image at `(x + a · d, y + a · d)`, where `d` is normal noise, smoothed by a Gaussian. As in
//! Keras, the noise is the same in both directions.

use super::super::noise::normal;
use super::super::support::{DataFormat, check_finite};
use super::affine::Interpolation;
use super::random_translation::bilinear;
use super::{Augmentation, Factor, augment, bytes, chance, check_value_range, uniform_between};
use crate::by_name::{ByName, Named, variant_by_serde_name};
use crate::config::setters;
use crate::error::Result;
use crate::layer::{Layer, LayerContext, Outputs};
use crate::registry::keras_class;
use phalanx_graph::NodeId;
use phalanx_graph::functions::image::{Elastic, Extension, elastic};
use serde::{Deserialize, Serialize};

/// How an elastic deformation fills points outside of an image.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ElasticFillMode {
    /// A constant: `kkkk|abcd|kkkk`.
    Constant,
    /// The nearest pixel: `aaaa|abcd|dddd`.
    Nearest,
    /// The repeated image: `abcd|abcd|abcd`.
    Wrap,
    /// The image mirrored at its outer pixels: `dcb|abcd|cba`.
    Mirror,
    /// The mirrored image: `dcba|abcd|dcba`.
    Reflect,
}

impl Named for ElasticFillMode {
    const KIND: &'static str = "fill_mode";
    const NAMES: &'static [&'static str] = &["constant", "nearest", "wrap", "mirror", "reflect"];

    fn from_name(name: &str) -> Option<ElasticFillMode> {
        variant_by_serde_name(name)
    }
}

impl ElasticFillMode {
    /// The continuation of the image.
    pub(crate) fn extension(self, fill_value: f64) -> Extension {
        match self {
            ElasticFillMode::Constant => Extension::Constant(fill_value),
            ElasticFillMode::Nearest => Extension::Nearest,
            ElasticFillMode::Wrap => Extension::Wrap,
            ElasticFillMode::Mirror => Extension::Mirror,
            ElasticFillMode::Reflect => Extension::Reflect,
        }
    }
}

/// Randomly deforms images in training.
///
/// ```
/// use phalanx::layer::Layer;
/// use phalanx::layers::RandomElasticTransform;
///
/// let elastic = RandomElasticTransform::new(0.5).scale(0.8);
/// assert_eq!(elastic.config()["scale"], serde_json::json!([0.0, 0.8]));
/// ```
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct RandomElasticTransform {
    factor: Factor,
    scale: Factor,
    interpolation: ByName<Interpolation>,
    fill_mode: ByName<ElasticFillMode>,
    fill_value: f64,
    value_range: (f64, f64),
    seed: Option<i64>,
    data_format: DataFormat,
}

impl Default for RandomElasticTransform {
    fn default() -> RandomElasticTransform {
        RandomElasticTransform::new(1.0)
    }
}

impl RandomElasticTransform {
    /// The range from which the probability is drawn; one number stands for 0 up to it.
    pub fn new(factor: impl Into<Factor>) -> RandomElasticTransform {
        RandomElasticTransform {
            factor: factor.into().span(0.0),
            scale: Factor::Ends([0.0, 1.0]),
            interpolation: bilinear(),
            fill_mode: ElasticFillMode::Reflect.into(),
            fill_value: 0.0,
            value_range: bytes(),
            seed: None,
            data_format: DataFormat::ChannelsLast,
        }
    }

    /// The strength of the deformation, from 0 to 1; one number stands for 0 up to it.
    #[must_use]
    pub fn scale(mut self, scale: impl Into<Factor>) -> RandomElasticTransform {
        self.scale = scale.into().span(0.0);
        self
    }

    setters! {
        /// `bilinear` (the default) or `nearest`.
        interpolation: impl Into<ByName<Interpolation>>,
        /// How pixels outside the image are filled: `reflect` (the default), `mirror`, `constant`, `nearest` or
        /// `wrap`.
        fill_mode: impl Into<ByName<ElasticFillMode>>,
        /// The value of `fill_mode` "constant"; defaults to 0.
        fill_value: f64,
        /// The minimum and maximum pixel values; default to 0 and 255.
        value_range: (f64, f64),
        /// Ignored; kept for compatibility with Keras. The run's seed is used.
        seed: Option<i64>,
    }

    /// Whether the layer never changes an image.
    fn idle(&self) -> bool {
        self.factor.span(0.0).ends()[1] == 0.0 || self.scale.span(0.0).ends()[1] == 0.0
    }
}

impl Layer for RandomElasticTransform {
    keras_class!("RandomElasticTransform");

    fn call(&self, cx: &mut LayerContext<'_>, inputs: &[NodeId]) -> Result<Outputs> {
        augment(self, cx, inputs)
    }
}

/// The largest image along an axis: smoothing multiplies with a matrix of that size.
const MAX_SIDE: usize = 1 << 12;

impl Augmentation for RandomElasticTransform {
    fn check(&self, cx: &LayerContext<'_>, dims: [usize; 3]) -> Result<()> {
        self.factor.within(cx, "factor", [0.0, 1.0])?;
        self.scale.within(cx, "scale", [0.0, 1.0])?;
        self.interpolation.get()?;
        self.fill_mode.get()?;
        check_finite(cx, "fill_value", self.fill_value)?;
        if dims[..2].iter().any(|n| *n > MAX_SIDE) {
            let expected = format!("an image of at most {MAX_SIDE} pixels along an axis");
            return Err(cx.argument("input", &expected, format!("{:?}", &dims[..2])));
        }
        check_value_range(cx, self.value_range)
    }

    fn draw(
        &self,
        cx: &mut LayerContext<'_>,
        [height, width, _]: [usize; 3],
    ) -> Result<Vec<NodeId>> {
        if self.idle() {
            return Ok(vec![]);
        }
        let applies = chance(cx, self.factor.span(0.0).ends())?;
        let strength = uniform_between(cx, &[1, 1], self.scale.span(0.0).ends())?;
        let noise = normal(cx, &[height, width, 1], 1.0)?;
        Ok(vec![applies, strength, noise])
    }

    fn apply(&self, cx: &mut LayerContext<'_>, x: NodeId, drawn: &[NodeId]) -> Result<NodeId> {
        let [applies, strength, noise] = drawn[..] else { return Ok(x) };
        let linear = *self.interpolation.get()? == Interpolation::Bilinear;
        let extension = self.fill_mode.get()?.extension(self.fill_value);
        let [height, width] = [cx.dims(x)[0], cx.dims(x)[1]];
        let g = cx.graph();
        let alpha = g.scale(strength, 0.1 * height.max(width) as f64)?;
        let sigma = g.scale(strength, 0.05 * height.min(width) as f64)?;
        let noise = {
            let sigma = g.reshape(sigma, &[1, 1, 1])?;
            g.mul(noise, sigma)?
        };
        // `6 · sigma` is less than a side.
        let taps = 2 * height.max(width) + 1;
        let y = elastic(g, x, Elastic { noise, alpha, sigma, taps }, extension, linear)?;
        let y = g.select(applies, y, x)?;
        Ok(g.clamp(y, self.value_range.0, self.value_range.1)?)
    }
}
