//! Upsampling: an axis of `n` elements becomes one of `n · size`.
//!
//! `nearest` repeats elements; the others (of `UpSampling2D`) interpolate between the centres of pixels.

use super::image_preprocessing::{Resampling, resize};
use super::spatial::{ImageDataFormat, Sizes, Spatial, check_all_at_least_one, restore, spatial};
use super::support::{check_at_least_one, check_countable};
use crate::by_name::ByName;
use crate::config::setters;
use crate::error::Result;
use crate::layer::{Layer, LayerContext, Outputs};
use crate::registry::keras_class;
use phalanx_graph::{NodeId, Op};
use serde::{Deserialize, Serialize};

/// Checks that the result of an upsampling fits in memory.
fn check_sizes<const N: usize>(
    cx: &LayerContext<'_>,
    x: &Spatial<N>,
    size: [usize; N],
) -> Result<()> {
    let sizes = x.sizes.into_iter().zip(size).map(|(n, size)| n.checked_mul(size));
    let dims: Vec<Option<usize>> = sizes.chain([Some(x.channels)]).collect();
    check_countable(cx, "size", &dims).map(|_| ())
}

/// Repeats the elements of a sequence.
///
/// ```
/// use phalanx::layer::Layer;
/// use phalanx::layers::UpSampling1D;
///
/// assert_eq!(UpSampling1D::new(3).config()["size"], 3);
/// ```
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct UpSampling1D {
    size: usize,
}

impl Default for UpSampling1D {
    fn default() -> UpSampling1D {
        UpSampling1D::new(2)
    }
}

impl UpSampling1D {
    /// Repeats each element `size` times.
    pub fn new(size: usize) -> UpSampling1D {
        UpSampling1D { size }
    }
}

impl Layer for UpSampling1D {
    keras_class!("UpSampling1D");

    fn call(&self, cx: &mut LayerContext<'_>, inputs: &[NodeId]) -> Result<Outputs> {
        check_at_least_one(cx, "size", self.size)?;
        let x = spatial::<1>(cx, inputs, &ImageDataFormat::ChannelsLast.into())?;
        check_sizes(cx, &x, [self.size])?;
        let [steps] = x.sizes;
        let g = cx.graph();
        let y = g.reshape(x.x, &[1, steps, x.channels])?;
        let y = g.push(Op::Upsample { size: [1, self.size], bilinear: false }, &[y])?;
        Ok(g.reshape(y, &[steps * self.size, x.channels])?.into())
    }
}

/// Upsamples an image.
///
/// ```
/// use phalanx::layer::Layer;
/// use phalanx::layers::UpSampling2D;
///
/// let up = UpSampling2D::new(2).interpolation("bilinear");
/// assert_eq!(up.config()["size"], serde_json::json!([2, 2]));
/// ```
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct UpSampling2D {
    size: Sizes<2>,
    data_format: ByName<ImageDataFormat>,
    interpolation: ByName<Resampling>,
}

impl Default for UpSampling2D {
    fn default() -> UpSampling2D {
        UpSampling2D::new(2)
    }
}

impl UpSampling2D {
    /// The factors for height and width.
    pub fn new(size: impl Into<Sizes<2>>) -> UpSampling2D {
        UpSampling2D {
            size: size.into(),
            data_format: ImageDataFormat::ChannelsLast.into(),
            interpolation: Resampling::Nearest.into(),
        }
    }

    setters! {
        /// `channels_last` (the default) or `channels_first`.
        data_format: impl Into<ByName<ImageDataFormat>>,
        /// `nearest` (the default), `bilinear`, `bicubic`, `lanczos3` or `lanczos5`.
        interpolation: impl Into<ByName<Resampling>>,
    }
}

impl Layer for UpSampling2D {
    keras_class!("UpSampling2D");

    fn call(&self, cx: &mut LayerContext<'_>, inputs: &[NodeId]) -> Result<Outputs> {
        let interpolation = *self.interpolation.get()?;
        check_all_at_least_one(cx, "size", self.size)?;
        let x = spatial(cx, inputs, &self.data_format)?;
        let size = self.size.0;
        check_sizes(cx, &x, size)?;
        let y = match interpolation {
            Resampling::Nearest | Resampling::Bilinear => {
                let bilinear = interpolation == Resampling::Bilinear;
                cx.graph().push(Op::Upsample { size, bilinear }, &[x.x])?
            }
            Resampling::Bicubic | Resampling::Lanczos3 | Resampling::Lanczos5 => {
                let [height, width] = x.sizes;
                resize(cx, x.x, [height * size[0], width * size[1]], interpolation, false)?
            }
        };
        Ok(restore(cx, y, &self.data_format)?.into())
    }
}

/// Repeats the elements of a volume.
///
/// ```
/// use phalanx::layer::Layer;
/// use phalanx::layers::UpSampling3D;
///
/// assert_eq!(UpSampling3D::new(2).config()["size"], serde_json::json!([2, 2, 2]));
/// ```
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct UpSampling3D {
    size: Sizes<3>,
    data_format: ByName<ImageDataFormat>,
}

impl Default for UpSampling3D {
    fn default() -> UpSampling3D {
        UpSampling3D::new(2)
    }
}

impl UpSampling3D {
    /// The factors for depth, height and width.
    pub fn new(size: impl Into<Sizes<3>>) -> UpSampling3D {
        UpSampling3D { size: size.into(), data_format: ImageDataFormat::ChannelsLast.into() }
    }

    setters! {
        /// `channels_last` (the default) or `channels_first`.
        data_format: impl Into<ByName<ImageDataFormat>>,
    }
}

impl Layer for UpSampling3D {
    keras_class!("UpSampling3D");

    fn call(&self, cx: &mut LayerContext<'_>, inputs: &[NodeId]) -> Result<Outputs> {
        check_all_at_least_one(cx, "size", self.size)?;
        let x = spatial(cx, inputs, &self.data_format)?;
        check_sizes(cx, &x, self.size.0)?;
        let (Sizes([slices, lines, columns]), channels) = (self.size, x.channels);
        let [depth, height, width] = x.sizes;
        let g = cx.graph();
        // First the width, then depth and height, as images.
        let y = g.reshape(x.x, &[depth * height, width, channels])?;
        let y = g.push(Op::Upsample { size: [1, columns], bilinear: false }, &[y])?;
        let y = g.reshape(y, &[depth, height, width * columns * channels])?;
        let y = g.push(Op::Upsample { size: [slices, lines], bilinear: false }, &[y])?;
        let y = g.reshape(y, &[depth * slices, height * lines, width * columns, channels])?;
        Ok(restore(cx, y, &self.data_format)?.into())
    }
}
