//! Pooling to a given output size: along an axis of `n` elements, window `i` of `m` is `⌊i·n/m⌋ .. ⌈(i+1)·n/m⌉`.
//!
//! Input `(batch, spatial axes, channels)`, output `(batch, output size, channels)`.

use super::spatial::{ImageDataFormat, Sizes, check_all_at_least_one, restore, spatial};
use super::support::check_countable;
use crate::by_name::ByName;
use crate::config::setters;
use crate::error::Result;
use crate::layer::{Layer, LayerContext, Outputs};
use crate::registry::keras_class;
use phalanx_graph::ops::ReduceKind;
use phalanx_graph::{Graph, NodeId, Op};
use serde::{Deserialize, Serialize};

/// The maximum number of windows of different offsets and sizes along an axis. Each of them adds nodes to the graph.
const MAX_WINDOWS: usize = 1024;

fn mean(g: &mut Graph, x: NodeId) -> Result<NodeId> {
    Ok(g.mean_axes(x, &[2])?)
}

fn max(g: &mut Graph, x: NodeId) -> Result<NodeId> {
    Ok(g.push(Op::Reduce { kind: ReduceKind::Max, axes: vec![2] }, &[x])?)
}

fn gcd(a: usize, b: usize) -> usize {
    if b == 0 { a } else { gcd(b, a % b) }
}

/// Pools one axis to `m` elements.
///
/// The windows repeat after `n / gcd(n, m)` elements, so the axis is split into that many blocks with equal windows.
fn pool_axis(
    cx: &mut LayerContext<'_>,
    reduce: fn(&mut Graph, NodeId) -> Result<NodeId>,
    x: NodeId,
    axis: usize,
    m: usize,
) -> Result<NodeId> {
    let mut dims = cx.dims(x);
    let n = dims[axis];
    let blocks = gcd(n, m);
    let (len, windows) = (n / blocks, m / blocks);
    if windows > MAX_WINDOWS {
        let expected = format!("at most {MAX_WINDOWS} different windows along an axis of {n}");
        return Err(cx.argument("output_size", &expected, windows));
    }
    let (before, after) = (dims[..axis].iter().product(), dims[axis + 1..].iter().product());
    let g = cx.graph();
    let x = g.reshape(x, &[before, blocks, len, after])?;
    let mut parts = vec![];
    for i in 0..windows {
        let (start, end) = (i * len / windows, ((i + 1) * len).div_ceil(windows));
        let window = if end - start == len {
            x
        } else {
            g.push(Op::Slice { axis: 2, start, len: end - start }, &[x])?
        };
        parts.push(reduce(g, window)?);
    }
    let y = match parts[..] {
        [one] => one,
        _ => g.push(Op::Concat { axis: 2 }, &parts)?,
    };
    dims[axis] = m;
    Ok(g.reshape(y, &dims)?)
}

/// Both families have the same config and differ only in the reduction of a window.
macro_rules! adaptive_pooling_layer {
    ($name:ident, $names:expr, $reduce:ident, $doc:literal) => {
        #[doc = $doc]
        #[derive(Clone, Debug, Serialize, Deserialize)]
        #[serde(deny_unknown_fields)]
        pub struct $name<const N: usize> {
            output_size: Sizes<N>,
            #[serde(default)]
            data_format: ByName<ImageDataFormat>,
        }

        impl<const N: usize> $name<N> {
            const NAME: &'static str = $names[N - 1];

            /// The layer with an output of `output_size`.
            pub fn new(output_size: impl Into<Sizes<N>>) -> $name<N> {
                let data_format = ImageDataFormat::ChannelsLast.into();
                $name { output_size: output_size.into(), data_format }
            }

            setters! {
                /// `channels_last` (the default) or `channels_first`.
                data_format: impl Into<ByName<ImageDataFormat>>,
            }
        }

        impl<const N: usize> Layer for $name<N> {
            keras_class!($name::<N>::NAME);

            fn call(&self, cx: &mut LayerContext<'_>, inputs: &[NodeId]) -> Result<Outputs> {
                let x = spatial::<N>(cx, inputs, &self.data_format)?;
                check_all_at_least_one(cx, "output_size", self.output_size)?;
                let sizes = self.output_size.0;
                let dims: Vec<_> = sizes.into_iter().chain([x.channels]).map(Some).collect();
                check_countable(cx, "output_size", &dims)?;
                let mut y = x.x;
                for (axis, size) in sizes.into_iter().enumerate() {
                    y = pool_axis(cx, $reduce, y, axis, size)?;
                }
                Ok(restore(cx, y, &self.data_format)?.into())
            }
        }
    };
}

adaptive_pooling_layer!(
    AdaptiveAveragePooling,
    ["AdaptiveAveragePooling1D", "AdaptiveAveragePooling2D", "AdaptiveAveragePooling3D"],
    mean,
    "The mean of each window over `N` spatial axes, with a given number of windows."
);
adaptive_pooling_layer!(
    AdaptiveMaxPooling,
    ["AdaptiveMaxPooling1D", "AdaptiveMaxPooling2D", "AdaptiveMaxPooling3D"],
    max,
    "The largest element of each window over `N` spatial axes, with a given number of windows."
);

macro_rules! adaptive_pooling_class {
    ($class:ident, $family:ident, $rank:literal, $size:literal, $doc:literal) => {
        #[doc = $doc]
        ///
        /// ```
        /// use phalanx::layer::Layer;
        #[doc = concat!("use phalanx::layers::", stringify!($class), ";")]
        ///
        #[doc = concat!("let pool = ", stringify!($class), "::new(4);")]
        #[doc = concat!("assert_eq!(pool.config()[\"output_size\"], serde_json::json!(", $size, "));")]
        /// ```
        pub type $class = $family<$rank>;
    };
}

adaptive_pooling_class!(
    AdaptiveAveragePooling1D,
    AdaptiveAveragePooling,
    1,
    "[4]",
    "The means of a given number of windows of a sequence."
);
adaptive_pooling_class!(
    AdaptiveAveragePooling2D,
    AdaptiveAveragePooling,
    2,
    "[4, 4]",
    "The means of a given number of windows of an image."
);
adaptive_pooling_class!(
    AdaptiveAveragePooling3D,
    AdaptiveAveragePooling,
    3,
    "[4, 4, 4]",
    "The means of a given number of windows of a volume."
);
adaptive_pooling_class!(
    AdaptiveMaxPooling1D,
    AdaptiveMaxPooling,
    1,
    "[4]",
    "The largest elements of a given number of windows of a sequence."
);
adaptive_pooling_class!(
    AdaptiveMaxPooling2D,
    AdaptiveMaxPooling,
    2,
    "[4, 4]",
    "The largest elements of a given number of windows of an image."
);
adaptive_pooling_class!(
    AdaptiveMaxPooling3D,
    AdaptiveMaxPooling,
    3,
    "[4, 4, 4]",
    "The largest elements of a given number of windows of a volume."
);
