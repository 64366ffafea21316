//! Zero padding: an axis of `n` elements becomes one of `before + n + after`.

use super::spatial::{ImageDataFormat, Sides, restore, spatial};
use super::support::check_countable;
use crate::by_name::ByName;
use crate::config::setters;
use crate::error::Result;
use crate::layer::{Layer, LayerContext, Outputs};
use crate::registry::keras_class;
use phalanx_graph::{NodeId, Op};
use serde::{Deserialize, Serialize};

/// Pads a sequence with zeros.
///
/// ```
/// use phalanx::layer::Layer;
/// use phalanx::layers::ZeroPadding1D;
///
/// let pad = ZeroPadding1D::new((0, 2));
/// assert_eq!(pad.config()["padding"], serde_json::json!([0, 2]));
/// ```
pub type ZeroPadding1D = ZeroPadding<1>;

/// Pads an image with zeros.
///
/// ```
/// use phalanx::layer::Layer;
/// use phalanx::layers::ZeroPadding2D;
///
/// let pad = ZeroPadding2D::new(((0, 1), (2, 3)));
/// assert_eq!(pad.config()["padding"], serde_json::json!([[0, 1], [2, 3]]));
/// ```
pub type ZeroPadding2D = ZeroPadding<2>;

/// Pads a volume with zeros.
///
/// ```
/// use phalanx::layer::Layer;
/// use phalanx::layers::ZeroPadding3D;
///
/// let pad = ZeroPadding3D::new([(0, 1), (2, 3), (0, 0)]);
/// assert_eq!(pad.config()["padding"], serde_json::json!([[0, 1], [2, 3], [0, 0]]));
/// ```
pub type ZeroPadding3D = ZeroPadding<3>;

/// Pads `N` spatial axes with zeros.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(default = "Default::default", deny_unknown_fields)]
pub struct ZeroPadding<const N: usize> {
    padding: Sides<N>,
    data_format: ByName<ImageDataFormat>,
}

impl<const N: usize> Default for ZeroPadding<N> {
    fn default() -> ZeroPadding<N> {
        ZeroPadding::new(1)
    }
}

impl<const N: usize> ZeroPadding<N> {
    const NAME: &'static str = ["ZeroPadding1D", "ZeroPadding2D", "ZeroPadding3D"][N - 1];

    /// One number for all sides, one for each axis, or one for each side.
    pub fn new(padding: impl Into<Sides<N>>) -> ZeroPadding<N> {
        ZeroPadding { padding: padding.into(), data_format: ImageDataFormat::ChannelsLast.into() }
    }

    setters! {
        /// `channels_last` (the default) or `channels_first`.
        data_format: impl Into<ByName<ImageDataFormat>>,
    }
}

impl<const N: usize> Layer for ZeroPadding<N> {
    keras_class!(ZeroPadding::<N>::NAME);

    fn call(&self, cx: &mut LayerContext<'_>, inputs: &[NodeId]) -> Result<Outputs> {
        let x = spatial::<N>(cx, inputs, &self.data_format)?;
        let wider = |(n, [a, b]): (usize, [usize; 2])| n.checked_add(a)?.checked_add(b);
        let sizes = x.sizes.into_iter().zip(self.padding.0).map(wider);
        let dims: Vec<Option<usize>> = sizes.chain([Some(x.channels)]).collect();
        check_countable(cx, "padding", &dims)?;
        let [before, after] = [0, 1].map(|side| {
            self.padding.0.iter().map(|pair| pair[side]).chain([0]).collect::<Vec<usize>>()
        });
        let y = cx.graph().push(Op::Pad { before, after }, &[x.x])?;
        Ok(restore(cx, y, &self.data_format)?.into())
    }
}
