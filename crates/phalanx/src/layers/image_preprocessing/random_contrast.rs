//! `y = clip((x - mean) · f + mean)` with the mean of each channel of each image and a random `f` for each
//! image, in training; otherwise the identity. The output has the shape of the input.

use super::super::support::DataFormat;
use super::{Augmentation, Factor, augment, bytes, check_value_range, uniform_between};
use crate::config::{self, setters};
use crate::error::Result;
use crate::layer::{Layer, LayerContext, Outputs};
use phalanx_graph::NodeId;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

/// Randomly changes the contrast of images in training.
///
/// ```
/// use phalanx::layer::Layer;
/// use phalanx::layers::RandomContrast;
///
/// let contrast = RandomContrast::new(0.2).value_range((0.0, 1.0)); // 0.8 to 1.2 times
/// assert_eq!(contrast.config()["factor"], serde_json::json!([0.2, 0.2]));
/// ```
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RandomContrast {
    factor: Factor,
    #[serde(default = "bytes")]
    value_range: (f64, f64),
    seed: Option<i64>,
    #[serde(default)]
    data_format: DataFormat,
}

impl RandomContrast {
    /// Multiplies the contrast by `1 - factor` to `1 + factor`, or by `1 - lower` to `1 + upper`.
    pub fn new(factor: impl Into<Factor>) -> RandomContrast {
        RandomContrast {
            factor: factor.into(),
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

    /// The distances below and above one.
    fn bounds(&self) -> Factor {
        match self.factor {
            Factor::Both(f) => Factor::Ends([f, f]),
            ends => Factor::Ends(ends.ends()),
        }
    }
}

impl Layer for RandomContrast {
    fn class_name(&self) -> &'static str {
        "RandomContrast"
    }

    fn config(&self) -> Map<String, Value> {
        // Keras writes both bounds even for a single number.
        config::write(&RandomContrast { factor: self.bounds(), ..self.clone() })
    }

    fn call(&self, cx: &mut LayerContext<'_>, inputs: &[NodeId]) -> Result<Outputs> {
        augment(self, cx, inputs)
    }
}

impl Augmentation for RandomContrast {
    fn check(&self, cx: &LayerContext<'_>, _: [usize; 3]) -> Result<()> {
        self.bounds().within_unit(cx, "factor")?;
        check_value_range(cx, self.value_range)
    }

    fn draw(&self, cx: &mut LayerContext<'_>, _: [usize; 3]) -> Result<Vec<NodeId>> {
        let [lower, upper] = self.bounds().ends();
        Ok(vec![uniform_between(cx, &[1, 1, 1], [1.0 - lower, 1.0 + upper])?])
    }

    fn apply(&self, cx: &mut LayerContext<'_>, x: NodeId, drawn: &[NodeId]) -> Result<NodeId> {
        let g = cx.graph();
        let mean = g.mean_axes(x, &[0, 1])?;
        let apart = g.sub(x, mean)?;
        let apart = g.mul(apart, drawn[0])?;
        let y = g.add(apart, mean)?;
        Ok(g.clamp(y, self.value_range.0, self.value_range.1)?)
    }
}
