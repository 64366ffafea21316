//! Several random changes of each image, chosen at random, in training; otherwise the identity. The output has the
//! shape of the input.

use super::super::support::DataFormat;
use super::affine::Interpolation;
use super::color::RandomColorDegeneration;
use super::filter::RandomSharpness;
use super::histogram::Equalization;
use super::pointwise::{AutoContrast, RandomBrightness, RandomPosterization, Solarization};
use super::random_contrast::RandomContrast;
use super::random_rotation::RandomRotation;
use super::random_shear::RandomShear;
use super::random_translation::{RandomTranslation, bilinear};
use super::{Augmentation, Factor, augment, bytes, uniform};
use crate::by_name::ByName;
use crate::config::setters;
use crate::error::Result;
use crate::layer::{Layer, LayerContext, Outputs};
use crate::registry::keras_class;
use phalanx_graph::NodeId;
use phalanx_graph::ops::{Binary, Unary};
use serde::{Deserialize, Serialize};

/// The changes that `RandAugment` and `AugMix` choose from, by Keras' names.
pub(super) struct Changes {
    /// A strength from 0 to 1.
    pub factor: Factor,
    /// The minimum and maximum pixel values.
    pub value_range: (f64, f64),
    /// The interpolation of geometric changes.
    pub interpolation: ByName<Interpolation>,
}

impl Changes {
    /// The change of this name.
    pub fn named(&self, name: &str) -> Box<dyn Augmentation> {
        let (factor, range) = (self.factor.span(0.0), self.value_range);
        let how = || self.interpolation.clone();
        match name {
            "random_shear" => {
                let shear = RandomShear::new(factor, factor);
                Box::new(shear.interpolation(how()))
            }
            "random_translation" => {
                Box::new(RandomTranslation::new(factor, factor).interpolation(how()))
            }
            "random_rotation" => Box::new(RandomRotation::new(factor).interpolation(how())),
            "random_brightness" => Box::new(RandomBrightness::new(factor).value_range(range)),
            "random_color_degeneration" => {
                Box::new(RandomColorDegeneration::new(factor).value_range(range))
            }
            "random_contrast" => Box::new(RandomContrast::new(factor).value_range(range)),
            "random_sharpness" => Box::new(RandomSharpness::new(factor).value_range(range)),
            "random_posterization" => {
                let bits = (8.0 * factor.ends()[1]).trunc().max(1.0);
                Box::new(RandomPosterization::new(bits).value_range(range))
            }
            "solarization" => {
                let solarization = Solarization::new().addition_factor(factor);
                Box::new(solarization.threshold_factor(factor).value_range(range))
            }
            "auto_contrast" => Box::new(AutoContrast::new().value_range(range)),
            _ => Box::new(Equalization::new().value_range(range)),
        }
    }
}

/// Keeps `y` where `choice`, `[1, 1, 1]`, is `index`, and `x` elsewhere.
pub(super) fn keep_chosen(
    cx: &mut LayerContext<'_>,
    choice: NodeId,
    index: usize,
    [y, x]: [NodeId; 2],
) -> Result<NodeId> {
    let g = cx.graph();
    let index = g.scalar(index as f64);
    let chosen = g.binary(Binary::Eq, choice, index)?;
    Ok(g.select(chosen, y, x)?)
}

/// A random whole number below `n` for each sample.
pub(super) fn random_choice(cx: &mut LayerContext<'_>, n: usize) -> Result<NodeId> {
    let u = uniform(cx, &[1, 1, 1])?;
    let g = cx.graph();
    let scaled = g.scale(u, n as f64)?;
    let index = g.unary(Unary::Floor, scaled)?;
    Ok(g.clamp(index, 0.0, n as f64 - 1.0)?)
}

/// The changes, in Keras' order.
const NAMES: [&str; 11] = [
    "random_shear",
    "random_translation",
    "random_rotation",
    "random_brightness",
    "random_color_degeneration",
    "random_contrast",
    "random_sharpness",
    "random_posterization",
    "solarization",
    "auto_contrast",
    "equalization",
];

/// The largest number of changes one after the other.
pub(super) const MAX_DEPTH: usize = 64;

/// Applies random changes to each image in training.
///
/// Every image has its own changes; Keras draws them once for a batch.
///
/// ```
/// use phalanx::layer::Layer;
/// use phalanx::layers::RandAugment;
///
/// let augment = RandAugment::new().num_ops(3).factor(0.3);
/// assert_eq!(augment.config()["factor"], serde_json::json!([0.0, 0.3]));
/// ```
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct RandAugment {
    value_range: (f64, f64),
    num_ops: usize,
    factor: Factor,
    interpolation: ByName<Interpolation>,
    seed: Option<i64>,
    data_format: DataFormat,
}

impl Default for RandAugment {
    fn default() -> RandAugment {
        RandAugment::new()
    }
}

impl RandAugment {
    /// Two changes with a strength up to 0.5.
    pub fn new() -> RandAugment {
        RandAugment {
            value_range: bytes(),
            num_ops: 2,
            factor: Factor::Ends([0.0, 0.5]),
            interpolation: bilinear(),
            seed: None,
            data_format: DataFormat::ChannelsLast,
        }
    }

    /// The strength of the changes, from 0 to 1; one number stands for 0 up to it.
    #[must_use]
    pub fn factor(mut self, factor: impl Into<Factor>) -> RandAugment {
        self.factor = factor.into().span(0.0);
        self
    }

    setters! {
        /// The minimum and maximum pixel values; default to 0 and 255.
        value_range: (f64, f64),
        /// The number of changes of each image; defaults to 2.
        num_ops: usize,
        /// `bilinear` (the default) or `nearest`.
        interpolation: impl Into<ByName<Interpolation>>,
        /// Ignored; kept for compatibility with Keras. The run's seed is used.
        seed: Option<i64>,
    }

    fn changes(&self) -> Vec<Box<dyn Augmentation>> {
        let (factor, value_range) = (self.factor, self.value_range);
        let changes = Changes { factor, value_range, interpolation: self.interpolation.clone() };
        NAMES.iter().map(|name| changes.named(name)).collect()
    }
}

impl Layer for RandAugment {
    keras_class!("RandAugment");

    fn call(&self, cx: &mut LayerContext<'_>, inputs: &[NodeId]) -> Result<Outputs> {
        augment(self, cx, inputs)
    }
}

impl Augmentation for RandAugment {
    fn check(&self, cx: &LayerContext<'_>, dims: [usize; 3]) -> Result<()> {
        self.factor.within(cx, "factor", [0.0, 1.0])?;
        if self.num_ops > MAX_DEPTH {
            return Err(cx.argument("num_ops", &format!("at most {MAX_DEPTH}"), self.num_ops));
        }
        self.changes().iter().try_for_each(|change| change.check(cx, dims))
    }

    /// The choices, one after the other.
    fn draw(&self, cx: &mut LayerContext<'_>, _: [usize; 3]) -> Result<Vec<NodeId>> {
        (0..self.num_ops).map(|_| random_choice(cx, NAMES.len())).collect()
    }

    fn apply(&self, cx: &mut LayerContext<'_>, x: NodeId, drawn: &[NodeId]) -> Result<NodeId> {
        let (changes, dims) = (self.changes(), super::image_dims(cx, x));
        // As in Keras, a change that is chosen twice has the same random numbers both times.
        let mut numbers = vec![];
        for change in &changes {
            numbers.push(change.draw(cx, dims)?);
        }
        let mut y = x;
        for choice in drawn {
            for (i, (change, numbers)) in changes.iter().zip(&numbers).enumerate() {
                let changed = change.apply(cx, y, numbers)?;
                y = keep_chosen(cx, *choice, i, [changed, y])?;
            }
        }
        Ok(y)
    }
}
