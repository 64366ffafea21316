//! Erases a random rectangle of a part of the images, in training; otherwise the identity. The output has the shape of
//! the input.

use super::super::noise::normal;
use super::super::support::DataFormat;
use super::{
    Augmentation, Factor, augment, bytes, chance, check_value_range, uniform, uniform_between,
};
use crate::config::setters;
use crate::error::Result;
use crate::layer::{Layer, LayerContext, Outputs};
use crate::registry::keras_class;
use phalanx_graph::functions::layout::{concat, iota};
use phalanx_graph::functions::math::{less, less_equal};
use phalanx_graph::ops::Unary;
use phalanx_graph::{Graph, NodeId, Op};
use serde::{Deserialize, Serialize};

/// What fills an erased rectangle.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(untagged, expecting = "expected a number or three of them")]
pub enum Fill {
    /// One number.
    Number(f64),
    /// A colour.
    Colour([f64; 3]),
}

impl From<f64> for Fill {
    fn from(number: f64) -> Fill {
        Fill::Number(number)
    }
}

impl From<[f64; 3]> for Fill {
    fn from(colour: [f64; 3]) -> Fill {
        Fill::Colour(colour)
    }
}

/// Randomly erases rectangles of images in training.
///
/// ```
/// use phalanx::layer::Layer;
/// use phalanx::layers::RandomErasing;
///
/// let erasing = RandomErasing::new(0.5).scale((0.02, 0.2)).fill_value(0.0);
/// assert_eq!(erasing.config()["scale"], serde_json::json!([0.02, 0.2]));
/// ```
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct RandomErasing {
    factor: Factor,
    scale: Factor,
    fill_value: Option<Fill>,
    value_range: (f64, f64),
    seed: Option<i64>,
    data_format: DataFormat,
}

impl Default for RandomErasing {
    fn default() -> RandomErasing {
        RandomErasing::new(1.0)
    }
}

impl RandomErasing {
    /// The range from which the probability is drawn; one number stands for 0 up to it.
    pub fn new(factor: impl Into<Factor>) -> RandomErasing {
        RandomErasing {
            factor: factor.into().span(0.0),
            scale: Factor::Ends([0.02, 0.33]),
            fill_value: None,
            value_range: bytes(),
            seed: None,
            data_format: DataFormat::ChannelsLast,
        }
    }

    /// The squares of the rectangle's relative width and height; one number stands for 0 up to it. Defaults to 0.02 to
    /// 0.33.
    #[must_use]
    pub fn scale(mut self, scale: impl Into<Factor>) -> RandomErasing {
        self.scale = scale.into().span(0.0);
        self
    }

    /// A number or a colour; by default normal noise.
    #[must_use]
    pub fn fill_value(mut self, fill_value: impl Into<Fill>) -> RandomErasing {
        self.fill_value = Some(fill_value.into());
        self
    }

    setters! {
        /// The minimum and maximum pixel values; default to 0 and 255.
        value_range: (f64, f64),
        /// Ignored; kept for compatibility with Keras. The run's seed is used.
        seed: Option<i64>,
    }
}

/// 1 inside a random interval that covers `ratio`, `[1]`, of an axis of `n` pixels, else 0; and the interval's length.
pub(super) fn random_interval(
    cx: &mut LayerContext<'_>,
    n: usize,
    ratio: NodeId,
) -> Result<[NodeId; 2]> {
    let u = uniform(cx, &[1])?;
    let g = cx.graph();
    let length = g.scale(ratio, n as f64)?;
    let rest = g.neg(length)?;
    let rest = g.offset(rest, n as f64)?;
    let start = g.mul(u, rest)?;
    let end = g.add(start, length)?;
    let pixels = iota(g, n)?;
    let (after, before) = (less_equal(g, start, pixels)?, less(g, pixels, end)?);
    Ok([g.mul(after, before)?, length])
}

/// A mask `[height, width, 1]` from intervals along both axes.
pub(super) fn rectangle(
    g: &mut Graph,
    across: NodeId,
    down: NodeId,
) -> phalanx_graph::Result<NodeId> {
    let (width, height) = (g.ty(across).len(), g.ty(down).len());
    let across = g.reshape(across, &[1, width, 1])?;
    let down = g.reshape(down, &[height, 1, 1])?;
    g.mul(down, across)
}

impl Layer for RandomErasing {
    keras_class!("RandomErasing");

    fn call(&self, cx: &mut LayerContext<'_>, inputs: &[NodeId]) -> Result<Outputs> {
        augment(self, cx, inputs)
    }
}

impl Augmentation for RandomErasing {
    fn check(&self, cx: &LayerContext<'_>, dims: [usize; 3]) -> Result<()> {
        self.factor.within(cx, "factor", [0.0, 1.0])?;
        let ends = self.scale.within(cx, "scale", [0.0, 1.0])?;
        if ends[0] < 0.0 || ends[1] > 1.0 {
            return Err(cx.argument("scale", "numbers from 0 to 1", format!("{ends:?}")));
        }
        if matches!(self.fill_value, Some(Fill::Colour(_))) && dims[2] != 3 {
            return Err(cx.argument("fill_value", "one number for this image", "three"));
        }
        check_value_range(cx, self.value_range)
    }

    fn draw(&self, cx: &mut LayerContext<'_>, dims: [usize; 3]) -> Result<Vec<NodeId>> {
        let [height, width, _] = dims;
        let areas = uniform_between(cx, &[2], self.scale.span(0.0).ends())?;
        let g = cx.graph();
        let ratios = g.unary(Unary::Sqrt, areas)?;
        let mut ratio = |start: usize| g.push(Op::Slice { axis: 0, start, len: 1 }, &[ratios]);
        let ratios = [ratio(0)?, ratio(1)?];
        let [across, _] = random_interval(cx, width, ratios[0])?;
        let [down, _] = random_interval(cx, height, ratios[1])?;
        let mask = rectangle(cx.graph(), across, down)?;
        let applies = chance(cx, self.factor.span(0.0).ends())?;
        let mask = cx.graph().mul(mask, applies)?;
        let (low, high) = self.value_range;
        let fill = match self.fill_value {
            None => normal(cx, &dims, high)?,
            Some(Fill::Number(number)) => cx.graph().scalar(number),
            Some(Fill::Colour(colour)) => {
                let g = cx.graph();
                let parts = colour.map(|v| g.fill(v, &[1]));
                concat(g, &parts, 0)?
            }
        };
        Ok(vec![mask, cx.graph().clamp(fill, low, high)?])
    }

    fn apply(&self, cx: &mut LayerContext<'_>, x: NodeId, drawn: &[NodeId]) -> Result<NodeId> {
        Ok(cx.graph().select(drawn[0], drawn[1], x)?)
    }
}
