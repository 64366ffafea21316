//! A penalty on the values between two layers: `l1 Σ|x| + l2 Σx²`, divided by the size of the batch, joins the loss.
//!
//! The output is the input.

use super::support::{check_finite, single};
use crate::error::Result;
use crate::layer::{Layer, LayerContext, MaskRule, Outputs};
use crate::registry::keras_class;
use crate::regularizers::Regularizer;
use phalanx_graph::NodeId;
use serde::{Deserialize, Serialize};

/// Adds a penalty on its input to the loss.
///
/// ```
/// use phalanx::layer::Layer;
/// use phalanx::layers::ActivityRegularization;
///
/// let layer = ActivityRegularization::new(0.0, 0.01);
/// assert_eq!(layer.config()["l2"], 0.01);
/// ```
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct ActivityRegularization {
    l1: f64,
    l2: f64,
}

impl ActivityRegularization {
    /// The factors of the absolute values and of the squares.
    pub fn new(l1: f64, l2: f64) -> ActivityRegularization {
        ActivityRegularization { l1, l2 }
    }
}

impl Layer for ActivityRegularization {
    keras_class!("ActivityRegularization");

    fn mask_rule(&self) -> MaskRule {
        MaskRule::Pass
    }

    fn activity_penalty(&self) -> Result<Option<Regularizer>> {
        Ok(Some(Regularizer::l1_l2(self.l1, self.l2)))
    }

    fn call(&self, cx: &mut LayerContext<'_>, inputs: &[NodeId]) -> Result<Outputs> {
        check_finite(cx, "l1", self.l1)?;
        check_finite(cx, "l2", self.l2)?;
        Ok(single(cx, inputs)?.into())
    }
}
