//! Masking of steps: a step whose features all equal `mask_value` is padding. Padding becomes zero.
//!
//! Input and output `(batch, .., features)`; the mask is `(batch, ..)`. No weights.

use super::support::{check_finite, shape_text, single};
use crate::config::setters;
use crate::error::Result;
use crate::layer::{Layer, LayerContext, Outputs};
use crate::registry::keras_class;
use phalanx_graph::functions::math::not_equal;
use phalanx_graph::ops::ReduceKind;
use phalanx_graph::{NodeId, Op};
use serde::{Deserialize, Serialize};

/// Masks steps of a sequence.
///
/// ```
/// use phalanx::layer::Layer;
/// use phalanx::layers::Masking;
///
/// assert_eq!(Masking::new().mask_value(-1.0).config()["mask_value"], -1.0);
/// ```
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Masking {
    mask_value: f64,
}

impl Masking {
    /// Masks steps that are all zero.
    pub fn new() -> Masking {
        Masking::default()
    }

    setters! {
        /// The value of padding; defaults to 0.
        mask_value: f64,
    }
}

impl Layer for Masking {
    keras_class!("Masking");

    fn call(&self, cx: &mut LayerContext<'_>, inputs: &[NodeId]) -> Result<Outputs> {
        check_finite(cx, "mask_value", self.mask_value)?;
        let x = single(cx, inputs)?;
        let dims = cx.dims(x);
        let Some((_, steps)) = dims.split_last() else {
            let received = shape_text(cx, x);
            return Err(cx.argument("input", "shape (batch, .., features)", received));
        };
        let g = cx.graph();
        let padding = g.scalar(self.mask_value);
        let differs = not_equal(g, x, padding)?;
        let axes = vec![steps.len()];
        let valid = g.push(Op::Reduce { kind: ReduceKind::Max, axes }, &[differs])?;
        let y = Outputs::from(g.mul(x, valid)?);
        Ok(y.masked(Some(g.reshape(valid, steps)?)))
    }
}
