//! Cropping: an axis of `n` elements becomes one of `n - before - after`.

use super::spatial::{ImageDataFormat, Sides, Spatial, restore, sizes_text, spatial};
use crate::by_name::ByName;
use crate::config::setters;
use crate::error::Result;
use crate::layer::{Layer, LayerContext, Outputs};
use crate::registry::keras_class;
use phalanx_graph::{NodeId, Op};
use serde::{Deserialize, Serialize};

/// Removes elements at both ends of the spatial axes.
fn crop<const N: usize>(
    cx: &mut LayerContext<'_>,
    input: Spatial<N>,
    cropping: Sides<N>,
) -> Result<NodeId> {
    let mut x = input.x;
    for (axis, (size, [before, after])) in input.sizes.into_iter().zip(cropping.0).enumerate() {
        let left = size.checked_sub(before).and_then(|n| n.checked_sub(after));
        let Some(len) = left.filter(|n| *n > 0) else {
            let expected = format!("less than the input's {}", sizes_text(&input.sizes));
            return Err(cx.argument("cropping", &expected, format!("{:?}", cropping.0)));
        };
        if len != size {
            x = cx.graph().push(Op::Slice { axis, start: before, len }, &[x])?;
        }
    }
    Ok(x)
}

/// Crops both ends of a sequence.
///
/// ```
/// use phalanx::layer::Layer;
/// use phalanx::layers::Cropping1D;
///
/// let crop = Cropping1D::new((1, 2));
/// assert_eq!(crop.config()["cropping"], serde_json::json!([1, 2]));
/// ```
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Cropping1D {
    cropping: Sides<1>,
}

impl Default for Cropping1D {
    fn default() -> Cropping1D {
        Cropping1D::new(1)
    }
}

impl Cropping1D {
    /// One number for both ends, or `(start, end)`.
    pub fn new(cropping: impl Into<Sides<1>>) -> Cropping1D {
        Cropping1D { cropping: cropping.into() }
    }
}

impl Layer for Cropping1D {
    keras_class!("Cropping1D");

    fn call(&self, cx: &mut LayerContext<'_>, inputs: &[NodeId]) -> Result<Outputs> {
        let x = spatial(cx, inputs, &ImageDataFormat::ChannelsLast.into())?;
        Ok(crop(cx, x, self.cropping)?.into())
    }
}

/// Crops the sides of an image.
///
/// ```
/// use phalanx::layer::Layer;
/// use phalanx::layers::Cropping2D;
///
/// let crop = Cropping2D::new((1, 2));
/// assert_eq!(crop.config()["cropping"], serde_json::json!([[1, 1], [2, 2]]));
/// ```
pub type Cropping2D = Cropping<2>;

/// Crops the sides of a volume.
///
/// ```
/// use phalanx::layer::Layer;
/// use phalanx::layers::Cropping3D;
///
/// let crop = Cropping3D::new((1, 2, 0));
/// assert_eq!(crop.config()["cropping"], serde_json::json!([[1, 1], [2, 2], [0, 0]]));
/// ```
pub type Cropping3D = Cropping<3>;

/// Crops both ends of `N` spatial axes.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(default = "Default::default", deny_unknown_fields)]
pub struct Cropping<const N: usize> {
    cropping: Sides<N>,
    data_format: ByName<ImageDataFormat>,
}

impl<const N: usize> Default for Cropping<N> {
    fn default() -> Cropping<N> {
        // Keras' defaults.
        Cropping::new(if N == 2 { 0 } else { 1 })
    }
}

impl<const N: usize> Cropping<N> {
    const NAME: &'static str = ["Cropping1D", "Cropping2D", "Cropping3D"][N - 1];

    /// One number for all sides, one for each axis, or one for each side.
    pub fn new(cropping: impl Into<Sides<N>>) -> Cropping<N> {
        Cropping { cropping: cropping.into(), data_format: ImageDataFormat::ChannelsLast.into() }
    }

    setters! {
        /// `channels_last` (the default) or `channels_first`.
        data_format: impl Into<ByName<ImageDataFormat>>,
    }
}

impl<const N: usize> Layer for Cropping<N> {
    keras_class!(Cropping::<N>::NAME);

    fn call(&self, cx: &mut LayerContext<'_>, inputs: &[NodeId]) -> Result<Outputs> {
        let x = spatial(cx, inputs, &self.data_format)?;
        let y = crop(cx, x, self.cropping)?;
        Ok(restore(cx, y, &self.data_format)?.into())
    }
}
