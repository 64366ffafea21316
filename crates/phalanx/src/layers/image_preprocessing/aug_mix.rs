//! A weighted mean of an image and of chains of random changes of it, in training; otherwise the identity. The output
//! has the shape of the input.

use super::super::support::{DataFormat, check_at_least_one};
use super::affine::Interpolation;
use super::distribution::{dirichlet, symmetric_beta};
use super::rand_augment::{Changes, MAX_DEPTH, keep_chosen, random_choice};
use super::random_translation::bilinear;
use super::{Augmentation, Factor, augment, bytes, image_dims};
use crate::by_name::ByName;
use crate::config::setters;
use crate::error::Result;
use crate::layer::{Layer, LayerContext, Outputs};
use crate::registry::keras_class;
use phalanx_graph::{NodeId, Op};
use serde::{Deserialize, Serialize};

/// The changes, in Keras' order. The last four only if `all_ops`.
const NAMES: [&str; 11] = [
    "random_shear",
    "random_translation",
    "random_rotation",
    "random_posterization",
    "solarization",
    "auto_contrast",
    "equalization",
    "random_brightness",
    "random_color_degeneration",
    "random_contrast",
    "random_sharpness",
];

/// Mixes images with several random changes of them in training.
///
/// Every image has its own changes and weights; Keras draws them once for a batch.
///
/// ```
/// use phalanx::layer::Layer;
/// use phalanx::layers::AugMix;
///
/// let mix = AugMix::new().num_chains(2).factor(0.2);
/// assert_eq!(mix.config()["factor"], serde_json::json!([0.0, 0.2]));
/// ```
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct AugMix {
    value_range: (f64, f64),
    num_chains: usize,
    chain_depth: usize,
    factor: Factor,
    alpha: f64,
    all_ops: bool,
    interpolation: ByName<Interpolation>,
    seed: Option<i64>,
    data_format: DataFormat,
}

impl Default for AugMix {
    fn default() -> AugMix {
        AugMix::new()
    }
}

impl AugMix {
    /// Three chains of three changes with a strength up to 0.3.
    pub fn new() -> AugMix {
        AugMix {
            value_range: bytes(),
            num_chains: 3,
            chain_depth: 3,
            factor: Factor::Ends([0.0, 0.3]),
            alpha: 1.0,
            all_ops: true,
            interpolation: bilinear(),
            seed: None,
            data_format: DataFormat::ChannelsLast,
        }
    }

    /// The strength of the changes, from 0 to 1; one number stands for 0 up to it.
    #[must_use]
    pub fn factor(mut self, factor: impl Into<Factor>) -> AugMix {
        self.factor = factor.into().span(0.0);
        self
    }

    setters! {
        /// The minimum and maximum pixel values; default to 0 and 255.
        value_range: (f64, f64),
        /// The number of chains; defaults to 3.
        num_chains: usize,
        /// The number of changes of a chain; defaults to 3.
        chain_depth: usize,
        /// The parameter of the Dirichlet distribution of the weights; defaults to 1.
        alpha: f64,
        /// Whether to change colours and sharpness too; defaults to true.
        all_ops: bool,
        /// `bilinear` (the default) or `nearest`.
        interpolation: impl Into<ByName<Interpolation>>,
        /// Ignored; kept for compatibility with Keras. The run's seed is used.
        seed: Option<i64>,
    }

    fn changes(&self) -> Vec<Box<dyn Augmentation>> {
        let (factor, value_range) = (self.factor, self.value_range);
        let changes = Changes { factor, value_range, interpolation: self.interpolation.clone() };
        let count = if self.all_ops { NAMES.len() } else { 7 };
        NAMES[..count].iter().map(|name| changes.named(name)).collect()
    }

    /// Applies a chain: changes, or none, chosen at random.
    fn chain(&self, cx: &mut LayerContext<'_>, x: NodeId) -> Result<NodeId> {
        let (changes, dims) = (self.changes(), image_dims(cx, x));
        let mut y = x;
        for _ in 0..self.chain_depth {
            // One more than there are changes: none of them.
            let choice = random_choice(cx, changes.len() + 1)?;
            let before = y;
            for (i, change) in changes.iter().enumerate() {
                let numbers = change.draw(cx, dims)?;
                let changed = change.apply(cx, before, &numbers)?;
                y = keep_chosen(cx, choice, i, [changed, y])?;
            }
        }
        Ok(y)
    }
}

impl Layer for AugMix {
    keras_class!("AugMix");

    fn call(&self, cx: &mut LayerContext<'_>, inputs: &[NodeId]) -> Result<Outputs> {
        augment(self, cx, inputs)
    }
}

impl Augmentation for AugMix {
    fn check(&self, cx: &LayerContext<'_>, dims: [usize; 3]) -> Result<()> {
        self.factor.within(cx, "factor", [0.0, 1.0])?;
        check_at_least_one(cx, "num_chains", self.num_chains)?;
        if self.num_chains.saturating_mul(self.chain_depth) > MAX_DEPTH {
            let expected = format!("at most {MAX_DEPTH} changes in all chains");
            return Err(cx.argument("chain_depth", &expected, self.chain_depth));
        }
        if !(self.alpha.is_finite() && self.alpha > 0.0) || self.num_chains > MAX_DEPTH {
            return Err(cx.argument("alpha", "a number above 0", self.alpha));
        }
        self.changes().iter().try_for_each(|change| change.check(cx, dims))
    }

    /// The weights of the chains and that of the image itself.
    fn draw(&self, cx: &mut LayerContext<'_>, _: [usize; 3]) -> Result<Vec<NodeId>> {
        let alpha = cx.graph().scalar(self.alpha);
        Ok(vec![dirichlet(cx, self.num_chains, alpha)?, symmetric_beta(cx, alpha)?])
    }

    fn apply(&self, cx: &mut LayerContext<'_>, x: NodeId, drawn: &[NodeId]) -> Result<NodeId> {
        let mut mixed: Option<NodeId> = None;
        for start in 0..self.num_chains {
            let y = self.chain(cx, x)?;
            let g = cx.graph();
            let weight = g.push(Op::Slice { axis: 0, start, len: 1 }, &[drawn[0]])?;
            let weight = g.reshape(weight, &[1, 1, 1])?;
            let part = g.mul(y, weight)?;
            mixed = Some(match mixed {
                Some(sum) => g.add(sum, part)?,
                None => part,
            });
        }
        let g = cx.graph();
        let Some(mixed) = mixed else { return Ok(x) };
        let weight = g.reshape(drawn[1], &[1, 1, 1])?;
        let one = g.scalar(1.0);
        let rest = g.sub(one, weight)?;
        let (own, other) = (g.mul(weight, x)?, g.mul(rest, mixed)?);
        let y = g.add(own, other)?;
        Ok(g.clamp(y, self.value_range.0, self.value_range.1)?)
    }
}
