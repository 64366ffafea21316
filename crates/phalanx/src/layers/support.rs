//! Shared parts of the layers: argument types of their configs and checks of their inputs.

use crate::by_name::{ByName, Named, OptionalByName, variant_by_serde_name};
use crate::constraints::Constraint;
use crate::error::Result;
use crate::initializers::Initializer;
use crate::layer::{LayerContext, WeightSpec};
use crate::regularizers::Regularizer;
use phalanx_graph::{ConvGeom, NodeId};
use serde::{Deserialize, Deserializer, Serialize, de};
use serde_json::Value;

/// Height and width: `3`, `(3, 5)` or `[3, 5]`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Pair(pub [usize; 2]);

impl From<usize> for Pair {
    fn from(both: usize) -> Pair {
        Pair([both, both])
    }
}

impl From<(usize, usize)> for Pair {
    fn from((height, width): (usize, usize)) -> Pair {
        Pair([height, width])
    }
}

impl From<[usize; 2]> for Pair {
    fn from(pair: [usize; 2]) -> Pair {
        Pair(pair)
    }
}

impl std::fmt::Display for Pair {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "({}, {})", self.0[0], self.0[1])
    }
}

impl<'de> Deserialize<'de> for Pair {
    fn deserialize<D: Deserializer<'de>>(d: D) -> Result<Pair, D::Error> {
        #[derive(Deserialize)]
        #[serde(untagged, expecting = "expected a whole number or two of them")]
        enum Form {
            Both(usize),
            Each([usize; 2]),
        }
        Ok(match Form::deserialize(d)? {
            Form::Both(n) => n.into(),
            Form::Each(pair) => Pair(pair),
        })
    }
}

/// Sizes at the four sides of an image: one number for all, `(vertical, horizontal)`, or
/// `((top, bottom), (left, right))`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Sides(pub [[usize; 2]; 2]);

impl From<usize> for Sides {
    fn from(all: usize) -> Sides {
        Sides([[all; 2]; 2])
    }
}

impl From<(usize, usize)> for Sides {
    fn from((vertical, horizontal): (usize, usize)) -> Sides {
        Sides([[vertical; 2], [horizontal; 2]])
    }
}

impl From<((usize, usize), (usize, usize))> for Sides {
    fn from(((top, bottom), (left, right)): ((usize, usize), (usize, usize))) -> Sides {
        Sides([[top, bottom], [left, right]])
    }
}

impl<'de> Deserialize<'de> for Sides {
    fn deserialize<D: Deserializer<'de>>(d: D) -> Result<Sides, D::Error> {
        #[derive(Deserialize)]
        #[serde(untagged, expecting = "expected a whole number, two of them or two pairs")]
        enum Form {
            All(usize),
            Two((usize, usize)),
            Four([[usize; 2]; 2]),
        }
        Ok(match Form::deserialize(d)? {
            Form::All(n) => n.into(),
            Form::Two(pair) => pair.into(),
            Form::Four(sides) => Sides(sides),
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
}

impl Named for Padding {
    const KIND: &'static str = "padding";
    const NAMES: &'static [&'static str] = &["valid", "same"];

    fn from_name(name: &str) -> Option<Padding> {
        variant_by_serde_name(name)
    }
}

/// The order of an image's axes: height, width, channels. It is the only supported one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum DataFormat {
    #[default]
    ChannelsLast,
}

/// A key that Keras writes and that must be null.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub(crate) struct AlwaysNull;

impl<'de> Deserialize<'de> for AlwaysNull {
    fn deserialize<D: Deserializer<'de>>(d: D) -> Result<AlwaysNull, D::Error> {
        match Value::deserialize(d)? {
            Value::Null => Ok(AlwaysNull),
            other => {
                Err(de::Error::custom(format!("not supported: expected null, received {other}")))
            }
        }
    }
}

/// The input of a layer that takes a single one.
pub(crate) fn single(cx: &LayerContext<'_>, inputs: &[NodeId]) -> Result<NodeId> {
    match inputs {
        [x] => Ok(*x),
        _ => Err(cx.argument("inputs", "1", inputs.len())),
    }
}

/// The shape of a value as Keras prints it.
pub(crate) fn shape_text(cx: &mut LayerContext<'_>, x: NodeId) -> String {
    cx.graph().ty(x).shape_text()
}

/// The input of a layer that takes a single image, and its height, width and channels.
pub(crate) fn image(cx: &mut LayerContext<'_>, inputs: &[NodeId]) -> Result<(NodeId, [usize; 3])> {
    let x = single(cx, inputs)?;
    match cx.dims(x)[..] {
        [h, w, c] if h > 0 && w > 0 && c > 0 => Ok((x, [h, w, c])),
        _ => {
            let received = shape_text(cx, x);
            Err(cx.argument("input", "shape (batch, height, width, channels)", received))
        }
    }
}

/// Fails unless a size is at least one.
pub(crate) fn check_at_least_one(cx: &LayerContext<'_>, argument: &str, size: usize) -> Result<()> {
    if size > 0 { Ok(()) } else { Err(cx.argument(argument, "1 or more", size)) }
}

/// Fails unless both sizes are at least one.
pub(crate) fn check_both_at_least_one(
    cx: &LayerContext<'_>,
    argument: &str,
    sizes: Pair,
) -> Result<()> {
    if sizes.0.contains(&0) { Err(cx.argument(argument, "1 or more", sizes)) } else { Ok(()) }
}

/// Fails unless a number is finite.
pub(crate) fn check_finite(cx: &LayerContext<'_>, argument: &str, number: f64) -> Result<()> {
    if number.is_finite() { Ok(()) } else { Err(cx.argument(argument, "a finite number", number)) }
}

/// Fails unless a number is finite and not negative.
pub(crate) fn check_not_negative(cx: &LayerContext<'_>, argument: &str, number: f64) -> Result<()> {
    if number.is_finite() && number >= 0.0 {
        Ok(())
    } else {
        Err(cx.argument(argument, "a finite number, 0 or more", number))
    }
}

/// Converts Keras' axis, which counts the batch as 0 and may be negative, to an axis of one sample.
pub(crate) fn row_axis(cx: &mut LayerContext<'_>, x: NodeId, axis: i64) -> Result<usize> {
    let rank = cx.dims(x).len() as i64 + 1;
    let positive = if axis < 0 { axis.saturating_add(rank) } else { axis };
    if (1..rank).contains(&positive) {
        return Ok(positive as usize - 1);
    }
    let expected = format!("an axis of {} other than the batch", shape_text(cx, x));
    Err(cx.argument("axis", &expected, axis))
}

/// Swaps an axis of one sample with the last. Applying it twice restores the order.
pub(crate) fn swap_with_last(cx: &mut LayerContext<'_>, x: NodeId, axis: usize) -> Result<NodeId> {
    let rank = cx.dims(x).len();
    if axis + 1 == rank {
        return Ok(x);
    }
    let mut perm: Vec<usize> = (0..rank).collect();
    perm.swap(axis, rank - 1);
    Ok(cx.graph().push(phalanx_graph::Op::Transpose { perm }, &[x])?)
}

/// Fails if the number of elements of one sample overflows.
pub(crate) fn check_countable(
    cx: &LayerContext<'_>,
    argument: &str,
    dims: &[Option<usize>],
) -> Result<Vec<usize>> {
    let known: Option<Vec<usize>> = dims.iter().copied().collect();
    let counted = known.filter(|dims| {
        dims.iter().try_fold(1usize, |n, d| n.checked_mul(*d)).is_some_and(|n| n < MAX_ELEMENTS)
    });
    counted.ok_or_else(|| cx.argument(argument, "an output that fits in memory", "more"))
}

/// An upper limit to the number of elements of a tensor.
const MAX_ELEMENTS: usize = isize::MAX as usize / 8;

/// The maximum window size: more than any image has pixels along an axis, and small enough that no product
/// overflows.
const MAX_WINDOW: usize = 1 << 24;

/// The window of a convolution or pooling layer, from its config.
pub(crate) struct Window<'a> {
    /// The config key of the size.
    pub key: &'a str,
    pub size: Pair,
    pub strides: Pair,
    pub dilation: Pair,
    pub padding: &'a ByName<Padding>,
    pub groups: usize,
}

impl Window<'_> {
    /// Checks the window against an input image and resolves its padding.
    pub fn geometry(
        &self,
        cx: &LayerContext<'_>,
        input: [usize; 3],
        channels: usize,
    ) -> Result<ConvGeom> {
        let sizes =
            [(self.key, self.size), ("strides", self.strides), ("dilation_rate", self.dilation)];
        for (argument, size) in sizes {
            check_both_at_least_one(cx, argument, size)?;
            if size.0.iter().any(|n| *n > MAX_WINDOW) {
                let expected = format!("{MAX_WINDOW} or less");
                return Err(cx.argument(argument, &expected, size));
            }
        }
        let padding = match self.padding.get()? {
            Padding::Valid => phalanx_graph::Padding::Valid,
            Padding::Same => phalanx_graph::Padding::Same,
        };
        let (kernel, stride, dilation) = (self.size.0, self.strides.0, self.dilation.0);
        let window =
            phalanx_graph::Window { kernel, stride, dilation, padding, groups: self.groups };
        ConvGeom::new(input, channels, window).ok_or_else(|| {
            let [h, w, _] = input;
            let expected = format!("a window inside the input's {h}x{w}");
            let dilated = if self.dilation == 1.into() {
                String::new()
            } else {
                format!(" with dilation_rate {}", self.dilation)
            };
            cx.argument(self.key, &expected, format!("{}{dilated}", self.size))
        })
    }
}

/// The initializer, regularizer and constraint of a weight, from a layer's config.
pub(crate) struct WeightOptions<'a> {
    pub initializer: &'a ByName<Initializer>,
    pub regularizer: &'a OptionalByName<Regularizer>,
    pub constraint: &'a OptionalByName<Constraint>,
}

impl WeightOptions<'_> {
    /// Declares the layer's next weight.
    pub fn weight(&self, cx: &mut LayerContext<'_>, name: &str, dims: &[usize]) -> Result<NodeId> {
        let spec = self.spec(cx, name, dims)?;
        cx.weight(spec)
    }

    /// The declaration of a weight.
    pub fn spec(&self, cx: &LayerContext<'_>, name: &str, dims: &[usize]) -> Result<WeightSpec> {
        let initializer = *self.initializer.get()?;
        if let Err(expected) = initializer.fits(dims) {
            let expected = format!("a weight of {expected} for its initializer");
            return Err(cx.argument(name, &expected, format!("{dims:?}")));
        }
        let constraint = self.constraint.get()?;
        if let Some(axes) = constraint.as_ref().and_then(Constraint::axes) {
            let rank = dims.len() as i64;
            if let Some(axis) = axes.as_slice().iter().find(|a| !(-rank..rank).contains(a)) {
                let expected = format!("axes of its shape {dims:?} in its constraint");
                return Err(cx.argument(name, &expected, axis));
            }
        }
        Ok(WeightSpec::new(name, dims, initializer)
            .regularizer(self.regularizer.get()?)
            .constraint(constraint))
    }
}
