//! Compile arguments and optimizer state as stored in files.

use phalanx_graph::loss_scale::STATE;
use serde_json::{Map, Value};
use std::ops::Range;

/// Losses, metrics, optimizer and optimizer state of a model, as stored in files. The type is opaque to
/// users.
pub struct Training {
    /// Keras' `compile_config`.
    pub(crate) config: Map<String, Value>,
    /// Name of the optimizer.
    pub(crate) optimizer: String,
    pub(crate) state: TrainingState,
    /// Descriptions of what files cannot store.
    pub(crate) not_saved: Vec<String>,
}

/// The state of an optimizer.
pub(crate) struct TrainingState {
    /// Training steps so far.
    pub iterations: u64,
    /// The learning rate, unless a schedule determines it.
    pub learning_rate: Option<f64>,
    /// The state of the loss scale, if the optimizer has one.
    pub scale: Option<[f32; STATE]>,
    /// The other variables, in Keras' order.
    pub variables: Vec<Variable>,
    /// The class of each optimizer that a `MultiOptimizer` joins, and which of `variables` are its own.
    pub members: Vec<(&'static str, Range<usize>)>,
}

/// A variable of an optimizer.
pub(crate) struct Variable {
    pub name: String,
    pub dims: Vec<usize>,
    pub values: Vec<f32>,
    /// Whether the values are integers.
    pub integer: bool,
}
