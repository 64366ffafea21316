//! Deep learning with the vocabulary of Keras: a model is described once, compiled once into a static
//! step program, and trained in lockstep on every device there is.
#![deny(missing_docs)]

pub mod activations;
pub mod choice;
mod config;
pub mod constraints;
pub mod error;
pub mod initializers;
pub mod layer;
pub mod layers;
pub mod regularizers;
