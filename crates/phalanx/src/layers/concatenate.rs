//! Concatenation of inputs along an axis. All other axes must agree.

use super::support::row_axis;
use crate::config::setters;
use crate::error::Result;
use crate::layer::{InputsForm, Layer, LayerContext, Outputs};
use crate::registry::keras_class;
use phalanx_graph::ops::{Binary, ReduceKind};
use phalanx_graph::{NodeId, Op};
use serde::{Deserialize, Serialize};

/// Concatenates its inputs along an axis.
///
/// ```
/// use phalanx::layer::Layer;
/// use phalanx::layers::Concatenate;
///
/// assert_eq!(Concatenate::new().config()["axis"], -1);
/// ```
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Concatenate {
    axis: i64,
}

impl Default for Concatenate {
    fn default() -> Concatenate {
        Concatenate { axis: -1 }
    }
}

impl Concatenate {
    /// Along the last axis.
    pub fn new() -> Concatenate {
        Concatenate::default()
    }

    setters! {
        /// The axis of concatenation, where the batch is axis 0; defaults to the last.
        axis: i64,
    }
}

impl Layer for Concatenate {
    keras_class!("Concatenate");

    fn inputs_form(&self) -> InputsForm {
        InputsForm::List
    }

    fn call(&self, cx: &mut LayerContext<'_>, inputs: &[NodeId]) -> Result<Outputs> {
        match inputs {
            [] => Err(cx.argument("inputs", "1 or more", 0)),
            [x] => Ok((*x).into()),
            [first, ..] => {
                let axis = row_axis(cx, *first, self.axis)?;
                let y = Outputs::from(cx.graph().push(Op::Concat { axis }, inputs)?);
                Ok(y.masked(joined_mask(cx, inputs, axis)?))
            }
        }
    }
}

/// The masks of the inputs, spread over their features and concatenated: a step is valid if any of its features is.
/// Inputs without mask are valid everywhere.
fn joined_mask(
    cx: &mut LayerContext<'_>,
    inputs: &[NodeId],
    axis: usize,
) -> Result<Option<NodeId>> {
    if (0..inputs.len()).all(|i| cx.mask(i).is_none()) {
        return Ok(None);
    }
    let mut masks = vec![];
    for (i, input) in inputs.iter().enumerate() {
        let mask = cx.mask(i);
        let (dims, g) = (cx.dims(*input), cx.graph());
        masks.push(match mask {
            None => {
                let zero = g.scale(*input, 0.0)?;
                g.binary(Binary::Eq, zero, zero)?
            }
            Some(mask) if g.ty(mask).dims.len() < dims.len() => {
                let mut spread = g.ty(mask).dims.clone();
                spread.resize(dims.len(), 1);
                let mask = g.reshape(mask, &spread)?;
                g.push(Op::Broadcast { dims }, &[mask])?
            }
            Some(mask) => mask,
        });
    }
    let g = cx.graph();
    let joined = g.push(Op::Concat { axis }, &masks)?;
    let dims = g.ty(joined).dims.clone();
    let last = dims.len() - 1;
    let any = g.push(Op::Reduce { kind: ReduceKind::Max, axes: vec![last] }, &[joined])?;
    Ok(Some(g.reshape(any, &dims[..last])?))
}
