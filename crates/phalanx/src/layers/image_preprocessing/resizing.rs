//! An image in another size: `(batch, h, w, c)` becomes `(batch, height, width, c)`. Pixel centres keep
//! their place, and beyond the border there is nothing to weigh.
//!
//! Unless asked otherwise the proportions change with the size; an image can be cut, or filled up, to
//! the new proportions first.

use super::super::support::{DataFormat, countable, finite, setters};
use super::center_crop::check_size;
use super::resize::{Resampling, aspect_window, proportion, resize};
use super::{float_image, window};
use crate::choice::Choice;
use crate::config;
use crate::error::Result;
use crate::layer::{Layer, LayerContext};
use phalanx_graph::{NodeId, Op};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

/// How images are filled up to their new proportions. Keras has the one way.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Border {
    #[default]
    Constant,
}

/// An image in another size.
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
    interpolation: Choice<Resampling>,
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

fn bilinear() -> Choice<Resampling> {
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
        /// `bilinear` (unless set), `nearest`, `bicubic`, `lanczos3` or `lanczos5`.
        interpolation: impl Into<Choice<Resampling>>,
        /// Whether the image is cut to the new proportions first.
        crop_to_aspect_ratio: bool,
        /// Whether the image is filled up to the new proportions first.
        pad_to_aspect_ratio: bool,
        /// What it is filled up with; 0 unless set.
        fill_value: f64,
        /// Whether an image that becomes smaller is smoothed first.
        antialias: bool,
    }

    /// The image with equal borders above and below, or left and right.
    fn pad(&self, cx: &mut LayerContext<'_>, x: NodeId, [h, w, c]: [usize; 3]) -> Result<NodeId> {
        let above = (proportion(w, self.height, self.width).max(h) - h) / 2;
        let left = (proportion(h, self.width, self.height).max(w) - w) / 2;
        let border = if above > 0 { [above, 0, 0] } else { [0, left, 0] };
        if border == [0; 3] {
            return Ok(x);
        }
        let full = [h.checked_add(2 * border[0]), w.checked_add(2 * border[1]), Some(c)];
        countable(cx, "pad_to_aspect_ratio", &full)?;
        let sides = || border.to_vec();
        let fill = self.fill_value;
        let g = cx.graph();
        if fill == 0.0 {
            return Ok(g.push(Op::Pad { before: sides(), after: sides() }, &[x])?);
        }
        // Zeros around the image, and the value where they are.
        let inside = g.fill(1.0, &[h, w, 1]);
        let inside = g.push(Op::Pad { before: sides(), after: sides() }, &[inside])?;
        let outside = g.scale(inside, -fill)?;
        let outside = g.offset(outside, fill)?;
        let x = g.push(Op::Pad { before: sides(), after: sides() }, &[x])?;
        Ok(g.add(x, outside)?)
    }
}

impl Layer for Resizing {
    fn class_name(&self) -> &'static str {
        "Resizing"
    }

    fn config(&self) -> Map<String, Value> {
        config::write(self)
    }

    fn call(&self, cx: &mut LayerContext<'_>, inputs: &[NodeId]) -> Result<NodeId> {
        let size = [self.height, self.width];
        check_size(cx, size)?;
        finite(cx, "fill_value", self.fill_value)?;
        if self.crop_to_aspect_ratio && self.pad_to_aspect_ratio {
            let expected = "false where crop_to_aspect_ratio is true";
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
        resize(cx, x, size, resampling, self.antialias)
    }
}
