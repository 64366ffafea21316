//! Functions that are composed of ops. Layers and loaded models share them.

pub mod batch;
pub mod image;
pub mod index;
pub mod layout;
pub mod math;
