//! Pooling over windows: the maximum, or the mean of the elements that are not padding.
//!
//! Input `(batch, height, width, channels)`, output `(batch, new height, new width, channels)`, with as many
//! positions as a convolution of the same size, strides and padding.

use super::support::{DataFormat, Padding, Pair, Window, image};
use crate::by_name::ByName;
use crate::config::{self, setters};
use crate::error::Result;
use crate::layer::{Layer, LayerContext, Outputs};
use phalanx_graph::ops::PoolKind;
use phalanx_graph::{NodeId, Op};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

/// Both layers have the same config and differ only in the reduction of a window.
macro_rules! pooling_layer {
    ($name:ident, $kind:expr, $doc:literal) => {
        #[doc = $doc]
        ///
        /// ```
        /// use phalanx::layer::Layer;
        #[doc = concat!("use phalanx::layers::", stringify!($name), ";")]
        ///
        #[doc = concat!("let pool = ", stringify!($name), "::new(3).strides(2).padding(\"same\");")]
        /// assert_eq!(pool.config()["strides"], serde_json::json!([2, 2]));
        /// ```
        #[derive(Clone, Debug, Serialize, Deserialize)]
        #[serde(default, deny_unknown_fields)]
        pub struct $name {
            pool_size: Pair,
            padding: ByName<Padding>,
            strides: Option<Pair>,
            data_format: DataFormat,
        }

        impl Default for $name {
            fn default() -> $name {
                $name::new(2)
            }
        }

        impl $name {
            /// Adjacent windows of `pool_size`.
            pub fn new(pool_size: impl Into<Pair>) -> $name {
                $name {
                    pool_size: pool_size.into(),
                    padding: Padding::Valid.into(),
                    strides: None,
                    data_format: DataFormat::ChannelsLast,
                }
            }

            /// The strides of the windows; by default the size of the window.
            #[must_use]
            pub fn strides(mut self, strides: impl Into<Pair>) -> $name {
                self.strides = Some(strides.into());
                self
            }

            setters! {
                /// `valid` (the default) or `same`.
                padding: impl Into<ByName<Padding>>,
            }
        }

        impl Layer for $name {
            fn class_name(&self) -> &'static str {
                stringify!($name)
            }

            fn config(&self) -> Map<String, Value> {
                let strides = Some(self.strides.unwrap_or(self.pool_size));
                config::write(&$name { strides, ..self.clone() })
            }

            fn call(&self, cx: &mut LayerContext<'_>, inputs: &[NodeId]) -> Result<Outputs> {
                let (x, input) = image(cx, inputs)?;
                let window = Window {
                    key: "pool_size",
                    size: self.pool_size,
                    strides: self.strides.unwrap_or(self.pool_size),
                    dilation: 1.into(),
                    padding: &self.padding,
                    groups: 1,
                };
                let geom = window.geometry(cx, input, input[2])?;
                Ok(cx.graph().push(Op::Pool($kind, geom), &[x])?.into())
            }
        }
    };
}

pooling_layer!(MaxPooling2D, PoolKind::Max, "The largest element of each window.");
pooling_layer!(AveragePooling2D, PoolKind::Average, "The mean of each window.");
