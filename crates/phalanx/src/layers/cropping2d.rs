//! Cropping of images: `(batch, h, w, c)` becomes `(batch, h - top - bottom, w - left - right, c)`.

use super::support::{DataFormat, Sides, image};
use crate::error::Result;
use crate::layer::{Layer, LayerContext, Outputs};
use crate::registry::keras_class;
use phalanx_graph::{NodeId, Op};
use serde::{Deserialize, Serialize};

/// Crops the sides of an image.
///
/// ```
/// use phalanx::layer::Layer;
/// use phalanx::layers::Cropping2D;
///
/// let crop = Cropping2D::new((1, 2));
/// assert_eq!(crop.config()["cropping"], serde_json::json!([[1, 1], [2, 2]]));
/// ```
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Cropping2D {
    cropping: Sides,
    data_format: DataFormat,
}

impl Default for Cropping2D {
    fn default() -> Cropping2D {
        Cropping2D::new(0)
    }
}

impl Cropping2D {
    /// One number for all sides, `(vertical, horizontal)`, or `((top, bottom), (left, right))`.
    pub fn new(cropping: impl Into<Sides>) -> Cropping2D {
        Cropping2D { cropping: cropping.into(), data_format: DataFormat::ChannelsLast }
    }
}

impl Layer for Cropping2D {
    keras_class!("Cropping2D");

    fn call(&self, cx: &mut LayerContext<'_>, inputs: &[NodeId]) -> Result<Outputs> {
        let (mut x, [h, w, _]) = image(cx, inputs)?;
        let Sides(sides) = self.cropping;
        for (axis, (size, [before, after])) in [h, w].into_iter().zip(sides).enumerate() {
            let left = size.checked_sub(before).and_then(|n| n.checked_sub(after));
            let Some(len) = left.filter(|n| *n > 0) else {
                let expected = format!("less than the input's {h}x{w}");
                return Err(cx.argument("cropping", &expected, format!("{sides:?}")));
            };
            if len != size {
                x = cx.graph().push(Op::Slice { axis, start: before, len }, &[x])?;
            }
        }
        Ok(x.into())
    }
}
