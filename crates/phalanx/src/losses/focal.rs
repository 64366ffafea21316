//! Focal crossentropies: crossentropies whose terms are multiplied by `(1 - p)^gamma`, where `p` is the probability of
//! the target. Samples that are already predicted well then count less.
//!
//! - binary, averaged over an axis: `(1 - pₜ)^gamma · bce(t, p)` with `pₜ = t · p + (1 - t) · (1 - p)`. Class balancing
//!   multiplies it by `t · alpha + (1 - t) · (1 - alpha)`.
//! - categorical: `-Σ alpha · (1 - p)^gamma · t · log p` over an axis

use super::axis::{along, mean_over, sample_axis, sum_over};
use super::binary_crossentropy::from_probabilities;
use super::categorical_crossentropy::probabilities;
use super::{Common, Loss, check_fraction, class_targets, smooth, smooth_classes};
use crate::config::options;
use crate::error::{Error, Result};
use crate::registry::keras_class;
use phalanx_graph::ops::{Binary, Unary};
use phalanx_graph::{Graph, NodeId, Op, Type};
use serde::{Deserialize, Serialize};

/// The balancing factor of the classes.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum Alpha {
    /// The same for all classes.
    All(f64),
    /// One per class.
    Each(Vec<f64>),
}

impl From<f64> for Alpha {
    fn from(alpha: f64) -> Alpha {
        Alpha::All(alpha)
    }
}

impl From<Vec<f64>> for Alpha {
    fn from(alpha: Vec<f64>) -> Alpha {
        Alpha::Each(alpha)
    }
}

options! {
    /// Focal crossentropy of 0-or-1 targets.
    pub struct BinaryFocalCrossentropy {
        common: Common::named("binary_focal_crossentropy");
        /// Whether the classes are weighted by `alpha`.
        apply_class_balancing: bool = false,
        /// The weight of class 1; class 0 has `1 - alpha`.
        alpha: f64 = 0.25,
        /// How much less samples count that are predicted well.
        gamma: f64 = 2.0,
        /// Whether predictions are logits rather than probabilities.
        from_logits: bool = false,
        /// How far targets are moved towards 0.5.
        label_smoothing: f64 = 0.0,
        /// The axis over which the mean is taken, counted with the batch.
        axis: i64 = -1,
    }
}

options! {
    /// Focal crossentropy of one-hot (or soft) targets.
    pub struct CategoricalFocalCrossentropy {
        common: Common::named("categorical_focal_crossentropy");
        /// The factor of the classes.
        alpha: Alpha = Alpha::All(0.25),
        /// How much less samples count that are predicted well.
        gamma: f64 = 2.0,
        /// Whether predictions are logits rather than probabilities.
        from_logits: bool = false,
        /// The fraction of the target that is spread evenly over the classes.
        label_smoothing: f64 = 0.0,
        /// The axis of the classes, counted with the batch.
        axis: i64 = -1,
    }
}

/// `x^gamma` for `x` from 0. Rounding may make a base of 0 negative, which only some powers accept.
fn power(g: &mut Graph, x: NodeId, gamma: f64) -> Result<NodeId> {
    if gamma == 0.0 {
        return Ok(g.scalar(1.0));
    }
    if gamma == 1.0 {
        return Ok(x);
    }
    if gamma == 2.0 {
        return Ok(g.unary(Unary::Square, x)?);
    }
    let base = g.relu(x)?;
    let exponent = g.scalar(gamma);
    Ok(g.binary(Binary::Pow, base, exponent)?)
}

fn check_gamma(owner: String, gamma: f64) -> Result<()> {
    if gamma >= 0.0 && gamma.is_finite() {
        return Ok(());
    }
    Err(Error::argument(owner, "gamma", "a number from 0", gamma))
}

/// `t · a + (1 - t) · b`
fn mix(g: &mut Graph, t: NodeId, a: NodeId, b: NodeId) -> Result<NodeId> {
    let one = g.scalar(1.0);
    let not_t = g.sub(one, t)?;
    let (yes, no) = (g.mul(t, a)?, g.mul(not_t, b)?);
    Ok(g.add(yes, no)?)
}

impl Loss for BinaryFocalCrossentropy {
    keras_class!("BinaryFocalCrossentropy", common);

    fn validate(&self) -> Result<()> {
        check_fraction(self.name(), "label_smoothing", self.label_smoothing)?;
        check_gamma(self.owner(), self.gamma)
    }

    fn values(&self, g: &mut Graph, y_true: NodeId, y_pred: NodeId) -> Result<NodeId> {
        let target = smooth(g, y_true, self.label_smoothing, 0.5)?;
        let p = if self.from_logits { g.unary(Unary::Sigmoid, y_pred)? } else { y_pred };
        let crossentropy = from_probabilities(g, target, p)?;
        let one = g.scalar(1.0);
        let not_p = g.sub(one, p)?;
        let hit = mix(g, target, p, not_p)?;
        let miss = g.sub(one, hit)?;
        let factor = power(g, miss, self.gamma)?;
        let mut values = g.mul(factor, crossentropy)?;
        if self.apply_class_balancing {
            let (alpha, rest) = (g.scalar(self.alpha), g.scalar(1.0 - self.alpha));
            let weight = mix(g, target, alpha, rest)?;
            values = g.mul(weight, values)?;
        }
        mean_over(&self.owner(), self.axis, g, values)
    }
}

impl CategoricalFocalCrossentropy {
    /// The factor of the classes, which lie on the last axis.
    fn factor(&self, g: &mut Graph, classes: usize) -> Result<NodeId> {
        let each = match &self.alpha {
            Alpha::All(alpha) => return Ok(g.scalar(*alpha)),
            Alpha::Each(each) if each.len() == classes => each,
            Alpha::Each(each) => {
                let expected = format!("{classes} factors");
                return Err(Error::argument(self.owner(), "alpha", expected, each.len()));
            }
        };
        let factors: Vec<NodeId> = each.iter().map(|alpha| g.fill(*alpha, &[1])).collect();
        Ok(g.push(Op::Concat { axis: 0 }, &factors)?)
    }
}

impl Loss for CategoricalFocalCrossentropy {
    keras_class!("CategoricalFocalCrossentropy", common);

    fn validate(&self) -> Result<()> {
        check_fraction(self.name(), "label_smoothing", self.label_smoothing)?;
        check_gamma(self.owner(), self.gamma)
    }

    fn target(&self, prediction: &Type) -> Result<Type> {
        class_targets(self.name(), prediction)
    }

    fn values(&self, g: &mut Graph, y_true: NodeId, y_pred: NodeId) -> Result<NodeId> {
        let target = smooth_classes(g, y_true, self.label_smoothing)?;
        let axis = sample_axis(&self.owner(), self.axis, g.ty(y_pred))?;
        let p = if self.from_logits { along(g, Op::Softmax, y_pred, axis)? } else { y_pred };
        let p = probabilities(g, p, axis)?;
        let log = g.unary(Unary::Log, p)?;
        let crossentropy = g.mul(target, log)?;
        let one = g.scalar(1.0);
        let miss = g.sub(one, p)?;
        let classes = g.ty(y_pred).last();
        let (modulating, alpha) = (power(g, miss, self.gamma)?, self.factor(g, classes)?);
        let factor = g.mul(modulating, alpha)?;
        let values = g.mul(factor, crossentropy)?;
        let sum = sum_over(g, values, &[axis])?;
        Ok(g.neg(sum)?)
    }
}
