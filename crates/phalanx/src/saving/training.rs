//! What files keep besides structure and weights.

use phalanx_graph::loss_scale::STATE;
use serde_json::{Map, Value};

/// What a model is trained with: losses, metrics and optimizer, and what the optimizer has gathered.
/// Files hold it; there is nothing in it to use directly.
pub struct Training {
    /// Keras' `compile_config`.
    pub(crate) config: Map<String, Value>,
    /// The optimizer's name.
    pub(crate) optimizer: String,
    pub(crate) state: TrainingState,
    /// What files have no place for, in words.
    pub(crate) unkept: Vec<String>,
}

/// What an optimizer has gathered.
pub(crate) struct TrainingState {
    /// Training steps so far.
    pub iterations: u64,
    /// The learning rate, unless a schedule gives it.
    pub learning_rate: Option<f64>,
    /// The state of the loss scale, where the optimizer has one.
    pub scale: Option<[f32; STATE]>,
    /// The rest, in Keras' order.
    pub variables: Vec<Variable>,
}

/// A variable of an optimizer.
pub(crate) struct Variable {
    pub name: String,
    pub dims: Vec<usize>,
    pub values: Vec<f32>,
}
