//! Unit normalisation: `y = x / √(Σ x²)`, with the sum of each sample over `axis`.
//!
//! The output has the shape of the input. No weights.

use super::support::{row_axes, single};
use crate::config::setters;
use crate::constraints::Axes;
use crate::error::Result;
use crate::layer::{Layer, LayerContext, MaskRule, Outputs};
use crate::registry::keras_class;
use phalanx_graph::NodeId;
use phalanx_graph::ops::{Binary, Unary};
use serde::{Deserialize, Serialize};

/// Norms below this count as this, so that a zero stays zero.
const MIN_NORM: f64 = 1e-12;

/// Scales each sample to an L2 norm of one.
///
/// ```
/// use phalanx::layer::Layer;
/// use phalanx::layers::UnitNormalization;
///
/// assert_eq!(UnitNormalization::new().config()["axis"], -1);
/// ```
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct UnitNormalization {
    axis: Axes,
}

impl Default for UnitNormalization {
    fn default() -> UnitNormalization {
        UnitNormalization { axis: Axes::One(-1) }
    }
}

impl UnitNormalization {
    /// Over the last axis.
    pub fn new() -> UnitNormalization {
        UnitNormalization::default()
    }

    setters! {
        /// The axes of the norm; defaults to the last.
        axis: impl Into<Axes>,
    }
}

impl Layer for UnitNormalization {
    keras_class!("UnitNormalization");

    fn mask_rule(&self) -> MaskRule {
        MaskRule::Pass
    }

    fn call(&self, cx: &mut LayerContext<'_>, inputs: &[NodeId]) -> Result<Outputs> {
        let x = single(cx, inputs)?;
        let axes = row_axes(cx, x, &self.axis)?;
        let g = cx.graph();
        let squares = g.unary(Unary::Square, x)?;
        let sum = g.sum_axes(squares, &axes)?;
        let min_sum = g.scalar(MIN_NORM * MIN_NORM);
        let sum = g.binary(Binary::Max, sum, min_sum)?;
        let factor = g.unary(Unary::Rsqrt, sum)?;
        Ok(g.mul(x, factor)?.into())
    }
}
