//! The identity: the output is the input.

use super::support::single;
use crate::error::Result;
use crate::layer::{Layer, LayerContext, MaskRule, Outputs};
use crate::registry::keras_class;
use phalanx_graph::NodeId;
use serde::{Deserialize, Serialize};

/// Passes its input on.
///
/// ```
/// use phalanx::layer::Layer;
/// use phalanx::layers::Identity;
///
/// assert!(Identity::new().config().is_empty());
/// ```
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Identity {}

impl Identity {
    /// Creates the layer.
    pub fn new() -> Identity {
        Identity::default()
    }
}

impl Layer for Identity {
    keras_class!("Identity");

    fn mask_rule(&self) -> MaskRule {
        MaskRule::Pass
    }

    fn call(&self, cx: &mut LayerContext<'_>, inputs: &[NodeId]) -> Result<Outputs> {
        Ok(single(cx, inputs)?.into())
    }
}
