//! Generalized crossentropy, `(1 - p[label]^q) / q`, which tolerates wrong labels. It is close to the crossentropy for
//! small `q` and to the mean absolute error for `q` near 1.
//!
//! Predictions are `[.., classes]`, targets are integers `[..]`; there is one value per target.

use super::{Common, Loss, label_targets, sum_last};
use crate::config::options;
use crate::error::{Error, Result};
use crate::registry::keras_class;
use phalanx_graph::ops::Binary;
use phalanx_graph::{Graph, NodeId, Op, Type};

options! {
    /// Generalized crossentropy of integer labels.
    pub struct CategoricalGeneralizedCrossEntropy {
        common: Common::named("categorical_generalized_cross_entropy");
        /// Between the crossentropy (0) and the mean absolute error (1).
        q: f64 = 0.5,
    }
}

impl Loss for CategoricalGeneralizedCrossEntropy {
    keras_class!("CategoricalGeneralizedCrossEntropy", common);

    fn validate(&self) -> Result<()> {
        if self.q > 0.0 && self.q < 1.0 {
            return Ok(());
        }
        Err(Error::argument(self.owner(), "q", "a number between 0 and 1", self.q))
    }

    fn target(&self, prediction: &Type) -> Result<Type> {
        label_targets(self.name(), prediction)
    }

    fn values(&self, g: &mut Graph, y_true: NodeId, y_pred: NodeId) -> Result<NodeId> {
        let depth = g.ty(y_pred).last();
        let hot = g.push(Op::OneHot { depth }, &[y_true])?;
        let hit = g.mul(hot, y_pred)?;
        let p = sum_last(g, hit)?;
        let (one, q) = (g.scalar(1.0), g.scalar(self.q));
        let power = g.binary(Binary::Pow, p, q)?;
        let rest = g.sub(one, power)?;
        Ok(g.scale(rest, 1.0 / self.q)?)
    }
}
