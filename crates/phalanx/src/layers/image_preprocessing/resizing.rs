//! Resizing of images: `(batch, h, w, c)` becomes `(batch, height, width, c)`. Pixel centers are aligned, and
//! pixels beyond the border have no weight.
//!
//! By default the aspect ratio changes with the size. Optionally the image is first cropped or padded to the
//! new aspect ratio.

use super::super::support::{DataFormat, check_countable, check_finite};
use super::center_crop::check_size;
use super::resize::{Resampling, aspect_window, resize, scaled_length};
use super::{float_image, window};
use crate::by_name::ByName;
use crate::config::setters;
use crate::error::Result;
use crate::layer::{Layer, LayerContext, Outputs};
use crate::registry::keras_class;
use phalanx_graph::{NodeId, Op};
use serde::{Deserialize, Serialize};

/// How images are padded to the new aspect ratio. Keras has only one mode.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Border {
    #[default]
    Constant,
}

/// Resizes images.
///
/// ```
/// use phalanx::layer::Layer;
/// use phalanx::layers::Resizing;
///
/// let small = Resizing::new(32, 48).interpolation("nearest").crop_to_aspect_ratio(true);
/// assert_eq!(small.config()["height"], 32);
/// ```
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Resizing {
    height: usize,
    width: usize,
    #[serde(default = "bilinear")]
    interpolation: ByName<Resampling>,
    #[serde(default)]
    crop_to_aspect_ratio: bool,
    #[serde(default)]
    pad_to_aspect_ratio: bool,
    #[serde(default)]
    fill_mode: Border,
    #[serde(default)]
    fill_value: f64,
    #[serde(default)]
    antialias: bool,
    #[serde(default)]
    data_format: DataFormat,
}

fn bilinear() -> ByName<Resampling> {
    Resampling::Bilinear.into()
}

impl Resizing {
    /// The new size.
    pub fn new(height: usize, width: usize) -> Resizing {
        Resizing {
            height,
            width,
            interpolation: bilinear(),
            crop_to_aspect_ratio: false,
            pad_to_aspect_ratio: false,
            fill_mode: Border::Constant,
            fill_value: 0.0,
            antialias: false,
            data_format: DataFormat::ChannelsLast,
        }
    }

    setters! {
        /// `bilinear` (the default), `nearest`, `bicubic`, `lanczos3` or `lanczos5`.
        interpolation: impl Into<ByName<Resampling>>,
        /// Whether to crop the image to the new aspect ratio first.
        crop_to_aspect_ratio: bool,
        /// Whether to pad the image to the new aspect ratio first.
        pad_to_aspect_ratio: bool,
        /// The padding value; defaults to 0.
        fill_value: f64,
        /// Whether to smooth an image before it is made smaller.
        antialias: bool,
    }

    /// Pads the image equally above and below, or left and right.
    fn pad(&self, cx: &mut LayerContext<'_>, x: NodeId, [h, w, c]: [usize; 3]) -> Result<NodeId> {
        let above = (scaled_length(w, self.height, self.width).max(h) - h) / 2;
        let left = (scaled_length(h, self.width, self.height).max(w) - w) / 2;
        let border = if above > 0 { [above, 0, 0] } else { [0, left, 0] };
        if border == [0; 3] {
            return Ok(x);
        }
        let full = [h.checked_add(2 * border[0]), w.checked_add(2 * border[1]), Some(c)];
        check_countable(cx, "pad_to_aspect_ratio", &full)?;
        let sides = || border.to_vec();
        let fill = self.fill_value;
        let g = cx.graph();
        if fill == 0.0 {
            return Ok(g.push(Op::Pad { before: sides(), after: sides() }, &[x])?);
        }
        // Zeros around the image, then the fill value where they are.
        let inside = g.fill(1.0, &[h, w, 1]);
        let inside = g.push(Op::Pad { before: sides(), after: sides() }, &[inside])?;
        let outside = g.scale(inside, -fill)?;
        let outside = g.offset(outside, fill)?;
        let x = g.push(Op::Pad { before: sides(), after: sides() }, &[x])?;
        Ok(g.add(x, outside)?)
    }
}

impl Layer for Resizing {
    keras_class!("Resizing");

    fn call(&self, cx: &mut LayerContext<'_>, inputs: &[NodeId]) -> Result<Outputs> {
        let size = [self.height, self.width];
        check_size(cx, size)?;
        check_finite(cx, "fill_value", self.fill_value)?;
        if self.crop_to_aspect_ratio && self.pad_to_aspect_ratio {
            let expected = "false if crop_to_aspect_ratio is true";
            return Err(cx.argument("pad_to_aspect_ratio", expected, true));
        }
        let resampling = *self.interpolation.get()?;
        let (mut x, dims) = float_image(cx, inputs)?;
        if self.crop_to_aspect_ratio {
            let (start, len) = aspect_window([dims[0], dims[1]], size);
            x = window(cx, x, start, len)?;
        } else if self.pad_to_aspect_ratio {
            x = self.pad(cx, x, dims)?;
        }
        Ok(resize(cx, x, size, resampling, self.antialias)?.into())
    }
}
