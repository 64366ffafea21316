//! An activation as a separate layer; see [`ActivationFn`] for the functions.

use super::support::single;
use crate::activations::ActivationFn;
use crate::by_name::ByName;
use crate::error::Result;
use crate::layer::{Layer, LayerContext, MaskRule, Outputs};
use crate::registry::keras_class;
use phalanx_graph::NodeId;
use serde::{Deserialize, Serialize};

/// An activation function as a layer.
///
/// ```
/// use phalanx::layer::Layer;
/// use phalanx::layers::Activation;
///
/// assert_eq!(Activation::new("tanh").config()["activation"], "tanh");
/// ```
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Activation {
    activation: ByName<ActivationFn>,
}

impl Activation {
    /// Creates a layer that applies this function.
    pub fn new(activation: impl Into<ByName<ActivationFn>>) -> Activation {
        Activation { activation: activation.into() }
    }
}

impl Layer for Activation {
    keras_class!("Activation");

    fn mask_rule(&self) -> MaskRule {
        MaskRule::Pass
    }

    fn call(&self, cx: &mut LayerContext<'_>, inputs: &[NodeId]) -> Result<Outputs> {
        let x = single(cx, inputs)?;
        Ok(self.activation.get()?.apply(cx.graph(), x)?.into())
    }
}
