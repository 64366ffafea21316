//! Random crop: `(batch, h, w, c)` becomes `(batch, height, width, c)`. In training the window is random for
//! each sample; otherwise it is the center. If the image is too small, it is resized as by `CenterCrop`.

use super::super::support::DataFormat;
use super::affine::{Affine, IDENTITY, pixel_geometry, sample};
use super::center_crop::{center, check_size};
use super::{float_image, uniform};
use crate::config::setters;
use crate::error::Result;
use crate::layer::{Layer, LayerContext, Outputs};
use crate::registry::keras_class;
use phalanx_graph::NodeId;
use phalanx_graph::ops::Unary;
use serde::{Deserialize, Serialize};

/// Crops a random window of each image in training, else the center.
///
/// ```
/// use phalanx::layer::Layer;
/// use phalanx::layers::RandomCrop;
///
/// assert_eq!(RandomCrop::new(24, 32).config()["height"], 24);
/// ```
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RandomCrop {
    height: usize,
    width: usize,
    seed: Option<i64>,
    #[serde(default)]
    data_format: DataFormat,
}

impl RandomCrop {
    /// The output size.
    pub fn new(height: usize, width: usize) -> RandomCrop {
        RandomCrop { height, width, seed: None, data_format: DataFormat::ChannelsLast }
    }

    setters! {
        /// Ignored; kept for compatibility with Keras. The run's seed is used.
        seed: Option<i64>,
    }
}

impl Layer for RandomCrop {
    keras_class!("RandomCrop");

    fn call(&self, cx: &mut LayerContext<'_>, inputs: &[NodeId]) -> Result<Outputs> {
        let size = [self.height, self.width];
        check_size(cx, size)?;
        let (x, dims) = float_image(cx, inputs)?;
        let [h, w, _] = dims;
        if h < size[0] || w < size[1] || [h, w] == size {
            return Ok(center(cx, x, [h, w], size)?.into());
        }
        let slopes = [[0.0, 0.0, 0.0, 0.0, 0.0, 1.0], [0.0, 0.0, 1.0, 0.0, 0.0, 0.0]];
        if !cx.training() {
            return Ok(center(cx, x, [h, w], size)?.into());
        }
        let mut start = |places: usize| -> Result<NodeId> {
            let u = uniform(cx, &[1])?;
            let at = cx.graph().scale(u, places as f64)?;
            Ok(cx.graph().unary(Unary::Floor, at)?)
        };
        let starts = [start(h - size[0] + 1)?, start(w - size[1] + 1)?];
        let matrix = Affine { base: IDENTITY, slopes }.matrix(cx, starts)?;
        Ok(sample(cx, pixel_geometry(dims, size), x, matrix)?.into())
    }
}
