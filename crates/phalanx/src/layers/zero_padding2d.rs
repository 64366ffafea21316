//! Zero padding of images: `(batch, h, w, c)` becomes `(batch, top + h + bottom, left + w + right, c)`.

use super::support::{DataFormat, Sides, check_countable, image};
use crate::error::Result;
use crate::layer::{Layer, LayerContext, Outputs};
use crate::registry::keras_class;
use phalanx_graph::{NodeId, Op};
use serde::{Deserialize, Serialize};

/// Pads an image with zeros.
///
/// ```
/// use phalanx::layer::Layer;
/// use phalanx::layers::ZeroPadding2D;
///
/// let pad = ZeroPadding2D::new(((0, 1), (2, 3)));
/// assert_eq!(pad.config()["padding"], serde_json::json!([[0, 1], [2, 3]]));
/// ```
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct ZeroPadding2D {
    padding: Sides,
    data_format: DataFormat,
}

impl Default for ZeroPadding2D {
    fn default() -> ZeroPadding2D {
        ZeroPadding2D::new(1)
    }
}

impl ZeroPadding2D {
    /// One number for all sides, `(vertical, horizontal)`, or `((top, bottom), (left, right))`.
    pub fn new(padding: impl Into<Sides>) -> ZeroPadding2D {
        ZeroPadding2D { padding: padding.into(), data_format: DataFormat::ChannelsLast }
    }
}

impl Layer for ZeroPadding2D {
    keras_class!("ZeroPadding2D");

    fn call(&self, cx: &mut LayerContext<'_>, inputs: &[NodeId]) -> Result<Outputs> {
        let (x, [h, w, c]) = image(cx, inputs)?;
        let Sides([[top, bottom], [left, right]]) = self.padding;
        let wider = |n: usize, a: usize, b: usize| n.checked_add(a)?.checked_add(b);
        let dims = [wider(h, top, bottom), wider(w, left, right), Some(c)];
        check_countable(cx, "padding", &dims)?;
        let op = Op::Pad { before: vec![top, left, 0], after: vec![bottom, right, 0] };
        Ok(cx.graph().push(op, &[x])?.into())
    }
}
