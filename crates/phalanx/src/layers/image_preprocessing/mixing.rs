//! Mixtures of the images of a batch. In a model they do nothing outside of training.
//!
//! A model's devices each have their own part of a batch, and a layer of a model changes images but not their labels. So
//! training with these layers is refused: mix images and labels in the data instead.

use super::super::support::{DataFormat, check_not_negative};
use super::{Factor, float_image};
use crate::config::setters;
use crate::error::Result;
use crate::layer::{Layer, LayerContext, Outputs};
use crate::registry::keras_class;
use phalanx_graph::NodeId;
use serde::{Deserialize, Serialize};

/// The input outside of training, and an error in training.
fn unless_training(cx: &mut LayerContext<'_>, inputs: &[NodeId]) -> Result<Outputs> {
    let (x, _) = float_image(cx, inputs)?;
    if cx.training() {
        let expected =
            "no training: it mixes the samples of a batch; mix images and labels in the data";
        return Err(cx.argument("training", expected, "training"));
    }
    Ok(x.into())
}

/// Weighted means of pairs of images. It is the identity outside of training, and refused in training.
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
        /// Ignored; kept for compatibility with Keras.
        seed: Option<i64>,
    }
}

impl Layer for MixUp {
    keras_class!("MixUp");

    fn call(&self, cx: &mut LayerContext<'_>, inputs: &[NodeId]) -> Result<Outputs> {
        check_not_negative(cx, "alpha", self.alpha)?;
        unless_training(cx, inputs)
    }
}

/// Images with a rectangle of another image. It is the identity outside of training, and refused in training.
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
        /// Ignored; kept for compatibility with Keras.
        seed: Option<i64>,
    }
}

impl Layer for CutMix {
    keras_class!("CutMix");

    fn call(&self, cx: &mut LayerContext<'_>, inputs: &[NodeId]) -> Result<Outputs> {
        self.factor.within(cx, "factor", [0.0, 1.0])?;
        unless_training(cx, inputs)
    }
}
