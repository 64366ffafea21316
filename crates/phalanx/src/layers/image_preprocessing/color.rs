//! Random changes of colours, in training; otherwise the identity. The output has the shape of the input.
//!
//! - `RandomGrayscale`: grey for a part of the images
//! - `RandomColorDegeneration`: `x + f · (grey - x)`
//! - `RandomSaturation`, `RandomHue`: a channel of hue, saturation and value
//! - `RandomColorJitter`: brightness, contrast, saturation and hue, in this order

use super::super::support::{DataFormat, check_finite};
use super::pointwise::RandomBrightness;
use super::random_contrast::RandomContrast;
use super::{
    Augmentation, Factor, augment, bytes, change_range, check_value_range, check_wide_value_range,
    uniform, uniform_between,
};
use crate::config::setters;
use crate::error::Result;
use crate::layer::{Layer, LayerContext, Outputs};
use crate::registry::keras_class;
use phalanx_graph::functions::image::{channels, hsv_to_rgb, join_channels, rgb_to_hsv};
use phalanx_graph::functions::math::less;
use phalanx_graph::{Graph, NodeId};
use serde::{Deserialize, Serialize};

/// The weights of red, green and blue in grey.
const GREY: [f64; 3] = [0.2989, 0.587, 0.114];

/// Keras' smallest divisor.
const EPSILON: f64 = 1e-7;

/// The grey of an image with 1 or 3 channels.
fn grey(g: &mut Graph, x: NodeId) -> phalanx_graph::Result<NodeId> {
    if g.ty(x).last() == 1 {
        return Ok(x);
    }
    let [red, green, blue] = channels(g, x)?;
    let red = g.scale(red, GREY[0])?;
    let green = g.scale(green, GREY[1])?;
    let blue = g.scale(blue, GREY[2])?;
    let sum = g.add(red, green)?;
    g.add(sum, blue)
}

/// Fails unless the images have one of these numbers of channels.
fn check_channels(cx: &LayerContext<'_>, dims: [usize; 3], allowed: &[usize]) -> Result<()> {
    if allowed.contains(&dims[2]) {
        return Ok(());
    }
    let expected = if allowed.len() == 1 { "3 channels" } else { "1 or 3 channels" };
    Err(cx.argument("input", expected, dims[2]))
}

/// Makes a random part of the images grey in training.
///
/// ```
/// use phalanx::layer::Layer;
/// use phalanx::layers::RandomGrayscale;
///
/// assert_eq!(RandomGrayscale::new(0.2).config()["factor"], 0.2);
/// ```
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct RandomGrayscale {
    factor: f64,
    data_format: DataFormat,
}

impl Default for RandomGrayscale {
    fn default() -> RandomGrayscale {
        RandomGrayscale::new(0.5)
    }
}

impl RandomGrayscale {
    /// The fraction of grey images.
    pub fn new(factor: f64) -> RandomGrayscale {
        RandomGrayscale { factor, data_format: DataFormat::ChannelsLast }
    }
}

impl Layer for RandomGrayscale {
    keras_class!("RandomGrayscale");

    fn call(&self, cx: &mut LayerContext<'_>, inputs: &[NodeId]) -> Result<Outputs> {
        augment(self, cx, inputs)
    }
}

impl Augmentation for RandomGrayscale {
    fn check(&self, cx: &LayerContext<'_>, dims: [usize; 3]) -> Result<()> {
        check_channels(cx, dims, &[1, 3])?;
        if (0.0..=1.0).contains(&self.factor) {
            return Ok(());
        }
        Err(cx.argument("factor", "a number from 0 to 1", self.factor))
    }

    fn draw(&self, cx: &mut LayerContext<'_>, _: [usize; 3]) -> Result<Vec<NodeId>> {
        let u = uniform(cx, &[1, 1, 1])?;
        let share = cx.graph().scalar(self.factor);
        Ok(vec![less(cx.graph(), u, share)?])
    }

    fn apply(&self, cx: &mut LayerContext<'_>, x: NodeId, drawn: &[NodeId]) -> Result<NodeId> {
        let grey = grey(cx.graph(), x)?;
        Ok(cx.graph().select(drawn[0], grey, x)?)
    }
}

/// The struct, constructor and setters of a layer with a factor, a value range and a seed.
macro_rules! color_layer {
    ($(#[$doc:meta])* $class:ident, $low:literal, $meaning:literal) => {
        $(#[$doc])*
        #[derive(Clone, Debug, Serialize, Deserialize)]
        #[serde(deny_unknown_fields)]
        pub struct $class {
            factor: Factor,
            #[serde(default = "bytes")]
            value_range: (f64, f64),
            seed: Option<i64>,
            #[serde(default)]
            data_format: DataFormat,
        }

        impl $class {
            #[doc = $meaning]
            pub fn new(factor: impl Into<Factor>) -> $class {
                $class {
                    factor: factor.into().span($low),
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

        impl Layer for $class {
            keras_class!(stringify!($class));

            fn call(&self, cx: &mut LayerContext<'_>, inputs: &[NodeId]) -> Result<Outputs> {
                augment(self, cx, inputs)
            }
        }
    };
}

color_layer! {
    /// Randomly fades the colours of images in training.
    ///
    /// ```
    /// use phalanx::layer::Layer;
    /// use phalanx::layers::RandomColorDegeneration;
    ///
    /// let fade = RandomColorDegeneration::new((0.0, 0.4));
    /// assert_eq!(fade.config()["factor"], serde_json::json!([0.0, 0.4]));
    /// ```
    RandomColorDegeneration, -1.0, "The part of grey; negative numbers strengthen colours."
}

impl Augmentation for RandomColorDegeneration {
    fn check(&self, cx: &LayerContext<'_>, dims: [usize; 3]) -> Result<()> {
        check_channels(cx, dims, &[1, 3])?;
        self.factor.within(cx, "factor", [-1.0, 1.0])?;
        check_value_range(cx, self.value_range)
    }

    fn draw(&self, cx: &mut LayerContext<'_>, _: [usize; 3]) -> Result<Vec<NodeId>> {
        Ok(vec![uniform_between(cx, &[1, 1, 1], self.factor.span(-1.0).ends())?])
    }

    fn apply(&self, cx: &mut LayerContext<'_>, x: NodeId, drawn: &[NodeId]) -> Result<NodeId> {
        let g = cx.graph();
        let grey = grey(g, x)?;
        let apart = g.sub(grey, x)?;
        let part = g.mul(drawn[0], apart)?;
        let y = g.add(x, part)?;
        Ok(g.clamp(y, self.value_range.0, self.value_range.1)?)
    }
}

color_layer! {
    /// Randomly changes the saturation of images in training. As in Keras, the saturation is that of the pixel values as
    /// they are, and the range limits the saturation.
    ///
    /// ```
    /// use phalanx::layer::Layer;
    /// use phalanx::layers::RandomSaturation;
    ///
    /// let saturation = RandomSaturation::new((0.4, 0.6)).value_range((0.0, 1.0));
    /// assert_eq!(saturation.config()["factor"], serde_json::json!([0.4, 0.6]));
    /// ```
    RandomSaturation, -1.0, "The saturation is multiplied by `f / (1 - f)`: 0.5 does not change it, 0 removes it."
}

impl Augmentation for RandomSaturation {
    fn check(&self, cx: &LayerContext<'_>, dims: [usize; 3]) -> Result<()> {
        check_channels(cx, dims, &[3])?;
        self.factor.within(cx, "factor", [-1.0, 1.0])?;
        check_value_range(cx, self.value_range)
    }

    fn draw(&self, cx: &mut LayerContext<'_>, _: [usize; 3]) -> Result<Vec<NodeId>> {
        let factor = uniform_between(cx, &[1, 1, 1], self.factor.span(-1.0).ends())?;
        let g = cx.graph();
        let one = g.scalar(1.0);
        let rest = g.sub(one, factor)?;
        let rest = g.offset(rest, EPSILON)?;
        Ok(vec![g.div(factor, rest)?])
    }

    fn apply(&self, cx: &mut LayerContext<'_>, x: NodeId, drawn: &[NodeId]) -> Result<NodeId> {
        let g = cx.graph();
        let x = rgb_to_hsv(g, x)?;
        let [hue, saturation, value] = channels(g, x)?;
        let saturation = g.mul(saturation, drawn[0])?;
        let saturation = g.clamp(saturation, self.value_range.0, self.value_range.1)?;
        let y = join_channels(g, [hue, saturation, value])?;
        Ok(hsv_to_rgb(g, y)?)
    }
}

color_layer! {
    /// Randomly changes the hue of images in training.
    ///
    /// ```
    /// use phalanx::layer::Layer;
    /// use phalanx::layers::RandomHue;
    ///
    /// let hue = RandomHue::new(0.2); // up to a tenth of a turn, either way
    /// assert_eq!(hue.config()["factor"], serde_json::json!([0.0, 0.2]));
    /// ```
    RandomHue, 0.0, "The change in half turns of the colour circle, in a random direction."
}

impl Augmentation for RandomHue {
    fn check(&self, cx: &LayerContext<'_>, dims: [usize; 3]) -> Result<()> {
        check_channels(cx, dims, &[3])?;
        self.factor.within(cx, "factor", [0.0, 1.0])?;
        check_wide_value_range(cx, self.value_range)
    }

    fn draw(&self, cx: &mut LayerContext<'_>, _: [usize; 3]) -> Result<Vec<NodeId>> {
        let direction = random_sign(cx, &[1, 1, 1])?;
        let factor = uniform_between(cx, &[1, 1, 1], self.factor.span(0.0).ends())?;
        let turn = cx.graph().mul(direction, factor)?;
        Ok(vec![cx.graph().scale(turn, 0.5)?])
    }

    fn apply(&self, cx: &mut LayerContext<'_>, x: NodeId, drawn: &[NodeId]) -> Result<NodeId> {
        let g = cx.graph();
        let x = change_range(g, x, self.value_range, (0.0, 1.0))?;
        let x = rgb_to_hsv(g, x)?;
        let [hue, saturation, value] = channels(g, x)?;
        let hue = g.add(hue, drawn[0])?;
        let (zero, one) = (g.scalar(0.0), g.scalar(1.0));
        let above = less(g, one, hue)?;
        let hue = g.sub(hue, above)?;
        let below = less(g, hue, zero)?;
        let hue = g.add(hue, below)?;
        let y = join_channels(g, [hue, saturation, value])?;
        let y = hsv_to_rgb(g, y)?;
        let y = g.clamp(y, 0.0, 1.0)?;
        Ok(change_range(g, y, (0.0, 1.0), self.value_range)?)
    }
}

/// -1 or 1, with probability one half each.
pub(super) fn random_sign(cx: &mut LayerContext<'_>, dims: &[usize]) -> Result<NodeId> {
    let u = uniform(cx, dims)?;
    let g = cx.graph();
    let (half, one, minus) = (g.scalar(0.5), g.scalar(1.0), g.scalar(-1.0));
    let above = less(g, half, u)?;
    Ok(g.select(above, minus, one)?)
}

/// Randomly changes brightness, contrast, saturation and hue in training.
///
/// ```
/// use phalanx::layer::Layer;
/// use phalanx::layers::RandomColorJitter;
///
/// let jitter = RandomColorJitter::new().brightness_factor(0.2).hue_factor(0.1);
/// assert_eq!(jitter.config()["brightness_factor"], 0.2);
/// ```
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct RandomColorJitter {
    value_range: (f64, f64),
    brightness_factor: Option<Factor>,
    contrast_factor: Option<Factor>,
    saturation_factor: Option<Factor>,
    hue_factor: Option<Factor>,
    seed: Option<i64>,
    data_format: DataFormat,
}

impl Default for RandomColorJitter {
    fn default() -> RandomColorJitter {
        RandomColorJitter::new()
    }
}

impl RandomColorJitter {
    /// Changes nothing until factors are set.
    pub fn new() -> RandomColorJitter {
        RandomColorJitter {
            value_range: bytes(),
            brightness_factor: None,
            contrast_factor: None,
            saturation_factor: None,
            hue_factor: None,
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

    /// The factor of [`RandomBrightness`].
    #[must_use]
    pub fn brightness_factor(mut self, factor: impl Into<Factor>) -> RandomColorJitter {
        self.brightness_factor = Some(factor.into());
        self
    }

    /// The factor of [`RandomContrast`]; one number stands for 0 up to it.
    #[must_use]
    pub fn contrast_factor(mut self, factor: impl Into<Factor>) -> RandomColorJitter {
        self.contrast_factor = Some(factor.into());
        self
    }

    /// The factor of [`RandomSaturation`].
    #[must_use]
    pub fn saturation_factor(mut self, factor: impl Into<Factor>) -> RandomColorJitter {
        self.saturation_factor = Some(factor.into());
        self
    }

    /// The factor of [`RandomHue`].
    #[must_use]
    pub fn hue_factor(mut self, factor: impl Into<Factor>) -> RandomColorJitter {
        self.hue_factor = Some(factor.into());
        self
    }

    /// The changes that it consists of.
    fn changes(&self) -> Vec<Box<dyn Augmentation>> {
        let range = self.value_range;
        let mut list: Vec<Box<dyn Augmentation>> = vec![];
        if let Some(factor) = self.brightness_factor {
            list.push(Box::new(RandomBrightness::new(factor).value_range(range)));
        }
        if let Some(factor) = self.contrast_factor {
            // As in Keras, one number is the upper end here.
            list.push(Box::new(RandomContrast::new(factor.span(0.0)).value_range(range)));
        }
        if let Some(factor) = self.saturation_factor {
            list.push(Box::new(RandomSaturation::new(factor).value_range(range)));
        }
        if let Some(factor) = self.hue_factor {
            list.push(Box::new(RandomHue::new(factor).value_range(range)));
        }
        list
    }
}

impl Layer for RandomColorJitter {
    keras_class!("RandomColorJitter");

    fn call(&self, cx: &mut LayerContext<'_>, inputs: &[NodeId]) -> Result<Outputs> {
        augment(self, cx, inputs)
    }
}

impl Augmentation for RandomColorJitter {
    fn check(&self, cx: &LayerContext<'_>, dims: [usize; 3]) -> Result<()> {
        check_finite(cx, "value_range", self.value_range.0)?;
        self.changes().iter().try_for_each(|change| change.check(cx, dims))
    }

    fn draw(&self, cx: &mut LayerContext<'_>, dims: [usize; 3]) -> Result<Vec<NodeId>> {
        let mut drawn = vec![];
        for change in self.changes() {
            // Each of them needs one number.
            drawn.extend(change.draw(cx, dims)?);
        }
        Ok(drawn)
    }

    fn apply(&self, cx: &mut LayerContext<'_>, x: NodeId, drawn: &[NodeId]) -> Result<NodeId> {
        let mut y = x;
        for (change, number) in self.changes().iter().zip(drawn) {
            y = change.apply(cx, y, &[*number])?;
        }
        Ok(y)
    }
}
