//! Repetition of a vector: `y[i] = x` for each `i` below `n`.
//!
//! Input `(batch, features)`, output `(batch, n, features)`. No weights.

use super::support::{check_at_least_one, shape_text, single};
use crate::error::Result;
use crate::layer::{Layer, LayerContext, Outputs};
use crate::registry::keras_class;
use phalanx_graph::{NodeId, Op};
use serde::{Deserialize, Serialize};

/// Repeats a vector.
///
/// ```
/// use phalanx::layer::Layer;
/// use phalanx::layers::RepeatVector;
///
/// assert_eq!(RepeatVector::new(3).config()["n"], 3);
/// ```
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RepeatVector {
    n: usize,
}

impl RepeatVector {
    /// Repeats its input `n` times.
    pub fn new(n: usize) -> RepeatVector {
        RepeatVector { n }
    }
}

impl Layer for RepeatVector {
    keras_class!("RepeatVector");

    fn call(&self, cx: &mut LayerContext<'_>, inputs: &[NodeId]) -> Result<Outputs> {
        check_at_least_one(cx, "n", self.n)?;
        let x = single(cx, inputs)?;
        let [features] = cx.dims(x)[..] else {
            let received = shape_text(cx, x);
            return Err(cx.argument("input", "shape (batch, features)", received));
        };
        let x = cx.graph().reshape(x, &[1, features])?;
        Ok(cx.graph().push(Op::Broadcast { dims: vec![self.n, features] }, &[x])?.into())
    }
}
