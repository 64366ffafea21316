//! Pooling over the whole image.
//!
//! Input `(batch, height, width, channels)`, output `(batch, channels)`, or `(batch, 1, 1, channels)`
//! with `keepdims`.

use super::support::{DataFormat, image};
use crate::config::setters;
use crate::error::Result;
use crate::layer::{Layer, LayerContext, Outputs};
use crate::registry::keras_class;
use phalanx_graph::ops::ReduceKind;
use phalanx_graph::{NodeId, Op};
use serde::{Deserialize, Serialize};

const PIXELS: [usize; 2] = [0, 1];

fn squeeze(cx: &mut LayerContext<'_>, y: NodeId, keepdims: bool) -> Result<NodeId> {
    let channels = cx.dims(y)[2];
    if keepdims { Ok(y) } else { Ok(cx.graph().reshape(y, &[channels])?) }
}

/// The mean of every channel.
///
/// ```
/// use phalanx::layer::Layer;
/// use phalanx::layers::GlobalAveragePooling2D;
///
/// let pool = GlobalAveragePooling2D::new().keepdims(true);
/// assert_eq!(pool.config()["keepdims"], true);
/// ```
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct GlobalAveragePooling2D {
    data_format: DataFormat,
    keepdims: bool,
}

impl GlobalAveragePooling2D {
    /// The layer with an output `(batch, channels)`.
    pub fn new() -> GlobalAveragePooling2D {
        GlobalAveragePooling2D::default()
    }

    setters! {
        /// Whether to keep height and width, with size one.
        keepdims: bool,
    }
}

impl Layer for GlobalAveragePooling2D {
    keras_class!("GlobalAveragePooling2D");

    fn call(&self, cx: &mut LayerContext<'_>, inputs: &[NodeId]) -> Result<Outputs> {
        let (x, _) = image(cx, inputs)?;
        let y = cx.graph().mean_axes(x, &PIXELS)?;
        Ok(squeeze(cx, y, self.keepdims)?.into())
    }
}

/// The largest element of every channel.
///
/// ```
/// use phalanx::layer::Layer;
/// use phalanx::layers::GlobalMaxPooling2D;
///
/// assert_eq!(GlobalMaxPooling2D::new().config()["keepdims"], false);
/// ```
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct GlobalMaxPooling2D {
    data_format: DataFormat,
    keepdims: bool,
}

impl GlobalMaxPooling2D {
    /// The layer with an output `(batch, channels)`.
    pub fn new() -> GlobalMaxPooling2D {
        GlobalMaxPooling2D::default()
    }

    setters! {
        /// Whether to keep height and width, with size one.
        keepdims: bool,
    }
}

impl Layer for GlobalMaxPooling2D {
    keras_class!("GlobalMaxPooling2D");

    fn call(&self, cx: &mut LayerContext<'_>, inputs: &[NodeId]) -> Result<Outputs> {
        let (x, _) = image(cx, inputs)?;
        let op = Op::Reduce { kind: ReduceKind::Max, axes: PIXELS.to_vec() };
        let y = cx.graph().push(op, &[x])?;
        Ok(squeeze(cx, y, self.keepdims)?.into())
    }
}
