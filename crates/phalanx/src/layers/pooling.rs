//! Pooling over windows: the maximum, or the mean of the elements that are not padding.
//!
//! Input `(batch, spatial axes, channels)`, output `(batch, new spatial axes, channels)`, with as many positions as a
//! convolution of the same size, strides and padding.

use super::spatial::{ImageDataFormat, Padding, Sizes, Spatial, finish, spatial};
use super::window::{Window, output_sizes};
use crate::activations::ActivationFn;
use crate::by_name::ByName;
use crate::config::{self, setters};
use crate::error::Result;
use crate::layer::{Layer, LayerContext, Outputs};
use phalanx_graph::ops::PoolKind;
use phalanx_graph::{ConvGeom, Depth, NodeId, Op};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

/// Appends the pooling of a geometry's windows.
///
/// Windows of volumes are pooled along the width, then along depth and height: both the maximum and the mean of a
/// window can be computed one axis at a time. A tie goes to the first element of the window, as in Keras.
fn pool<const N: usize>(
    cx: &mut LayerContext<'_>,
    kind: PoolKind,
    geom: ConvGeom,
    mut x: NodeId,
) -> Result<Spatial<N>> {
    let ConvGeom {
        depth,
        input: [height, width, channels],
        output: [out_height, out_width, _],
        ..
    } = geom;
    let steps = if geom.is_flat() {
        vec![geom]
    } else {
        let lines = depth.input * height;
        let row = out_width * channels;
        let flat = ConvGeom { depth: Depth::FLAT, ..geom };
        vec![
            ConvGeom {
                input: [lines, width, channels],
                output: [lines, out_width, channels],
                kernel: [1, geom.kernel[1]],
                stride: [1, geom.stride[1]],
                pad: [0, geom.pad[1]],
                ..flat
            },
            ConvGeom {
                input: [depth.input, height, row],
                output: [depth.output, out_height, row],
                kernel: [depth.kernel, geom.kernel[0]],
                stride: [depth.stride, geom.stride[0]],
                pad: [depth.pad, geom.pad[0]],
                ..flat
            },
        ]
    };
    for step in steps {
        x = cx.graph().reshape(x, &step.input)?;
        x = cx.graph().push(Op::Pool(kind, step), &[x])?;
    }
    Ok(Spatial { x, sizes: output_sizes(&geom), channels })
}

/// Both families have the same config and differ only in the reduction of a window.
macro_rules! pooling_layer {
    ($name:ident, $names:expr, $kind:expr, $doc:literal) => {
        #[doc = $doc]
        #[derive(Clone, Debug, Serialize, Deserialize)]
        #[serde(default = "Default::default", deny_unknown_fields)]
        pub struct $name<const N: usize> {
            pool_size: Sizes<N>,
            padding: ByName<Padding>,
            strides: Option<Sizes<N>>,
            data_format: ByName<ImageDataFormat>,
        }

        impl<const N: usize> Default for $name<N> {
            fn default() -> $name<N> {
                $name::new(2)
            }
        }

        impl<const N: usize> $name<N> {
            const NAME: &'static str = $names[N - 1];

            /// Adjacent windows of `pool_size`.
            pub fn new(pool_size: impl Into<Sizes<N>>) -> $name<N> {
                $name {
                    pool_size: pool_size.into(),
                    padding: Padding::Valid.into(),
                    strides: None,
                    data_format: ImageDataFormat::ChannelsLast.into(),
                }
            }

            /// The strides of the windows; by default the size of the window.
            #[must_use]
            pub fn strides(mut self, strides: impl Into<Sizes<N>>) -> $name<N> {
                self.strides = Some(strides.into());
                self
            }

            setters! {
                /// `valid` (the default) or `same`.
                padding: impl Into<ByName<Padding>>,
                /// `channels_last` (the default) or `channels_first`.
                data_format: impl Into<ByName<ImageDataFormat>>,
            }
        }

        impl<const N: usize> Layer for $name<N> {
            fn class_name(&self) -> &'static str {
                $name::<N>::NAME
            }

            fn config(&self) -> Map<String, Value> {
                let strides = Some(self.strides.unwrap_or(self.pool_size));
                config::write(&$name { strides, ..self.clone() })
            }

            fn call(&self, cx: &mut LayerContext<'_>, inputs: &[NodeId]) -> Result<Outputs> {
                let x = spatial::<N>(cx, inputs, &self.data_format)?;
                let window = Window {
                    key: "pool_size",
                    size: self.pool_size,
                    strides: self.strides.unwrap_or(self.pool_size),
                    dilation: 1.into(),
                    padding: &self.padding,
                    groups: 1,
                };
                window.check_not_causal(cx)?;
                let geom = window.geometry(cx, &x, x.channels)?;
                let y = pool::<N>(cx, $kind, geom, x.x)?;
                Ok(finish(cx, y, ActivationFn::Linear, &self.data_format)?.into())
            }
        }
    };
}

pooling_layer!(
    MaxPooling,
    ["MaxPooling1D", "MaxPooling2D", "MaxPooling3D"],
    PoolKind::Max,
    "The largest element of each window over `N` spatial axes."
);
pooling_layer!(
    AveragePooling,
    ["AveragePooling1D", "AveragePooling2D", "AveragePooling3D"],
    PoolKind::Average,
    "The mean of each window over `N` spatial axes."
);

macro_rules! pooling_class {
    ($class:ident, $family:ident, $rank:literal, $strides:literal, $doc:literal) => {
        #[doc = $doc]
        ///
        /// ```
        /// use phalanx::layer::Layer;
        #[doc = concat!("use phalanx::layers::", stringify!($class), ";")]
        ///
        #[doc = concat!("let pool = ", stringify!($class), "::new(3).strides(2).padding(\"same\");")]
        #[doc = concat!("assert_eq!(pool.config()[\"strides\"], serde_json::json!(", $strides, "));")]
        /// ```
        pub type $class = $family<$rank>;
    };
}

pooling_class!(
    MaxPooling1D,
    MaxPooling,
    1,
    "[2]",
    "The largest element of each window of a sequence."
);
pooling_class!(
    MaxPooling2D,
    MaxPooling,
    2,
    "[2, 2]",
    "The largest element of each window of an image."
);
pooling_class!(
    MaxPooling3D,
    MaxPooling,
    3,
    "[2, 2, 2]",
    "The largest element of each window of a volume."
);
pooling_class!(
    AveragePooling1D,
    AveragePooling,
    1,
    "[2]",
    "The mean of each window of a sequence."
);
pooling_class!(
    AveragePooling2D,
    AveragePooling,
    2,
    "[2, 2]",
    "The mean of each window of an image."
);
pooling_class!(
    AveragePooling3D,
    AveragePooling,
    3,
    "[2, 2, 2]",
    "The mean of each window of a volume."
);
