//! Reshaping of each sample: `(batch, ..)` becomes `(batch, *target_shape)`, where one entry may be -1 and is
//! derived from the others.

use super::support::{shape_text, single};
use crate::error::Result;
use crate::layer::{Layer, LayerContext, Outputs};
use crate::registry::keras_class;
use phalanx_graph::NodeId;
use serde::{Deserialize, Serialize};

/// Reshapes each sample.
///
/// ```
/// use phalanx::layer::Layer;
/// use phalanx::layers::Reshape;
///
/// assert_eq!(Reshape::new([28, -1]).config()["target_shape"], serde_json::json!([28, -1]));
/// ```
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Reshape {
    target_shape: Vec<i64>,
}

impl Reshape {
    /// The shape without the batch; one entry may be -1.
    pub fn new(target_shape: impl Into<Vec<i64>>) -> Reshape {
        Reshape { target_shape: target_shape.into() }
    }

    /// The shape with -1 resolved for `len` elements.
    fn resolve(&self, len: usize) -> Option<Vec<usize>> {
        let mut given = self.target_shape.iter().filter(|d| **d != -1);
        let known = given.try_fold(1usize, |n, d| n.checked_mul(usize::try_from(*d).ok()?))?;
        let missing = match self.target_shape.iter().filter(|d| **d == -1).count() {
            0 if known == len => 1,
            1 if known > 0 && len.is_multiple_of(known) => len / known,
            _ => return None,
        };
        let resolved = self.target_shape.iter().map(|d| usize::try_from(*d).unwrap_or(missing));
        Some(resolved.collect())
    }
}

impl Layer for Reshape {
    keras_class!("Reshape");

    fn call(&self, cx: &mut LayerContext<'_>, inputs: &[NodeId]) -> Result<Outputs> {
        let x = single(cx, inputs)?;
        let len = cx.dims(x).iter().product();
        match self.resolve(len) {
            Some(dims) => Ok(cx.graph().reshape(x, &dims)?.into()),
            None => {
                let expected = format!("a shape of {len} elements as in {}", shape_text(cx, x));
                Err(cx.argument("target_shape", &expected, format!("{:?}", self.target_shape)))
            }
        }
    }
}
