//! Center crop: `(batch, h, w, c)` becomes `(batch, height, width, c)`. If the image is too small, its largest
//! window with the target aspect ratio is resized bilinearly.

use super::super::support::{DataFormat, check_at_least_one};
use super::resize::{Resampling, aspect_window, resize};
use super::{float_image, window};
use crate::error::Result;
use crate::layer::{Layer, LayerContext, Outputs};
use crate::registry::keras_class;
use phalanx_graph::NodeId;
use serde::{Deserialize, Serialize};

/// Crops the center of an image.
///
/// ```
/// use phalanx::layer::Layer;
/// use phalanx::layers::CenterCrop;
///
/// assert_eq!(CenterCrop::new(24, 32).config()["width"], 32);
/// ```
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CenterCrop {
    height: usize,
    width: usize,
    #[serde(default)]
    data_format: DataFormat,
}

impl CenterCrop {
    /// The output size.
    pub fn new(height: usize, width: usize) -> CenterCrop {
        CenterCrop { height, width, data_format: DataFormat::ChannelsLast }
    }
}

/// Fails if the output has no pixels.
pub(super) fn check_size(cx: &LayerContext<'_>, [height, width]: [usize; 2]) -> Result<()> {
    check_at_least_one(cx, "height", height)?;
    check_at_least_one(cx, "width", width)
}

/// The center of an image, or the largest possible window of an image that is too small.
pub(super) fn center(
    cx: &mut LayerContext<'_>,
    x: NodeId,
    [h, w]: [usize; 2],
    size: [usize; 2],
) -> Result<NodeId> {
    if h >= size[0] && w >= size[1] {
        return window(cx, x, [(h - size[0]) / 2, (w - size[1]) / 2], size);
    }
    let (start, len) = aspect_window([h, w], size);
    let x = window(cx, x, start, len)?;
    resize(cx, x, size, Resampling::Bilinear, false)
}

impl Layer for CenterCrop {
    keras_class!("CenterCrop");

    fn call(&self, cx: &mut LayerContext<'_>, inputs: &[NodeId]) -> Result<Outputs> {
        let size = [self.height, self.width];
        check_size(cx, size)?;
        let (x, [h, w, _]) = float_image(cx, inputs)?;
        Ok(center(cx, x, [h, w], size)?.into())
    }
}
