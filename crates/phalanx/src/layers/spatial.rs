//! Arguments and inputs of layers with spatial axes: one for sequences, two for images, three for volumes.

use super::support::{shape_text, single};
use crate::activations::{ActivationFn, ActivationLayer};
use crate::by_name::{ByName, Named, variant_by_serde_name};
use crate::error::Result;
use crate::layer::LayerContext;
use phalanx_graph::{NodeId, Op};
use serde::{Deserialize, Deserializer, Serialize, Serializer, de};
use serde_json::Value;

/// One size for each of `N` axes. It is made from one number for all axes, or from a tuple or an array.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sizes<const N: usize>(pub [usize; N]);

/// Height and width: `3`, `(3, 5)` or `[3, 5]`.
pub type Pair = Sizes<2>;

impl<const N: usize> From<usize> for Sizes<N> {
    fn from(all: usize) -> Sizes<N> {
        Sizes([all; N])
    }
}

impl<const N: usize> From<[usize; N]> for Sizes<N> {
    fn from(sizes: [usize; N]) -> Sizes<N> {
        Sizes(sizes)
    }
}

impl From<(usize, usize)> for Sizes<2> {
    fn from((height, width): (usize, usize)) -> Sizes<2> {
        Sizes([height, width])
    }
}

impl From<(usize, usize, usize)> for Sizes<3> {
    fn from((depth, height, width): (usize, usize, usize)) -> Sizes<3> {
        Sizes([depth, height, width])
    }
}

impl<const N: usize> std::fmt::Display for Sizes<N> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match &self.0[..] {
            [one] => write!(f, "{one}"),
            several => {
                let sizes: Vec<String> = several.iter().map(usize::to_string).collect();
                write!(f, "({})", sizes.join(", "))
            }
        }
    }
}

impl<const N: usize> Serialize for Sizes<N> {
    fn serialize<S: Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
        s.collect_seq(self.0)
    }
}

impl<'de, const N: usize> Deserialize<'de> for Sizes<N> {
    fn deserialize<D: Deserializer<'de>>(d: D) -> Result<Sizes<N>, D::Error> {
        let value = Value::deserialize(d)?;
        let each = || numbers(&value)?.try_into().ok().map(Sizes);
        size(&value).map(Sizes::from).or_else(each).ok_or_else(|| {
            let count = ["one", "two", "three"][N - 1];
            de::Error::custom(format!("expected a whole number or {count} of them"))
        })
    }
}

fn size(value: &Value) -> Option<usize> {
    value.as_u64().and_then(|n| n.try_into().ok())
}

fn numbers(value: &Value) -> Option<Vec<usize>> {
    value.as_array()?.iter().map(size).collect()
}

/// Sizes at both ends of each of `N` axes. It is made from one number for all, or, for an image, from
/// `(vertical, horizontal)` or `((top, bottom), (left, right))`; likewise for a volume. For a sequence it is
/// `(start, end)`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sides<const N: usize = 2>(pub [[usize; 2]; N]);

impl<const N: usize> From<usize> for Sides<N> {
    fn from(all: usize) -> Sides<N> {
        Sides([[all; 2]; N])
    }
}

impl From<(usize, usize)> for Sides<1> {
    fn from((start, end): (usize, usize)) -> Sides<1> {
        Sides([[start, end]])
    }
}

impl From<(usize, usize)> for Sides<2> {
    fn from((vertical, horizontal): (usize, usize)) -> Sides<2> {
        Sides([[vertical; 2], [horizontal; 2]])
    }
}

impl From<((usize, usize), (usize, usize))> for Sides<2> {
    fn from(((top, bottom), (left, right)): ((usize, usize), (usize, usize))) -> Sides<2> {
        Sides([[top, bottom], [left, right]])
    }
}

impl From<(usize, usize, usize)> for Sides<3> {
    fn from((depth, height, width): (usize, usize, usize)) -> Sides<3> {
        Sides([[depth; 2], [height; 2], [width; 2]])
    }
}

impl From<[(usize, usize); 3]> for Sides<3> {
    fn from(sides: [(usize, usize); 3]) -> Sides<3> {
        Sides(sides.map(|(before, after)| [before, after]))
    }
}

/// Keras writes a flat pair for a sequence, and a pair per axis otherwise.
impl<const N: usize> Serialize for Sides<N> {
    fn serialize<S: Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
        if N == 1 { s.collect_seq(self.0[0]) } else { s.collect_seq(self.0) }
    }
}

impl<'de, const N: usize> Deserialize<'de> for Sides<N> {
    fn deserialize<D: Deserializer<'de>>(d: D) -> Result<Sides<N>, D::Error> {
        let value = Value::deserialize(d)?;
        let pair = |value: &Value| match size(value) {
            Some(n) => Some([n; 2]),
            None => numbers(value)?.try_into().ok(),
        };
        let sides: Option<Vec<[usize; 2]>> = match &value {
            _ if N == 1 => pair(&value).map(|pair| vec![pair]),
            Value::Array(list) => list.iter().map(pair).collect(),
            one => size(one).map(|n| vec![[n; 2]; N]),
        };
        sides.and_then(|sides| sides.try_into().ok()).map(Sides).ok_or_else(|| {
            de::Error::custom(match N {
                1 => "expected a whole number or two of them",
                2 => "expected a whole number, two of them or two pairs",
                _ => "expected a whole number, three of them or three pairs",
            })
        })
    }
}

/// The padding of a convolution or pooling layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Padding {
    /// No padding: windows lie inside the input.
    Valid,
    /// Zero padding, with `ceil(size / stride)` positions.
    Same,
    /// Zero padding before a sequence, so that no position sees later ones. Only `Conv1D` has it.
    Causal,
}

impl Named for Padding {
    const KIND: &'static str = "padding";
    const NAMES: &'static [&'static str] = &["valid", "same", "causal"];

    fn from_name(name: &str) -> Option<Padding> {
        variant_by_serde_name(name)
    }
}

/// The place of the channels among the axes of a sample.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ImageDataFormat {
    /// After the spatial axes.
    #[default]
    ChannelsLast,
    /// Before the spatial axes.
    ChannelsFirst,
}

impl Named for ImageDataFormat {
    const KIND: &'static str = "data_format";
    const NAMES: &'static [&'static str] = &["channels_last", "channels_first"];

    fn from_name(name: &str) -> Option<ImageDataFormat> {
        variant_by_serde_name(name)
    }
}

impl Default for ByName<ImageDataFormat> {
    fn default() -> ByName<ImageDataFormat> {
        ImageDataFormat::default().into()
    }
}

/// A value with `N` spatial axes, followed by the channels. No size is zero.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Spatial<const N: usize> {
    pub x: NodeId,
    pub sizes: [usize; N],
    pub channels: usize,
}

/// The input of a layer that takes a single value with `N` spatial axes. Channels that come first are moved to the
/// end; [`restore`] moves them back.
pub(crate) fn spatial<const N: usize>(
    cx: &mut LayerContext<'_>,
    inputs: &[NodeId],
    format: &ByName<ImageDataFormat>,
) -> Result<Spatial<N>> {
    let format = *format.get()?;
    let x = single(cx, inputs)?;
    let dims = cx.dims(x);
    if dims.len() != N + 1 || dims.contains(&0) {
        let sizes = ["steps", "height, width", "depth, height, width"][N - 1];
        let expected = match format {
            ImageDataFormat::ChannelsLast => format!("shape (batch, {sizes}, channels)"),
            ImageDataFormat::ChannelsFirst => format!("shape (batch, channels, {sizes})"),
        };
        let received = shape_text(cx, x);
        return Err(cx.argument("input", &expected, received));
    }
    let (x, first) = match format {
        ImageDataFormat::ChannelsLast => (x, 0),
        ImageDataFormat::ChannelsFirst => {
            let perm = (1..=N).chain([0]).collect();
            (cx.graph().push(Op::Transpose { perm }, &[x])?, 1)
        }
    };
    let sizes = std::array::from_fn(|axis| dims[first + axis]);
    Ok(Spatial { x, sizes, channels: if first == 0 { dims[N] } else { dims[0] } })
}

/// Moves the channels of a result to the place that the format gives them.
pub(crate) fn restore(
    cx: &mut LayerContext<'_>,
    y: NodeId,
    format: &ByName<ImageDataFormat>,
) -> Result<NodeId> {
    let rank = cx.dims(y).len();
    match format.get()? {
        ImageDataFormat::ChannelsLast => Ok(y),
        ImageDataFormat::ChannelsFirst => {
            let perm = [rank - 1].into_iter().chain(0..rank - 1).collect();
            Ok(cx.graph().push(Op::Transpose { perm }, &[y])?)
        }
    }
}

/// Applies the activation to the result of a convolution, gives it its spatial axes and moves its channels to their
/// place. As in Keras, softmax acts on the last axis, even if that is not the channels, or on the axis of its layer.
pub(crate) fn finish<const N: usize>(
    cx: &mut LayerContext<'_>,
    y: Spatial<N>,
    activation: ActivationFn,
    format: &ByName<ImageDataFormat>,
) -> Result<NodeId> {
    let other_axis = matches!(
        activation,
        ActivationFn::Layer(ActivationLayer::Softmax { axis }) if axis != -1
    );
    let channels_last = *format.get()? == ImageDataFormat::ChannelsLast;
    let last = activation.is_elementwise() || channels_last && !other_axis;
    let x = if last { activation.apply(cx.graph(), y.x)? } else { y.x };
    let x = cx.graph().reshape(x, &[&y.sizes[..], &[y.channels]].concat())?;
    let x = restore(cx, x, format)?;
    if last { Ok(x) } else { activation.apply(cx.graph(), x) }
}

/// Fails unless all sizes are at least one.
pub(crate) fn check_all_at_least_one<const N: usize>(
    cx: &LayerContext<'_>,
    argument: &str,
    sizes: Sizes<N>,
) -> Result<()> {
    if sizes.0.contains(&0) { Err(cx.argument(argument, "1 or more", sizes)) } else { Ok(()) }
}

/// The sizes of the axes as text: `8x6`.
pub(crate) fn sizes_text(sizes: &[usize]) -> String {
    sizes.iter().map(usize::to_string).collect::<Vec<_>>().join("x")
}
