//! Flattens each sample: `(batch, a, b, ..)` becomes `(batch, a · b · ..)`, and `(batch,)` becomes
//! `(batch, 1)`.

use super::support::{DataFormat, single};
use crate::config;
use crate::error::Result;
use crate::layer::{Layer, LayerContext};
use phalanx_graph::NodeId;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

/// Flattens each sample.
///
/// ```
/// use phalanx::layer::Layer;
/// use phalanx::layers::Flatten;
///
/// assert_eq!(Flatten::new().class_name(), "Flatten");
/// ```
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Flatten {
    data_format: DataFormat,
}

impl Flatten {
    /// Creates the layer.
    pub fn new() -> Flatten {
        Flatten::default()
    }
}

impl Layer for Flatten {
    fn class_name(&self) -> &'static str {
        "Flatten"
    }

    fn config(&self) -> Map<String, Value> {
        config::write(self)
    }

    fn call(&self, cx: &mut LayerContext<'_>, inputs: &[NodeId]) -> Result<NodeId> {
        let x = single(cx, inputs)?;
        let len = cx.dims(x).iter().product();
        Ok(cx.graph().reshape(x, &[len])?)
    }
}
