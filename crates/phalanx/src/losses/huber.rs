//! Huber loss, quadratic near zero and linear beyond `delta`, averaged over the last axis:
//! `e²/2` where `|e| <= delta`, else `delta · |e| - delta²/2`, with `e = y_pred - y_true`.

use super::{Common, Loss, mean_last};
use crate::config::options;
use crate::error::{Error, Result};
use crate::registry::keras_class;
use phalanx_graph::ops::{Binary, Unary};
use phalanx_graph::{Graph, NodeId};

options! {
    /// Huber loss.
    pub struct Huber {
        common: Common::named("huber_loss");
        /// The error at which the loss changes from quadratic to linear.
        delta: f64 = 1.0,
    }
}

impl Loss for Huber {
    keras_class!("Huber", common);

    fn validate(&self) -> Result<()> {
        if self.delta > 0.0 && self.delta.is_finite() {
            return Ok(());
        }
        Err(Error::argument(self.owner(), "delta", "a number above 0", self.delta))
    }

    fn values(&self, g: &mut Graph, y_true: NodeId, y_pred: NodeId) -> Result<NodeId> {
        let error = g.sub(y_pred, y_true)?;
        let size = g.unary(Unary::Abs, error)?;
        let delta = g.scalar(self.delta);
        let near = g.binary(Binary::Ge, delta, size)?;
        let square = g.unary(Unary::Square, error)?;
        let quadratic = g.scale(square, 0.5)?;
        let linear = g.mul(size, delta)?;
        let linear = g.offset(linear, -0.5 * self.delta * self.delta)?;
        let values = g.select(near, quadratic, linear)?;
        mean_last(g, values)
    }
}
