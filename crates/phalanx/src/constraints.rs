//! Weight constraints: projections of weights after every update.

use crate::by_name::{keras_object, named, without_case};
use crate::custom::{CustomConstraint, CustomValue};
use crate::error::Result;
use phalanx_graph::ops::Unary;
use phalanx_graph::{Graph, NodeId};
use serde::{Deserialize, Serialize};

/// Keras' epsilon, which prevents a division by zero.
const EPSILON: f64 = 1e-7;

/// One axis or several; negative axes count from the end.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum Axes {
    /// One.
    One(i64),
    /// Several.
    Many(Vec<i64>),
}

impl Axes {
    /// The axes.
    pub fn as_slice(&self) -> &[i64] {
        match self {
            Axes::One(axis) => std::slice::from_ref(axis),
            Axes::Many(axes) => axes,
        }
    }
}

impl Default for Axes {
    fn default() -> Axes {
        Axes::One(0)
    }
}

impl From<i64> for Axes {
    fn from(axis: i64) -> Axes {
        Axes::One(axis)
    }
}

impl<const N: usize> From<[i64; N]> for Axes {
    fn from(axes: [i64; N]) -> Axes {
        Axes::Many(axes.to_vec())
    }
}

impl From<&[i64]> for Axes {
    fn from(axes: &[i64]) -> Axes {
        Axes::Many(axes.to_vec())
    }
}

fn two() -> f64 {
    2.0
}

fn one() -> f64 {
    1.0
}

/// A weight constraint. Norms are computed over `axis`: 0 for a dense kernel `[in, out]`, `[0, 1, 2]` for the
/// kernel `[h, w, in, out]` of a convolution. Serialised as in Keras.
///
/// ```
/// use phalanx::prelude::*;
///
/// let layer = Dense::new(8).kernel_constraint(Constraint::max_norm(1.0, 0));
/// ```
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(remote = "Self", tag = "class_name", content = "config", deny_unknown_fields)]
pub enum Constraint {
    /// Norms of at most `max_value`.
    MaxNorm {
        /// Largest norm.
        #[serde(default = "two")]
        max_value: f64,
        /// The axes over which norms are computed.
        #[serde(default)]
        axis: Axes,
    },
    /// No negative weights.
    NonNeg {},
    /// Norms of one.
    UnitNorm {
        /// The axes over which norms are computed.
        #[serde(default)]
        axis: Axes,
    },
    /// Norms between two values, approached at a rate.
    MinMaxNorm {
        /// Smallest norm.
        #[serde(default)]
        min_value: f64,
        /// Largest norm.
        #[serde(default = "one")]
        max_value: f64,
        /// The fraction of the correction that is applied at each update.
        #[serde(default = "one")]
        rate: f64,
        /// The axes over which norms are computed.
        #[serde(default)]
        axis: Axes,
    },
    /// A custom class
    #[serde(skip)]
    Custom(CustomValue<dyn CustomConstraint>),
}

impl Constraint {
    /// Norms of at most `max_value`.
    pub fn max_norm(max_value: f64, axis: impl Into<Axes>) -> Constraint {
        Constraint::MaxNorm { max_value, axis: axis.into() }
    }

    /// No negative weights.
    pub fn non_neg() -> Constraint {
        Constraint::NonNeg {}
    }

    /// Norms of one.
    pub fn unit_norm(axis: impl Into<Axes>) -> Constraint {
        Constraint::UnitNorm { axis: axis.into() }
    }

    /// Norms between two values, approached at a rate.
    pub fn min_max_norm(min: f64, max: f64, rate: f64, axis: impl Into<Axes>) -> Constraint {
        Constraint::MinMaxNorm { min_value: min, max_value: max, rate, axis: axis.into() }
    }

    /// The axes over which norms are computed; `None` for a constraint without norms.
    pub fn axes(&self) -> Option<&Axes> {
        match self {
            Constraint::NonNeg {} | Constraint::Custom(_) => None,
            Constraint::MaxNorm { axis, .. }
            | Constraint::UnitNorm { axis }
            | Constraint::MinMaxNorm { axis, .. } => Some(axis),
        }
    }

    /// Appends the projection of a weight. Axes that the weight does not have are ignored.
    ///
    /// A norm `n` over the axes becomes `desired(n)` through the factor `desired(n) / (epsilon + n)`.
    pub fn project(&self, g: &mut Graph, w: NodeId) -> Result<NodeId> {
        if let Constraint::Custom(custom) = self {
            return custom.checked_projection(g, w);
        }
        let Some(axes) = self.axes() else { return Ok(g.relu(w)?) };
        let rank = g.ty(w).dims.len() as i64;
        let chosen = |axis: &i64| axes.as_slice().iter().any(|a| a == axis || a + rank == *axis);
        let axes: Vec<usize> = (0..rank).filter(chosen).map(|a| a as usize).collect();
        let squares = g.unary(Unary::Square, w)?;
        let sum = g.sum_axes(squares, &axes)?;
        let norm = g.unary(Unary::Sqrt, sum)?;
        let desired = match self {
            Constraint::NonNeg {} | Constraint::Custom(_) => norm,
            Constraint::UnitNorm { .. } => g.scalar(1.0),
            Constraint::MaxNorm { max_value, .. } => g.clamp(norm, 0.0, max_value.max(0.0))?,
            Constraint::MinMaxNorm { min_value, max_value, rate, .. } => {
                let limited = g.clamp(norm, *min_value, *max_value)?;
                let (limited, kept) = (g.scale(limited, *rate)?, g.scale(norm, 1.0 - rate)?);
                g.add(limited, kept)?
            }
        };
        let safe = g.offset(norm, EPSILON)?;
        let factor = g.div(desired, safe)?;
        Ok(g.mul(w, factor)?)
    }
}

named! {
    Constraint, "constraint", without_case, or Constraint::custom_by_name;
    "max_norm" => Constraint::max_norm(2.0, 0),
    "non_neg" => Constraint::non_neg(),
    "unit_norm" => Constraint::unit_norm(0),
    "min_max_norm" => Constraint::min_max_norm(0.0, 1.0, 1.0, 0),
}

keras_object!(Constraint, "keras.constraints");
