//! Permutation of the axes of each sample: output axis `i` is input axis `dims[i]`, counted from 1, because the
//! batch is axis 0.

use super::support::{shape_text, single};
use crate::error::Result;
use crate::layer::{Layer, LayerContext, Outputs};
use crate::registry::keras_class;
use phalanx_graph::{NodeId, Op};
use serde::{Deserialize, Serialize};

/// Permutes the axes of each sample.
///
/// ```
/// use phalanx::layer::Layer;
/// use phalanx::layers::Permute;
///
/// assert_eq!(Permute::new([2, 1]).config()["dims"], serde_json::json!([2, 1]));
/// ```
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Permute {
    dims: Vec<usize>,
}

impl Permute {
    /// The axes, counted from 1, in their new order.
    pub fn new(dims: impl Into<Vec<usize>>) -> Permute {
        Permute { dims: dims.into() }
    }
}

impl Layer for Permute {
    keras_class!("Permute");

    fn call(&self, cx: &mut LayerContext<'_>, inputs: &[NodeId]) -> Result<Outputs> {
        let x = single(cx, inputs)?;
        let mut sorted = self.dims.clone();
        sorted.sort_unstable();
        if !sorted.iter().copied().eq(1..=cx.dims(x).len()) {
            let n = cx.dims(x).len();
            let expected = format!("each of 1 to {n} once for {}", shape_text(cx, x));
            return Err(cx.argument("dims", &expected, format!("{:?}", self.dims)));
        }
        let perm = self.dims.iter().map(|d| d - 1).collect();
        Ok(cx.graph().push(Op::Transpose { perm }, &[x])?.into())
    }
}
