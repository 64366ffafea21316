//! A number or nested lists of numbers, as in configs for means and scales.

use super::support::shape_text;
use crate::error::Result;
use crate::layer::LayerContext;
use phalanx_graph::NodeId;
use serde::{Deserialize, Serialize};

/// One number for all elements, or nested lists with one number for each index of some axes.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(untagged, expecting = "expected a number or nested lists of numbers")]
pub enum Numbers {
    /// One for all.
    One(f64),
    /// One for each index.
    Many(Vec<Numbers>),
}

impl From<f64> for Numbers {
    fn from(number: f64) -> Numbers {
        Numbers::One(number)
    }
}

impl From<Vec<f64>> for Numbers {
    fn from(list: Vec<f64>) -> Numbers {
        Numbers::Many(list.into_iter().map(Numbers::One).collect())
    }
}

impl<const N: usize> From<[f64; N]> for Numbers {
    fn from(list: [f64; N]) -> Numbers {
        list.to_vec().into()
    }
}

impl Numbers {
    /// Nested lists of shape `dims` with these elements in row-major order.
    pub(super) fn nested(dims: &[usize], flat: &[f64]) -> Numbers {
        match dims {
            [] => Numbers::One(flat.first().copied().unwrap_or_default()),
            [_, rest @ ..] => {
                let len = rest.iter().product::<usize>().max(1);
                Numbers::Many(flat.chunks(len).map(|part| Numbers::nested(rest, part)).collect())
            }
        }
    }

    /// The lengths of the lists, outermost first; `None` if lists at the same level differ in shape.
    pub(super) fn shape(&self) -> Option<Vec<usize>> {
        match self {
            Numbers::One(_) => Some(vec![]),
            Numbers::Many(list) => {
                let shapes: Option<Vec<Vec<usize>>> = list.iter().map(Numbers::shape).collect();
                let shapes = shapes?;
                let first = shapes.first()?;
                let equal = shapes.iter().all(|s| s == first);
                equal.then(|| [&[list.len()], &first[..]].concat())
            }
        }
    }

    /// The numbers in row-major order.
    pub(super) fn flat(&self) -> Vec<f64> {
        match self {
            Numbers::One(number) => vec![*number],
            Numbers::Many(list) => list.iter().flat_map(Numbers::flat).collect(),
        }
    }

    /// Applies a function to every number.
    pub(super) fn map(&self, f: fn(f64) -> f64) -> Numbers {
        match self {
            Numbers::One(number) => Numbers::One(f(*number)),
            Numbers::Many(list) => Numbers::Many(list.iter().map(|n| n.map(f)).collect()),
        }
    }

    /// Appends the numbers as a constant that broadcasts over `x`. The lists run along the last of `axes` (axes
    /// of one sample, ascending).
    pub(super) fn constant(
        &self,
        cx: &mut LayerContext<'_>,
        argument: &'static str,
        x: NodeId,
        axes: &[usize],
    ) -> Result<NodeId> {
        let flat = self.flat();
        if let Some(bad) = flat.iter().find(|n| !n.is_finite()) {
            return Err(cx.argument(argument, "finite numbers", bad));
        }
        if let Numbers::One(number) = self {
            return Ok(cx.graph().scalar(*number));
        }
        let dims = cx.dims(x);
        let mut aligned = vec![1; dims.len()];
        let shape = self.shape().filter(|shape| {
            let last = axes.len().checked_sub(shape.len()).map(|start| &axes[start..]);
            last.is_some_and(|last| {
                last.iter().zip(shape).for_each(|(axis, n)| aligned[*axis] = *n);
                last.iter().zip(shape).all(|(axis, n)| *n == dims[*axis] || *n == 1)
            })
        });
        if shape.is_none() {
            let places: Vec<usize> = axes.iter().map(|a| dims[*a]).collect();
            let expected = format!("one number, or {places:?} of them for {}", shape_text(cx, x));
            let received = match self.shape() {
                Some(shape) => format!("{shape:?}"),
                None => "lists of different lengths".into(),
            };
            return Err(cx.argument(argument, &expected, received));
        }
        let values = flat.iter().map(|n| *n as f32).collect();
        Ok(cx.constant(argument, &aligned, values))
    }
}
