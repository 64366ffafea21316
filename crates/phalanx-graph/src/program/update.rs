//! The optimizer's part of a program.

use super::ValueId;
use crate::graph::ParamId;
use crate::loss_scale::LossScale;
use crate::update::UpdateRule;
use std::ops::Range;

/// How the gradient of a parameter is reduced.
#[derive(Clone, Debug, PartialEq)]
pub struct GradientPlan {
    /// The parameter.
    pub param: ParamId,
    /// Whether each worker holds a part of the device's sum, instead of a partial sum of the gradient.
    pub sharded: bool,
    /// The partial gradient, if its bucket is reduced during the backward pass; otherwise it is in the gradient buffer.
    pub value: Option<ValueId>,
    /// The layer's input and the derivative of its output, if a sharded gradient is computed where it is reduced or
    /// applied.
    pub operands: Option<(ValueId, ValueId)>,
    /// Number of elements that must not be separated when the gradient is split among workers.
    pub granule: usize,
    /// Coefficient of `Σ|w|` in the loss.
    pub l1: f32,
    /// Coefficient of `Σw²` in the loss.
    pub l2: f32,
}

/// The optimizer's part of a program.
#[derive(Clone, Debug, PartialEq)]
pub struct UpdatePlan {
    /// The rule.
    pub rule: UpdateRule,
    /// Gradients in the order in which backward completes them.
    pub gradients: Vec<GradientPlan>,
    /// Ranges of `gradients` that are reduced together.
    pub buckets: Vec<Range<usize>>,
    /// The loss scaling, if any.
    pub loss_scale: Option<LossScale>,
}
