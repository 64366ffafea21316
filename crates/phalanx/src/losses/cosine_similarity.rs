//! Negative cosine similarity, `-Σ t̂ · p̂` over an axis, where `t̂` and `p̂` are targets and predictions divided by their
//! Euclidean norm over that axis. -1 means the same direction, 1 the opposite one.

use super::axis::{normalize, sample_axis, sum_over};
use super::{Common, Loss};
use crate::config::options;
use crate::error::Result;
use crate::registry::keras_class;
use phalanx_graph::{Graph, NodeId};

options! {
    /// Negative cosine of the angle between targets and predictions.
    pub struct CosineSimilarity {
        common: Common::named("cosine_similarity");
        /// The axis of the vectors, counted with the batch.
        axis: i64 = -1,
    }
}

impl Loss for CosineSimilarity {
    keras_class!("CosineSimilarity", common);

    fn values(&self, g: &mut Graph, y_true: NodeId, y_pred: NodeId) -> Result<NodeId> {
        let cosine = cosine(&self.owner(), self.axis, g, y_true, y_pred)?;
        Ok(g.neg(cosine)?)
    }
}

/// The cosine of the angle between targets and predictions, for the loss and the metric of that name.
pub(crate) fn cosine(
    owner: &str,
    axis: i64,
    g: &mut Graph,
    y_true: NodeId,
    y_pred: NodeId,
) -> Result<NodeId> {
    let axis = sample_axis(owner, axis, g.ty(y_pred))?;
    let (target, prediction) = (normalize(g, y_true, axis)?, normalize(g, y_pred, axis)?);
    let product = g.mul(target, prediction)?;
    sum_over(g, product, &[axis])
}
