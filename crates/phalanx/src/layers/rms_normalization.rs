//! Root mean square normalisation: `y = scale · x / √(mean(x²) + epsilon)`, with the mean of each sample over `axis`.
//!
//! The output has the shape of the input. Weights: `scale`, with the shape of the normalised axes.

use super::support::{check_not_negative, row_axes, single};
use crate::config::{self, setters};
use crate::constraints::Axes;
use crate::error::Result;
use crate::initializers::Initializer;
use crate::layer::{Layer, LayerContext, Outputs, WeightSpec};
use phalanx_graph::NodeId;
use phalanx_graph::ops::Unary;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

/// Root mean square normalisation.
///
/// ```
/// use phalanx::layer::Layer;
/// use phalanx::layers::RMSNormalization;
///
/// let norm = RMSNormalization::new().epsilon(1e-5);
/// assert_eq!(norm.config()["axis"], serde_json::json!([-1]));
/// ```
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct RMSNormalization {
    axis: Axes,
    epsilon: f64,
}

impl Default for RMSNormalization {
    fn default() -> RMSNormalization {
        RMSNormalization { axis: Axes::One(-1), epsilon: 1e-6 }
    }
}

impl RMSNormalization {
    /// Over the last axis, epsilon 0.000001.
    pub fn new() -> RMSNormalization {
        RMSNormalization::default()
    }

    setters! {
        /// The axes to normalise, which are the last ones; defaults to the last.
        axis: impl Into<Axes>,
        /// Added to the mean of the squares.
        epsilon: f64,
    }
}

impl Layer for RMSNormalization {
    fn class_name(&self) -> &'static str {
        "RMSNormalization"
    }

    fn config(&self) -> Map<String, Value> {
        // Keras writes a list even for a single axis.
        let axis = self.axis.as_slice().into();
        config::write(&RMSNormalization { axis, ..self.clone() })
    }

    fn call(&self, cx: &mut LayerContext<'_>, inputs: &[NodeId]) -> Result<Outputs> {
        check_not_negative(cx, "epsilon", self.epsilon)?;
        let x = single(cx, inputs)?;
        let axes = row_axes(cx, x, &self.axis)?;
        let dims = cx.dims(x);
        // Keras multiplies by the scale along the last axes, whatever the axes are.
        if axes.iter().copied().ne(dims.len() - axes.len()..dims.len()) {
            let received = format!("{:?}", self.axis.as_slice());
            return Err(cx.argument("axis", "the last axes", received));
        }
        let scale = WeightSpec::new("scale", &dims[axes[0]..], Initializer::Ones {});
        let scale = cx.weight(scale)?;
        let g = cx.graph();
        let squares = g.unary(Unary::Square, x)?;
        let mean = g.mean_axes(squares, &axes)?;
        let t = g.offset(mean, self.epsilon)?;
        let factor = g.unary(Unary::Rsqrt, t)?;
        let y = g.mul(x, factor)?;
        Ok(g.mul(y, scale)?.into())
    }
}
