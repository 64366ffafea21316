//! The dot product of two inputs along one axis of each.
//!
//! Inputs `(batch, a.., k, b..)` and `(batch, c.., k, d..)`, output `(batch, a.., b.., c.., d..)`, or `(batch, 1)` for two
//! vectors. No weights.

use super::support::{row_axis, shape_text};
use crate::config::setters;
use crate::error::Result;
use crate::layer::{InputsForm, Layer, LayerContext, Outputs};
use crate::registry::keras_class;
use phalanx_graph::NodeId;
use phalanx_graph::ops::{Binary, Unary};
use serde::{Deserialize, Serialize};

/// The dot product of two inputs.
///
/// ```
/// use phalanx::prelude::*;
///
/// let (x, y) = (Input::new([4, 3]).symbol(), Input::new([4, 5]).symbol());
/// let model = Model::new([&x, &y], &Dot::new(1).apply([&x, &y]))?;
/// assert_eq!(model.output_shapes(), [[3, 5]]);
/// # Ok::<(), phalanx::Error>(())
/// ```
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Dot {
    axes: DotAxes,
    #[serde(default)]
    normalize: bool,
}

/// The axis of each input, counting the batch: one number for both, or two.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum DotAxes {
    /// The same axis of both.
    Both(i64),
    /// An axis of each.
    Each(i64, i64),
}

impl From<i64> for DotAxes {
    fn from(axis: i64) -> DotAxes {
        DotAxes::Both(axis)
    }
}

impl From<(i64, i64)> for DotAxes {
    fn from((first, second): (i64, i64)) -> DotAxes {
        DotAxes::Each(first, second)
    }
}

impl Dot {
    /// The product along these axes.
    pub fn new(axes: impl Into<DotAxes>) -> Dot {
        Dot { axes: axes.into(), normalize: false }
    }

    setters! {
        /// Whether vectors along the axes are scaled to length one first, which gives the cosine of their angle.
        normalize: bool,
    }
}

/// Scales the vectors along an axis to length one, as Keras does: `x · min(1 / |x|, 10⁷)`.
pub(crate) fn unit_length(cx: &mut LayerContext<'_>, x: NodeId, axes: &[usize]) -> Result<NodeId> {
    let g = cx.graph();
    let squares = g.unary(Unary::Square, x)?;
    let sum = g.sum_axes(squares, axes)?;
    let inverse = g.unary(Unary::Rsqrt, sum)?;
    let largest = g.scalar(1e7);
    let inverse = g.binary(Binary::Min, inverse, largest)?;
    Ok(g.mul(x, inverse)?)
}

impl Layer for Dot {
    keras_class!("Dot");

    fn inputs_form(&self) -> InputsForm {
        InputsForm::List
    }

    fn call(&self, cx: &mut LayerContext<'_>, inputs: &[NodeId]) -> Result<Outputs> {
        let [mut x, mut y] = *inputs else {
            return Err(cx.argument("inputs", "2", inputs.len()));
        };
        let (first, second) = match self.axes {
            DotAxes::Both(axis) => (axis, axis),
            DotAxes::Each(first, second) => (first, second),
        };
        let (first, second) = (row_axis(cx, x, first)?, row_axis(cx, y, second)?);
        let ranks = [x, y].map(|input| cx.dims(input).len());
        if cx.dims(x)[first] != cx.dims(y)[second] || ranks[0] + ranks[1] > 25 {
            let received = format!("{} and {}", shape_text(cx, x), shape_text(cx, y));
            return Err(cx.argument("inputs", "axes of the same size", received));
        }
        if self.normalize {
            x = unit_length(cx, x, &[first])?;
            y = unit_length(cx, y, &[second])?;
        }
        let letter = |i: usize| char::from(b'b' + i as u8);
        let left: Vec<char> = (0..ranks[0]).map(letter).collect();
        let mut right: Vec<char> = (ranks[0]..ranks[0] + ranks[1]).map(letter).collect();
        right[second] = left[first];
        let bound = left[first];
        let text = |letters: &[char]| letters.iter().collect::<String>();
        let kept: String = left.iter().chain(&right).filter(|l| **l != bound).collect();
        let equation = format!("a{},a{}->a{kept}", text(&left), text(&right));
        let product = cx.graph().einsum(&equation, &[x, y])?;
        if kept.is_empty() {
            return Ok(cx.graph().reshape(product, &[1])?.into());
        }
        Ok(product.into())
    }
}
