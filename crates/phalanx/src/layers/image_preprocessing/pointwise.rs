//! Changes of every pixel value on its own, and of the range of values of an image. The output has the shape of the
//! input.
//!
//! - `RandomBrightness`: `clip(x + f · (high - low))`
//! - `RandomInvert`: `high - x`, for a part of the images
//! - `RandomPosterization`: only the upper bits of 8-bit values
//! - `Solarization`: `x + a`, inverted from a threshold on
//! - `AutoContrast`: the lowest value of a channel becomes the lowest possible one, the highest the highest
//!
//! All but `AutoContrast` are the identity outside of training.

use super::super::support::DataFormat;
use super::{
    Augmentation, Factor, augment, bytes, chance, change_range, check_value_range,
    check_wide_value_range, float_image, uniform_between,
};
use crate::config::setters;
use crate::error::Result;
use crate::layer::{Layer, LayerContext, Outputs};
use crate::registry::keras_class;
use phalanx_graph::NodeId;
use phalanx_graph::functions::index::{max_axes, min_axes};
use phalanx_graph::functions::math::{is_nan, less, trunc};
use phalanx_graph::ops::{Binary, Unary};
use serde::{Deserialize, Serialize};

/// Randomly changes the brightness of images in training.
///
/// ```
/// use phalanx::layer::Layer;
/// use phalanx::layers::RandomBrightness;
///
/// let brightness = RandomBrightness::new(0.2); // up to a fifth of the range, either way
/// assert_eq!(brightness.config()["factor"], serde_json::json!([-0.2, 0.2]));
/// ```
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RandomBrightness {
    factor: Factor,
    #[serde(default = "bytes")]
    value_range: (f64, f64),
    seed: Option<i64>,
    #[serde(default)]
    data_format: DataFormat,
}

impl RandomBrightness {
    /// The change as a fraction of the range of values.
    pub fn new(factor: impl Into<Factor>) -> RandomBrightness {
        RandomBrightness {
            factor: factor.into().span(-1.0),
            value_range: bytes(),
            seed: None,
            data_format: DataFormat::ChannelsLast,
        }
    }

    setters! {
        /// The minimum and maximum pixel values; default to 0 and 255.
        value_range: (f64, f64),
        /// Ignored; kept for compatibility with Keras. The run's seed is used.
        seed: Option<i64>,
    }
}

impl Layer for RandomBrightness {
    keras_class!("RandomBrightness");

    fn call(&self, cx: &mut LayerContext<'_>, inputs: &[NodeId]) -> Result<Outputs> {
        augment(self, cx, inputs)
    }
}

impl Augmentation for RandomBrightness {
    fn check(&self, cx: &LayerContext<'_>, _: [usize; 3]) -> Result<()> {
        self.factor.within(cx, "factor", [-1.0, 1.0])?;
        check_value_range(cx, self.value_range)
    }

    fn draw(&self, cx: &mut LayerContext<'_>, _: [usize; 3]) -> Result<Vec<NodeId>> {
        Ok(vec![uniform_between(cx, &[1, 1, 1], self.factor.span(-1.0).ends())?])
    }

    fn apply(&self, cx: &mut LayerContext<'_>, x: NodeId, drawn: &[NodeId]) -> Result<NodeId> {
        let (low, high) = self.value_range;
        let g = cx.graph();
        let more = g.scale(drawn[0], high - low)?;
        let y = g.add(x, more)?;
        Ok(g.clamp(y, low, high)?)
    }
}

/// Randomly inverts images in training.
///
/// ```
/// use phalanx::layer::Layer;
/// use phalanx::layers::RandomInvert;
///
/// assert_eq!(RandomInvert::new(0.5).config()["factor"], serde_json::json!([0.0, 0.5]));
/// ```
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct RandomInvert {
    factor: Factor,
    value_range: (f64, f64),
    seed: Option<i64>,
    data_format: DataFormat,
}

impl Default for RandomInvert {
    fn default() -> RandomInvert {
        RandomInvert::new(1.0)
    }
}

impl RandomInvert {
    /// The range from which the probability is drawn; one number stands for 0 up to it.
    pub fn new(factor: impl Into<Factor>) -> RandomInvert {
        RandomInvert {
            factor: factor.into().span(0.0),
            value_range: bytes(),
            seed: None,
            data_format: DataFormat::ChannelsLast,
        }
    }

    setters! {
        /// The minimum and maximum pixel values; default to 0 and 255.
        value_range: (f64, f64),
        /// Ignored; kept for compatibility with Keras. The run's seed is used.
        seed: Option<i64>,
    }
}

impl Layer for RandomInvert {
    keras_class!("RandomInvert");

    fn call(&self, cx: &mut LayerContext<'_>, inputs: &[NodeId]) -> Result<Outputs> {
        augment(self, cx, inputs)
    }
}

impl Augmentation for RandomInvert {
    fn check(&self, cx: &LayerContext<'_>, _: [usize; 3]) -> Result<()> {
        self.factor.within(cx, "factor", [0.0, 1.0])?;
        check_value_range(cx, self.value_range)
    }

    fn draw(&self, cx: &mut LayerContext<'_>, _: [usize; 3]) -> Result<Vec<NodeId>> {
        Ok(vec![chance(cx, self.factor.span(0.0).ends())?])
    }

    fn apply(&self, cx: &mut LayerContext<'_>, x: NodeId, drawn: &[NodeId]) -> Result<NodeId> {
        let g = cx.graph();
        let high = g.scalar(self.value_range.1);
        let inverse = g.sub(high, x)?;
        Ok(g.select(drawn[0], inverse, x)?)
    }
}

/// Randomly reduces the number of bits of pixel values in training.
///
/// ```
/// use phalanx::layer::Layer;
/// use phalanx::layers::RandomPosterization;
///
/// assert_eq!(RandomPosterization::new(5.0).config()["factor"], serde_json::json!([1.0, 5.0]));
/// ```
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RandomPosterization {
    factor: Factor,
    #[serde(default = "bytes")]
    value_range: (f64, f64),
    seed: Option<i64>,
    #[serde(default)]
    data_format: DataFormat,
}

impl RandomPosterization {
    /// The range of the number of bits; the upper end is excluded unless both are equal. One number stands for
    /// 1 up to it.
    pub fn new(factor: impl Into<Factor>) -> RandomPosterization {
        RandomPosterization {
            factor: factor.into().span(1.0),
            value_range: bytes(),
            seed: None,
            data_format: DataFormat::ChannelsLast,
        }
    }

    setters! {
        /// The minimum and maximum pixel values; default to 0 and 255.
        value_range: (f64, f64),
        /// Ignored; kept for compatibility with Keras. The run's seed is used.
        seed: Option<i64>,
    }
}

impl Layer for RandomPosterization {
    keras_class!("RandomPosterization");

    fn call(&self, cx: &mut LayerContext<'_>, inputs: &[NodeId]) -> Result<Outputs> {
        augment(self, cx, inputs)
    }
}

impl Augmentation for RandomPosterization {
    fn check(&self, cx: &LayerContext<'_>, _: [usize; 3]) -> Result<()> {
        let ends = self.factor.within(cx, "factor", [1.0, 8.0])?;
        if let Some(f) = ends.iter().find(|f| !(1.0..=8.0).contains(*f) || f.fract() != 0.0) {
            return Err(cx.argument("factor", "whole numbers from 1 to 8", f));
        }
        check_wide_value_range(cx, self.value_range)
    }

    fn draw(&self, cx: &mut LayerContext<'_>, _: [usize; 3]) -> Result<Vec<NodeId>> {
        let [low, high] = self.factor.span(1.0).ends();
        if low == high {
            return Ok(vec![cx.graph().fill(low, &[1, 1, 1])]);
        }
        let bits = uniform_between(cx, &[1, 1, 1], [low, high])?;
        Ok(vec![cx.graph().unary(Unary::Floor, bits)?])
    }

    fn apply(&self, cx: &mut LayerContext<'_>, x: NodeId, drawn: &[NodeId]) -> Result<NodeId> {
        let g = cx.graph();
        let x = change_range(g, x, self.value_range, bytes())?;
        let x = trunc(g, x)?;
        let x = g.clamp(x, 0.0, 255.0)?;
        // 2^(8 - bits)
        let lost = g.neg(drawn[0])?;
        let lost = g.offset(lost, 8.0)?;
        let two = g.scalar(2.0);
        let step = g.binary(Binary::Pow, two, lost)?;
        let step = g.unary(Unary::Round, step)?;
        let steps = g.div(x, step)?;
        let steps = g.unary(Unary::Floor, steps)?;
        let y = g.mul(steps, step)?;
        Ok(change_range(g, y, bytes(), self.value_range)?)
    }
}

/// Randomly adds to pixel values and inverts those from a random threshold on, in training.
///
/// ```
/// use phalanx::layer::Layer;
/// use phalanx::layers::Solarization;
///
/// let solarization = Solarization::new().threshold_factor(0.3);
/// assert_eq!(solarization.config()["threshold_factor"], serde_json::json!([0.0, 0.3]));
/// ```
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Solarization {
    addition_factor: Factor,
    threshold_factor: Factor,
    value_range: (f64, f64),
    seed: Option<i64>,
    data_format: DataFormat,
}

impl Default for Solarization {
    fn default() -> Solarization {
        Solarization::new()
    }
}

impl Solarization {
    /// Adds nothing and inverts everything.
    pub fn new() -> Solarization {
        Solarization {
            addition_factor: Factor::Ends([0.0, 0.0]),
            threshold_factor: Factor::Ends([0.0, 0.0]),
            value_range: bytes(),
            seed: None,
            data_format: DataFormat::ChannelsLast,
        }
    }

    /// What is added: from the lower end, in units of 1, to the upper end, in units of 255.
    #[must_use]
    pub fn addition_factor(mut self, factor: impl Into<Factor>) -> Solarization {
        self.addition_factor = factor.into().span(0.0);
        self
    }

    /// The threshold, from which on values are inverted: between the same ends as what is added.
    #[must_use]
    pub fn threshold_factor(mut self, factor: impl Into<Factor>) -> Solarization {
        self.threshold_factor = factor.into().span(0.0);
        self
    }

    setters! {
        /// The minimum and maximum pixel values; default to 0 and 255.
        value_range: (f64, f64),
        /// Ignored; kept for compatibility with Keras. The run's seed is used.
        seed: Option<i64>,
    }
}

impl Layer for Solarization {
    keras_class!("Solarization");

    fn call(&self, cx: &mut LayerContext<'_>, inputs: &[NodeId]) -> Result<Outputs> {
        augment(self, cx, inputs)
    }
}

impl Augmentation for Solarization {
    fn check(&self, cx: &LayerContext<'_>, _: [usize; 3]) -> Result<()> {
        self.addition_factor.within(cx, "addition_factor", [0.0, 1.0])?;
        self.threshold_factor.within(cx, "threshold_factor", [0.0, 1.0])?;
        check_wide_value_range(cx, self.value_range)
    }

    fn draw(&self, cx: &mut LayerContext<'_>, _: [usize; 3]) -> Result<Vec<NodeId>> {
        let mut draw = |factor: Factor| {
            // As in Keras, only the upper end is a fraction of 255.
            let [low, high] = factor.span(0.0).ends();
            uniform_between(cx, &[1, 1, 1], [low, high * 255.0])
        };
        Ok(vec![draw(self.addition_factor)?, draw(self.threshold_factor)?])
    }

    fn apply(&self, cx: &mut LayerContext<'_>, x: NodeId, drawn: &[NodeId]) -> Result<NodeId> {
        let g = cx.graph();
        let x = change_range(g, x, self.value_range, bytes())?;
        let x = g.add(x, drawn[0])?;
        let x = g.clamp(x, 0.0, 255.0)?;
        let dark = less(g, x, drawn[1])?;
        let white = g.scalar(255.0);
        let inverse = g.sub(white, x)?;
        let y = g.select(dark, x, inverse)?;
        Ok(change_range(g, y, bytes(), self.value_range)?)
    }
}

/// Stretches the values of every channel of every image to the whole range, also outside of training. A channel of one
/// value stays as it is.
///
/// ```
/// use phalanx::layer::Layer;
/// use phalanx::layers::AutoContrast;
///
/// let contrast = AutoContrast::new().value_range((0.0, 1.0));
/// assert_eq!(contrast.config()["value_range"], serde_json::json!([0.0, 1.0]));
/// ```
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct AutoContrast {
    value_range: (f64, f64),
    data_format: DataFormat,
}

impl Default for AutoContrast {
    fn default() -> AutoContrast {
        AutoContrast::new()
    }
}

impl AutoContrast {
    /// The contrast of values from 0 to 255.
    pub fn new() -> AutoContrast {
        AutoContrast { value_range: bytes(), data_format: DataFormat::ChannelsLast }
    }

    setters! {
        /// The minimum and maximum pixel values; default to 0 and 255.
        value_range: (f64, f64),
    }
}

impl Layer for AutoContrast {
    keras_class!("AutoContrast");

    fn call(&self, cx: &mut LayerContext<'_>, inputs: &[NodeId]) -> Result<Outputs> {
        let (x, dims) = float_image(cx, inputs)?;
        self.check(cx, dims)?;
        Ok(self.apply(cx, x, &[])?.into())
    }
}

impl Augmentation for AutoContrast {
    fn check(&self, cx: &LayerContext<'_>, _: [usize; 3]) -> Result<()> {
        check_wide_value_range(cx, self.value_range)
    }

    fn draw(&self, _: &mut LayerContext<'_>, _: [usize; 3]) -> Result<Vec<NodeId>> {
        Ok(vec![])
    }

    fn apply(&self, cx: &mut LayerContext<'_>, x: NodeId, _: &[NodeId]) -> Result<NodeId> {
        let g = cx.graph();
        let bright = change_range(g, x, self.value_range, bytes())?;
        let (low, high) = (min_axes(g, bright, &[0, 1])?, max_axes(g, bright, &[0, 1])?);
        let (range, white) = (g.sub(high, low)?, g.scalar(255.0));
        let scale = g.div(white, range)?;
        let start = g.mul(low, scale)?;
        let y = g.mul(bright, scale)?;
        let y = g.sub(y, start)?;
        let y = g.clamp(y, 0.0, 255.0)?;
        let y = change_range(g, y, bytes(), self.value_range)?;
        let flat = is_nan(g, y)?;
        Ok(g.select(flat, x, y)?)
    }
}
