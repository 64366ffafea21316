//! Logarithm of the hyperbolic cosine of the error, averaged over the last axis:
//! `ln(cosh(e)) = |e| + ln(1 + e^(-2|e|)) - ln 2`, with `e = y_pred - y_true`. It is close to `e²/2` for small errors
//! and to `|e| - ln 2` for large ones.

use super::{Common, Loss, mean_last};
use crate::config::options;
use crate::error::Result;
use crate::registry::keras_class;
use phalanx_graph::ops::Unary;
use phalanx_graph::{Graph, NodeId};

options! {
    /// Mean of `ln(cosh(y_pred - y_true))`.
    pub struct LogCosh {
        common: Common::named("log_cosh");
    }
}

impl Loss for LogCosh {
    keras_class!("LogCosh", common);

    fn values(&self, g: &mut Graph, y_true: NodeId, y_pred: NodeId) -> Result<NodeId> {
        let error = g.sub(y_pred, y_true)?;
        let size = g.unary(Unary::Abs, error)?;
        let rest = g.scale(size, -2.0)?;
        let rest = g.unary(Unary::Exp, rest)?;
        let rest = g.unary(Unary::Log1p, rest)?;
        let sum = g.add(size, rest)?;
        let values = g.offset(sum, -std::f64::consts::LN_2)?;
        mean_last(g, values)
    }
}
