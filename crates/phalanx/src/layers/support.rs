//! Shared parts of the layers: argument types of their configs and checks of their inputs.

use crate::by_name::{ByName, OptionalByName};
use crate::constraints::{Axes, Constraint};
use crate::error::Result;
use crate::initializers::Initializer;
use crate::layer::{LayerContext, WeightSpec};
use crate::regularizers::Regularizer;
use phalanx_graph::NodeId;
use serde::{Deserialize, Serialize};

/// The order of an image's axes in layers that support no other: height, width, channels.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum DataFormat {
    #[default]
    ChannelsLast,
}

/// The method of a layer that regularizes its output, from its field of the same name.
macro_rules! activity_penalty {
    () => {
        fn activity_penalty(
            &self,
        ) -> $crate::error::Result<Option<$crate::regularizers::Regularizer>> {
            self.activity_regularizer.get()
        }
    };
}
pub(crate) use activity_penalty;

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

/// Fails unless a size is at least one.
pub(crate) fn check_at_least_one(cx: &LayerContext<'_>, argument: &str, size: usize) -> Result<()> {
    if size > 0 { Ok(()) } else { Err(cx.argument(argument, "1 or more", size)) }
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

/// The score of a masked entry. It is finite: a softmax of nothing but masked entries is uniform, as in Keras.
const MASKED_SCORE: f64 = -1e9;

/// Scores for a softmax, in which entries whose mask is zero get no weight.
pub(crate) fn masked_scores(
    cx: &mut LayerContext<'_>,
    scores: NodeId,
    mask: Option<NodeId>,
) -> Result<NodeId> {
    let Some(mask) = mask else { return Ok(scores) };
    let g = cx.graph();
    let low = g.scalar(MASKED_SCORE);
    Ok(g.select(mask, scores, low)?)
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

/// Converts Keras' axes to axes of one sample, ascending.
pub(crate) fn row_axes(cx: &mut LayerContext<'_>, x: NodeId, axis: &Axes) -> Result<Vec<usize>> {
    let given = axis.as_slice();
    let mut axes = given.iter().map(|a| row_axis(cx, x, *a)).collect::<Result<Vec<_>>>()?;
    axes.sort_unstable();
    axes.dedup();
    if axes.is_empty() || axes.len() != given.len() {
        return Err(cx.argument("axis", "one or more different axes", format!("{given:?}")));
    }
    Ok(axes)
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
        let initializer = self.initializer.get()?.clone();
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

    /// Declares the layer's next weight, if it has one.
    pub fn optional(
        &self,
        cx: &mut LayerContext<'_>,
        used: bool,
        name: &'static str,
        dims: &[usize],
    ) -> Result<Option<NodeId>> {
        if used { self.weight(cx, name, dims).map(Some) } else { Ok(None) }
    }
}
