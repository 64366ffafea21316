//! Pooling over all spatial axes.
//!
//! Input `(batch, spatial axes, channels)`, output `(batch, channels)`, or `(batch, 1, .., channels)` with `keepdims`.

use super::spatial::{ImageDataFormat, restore, spatial};
use crate::by_name::ByName;
use crate::config::setters;
use crate::error::Result;
use crate::layer::{Layer, LayerContext, Outputs};
use crate::registry::keras_class;
use phalanx_graph::ops::ReduceKind;
use phalanx_graph::{Graph, NodeId, Op};
use serde::{Deserialize, Serialize};

/// The mean, over the valid steps if there is a mask.
fn mean(g: &mut Graph, x: NodeId, axes: &[usize], mask: Option<NodeId>) -> Result<NodeId> {
    let Some(mask) = mask else { return Ok(g.mean_axes(x, axes)?) };
    let steps = g.ty(mask).len();
    let mask = g.reshape(mask, &[steps, 1])?;
    let valid = g.mul(x, mask)?;
    let (sum, count) = (g.sum_axes(valid, axes)?, g.sum_axes(mask, axes)?);
    Ok(g.div(sum, count)?)
}

fn max(g: &mut Graph, x: NodeId, axes: &[usize], _: Option<NodeId>) -> Result<NodeId> {
    Ok(g.push(Op::Reduce { kind: ReduceKind::Max, axes: axes.to_vec() }, &[x])?)
}

/// Both families have the same config and differ only in the reduction.
macro_rules! global_pooling_layer {
    ($name:ident, $names:expr, $reduce:ident, $doc:literal) => {
        #[doc = $doc]
        #[derive(Clone, Debug, Default, Serialize, Deserialize)]
        #[serde(default = "Default::default", deny_unknown_fields)]
        pub struct $name<const N: usize> {
            data_format: ByName<ImageDataFormat>,
            keepdims: bool,
        }

        impl<const N: usize> $name<N> {
            const NAME: &'static str = $names[N - 1];

            /// The layer with an output `(batch, channels)`.
            pub fn new() -> $name<N> {
                $name::default()
            }

            setters! {
                /// `channels_last` (the default) or `channels_first`.
                data_format: impl Into<ByName<ImageDataFormat>>,
                /// Whether to keep the spatial axes, with size one.
                keepdims: bool,
            }
        }

        impl<const N: usize> Layer for $name<N> {
            keras_class!($name::<N>::NAME);

            fn call(&self, cx: &mut LayerContext<'_>, inputs: &[NodeId]) -> Result<Outputs> {
                let x = spatial::<N>(cx, inputs, &self.data_format)?;
                let axes: Vec<usize> = (0..N).collect();
                let mask = cx.mask(0).filter(|_| N == 1);
                let y = $reduce(cx.graph(), x.x, &axes, mask)?;
                Ok(if self.keepdims {
                    restore(cx, y, &self.data_format)?
                } else {
                    cx.graph().reshape(y, &[x.channels])?
                }
                .into())
            }
        }
    };
}

global_pooling_layer!(
    GlobalAveragePooling,
    ["GlobalAveragePooling1D", "GlobalAveragePooling2D", "GlobalAveragePooling3D"],
    mean,
    "The mean of every channel over `N` spatial axes."
);
global_pooling_layer!(
    GlobalMaxPooling,
    ["GlobalMaxPooling1D", "GlobalMaxPooling2D", "GlobalMaxPooling3D"],
    max,
    "The largest element of every channel over `N` spatial axes."
);

macro_rules! global_pooling_class {
    ($class:ident, $family:ident, $rank:literal, $doc:literal) => {
        #[doc = $doc]
        ///
        /// ```
        /// use phalanx::layer::Layer;
        #[doc = concat!("use phalanx::layers::", stringify!($class), ";")]
        ///
        #[doc = concat!("let pool = ", stringify!($class), "::new().keepdims(true);")]
        /// assert_eq!(pool.config()["keepdims"], true);
        /// ```
        pub type $class = $family<$rank>;
    };
}

global_pooling_class!(
    GlobalAveragePooling1D,
    GlobalAveragePooling,
    1,
    "The mean of every channel of a sequence."
);
global_pooling_class!(
    GlobalAveragePooling2D,
    GlobalAveragePooling,
    2,
    "The mean of every channel of an image."
);
global_pooling_class!(
    GlobalAveragePooling3D,
    GlobalAveragePooling,
    3,
    "The mean of every channel of a volume."
);
global_pooling_class!(
    GlobalMaxPooling1D,
    GlobalMaxPooling,
    1,
    "The largest element of every channel of a sequence."
);
global_pooling_class!(
    GlobalMaxPooling2D,
    GlobalMaxPooling,
    2,
    "The largest element of every channel of an image."
);
global_pooling_class!(
    GlobalMaxPooling3D,
    GlobalMaxPooling,
    3,
    "The largest element of every channel of a volume."
);
