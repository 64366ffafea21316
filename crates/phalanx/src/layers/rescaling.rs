//! `y = x · scale + offset`, for pixels: `Rescaling::new(1.0 / 255.0)`.
//!
//! The output is float and has the shape of the input. Lists hold one number for each channel.

use super::numbers::Numbers;
use super::support::single;
use crate::config::setters;
use crate::error::Result;
use crate::layer::{Layer, LayerContext, MaskRule, Outputs};
use crate::registry::keras_class;
use phalanx_graph::{DType, NodeId};
use serde::{Deserialize, Serialize};

/// `x · scale + offset`.
///
/// ```
/// use phalanx::layer::Layer;
/// use phalanx::layers::Rescaling;
///
/// let to_unit = Rescaling::new(1.0 / 127.5).offset(-1.0);
/// assert_eq!(to_unit.config()["offset"], -1.0);
/// ```
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Rescaling {
    scale: Numbers,
    #[serde(default = "zero")]
    offset: Numbers,
}

fn zero() -> Numbers {
    Numbers::One(0.0)
}

impl Rescaling {
    /// Multiplies by `scale`.
    pub fn new(scale: impl Into<Numbers>) -> Rescaling {
        Rescaling { scale: scale.into(), offset: zero() }
    }

    setters! {
        /// The offset; defaults to 0.
        offset: impl Into<Numbers>,
    }
}

impl Layer for Rescaling {
    keras_class!("Rescaling");

    fn mask_rule(&self) -> MaskRule {
        MaskRule::Pass
    }

    fn call(&self, cx: &mut LayerContext<'_>, inputs: &[NodeId]) -> Result<Outputs> {
        let x = single(cx, inputs)?;
        let x = cx.graph().cast(x, DType::F32)?;
        let channels: Vec<usize> = cx.dims(x).len().checked_sub(1).into_iter().collect();
        let scale = self.scale.constant(cx, "scale", x, &channels)?;
        let y = cx.graph().mul(x, scale)?;
        if self.offset == zero() {
            return Ok(y.into());
        }
        let offset = self.offset.constant(cx, "offset", x, &channels)?;
        Ok(cx.graph().add(y, offset)?.into())
    }
}
