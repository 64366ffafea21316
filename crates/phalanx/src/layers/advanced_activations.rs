//! Activations with arguments. The output has the shape of the input.

use super::support::{
    WeightOptions, check_finite, check_not_negative, masked_scores, row_axes, single,
};
use crate::activations::{elu, leaky_relu, relu};
use crate::by_name::{ByName, OptionalByName};
use crate::config::{self, setters};
use crate::constraints::{Axes, Constraint};
use crate::error::Result;
use crate::initializers::Initializer;
use crate::layer::{Layer, LayerContext, MaskRule, Outputs};
use crate::registry::{Config, keras_class};
use crate::regularizers::Regularizer;
use phalanx_graph::{Graph, NodeId, Op};
use serde::{Deserialize, Serialize};

/// `max_value` from `max_value` up, `x` above `threshold`, `negative_slope · (x - threshold)` below.
///
/// ```
/// use phalanx::layer::Layer;
/// use phalanx::layers::ReLU;
///
/// let relu6 = ReLU::new().max_value(6.0);
/// assert_eq!(relu6.config()["max_value"], 6.0);
/// ```
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct ReLU {
    max_value: Option<f64>,
    negative_slope: f64,
    threshold: f64,
}

impl ReLU {
    /// `max(x, 0)`.
    pub fn new() -> ReLU {
        ReLU::default()
    }

    setters! {
        /// The maximum result; no limit by default.
        max_value: f64,
        /// Slope below the threshold; defaults to 0.
        negative_slope: f64,
        /// The threshold above which `x` passes; defaults to 0.
        threshold: f64,
    }
}

impl Layer for ReLU {
    keras_class!("ReLU");

    fn mask_rule(&self) -> MaskRule {
        MaskRule::Pass
    }

    fn call(&self, cx: &mut LayerContext<'_>, inputs: &[NodeId]) -> Result<Outputs> {
        if let Some(max_value) = self.max_value {
            check_not_negative(cx, "max_value", max_value)?;
        }
        check_not_negative(cx, "negative_slope", self.negative_slope)?;
        check_not_negative(cx, "threshold", self.threshold)?;
        let x = single(cx, inputs)?;
        Ok(relu(cx.graph(), x, self.max_value, self.negative_slope, self.threshold)?.into())
    }
}

/// `x` above zero, `negative_slope · x` below.
///
/// ```
/// use phalanx::layer::Layer;
/// use phalanx::layers::LeakyReLU;
///
/// assert_eq!(LeakyReLU::new().config()["negative_slope"], 0.3);
/// ```
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct LeakyReLU {
    #[serde(alias = "alpha")]
    negative_slope: f64,
}

impl Default for LeakyReLU {
    fn default() -> LeakyReLU {
        LeakyReLU { negative_slope: 0.3 }
    }
}

impl LeakyReLU {
    /// Slope 0.3.
    pub fn new() -> LeakyReLU {
        LeakyReLU::default()
    }

    setters! {
        /// Slope below zero; defaults to 0.3.
        negative_slope: f64,
    }
}

impl Layer for LeakyReLU {
    keras_class!("LeakyReLU");

    fn mask_rule(&self) -> MaskRule {
        MaskRule::Pass
    }

    fn call(&self, cx: &mut LayerContext<'_>, inputs: &[NodeId]) -> Result<Outputs> {
        check_finite(cx, "negative_slope", self.negative_slope)?;
        let x = single(cx, inputs)?;
        Ok(leaky_relu(cx.graph(), x, self.negative_slope)?.into())
    }
}

/// `x` above zero, `alpha · (eˣ - 1)` below.
///
/// ```
/// use phalanx::layer::Layer;
/// use phalanx::layers::ELU;
///
/// assert_eq!(ELU::new().config()["alpha"], 1.0);
/// ```
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct ELU {
    alpha: f64,
}

impl Default for ELU {
    fn default() -> ELU {
        ELU { alpha: 1.0 }
    }
}

impl ELU {
    /// `alpha` 1.
    pub fn new() -> ELU {
        ELU::default()
    }

    setters! {
        /// The limit for large negative inputs, negated; defaults to 1.
        alpha: f64,
    }
}

impl Layer for ELU {
    keras_class!("ELU");

    fn mask_rule(&self) -> MaskRule {
        MaskRule::Pass
    }

    fn call(&self, cx: &mut LayerContext<'_>, inputs: &[NodeId]) -> Result<Outputs> {
        check_finite(cx, "alpha", self.alpha)?;
        let x = single(cx, inputs)?;
        Ok(elu(cx.graph(), x, self.alpha)?.into())
    }
}

/// `x` above zero, `alpha · x` below, with a weight `alpha` for each element of a sample.
///
/// ```
/// use phalanx::layer::Layer;
/// use phalanx::layers::PReLU;
///
/// let prelu = PReLU::new().shared_axes([1, 2]);
/// assert_eq!(prelu.config()["shared_axes"], serde_json::json!([1, 2]));
/// ```
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct PReLU {
    alpha_initializer: ByName<Initializer>,
    alpha_regularizer: OptionalByName<Regularizer>,
    alpha_constraint: OptionalByName<Constraint>,
    shared_axes: Option<Axes>,
}

impl Default for PReLU {
    fn default() -> PReLU {
        PReLU {
            alpha_initializer: Initializer::Zeros {}.into(),
            alpha_regularizer: OptionalByName::default(),
            alpha_constraint: OptionalByName::default(),
            shared_axes: None,
        }
    }
}

impl PReLU {
    /// A weight for each element, zero at first.
    pub fn new() -> PReLU {
        PReLU::default()
    }

    /// Axes whose elements share a weight, counted with the batch as 0.
    #[must_use]
    pub fn shared_axes(mut self, shared_axes: impl Into<Axes>) -> PReLU {
        self.shared_axes = Some(shared_axes.into());
        self
    }

    setters! {
        /// Initializer of `alpha`; defaults to zeros.
        alpha_initializer: impl Into<ByName<Initializer>>,
        /// Regularizer of `alpha`.
        alpha_regularizer: impl Into<OptionalByName<Regularizer>>,
        /// Constraint on `alpha`.
        alpha_constraint: impl Into<OptionalByName<Constraint>>,
    }
}

impl Layer for PReLU {
    fn class_name(&self) -> &'static str {
        "PReLU"
    }

    fn config(&self) -> Config {
        // Keras writes a list even for a single axis.
        let shared_axes = self.shared_axes.as_ref().map(|axes| axes.as_slice().into());
        config::write(&PReLU { shared_axes, ..self.clone() })
    }

    fn mask_rule(&self) -> MaskRule {
        MaskRule::Pass
    }

    fn call(&self, cx: &mut LayerContext<'_>, inputs: &[NodeId]) -> Result<Outputs> {
        let x = single(cx, inputs)?;
        let mut dims = cx.dims(x);
        for axis in self.shared_axes.iter().flat_map(Axes::as_slice) {
            let index = usize::try_from(*axis).ok().and_then(|axis| axis.checked_sub(1));
            match index.and_then(|index| dims.get_mut(index)) {
                Some(size) => *size = 1,
                None => {
                    let expected = format!("axes from 1 to {}", dims.len());
                    return Err(cx.argument("shared_axes", &expected, axis));
                }
            }
        }
        let alpha = WeightOptions {
            initializer: &self.alpha_initializer,
            regularizer: &self.alpha_regularizer,
            constraint: &self.alpha_constraint,
        };
        let alpha = alpha.weight(cx, "alpha", &dims)?;
        let g = cx.graph();
        let above = g.relu(x)?;
        let negated = g.neg(x)?;
        let below = g.relu(negated)?;
        let below = g.mul(below, alpha)?;
        Ok(g.sub(above, below)?.into())
    }
}

/// `eˣ / Σ eˣ` over `axis`. Entries whose mask is zero do not count and give zero.
///
/// ```
/// use phalanx::layer::Layer;
/// use phalanx::layers::Softmax;
///
/// assert_eq!(Softmax::new().config()["axis"], -1);
/// ```
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Softmax {
    axis: Axes,
}

impl Default for Softmax {
    fn default() -> Softmax {
        Softmax { axis: Axes::One(-1) }
    }
}

impl Softmax {
    /// Over the last axis.
    pub fn new() -> Softmax {
        Softmax::default()
    }

    setters! {
        /// The axis that sums to one, or several that do so together; defaults to the last.
        axis: impl Into<Axes>,
    }
}

/// The axes of a value in another order.
fn transposed(g: &mut Graph, x: NodeId, perm: &[usize]) -> Result<NodeId> {
    match perm.is_sorted() {
        true => Ok(x),
        false => Ok(g.push(Op::Transpose { perm: perm.to_vec() }, &[x])?),
    }
}

impl Layer for Softmax {
    keras_class!("Softmax");

    fn mask_rule(&self) -> MaskRule {
        MaskRule::Pass
    }

    fn call(&self, cx: &mut LayerContext<'_>, inputs: &[NodeId]) -> Result<Outputs> {
        let x = single(cx, inputs)?;
        let axes = row_axes(cx, x, &self.axis)?;
        let mask = cx.mask(0);
        let dims = cx.dims(x);
        if let Some(mask) = mask.map(|mask| cx.dims(mask))
            && (mask.len() != dims.len() || mask.iter().zip(&dims).any(|(m, n)| *m != 1 && m != n))
        {
            let expected = format!("sizes of {dims:?} or 1");
            return Err(cx.argument("mask", &expected, format!("{mask:?}")));
        }
        let scores = masked_scores(cx, x, mask)?;
        // The axes come last, as one.
        let mut perm: Vec<usize> = (0..dims.len()).filter(|axis| !axes.contains(axis)).collect();
        let mut flat: Vec<usize> = perm.iter().map(|axis| dims[*axis]).collect();
        flat.push(axes.iter().map(|axis| dims[*axis]).product());
        perm.extend(&axes);
        let moved: Vec<usize> = perm.iter().map(|axis| dims[*axis]).collect();
        let mut back = vec![0; perm.len()];
        perm.iter().enumerate().for_each(|(to, from)| back[*from] = to);
        let g = cx.graph();
        let scores = transposed(g, scores, &perm)?;
        let scores = g.reshape(scores, &flat)?;
        let y = g.push(Op::Softmax, &[scores])?;
        let y = g.reshape(y, &moved)?;
        let y = transposed(g, y, &back)?;
        let Some(mask) = mask else { return Ok(y.into()) };
        let zero = g.scalar(0.0);
        Ok(g.select(mask, y, zero)?.into())
    }
}
