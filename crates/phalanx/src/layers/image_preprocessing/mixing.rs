//! Mixtures of the images of a batch, in training; otherwise the identity. The output has the shape of the input.
//!
//! Every image is mixed with another one of the *global* batch, which may be on another device: the images of the batch are
//! copied to every device. A layer of a model changes images but not their labels, as in Keras. To mix labels too, mix the
//! batches of a [`Pipeline`](crate::data::Pipeline::mix_up).

use super::super::support::{DataFormat, check_not_negative};
use super::distribution::symmetric_beta;
use super::random_erasing::{random_interval, rectangle};
use super::{Augmentation, Factor, augment, uniform, uniform_between};
use crate::config::setters;
use crate::error::Result;
use crate::layer::{Layer, LayerContext, Outputs};
use crate::registry::keras_class;
use phalanx_graph::NodeId;
use phalanx_graph::functions::batch::{rows_at, shuffled_index};
use phalanx_graph::ops::Unary;
use serde::{Deserialize, Serialize};

/// For each sample the index of the one that it is mixed with.
fn partner(cx: &mut LayerContext<'_>) -> Result<NodeId> {
    // Keys of 16 bits would often be equal.
    cx.graph().keep_wide();
    let keys = uniform(cx, &[1])?;
    Ok(shuffled_index(cx.graph(), keys)?)
}

/// Replaces images in training by weighted means of two of them. Their labels are not mixed: see
/// [`Pipeline::mix_up`](crate::data::Pipeline::mix_up).
///
/// ```
/// use phalanx::layer::Layer;
/// use phalanx::layers::MixUp;
///
/// assert_eq!(MixUp::new(0.4).config()["alpha"], 0.4);
/// ```
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct MixUp {
    alpha: f64,
    seed: Option<i64>,
    data_format: DataFormat,
}

impl Default for MixUp {
    fn default() -> MixUp {
        MixUp::new(0.2)
    }
}

impl MixUp {
    /// Weights from the beta distribution with both parameters `alpha`.
    pub fn new(alpha: f64) -> MixUp {
        MixUp { alpha, seed: None, data_format: DataFormat::ChannelsLast }
    }

    setters! {
        /// Ignored; kept for compatibility with Keras. The run's seed is used.
        seed: Option<i64>,
    }
}

impl Layer for MixUp {
    keras_class!("MixUp");

    fn call(&self, cx: &mut LayerContext<'_>, inputs: &[NodeId]) -> Result<Outputs> {
        augment(self, cx, inputs)
    }
}

impl Augmentation for MixUp {
    fn check(&self, cx: &LayerContext<'_>, _: [usize; 3]) -> Result<()> {
        check_not_negative(cx, "alpha", self.alpha)?;
        if cx.training() && self.alpha == 0.0 {
            return Err(cx.argument("alpha", "a number above 0 in training", self.alpha));
        }
        Ok(())
    }

    fn draw(&self, cx: &mut LayerContext<'_>, _: [usize; 3]) -> Result<Vec<NodeId>> {
        let index = partner(cx)?;
        let alpha = cx.graph().scalar(self.alpha);
        Ok(vec![index, symmetric_beta(cx, alpha)?])
    }

    fn apply(&self, cx: &mut LayerContext<'_>, x: NodeId, drawn: &[NodeId]) -> Result<NodeId> {
        let g = cx.graph();
        let other = rows_at(g, x, drawn[0])?;
        let weight = g.reshape(drawn[1], &[1, 1, 1])?;
        let own = g.mul(weight, x)?;
        let rest = g.neg(weight)?;
        let rest = g.offset(rest, 1.0)?;
        let other = g.mul(rest, other)?;
        Ok(g.add(own, other)?)
    }
}

/// Replaces a rectangle of images in training by that of another one. Their labels are not mixed: see
/// [`Pipeline::cut_mix`](crate::data::Pipeline::cut_mix).
///
/// ```
/// use phalanx::layer::Layer;
/// use phalanx::layers::CutMix;
///
/// assert_eq!(CutMix::new(0.5).config()["factor"], serde_json::json!([0.0, 0.5]));
/// ```
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct CutMix {
    factor: Factor,
    seed: Option<i64>,
    data_format: DataFormat,
}

impl Default for CutMix {
    fn default() -> CutMix {
        CutMix::new(1.0)
    }
}

impl CutMix {
    /// The range of the parameter of the beta distribution of the rectangle's area.
    pub fn new(factor: impl Into<Factor>) -> CutMix {
        CutMix {
            factor: factor.into().span(0.0),
            seed: None,
            data_format: DataFormat::ChannelsLast,
        }
    }

    setters! {
        /// Ignored; kept for compatibility with Keras. The run's seed is used.
        seed: Option<i64>,
    }
}

impl Layer for CutMix {
    keras_class!("CutMix");

    fn call(&self, cx: &mut LayerContext<'_>, inputs: &[NodeId]) -> Result<Outputs> {
        augment(self, cx, inputs)
    }
}

impl Augmentation for CutMix {
    fn check(&self, cx: &LayerContext<'_>, _: [usize; 3]) -> Result<()> {
        let ends = self.factor.within(cx, "factor", [0.0, 1.0])?;
        if cx.training() && ends[0] < 0.0 {
            return Err(cx.argument("factor", "numbers from 0 in training", format!("{ends:?}")));
        }
        Ok(())
    }

    fn draw(&self, cx: &mut LayerContext<'_>, dims: [usize; 3]) -> Result<Vec<NodeId>> {
        let [height, width, _] = dims;
        let alpha = uniform_between(cx, &[1], self.factor.span(0.0).ends())?;
        let alpha = cx.graph().offset(alpha, 1e-6)?;
        let weight = symmetric_beta(cx, alpha)?;
        let g = cx.graph();
        let area = g.neg(weight)?;
        let area = g.offset(area, 1.0)?;
        let ratio = g.unary(Unary::Sqrt, area)?;
        let [across, _] = random_interval(cx, width, ratio)?;
        let [down, _] = random_interval(cx, height, ratio)?;
        let mask = rectangle(cx.graph(), across, down)?;
        Ok(vec![mask, partner(cx)?])
    }

    fn apply(&self, cx: &mut LayerContext<'_>, x: NodeId, drawn: &[NodeId]) -> Result<NodeId> {
        let g = cx.graph();
        let other = rows_at(g, x, drawn[1])?;
        Ok(g.select(drawn[0], other, x)?)
    }
}
