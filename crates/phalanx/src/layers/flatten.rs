//! Flattens each sample: `(batch, a, b, ..)` becomes `(batch, a · b · ..)`, and `(batch,)` becomes
//! `(batch, 1)`.

use super::spatial::ImageDataFormat;
use super::support::single;
use crate::by_name::ByName;
use crate::config::setters;
use crate::error::Result;
use crate::layer::{Layer, LayerContext, Outputs};
use crate::registry::keras_class;
use phalanx_graph::{NodeId, Op};
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
    data_format: ByName<ImageDataFormat>,
}

impl Flatten {
    /// Creates the layer.
    pub fn new() -> Flatten {
        Flatten::default()
    }

    setters! {
        /// `channels_last` (the default), or `channels_first`, which moves axis 1 to the end first.
        data_format: impl Into<ByName<ImageDataFormat>>,
    }
}

impl Layer for Flatten {
    keras_class!("Flatten");

    fn call(&self, cx: &mut LayerContext<'_>, inputs: &[NodeId]) -> Result<Outputs> {
        let mut x = single(cx, inputs)?;
        let dims = cx.dims(x);
        if *self.data_format.get()? == ImageDataFormat::ChannelsFirst && dims.len() > 1 {
            let perm = (1..dims.len()).chain([0]).collect();
            x = cx.graph().push(Op::Transpose { perm }, &[x])?;
        }
        Ok(cx.graph().reshape(x, &[dims.iter().product()])?.into())
    }
}
