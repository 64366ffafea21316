//! Stands in for `plots` in a build without the feature `plots`: every function fails.

use crate::error::{Error, Result};
use crate::history::History;
use crate::model::Summary;
use phalanx_graph::Tensor;
use std::path::Path;

/// Maximum number of classes that can be drawn.
pub const MAX_CLASSES: usize = 0;

const MISSING: Error = Error::MissingFeature { what: "plots", feature: "plots" };

/// Checks that a plot can be written: it cannot.
pub fn check(_: &Path) -> Result<()> {
    Err(MISSING)
}

/// Draws the curves of a training run.
pub fn curves(_: &History, _: &str, _: &Path) -> Result<()> {
    Err(MISSING)
}

/// Draws a confusion matrix.
pub fn confusion_matrix(_: &[Vec<u64>], _: &[String], _: &str, _: &Path) -> Result<()> {
    Err(MISSING)
}

/// Draws samples with their predictions.
pub fn samples(_: &Tensor, _: &[(String, bool)], _: &str, _: usize, _: &Path) -> Result<()> {
    Err(MISSING)
}

/// Draws a model as a graph.
pub fn model(_: &Summary, _: &Path) -> Result<()> {
    Err(MISSING)
}
