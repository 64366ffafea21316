//! Concatenation of inputs along an axis. All other axes must agree.

use super::support::row_axis;
use crate::config::setters;
use crate::error::Result;
use crate::layer::{Layer, LayerContext};
use crate::registry::keras_class;
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

    fn call(&self, cx: &mut LayerContext<'_>, inputs: &[NodeId]) -> Result<NodeId> {
        match inputs {
            [] => Err(cx.argument("inputs", "1 or more", 0)),
            [x] => Ok(*x),
            [first, ..] => {
                let axis = row_axis(cx, *first, self.axis)?;
                Ok(cx.graph().push(Op::Concat { axis }, inputs)?)
            }
        }
    }
}
