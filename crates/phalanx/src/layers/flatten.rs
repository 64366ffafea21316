//! Flattens each sample: `(batch, a, b, ..)` becomes `(batch, a · b · ..)`, and `(batch,)` becomes
//! `(batch, 1)`.

use super::support::{DataFormat, single};
use crate::error::Result;
use crate::layer::{Layer, LayerContext, Outputs};
use crate::registry::keras_class;
use phalanx_graph::NodeId;
use serde::{Deserialize, Serialize};

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
    keras_class!("Flatten");

    fn call(&self, cx: &mut LayerContext<'_>, inputs: &[NodeId]) -> Result<Outputs> {
        let x = single(cx, inputs)?;
        let len = cx.dims(x).iter().product();
        Ok(cx.graph().reshape(x, &[len])?.into())
    }
}
